/* The tests of an agent that run over every network: gRPC, unix sockets and the simulated one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "rpc/agent/internal.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/agent/suite.h"
#include "tests/rpc/lib/world.h"

static enum tether_test_net net;

static struct tether_test_world *two(void **state)
{
    return *state;
}

static int start_two(void **state)
{
    static struct tether_test_world world;
    tether_test_world_start(&world, net, 2, NULL);
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    tether_test_world_stop(*state);
    return 0;
}

static tether_value *text(const char *words)
{
    tether_value *value = NULL;
    assert_int_equal(tether_value_printf(&value, NULL, "%s", words), TETHER_OK);
    return value;
}

static void call_ok(tether_agent *from,
                    const char *to,
                    const char *fn,
                    const char *arg,
                    const char *expected)
{
    tether_value *value = text(arg), *result = NULL;
    tether_error err = {0};
    tether_status st = tether_rpc_sync(from, to, fn, value, 10000, &result, &err);
    if (st != TETHER_OK)
        fail_msg("%s", err.message);
    assert_string_equal(tether_value_str(result), expected);
    tether_value_release(result);
    tether_value_release(value);
}

static void call_reaches_worker_by_name(void **state)
{
    struct tether_test_world *w = two(state);
    call_ok(w->agents[0], "w1", "echo", "hello", "hello");
    call_ok(w->agents[1], "w0", "echo", "back", "back");
    call_ok(w->agents[0], "w1", "echo_pooled", "pooled", "pooled");
    call_ok(w->agents[0], "w1", "caller", "", "w0");
}

static void call_reaches_worker_by_id(void **state)
{
    struct tether_test_world *w = two(state);
    tether_error err = {0};
    call_ok(w->agents[0], "w1", "echo", "first, so that it is known", "first, so that it is known");
    char by_id[16];
    snprintf(by_id, sizeof by_id, "#%u", tether_agent_id(w->agents[1]));
    call_ok(w->agents[0], by_id, "echo", "by id", "by id");
    assert_int_equal(tether_rpc_sync(w->agents[0], "#77", "echo", NULL, 1000, NULL, &err),
                     TETHER_ENOTFOUND);
}

static void worker_can_call_itself(void **state)
{
    struct tether_test_world *w = two(state);
    call_ok(w->agents[0], "w0", "echo", "inline", "inline");
    call_ok(w->agents[0], "w0", "echo_pooled", "pooled", "pooled");
    call_ok(w->agents[0], "w0", "caller", "", "w0");
    tether_error err = {0};
    assert_int_equal(tether_rpc_sync(w->agents[0], "w0", "nothing", NULL, 1000, NULL, &err),
                     TETHER_ENOTFOUND);
}

static void error_names_worker_function_and_cause(void **state)
{
    struct tether_test_world *w = two(state);
    const struct {
        const char *to, *fn;
        tether_status status;
        const char *words;
    } rows[] = {
        {"w1", "fail", TETHER_EINVAL, "worker 'w1', function 'fail': no good"},
        {"w1", "nothing", TETHER_ENOTFOUND, "no function named 'nothing'"},
        {"nobody", "echo", TETHER_ENOTFOUND, "no worker named 'nobody'"},
        {"", "echo", TETHER_EINVAL, "name of a worker"},
        {"w1", "", TETHER_EINVAL, "name of a function"},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        tether_error err = {0};
        tether_status st =
            tether_rpc_sync(w->agents[0], rows[i].to, rows[i].fn, NULL, 5000, NULL, &err);
        assert_int_equal(st, rows[i].status);
        assert_int_equal(err.code, rows[i].status);
        if (!strstr(err.message, rows[i].words))
            fail_msg("'%s' does not say '%s'", err.message, rows[i].words);
    }
}

static void call_carries_arguments_of_all_sizes(void **state)
{
    struct tether_test_world *w = two(state);
    static const size_t sizes[] = {0, 1, 4095, 4097, 65536, 262144, 262145, 3000001};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        char *data = tether__malloc(sizes[i] + 1);
        for (size_t k = 0; k < sizes[i]; k++)
            data[k] = (char)(k * 31 + i);
        tether_value *arg = NULL, *result = NULL;
        tether_error err = {0};
        assert_int_equal(tether_value_new(tether_bytes_of(data, sizes[i]), &arg, &err), TETHER_OK);
        const char *fn = i % 2 ? "echo" : "echo_pooled";
        if (tether_rpc_sync(w->agents[0], "w1", fn, arg, 20000, &result, &err) != TETHER_OK)
            fail_msg("%zu bytes: %s", sizes[i], err.message);
        assert_true(tether_bytes_equal(tether_value_bytes(result), tether_value_bytes(arg)));
        tether_value_release(arg);
        tether_value_release(result);
        tether__free(data);
    }
}

static bool is_held(void *userdata)
{
    return atomic_load(&((struct tether_test_world *)userdata)->held) != NULL;
}

static void call_fails_when_its_timeout_passes(void **state)
{
    struct tether_test_world *w = two(state);
    tether_error err = {0};
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "hold", NULL, 50, NULL, &err),
                     TETHER_ETIMEOUT);
    assert_non_null(strstr(err.message, "w1"));
    tether_future *future = tether_rpc_async(w->agents[0], "w1", "hold", NULL, 50);
    assert_int_equal(tether_future_wait(future, 10000, NULL, &err), TETHER_ETIMEOUT);
    tether_future_release(future);
    /* a late reply has no effect */
    assert_true(tether_test_world_wait(w, is_held, w)); /* on a busy machine the calls come late */
    tether_reply_ok(atomic_exchange(&w->held, NULL), NULL);
    call_ok(w->agents[0], "w1", "echo", "still fine", "still fine");
}

static bool held_is_cancelled(void *userdata)
{
    return tether_reply_is_cancelled(atomic_load(&((struct tether_test_world *)userdata)->held));
}

static void cancel_of_a_remote_call_reaches_the_callee(void **state)
{
    struct tether_test_world *w = two(state);
    tether_error err = {0};
    tether_future *future = tether_rpc_async(w->agents[0], "w1", "hold", NULL, 10000);
    assert_true(tether_test_world_wait(w, is_held, w));
    assert_false(held_is_cancelled(w));
    tether_future_cancel(future);
    assert_true(tether_future_is_done(future));
    assert_int_equal(tether_future_wait(future, 0, NULL, &err), TETHER_ECANCELED);
    assert_string_equal(err.message, "call of 'hold' was canceled");
    assert_true(tether_test_world_wait(w, held_is_cancelled, w)); /* the callee gets the cancel */
    tether_future_cancel(future);
    tether_future_release(future);
}

static void cancel_of_a_call_to_oneself_reaches_the_function(void **state)
{
    struct tether_test_world *w = two(state);
    tether_error err = {0};
    tether_future *future = tether_rpc_async(w->agents[0], "w0", "hold", NULL, 10000);
    assert_false(held_is_cancelled(w));
    tether_future_cancel(future);
    assert_true(held_is_cancelled(w));
    tether_future_release(future);
    future = tether_rpc_async(w->agents[0], "w0", "hold", NULL, 20);
    assert_false(held_is_cancelled(w));
    assert_int_equal(tether_future_wait(future, 10000, NULL, &err), TETHER_ETIMEOUT);
    assert_true(held_is_cancelled(w));
    tether_future_release(future);
}

static void async_function_may_reply_later(void **state)
{
    struct tether_test_world *w = two(state);
    tether_error err = {0};
    tether_value *result = NULL, *answer = text("later");
    tether_future *future = tether_rpc_async(w->agents[0], "w1", "hold", NULL, 10000);
    assert_true(tether_test_world_wait(w, is_held, w));
    assert_false(tether_future_is_done(future));
    assert_int_equal(tether_future_wait(future, 0, NULL, &err), TETHER_ETIMEOUT);
    tether_reply_ok(atomic_exchange(&w->held, NULL), answer);
    assert_int_equal(tether_future_wait(future, 10000, &result, &err), TETHER_OK);
    assert_string_equal(tether_value_str(result), "later");
    tether_value_release(result);
    tether_value_release(answer);
    tether_future_release(future);

    future = tether_rpc_async(w->agents[0], "w1", "hold", NULL, 10000);
    assert_true(tether_test_world_wait(w, is_held, w));
    tether_reply_error(atomic_exchange(&w->held, NULL), TETHER_EPERM, "not %s", "today");
    assert_int_equal(tether_future_wait(future, 10000, &result, &err), TETHER_EPERM);
    assert_non_null(strstr(err.message, "not today"));
    tether_future_release(future);
}

static void count(tether_future *future, void *userdata)
{
    assert_true(tether_future_is_done(future));
    atomic_fetch_add((_Atomic int *)userdata, 1);
}

static void all_calls_are_answered_when_many_are_in_flight(void **state)
{
    enum { N = 500 };
    struct tether_test_world *w = two(state);
    tether_future *futures[N];
    tether_error err = {0};
    _Atomic int n_called = 0;
    for (int i = 0; i < N; i++) {
        tether_value *arg = NULL;
        assert_int_equal(tether_value_printf(&arg, &err, "%d", i), TETHER_OK);
        futures[i] = tether_rpc_async(w->agents[i % 2], i % 2 ? "w0" : "w1",
                                      i % 3 ? "echo" : "echo_pooled", arg, 20000);
        assert_int_equal(tether_future_then(futures[i], count, &n_called), TETHER_OK);
        tether_value_release(arg);
    }
    tether_future *all = tether_future_all(futures, N), *any = tether_future_any(futures, N);
    tether_value *first = NULL;
    assert_int_equal(tether_future_wait(any, 20000, &first, &err), TETHER_OK);
    assert_int_equal(tether_future_wait(all, 20000, NULL, &err), TETHER_OK);
    for (int i = 0; i < N; i++) {
        char expected[16];
        snprintf(expected, sizeof expected, "%d", i);
        assert_string_equal(tether_value_str(tether_future_value(futures[i])), expected);
        tether_future_release(futures[i]);
    }
    assert_int_equal(n_called, N);
    tether_value_release(first);
    tether_future_release(all);
    tether_future_release(any);
}

static void nested_calls_inherit_the_deadline(void **state)
{
    struct tether_test_world *w = two(state);
    tether_value *to = text("w0"), *result = NULL;
    tether_error err = {0};
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "relay", to, 5000, &result, &err),
                     TETHER_OK);
    int left = atoi(tether_value_str(result));
    assert_in_range(left, 1, 5000); /* not the 60 s that a call has by default */
    tether_value_release(result);
    tether_value_release(to);
}

static void blocking_call_fails_inside_an_inline_function(void **state)
{
    struct tether_test_world *w = two(state);
    tether_value *to = text("w0");
    tether_error err = {0};
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "block_inline", to, 5000, NULL, &err),
                     TETHER_EDEADLK);
    assert_non_null(strstr(err.message, "tether_rpc_async"));
    tether_value_release(to);
}

static void workers_lists_all_members(void **state)
{
    struct tether_test_world *w = two(state);
    tether_worker *workers = NULL, worker;
    size_t n = 0;
    tether_error err = {0};
    assert_int_equal(tether_agent_workers(w->agents[0], &workers, &n, &err), TETHER_OK);
    assert_int_equal(n, 2);
    assert_string_equal(workers[0].name, "w0");
    assert_string_equal(workers[1].name, "w1");
    tether_workers_free(workers);
    assert_int_equal(tether_agent_worker(w->agents[1], "w0", &worker, &err), TETHER_OK);
    assert_int_equal(worker.id, tether_agent_id(w->agents[0]));
    assert_int_equal(tether_agent_worker_by_id(w->agents[1], worker.id, &worker, &err), TETHER_OK);
    assert_string_equal(worker.name, "w0");
    assert_int_equal(tether_agent_worker(w->agents[1], "w9", &worker, &err), TETHER_ENOTFOUND);
}

static void calls_fail_after_shutdown(void **state)
{
    struct tether_test_world *w = two(state);
    tether_error err = {0};
    call_ok(w->agents[0], "w1", "echo", "before", "before");
    assert_int_equal(tether_agent_shutdown(w->agents[0], true, &err), TETHER_OK);
    assert_int_equal(tether_agent_shutdown(w->agents[0], true, &err), TETHER_OK);
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "echo", NULL, 1000, NULL, &err),
                     TETHER_ESHUTDOWN);
    tether_future *future = tether_rpc_async(w->agents[0], "w1", "echo", NULL, 1000);
    assert_int_equal(tether_future_wait(future, 1000, NULL, &err), TETHER_ESHUTDOWN);
    tether_future_release(future);
}

static void calls_fail_when_the_callee_has_left(void **state)
{
    struct tether_test_world *w = two(state);
    tether_error err = {0};
    tether_future *future = tether_rpc_async(w->agents[0], "w1", "hold", NULL, 60000);
    assert_true(tether_test_world_wait(w, is_held, w));
    assert_int_equal(tether_agent_shutdown(w->agents[1], false, &err), TETHER_OK);
    assert_int_equal(tether_future_wait(future, 10000, NULL, &err), TETHER_EUNAVAILABLE);
    assert_non_null(strstr(err.message, "left the group"));
    tether_future_release(future);
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "echo", NULL, 5000, NULL, &err),
                     TETHER_ENOTFOUND);
}

static void call_reaches_a_restarted_worker(void **state)
{
    struct tether_test_world *w = two(state);
    call_ok(w->agents[0], "w1", "echo", "first", "first");
    if (w->sim)
        tether_sim_kill(w->sim, w->agents[1]);
    tether_agent_release(w->agents[1]);
    tether_test_world_start_one(w, 1, NULL);
    /* A call that was under way to the old one fails; the next reaches the new one. */
    tether_error err = {0};
    tether_status st = tether_rpc_sync(w->agents[0], "w1", "echo", NULL, 10000, NULL, &err);
    assert_true(st == TETHER_OK || st == TETHER_EUNAVAILABLE);
    call_ok(w->agents[0], "w1", "echo", "second", "second");
    call_ok(w->agents[1], "w0", "echo", "third", "third");
}

static bool has_no_calls(void *agent)
{
    return atomic_load(&((tether_agent *)agent)->active_calls) == 0;
}

static void calls_in_flight_are_bounded(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_error err = {0};
    tether_test_world_start(&w, net, 2, TETHER_AGENT_OPTS(.max_calls_per_peer = 1));
    tether_future *first = tether_rpc_async(w.agents[0], "w1", "hold", NULL, 60000);
    tether_future *second = tether_rpc_async(w.agents[0], "w1", "echo", NULL, 60000);
    assert_int_equal(tether_future_wait(second, 0, NULL, &err), TETHER_EBUSY);
    assert_non_null(strstr(err.message, "max_calls_per_peer"));
    /* a synchronous call waits for room until its time is up */
    assert_int_equal(tether_rpc_sync(w.agents[0], "w1", "echo", NULL, 50, NULL, &err),
                     TETHER_EBUSY);
    assert_true(tether_test_world_wait(&w, is_held, &w));
    tether_reply_ok(atomic_exchange(&w.held, NULL), NULL);
    assert_int_equal(tether_future_wait(first, 10000, NULL, &err), TETHER_OK);
    assert_int_equal(tether_rpc_sync(w.agents[0], "w1", "echo", NULL, 10000, NULL, &err),
                     TETHER_OK);
    /* calls that were refused do not count among those that a graceful shutdown waits for */
    assert_true(tether_test_world_wait(&w, has_no_calls, w.agents[0]));
    tether_future_release(first);
    tether_future_release(second);
    tether_test_world_stop(&w);
}

#define TWO(test) cmocka_unit_test_setup_teardown(test, start_two, stop)

int tether_test_agent_suite(enum tether_test_net over)
{
    const struct CMUnitTest tests[] = {
        TWO(call_reaches_worker_by_name),
        TWO(call_reaches_worker_by_id),
        TWO(worker_can_call_itself),
        TWO(error_names_worker_function_and_cause),
        TWO(call_carries_arguments_of_all_sizes),
        TWO(call_fails_when_its_timeout_passes),
        TWO(cancel_of_a_remote_call_reaches_the_callee),
        TWO(cancel_of_a_call_to_oneself_reaches_the_function),
        TWO(async_function_may_reply_later),
        TWO(all_calls_are_answered_when_many_are_in_flight),
        TWO(nested_calls_inherit_the_deadline),
        TWO(blocking_call_fails_inside_an_inline_function),
        TWO(workers_lists_all_members),
        TWO(calls_fail_after_shutdown),
        TWO(calls_fail_when_the_callee_has_left),
        TWO(call_reaches_a_restarted_worker),
        cmocka_unit_test(calls_in_flight_are_bounded),
    };
    char name[64];
    snprintf(name, sizeof name, "agent over %s", tether_test_net_names[over]);
    net = over;
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
