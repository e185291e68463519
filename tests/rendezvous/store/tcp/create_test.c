/* Creates stores for groups, as PyTorch's distributed_test.py does, with real retries.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "rendezvous/store_helpers.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/port.h"
#include "tests/lib/proc.h"
#include "tests/rendezvous/store/suite_internal.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* The seed gives socket.gethostname() for the server's address. A host's name may stand for an
 * address beyond loopback, hence `insecure`. */
static const char *host_name(void)
{
    static char name[256];
    assert_int_equal(gethostname(name, sizeof name - 1), 0);
    return name;
}

#define BY_NAME .server_addr = host_name(), .insecure = true

static void test_create_store_single_server(void **state)
{
    (void)state;
    tether_store *store = NULL;
    assert_ok(tether_store_create(TETHER_STORE_CREATE_OPTS(.is_server = true), &store, err));
    assert_string_equal(tether_store_tcp_host(store), "127.0.0.1"); /* unless told otherwise */
    tether_store_release(store);
    assert_ok(
        tether_store_create(TETHER_STORE_CREATE_OPTS(BY_NAME, .is_server = true), &store, err));
    assert_string_equal(tether_store_tcp_host(store), host_name());
    assert_in_range(tether_store_tcp_port(store), 1, 65535);
    assert_int_equal(tether_store_get_timeout(store), TETHER_STORE_CREATE_TIMEOUT_MS);
    SET("key", "value");
    EXPECT("key", "value");
    tether_store_release(store);
}

static void test_create_store_no_port_multi(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error error = {0};
    assert_status(
        tether_store_create(TETHER_STORE_CREATE_OPTS(BY_NAME, .is_server = true, .world_size = 2),
                            &store, &error),
        TETHER_EINVAL);
    assert_non_null(strstr(error.message, "server_port must be specified when world_size > 1"));
    assert_status(
        tether_store_create(TETHER_STORE_CREATE_OPTS(BY_NAME, .server_port = TETHER_PORT_ANY),
                            &store, NULL),
        TETHER_EINVAL); /* a client needs a port */
    assert_status(
        tether_store_create(TETHER_STORE_CREATE_OPTS(BY_NAME, .server_port = 65536), &store, NULL),
        TETHER_EINVAL);
    assert_status(tether_store_create(TETHER_STORE_CREATE_OPTS(.is_server = true, .world_size = -1),
                                      &store, NULL),
                  TETHER_EINVAL);
    assert_status(tether_store_create(NULL, &store, NULL), TETHER_EINVAL);
}

/* A worker of a world of three, with the port as argument; marks that it is done. */
TETHER_PROC_ROLE(worker)
{
    const char *wait = strchr(self->arg, ' ');
    tether_store *store = NULL;
    assert_ok(tether_store_create(
        TETHER_STORE_CREATE_OPTS(BY_NAME, .server_port = atoi(self->arg), .world_size = 3,
                                 .dont_wait = !wait, .timeout_ms = LIMIT),
        &store, err));
    char key[32];
    snprintf(key, sizeof key, "test_key/%d", rank);
    SET(key, "test_value");
    tether_store_release(store);
}

static void test_create_store_multi(void **state)
{
    (void)state;
    tether_store *store = NULL;
    assert_ok(tether_store_create(
        TETHER_STORE_CREATE_OPTS(BY_NAME, .is_server = true, .server_port = TETHER_PORT_ANY,
                                 .world_size = 3, .dont_wait = true, .timeout_ms = LIMIT),
        &store, err));
    char port[16];
    snprintf(port, sizeof port, "%d", tether_store_tcp_port(store));
    tether_test_procs_end(tether_test_procs_start(worker, .ranks = 2, .arg = port));
    EXPECT("test_key/0", "test_value");
    EXPECT("test_key/1", "test_value");
    tether_store_release(store);
}

/* The same, but no member returns before all have joined, so the server's port is chosen
 * beforehand. */
static void create_returns_when_all_members_have_joined(void **state)
{
    (void)state;
    int port = tether_test_quiet_port();
    char arg[32];
    snprintf(arg, sizeof arg, "%d wait", port);
    struct tether_test_procs *procs = tether_test_procs_start(worker, .ranks = 2, .arg = arg);
    tether_store *store = NULL;
    assert_ok(tether_store_create(
        TETHER_STORE_CREATE_OPTS(BY_NAME, .is_server = true, .server_port = port, .world_size = 3,
                                 .timeout_ms = LIMIT),
        &store, err));
    ADD("_tcp_store/num_members", 0, 3);
    tether_test_procs_end(procs);
    EXPECT("test_key/1", "test_value");
    tether_store_release(store);
}

static void test_create_store_timeout_on_server(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error error = {0};
    assert_status(tether_store_create(TETHER_STORE_CREATE_OPTS(BY_NAME, .is_server = true,
                                                               .server_port = TETHER_PORT_ANY,
                                                               .world_size = 2, .timeout_ms = 1000),
                                      &store, &error),
                  TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "1/2 clients joined"));
}

static void test_create_store_timeout_on_worker(void **state)
{
    (void)state;
    int port = tether_test_quiet_port(); /* has no listener */
    tether_store *store = NULL;
    tether_error error = {0};
    assert_status(tether_store_create(TETHER_STORE_CREATE_OPTS(BY_NAME, .server_port = port,
                                                               .world_size = 2, .timeout_ms = 300),
                                      &store, &error),
                  TETHER_ETIMEOUT);
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    assert_non_null(strstr(error.message, text));
}

/* There is one server, which runs on libuv and serves all dialects. */
static void test_create_store_with_libuv_support(void **state)
{
    (void)state;
    tether_store *store = NULL;
    assert_ok(tether_store_create(
        TETHER_STORE_CREATE_OPTS(BY_NAME, .is_server = true, .server_port = TETHER_PORT_ANY,
                                 .dont_wait = true, .timeout_ms = LIMIT),
        &store, err));
    static const tether_store_dialect dialects[] = {
        TETHER_STORE_DIALECT_L0, /* the dialect of clients of the store without libuv */
        TETHER_STORE_DIALECT_V,  /* and of the store with libuv */
    };
    for (size_t i = 0; i < 2; i++) {
        tether_store *client = NULL;
        assert_ok(tether_store_tcp_new(
            TETHER_STORE_TCP_OPTS(.host = host_name(), .port = tether_store_tcp_port(store),
                                  .dialect = dialects[i]),
            &client, err));
        assert_int_equal(tether_store_tcp_dialect(client), dialects[i]);
        suite_add(client, "clients", 1, (int64_t)i + 1);
        tether_store_release(client);
    }
    tether_store_release(store);
}

static void test_port_already_in_use_on_server(void **state)
{
    (void)state;
    tether_store *store1 = NULL, *store2 = NULL;
    tether_error error = {0};
    assert_ok(tether_store_create(
        TETHER_STORE_CREATE_OPTS(BY_NAME, .is_server = true, .server_port = TETHER_PORT_ANY,
                                 .timeout_ms = LIMIT),
        &store1, err));
    int port = tether_store_tcp_port(store1);
    assert_status(tether_store_create(
                      TETHER_STORE_CREATE_OPTS(BY_NAME, .is_server = true, .server_port = port,
                                               .timeout_ms = LIMIT, .retries = 1),
                      &store2, &error),
                  TETHER_EADDRINUSE);
    assert_non_null(strstr(error.message, "failed to listen"));
    assert_status(tether_store_create(
                      TETHER_STORE_CREATE_OPTS(BY_NAME, .is_server = true, .server_port = port,
                                               .timeout_ms = LIMIT, .retries = -1),
                      &store2, NULL),
                  TETHER_EADDRINUSE);
    tether_store_release(store1);
}

/* For a worker a port with another listener is no conflict: there is just no store server. */
static void test_port_already_in_use_on_worker(void **state)
{
    (void)state;
    int fd, port;
    tether_store *store = NULL;
    assert_ok(tether_get_socket_with_port(&fd, &port, err));
    assert_status(
        tether_store_create(TETHER_STORE_CREATE_OPTS(.server_port = port, .timeout_ms = 300),
                            &store, NULL),
        TETHER_ETIMEOUT);
    close(fd);
}

struct server {
    int port;
    atomic_int tid;
    tether_status status;
    tether_error error;
};

static void *serve(void *arg)
{
    struct server *server = arg;
    tether_store *store = NULL;
    atomic_store(&server->tid, gettid());
    server->status =
        tether_store_create(TETHER_STORE_CREATE_OPTS(.is_server = true, .server_port = server->port,
                                                     .timeout_ms = LIMIT, .retries = 100),
                            &store, &server->error);
    tether_store_release(store);
    return NULL;
}

/* The port is in use at first and free later: the server gets it. */
static void create_retries_when_port_is_in_use(void **state)
{
    (void)state;
    struct server server = {0};
    pthread_t thread;
    int fd;
    assert_ok(tether_get_socket_with_port(&fd, &server.port, err));
    pthread_create(&thread, NULL, serve, &server);
    /* If the thread sleeps, it is between two attempts, since an attempt itself never waits. */
    assert_eventually(atomic_load(&server.tid) &&
                      tether_test_thread_sleeps(atomic_load(&server.tid)));
    close(fd);
    pthread_join(thread, NULL);
    if (server.status != TETHER_OK)
        fail_msg("%s", server.error.message);
}

static void create_stops_retrying_when_deadline_has_passed(void **state)
{
    (void)state;
    int fd, port;
    tether_store *store = NULL;
    assert_ok(tether_get_socket_with_port(&fd, &port, err));
    assert_status(
        tether_store_create(TETHER_STORE_CREATE_OPTS(.is_server = true, .server_port = port,
                                                     .timeout_ms = 250, .retries = 1000000),
                            &store, NULL),
        TETHER_EADDRINUSE);
    close(fd);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_store_single_server),
        cmocka_unit_test(test_create_store_no_port_multi),
        cmocka_unit_test(test_create_store_multi),
        cmocka_unit_test(create_returns_when_all_members_have_joined),
        cmocka_unit_test(test_create_store_timeout_on_server),
        cmocka_unit_test(test_create_store_timeout_on_worker),
        cmocka_unit_test(test_create_store_with_libuv_support),
        cmocka_unit_test(test_port_already_in_use_on_server),
        cmocka_unit_test(test_port_already_in_use_on_worker),
        cmocka_unit_test(create_retries_when_port_is_in_use),
        cmocka_unit_test(create_stops_retrying_when_deadline_has_passed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
