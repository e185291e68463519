/* The error of a call without an answer names the function, the worker, the elapsed time and how
 * far the call had come. Runs over the simulation, where the last two are always the same. */
#include <string.h>

#include "base/threads/loop.h"
#include "rpc/agent/internal.h"
#include "rpc/peer/calls/progress.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/errors.h"

static bool never(void *userdata)
{
    (void)userdata;
    return false;
}

/* Waits up to 5 s for a call of "hold", which is never answered. */
static void call_in_vain(struct tether_test_world *world, tether_status status, tether_error *err)
{
    memset(err, 0, sizeof *err);
    assert_int_equal(tether_rpc_sync(world->agents[0], "w1", "hold", NULL, 5000, NULL, err),
                     status);
}

static void timeout_tells_that_function_runs(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    call_in_vain(&world, TETHER_ETIMEOUT, &err);
    assert_says(&err, "calling 'hold' on worker 'w1' timed out after 5000 ms (");
    assert_says(&err, "(was running there 2");
    assert_says(&err, " ms ago): ");
    assert_says(&err, "raise timeout_ms");
    tether_test_world_stop(&world);
}

static void timeout_tells_that_call_waits_for_a_thread(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    occupy_threads(&world);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo_pooled", NULL, 5000, NULL, &err),
                     TETHER_ETIMEOUT);
    assert_says(&err, "calling 'echo_pooled' on worker 'w1' timed out after 5000 ms (");
    assert_says(&err, "(waited for a thread there 2");
    free_threads(&world);
    tether_test_world_stop(&world);
}

static void timeout_of_future_tells_that_call_waits_for_a_thread(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    occupy_threads(&world);
    tether_future *call = tether_rpc_async(world.agents[0], "w1", "echo_pooled", NULL, 800);
    assert_int_equal(tether_future_wait(call, 5000, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err, "timed out after 800 ms (waited for a thread there 99 ms ago): ");
    tether_future_release(call);
    free_threads(&world);
    tether_test_world_stop(&world);
}

static tether_reply *unanswered[256];
static int n_unanswered;

static void keep(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    unanswered[n_unanswered++] = reply;
}

static void register_keep(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_async(agent, "keep", keep, true, NULL, NULL), TETHER_OK);
}

/* More calls than one question names. */
static void timeouts_of_many_calls_tell_that_they_run(void **state)
{
    (void)state;
    enum { N = 150 };
    struct tether_test_world world;
    tether_future *calls[N];
    tether_error err;
    tether_test_world_register = register_keep;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_test_world_register = NULL;
    for (int i = 0; i < N; i++)
        calls[i] = tether_rpc_async(world.agents[0], "w1", "keep", NULL, 3000);
    for (int i = 0; i < N; i++) {
        assert_int_equal(tether_future_wait(calls[i], 5000, NULL, &err), TETHER_ETIMEOUT);
        assert_says(&err, "(was running there 2");
        tether_future_release(calls[i]);
    }
    while (n_unanswered)
        tether_reply_ok(unanswered[--n_unanswered], NULL);
    tether_test_world_stop(&world);
}

static void timeout_tells_that_worker_does_not_say_when_it_stops_after_the_call(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_future *call = tether_rpc_async(world.agents[0], "w1", "hold", NULL, 5000);
    tether_sim_run(world.sim, never, NULL, 1000);
    tether_sim_pause(world.sim, world.agents[1], true);
    assert_int_equal(tether_future_wait(call, 9000, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err, "timed out after 5000 ms (arrived there, no word whether it runs): ");
    tether_future_release(call);
    tether_sim_pause(world.sim, world.agents[1], false);
    tether_test_world_stop(&world);
}

static void timeout_tells_that_arrival_is_not_confirmed_when_worker_is_stopped(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    tether_sim_pause(world.sim, world.agents[1], true);
    call_in_vain(&world, TETHER_ETIMEOUT, &err);
    assert_says(&err, "calling 'hold' on worker 'w1' timed out after 5000 ms (");
    assert_says(&err, "(sent, arrival not confirmed): ");
    tether_sim_pause(world.sim, world.agents[1], false);
    tether_test_world_stop(&world);
}

static void timeout_tells_that_there_is_no_connection_when_worker_is_cut_off(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_sim_part(world.sim, world.agents[0], world.agents[1], true);
    call_in_vain(&world, TETHER_ETIMEOUT, &err);
    assert_says(&err, "calling 'hold' on worker 'w1' timed out after 5000 ms (");
    assert_says(&err, "(not sent, no connection): ");
    tether_sim_part(world.sim, world.agents[0], world.agents[1], false);
    tether_test_world_stop(&world);
}

static void unavailable_tells_that_call_had_arrived_when_worker_dies(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, TETHER_AGENT_OPTS(.lease_ms = 2000));
    tether_future *call = tether_rpc_async(world.agents[0], "w1", "hold", NULL, 60000);
    tether_sim_run(world.sim, never, NULL, 100);
    tether_sim_kill(world.sim, world.agents[1]);
    assert_int_equal(tether_future_wait(call, 60000, NULL, &err), TETHER_EUNAVAILABLE);
    assert_says(&err, "calling 'hold' failed after ");
    assert_says(&err, " ms (arrived there): ");
    assert_says(&err, "'w1'");
    tether_future_release(call);
    tether_test_world_stop(&world);
}

static void unavailable_tells_that_arrival_is_not_confirmed_when_worker_is_stopped(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, TETHER_AGENT_OPTS(.lease_ms = 2000));
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    tether_sim_pause(world.sim, world.agents[1], true);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "hold", NULL, 60000, NULL, &err),
                     TETHER_EUNAVAILABLE);
    assert_says(&err, "calling 'hold' failed after 2");
    assert_says(&err, " ms (sent, arrival not confirmed): worker 'w1' ");
    tether_sim_pause(world.sim, world.agents[1], false);
    tether_test_world_stop(&world);
}

static void unavailable_tells_that_call_was_not_sent_when_worker_was_cut_off_before(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, TETHER_AGENT_OPTS(.lease_ms = 2000));
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    tether_sim_part(world.sim, world.agents[0], world.agents[1], true);
    tether_sim_run(world.sim, never, NULL, 1000);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "hold", NULL, 60000, NULL, &err),
                     TETHER_EUNAVAILABLE);
    assert_says(&err, "calling 'hold' failed after ");
    assert_says(&err, " ms (not sent, no connection): worker 'w1' ");
    tether_sim_part(world.sim, world.agents[0], world.agents[1], false);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    assert_int_equal(atomic_load(&world.n_held), 0); /* and it never runs */
    tether_test_world_stop(&world);
}

/* w1 says what it likes of calls that w0 has not asked about, or does not know. */
static void answer_about_other_calls_changes_nothing(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_future *call = tether_rpc_async(world.agents[0], "w1", "hold", NULL, 5000);
    tether_sim_run(world.sim, never, NULL, 1000);
    struct tether__peer *peer = tether__agent_find_peer(world.agents[0], "w1");
    uint64_t id = tether__container_of(call, struct tether__call, future)->id;
    Tether__Ping answer = TETHER__PING__INIT;
    answer.answer = true;
    answer.call = (uint64_t[]){id, id + 1, UINT64_MAX};
    answer.state = (uint32_t[]){TETHER__CALL_QUEUED, TETHER__CALL_QUEUED, 77};
    answer.n_call = 3;
    answer.n_state = 2;
    tether__peer_lock(peer);
    tether__call_on_ping_locked(&peer->session->out, &answer);
    tether__peer_unlock(peer);
    tether__peer_release(peer);
    assert_int_equal(tether_future_wait(call, 9000, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err, "(was running there 2");
    tether_future_release(call);
    tether_test_world_stop(&world);
}

/* The reasons for which w1 was lost are told once, not to calls of the next session. */
static void timeout_does_not_tell_why_an_earlier_session_ended(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, TETHER_AGENT_OPTS(.lease_ms = 2000));
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    tether_sim_pause(world.sim, world.agents[1], true);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 60000, NULL, &err),
                     TETHER_EUNAVAILABLE);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 300, NULL, &err),
                     TETHER_ETIMEOUT);
    assert_says(&err, "raise timeout_ms");
    tether_sim_pause(world.sim, world.agents[1], false);
    tether_test_world_stop(&world);
}

static bool half_open_from_w1(void *world)
{
    struct tether__peer *peer =
        tether__agent_find_peer(((struct tether_test_world *)world)->agents[0], "w1");
    bool is_half_open = peer->session->in.conn && !peer->session->in.up;
    tether__peer_release(peer);
    return is_half_open;
}

/* w0 refuses a stream of w1's first start while a call waits for the second one: that is no reason
 * why the call fails. */
static void call_times_out_when_stale_start_of_its_worker_is_refused(void **state)
{
    (void)state;
    struct tether_test_world world;
    const struct tether_agent_opts *opts = TETHER_AGENT_OPTS(.lease_ms = 2000);
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, opts);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    tether_agent *former = world.agents[1];
    tether_sim_part(world.sim, world.agents[0], former, true);
    tether_sim_run(world.sim, never, NULL, 2500); /* each fences the other */
    tether_test_world_start_one(&world, 1, opts);
    tether_sim_slow(world.sim, world.agents[1], world.agents[0], 1000 * TETHER__NS_PER_MS);
    tether_sim_part(world.sim, world.agents[0], former, false);
    tether_future *stale = tether_rpc_async(former, "w0", "echo", NULL, 5000);
    assert_true(tether_sim_run(world.sim, half_open_from_w1, &world, 1000));
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 500, NULL, &err),
                     TETHER_ETIMEOUT);
    assert_says(&err, "calling 'echo' on worker 'w1' timed out after 500 ms (");
    tether_future_release(stale);
    tether_sim_kill(world.sim, former);
    tether_agent_release(former);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timeout_tells_that_function_runs),
        cmocka_unit_test(timeout_tells_that_call_waits_for_a_thread),
        cmocka_unit_test(timeout_of_future_tells_that_call_waits_for_a_thread),
        cmocka_unit_test(timeouts_of_many_calls_tell_that_they_run),
        cmocka_unit_test(timeout_tells_that_worker_does_not_say_when_it_stops_after_the_call),
        cmocka_unit_test(timeout_tells_that_arrival_is_not_confirmed_when_worker_is_stopped),
        cmocka_unit_test(timeout_tells_that_there_is_no_connection_when_worker_is_cut_off),
        cmocka_unit_test(unavailable_tells_that_call_had_arrived_when_worker_dies),
        cmocka_unit_test(unavailable_tells_that_arrival_is_not_confirmed_when_worker_is_stopped),
        cmocka_unit_test(unavailable_tells_that_call_was_not_sent_when_worker_was_cut_off_before),
        cmocka_unit_test(answer_about_other_calls_changes_nothing),
        cmocka_unit_test(timeout_does_not_tell_why_an_earlier_session_ended),
        cmocka_unit_test(call_times_out_when_stale_start_of_its_worker_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
