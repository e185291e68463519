/* A synchronous call to a worker with too many calls in flight waits for room. Here room appears
 * after the caller has looked in vain and before it looks again: its argument is serialised at each
 * look, and the second time that ends the call that takes all the room. */
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/rpc/lib/world.h"

static struct tether_test_world world;
static tether_future *first;
static int n_looks;

static bool is_done(void *future)
{
    return tether_future_is_done(future);
}

static tether_status make_room(const void *object, tether_buf *ret_bytes, tether_error *reterr)
{
    if (++n_looks == 2) {
        tether_reply_ok(atomic_exchange(&world.held, NULL), NULL);
        assert_true(tether_sim_run(world.sim, is_done, first, 1000));
    }
    (void)reterr;
    return tether_buf_append(ret_bytes, tether_bytes_str(object));
}

static const tether_type pending = {.name = "pending", .serialise = make_room};

static bool is_held(void *userdata)
{
    (void)userdata;
    return atomic_load(&world.held);
}

static void waiting_call_leaks_nothing_when_room_appears_between_checks(void **state)
{
    (void)state;
    tether_value *arg = NULL;
    tether_error err = {0};
    tether_test_heap_fail_never();
    long before = tether_test_heap_live();
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, TETHER_AGENT_OPTS(.max_calls_per_peer = 1));
    first = tether_rpc_async(world.agents[0], "w1", "hold", NULL, 5000);
    assert_true(tether_sim_run(world.sim, is_held, NULL, 1000));
    assert_int_equal(tether_value_new_object(&pending, (void *)"hello", &arg, &err), TETHER_OK);
    /* It gets there; without the reference layer w1 takes no objects. */
    assert_int_equal(tether_rpc_sync(world.agents[0], "w1", "echo", arg, 5000, NULL, &err),
                     TETHER_ENOTSUP);
    assert_int_equal(n_looks, 2);
    tether_value_release(arg);
    tether_future_release(first);
    tether_test_world_stop(&world);
    assert_int_equal(tether_test_heap_live(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_call_leaks_nothing_when_room_appears_between_checks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
