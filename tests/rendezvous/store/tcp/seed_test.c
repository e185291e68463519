/* The tests of PyTorch's test_store.py that are for its TCP store only. suite_test runs those for
 * every store. */
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/rendezvous.h"
#include "rendezvous/store_helpers.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/port.h"
#include "tests/rendezvous/store/suite_internal.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* The dialect of a test's clients: that of PyTorch's store without libuv (L0) or with libuv (V). */
static tether_store_dialect dialect;

static int speak_l0(void **state)
{
    (void)state;
    dialect = TETHER_STORE_DIALECT_L0;
    return 0;
}

static int speak_v(void **state)
{
    (void)state;
    dialect = TETHER_STORE_DIALECT_V;
    return 0;
}

static int speak_any(void **state)
{
    (void)state;
    dialect = TETHER_STORE_DIALECT_AUTO;
    return 0;
}

static tether_store *host(int world_size, bool wait_for_workers)
{
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = "localhost", .is_host = true, .world_size = world_size,
                              .wait_for_workers = wait_for_workers, .dialect = dialect),
        &store, err));
    return store;
}

/* ---- TCPStoreTest and LibUvTCPStoreTest ----------------------------------------------------- */

static void test_address_already_in_use(void **state)
{
    (void)state;
    tether_store *store = host(1, true), *second = NULL;
    tether_error error = {0};
    assert_status(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = "localhost", .is_host = true,
                                                             .world_size = 1, .dialect = dialect,
                                                             .port = tether_store_tcp_port(store)),
                                       &second, &error),
                  TETHER_EADDRINUSE);
    static const char begins[] = "The server socket has failed to listen on any local ";
    assert_memory_equal(error.message, begins, sizeof begins - 1);
    SET("key", "unharmed");
    EXPECT("key", "unharmed");
    tether_store_release(store);
}

static tether_store *tenant(int port)
{
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = "localhost", .port = port, .is_host = true, .world_size = 1,
                              .dialect = dialect, .multi_tenant = true),
        &store, err));
    return store;
}

static void test_multitenancy(void **state)
{
    (void)state;
    tether_store *store = tenant(0);
    int port = tether_store_tcp_port(store);
    tether_store *second = tenant(port);
    assert_int_equal(tether_store_tcp_port(second), port);
    SET("key", "shared");
    suite_expect(second, "key", "shared");
    tether_store_release(store); /* the server runs until its last tenant is released */
    suite_expect(second, "key", "shared");
    tether_store_release(second);
    assert_status(
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port, .timeout_ms = 100), &store, NULL),
        TETHER_ETIMEOUT);
}

/* Joins at a URL and uses a prefix, as init_process_group() and init_rpc() do. */
static tether_store *meet(const char *url, const char *prefix)
{
    struct tether_world world = {0};
    tether_store *store = NULL;
    assert_ok(tether_rendezvous(url, -1, -1, LIMIT, &world, err));
    assert_int_equal(world.rank, 0);
    assert_int_equal(world.size, 1);
    assert_ok(tether_store_prefix_new(prefix, world.store, &store, err));
    tether_world_fini(&world);
    return store;
}

static void set_environment(const char *use_libuv, int port)
{
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", text, 1);
    setenv("USE_LIBUV", use_libuv, 1);
}

/* PyTorch's store without libuv can do this, its libuv store can't. */
static void test_take_over_listen_socket(void **state)
{
    (void)state;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof addr;
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    int port = ntohs(addr.sin_port);
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = "127.0.0.1", .port = port, .is_host = true, .world_size = 1,
                              .dialect = dialect, .listen_fd = &fd),
        &store, err));
    assert_int_equal(tether_store_tcp_port(store), port);
    SET("key", "value");
    EXPECT("key", "value");
    tether_store_release(store);
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* taken, and closed with the server */
}

static void new_fails_when_port_and_listen_fd_differ(void **state)
{
    (void)state;
    int fd, port;
    tether_store *store = NULL;
    assert_ok(tether_get_socket_with_port(&fd, &port, err));
    assert_status(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port == 1 ? 2 : port - 1,
                                                             .is_host = true, .listen_fd = &fd),
                                       &store, NULL),
                  TETHER_EINVAL);
    assert_int_not_equal(fcntl(fd, F_GETFD), -1); /* still ours */
    assert_ok(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.is_host = true, .listen_fd = &fd), &store,
                                   err));
    assert_int_equal(tether_store_tcp_port(store), port);
    tether_store_release(store);
}

static void client(int index, int port, int world_size)
{
    tether_store *store = NULL;
    assert_ok(tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = "localhost", .port = port, .world_size = world_size,
                              .wait_for_workers = world_size > 0, .timeout_ms = LIMIT,
                              .dialect = dialect),
        &store, err));
    EXPECT("key", "value");
    char key[32], old[32], next[32];
    snprintf(key, sizeof key, "new_key%d", index);
    snprintf(old, sizeof old, "new_value%d", index);
    snprintf(next, sizeof next, "next_value%d", index);
    SET(key, old);
    tether_buf value = TETHER_BUF_INIT;
    bool swapped = false;
    assert_ok(tether_store_compare_set(store, key, tether_bytes_str(old), tether_bytes_str(next),
                                       LIMIT, &swapped, &value, err));
    assert_true(swapped);
    assert_string_equal(value.data, next);
    tether_buf_fini(&value);
    tether_store_release(store);
}

static void test_multi_worker_with_fixed_world_size(void **state)
{
    (void)state;
    tether_store *store = host(5, false);
    SET("key", "value");
    for (int i = 0; i < 5; i++)
        client(i, tether_store_tcp_port(store), 5);
    for (int i = 0; i < 5; i++) {
        char key[32], value[32];
        snprintf(key, sizeof key, "new_key%d", i);
        snprintf(value, sizeof value, "next_value%d", i);
        EXPECT(key, value);
    }
    tether_store_release(store);
}

static void test_multi_worker_with_nonfixed_world_size(void **state)
{
    (void)state;
    tether_store *store = host(0, false);
    SET("key", "value");
    client(0, tether_store_tcp_port(store), 0);
    EXPECT("new_key0", "next_value0");
    tether_store_release(store);
}

static void test_store_timeout_on_missing_clients(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error error = {0};
    assert_status(
        tether_store_tcp_new(
            TETHER_STORE_TCP_OPTS(.host = "localhost", .is_host = true, .world_size = 2,
                                  .wait_for_workers = true, .timeout_ms = 1000, .dialect = dialect),
            &store, &error),
        TETHER_ETIMEOUT);
    int seconds = 0, joined = 0, wanted = 0;
    const char *at = strstr(error.message, "Timed out after ");
    assert_non_null(at);
    assert_int_equal(
        sscanf(at, "Timed out after %d seconds waiting for clients. %d/%d clients joined.",
               &seconds, &joined, &wanted),
        3);
    assert_int_equal(seconds, 1);
    assert_int_equal(joined, 1);
    assert_int_equal(wanted, 2);

    tether_store_release(host(2, false)); /* without waiting, missing clients are no error */
}

/* ---- Prefix stores on top ------------------------------------------------------------------- */

static void test_get_underlying_store(void **state)
{
    (void)state;
    tether_store *stores[3] = {host(1, true), NULL, NULL};
    char path[256];
    const char *dir = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/underlying-%d", dir ? dir : "/tmp", (int)getpid());
    assert_ok(tether_store_hash_new(&stores[1], err));
    assert_ok(tether_store_file_new(path, 1, &stores[2], err));
    for (int i = 0; i < 3; i++) {
        tether_store *prefixed = NULL;
        assert_ok(tether_store_prefix_new("prefix", stores[i], &prefixed, err));
        assert_ptr_equal(tether_store_underlying(prefixed), stores[i]);
        tether_store_release(prefixed);
        tether_store_release(stores[i]);
    }
}

static void test_underlying_non_prefix_store(void **state)
{
    (void)state;
    tether_store *tcp = host(1, true), *store = NULL, *nested = NULL, *wrapped = NULL;
    assert_ok(tether_store_prefix_new("test_prefix", tcp, &store, err));
    assert_ok(tether_store_prefix_new("test_prefix", store, &nested, err));
    assert_ok(tether_store_prefix_new("test_prefix", nested, &wrapped, err));
    assert_ptr_equal(tether_store_underlying_non_prefix(store), tcp);
    assert_ptr_equal(tether_store_underlying_non_prefix(wrapped), tcp);
    assert_int_equal(tether_store_tcp_port(wrapped), tether_store_tcp_port(tcp));
    tether_store_release(wrapped);
    tether_store_release(nested);
    tether_store_release(store);
    tether_store_release(tcp);
}

/* ---- InitPgWithNonUvStore ------------------------------------------------------------------- */

/* Asserts that a TCP store is below the group's prefix and serves both kinds of clients. PyTorch
 * has one server with libuv and one without; ours serves the clients of both. */
static void expect_serves_both_kinds(tether_store *store)
{
    static const tether_store_dialect kinds[] = {TETHER_STORE_DIALECT_L0, TETHER_STORE_DIALECT_V};
    assert_ptr_not_equal(tether_store_underlying(store), store);
    tether_store *tcp = tether_store_underlying_non_prefix(store);
    SET("key", "value");
    for (size_t i = 0; i < 2; i++) {
        tether_store *client = NULL;
        assert_ok(tether_store_tcp_new(
            TETHER_STORE_TCP_OPTS(.host = tether_store_tcp_host(tcp),
                                  .port = tether_store_tcp_port(tcp), .dialect = kinds[i]),
            &client, err));
        suite_expect(client, "pg/key", "value");
        tether_store_release(client);
    }
    tether_store_release(store);
}

static void test_with_url_param(void **state)
{
    (void)state;
    for (int use_libuv = 0; use_libuv < 2; use_libuv++) {
        char url[80];
        snprintf(url, sizeof url, "tcp://localhost:%d?use_libuv=%d&rank=0&world_size=1",
                 tether_test_quiet_port(), use_libuv);
        expect_serves_both_kinds(meet(url, "pg"));
    }
}

static void test_with_env_var(void **state)
{
    (void)state;
    static const char *const values[] = {"0", "1"};
    for (int i = 0; i < 2; i++) {
        set_environment(values[i], tether_test_quiet_port());
        expect_serves_both_kinds(meet("env://?rank=0&world_size=1", "pg"));
    }
    unsetenv("USE_LIBUV");
}

#define TCP_STORE_TESTS                                                                 \
    cmocka_unit_test(test_address_already_in_use), cmocka_unit_test(test_multitenancy), \
        cmocka_unit_test(test_take_over_listen_socket),                                 \
        cmocka_unit_test(test_multi_worker_with_fixed_world_size),                      \
        cmocka_unit_test(test_multi_worker_with_nonfixed_world_size),                   \
        cmocka_unit_test(test_store_timeout_on_missing_clients)

int main(void)
{
    const struct CMUnitTest tcp_store_tests[] = {TCP_STORE_TESTS};
    const struct CMUnitTest tests[] = {
        TCP_STORE_TESTS,
        cmocka_unit_test(new_fails_when_port_and_listen_fd_differ),
        cmocka_unit_test(test_get_underlying_store),
        cmocka_unit_test(test_underlying_non_prefix_store),
        cmocka_unit_test(test_with_url_param),
        cmocka_unit_test(test_with_env_var),
    };
    int failed = cmocka_run_group_tests_name("TCPStoreTest (L0)", tcp_store_tests, speak_l0, NULL);
    failed += cmocka_run_group_tests_name("LibUvTCPStoreTest (V)", tcp_store_tests, speak_v, NULL);
    return failed + cmocka_run_group_tests_name("Tether", tests, speak_any, NULL);
}
