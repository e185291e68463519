/* The words of the error of a wait for a future that is shorter than its call, and of calls in
 * states that few are in. Runs over the simulation, where the times are always the same. */
#include <stdio.h>
#include <stdlib.h>
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

/* ---- Waits for a future that are shorter than its call ---- */

static void wait_in_vain(tether_future *call, int timeout_ms, tether_error *err)
{
    memset(err, 0, sizeof *err);
    assert_int_equal(tether_future_wait(call, timeout_ms, NULL, err), TETHER_ETIMEOUT);
}

static void short_wait_tells_that_function_runs(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_future *call = tether_rpc_async(world.agents[0], "w1", "hold", NULL, 60000);
    for (int i = 1; i <= 3; i++) {
        char age[64];
        wait_in_vain(call, 400, &err);
        assert_says(&err, "waiting for 'hold' on worker 'w1' timed out after 400 ms (");
        assert_says(&err, "(was running there ");
        snprintf(age, sizeof age, " ms ago), %d ms after the call began: ", 400 * i);
        assert_says(&err, age);
        assert_says(&err, "the call goes on, wait again or cancel it");
    }
    assert_false(tether_future_is_done(call));
    tether_future_release(call);
    tether_test_world_stop(&world);
}

static void short_wait_tells_that_call_waits_for_a_thread(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    occupy_threads(&world);
    tether_future *call = tether_rpc_async(world.agents[0], "w1", "echo_pooled", NULL, 60000);
    wait_in_vain(call, 400, &err);
    assert_says(&err, "(waited for a thread there ");
    free_threads(&world);
    assert_int_equal(tether_future_wait(call, 5000, NULL, &err), TETHER_OK);
    tether_future_release(call);
    tether_test_world_stop(&world);
}

static void short_wait_tells_that_there_is_no_connection(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_sim_part(world.sim, world.agents[0], world.agents[1], true);
    tether_future *call = tether_rpc_async(world.agents[0], "w1", "hold", NULL, 60000);
    wait_in_vain(call, 400, &err);
    assert_says(&err,
                "waiting for 'hold' on worker 'w1' timed out after 400 ms (not sent, no "
                "connection), 400 ms after the call began: ");
    tether_future_release(call);
    tether_test_world_stop(&world);
}

/* Polls ask nothing, and still say what they know. */
static void poll_tells_that_arrival_is_not_confirmed(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    tether_sim_pause(world.sim, world.agents[1], true);
    tether_future *call = tether_rpc_async(world.agents[0], "w1", "hold", NULL, 60000);
    wait_in_vain(call, 10, &err);
    wait_in_vain(call, 0, &err);
    assert_says(&err, "timed out after 0 ms (sent, arrival not confirmed), 10 ms after the call ");
    assert_int_equal(tether__container_of(call, struct tether__call, future)->asked_at, 0);
    tether_future_release(call);
    tether_sim_pause(world.sim, world.agents[1], false);
    tether_test_world_stop(&world);
}

static void short_wait_tells_whether_function_of_the_same_worker_has_begun(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err;
    tether_test_world_start(&world, TETHER_TEST_SIM, 1, NULL);
    tether_future *call = tether_rpc_async(world.agents[0], "w0", "hold", NULL, 60000);
    wait_in_vain(call, 400, &err);
    assert_says(&err,
                "waiting for 'hold' on worker 'w0' timed out after 400 ms (has not returned)");
    tether_future_release(call);
    tether_test_world_stop(&world);
}

static void short_wait_tells_how_many_futures_are_not_done(void **state)
{
    (void)state;
    tether_error err;
    tether_future *members[] = {tether_future_new(), tether_future_new(), tether_future_new()};
    tether_future *all = tether_future_all(members, 3), *any = tether_future_any(members + 1, 2);
    tether_future_finish(members[0], TETHER_OK, NULL, NULL);
    wait_in_vain(all, 5, &err);
    assert_says(&err, "waiting for all of 3 futures timed out after 5 ms (2 are not done): ");
    wait_in_vain(any, 0, &err);
    assert_says(&err, "waiting for any of 2 futures timed out after 0 ms (2 are not done): ");
    wait_in_vain(members[2], 0, &err);
    assert_says(&err,
                "waiting for a future timed out after 0 ms: nobody has finished it yet, wait");
    for (int i = 0; i < 3; i++) {
        tether_future_finish(members[i], TETHER_OK, NULL, NULL);
        tether_future_release(members[i]);
    }
    tether_future_release(all);
    tether_future_release(any);
}

/* ---- States that few calls are in ---- */

/* The answer to a call is on its way when the worker is asked about the call. */
static void timeout_tells_that_call_was_answered_when_answer_is_on_its_way(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_future *call = tether_rpc_async(world.agents[0], "w1", "hold", NULL, 5000);
    tether_sim_run(world.sim, never, NULL, 1000);
    tether_sim_pause(world.sim, world.agents[1], true);
    tether_sim_run(world.sim, never, NULL, 3900); /* w1 has been asked */
    struct tether__peer *peer = tether__agent_find_peer(world.agents[0], "w1");
    Tether__Ping answer = TETHER__PING__INIT;
    answer.answer = true;
    answer.call = &tether__container_of(call, struct tether__call, future)->id;
    answer.state = (uint32_t[]){TETHER__CALL_NOT_HERE};
    answer.n_call = answer.n_state = 1;
    tether__peer_lock(peer);
    tether__call_on_ping_locked(&peer->session->out, &answer);
    tether__peer_unlock(peer);
    tether__peer_release(peer);
    assert_int_equal(tether_future_wait(call, 9000, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err, "timed out after 5000 ms (was answered there 100 ms ago): ");
    tether_future_release(call);
    tether_sim_pause(world.sim, world.agents[1], false);
    tether_test_world_stop(&world);
}

static void timeout_tells_that_argument_was_not_sent_to_its_end(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_value *large = NULL;
    size_t len = 8 << 20;
    char *bytes = calloc(1, len);
    assert_non_null(bytes);
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_OK);
    tether_sim_part(world.sim, world.agents[0], world.agents[1], true);
    assert_int_equal(tether_value_new(tether_bytes_of(bytes, len), &large, NULL), TETHER_OK);
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", large, 2000, NULL, &err),
                     TETHER_ETIMEOUT);
    assert_says(&err, "timed out after 2000 ms (argument not sent to its end): ");
    tether_sim_part(world.sim, world.agents[0], world.agents[1], false);
    tether_value_release(large);
    free(bytes);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_wait_tells_that_function_runs),
        cmocka_unit_test(short_wait_tells_that_call_waits_for_a_thread),
        cmocka_unit_test(short_wait_tells_that_there_is_no_connection),
        cmocka_unit_test(poll_tells_that_arrival_is_not_confirmed),
        cmocka_unit_test(short_wait_tells_whether_function_of_the_same_worker_has_begun),
        cmocka_unit_test(short_wait_tells_how_many_futures_are_not_done),
        cmocka_unit_test(timeout_tells_that_call_was_answered_when_answer_is_on_its_way),
        cmocka_unit_test(timeout_tells_that_argument_was_not_sent_to_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
