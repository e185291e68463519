/* A shutdown and remote() hold the lock of the references wherever another thread may change the
 * same fields. For the thread sanitizer, which reports an access that has lost the lock.
 *
 * Each time that the thread of the test has released a chosen lock, it waits until another thread
 * has had a turn. It hears of the end of the turn in a way that orders nothing (a relaxed load): an
 * access that comes next without the lock is a race, each time and on each machine.
 */
#include <sched.h>
#include <string.h>

#include "rpc/peer/peer.h"
#include "rref/context.h"
#include "rref/hooks.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

enum { MOST_TURNS = 64 };

static struct {
    const pthread_mutex_t *lock; /* NULL: no more turns */
    void *(*run)(void *unused);
    pthread_t threads[MOST_TURNS];
    int n;
} turns;
static _Atomic int n_over;
static _Thread_local bool is_test;

static struct tether_test_world world;
static struct tether__peer *w1; /* as w0 sees it */

int __real_pthread_mutex_unlock(pthread_mutex_t *mu);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu);

/* The linker sends calls of pthread_mutex_unlock() here (`--wrap`, in BUILD). */
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu)
{
    bool has_turn = is_test && mu == turns.lock && turns.n < MOST_TURNS;
    int result = __real_pthread_mutex_unlock(mu);
    if (has_turn) {
        assert_int_equal(pthread_create(&turns.threads[turns.n++], NULL, turns.run, NULL), 0);
        while (atomic_load_explicit(&n_over, memory_order_relaxed) < turns.n)
            sched_yield();
    }
    return result;
}

static void begin_turns(const pthread_mutex_t *lock, void *(*run)(void *unused))
{
    atomic_store(&n_over, 0);
    turns.n = 0;
    turns.run = run;
    turns.lock = lock;
    is_test = true;
}

static void *end_turn(void)
{
    atomic_fetch_add_explicit(&n_over, 1, memory_order_relaxed);
    return NULL;
}

/* There was one turn at least. */
static void end_turns(void)
{
    is_test = false;
    turns.lock = NULL;
    assert_in_range(turns.n, 1, MOST_TURNS - 1);
    for (int i = 0; i < turns.n; i++)
        pthread_join(turns.threads[i], NULL);
}

static struct tether__refs *refs_of_w0(void)
{
    return tether__refs_of(world.agents[0]);
}

static _Atomic bool refuses_calls;

static tether_status before_send(void *userdata, const char *peer, uint32_t kind)
{
    (void)userdata, (void)peer;
    return kind == TETHER__FRAME_CALL && atomic_load(&refuses_calls) ? TETHER_ENOMEM : TETHER_OK;
}

static int start(void **state)
{
    (void)state;
    tether_test_world_register = cast_register;
    tether_test_world_before_send = before_send;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    cast_call_ok(world.agents[0], "w1", "note"); /* so that the two workers are connected */
    assert_int_equal(tether__agent_peer(world.agents[0], "w1", &w1, NULL), TETHER_OK);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    atomic_store(&refuses_calls, false);
    tether__peer_release(w1);
    tether_test_world_stop(&world);
    tether_test_world_before_send = NULL;
    return 0;
}

static struct tether__ref_session session_of_w1(void)
{
    return (struct tether__ref_session){w1, atomic_load(&w1->session_number)};
}

/* A reference of w0 to an object of w1 that no message will confirm. */
static tether_rref *new_pending(uint64_t counter)
{
    struct tether__refs *refs = refs_of_w0();
    tether_rref *rref = tether__rref_alloc(refs, false, (tether_rref_id){7, 4000000000U, 1});
    assert_non_null(rref);
    rref->user.fork = (tether_rref_id){7, 4000000000U, counter};
    rref->user.owner = session_of_w1();
    tether__peer_retain(w1);
    pthread_mutex_lock(&refs->mu);
    assert_int_equal(tether__user_add_locked(rref), TETHER_OK);
    pthread_mutex_unlock(&refs->mu);
    return rref;
}

/* One more reference is pending for a while, and is being passed on. */
static void *change_numbers(void *unused)
{
    (void)unused;
    struct tether__refs *refs = refs_of_w0();
    struct tether__collected collected = {NULL};
    tether_rref_id child = {7, 4000000000U, 4};
    tether_rref *rref = new_pending(3);
    pthread_mutex_lock(&refs->mu);
    assert_int_equal(tether__child_add_locked(refs, rref, child, session_of_w1()), TETHER_OK);
    tether__child_remove_locked(refs, child, w1, &collected);
    pthread_mutex_unlock(&refs->mu);
    tether__refs_run_collected(refs, &collected);
    tether_rref_release(rref);
    return end_turn();
}

static void drain_says_what_is_left_when_another_thread_adds_and_releases_references(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_rref *rref = new_pending(2);
    int64_t deadline = tether__clock_now_ns(refs_of_w0()->clock);
    begin_turns(&refs_of_w0()->mu, change_numbers);
    tether_status st = tether__refs_drain(refs_of_w0(), deadline, &err);
    end_turns();
    assert_int_equal(st, TETHER_ETIMEOUT);
    assert_string_equal(err.message, "1 references were not confirmed and 0 not accepted in time");
    tether_rref_release(rref);
    assert_true(cast_is_idle(world.agents[0]));
}

static char seen[4096]; /* printed by tether_rref_dump() in the first turn */

static void *look_at_references(void *unused)
{
    (void)unused;
    tether_buf text = TETHER_BUF_INIT;
    assert_int_equal(tether_rref_dump(world.agents[0], false, &text), TETHER_OK);
    if (!seen[0])
        strncpy(seen, text.data, sizeof seen - 1);
    tether_buf_fini(&text);
    return end_turn();
}

static void reference_is_listed_when_another_thread_looks_while_its_call_is_queued(void **state)
{
    (void)state;
    seen[0] = '\0';
    begin_turns(&refs_of_w0()->mu, look_at_references);
    tether_rref *rref = tether_remote(world.agents[0], "w1", "echo", NULL, 10000);
    end_turns();
    assert_non_null(strstr(seen, "user "));
    assert_non_null(strstr(seen, "pending"));
    tether_rref_release(cast_confirmed(rref));
    cast_assert_nothing_left(&world);
}

/* As the end of the session does it, once the lock of the peer is released. */
static void *break_references(void *unused)
{
    (void)unused;
    struct tether__outbox_items untold;
    tether_error why = {0};
    tether__outbox_items_init(&untold);
    tether_error_set(&why, TETHER_EUNAVAILABLE, "the test wants it");
    tether__refs_session_ended(refs_of_w0(), w1, session_of_w1().number, &untold, &why);
    return end_turn();
}

static void reference_breaks_when_session_ends_while_its_call_cannot_be_queued(void **state)
{
    (void)state;
    tether_error err = {0};
    atomic_store(&refuses_calls, true);
    begin_turns(&w1->mu, break_references);
    tether_rref *rref = tether_remote(world.agents[0], "w1", "echo", NULL, 10000);
    end_turns();
    assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_BROKEN);
    assert_int_equal(err.code, TETHER_EOWNERDIED);
    tether_rref_release(rref);
    assert_true(cast_is_idle(world.agents[0]));
}

#define TWO(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TWO(drain_says_what_is_left_when_another_thread_adds_and_releases_references),
        TWO(reference_is_listed_when_another_thread_looks_while_its_call_is_queued),
        TWO(reference_breaks_when_session_ends_while_its_call_cannot_be_queued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
