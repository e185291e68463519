/* A function sees its own caller; code that runs on its thread for another call does not. w0 calls,
 * w1 runs the functions. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "rpc/agent.h"
#include "rpc/future.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/world.h"

enum { TIMEOUT_MS = 60000 };

/* The facts about its caller that a piece of code saw. */
struct view {
    bool taken;
    bool has_caller, has_cancelled, has_trace;
    int left_ms;
};

static struct view look(void)
{
    return (struct view){
        .taken = true,
        .has_caller = tether_caller_name() != NULL,
        .has_cancelled = tether_caller_has_cancelled(),
        .has_trace = tether_trace_is_set(tether_trace_current()),
        .left_ms = tether_caller_time_left_ms(),
    };
}

static void sees_no_caller(struct view view)
{
    assert_true(view.taken);
    assert_false(view.has_caller);
    assert_false(view.has_cancelled);
    assert_int_equal(view.left_ms, -1);
}

static struct view before, after, in_callback;
static char argument_after[16];

/* ---- Functions ---- */

static void reply_then_look(void *userdata, const tether_value *arg, tether_reply *reply)
{
    before = look();
    tether_reply_ok(reply, NULL);
    after = look();
    snprintf(argument_after, sizeof argument_after, "%s", tether_value_str(arg));
    /* Its deadline is the default one, not that of the call which has been answered. */
    tether_future_release(tether_rpc_async(userdata, "w1", "echo", NULL, TETHER_DEFAULT_MS));
}

static struct tether_test_event answered, looked;
static _Atomic(tether_reply *) handed_over;

/* Another thread answers while the function still runs. */
static void let_other_thread_reply(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata;
    before = look();
    atomic_store(&handed_over, reply);
    tether_test_event_wait(&answered, 1, TETHER_TEST_LIMIT_MS);
    after = look();
    snprintf(argument_after, sizeof argument_after, "%s", tether_value_str(arg));
    tether_test_event_signal(&looked);
}

static void note_view(tether_future *future, void *userdata)
{
    (void)future, (void)userdata;
    in_callback = look();
}

/* While this function waits for a reply it polls, and so runs the callback of another future. */
static tether_status wait_with_callback(void *userdata,
                                        const tether_value *arg,
                                        tether_value **ret_value,
                                        tether_error *reterr)
{
    tether_agent *agent = userdata;
    (void)arg, (void)ret_value;
    before = look();
    tether_future *future = tether_rpc_async(agent, "w0", "echo", NULL, TIMEOUT_MS);
    tether_future_then(future, note_view, NULL);
    tether_status st = tether_rpc_sync(agent, "w0", "echo", NULL, TIMEOUT_MS, NULL, reterr);
    if (st == TETHER_OK)
        st = tether_future_wait(future, TIMEOUT_MS, NULL, reterr);
    tether_future_release(future);
    after = look();
    return st;
}

static void register_all(tether_agent *agent)
{
    tether_error err = {0};
    tether_agent_register_async(agent, "reply_then_look", reply_then_look, true, agent, &err);
    tether_agent_register_async(agent, "reply_then_look_pooled", reply_then_look, false, agent,
                                &err);
    tether_agent_register_async(agent, "let_other_thread_reply", let_other_thread_reply, false,
                                NULL, &err);
    tether_agent_register(agent, "wait_with_callback", wait_with_callback, agent, &err);
    assert_int_equal(err.code, TETHER_OK);
}

static enum tether_test_net net;

static int start(void **state)
{
    static struct tether_test_world world;
    before = after = in_callback = (struct view){0};
    argument_after[0] = '\0';
    tether_test_event_init(&answered);
    tether_test_event_init(&looked);
    tether_test_world_register = register_all;
    tether_test_world_start(&world, net, 2, NULL);
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    tether_test_world_stop(*state);
    tether_test_event_fini(&answered);
    tether_test_event_fini(&looked);
    return 0;
}

static void call_ok(struct tether_test_world *w, const char *fn)
{
    tether_error err = {0};
    tether_value *arg = NULL;
    assert_int_equal(tether_value_printf(&arg, NULL, "words"), TETHER_OK);
    if (tether_rpc_sync(w->agents[0], "w1", fn, arg, TIMEOUT_MS, NULL, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    tether_value_release(arg);
}

/* ---- Tests ---- */

static void async_function_has_no_caller_when_it_has_replied(void **state)
{
    struct tether_test_world *w = *state;
    static const char *const functions[] = {"reply_then_look", "reply_then_look_pooled"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(functions); i++) {
        call_ok(w, functions[i]);
        tether_agent_shutdown(w->agents[1], true, NULL); /* the function has returned */
        assert_true(before.has_caller);
        assert_true(before.left_ms > 0);
        sees_no_caller(after);
        assert_string_equal(argument_after, "words");
        stop(state);
        start(state);
    }
}

static void async_function_has_no_caller_when_another_thread_has_replied(void **state)
{
    struct tether_test_world *w = *state;
    tether_value *arg = NULL;
    assert_int_equal(tether_value_printf(&arg, NULL, "words"), TETHER_OK);
    tether_future *call =
        tether_rpc_async(w->agents[0], "w1", "let_other_thread_reply", arg, TIMEOUT_MS);
    tether_value_release(arg);
    assert_eventually(atomic_load(&handed_over));
    tether_reply_ok(atomic_exchange(&handed_over, NULL), NULL);
    assert_int_equal(tether_future_wait(call, TIMEOUT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(call);
    tether_test_event_signal(&answered);
    assert_true(tether_test_event_wait(&looked, 1, TETHER_TEST_LIMIT_MS));
    assert_true(before.has_caller);
    sees_no_caller(after);
    assert_string_equal(argument_after, "words"); /* it lives until the function returns */
}

static void callback_has_no_caller_when_it_runs_on_the_thread_of_a_function(void **state)
{
    struct tether_test_world *w = *state;
    tether_trace outer = tether_trace_set(tether_trace_new());
    call_ok(w, "wait_with_callback");
    tether_trace_set(outer);
    sees_no_caller(in_callback);
    assert_true(before.has_caller && after.has_caller); /* the function itself has one throughout */
    assert_true(before.has_trace && after.has_trace);
    assert_true(after.left_ms > 0);
}

#define TWO(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest any_net[] = {
        TWO(async_function_has_no_caller_when_it_has_replied),
        TWO(callback_has_no_caller_when_it_runs_on_the_thread_of_a_function),
    };
    const struct CMUnitTest with_threads[] = {
        TWO(async_function_has_no_caller_when_another_thread_has_replied),
    };
    net = TETHER_TEST_SIM;
    int failed = cmocka_run_group_tests_name("context, simulated", any_net, NULL, NULL);
    net = TETHER_TEST_UNIX;
    failed += cmocka_run_group_tests_name("context, unix", any_net, NULL, NULL);
    return failed + cmocka_run_group_tests_name("context, threads", with_threads, NULL, NULL);
}
