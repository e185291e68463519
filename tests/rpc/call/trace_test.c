/* Trace ids pass on to nested calls and callbacks, and show in the log; over the simulated network
 * and over gRPC. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/world.h"

#define TEXT "4bf92f3577b34da6a3ce929d0e0e4736"
#define NONE "00000000000000000000000000000000"

/* ---- Functions ---- */

/* Gives the trace id that it runs with. */
static tether_status trace(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)userdata, (void)arg;
    char text[TETHER_TRACE_TEXT_SIZE];
    tether_trace_format(tether_trace_current(), text);
    return tether_value_printf(ret_value, reterr, "%s", text);
}

/* Calls "trace" on the worker that its argument names. */
static tether_status pass_on(void *userdata,
                             const tether_value *arg,
                             tether_value **ret_value,
                             tether_error *reterr)
{
    return tether_rpc_sync(userdata, tether_value_str(arg), "trace", NULL, TETHER_DEFAULT_MS,
                           ret_value, reterr);
}

/* Answers with the trace id of its reply handle. */
static void trace_async(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    tether_value *value = NULL;
    char text[TETHER_TRACE_TEXT_SIZE];
    tether_trace_format(tether_reply_trace(reply), text);
    assert_int_equal(tether_value_printf(&value, NULL, "%s", text), TETHER_OK);
    tether_reply_ok(reply, value);
    tether_value_release(value);
}

static void register_all(tether_agent *agent)
{
    tether_error err = {0};
    assert_int_equal(tether_agent_register_inline(agent, "trace", trace, NULL, &err), TETHER_OK);
    assert_int_equal(tether_agent_register(agent, "trace_pooled", trace, NULL, &err), TETHER_OK);
    assert_int_equal(tether_agent_register(agent, "pass_on", pass_on, agent, &err), TETHER_OK);
    assert_int_equal(
        tether_agent_register_async(agent, "trace_async", trace_async, true, NULL, &err),
        TETHER_OK);
}

/* ---- The log ---- */

static struct {
    pthread_mutex_t mu;
    char lines[65536]; /* under mu */
} heard = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)level, (void)area;
    pthread_mutex_lock(&heard.mu);
    size_t len = strlen(heard.lines);
    snprintf(heard.lines + len, sizeof heard.lines - len, "%s\n", message);
    pthread_mutex_unlock(&heard.mu);
}

static void assert_heard(const char *line)
{
    pthread_mutex_lock(&heard.mu);
    bool found = strstr(heard.lines, line);
    pthread_mutex_unlock(&heard.mu);
    if (!found)
        fail_msg("nobody said '%s'", line);
}

/* ---- Tests ---- */

static int start(void **state, enum tether_test_net net)
{
    static struct tether_test_world world;
    heard.lines[0] = '\0';
    tether_test_world_start(&world, net, 3, NULL);
    *state = &world;
    return 0;
}

static int start_simulated(void **state)
{
    return start(state, TETHER_TEST_SIM);
}

static int start_grpc(void **state)
{
    return start(state, TETHER_TEST_GRPC);
}

static int stop(void **state)
{
    tether_test_world_stop(*state);
    return 0;
}

static void trace_id_passes_on_to_nested_calls(void **state)
{
    struct tether_test_world *w = *state;
    static const struct {
        const char *to, *fn, *arg;
    } rows[] = {
        {"w1", "trace", ""},     {"w1", "trace_pooled", ""}, {"w1", "trace_async", ""},
        {"w0", "trace", ""},     {"w0", "trace_pooled", ""}, {"w0", "trace_async", ""},
        {"w1", "pass_on", "w2"}, {"w1", "pass_on", "w1"},
    };
    tether_trace given;
    assert_true(tether_trace_parse(TEXT, &given));
    for (size_t i = 0; i < 3 * TETHER__ARRAY_LEN(rows); i++) {
        size_t row = i / 3;
        tether_error err = {0};
        tether_value *value = NULL, *arg = NULL;
        assert_int_equal(tether_value_printf(&arg, &err, "%s", rows[row].arg), TETHER_OK);
        /* once without, once as an option, once as the thread's */
        const struct tether_call_opts *opts = TETHER_CALL_OPTS(.trace = given);
        tether_trace_set(i % 3 == 2 ? given : TETHER_TRACE_NONE);
        tether_status st = tether_rpc_sync_with(w->agents[0], rows[row].to, rows[row].fn, arg,
                                                i % 3 == 1 ? opts : NULL, &value, &err);
        if (st != TETHER_OK)
            fail_msg("%s: %s", rows[row].fn, err.message);
        if (strcmp(tether_value_str(value), i % 3 ? TEXT : NONE) != 0)
            fail_msg("%s on %s, %zu: %s", rows[row].fn, rows[row].to, i % 3,
                     tether_value_str(value));
        assert_int_equal(tether_trace_is_set(tether_trace_set(TETHER_TRACE_NONE)), i % 3 == 2);
        tether_value_release(value);
        tether_value_release(arg);
    }
    assert_heard("w1: 'trace' runs for 'w0' [trace " TEXT "]");
    assert_heard("w2: 'trace' runs for 'w1' [trace " TEXT "]");
    assert_heard("w1: 'trace' runs for 'w0'\n");
}

/* The trace that a callback of a future sees. */
struct seen {
    tether_trace trace;
    _Atomic bool done;
};

static void note_trace(tether_future *future, void *userdata)
{
    (void)future;
    struct seen *seen = userdata;
    seen->trace = tether_trace_current();
    atomic_store(&seen->done, true);
}

static bool is_done(void *seen)
{
    return atomic_load(&((struct seen *)seen)->done);
}

/* The thread that waits for one call runs the callbacks of others: each has its own trace. */
static void callback_has_the_trace_id_of_its_call(void **state)
{
    struct tether_test_world *w = *state;
    tether_trace given = tether_trace_new();
    struct seen seen[2] = {{.trace = given}, {.trace = TETHER_TRACE_NONE}};
    const struct tether_call_opts *opts[] = {NULL, TETHER_CALL_OPTS(.trace = given)};
    for (int i = 0; i < 2; i++) {
        tether_future *future = tether_rpc_async_with(w->agents[0], "w1", "echo", NULL, opts[i]);
        tether_future_then(future, note_trace, &seen[i]);
        tether_future_release(future);
    }
    assert_int_equal(
        tether_rpc_sync_with(w->agents[0], "w1", "echo", NULL,
                             TETHER_CALL_OPTS(.trace = tether_trace_new()), NULL, NULL),
        TETHER_OK);
    for (int i = 0; i < 2; i++)
        assert_true(tether_test_world_wait(w, is_done, &seen[i]));
    assert_false(tether_trace_is_set(seen[0].trace));
    assert_memory_equal(seen[1].trace.bytes, given.bytes, sizeof given.bytes);
}

static void failed_call_is_logged_with_its_trace_id(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_trace given;
    assert_true(tether_trace_parse(TEXT, &given));
    assert_int_equal(
        tether_rpc_sync_with(w->agents[0], "w1", "fail", NULL,
                             TETHER_CALL_OPTS(.trace = given, .timeout_ms = 60000), NULL, &err),
        TETHER_EINVAL);
    assert_heard("w0: 'fail' on 'w1' failed: worker 'w1', function 'fail': no good [trace " TEXT
                 "]");
    assert_int_equal(
        tether_rpc_sync_with(w->agents[0], "w1", "hold", NULL,
                             TETHER_CALL_OPTS(.trace = given, .timeout_ms = 20), NULL, &err),
        TETHER_ETIMEOUT);
    assert_heard("w0: 'hold' on 'w1' failed: calling 'hold' on worker 'w1' timed out after ");
    assert_heard("busy or stuck, or raise timeout_ms [trace " TEXT "]");
}

int main(void)
{
    tether_set_log(TETHER_LOG_TRACE, on_log, NULL);
    tether_test_world_register = register_all;
#define BOTH(test)                                                \
    cmocka_unit_test_setup_teardown(test, start_simulated, stop), \
        cmocka_unit_test_setup_teardown(test, start_grpc, stop)
    const struct CMUnitTest tests[] = {
        BOTH(trace_id_passes_on_to_nested_calls),
        BOTH(callback_has_the_trace_id_of_its_call),
        BOTH(failed_call_is_logged_with_its_trace_id),
    };
    return cmocka_run_group_tests_name("traces of calls", tests, NULL, NULL);
}
