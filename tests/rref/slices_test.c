/* No lock is held for long: work that may be about a million references, requests or messages is
 * done in slices, and the lock is released in between. Each test starts such work once and counts
 * how many items are left: the slices that follow come from the timer.
 *
 * Where the slices follow at once, the test counts how often the lock is released.
 *
 * w1 owns, w0 creates and holds, w2 is the third. All of them are simulated, so nothing runs
 * between the steps of a test.
 */
#include <stdlib.h>

#include "base/alloc.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rref/context.h"
#include "rref/hooks.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

enum { LEASE_MS = 60000, N = 10000, MOST_AT_ONCE = 1024 };

static int start(void **state)
{
    static struct tether_test_world world;
    tether_test_world_before_send = NULL;
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3,
                            TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .max_calls_per_peer = 100000));
    cast_call_ok(world.agents[0], "w1", "note"); /* so that the two workers are connected */
    cast_call_ok(world.agents[2], "w1", "note");
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    return 0;
}

static struct tether__ref_session session_of(tether_agent *agent, const char *name)
{
    struct tether__peer *peer = NULL;
    assert_int_equal(tether__agent_peer(agent, name, &peer, NULL), TETHER_OK);
    tether__peer_release(peer); /* the table keeps it: these workers have met */
    return (struct tether__ref_session){peer, atomic_load(&peer->session_number)};
}

static tether_rref_id id_of(size_t i)
{
    return (tether_rref_id){7, 4000000000U, 1 + i};
}

/* ---- Deletes and accepts ---- */

static size_t n_gathered(const struct tether__peer *peer, int turn)
{
    size_t n = 0;
    const struct tether__outbox_item *item = peer->session->outbox.gathered[turn].first;
    for (; item; item = item->next)
        n++;
    return n;
}

static size_t n_deletes(const struct tether__peer *peer)
{
    return n_gathered(peer, TETHER__OUTBOX_LATER);
}

static size_t n_accepts(const struct tether__peer *peer)
{
    return n_gathered(peer, TETHER__OUTBOX_SOONER);
}

/* Has w0 release references to objects of w1. */
static void release_many(tether_agent *agent, struct tether__ref_session owner, size_t n)
{
    struct tether__refs *refs = tether__refs_of(agent);
    for (size_t i = 0; i < n; i++) {
        tether_rref *rref = tether__rref_alloc(refs, false, id_of(2 * i));
        assert_non_null(rref);
        rref->user.fork = id_of(2 * i + 1);
        rref->user.owner = owner;
        tether__peer_retain(owner.peer);
        rref->state = TETHER_RREF_CONFIRMED;
        rref->known_to_owner = true;
        pthread_mutex_lock(&refs->mu);
        assert_int_equal(tether__user_add_locked(rref), TETHER_OK);
        pthread_mutex_unlock(&refs->mu);
        tether_rref_release(rref);
    }
}

static void accept_many(tether_agent *agent, struct tether__ref_session parent, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct tether__accept *accept =
            tether__accept_new(tether__refs_of(agent), id_of(i), parent);
        assert_non_null(accept);
        tether__refs_queue_accept(accept);
    }
}

static void flush(struct tether__peer *peer)
{
    pthread_mutex_lock(&peer->mu);
    tether__stream_flush_locked(&peer->session->out, false);
    pthread_mutex_unlock(&peer->mu);
}

static bool has_sent_notices(void *peer)
{
    return n_deletes(peer) == 0 && n_accepts(peer) == 0;
}

static void deletes_leave_in_slices_when_many_have_gathered(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session owner = session_of(w->agents[0], "w1");
    release_many(w->agents[0], owner, N);
    assert_int_equal(n_deletes(owner.peer), N);
    flush(owner.peer);
    assert_in_range(n_deletes(owner.peer), N - MOST_AT_ONCE, N - 1);
    size_t left = n_deletes(owner.peer);
    flush(owner.peer); /* at the same time: a second flush does not continue with the deletes */
    assert_int_equal(n_deletes(owner.peer), left);
    assert_true(tether_test_world_wait(w, has_sent_notices, owner.peer));
    cast_assert_nothing_left(w);
}

static void accepts_leave_in_slices_when_many_have_gathered(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session parent = session_of(w->agents[0], "w1");
    accept_many(w->agents[0], parent, N);
    assert_int_equal(n_accepts(parent.peer), N);
    flush(parent.peer);
    assert_in_range(n_accepts(parent.peer), N - MOST_AT_ONCE, N - 1);
    assert_true(tether_test_world_wait(w, has_sent_notices, parent.peer));
    cast_assert_nothing_left(w);
}

/* The peer's session ends between two slices. */
static void rest_of_the_deletes_is_dropped_when_the_session_ends(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session owner = session_of(w->agents[0], "w1");
    release_many(w->agents[0], owner, N);
    flush(owner.peer);
    assert_in_range(n_deletes(owner.peer), 1, N - 1);
    tether__session_fence(owner.peer->session, "the test wants it");
    assert_int_equal(n_deletes(owner.peer), 0);
    tether__fence_finish(tether__refs_of(w->agents[0]));
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_futures, 0);
    cast_assert_nothing_left(w);
}

/* The session has ended before the message is posted. */
static void accept_is_freed_at_once_when_its_session_has_ended(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session parent = session_of(w->agents[0], "w1");
    tether__session_fence(parent.peer->session, "the test wants it");
    uint64_t posted = atomic_load(&w->agents[0]->n_posted);
    accept_many(w->agents[0], parent, 1);
    assert_int_equal(n_accepts(parent.peer), 0);
    assert_int_equal(atomic_load(&w->agents[0]->n_posted), posted);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_futures, 0);
    cast_assert_nothing_left(w);
}

/* Two sessions end before the thread that ends them unlocks the peer: the reference layer gets the
 * messages of both, and frees them. */
static void gathered_messages_of_two_sessions_are_freed_when_both_end(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session owner = session_of(w->agents[0], "w1");
    struct tether__peer *peer = owner.peer;
    accept_many(w->agents[0], owner, 2);
    tether__peer_lock(peer);
    tether__peer_fence_locked(peer, "the test wants it");
    assert_int_equal(n_accepts(peer), 0);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_futures, 2);
    tether__peer_fence_locked(peer, "the test wants it again");
    tether__peer_unlock(peer);
    tether__fence_finish(tether__refs_of(w->agents[0]));
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_futures, 0);
    cast_assert_nothing_left(w);
}

/* ---- Requests that wait for objects of one creator ---- */

/* Has w2 wait on w1 for objects that `by` is to make there. */
static void wait_for_many_of(tether_agent *agent, const char *by, size_t n)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether__ref_session creator = session_of(agent, by);
    size_t n_before = refs->n_waiting;
    for (size_t i = n_before; i < n_before + n; i++) {
        struct tether__waiting request = {
            .what = TETHER__WAITING_FORK,
            .from = session_of(agent, "w2"),
            .object = {0, (uint32_t)atomic_load(&creator.peer->incarnation), 1000000 + 2 * i},
            .fork.id = id_of(2 * i + 1),
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
    struct tether__peer *creator = session_of(agent, "w0").peer;
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
    struct tether__peer *const creators[] = {session_of(w->agents[1], "w0").peer,
                                             session_of(w->agents[1], "w2").peer};
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
    struct tether__peer *creator = session_of(w->agents[1], "w0").peer;
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
    struct tether__peer *creator = session_of(w->agents[1], "w0").peer;
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
    struct tether__ref_session creator = session_of(agent, "w0");
    tether_rref_id id = {0, (uint32_t)atomic_load(&creator.peer->incarnation), 1000000};
    for (size_t i = 0; i < N; i++) {
        struct tether__waiting request = {
            .what = TETHER__WAITING_FORK,
            .from = session_of(agent, "w2"),
            .object = id,
            .fork.id = id_of(i),
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
    struct tether__peer *holder = session_of(w->agents[1], "w2").peer;
    struct tether__collected collected = {NULL};
    size_t n_removed = 0;
    tether_rref *rref = answer_slice_of_many(w->agents[1]);
    tick_until_none_waits(refs);
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; i < N; i++)
        n_removed += tether__fork_remove_locked(rref, id_of(i), holder, &collected);
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

/* ---- Dumps and shutdowns ---- */

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

/* Has w0 hold references to objects of w1. */
static tether_rref **hold_many(tether_agent *agent, struct tether__ref_session owner, size_t n)
{
    struct tether__refs *refs = tether__refs_of(agent);
    tether_rref **rrefs = calloc(n, sizeof *rrefs);
    assert_non_null(rrefs);
    for (size_t i = 0; i < n; i++) {
        assert_non_null(rrefs[i] = tether__rref_alloc(refs, false, id_of(2 * i)));
        rrefs[i]->user.fork = id_of(2 * i + 1);
        rrefs[i]->user.owner = owner;
        tether__peer_retain(owner.peer);
        rrefs[i]->state = TETHER_RREF_CONFIRMED;
        rrefs[i]->known_to_owner = true;
        pthread_mutex_lock(&refs->mu);
        assert_int_equal(tether__user_add_locked(rrefs[i]), TETHER_OK);
        pthread_mutex_unlock(&refs->mu);
    }
    return rrefs;
}

static void release_held(tether_rref **rrefs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tether_rref_release(rrefs[i]);
    free(rrefs);
}

static void dump_releases_the_lock_in_between_when_there_are_many_references(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session owner = session_of(w->agents[0], "w1");
    tether_rref **rrefs = hold_many(w->agents[0], owner, N);
    tether_buf text = TETHER_BUF_INIT;
    counted = &tether__refs_of(w->agents[0])->mu;
    n_unlocks = 0;
    assert_int_equal(tether_rref_dump(w->agents[0], true, &text), TETHER_OK);
    counted = NULL;
    assert_true(n_unlocks >= N / MOST_AT_ONCE);
    tether_buf_fini(&text);
    release_held(rrefs, N);
    assert_true(tether_test_world_wait(w, has_sent_notices, owner.peer));
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
    release_held(rrefs, OBJECTS);
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
    struct tether__ref_session owner = session_of(w->agents[0], "w1");
    tether_rref **rrefs = hold_many(w->agents[0], owner, N);
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
    release_held(rrefs, N);
    assert_true(tether_test_world_wait(w, has_sent_notices, owner.peer));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        CASE(dump_releases_the_lock_in_between_when_there_are_many_references),
        CASE(shutdown_releases_the_lock_in_between_when_it_counts_many_objects),
        CASE(shutdown_gives_back_no_more_references_when_its_time_is_up),
        CASE(deletes_leave_in_slices_when_many_have_gathered),
        CASE(accepts_leave_in_slices_when_many_have_gathered),
        CASE(rest_of_the_deletes_is_dropped_when_the_session_ends),
        CASE(accept_is_freed_at_once_when_its_session_has_ended),
        CASE(gathered_messages_of_two_sessions_are_freed_when_both_end),
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
