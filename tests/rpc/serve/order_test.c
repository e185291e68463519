/* The order in which calls run, as rpc/agent.h defines it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/world.h"

enum { CALLS = 300, LARGE = 8 << 20, MAX_RUNS = CALLS + 1 };

/* The numbers that "record" was called with, in the order in which it ran. Atomic, since the thread
 * sanitizer does not see what gRPC orders. */
static _Atomic int runs[MAX_RUNS];
static _Atomic int n_runs;

/* The argument begins with a number in decimal. */
static tether_status record(void *userdata,
                            const tether_value *arg,
                            tether_value **ret_value,
                            tether_error *reterr)
{
    (void)userdata, (void)ret_value, (void)reterr;
    runs[atomic_fetch_add(&n_runs, 1)] = atoi(tether_value_bytes(arg).data);
    return TETHER_OK;
}

static void register_record(tether_agent *agent)
{
    tether_status st = tether_agent_register_inline(agent, "record", record, NULL, NULL);
    if (st == TETHER_OK)
        st = tether_agent_register(agent, "record_pooled", record, NULL, NULL);
    assert_int_equal(st, TETHER_OK);
}

static void start(struct tether_test_world *world, enum tether_test_net net)
{
    atomic_store(&n_runs, 0);
    tether_test_world_register = register_record;
    tether_test_world_start(world, net, 2, NULL);
    tether_test_world_register = NULL;
}

/* Calls `fn` with a number and as many bytes behind it as make up `len`. */
static tether_future *call(tether_agent *agent, const char *fn, int number, size_t len)
{
    char *text = calloc(1, len);
    tether_value *arg = NULL;
    assert_non_null(text);
    snprintf(text, len, "%d", number);
    assert_int_equal(tether_value_new(tether_bytes_of(text, len), &arg, NULL), TETHER_OK);
    free(text);
    tether_future *future = tether_rpc_async(agent, "w1", fn, arg, 60000);
    tether_value_release(arg);
    return future;
}

static void finish(tether_future *future)
{
    tether_error err = {0};
    if (tether_future_wait(future, 60000, NULL, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    tether_future_release(future);
}

static void inline_calls_run_in_order(enum tether_test_net net)
{
    struct tether_test_world world;
    tether_future *futures[CALLS];
    start(&world, net);
    /* Up to 256 KiB: sizes that are copied, and sizes that are sent from where they are. */
    for (int i = 0; i < CALLS; i++)
        futures[i] = call(world.agents[0], "record", i, i % 50 == 7 ? 256 << 10 : 16);
    for (int i = 0; i < CALLS; i++)
        finish(futures[i]);
    assert_int_equal(atomic_load(&n_runs), CALLS);
    for (int i = 0; i < CALLS; i++)
        assert_int_equal(runs[i], i);
    tether_test_world_stop(&world);
}

/* If a call is made after an earlier one was answered, it runs after that one, for all sizes and
 * kinds of functions. */
static void call_runs_after_call_that_was_answered_before(enum tether_test_net net)
{
    struct tether_test_world world;
    start(&world, net);
    for (int i = 0; i < 8; i++)
        finish(call(world.agents[0], i % 2 ? "record" : "record_pooled", i, i % 3 ? 16 : LARGE));
    for (int i = 0; i < 8; i++)
        assert_int_equal(runs[i], i);
    tether_test_world_stop(&world);
}

/* In the simulation nothing is sent between the two calls, so the outcome is always the same. */
static void small_call_overtakes_call_in_pieces(void **state)
{
    (void)state;
    struct tether_test_world world;
    start(&world, TETHER_TEST_SIM);
    finish(call(world.agents[0], "record", 0, 16)); /* the stream is up */
    tether_future *large = call(world.agents[0], "record", 1, LARGE);
    tether_future *small = call(world.agents[0], "record", 2, 16);
    finish(small);
    finish(large);
    assert_int_equal(runs[1], 2);
    assert_int_equal(runs[2], 1);
    tether_test_world_stop(&world);
}

static void inline_calls_run_in_order_over_each_transport(void **state)
{
    (void)state;
    for (enum tether_test_net net = 0; net < TETHER_TEST_N_NETS; net++)
        inline_calls_run_in_order(net);
}

static void call_runs_after_answered_call_over_each_transport(void **state)
{
    (void)state;
    for (enum tether_test_net net = 0; net < TETHER_TEST_N_NETS; net++)
        call_runs_after_call_that_was_answered_before(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inline_calls_run_in_order_over_each_transport),
        cmocka_unit_test(call_runs_after_answered_call_over_each_transport),
        cmocka_unit_test(small_call_overtakes_call_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
