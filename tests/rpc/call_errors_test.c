/* What the error of a call without an answer says: function, worker, elapsed time, and how far the
 * call had come. Over the simulation, where both is always the same. */
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/rpc/world.h"

static bool never(void *userdata)
{
    (void)userdata;
    return false;
}

static void assert_says(const tether_error *err, const char *words)
{
    if (!strstr(err->message, words))
        fail_msg("'%s' is not in: %s", words, err->message);
}

/* Waits for a call of "hold", which nobody answers, and for 5 s at the most. */
static void call_in_vain(struct tether_test_world *world, tether_status status, tether_error *err)
{
    memset(err, 0, sizeof *err);
    assert_int_equal(tether_rpc_sync(world->agents[0], "w1", "hold", NULL, 5000, NULL, err),
                     status);
}

static void timeout_tells_that_call_arrived(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    call_in_vain(&world, TETHER_ETIMEOUT, &err);
    assert_says(&err, "calling 'hold' on worker 'w1' timed out after 5000 ms: ");
    assert_says(&err, "the call has arrived and waits or runs there");
    assert_says(&err, "raise timeout_ms");
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
    assert_says(&err, "calling 'hold' on worker 'w1' timed out after 5000 ms: ");
    assert_says(&err, "the call was sent, its arrival is not confirmed");
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
    assert_says(&err, "calling 'hold' on worker 'w1' timed out after 5000 ms: ");
    assert_says(&err, "there is no connection");
    tether_sim_part(world.sim, world.agents[0], world.agents[1], false);
    tether_test_world_stop(&world);
}

static void unavailable_tells_function_and_elapsed_time_when_worker_dies(void **state)
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
    assert_says(&err, " ms: ");
    assert_says(&err, "'w1'");
    tether_future_release(call);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timeout_tells_that_call_arrived),
        cmocka_unit_test(timeout_tells_that_arrival_is_not_confirmed_when_worker_is_stopped),
        cmocka_unit_test(timeout_tells_that_there_is_no_connection_when_worker_is_cut_off),
        cmocka_unit_test(unavailable_tells_function_and_elapsed_time_when_worker_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
