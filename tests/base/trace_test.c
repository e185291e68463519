/* Trace ids: formatted and parsed, one for each thread, and in the log. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/trace_internal.h"
#include "tests/lib/cmocka.h"

#define TEXT "4bf92f3577b34da6a3ce929d0e0e4736"

static void format_and_parse_are_inverse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_one;
    } rows[] = {
        {TEXT, true},
        {"00000000000000000000000000000000", true},
        {"4BF92F3577B34DA6A3CE929D0E0E4736", true},
        {NULL, false},
        {"", false},
        {"4bf92f3577b34da6a3ce929d0e0e473", false},
        {"4bf92f3577b34da6a3ce929d0e0e47361", false},
        {"4bf92f3577b34da6a3ce929d0e0e473g", false},
        {" bf92f3577b34da6a3ce929d0e0e4736", false},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        tether_trace trace = {{77}};
        char text[TETHER_TRACE_TEXT_SIZE];
        assert_int_equal(tether_trace_parse(rows[i].text, &trace), rows[i].is_one);
        tether_trace_format(trace, text);
        if (rows[i].is_one)
            assert_int_equal(strcasecmp(text, rows[i].text), 0);
        else
            assert_string_equal(text, "4d000000000000000000000000000000"); /* as it was */
    }
}

static void traceparent_gives_trace_id(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_one;
    } rows[] = {
        {"00-" TEXT "-00f067aa0ba902b7-01", true},
        {"00-" TEXT "-00f067aa0ba902b7-00", true},
        {"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false},
        {"00-" TEXT "-00F067AA0BA902B7-01", false},
        {"00-" TEXT "-00f067aa0ba902b7-0A", false},
        {"00-" TEXT "-00f067aa0ba902bg-01", false},
        {"00-" TEXT "-0000000000000000-01", false},
        {"00-00000000000000000000000000000000-00f067aa0ba902b7-01", false},
        {"00-" TEXT "_00f067aa0ba902b7-01", false},
        {"00-" TEXT "-00f067aa0ba902b7_01", false},
        {"01-" TEXT "-00f067aa0ba902b7-01", false},
        {"00-" TEXT "-00f067aa0ba902b7-0", false},
        {"00-" TEXT "-00f067aa0ba902b7-011", false},
        {"", false},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        char text[TETHER_TRACE_TEXT_SIZE];
        tether_trace trace = tether__trace_from_parent(rows[i].text, strlen(rows[i].text));
        assert_int_equal(tether_trace_is_set(trace), rows[i].is_one);
        tether_trace_format(trace, text);
        if (rows[i].is_one)
            assert_string_equal(text, TEXT);
    }
}

static void new_trace_ids_differ(void **state)
{
    (void)state;
    tether_trace a = tether_trace_new(), b = tether_trace_new();
    assert_true(tether_trace_is_set(a) && tether_trace_is_set(b));
    assert_memory_not_equal(a.bytes, b.bytes, sizeof a.bytes);
    assert_false(tether_trace_is_set(TETHER_TRACE_NONE));
}

static void *look(void *ret_is_set)
{
    *(bool *)ret_is_set = tether_trace_is_set(tether_trace_current());
    return NULL;
}

static void each_thread_has_its_own_trace_id(void **state)
{
    (void)state;
    tether_trace trace = tether_trace_new();
    assert_false(tether_trace_is_set(tether_trace_set(trace)));
    assert_memory_equal(tether_trace_current().bytes, trace.bytes, sizeof trace.bytes);
    bool is_set = true;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, look, &is_set), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(is_set);
    assert_memory_equal(tether_trace_set(TETHER_TRACE_NONE).bytes, trace.bytes, sizeof trace.bytes);
}

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)level, (void)area;
    snprintf(userdata, 2048, "%s", message);
}

static void log_shows_trace_id(void **state)
{
    (void)state;
    char message_seen[2048], text[2000];
    tether_trace trace;
    assert_true(tether_trace_parse(TEXT, &trace));
    tether_set_log(TETHER_LOG_INFO, on_log, message_seen);
    tether__log(TETHER_LOG_INFO, "rpc", "without");
    assert_string_equal(message_seen, "without");
    tether_trace_set(trace);
    tether__log(TETHER_LOG_INFO, "rpc", "with");
    assert_string_equal(message_seen, "with [trace " TEXT "]");
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    /* A long message is cut, the trace id is not. */
    tether__log(TETHER_LOG_INFO, "rpc", "%s", text);
    assert_non_null(strstr(message_seen, "xx [trace " TEXT "]"));
    tether_trace_set(TETHER_TRACE_NONE);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(format_and_parse_are_inverse),
        cmocka_unit_test(traceparent_gives_trace_id),
        cmocka_unit_test(new_trace_ids_differ),
        cmocka_unit_test(each_thread_has_its_own_trace_id),
        cmocka_unit_test(log_shows_trace_id),
    };
    return cmocka_run_group_tests_name("traces", tests, NULL, NULL);
}
