/* No lock is held for long: deletes and accepts that have gathered for a peer are sent in slices,
 * and the lock is released in between. Each test starts such work once and counts how many messages
 * are left: the slices that follow come from the timer.
 *
 * w1 owns, w0 creates and holds, w2 is the third. All of them are simulated, so nothing runs
 * between the steps of a test.
 */
#include "rpc/peer/fence.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/scale/fixture.h"

enum { N = 10000, MOST_AT_ONCE = 1024 };

/* Has w0 release references to objects of w1. */
static void release_many(tether_agent *agent, struct tether__ref_session owner, size_t n)
{
    scale_release_held(scale_hold_many(agent, owner, n, true), n);
}

static void accept_many(tether_agent *agent, struct tether__ref_session parent, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct tether__accept *accept =
            tether__accept_new(tether__refs_of(agent), scale_id(i), parent);
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

static void deletes_leave_in_slices_when_many_have_gathered(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session owner = scale_session(w->agents[0], "w1");
    release_many(w->agents[0], owner, N);
    assert_int_equal(scale_n_deletes(owner.peer), N);
    flush(owner.peer);
    assert_in_range(scale_n_deletes(owner.peer), N - MOST_AT_ONCE, N - 1);
    size_t left = scale_n_deletes(owner.peer);
    flush(owner.peer); /* at the same time: a second flush does not continue with the deletes */
    assert_int_equal(scale_n_deletes(owner.peer), left);
    assert_true(tether_test_world_wait(w, scale_has_sent_notices, owner.peer));
    cast_assert_nothing_left(w);
}

static void accepts_leave_in_slices_when_many_have_gathered(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session parent = scale_session(w->agents[0], "w1");
    accept_many(w->agents[0], parent, N);
    assert_int_equal(scale_n_accepts(parent.peer), N);
    flush(parent.peer);
    assert_in_range(scale_n_accepts(parent.peer), N - MOST_AT_ONCE, N - 1);
    assert_true(tether_test_world_wait(w, scale_has_sent_notices, parent.peer));
    cast_assert_nothing_left(w);
}

/* The peer's session ends between two slices. */
static void rest_of_the_deletes_is_dropped_when_the_session_ends(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session owner = scale_session(w->agents[0], "w1");
    release_many(w->agents[0], owner, N);
    flush(owner.peer);
    assert_in_range(scale_n_deletes(owner.peer), 1, N - 1);
    tether__session_fence(owner.peer->session, "the test wants it");
    assert_int_equal(scale_n_deletes(owner.peer), 0);
    tether__fence_finish(tether__refs_of(w->agents[0]));
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_futures, 0);
    cast_assert_nothing_left(w);
}

/* The session has ended before the message is posted. */
static void accept_is_freed_at_once_when_its_session_has_ended(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session parent = scale_session(w->agents[0], "w1");
    tether__session_fence(parent.peer->session, "the test wants it");
    uint64_t posted = atomic_load(&w->agents[0]->n_posted);
    accept_many(w->agents[0], parent, 1);
    assert_int_equal(scale_n_accepts(parent.peer), 0);
    assert_int_equal(atomic_load(&w->agents[0]->n_posted), posted);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_futures, 0);
    cast_assert_nothing_left(w);
}

/* Two sessions end before the thread that ends them unlocks the peer: the reference layer gets the
 * messages of both, and frees them. */
static void gathered_messages_of_two_sessions_are_freed_when_both_end(void **state)
{
    struct tether_test_world *w = *state;
    struct tether__ref_session owner = scale_session(w->agents[0], "w1");
    struct tether__peer *peer = owner.peer;
    accept_many(w->agents[0], owner, 2);
    tether__peer_lock(peer);
    tether__peer_fence_locked(peer, "the test wants it");
    assert_int_equal(scale_n_accepts(peer), 0);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_futures, 2);
    tether__peer_fence_locked(peer, "the test wants it again");
    tether__peer_unlock(peer);
    tether__fence_finish(tether__refs_of(w->agents[0]));
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_futures, 0);
    cast_assert_nothing_left(w);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, scale_start_connected, scale_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(deletes_leave_in_slices_when_many_have_gathered),
        CASE(accepts_leave_in_slices_when_many_have_gathered),
        CASE(rest_of_the_deletes_is_dropped_when_the_session_ends),
        CASE(accept_is_freed_at_once_when_its_session_has_ended),
        CASE(gathered_messages_of_two_sessions_are_freed_when_both_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
