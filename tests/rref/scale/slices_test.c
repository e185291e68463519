/* No lock is held for long: requests that wait for objects are answered or refused in slices, and
 * the lock is released in between. Each test starts such work once and counts how many requests are
 * left: the slices that follow come from the timer.
 *
 * w1 owns, w0 creates and holds, w2 is the third. All of them are simulated, so nothing runs
 * between the steps of a test.
 */
#include "rref/hooks.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/scale/fixture.h"

enum { N = 10000, MOST_AT_ONCE = 1024 };

/* ---- Requests that wait for objects of one creator ---- */

/* Has w2 wait on w1 for objects that `by` is to make there. */
static void wait_for_many_of(tether_agent *agent, const char *by, size_t n)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether__ref_session creator = scale_session(agent, by);
    size_t n_before = refs->n_waiting;
    for (size_t i = n_before; i < n_before + n; i++) {
        struct tether__waiting request = {
            .what = TETHER__WAITING_FORK,
            .from = scale_session(agent, "w2"),
            .object = {0, (uint32_t)atomic_load(&creator.peer->incarnation), 1000000 + 2 * i},
            .fork.id = scale_id(2 * i + 1),
            .creator = creator.peer,
            .made_in = 1 + atomic_load(&creator.peer->fences),
            .deadline = TETHER__NEVER,
        };
        pthread_mutex_lock(&refs->mu);
        assert_true(tether__waiting_add_locked(refs, &request, NULL));
        pthread_mutex_unlock(&refs->mu);
    }
    assert_int_equal(refs->n_waiting, n_before + n);
}

static void wait_for_many(tether_agent *agent, size_t n)
{
    wait_for_many_of(agent, "w0", n);
}

/* Has the timer go on until nothing waits. */
static void tick_until_none_waits(struct tether__refs *refs)
{
    int64_t now = tether__clock_now_ns(refs->agent->clock);
    for (int i = 0; refs->n_waiting > 0 && i < N; i++) {
        int64_t next = tether__refs_tick(refs, now);
        assert_true(refs->n_waiting == 0 || next <= now + TETHER__NS_PER_MS);
    }
    assert_int_equal(refs->n_waiting, 0);
    assert_int_equal(tether__map_count(&refs->awaited), 0);
    assert_int_equal(tether__map_count(&refs->waiting_forks), 0);
}

/* The creator's start or its count of fences grows, but not both. */
static void end_many_in_slices(tether_agent *agent, bool starts_anew)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether__peer *creator = scale_session(agent, "w0").peer;
    int64_t now = tether__clock_now_ns(agent->clock);
    uint64_t start = atomic_load(&creator->incarnation), fences = atomic_load(&creator->fences);
    atomic_fetch_add(&creator->fences, 1); /* there was a session before */
    wait_for_many(agent, N);
    tether__refs_tick(refs, now); /* looks at some of them: none has to end */
    assert_int_equal(refs->n_waiting, N);
    atomic_fetch_add(starts_anew ? &creator->incarnation : &creator->fences, 1);
    tether__refs_tick(refs, now);
    assert_in_range(refs->n_waiting, N - MOST_AT_ONCE, N - 1);
    tick_until_none_waits(refs);
    atomic_store(&creator->incarnation, start);
    atomic_store(&creator->fences, fences);
}

static void requests_end_in_slices_when_their_creator_was_met_in_a_later_session(void **state)
{
    end_many_in_slices(((struct tether_test_world *)*state)->agents[1], false);
}

static void requests_end_in_slices_when_their_creator_has_started_anew(void **state)
{
    end_many_in_slices(((struct tether_test_world *)*state)->agents[1], true);
}

/* How many requests for objects of this creator's wait. */
static size_t n_awaited(struct tether__peer *creator)
{
    size_t n = 0;
    struct tether__ref_peer *ref_peer = creator->ref_peer;
    TETHER__LIST_FOR_EACH(node, &ref_peer->awaited)
        n++;
    return n;
}

/* Requests for objects of w0, more than a slice, and for some of w2, which all have to end. */
static void creators_have_their_turns_when_one_has_more_requests_than_a_slice(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_of(w->agents[1]);
    struct tether__peer *const creators[] = {scale_session(w->agents[1], "w0").peer,
                                             scale_session(w->agents[1], "w2").peer};
    enum { SOME = 10 };
    int64_t now = tether__clock_now_ns(w->agents[1]->clock);
    wait_for_many_of(w->agents[1], "w0", N);
    wait_for_many_of(w->agents[1], "w2", SOME);
    for (int i = 0; i < 2; i++)
        atomic_fetch_add(&creators[i]->fences, 1);
    tether__waiting_look_at_creators(refs, now);
    assert_int_equal(n_awaited(creators[0]), N - TETHER__WAITING_SLICE);
    assert_int_equal(n_awaited(creators[1]), SOME);
    struct tether__ref_peer *second = creators[1]->ref_peer;
    assert_int_equal(second->looked_at_fences, 0); /* the slice was used up before */
    tether__waiting_look_at_creators(refs, now);
    assert_int_equal(n_awaited(creators[1]), 0);
    while (tether__waiting_look_at_creators(refs, now) != TETHER__NEVER)
        ;
    assert_int_equal(refs->n_waiting, 0);
    assert_true(tether__list_empty(&refs->creators));
    for (int i = 0; i < 2; i++)
        atomic_fetch_sub(&creators[i]->fences, 1);
}

/* The directory does not have the creator: the first look may be older than the requests. */
static void requests_end_in_slices_when_their_creator_is_lost(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_of(w->agents[1]);
    struct tether__peer *creator = scale_session(w->agents[1], "w0").peer;
    wait_for_many(w->agents[1], N);
    tether__waiting_creator_lost(refs, creator, true);
    assert_int_equal(refs->n_waiting, N);
    tether__waiting_creator_lost(refs, creator, true); /* the first loss is not through */
    assert_in_range(refs->n_waiting, N - MOST_AT_ONCE, N - 1);
    tick_until_none_waits(refs);
}

static void requests_end_in_slices_when_the_watermark_passes_their_objects(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_of(w->agents[1]);
    struct tether__peer *creator = scale_session(w->agents[1], "w0").peer;
    tether_rref_id id = {0, (uint32_t)atomic_load(&creator->incarnation), 1000000 + 2 * N};
    wait_for_many(w->agents[1], N);
    pthread_mutex_lock(&refs->mu);
    tether_status raised = tether__watermark_raise_locked(refs, creator, id);
    pthread_mutex_unlock(&refs->mu);
    assert_int_equal(raised, TETHER_OK);
    tether__waiting_answer_passed(refs);
    assert_in_range(refs->n_waiting, N - MOST_AT_ONCE, N - 1);
    tick_until_none_waits(refs);
}

/* ---- Requests that wait for one object ---- */

/* Has w2 ask w1 for forks of one object that w0 makes then: a slice of them is answered. */
static tether_rref *answer_slice_of_many(tether_agent *agent)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether__ref_session creator = scale_session(agent, "w0");
    tether_rref_id id = {0, (uint32_t)atomic_load(&creator.peer->incarnation), 1000000};
    for (size_t i = 0; i < N; i++) {
        struct tether__waiting request = {
            .what = TETHER__WAITING_FORK,
            .from = scale_session(agent, "w2"),
            .object = id,
            .fork.id = scale_id(i),
            .deadline = TETHER__NEVER,
        };
        pthread_mutex_lock(&refs->mu);
        bool waits = tether__waiting_add_locked(refs, &request, NULL);
        pthread_mutex_unlock(&refs->mu);
        assert_true(waits);
    }
    pthread_mutex_lock(&refs->mu);
    tether_rref *rref = tether__owner_expect_locked(refs, id, creator);
    pthread_mutex_unlock(&refs->mu);
    assert_non_null(rref);
    tether__waiting_answer(refs, id);
    assert_in_range(refs->n_waiting, N - MOST_AT_ONCE, N - 1);
    assert_int_equal(refs->n_forks, N - refs->n_waiting);
    return rref;
}

static void requests_are_answered_in_slices_when_their_object_comes(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_of(w->agents[1]);
    struct tether__peer *holder = scale_session(w->agents[1], "w2").peer;
    struct tether__collected collected = {NULL};
    size_t n_removed = 0;
    tether_rref *rref = answer_slice_of_many(w->agents[1]);
    tick_until_none_waits(refs);
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; i < N; i++)
        n_removed += tether__fork_remove_locked(rref, scale_id(i), holder, &collected);
    pthread_mutex_unlock(&refs->mu);
    assert_int_equal(n_removed, N);
    assert_int_equal(refs->n_forks, 0);
    tether_rref_release(rref);
}

/* No timer comes any more. */
static void rest_of_the_requests_ends_when_the_agent_stops(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__refs *refs = tether__refs_retain(tether__refs_of(w->agents[1]));
    tether_rref *rref = answer_slice_of_many(w->agents[1]);
    tether_future *future = tether_rref_to_here_async(rref, -1);
    assert_false(tether_future_is_done(future));
    tether_agent_shutdown(w->agents[1], false, NULL);
    assert_int_equal(refs->n_waiting, 0);
    assert_int_equal(tether__map_count(&refs->awaited), 0);
    assert_true(tether__list_empty(&refs->answering));
    assert_true(tether_future_is_done(future));
    tether_future_release(future);
    tether_rref_release(rref);
    tether__refs_release(refs);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, scale_start_connected, scale_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(requests_end_in_slices_when_their_creator_was_met_in_a_later_session),
        CASE(requests_end_in_slices_when_their_creator_has_started_anew),
        CASE(creators_have_their_turns_when_one_has_more_requests_than_a_slice),
        CASE(requests_end_in_slices_when_their_creator_is_lost),
        CASE(requests_end_in_slices_when_the_watermark_passes_their_objects),
        CASE(requests_are_answered_in_slices_when_their_object_comes),
        CASE(rest_of_the_requests_ends_when_the_agent_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
