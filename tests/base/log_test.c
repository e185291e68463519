/* Log messages: dropped by default, sent to a hook, or to standard error as TETHER_LOG asks.
 *
 * The library reads the environment once per process, so each case runs in its own process.
 */
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log_limit.h"
#include "tests/lib/child.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"

static void level_parse_reads_names(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tether_log_level level;
    } cases[] = {
        {"none", TETHER_LOG_NONE},   {"error", TETHER_LOG_ERROR}, {"warn", TETHER_LOG_WARN},
        {"info", TETHER_LOG_INFO},   {"debug", TETHER_LOG_DEBUG}, {"trace", TETHER_LOG_TRACE},
        {"chatty", TETHER_LOG_NONE}, {"", TETHER_LOG_NONE},       {"DEBUG", TETHER_LOG_NONE},
        {NULL, TETHER_LOG_NONE},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(cases); i++)
        assert_int_equal(tether_log_level_parse(cases[i].text), cases[i].level);
}

struct heard {
    int count;
    tether_log_level level;
    char area[16];
    char message[2048];
};

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    struct heard *heard = userdata;
    heard->count++;
    heard->level = level;
    snprintf(heard->area, sizeof heard->area, "%s", area);
    snprintf(heard->message, sizeof heard->message, "%s", message);
}

static void hook_gets_messages_up_to_its_level(void **state)
{
    (void)state;
    struct heard heard = {0};
    tether_set_log(TETHER_LOG_INFO, on_log, &heard);
    tether__log(TETHER_LOG_DEBUG, "rpc", "too fine");
    assert_int_equal(heard.count, 0);
    tether__log(TETHER_LOG_INFO, "rpc", "worker %d of %d", 1, 2);
    assert_int_equal(heard.count, 1);
    assert_int_equal(heard.level, TETHER_LOG_INFO);
    assert_string_equal(heard.area, "rpc");
    assert_string_equal(heard.message, "worker 1 of 2");
    tether_set_log(TETHER_LOG_NONE, on_log, &heard);
    tether__log(TETHER_LOG_ERROR, "rpc", "unheard");
    assert_int_equal(heard.count, 1);
}

static void long_message_is_cut(void **state)
{
    (void)state;
    struct heard heard = {0};
    char text[4000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    tether_set_log(TETHER_LOG_INFO, on_log, &heard);
    tether__log(TETHER_LOG_INFO, "rpc", "%s", text);
    assert_in_range(strlen(heard.message), 500, 1023);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
}

TETHER_PROC_ROLE(speaker)
{
    tether__log(TETHER_LOG_WARN, "store", "key %s", "k");
    tether__log(TETHER_LOG_TRACE, "store", "very fine");
}

/* Asserts that a line begins with a time like "2026-01-31T23:59:59.123Z", whose Z is at `z`. */
static void expect_time(const char *z)
{
    static const char shape[] = "dddd-dd-ddTdd:dd:dd.ddd";
    const char *start = z - strlen(shape);
    for (size_t i = 0; shape[i]; i++)
        assert_true(shape[i] == 'd' ? start[i] >= '0' && start[i] <= '9' : start[i] == shape[i]);
    assert_true(start[0] == '2' && start[-1] == '\n');
}

/* Control characters of a peer must not forge log lines. */
static void message_is_one_line_without_control_characters(void **state)
{
    (void)state;
    struct heard heard = {0};
    tether_set_log(TETHER_LOG_INFO, on_log, &heard);
    tether__log(TETHER_LOG_INFO, "rpc", "peer says '%s'", "\033[2J\n2026 tether warn: forged\377");
    assert_string_equal(heard.message, "peer says '\\x1b[2J\\n2026 tether warn: forged\\xff'");
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
}

static void environment_sets_level_by_default(void **state)
{
    (void)state;
    static const struct {
        const char *tether_log;
        bool warn, trace;
    } cases[] = {{NULL, false, false},
                 {"error", false, false},
                 {"debug", true, false},
                 {"trace", true, true},
                 {"nonsense", false, false}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(cases); i++) {
        if (cases[i].tether_log)
            setenv("TETHER_LOG", cases[i].tether_log, 1);
        else
            unsetenv("TETHER_LOG");
        struct tether_test_procs *procs = tether_test_procs_start(speaker, .ranks = 1);
        assert_true(tether_test_child_wait(procs->ranks[0], TETHER_TEST_LIMIT_MS));
        char *output = tether_test_child_output(procs->ranks[0]);
        assert_int_equal(strstr(output, "Z tether warn store: key k\n") != NULL, cases[i].warn);
        assert_int_equal(strstr(output, "TETHER_LOG=nonsense is not a log level") != NULL,
                         cases[i].tether_log && strcmp(cases[i].tether_log, "nonsense") == 0);
        if (cases[i].warn)
            expect_time(strstr(output, "Z tether warn store"));
        assert_int_equal(strstr(output, "tether trace store: very fine\n") != NULL, cases[i].trace);
        free(output);
        tether_test_procs_end(procs);
    }
    unsetenv("TETHER_LOG");
}

static void log_limit_passes_one_line_a_minute(void **state)
{
    (void)state;
    struct tether__log_limit limit = {0};
    unsigned left_out = 99;
    const int64_t start = -5 * TETHER__NS_PER_S; /* a clock may start at any value */
    assert_true(tether__log_limit_passes(&limit, start, &left_out));
    assert_int_equal(left_out, 0);
    for (int i = 0; i < 3; i++)
        assert_false(tether__log_limit_passes(&limit, start + i, &left_out));
    assert_false(tether__log_limit_passes(&limit, start + TETHER__LOG_PAUSE_NS - 1, &left_out));
    assert_true(tether__log_limit_passes(&limit, start + TETHER__LOG_PAUSE_NS, &left_out));
    assert_int_equal(left_out, 4);
    assert_true(tether__log_limit_passes(&limit, start + 3 * TETHER__LOG_PAUSE_NS, &left_out));
    assert_int_equal(left_out, 0);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(level_parse_reads_names),
        cmocka_unit_test(hook_gets_messages_up_to_its_level),
        cmocka_unit_test(long_message_is_cut),
        cmocka_unit_test(message_is_one_line_without_control_characters),
        cmocka_unit_test(environment_sets_level_by_default),
        cmocka_unit_test(log_limit_passes_one_line_a_minute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
