/* tether-store as a process: options, output and exit code. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/macros.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/child.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define MAX_ARGS 8

static struct tether_test_child *start_argv(const char *const *args)
{
    const char *argv[MAX_ARGS + 2] = {"tools/tether-store"};
    for (int i = 0; args[i]; i++) {
        assert_true(i < MAX_ARGS);
        argv[i + 1] = args[i];
    }
    return tether_test_child_start(argv);
}
#define START(...) start_argv((const char *const[]){__VA_ARGS__, NULL})

static bool says(struct tether_test_child *child, const char *text)
{
    char *output = tether_test_child_output(child);
    bool found = strstr(output, text) != NULL;
    free(output);
    return found;
}

/* Waits for the ready line and returns its port; 0 when it has none. */
static int await_ready(struct tether_test_child *child)
{
    int port = 0;
    for (int tries = 0; !says(child, "\n"); tries++)
        if (tether_test_child_wait(child, 1) || !tether_test_nap(tries)) {
            char *output = tether_test_child_output(child);
            fail_msg("it did not get ready: %s", output);
        }
    char *output = tether_test_child_output(child);
    const char *at = strstr(output, "tether-store ready:");
    assert_ptr_equal(at, output);
    sscanf(at, "tether-store ready: port %d", &port);
    free(output);
    return port;
}

static void expect_exit(struct tether_test_child *child, int code, const char *text)
{
    assert_true(tether_test_child_wait(child, LIMIT));
    char fate[32];
    snprintf(fate, sizeof fate, "exit code %d", code);
    if (code == 0)
        assert_true(tether_test_child_ok(child));
    else
        assert_string_equal(tether_test_child_result(child), fate);
    char *output = tether_test_child_output(child);
    if (!strstr(output, text))
        fail_msg("'%s' is not in: %s", text, output);
    free(output);
    tether_test_child_free(child);
}

static tether_store *dial(const char *host, int port)
{
    tether_store *store = NULL;
    tether_error error = {0};
    if (tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = host, .port = port, .timeout_ms = LIMIT),
                             &store, &error) != TETHER_OK)
        fail_msg("%s", error.message);
    return store;
}

static void use(tether_store *store)
{
    tether_buf value = TETHER_BUF_INIT;
    assert_int_equal(tether_store_set(store, "k", tether_bytes_str("v"), LIMIT, NULL), TETHER_OK);
    assert_int_equal(tether_store_get(store, "k", LIMIT, &value, NULL), TETHER_OK);
    assert_string_equal(value.data, "v");
    tether_buf_fini(&value);
}

static void store_serves_until_a_signal(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(signals); i++) {
        struct tether_test_child *child = START("--listen=127.0.0.1:0");
        int port = await_ready(child);
        assert_in_range(port, 1, 65535);
        tether_store *store = dial("127.0.0.1", port);
        use(store);
        kill(child->pid, signals[i]);
        expect_exit(child, 0, "ready");
        int64_t number;
        assert_int_equal(tether_store_num_keys(store, LIMIT, &number, NULL), TETHER_EUNAVAILABLE);
        tether_store_release(store);
    }
}

static void store_serves_at_a_unix_socket(void **state)
{
    (void)state;
    char path[64], option[80], host[80];
    snprintf(path, sizeof path, "store_test.%d", (int)getpid());
    snprintf(option, sizeof option, "--unix=%s", path);
    snprintf(host, sizeof host, "unix:%s", path);

    struct tether_test_child *child = START(option);
    assert_int_equal(await_ready(child), 0);
    assert_true(says(child, path));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    tether_store *store = dial(host, 0);
    use(store);
    tether_store_release(store);
    expect_exit(START(option), 1, "Address already in use"); /* the first server listens there */
    tether_test_signal_pid(child->pid, SIGKILL);
    tether_test_child_free(child);

    assert_int_equal(stat(path, &info), 0); /* left behind by SIGKILL; the next start replaces it */
    child = START(option, "--listen=127.0.0.1:0");
    int port = await_ready(child);
    store = dial("127.0.0.1", port);
    use(store);
    tether_store_release(store);
    store = dial(host, 0);
    use(store);
    tether_store_release(store);
    kill(child->pid, SIGTERM);
    expect_exit(child, 0, "ready");
    assert_int_equal(stat(path, &info), -1); /* cleaned up */
    assert_int_equal(errno, ENOENT);
}

static void store_prints_figures(void **state)
{
    (void)state;
    struct tether_test_child *child = START("--listen=127.0.0.1:0", "--stats=3600");
    tether_store *store = dial("127.0.0.1", await_ready(child));
    use(store);
    kill(child->pid, SIGUSR1);
    assert_eventually(says(child, "clients 1, waiting 0, keys 1,"));
    tether_store_release(store);
    kill(child->pid, SIGTERM);
    expect_exit(child, 0, "accepted 1, refused 0, malformed 0, stalled 0, silent 0\n");

    child = START("--listen=127.0.0.1:0", "--stats=1");
    await_ready(child);
    assert_eventually(says(child, "clients 0,"));
    tether_test_child_free(child);
}

static void store_refuses_clients_beyond_max_clients(void **state)
{
    (void)state;
    struct tether_test_child *child = START("--listen=127.0.0.1:0", "--max-clients=1");
    int port = await_ready(child);
    tether_store *store = dial("127.0.0.1", port), *second = NULL;
    tether_error error = {0};
    assert_int_equal(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port, .timeout_ms = 300),
                                          &second, &error),
                     TETHER_ETIMEOUT);
    use(store);
    tether_store_release(store);
    tether_store_release(dial("127.0.0.1", port)); /* the first client has gone */
    tether_test_child_free(child);
}

static void store_checks_its_options(void **state)
{
    (void)state;
    expect_exit(START("--help"), 0, "--insecure");
    expect_exit(START("--version"), 0, "tether-store ");
    expect_exit(START("--listen=0.0.0.0:0"), 1, "give --insecure if you trust");
    expect_exit(START("--listen=nohost.invalid:0"), 1, "nohost.invalid");
    static const char *const wrong[] = {"--listen=",
                                        "--listen=127.0.0.1:x",
                                        "--listen=127.0.0.1:65536",
                                        "--listen=::1:5",
                                        "--listen=[::1",
                                        "--max-clients=0",
                                        "--max-clients=x",
                                        "--max-value=0",
                                        "--max-value=1T",
                                        "--max-value=-1",
                                        "--max-buffered=x",
                                        "--max-kept=0",
                                        "--legacy=l2",
                                        "--stall-timeout=-1",
                                        "--stats=0",
                                        "--nonsense",
                                        "argument"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(wrong); i++)
        expect_exit(START(wrong[i]), 2, "--help");
}

static void store_binds_to_the_address_in_listen(void **state)
{
    (void)state;
    struct tether_test_child *child = START("--listen=0.0.0.0:0", "--insecure");
    tether_store *store = dial("127.0.0.1", await_ready(child));
    use(store);
    tether_store_release(store);
    tether_test_child_free(child);

    child = START("--listen=localhost:0", "--max-value=1K", "--legacy=l1", "--stall-timeout=5");
    int port = await_ready(child);
    store = dial("localhost", port);
    char large[1025] = "";
    assert_int_equal(tether_store_set(store, "k", tether_bytes_of(large, 1024), LIMIT, NULL),
                     TETHER_OK);
    assert_int_equal(tether_store_set(store, "k", tether_bytes_of(large, 1025), LIMIT, NULL),
                     TETHER_ETOOBIG); /* the client knows the limits of its server */
    char option[64];
    snprintf(option, sizeof option, "--listen=localhost:%d", port);
    expect_exit(START(option), 1, "The server socket has failed to listen on any local network");
    tether_store_release(store);
    tether_test_child_free(child);
}

static void store_refuses_changes_when_max_kept_is_reached(void **state)
{
    (void)state;
    struct tether_test_child *child = START("--listen=127.0.0.1:0", "--max-kept=10K");
    tether_store *store = dial("127.0.0.1", await_ready(child));
    char value[8 << 10] = "";
    tether_error error = {0};
    assert_int_equal(
        tether_store_set(store, "a", tether_bytes_of(value, sizeof value), LIMIT, NULL), TETHER_OK);
    assert_int_equal(
        tether_store_set(store, "b", tether_bytes_of(value, sizeof value), LIMIT, &error),
        TETHER_ETOOBIG);
    if (!strstr(error.message, "--max-kept"))
        fail_msg("%s", error.message);
    tether_store_release(store);
    tether_test_child_free(child);
}

static bool has(tether_store *store, const char *key)
{
    bool ready = false;
    assert_int_equal(tether_store_check(store, &key, 1, LIMIT, &ready, NULL), TETHER_OK);
    return ready;
}

/* The store has nothing to log yet, and the user waits for a log. */
static void store_reports_unknown_log_level_at_once(void **state)
{
    (void)state;
    setenv("TETHER_LOG", "loud", 1);
    struct tether_test_child *child = START("--listen=127.0.0.1:0");
    unsetenv("TETHER_LOG");
    for (int tries = 0; !says(child, "tether-store ready: "); tries++)
        assert_true(!tether_test_child_wait(child, 1) && tether_test_nap(tries));
    assert_true(says(child, "TETHER_LOG=loud is not a log level"));
    tether_test_child_free(child);
}

static void drop_job_deletes_the_keys_of_that_job_only(void **state)
{
    (void)state;
    static const char *const own[] = {"tether.rendezvous.a",
                                      "tether.rendezvous.a/head",
                                      "tether.rendezvous.a.0/MASTER_PORT",
                                      "tether.workers.a.17/group/w0",
                                      "torch.rendezvous.a",
                                      "torch.rendezvous.a.3/x"};
    static const char *const others[] = {
        "tether.rendezvous.ab",     "tether.rendezvous.a.b",
        "tether.rendezvous.a.0b/x", "a",
        "tether.workers.b.0/a",     "tether.rendezvous.b/tether.rendezvous.a",
        "tether.rendezvous."};
    struct tether_test_child *child = START("--listen=127.0.0.1:0");
    int port = await_ready(child);
    tether_store *store = dial("127.0.0.1", port);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(own); i++)
        tether_store_set(store, own[i], tether_bytes_str(""), LIMIT, NULL);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(others); i++)
        tether_store_set(store, others[i], tether_bytes_str(""), LIMIT, NULL);
    const char *queue = "tether.rendezvous.a/queue"; /* is not listed, so it stays */
    int64_t len = 0;
    assert_int_equal(tether_store_queue_push(store, queue, tether_bytes_str("x"), LIMIT, NULL),
                     TETHER_OK);
    char at[64];
    snprintf(at, sizeof at, "--listen=127.0.0.1:%d", port);
    expect_exit(START("--drop-job=a", at), 0, "deleted 6 keys of job 'a'");
    for (size_t i = 0; i < TETHER__ARRAY_LEN(own); i++)
        assert_false(has(store, own[i]));
    for (size_t i = 0; i < TETHER__ARRAY_LEN(others); i++)
        assert_true(has(store, others[i]));
    assert_int_equal(tether_store_queue_len(store, queue, LIMIT, &len, NULL), TETHER_OK);
    assert_int_equal(len, 1);
    expect_exit(START("--drop-job=a", at), 0, "deleted 0 keys of job 'a'");
    expect_exit(START("--drop-job=", at), 2, "--help");
    tether_store_release(store);
    tether_test_child_free(child);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store_serves_until_a_signal),
        cmocka_unit_test(store_serves_at_a_unix_socket),
        cmocka_unit_test(store_prints_figures),
        cmocka_unit_test(store_refuses_clients_beyond_max_clients),
        cmocka_unit_test(store_checks_its_options),
        cmocka_unit_test(store_binds_to_the_address_in_listen),
        cmocka_unit_test(store_reports_unknown_log_level_at_once),
        cmocka_unit_test(drop_job_deletes_the_keys_of_that_job_only),
        cmocka_unit_test(store_refuses_changes_when_max_kept_is_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
