/* Hostile text in keys of a store, in names in calls, and in sites, types and errors of a worker.
 * Errors, log, metrics, dumps and tether-inspect must escape it. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "rendezvous/store_tcp.h"
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/locale.h"
#include "tests/tools/launch.h"

/* Text that clears a screen, sets its title, forges a line, ends a string, and is not UTF-8. */
#define EVIL "\033[2J\033]0;owned\a\r\n\"}, \\ tether_forged 1\n\177\302\233\377"
#define SITE EVIL ".c:1"
#define LIMIT 20000

struct stage {
    tether_store_server *server;
    tether_store *store;
    tether_agent *agent, *caller;
    char option[64]; /* "--store=..." */
};

static void ok(tether_status st, const tether_error *err)
{
    if (st != TETHER_OK)
        fail_msg("%s: %s", tether_status_name(st), err->message);
}

/* Fails with a message that did not pass through tether_error_set(). */
static tether_status fail_evilly(void *ud,
                                 const tether_value *arg,
                                 tether_value **ret,
                                 tether_error *err)
{
    (void)ud, (void)arg, (void)ret;
    err->code = TETHER_EREMOTE;
    snprintf(err->message, sizeof err->message, "%s", EVIL);
    return TETHER_EREMOTE;
}

static tether_status make(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)arg;
    return tether_value_printf(ret, err, "thing");
}

static int setup(void **state)
{
    static struct stage s;
    tether_error err = {0};
    ok(tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &s.server, &err), &err);
    int port = tether_store_server_port(s.server);
    snprintf(s.option, sizeof s.option, "--store=127.0.0.1:%d", port);
    ok(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port), &s.store, &err), &err);
    ok(tether_agent_new(TETHER_AGENT_OPTS(.name = "victim", .store = s.store), &s.agent, &err),
       &err);
    ok(tether_agent_register_inline(s.agent, "fail", fail_evilly, NULL, &err), &err);
    ok(tether_agent_register_inline(s.agent, "make", make, NULL, &err), &err);
    ok(tether_agent_start(s.agent, &err), &err);
    ok(tether_agent_new(TETHER_AGENT_OPTS(.name = "caller", .store = s.store), &s.caller, &err),
       &err);
    ok(tether_agent_start(s.caller, &err), &err);
    *state = &s;
    return 0;
}

static int teardown(void **state)
{
    struct stage *s = *state;
    tether_agent_shutdown(s->caller, true, NULL);
    tether_agent_release(s->caller);
    tether_agent_shutdown(s->agent, true, NULL);
    tether_agent_release(s->agent);
    tether_store_release(s->store);
    tether_store_server_release(s->server);
    return 0;
}

/* Asserts that every line of `text` is clean. */
static void expect_clean(const char *text)
{
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        if (!tether__text_is_clean(line, len))
            fail_msg("not clean: %.*s", (int)len, line);
        line += len + (line[len] == '\n');
    }
}

static void expect_clean_error(const tether_error *err)
{
    expect_clean(err->message);
    assert_null(strchr(err->message, '\n'));
}

static int n_logged;

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)level, (void)area;
    n_logged++;
    if (!tether__text_is_clean(message, strlen(message)))
        abort(); /* runs on any thread, where an assert would not end the test */
}

static void names_in_calls_are_checked(void **state)
{
    struct stage *s = *state;
    tether_error err = {0};
    tether_buf before = TETHER_BUF_INIT, after = TETHER_BUF_INIT;
    static const char *const names[] = {EVIL, "a\"b", "a\nb", "a b", "ümlaut"};
    ok(tether_agent_metrics(s->agent, &before), &err);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(names); i++) {
        assert_int_equal(tether_rpc_sync(s->agent, names[i], "f", NULL, LIMIT, NULL, &err),
                         TETHER_EINVAL);
        expect_clean_error(&err);
        tether_rref *rref = tether_remote(s->agent, names[i], "f", NULL, LIMIT);
        assert_int_equal(tether_rref_to_here(rref, LIMIT, NULL, &err), TETHER_EINVAL);
        tether_rref_release(rref);
    }
    ok(tether_agent_metrics(s->agent, &after), &err);
    assert_null(strstr(after.data, "forged"));
    assert_null(strstr(after.data, "a b"));
    tether_buf_fini(&before);
    tether_buf_fini(&after);
}

static void names_of_groups_are_checked(void **state)
{
    struct stage *s = *state;
    static const char *const groups[] = {EVIL, "", "a b", "a\nb", "a\"b"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(groups); i++) {
        tether_agent *agent = NULL;
        tether_error err = {0};
        assert_int_equal(
            tether_agent_new(TETHER_AGENT_OPTS(.name = "w", .store = s->store, .group = groups[i]),
                             &agent, &err),
            TETHER_EINVAL);
        assert_non_null(strstr(err.message, "no name for a group"));
        expect_clean_error(&err);
    }
}

static void errors_and_log_are_escaped(void **state)
{
    struct stage *s = *state;
    tether_error err = {0};
    tether_buf value = TETHER_BUF_INIT;
    tether_set_log(TETHER_LOG_TRACE, on_log, NULL);
    n_logged = 0;
    assert_int_equal(tether_store_get(s->store, EVIL, 0, &value, &err), TETHER_ETIMEOUT);
    expect_clean_error(&err);
    assert_int_equal(tether_rpc_sync(s->agent, "victim", EVIL, NULL, LIMIT, NULL, &err),
                     TETHER_ENOTFOUND);
    expect_clean_error(&err);
    assert_int_equal(tether_rpc_sync(s->caller, "victim", "fail", NULL, LIMIT, NULL, &err),
                     TETHER_EREMOTE);
    expect_clean_error(&err);
    assert_int_equal(tether_rpc_sync(s->caller, "victim", EVIL, NULL, LIMIT, NULL, &err),
                     TETHER_ENOTFOUND);
    expect_clean_error(&err);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    assert_true(n_logged > 0);
    tether_buf_fini(&value);
}

static char *inspect(struct stage *s, const char *how)
{
    struct tether_test_child *child = tether_test_child_start(
        (const char *const[]){"tools/tether-inspect", s->option, how, "--timeout=2000", NULL});
    assert_true(tether_test_child_wait(child, 60000));
    char *output = tether_test_child_output(child);
    tether_test_child_free(child);
    return output;
}

/* The hostile texts are a site in a worker's dump and a key in the store. */
static void dumps_and_inspector_are_escaped(void **state)
{
    struct stage *s = *state;
    tether_error err = {0};
    tether_buf text = TETHER_BUF_INIT;
    tether_value *value = NULL;
    tether_rref *rref = tether_remote_at(s->caller, "victim", "make", NULL, LIMIT, SITE);
    ok(tether_rref_to_here(rref, LIMIT, &value, &err), &err);
    tether_value_release(value);
    for (int json = 0; json < 2; json++) {
        ok(tether_rref_dump(s->agent, json, &text), &err);
        expect_clean(text.data);
        assert_non_null(strstr(text.data, json ? "\\u001b[2J" : "\\x1b[2J"));
        assert_non_null(strstr(text.data, json ? "\\\"}, \\\\ tether_forged" : "\\x0d\\n\"}, \\ "));
    }
    static const char *const ways[] = {"--watch=1", "--tree", "--json", "--dot"};
    for (size_t i = 1; i < TETHER__ARRAY_LEN(ways); i++) {
        char *output = inspect(s, ways[i]);
        expect_clean(output);
        has(output, "victim");
        if (strcmp(ways[i], "--json") == 0)
            has(output, "\\u001b[2J");
        free(output);
    }
    /* Again with a key that looks like a key of a group. */
    ok(tether_store_set(s->store, EVIL "/names", tether_bytes_str("x"), LIMIT, &err), &err);
    static const char *const again[] = {"--timeout=1000", "--tree", "--json", "--dot"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(again); i++) {
        char *output = inspect(s, again[i]);
        expect_clean(output);
        free(output);
    }
    ok(tether_store_delete(s->store, EVIL "/names", LIMIT, NULL, &err), &err);
    tether_buf_fini(&text);
    tether_rref_release(rref);
}

/* Asserts that every sample of a metrics page is a name and a number with a decimal point. */
static void expect_numbers(const char *page)
{
    for (const char *line = page; *line; line += strcspn(line, "\n") + 1) {
        size_t len = strcspn(line, "\n");
        const char *value = memrchr(line, ' ', len);
        if (line[0] == '#')
            continue;
        if (!value || strspn(value + 1, "0123456789.") != (size_t)(line + len - value - 1))
            fail_msg("no number: %.*s", (int)len, line);
    }
}

/* Metrics, dumps and the inspector's JSON in a locale with a decimal comma. */
static void numbers_have_a_point_when_the_locale_has_a_comma(void **state)
{
    struct stage *s = *state;
    tether_error err = {0};
    tether_buf with_point = TETHER_BUF_INIT, with_comma = TETHER_BUF_INIT;
    ok(tether_rpc_sync(s->caller, "victim", "make", NULL, LIMIT, NULL, &err), &err);
    if (!tether_test_use_decimal_comma()) {
        print_message("no locale with a decimal comma can be made here\n");
        skip();
    }
    ok(tether_agent_metrics(s->caller, &with_comma), &err);
    expect_numbers(with_comma.data);
    assert_non_null(strstr(with_comma.data, "le=\"0.000001\""));
    for (int json = 0; json < 2; json++) {
        setlocale(LC_NUMERIC, "comma");
        ok(tether_rref_dump(s->caller, json, &with_comma), &err);
        setlocale(LC_NUMERIC, "C");
        ok(tether_rref_dump(s->caller, json, &with_point), &err);
        assert_string_equal(with_comma.data, with_point.data);
    }
    setenv("LC_ALL", "comma", 1); /* for the programs that this test starts */
    char *output = inspect(s, "--json");
    unsetenv("LC_ALL");
    has(output, "victim");
    expect_clean(output);
    for (const char *comma = strchr(output, ','); comma; comma = strchr(comma + 1, ','))
        assert_false(comma > output && comma[-1] >= '0' && comma[-1] <= '9' && comma[1] >= '0' &&
                     comma[1] <= '9');
    free(output);
    tether_buf_fini(&with_point);
    tether_buf_fini(&with_comma);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_in_calls_are_checked),
        cmocka_unit_test(names_of_groups_are_checked),
        cmocka_unit_test(errors_and_log_are_escaped),
        cmocka_unit_test(dumps_and_inspector_are_escaped),
        cmocka_unit_test(numbers_have_a_point_when_the_locale_has_a_comma),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
