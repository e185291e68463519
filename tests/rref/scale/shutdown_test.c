/* No lock is held for long: a dump and a shutdown look at references in slices. The slices
 * follow at once, so the tests count how often the lock is released in between.
 *
 * w1 owns, w0 creates and holds, w2 is the third. All of them are simulated, so nothing runs
 * between the steps of a test.
 */
#include <stdlib.h>

#include "rref/hooks.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/scale/fixture.h"

enum { N = 10000, MOST_AT_ONCE = 1024 };

static const pthread_mutex_t *counted;
static size_t n_unlocks; /* of that one */

int __real_pthread_mutex_unlock(pthread_mutex_t *mu);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu);

/* The linker sends calls of pthread_mutex_unlock() here (`--wrap`, in BUILD). */
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu)
{
    n_unlocks += mu == counted;
    return __real_pthread_mutex_unlock(mu);
}

static void dump_releases_the_lock_in_between_when_there_are_many_references(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session owner = scale_session(w->agents[0], "w1");
    tether_rref **rrefs = scale_hold_many(w->agents[0], owner, N, true);
    tether_buf text = TETHER_BUF_INIT;
    counted = &tether__refs_of(w->agents[0])->mu;
    n_unlocks = 0;
    assert_int_equal(tether_rref_dump(w->agents[0], true, &text), TETHER_OK);
    counted = NULL;
    assert_true(n_unlocks >= N / MOST_AT_ONCE);
    tether_buf_fini(&text);
    scale_release_held(rrefs, N);
    assert_true(tether_test_world_wait(w, scale_has_sent_notices, owner.peer));
}

static size_t unlocks_of_drain(tether_agent *agent)
{
    tether_error err = {0};
    n_unlocks = 0;
    counted = &tether__refs_of(agent)->mu;
    tether__refs_drain(agent->ext, TETHER__NEVER, &err);
    counted = NULL;
    return n_unlocks;
}

static void shutdown_releases_the_lock_in_between_when_it_counts_many_objects(void **state)
{
    enum { OBJECTS = 20000, MOST_OBJECTS_AT_ONCE = 4096 };
    struct tether_test_world *w = *state;
    tether_rref **rrefs = calloc(OBJECTS, sizeof *rrefs);
    assert_non_null(rrefs);
    size_t n_without = unlocks_of_drain(w->agents[0]);
    for (size_t i = 0; i < OBJECTS; i++) {
        tether_value *value;
        assert_int_equal(tether_value_new(tether_bytes_of("x", 1), &value, NULL), TETHER_OK);
        assert_int_equal(tether_rref_new(w->agents[0], value, &rrefs[i], NULL), TETHER_OK);
        tether_value_release(value);
    }
    assert_true(unlocks_of_drain(w->agents[0]) >= n_without + OBJECTS / MOST_OBJECTS_AT_ONCE);
    scale_release_held(rrefs, OBJECTS);
}

/* A clock that advances by a millisecond at every reading. */
static int64_t looked_at_ms;

static int64_t go_on(const struct tether__clock *clock)
{
    (void)clock;
    return ++looked_at_ms * TETHER__NS_PER_MS;
}

static void shutdown_gives_back_no_more_references_when_its_time_is_up(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_of(w->agents[0]);
    const struct tether__clock by_looks = {go_on}, *own = w->agents[0]->clock;
    struct tether__ref_session owner = scale_session(w->agents[0], "w1");
    tether_rref **rrefs = scale_hold_many(w->agents[0], owner, N, true);
    size_t n_given_back = 0;
    tether_error err = {0};
    looked_at_ms = 0;
    w->agents[0]->clock = refs->clock = &by_looks;
    tether_status st = tether__refs_drain(refs, 3 * TETHER__NS_PER_MS, &err);
    w->agents[0]->clock = refs->clock = own;
    assert_int_equal(st, TETHER_ETIMEOUT);
    for (size_t i = 0; i < N; i++)
        n_given_back += rrefs[i]->state == TETHER_RREF_RELEASED;
    assert_in_range(n_given_back, 1, 2 * MOST_AT_ONCE);
    scale_release_held(rrefs, N);
    assert_true(tether_test_world_wait(w, scale_has_sent_notices, owner.peer));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, scale_start_connected, scale_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(dump_releases_the_lock_in_between_when_there_are_many_references),
        CASE(shutdown_releases_the_lock_in_between_when_it_counts_many_objects),
        CASE(shutdown_gives_back_no_more_references_when_its_time_is_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
