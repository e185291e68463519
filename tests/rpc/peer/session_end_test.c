/* The session object: the state that a fence ends, and the state that it leaves unchanged. */
#include "rpc/agent/internal.h"
#include "rpc/future/internal.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/timers.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/world.h"

static struct tether__peer *peer_of(tether_agent *agent, const char *name)
{
    struct tether__peer *peer;
    assert_int_equal(tether__agent_peer(agent, name, &peer, NULL), TETHER_OK);
    return peer;
}

static struct tether__call *put_call(struct tether__peer *peer)
{
    struct tether__call *call;
    assert_int_equal(tether__call_new(peer->agent, peer, "f", TETHER__NEVER, &call), TETHER_OK);
    call->progress = NULL; /* a marker that count_looked_at() reads */
    tether__peer_lock(peer);
    assert_int_equal(tether__call_put_locked(peer, call), TETHER_OK);
    tether__peer_unlock(peer);
    return call;
}

static struct tether__session *hold_session(struct tether__peer *peer)
{
    tether__peer_lock(peer);
    struct tether__session *session = tether__session_retain(peer->session);
    tether__peer_unlock(peer);
    return session;
}

static void fence_fails_the_calls_of_its_session_once(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    struct tether__peer *peer = peer_of(world.agents[0], "w1");
    struct tether__call *lost[20], *later;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(lost); i++)
        lost[i] = put_call(peer);
    struct tether__session *session = hold_session(peer);
    tether__session_fence(session, "the test says so");
    assert_ptr_not_equal(peer->session, session);
    assert_int_equal(peer->session->number, session->number + 1);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(lost); i++) {
        tether_error error;
        assert_true(tether_future_is_done(&lost[i]->future));
        assert_int_equal(tether__future_result(&lost[i]->future, NULL, &error),
                         TETHER_EUNAVAILABLE);
        tether_future_release(&lost[i]->future);
    }

    /* A message that a thread still had of the ended session must not end the next one. */
    struct tether__session *next = hold_session(peer);
    later = put_call(peer);
    tether__session_fence(session, "the test says so again");
    assert_ptr_equal(peer->session, next);
    assert_false(tether_future_is_done(&later->future));
    tether__session_fence(next, "now");
    assert_true(tether_future_is_done(&later->future));
    tether_future_release(&later->future);
    tether__session_release(next);
    tether__session_release(session);
    tether__peer_release(peer);
    tether_test_world_stop(&world);
}

static size_t count_done(struct tether__call **calls, size_t n)
{
    size_t n_done = 0;
    for (size_t i = 0; i < n; i++)
        n_done += tether_future_is_done(&calls[i]->future);
    return n_done;
}

/* How many of the calls a thread has looked at, for the words of their errors. */
static size_t count_looked_at(struct tether__call **calls, size_t n)
{
    size_t n_looked_at = 0;
    for (size_t i = 0; i < n; i++)
        n_looked_at += calls[i]->progress != NULL;
    return n_looked_at;
}

enum { MANY = 5000, MOST_AT_ONCE = 128 };

/* The thread that ends the session may be one that others wait for. */
static void fence_fails_calls_in_slices_when_there_are_many(void **state)
{
    (void)state;
    struct tether_test_world world;
    static struct tether__call *lost[MANY];
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_agent *agent = world.agents[0];
    struct tether__peer *peer = peer_of(agent, "w1");
    for (size_t i = 0; i < MANY; i++)
        lost[i] = put_call(peer);
    tether__session_fence(peer->session, "the test says so");
    assert_in_range(count_done(lost, MANY), 1, MOST_AT_ONCE);
    assert_int_equal(count_looked_at(lost, MANY), count_done(lost, MANY));
    bool idle_is_over;
    tether__peer_tick(peer, tether__clock_now_ns(agent->clock), &idle_is_over);
    assert_false(idle_is_over); /* it has just begun, though a tick is due at once */
    size_t done = count_done(lost, MANY);
    for (size_t ticks = 0; done < MANY; ticks++) {
        int64_t now = tether__clock_now_ns(agent->clock);
        assert_in_range(ticks, 0, MANY / 32);
        assert_true(tether__agent_tick(agent, now) <= now || count_done(lost, MANY) == MANY);
        assert_in_range(count_done(lost, MANY) - done, 1, 2 * MOST_AT_ONCE);
        done = count_done(lost, MANY);
    }
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(tether__future_result(&lost[i]->future, NULL, NULL), TETHER_EUNAVAILABLE);
        tether_future_release(&lost[i]->future);
    }
    tether__peer_release(peer);
    tether_test_world_stop(&world);
}

static void stop_fails_all_calls_when_a_fence_has_left_some(void **state)
{
    (void)state;
    struct tether_test_world world;
    static struct tether__call *lost[MANY];
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    struct tether__peer *peer = peer_of(world.agents[0], "w1");
    for (size_t i = 0; i < MANY; i++)
        lost[i] = put_call(peer);
    tether__session_fence(peer->session, "the test says so");
    tether__peer_release(peer);
    assert_in_range(count_done(lost, MANY), 1, MOST_AT_ONCE);
    tether_test_world_stop(&world);
    assert_int_equal(count_done(lost, MANY), MANY);
    for (size_t i = 0; i < MANY; i++)
        tether_future_release(&lost[i]->future);
}

/* ---- Calls of the peer that run here ---- */

enum { SERVED = 200 };

static tether_reply *served[SERVED];
static size_t n_served;

static void serve(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    served[n_served++] = reply;
}

static void register_serve(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_async(agent, "serve", serve, true, NULL, NULL),
                     TETHER_OK);
}

static bool all_are_served(void *userdata)
{
    (void)userdata;
    return n_served == SERVED;
}

/* A fence that looked at each of them would take the longer, the more there are. */
static void fence_looks_at_no_call_when_it_cancels_those_that_run_here(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_future *calls[SERVED];
    tether_value *arg = NULL;
    tether_test_world_register = register_serve;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_test_world_register = NULL;
    assert_int_equal(tether_value_new(tether_bytes_str("argument"), &arg, NULL), TETHER_OK);
    for (size_t i = 0; i < SERVED; i++)
        calls[i] = tether_rpc_async(world.agents[0], "w1", "serve", arg, TETHER_TEST_LIMIT_MS);
    assert_true(tether_test_world_wait(&world, all_are_served, NULL));
    struct tether__peer *peer = peer_of(world.agents[1], "w0");
    struct tether__session *session = hold_session(peer);
    for (size_t i = 0; i < SERVED; i++)
        assert_false(tether_reply_is_cancelled(served[i]));
    assert_true(session->held_bytes > 0);
    tether__session_fence(session, "the test says so");
    assert_int_equal(tether__map_count(&session->incoming), SERVED);
    for (size_t i = 0; i < SERVED; i++) {
        assert_true(tether_reply_is_cancelled(served[i]));
        tether_reply_ok(served[i], NULL);
    }
    assert_int_equal(tether__map_count(&session->incoming), 0);
    assert_int_equal(session->held_bytes, 0);
    for (size_t i = 0; i < SERVED; i++) {
        assert_int_equal(tether_future_wait(calls[i], TETHER_TEST_LIMIT_MS, NULL, NULL),
                         TETHER_EFENCED);
        tether_future_release(calls[i]);
    }
    tether_value_release(arg);
    tether__session_release(session);
    tether__peer_release(peer);
    tether_test_world_stop(&world);
}

/* A peer that was only named has no spare: its session goes on under the next number. */
static void fence_needs_no_memory_when_nothing_is_in_the_session(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    struct tether__peer *peer = peer_of(world.agents[0], "nobody");
    struct tether__session *session = peer->session;
    uint64_t number = session->number;
    assert_null(peer->spare);
    tether__session_fence(session, "the test says so");
    assert_ptr_equal(peer->session, session);
    assert_int_equal(session->number, number + 1);
    assert_int_equal(atomic_load(&peer->session_number), number + 1);
    assert_false(session->ended);

    /* From its first call on, a fence replaces it. */
    struct tether__call *call = put_call(peer);
    assert_non_null(peer->spare);
    tether__session_fence(session, "the test says so");
    assert_ptr_not_equal(peer->session, session);
    assert_null(peer->spare);
    assert_true(tether_future_is_done(&call->future));
    tether_future_release(&call->future);
    tether__peer_release(peer);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fence_fails_the_calls_of_its_session_once),
        cmocka_unit_test(fence_fails_calls_in_slices_when_there_are_many),
        cmocka_unit_test(stop_fails_all_calls_when_a_fence_has_left_some),
        cmocka_unit_test(fence_looks_at_no_call_when_it_cancels_those_that_run_here),
        cmocka_unit_test(fence_needs_no_memory_when_nothing_is_in_the_session),
    };
    return cmocka_run_group_tests_name("end of a session", tests, NULL, NULL);
}
