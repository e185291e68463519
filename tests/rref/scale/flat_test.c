/* The cost of an operation does not depend on how many references, forks, waiting requests,
 * notices, types or workers there are. Requests whose time is up end in slices.
 *
 * A cost is the processor time of this process for some operations beside few and beside many other
 * things. It may differ by a generous factor: caches, and a busy machine. An operation that walked
 * a table was slower by a factor of a hundred. A test tries several times before it fails.
 *
 * w1 owns, w0 creates, w2 is the third.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rref/hooks.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/scale/fixture.h"

enum { TIMEOUT_MS = 60000, OPERATIONS = 200, ATTEMPTS = 5, MOST_TIMES = 6 };

static double cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* Measures one operation beside `n` other things. */
typedef double measure_fn(struct tether_test_world *world, size_t n);

static void assert_flat(struct tether_test_world *w, measure_fn *measure, size_t few, size_t many)
{
    double beside_few = 0, beside_many = 0;
    for (int i = 0; i < ATTEMPTS; i++) {
        beside_few = measure(w, few);
        beside_many = measure(w, many);
        if (beside_many < MOST_TIMES * beside_few + 100)
            return;
    }
    fail_msg("%.0f ns beside %zu, %.0f ns beside %zu", beside_few, few, beside_many, many);
}

/* ---- Forks ---- */

static void add_fork(tether_rref *rref, size_t i, struct tether__ref_session holder)
{
    pthread_mutex_lock(&rref->context->mu);
    assert_int_equal(tether__fork_add_locked(rref, scale_id(i), holder), TETHER_OK);
    pthread_mutex_unlock(&rref->context->mu);
}

static void remove_fork(tether_rref *rref, size_t i, struct tether__peer *holder)
{
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&rref->context->mu);
    assert_true(tether__fork_remove_locked(rref, scale_id(i), holder, &collected));
    pthread_mutex_unlock(&rref->context->mu);
    assert_null(collected.first);
}

static double fork_beside(struct tether_test_world *w, size_t n)
{
    tether_rref *rref = cast_own_counter(w->agents[1], 1);
    struct tether__ref_session holder = scale_session(w->agents[1], "w2");
    for (size_t i = 0; i < n; i++)
        add_fork(rref, i, holder);
    double before = cpu_ns();
    for (size_t i = 0; i < OPERATIONS; i++)
        add_fork(rref, n + i, holder);
    for (size_t i = 0; i < OPERATIONS; i++) /* also those that came first */
        remove_fork(rref, i, holder.peer);
    double cost = (cpu_ns() - before) / OPERATIONS;
    for (size_t i = OPERATIONS; i < n + OPERATIONS; i++)
        remove_fork(rref, i, holder.peer);
    assert_int_equal(tether__refs_of(w->agents[1])->n_forks, 0);
    tether_rref_release(rref);
    return cost;
}

static void adding_a_fork_costs_the_same_when_object_has_many_forks(void **state)
{
    assert_flat(*state, fork_beside, 300, 30000);
}

/* ---- Requests that wait ---- */

/* Has w2 wait on w1 for an object that may still come. */
static void wait_for(tether_agent *agent, size_t i, int64_t deadline)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether__waiting request = {
        .what = TETHER__WAITING_FORK,
        .from = scale_session(agent, "w2"),
        .object = scale_id(2 * i),
        .fork.id = scale_id(2 * i + 1),
        .creator = scale_peer(agent, "w0"),
        .made_in = 1000000,
        .deadline = deadline,
    };
    pthread_mutex_lock(&refs->mu);
    assert_true(tether__waiting_add_locked(refs, &request, NULL));
    pthread_mutex_unlock(&refs->mu);
}

static void wait_no_more(tether_agent *agent, size_t i)
{
    struct tether__refs *refs = tether__refs_of(agent);
    pthread_mutex_lock(&refs->mu);
    tether__waiting_drop_fork_locked(refs, scale_id(2 * i + 1), scale_peer(agent, "w2"));
    pthread_mutex_unlock(&refs->mu);
}

static double creation_beside_waiting(struct tether_test_world *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        wait_for(w->agents[1], i, TETHER__NEVER);
    assert_int_equal(tether_rref_counts(w->agents[1]).pending_owners, n);
    double before = cpu_ns();
    for (int i = 0; i < OPERATIONS; i++)
        tether_rref_release(cast_remote_counter(w->agents[0], "w1", "1"));
    cast_call_ok(w->agents[0], "w1", "note"); /* behind all of them */
    double cost = (cpu_ns() - before) / OPERATIONS;
    for (size_t i = 0; i < n; i++)
        wait_no_more(w->agents[1], i);
    assert_int_equal(tether_rref_counts(w->agents[1]).pending_owners, 0);
    return cost;
}

static void creation_costs_the_same_when_many_requests_wait(void **state)
{
    assert_flat(*state, creation_beside_waiting, 10, 16000);
}

static double waiting_beside_waiting(struct tether_test_world *w, size_t n)
{
    struct tether__refs *refs = tether__refs_of(w->agents[1]);
    int64_t now = tether__clock_now_ns(w->agents[1]->clock);
    for (size_t i = 0; i < n; i++)
        wait_for(w->agents[1], i, now + (int64_t)(1000 + i) * TETHER__NS_PER_MS * 1000);
    tether__refs_tick(refs, now); /* looks at the creators, since they are new */
    double before = cpu_ns();
    for (size_t i = n; i < n + OPERATIONS; i++) {
        wait_for(w->agents[1], i, TETHER__NEVER);
        wait_no_more(w->agents[1], i);
    }
    double cost = (cpu_ns() - before) / OPERATIONS;
    tether__refs_tick(refs, now);
    before = cpu_ns();
    for (size_t i = 0; i < OPERATIONS; i++)
        assert_true(tether__refs_tick(refs, now) > now);
    cost += (cpu_ns() - before) / OPERATIONS;
    if (n < TETHER__WAITING_SLICE) /* the timer does not look at the same requests for ever */
        assert_true(tether__refs_tick(refs, now) > now + 1000 * TETHER__NS_PER_MS);
    for (size_t i = 0; i < n; i++)
        wait_no_more(w->agents[1], i);
    return cost;
}

static void waiting_and_ticks_cost_the_same_when_many_requests_wait(void **state)
{
    assert_flat(*state, waiting_beside_waiting, 10, 16000);
}

static void requests_end_in_slices_when_their_time_is_up(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_of(w->agents[1]);
    int64_t now = tether__clock_now_ns(w->agents[1]->clock);
    cast_call_ok(w->agents[2], "w1", "note"); /* so that the two workers are connected */
    for (size_t i = 0; i < 1000; i++)
        wait_for(w->agents[1], i, now - (int64_t)(i % 7));
    tether__refs_tick(refs, now);
    assert_in_range(refs->n_waiting, 1, 999);
    for (int i = 0; refs->n_waiting > 0 && i < 100; i++)
        tether__refs_tick(refs, now);
    assert_int_equal(refs->n_waiting, 0);
    assert_int_equal(tether__map_count(&refs->awaited), 0);
    assert_int_equal(tether__map_count(&refs->waiting_forks), 0);
}

/* The creation that w2 waits for on w1 has failed at w0, which then creates something else there.
 */
static void request_is_refused_when_watermark_passes_its_object(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_of(w->agents[1]);
    cast_call_ok(w->agents[2], "w1", "note");
    struct tether__waiting request = {
        .what = TETHER__WAITING_FORK,
        .from = scale_session(w->agents[1], "w2"),
        .object = tether__refs_new_id(tether__refs_of(w->agents[0])),
        .fork.id = scale_id(1),
        .deadline = TETHER__NEVER,
    };
    pthread_mutex_lock(&refs->mu);
    assert_true(tether__waiting_add_locked(refs, &request, NULL));
    request.object = (tether_rref_id){request.object.creator, request.object.incarnation, 1000000};
    request.fork.id = scale_id(2);
    assert_true(tether__waiting_add_locked(refs, &request, NULL)); /* may still come */
    pthread_mutex_unlock(&refs->mu);
    assert_int_equal(tether_rref_counts(w->agents[1]).pending_owners, 2);
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_add_ok(rref, "1", "2");
    assert_int_equal(tether_rref_counts(w->agents[1]).pending_owners, 1);
    pthread_mutex_lock(&refs->mu);
    tether__waiting_drop_fork_locked(refs, scale_id(2), scale_peer(w->agents[1], "w2"));
    pthread_mutex_unlock(&refs->mu);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* ---- Requests on one object ---- */

static double request_of(struct tether_test_world *w, size_t n)
{
    tether_rref *rref = tether_remote(w->agents[0], "w1", "hold", NULL, TIMEOUT_MS);
    assert_true(tether_test_world_wait(w, cast_is_held, w));
    tether_future **futures = calloc(n, sizeof *futures);
    assert_non_null(futures);
    double before = cpu_ns();
    for (size_t i = 0; i < n; i++)
        futures[i] = tether_rref_to_here_async(rref, TIMEOUT_MS);
    tether_value *counter = NULL;
    assert_int_equal(cast_new_counter(0, &counter, NULL), TETHER_OK);
    tether_reply_ok(atomic_exchange(&w->held, NULL), counter);
    tether_value_release(counter);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(tether_future_wait(futures[i], TIMEOUT_MS, NULL, NULL), TETHER_OK);
        tether_future_release(futures[i]);
    }
    double cost = (cpu_ns() - before) / (double)n;
    free(futures);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
    return cost;
}

static void request_costs_the_same_when_many_are_of_one_object(void **state)
{
    assert_flat(*state, request_of, 500, 16000);
}

/* ---- Notices and types ---- */

/* The owner is not lost. */
static void never_lost(tether_rref *rref, void *userdata)
{
    (void)rref, (void)userdata;
    fail_msg("the owner is not lost");
}

static double notice_beside(struct tether_test_world *w, size_t n)
{
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    for (size_t i = 0; i < n; i++)
        tether_rref_on_owner_lost(rref, never_lost, NULL, NULL);
    double before = cpu_ns();
    for (size_t i = n; i < n + OPERATIONS; i++)
        tether_rref_on_owner_lost(rref, never_lost, NULL, NULL);
    double cost = (cpu_ns() - before) / OPERATIONS;
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
    return cost;
}

static void notice_costs_the_same_when_reference_has_many(void **state)
{
    assert_flat(*state, notice_beside, 100, 20000);
}

static double type_beside(struct tether_test_world *w, size_t n)
{
    (void)w;
    struct tether__registry registry;
    tether_type *types = calloc(n, sizeof *types);
    char(*names)[16] = calloc(n, sizeof *names);
    assert_non_null(types);
    assert_non_null(names);
    assert_int_equal(tether__registry_init(&registry), TETHER_OK);
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "t%zu", i);
        types[i].name = names[i];
        assert_int_equal(tether__registry_add_type(&registry, &types[i], NULL), TETHER_OK);
    }
    double before = cpu_ns();
    for (size_t i = 0; i < OPERATIONS; i++)
        assert_ptr_equal(tether__registry_find_type(&registry, names[n - 1 - i % n]),
                         &types[n - 1 - i % n]);
    double cost = (cpu_ns() - before) / OPERATIONS;
    tether__registry_fini(&registry);
    free(types);
    free(names);
    return cost;
}

static void finding_a_type_costs_the_same_when_there_are_many(void **state)
{
    assert_flat(*state, type_beside, 10, 10000);
}

/* ---- Fences ---- */

/* w1 has `n` objects that w2 holds, and some that w0 does; w0 is fenced. */
static double fence_beside(struct tether_test_world *w, size_t n)
{
    struct tether__refs *refs = tether__refs_of(w->agents[1]);
    struct tether__ref_session first = scale_session(w->agents[1], "w0");
    struct tether__ref_session other = scale_session(w->agents[1], "w2");
    tether_rref **rrefs = calloc(n + 10, sizeof(tether_rref *));
    assert_non_null(rrefs);
    first.number = tether__ref_first_session_locked(first.peer) + 1; /* of no real session */
    for (size_t i = 0; i < n + 10; i++) {
        rrefs[i] = cast_own_counter(w->agents[1], 1);
        pthread_mutex_lock(&refs->mu);
        assert_int_equal(tether__owner_add_locked(rrefs[i]), TETHER_OK);
        pthread_mutex_unlock(&refs->mu);
        add_fork(rrefs[i], i, i < n ? other : first);
    }
    double before = cpu_ns();
    scale_end_session(refs, first.peer, first.number);
    double cost = (cpu_ns() - before) / 10;
    assert_int_equal(refs->n_forks, n);
    for (size_t i = 0; i < n + 10; i++) {
        if (i < n)
            remove_fork(rrefs[i], i, other.peer);
        tether_rref_release(rrefs[i]);
    }
    scale_revive_sessions(first.peer);
    free(rrefs);
    return cost;
}

static void fence_costs_the_same_when_others_hold_many(void **state)
{
    assert_flat(*state, fence_beside, 100, 20000);
}

/* ---- Names ---- */

static void names_are_freed_when_no_reference_has_them(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_of(w->agents[1]);
    char site[2000];
    memset(site, 's', sizeof site);
    for (int i = 0; i < 100; i++) {
        snprintf(site, 16, "%d", i);
        site[strlen(site)] = 's'; /* long, and each another */
        site[sizeof site - 1] = '\0';
        tether_value *arg = cast_text("1");
        tether_rref *rref =
            tether_remote_at(w->agents[0], "w1", "make_counter", arg, TIMEOUT_MS, site);
        tether_value_release(arg);
        cast_add_ok(rref, "1", "2");
        assert_in_range(tether__map_count(&refs->names), 1, 4);
        tether_rref_release(rref);
        cast_assert_nothing_left(w);
    }
    assert_int_equal(tether__map_count(&refs->names), 0);
}

/* ---- Shutdown ---- */

static void graceful_shutdown_costs_the_same_when_many_references_were_never_released(void **state)
{
    struct tether_test_world *w = *state;
    double costs[2] = {0, 0};
    const size_t sizes[] = {300, 9000};
    for (int i = 0; i < 2; i++) {
        struct tether__refs *refs = tether__refs_of(w->agents[0]);
        tether_rref **rrefs =
            scale_hold_many(w->agents[0], scale_session(w->agents[0], "w1"), sizes[i], false);
        double before = cpu_ns();
        assert_int_equal(tether__refs_drain(refs, TETHER__NEVER, NULL), TETHER_OK);
        costs[i] = (cpu_ns() - before) / (double)sizes[i];
        for (size_t k = 0; k < sizes[i]; k++) {
            assert_int_equal(tether_rref_status(rrefs[k], NULL), TETHER_RREF_RELEASED);
            tether_rref_release(rrefs[k]);
        }
        free(rrefs);
        refs->draining = false;
    }
    if (costs[1] > MOST_TIMES * costs[0] + 1000)
        fail_msg("%.0f ns a reference of %zu, %.0f of %zu", costs[0], sizes[0], costs[1], sizes[1]);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, scale_start, scale_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(adding_a_fork_costs_the_same_when_object_has_many_forks),
        CASE(creation_costs_the_same_when_many_requests_wait),
        CASE(waiting_and_ticks_cost_the_same_when_many_requests_wait),
        CASE(requests_end_in_slices_when_their_time_is_up),
        CASE(request_is_refused_when_watermark_passes_its_object),
        CASE(request_costs_the_same_when_many_are_of_one_object),
        CASE(notice_costs_the_same_when_reference_has_many),
        CASE(finding_a_type_costs_the_same_when_there_are_many),
        CASE(fence_costs_the_same_when_others_hold_many),
        CASE(names_are_freed_when_no_reference_has_them),
        CASE(graceful_shutdown_costs_the_same_when_many_references_were_never_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
