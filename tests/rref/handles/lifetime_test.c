/* Stores, references, replies and futures that outlive their agent are safe to use. */
#include <pthread.h>
#include <string.h>

#include "rpc/agent/internal.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

static void store_is_lent_until_the_agent_is_released(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 2, NULL);
    tether_store *store = tether_agent_store(world.agents[0]);
    assert_int_equal(tether_agent_shutdown(world.agents[0], true, NULL), TETHER_OK);
    assert_ptr_equal(tether_agent_store(world.agents[0]), store);
    assert_ptr_equal(store, world.store);
    tether_worker worker;
    assert_int_equal(tether_agent_worker(world.agents[0], "w1", &worker, NULL), TETHER_ESHUTDOWN);
    tether_test_world_stop(&world);
}

static void reference_is_safe_after_its_agent_was_released(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 2, NULL);
    tether_rref *remote = cast_remote_counter(world.agents[0], "w1", "5");
    tether_rref *own = cast_own_counter(world.agents[0], 5);
    assert_int_equal(tether_rref_to_here(remote, TETHER_TEST_LIMIT_MS, NULL, NULL), TETHER_OK);
    const char *name = tether_rref_owner_name(remote);
    world.agents[0] = tether_agent_release(world.agents[0]);

    assert_string_equal(name, "w1");
    assert_string_equal(tether_rref_owner_name(remote), "w1");
    assert_string_equal(tether_rref_owner_name(own), "w0");
    tether_error error = {0};
    tether_rref *derived = tether_rref_remote(remote, "add", NULL, TETHER_TEST_LIMIT_MS);
    assert_int_equal(tether_rref_status(derived, &error), TETHER_RREF_BROKEN);
    assert_int_equal(tether_rref_to_here(derived, 0, NULL, &error), TETHER_ESHUTDOWN);
    assert_int_equal(error.code, TETHER_ESHUTDOWN);
    assert_int_equal(tether_rref_sync(remote, "add", NULL, 0, NULL, NULL), TETHER_ESHUTDOWN);
    assert_int_equal(tether_rref_to_here(remote, 0, NULL, NULL), TETHER_ESHUTDOWN);
    assert_int_equal(tether_rref_to_here(own, 0, NULL, NULL), TETHER_ESHUTDOWN);
    tether_rref_release(derived);
    tether_rref_release(own);
    tether_rref_release(remote);
    tether_test_world_stop(&world);
}

/* The reply is dropped, because the agent that would send it is gone. */
static void reply_after_the_agent_was_released_is_dropped(void **state)
{
    (void)state;
    for (int net = TETHER_TEST_GRPC; net <= TETHER_TEST_UNIX; net++) {
        struct tether_test_world world;
        tether_test_world_start(&world, net, 2, NULL);
        tether_future *call =
            tether_rpc_async(world.agents[0], "w1", "hold", NULL, TETHER_TEST_LIMIT_MS);
        assert_eventually(atomic_load(&world.n_held) == 1);
        world.agents[1] = tether_agent_release(world.agents[1]);
        tether_reply *late = atomic_exchange(&world.held, NULL);
        assert_true(tether_reply_is_cancelled(late));
        tether_reply_ok(late, NULL);
        assert_int_equal(tether_future_wait(call, TETHER_TEST_LIMIT_MS, NULL, NULL),
                         TETHER_EUNAVAILABLE);
        tether_future_release(call);
        tether_test_world_stop(&world);
    }
}

static void reply_to_oneself_after_the_agent_was_released_is_dropped(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 1, NULL);
    tether_future *call =
        tether_rpc_async(world.agents[0], "w0", "hold", NULL, TETHER_TEST_LIMIT_MS);
    assert_eventually(atomic_load(&world.n_held) == 1);
    world.agents[0] = tether_agent_release(world.agents[0]);
    tether_reply_error(atomic_exchange(&world.held, NULL), TETHER_EINVAL, "late");
    assert_int_equal(tether_future_status(call, NULL), TETHER_ESHUTDOWN);
    tether_future_release(call);
    tether_test_world_stop(&world);
}

/* The group borrows the poller of the first member, and so keeps it. */
static void group_of_two_agents_futures_outlives_the_first_agent(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_MIXED, 3, NULL);
    tether_future *futures[] = {
        tether_rpc_async(world.agents[0], "w2", "echo", NULL, TETHER_TEST_LIMIT_MS),
        tether_rpc_async(world.agents[1], "w2", "hold", NULL, TETHER_TEST_LIMIT_MS),
    };
    tether_future *all = tether_future_all(futures, 2);
    assert_int_equal(tether_future_wait(futures[0], TETHER_TEST_LIMIT_MS, NULL, NULL), TETHER_OK);
    assert_eventually(atomic_load(&world.n_held) == 1);
    tether_future_release(futures[0]);
    world.agents[0] = tether_agent_release(world.agents[0]);
    assert_int_equal(tether_future_wait(all, 0, NULL, NULL), TETHER_ETIMEOUT);
    tether_reply_ok(atomic_exchange(&world.held, NULL), NULL);
    assert_int_equal(tether_future_wait(all, TETHER_TEST_LIMIT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(futures[1]);
    tether_future_release(all);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store_is_lent_until_the_agent_is_released),
        cmocka_unit_test(reference_is_safe_after_its_agent_was_released),
        cmocka_unit_test(reply_after_the_agent_was_released_is_dropped),
        cmocka_unit_test(reply_to_oneself_after_the_agent_was_released_is_dropped),
        cmocka_unit_test(group_of_two_agents_futures_outlives_the_first_agent),
    };
    return cmocka_run_group_tests_name("handles after the release", tests, NULL, NULL);
}
