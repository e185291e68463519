/* Checks that the defaults in docs/operations.md are those of the code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/store/tcp/wire/wire.h"
#include "rendezvous/store_tcp.h"
#include "rpc/agent/internal.h"
#include "rpc/call/budget.h"
#include "rpc/serve/registry.h"
#include "tests/lib/cmocka.h"
#include "tools/run/options/options.h"

static char *document;
static char cells[4][256]; /* of the row that find_row() found last */

static int read_document(void **state)
{
    (void)state;
    FILE *file = fopen("docs/operations.md", "re");
    assert_non_null(file);
    document = calloc(1, 1 << 20);
    assert_true(fread(document, 1, (1 << 20) - 1, file) > 1000);
    fclose(file);
    return 0;
}

static int free_document(void **state)
{
    (void)state;
    free(document);
    return 0;
}

/* Finds the row of a table whose first cell begins with `first`. */
static void find_row(const char *first)
{
    char begin[300];
    snprintf(begin, sizeof begin, "\n| %s", first);
    const char *at = strstr(document, begin);
    if (!at)
        fail_msg("no row of operations.md begins with '%s'", first);
    at += 3;
    memset(cells, 0, sizeof cells);
    for (size_t i = 0; i < 4 && *at && *at != '\n'; i++) {
        const char *end = strstr(at, " | "), *line_end = strchr(at, '\n');
        if (!end || end > line_end)
            end = line_end - 2;
        snprintf(cells[i], sizeof cells[i], "%.*s", (int)(end - at), at);
        at = end + 3;
    }
}

static void check_row(const char *first, const char *expected)
{
    find_row(first);
    if (strcmp(cells[1], expected) != 0)
        fail_msg("operations.md says '%s' for '%s', the code has '%s'", cells[1], first, expected);
}

static void check_row_seconds(const char *first, int64_t ms)
{
    char text[64];
    assert_int_equal(ms % 1000, 0);
    snprintf(text, sizeof text, "%lld s", (long long)ms / 1000);
    check_row(first, text);
}

/* Compares with `n`, written with a comma between thousands. */
static void check_row_number(const char *first, int64_t n)
{
    char text[64];
    snprintf(text, sizeof text, n < 1000 ? "%lld" : "%lld,%03lld",
             (long long)(n < 1000 ? n : n / 1000), (long long)n % 1000);
    check_row(first, text);
}

static void check_row_bytes(const char *first, uint64_t n)
{
    char text[64];
    bool large = n >= (uint64_t)1 << 30;
    snprintf(text, sizeof text, "%llu %s", (unsigned long long)(n >> (large ? 30 : 20)),
             large ? "GiB" : "MiB");
    check_row(first, text);
}

static void row_begins(const char *first, const char *format, int n)
{
    char text[64];
    snprintf(text, sizeof text, format, n);
    find_row(first);
    if (strncmp(cells[1], text, strlen(text)) != 0)
        fail_msg("operations.md says '%s' for '%s', the code has '%s'", cells[1], first, text);
}

static void defaults_of_the_agent_are_as_documented(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    assert_int_equal(tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .store = store), &agent, NULL),
                     TETHER_OK);
    const struct tether_agent_opts *opts = &agent->opts;
    check_row_seconds("a call, a fetch, the creation of a reference", opts->timeout_ms);
    check_row_seconds("`tether_agent_start()`", opts->start_timeout_ms);
    check_row_seconds("each of a worker's own steps", opts->shutdown_timeout_ms);
    check_row_seconds("silence after which a peer", opts->lease_ms);
    check_row_bytes("one call or reply", opts->max_message_bytes);
    check_row_number("calls in flight to one peer", opts->max_calls_per_peer);
    check_row_bytes("bytes not yet acknowledged", opts->max_bytes_per_peer);
    check_row_number("calls of one peer that wait here", opts->max_calls_per_peer);
    check_row_bytes("bytes of their arguments", opts->max_bytes_per_peer);
    check_row_number("calls that wait for a thread", opts->max_queued);
    check_row_number("threads for pooled functions", opts->threads);
    row_begins("a worker's name", "%d characters", TETHER_MAX_WORKER_NAME);
    row_begins("a function's name", "%d characters", TETHER__MAX_FUNCTION_NAME);
    find_row("retries to one peer");
    char text[96];
    snprintf(text, sizeof text, "%d, a %s of the calls, and one in %lld s",
             TETHER__BUDGET_FULL / TETHER__BUDGET_RETRY,
             TETHER__BUDGET_RETRY / TETHER__BUDGET_EARNED == 10 ? "tenth" : "?",
             (long long)(TETHER__BUDGET_RETRY * TETHER__BUDGET_TRICKLE_NS / TETHER__NS_PER_S));
    assert_string_equal(cells[1], text);
    tether_agent_release(agent);

    /* No public constant has the limit of a group's name, so try names of both lengths. */
    char name[202];
    int longest = 0;
    for (int len = 190; len <= 201; len++) {
        memset(name, 'x', (size_t)len);
        name[len] = '\0';
        agent = NULL;
        if (tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .group = name, .store = store), &agent,
                             NULL) == TETHER_OK)
            longest = len;
        tether_agent_release(agent);
    }
    row_begins("a group's name", "%d characters", longest);
    tether_store_release(store);
}

static void defaults_of_stores_are_as_documented(void **state)
{
    (void)state;
    char text[64];
    check_row_seconds("a store's operation", TETHER_STORE_DEFAULT_TIMEOUT_MS);
    snprintf(text, sizeof text, "127.0.0.1:%d", TETHER_STORE_TCP_DEFAULT_PORT);
    check_row("`tether-store`", text);
    struct tether_store_limits limits = tether__store_wire_limits((struct tether_store_limits){0});
    check_row_bytes("a store's value", limits.max_value);
    check_row_bytes("all that a TCP store keeps", limits.max_kept);
}

static void defaults_of_the_launcher_are_as_documented(void **state)
{
    (void)state;
    char *argv[] = {(char *)"tether-run", (char *)"true", NULL}, text[64];
    struct run_options options;
    tether_error err = {0};
    if (run_options_parse(2, argv, &options, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    check_row_seconds("`tether-run`: all nodes are there", options.join_timeout_ms);
    check_row_seconds("`tether-run`: more may come", options.last_call_ms);
    check_row_seconds("`tether-run`: SIGTERM to SIGKILL", options.stop_timeout_ms);
    snprintf(text, sizeof text, "%d × %d s", options.heartbeat_attempts,
             options.heartbeat_ms / 1000);
    check_row("`tether-run`: a node is lost", text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_of_the_agent_are_as_documented),
        cmocka_unit_test(defaults_of_stores_are_as_documented),
        cmocka_unit_test(defaults_of_the_launcher_are_as_documented),
    };
    return cmocka_run_group_tests(tests, read_document, free_document);
}
