/* The TCP store: addresses of all kinds, and servers that start late, end or hang. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/port.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/served.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* ---- Addresses ------------------------------------------------------------------------------ */

static void server_and_client_use_ipv6(void **state)
{
    (void)state;
    if (!tether_test_has_ipv6())
        skip();
    static const char *const hosts[] = {"::1", "[::1]"};
    for (int i = 0; i < 2; i++) {
        tether_store *store = NULL, *other = NULL;
        assert_ok(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = hosts[i], .is_host = true),
                                       &store, err));
        other = store_dial(hosts[1 - i], tether_store_tcp_port(store));
        SET("k", "v");
        suite_expect(other, "k", "v");
        char text[64];
        snprintf(text, sizeof text, "tcp store [::1]:%d", tether_store_tcp_port(store));
        assert_string_equal(tether_store_describe(store), text);
        tether_store_release(other);
        tether_store_release(store);
    }
}

/* The server binds to all addresses of a name, so that it does not matter to which one a client
 * resolves it. */
static void localhost_binds_all_loopback_addresses(void **state)
{
    (void)state;
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = "localhost", .is_host = true),
                                   &store, err));
    int port = tether_store_tcp_port(store);
    SET("k", "v");
    tether_store *other = store_dial("127.0.0.1", port);
    suite_expect(other, "k", "v");
    tether_store_release(other);
    other = store_dial("localhost", port);
    suite_expect(other, "k", "v");
    tether_store_release(other);
    tether_store_release(store);
}

static void bind_beyond_loopback_needs_insecure(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error error = {0};
    assert_status(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = "0.0.0.0", .is_host = true),
                                       &store, &error),
                  TETHER_EPERM);
    assert_non_null(strstr(error.message, "insecure"));
    assert_ok(tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = "0.0.0.0", .is_host = true, .insecure = true), &store, err));
    SET("k", "v");
    tether_store_release(store);

    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET}; /* of any interface */
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_status(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.is_host = true, .listen_fd = &fd),
                                       &store, NULL),
                  TETHER_EPERM);
    close(fd);
}

static void new_checks_options(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error error = {0};
    int fd = 0;
    assert_status(tether_store_tcp_new(NULL, &store, NULL), TETHER_EINVAL);
    assert_status(tether_store_tcp_new(&(struct tether_store_tcp_opts){0}, &store, NULL),
                  TETHER_EINVAL);
    assert_status(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = 65536), &store, &error),
                  TETHER_EINVAL);
    assert_string_equal(error.message, "port must have value from 0 to 65535 but was 65536.");
    assert_status(
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = 1, .world_size = -1), &store, NULL),
        TETHER_EINVAL);
    assert_status(
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = 1, .listen_fd = &fd), &store, NULL),
        TETHER_EINVAL);
    char host[200];
    memset(host, 'x', sizeof host);
    memcpy(host, "unix:", 5);
    host[sizeof host - 1] = '\0';
    assert_status(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = host), &store, NULL),
                  TETHER_EINVAL);
    fd = -1;
    assert_status(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.is_host = true, .listen_fd = &fd),
                                       &store, NULL),
                  TETHER_EINVAL);
    tether_store *hash = NULL;
    assert_ok(tether_store_hash_new(&hash, err));
    assert_int_equal(tether_store_tcp_port(hash), -1);
    assert_null(tether_store_tcp_host(hash));
    assert_int_equal(tether_store_tcp_dialect(NULL), TETHER_STORE_DIALECT_AUTO);
    tether_store_release(hash);
}

/* ---- Missing servers ------------------------------------------------------------------------ */

static void expect_no_connection(const char *host, int port, const char *cause)
{
    tether_store *store = NULL;
    tether_error error = {0};
    int64_t start = tether__clock_now_ms(&tether__clock_system);
    assert_status(
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = host, .port = port, .timeout_ms = 300),
                             &store, &error),
        TETHER_ETIMEOUT);
    assert_in_range(tether__clock_now_ms(&tether__clock_system) - start, 299, LIMIT);
    char text[128];
    snprintf(text, sizeof text, "while trying to connect to (%s, %d): ", host, port);
    assert_non_null(strstr(error.message, "The client socket has timed out after "));
    assert_non_null(strstr(error.message, text));
    assert_non_null(strstr(error.message, cause));
}

static void new_times_out_when_no_server_listens(void **state)
{
    (void)state;
    expect_no_connection("127.0.0.1", tether_test_quiet_port(), "Connection refused");
    expect_no_connection("unix:nobody.listens.here", 0, "No such file");
    expect_no_connection("dnsnotexist.invalid", 23456, "looking up host 'dnsnotexist.invalid'");
}

struct late {
    int port;
    tether_store *store;
    tether_status status;
    tether_error error;
};

static void *dial_thread(void *arg)
{
    struct late *late = arg;
    late->status = tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.port = late->port, .timeout_ms = LIMIT), &late->store, &late->error);
    return NULL;
}

/* A client that starts first retries until the server listens. */
static void new_waits_for_server_that_starts_later(void **state)
{
    (void)state;
    struct late late = {.port = tether_test_quiet_port()};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, dial_thread, &late), 0);
    usleep(50000); /* usually long enough for a refused attempt; the test passes without one, too */
    tether_store_server *server = store_serve_at(late.port);
    pthread_join(thread, NULL);
    assert_string_equal(late.error.message, "");
    assert_status(late.status, TETHER_OK);
    tether_store_release(late.store);
    tether_store_server_release(server);
}

static void *get_thread(void *arg)
{
    struct waiting *waiting = arg;
    tether_buf value = TETHER_BUF_INIT;
    atomic_store(&waiting->tid, gettid());
    waiting->status = tether_store_get(waiting->store, "never", LIMIT, &value, NULL);
    tether_buf_fini(&value);
    return NULL;
}

/* The end of the server ends every wait and makes later calls fail at once. The client then uses a
 * new server at the same address. */
static void calls_work_again_after_server_restart(void **state)
{
    (void)state;
    int port = tether_test_quiet_port();
    tether_store_server *server = store_serve_at(port);
    tether_store *store = store_dial("127.0.0.1", port);
    struct waiting waits[3] = {{0}};
    SET("k", "v");
    for (int i = 0; i < 3; i++) {
        waits[i].store = store;
        assert_int_equal(pthread_create(&waits[i].thread, NULL, get_thread, &waits[i]), 0);
    }
    assert_eventually(store_stats_of(server).waiting == 3);
    tether_store_server_release(server);
    for (int i = 0; i < 3; i++) {
        pthread_join(waits[i].thread, NULL);
        assert_status(waits[i].status, TETHER_EUNAVAILABLE);
    }
    tether_buf value = TETHER_BUF_INIT;
    tether_error error = {0};
    assert_status(tether_store_set(store, "k", tether_bytes_str("x"), LIMIT, &error),
                  TETHER_EUNAVAILABLE); /* no retries for 60 seconds, and no false success */
    assert_non_null(strstr(error.message, "127.0.0.1"));
    assert_status(tether_store_add(store, "n", 1, LIMIT, NULL, NULL), TETHER_EUNAVAILABLE);

    server = store_serve_at(port);
    ADD("n", 1, 1);
    SET("k", "w");
    assert_status(tether_store_try_get(store, "never", LIMIT, &value, NULL), TETHER_ENOTFOUND);
    EXPECT("k", "w");
    tether_buf_fini(&value);
    tether_store_release(store);
    tether_store_server_release(server);
}

/* A connection that was closed while it was idle fails no call: calls that may be repeated are sent
 * again, and other calls check the connection first. */
static void call_reconnects_when_idle_connection_was_closed(void **state)
{
    (void)state;
    int port = tether_test_quiet_port();
    tether_store_server *server = store_serve_at(port);
    tether_store *store = store_dial("127.0.0.1", port);
    SET("k", "v");
    tether_store_server_release(server);
    server = store_serve_at(port);
    SET("k", "w"); /* at once: the call notices the closed connection and repeats */
    EXPECT("k", "w");
    tether_store_server_release(server);
    server = store_serve_at(port);
    int64_t end = tether__clock_now_ms(&tether__clock_system) + 1100;
    while (tether__clock_now_ms(&tether__clock_system) < end)
        usleep(10000); /* a connection that was idle for a second is checked before use */
    ADD("n", 1, 1);
    ADD("n", 1, 2);
    tether_store_release(store);
    tether_store_server_release(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(server_and_client_use_ipv6),
        cmocka_unit_test(localhost_binds_all_loopback_addresses),
        cmocka_unit_test(bind_beyond_loopback_needs_insecure),
        cmocka_unit_test(new_checks_options),
        cmocka_unit_test(new_times_out_when_no_server_listens),
        cmocka_unit_test(new_waits_for_server_that_starts_later),
        cmocka_unit_test(calls_work_again_after_server_restart),
        cmocka_unit_test(call_reconnects_when_idle_connection_was_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
