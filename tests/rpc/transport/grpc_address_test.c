/* Addresses: dialling what is not there, listening where one cannot, unix sockets. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/port.h"
#include "tests/rpc/lib/transport_node.h"

/* ---- Dialling what is not there ---- */

static void dial_fails_when_connection_is_refused(void **state)
{
    struct pair *pair = *state;
    char address[256];
    struct node other;
    node_start(&other, &(struct tether__transport_opts){.listen = "127.0.0.1:0"});
    snprintf(address, sizeof address, "%s", other.transport->address);
    node_stop(&other);

    for (int i = 0; i < 3; i++) { /* none waits for the backoff of another */
        struct wire *wire = node_dial(&pair->client, address);
        assert_int_equal(wire_await_closed(wire), TETHER_ENOTFOUND);
        assert_false(wire->opened);
        assert_non_null(strstr(wire->why, "Connection refused"));
        assert_non_null(strstr(wire->why, address));
    }
    node_start(&other, &(struct tether__transport_opts){.listen = address});
    struct wire *wire = node_dial(&pair->client, address);
    wire_await_opened(wire);
    node_stop(&other);
}

/* A socket that takes connections and says nothing. */
static int deaf_listener(char *ret_address, size_t size)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    snprintf(ret_address, size, "127.0.0.1:%d", ntohs(at.sin_port));
    return fd;
}

static void dial_fails_when_listener_does_not_answer_in_time(void **state)
{
    (void)state;
    char address[64];
    int fd = deaf_listener(address, sizeof address);
    struct node client;
    node_start(&client, &(struct tether__transport_opts){.connect_timeout_ms = 100});
    struct wire *patient = node_dial(&client, address), *polite = node_dial(&client, address);
    wire_close(polite, true);
    assert_int_equal(wire_await_closed(patient), TETHER_EUNAVAILABLE);
    assert_int_equal(wire_await_closed(polite), TETHER_EUNAVAILABLE);
    node_stop(&client);

    node_start(&client, &(struct tether__transport_opts){0});
    struct wire *wire = node_dial(&client, address);
    wire_close(wire, false); /* need not wait */
    assert_int_equal(wire_await_closed(wire), TETHER_ECANCELED);
    node_dial(&client, address); /* under way when it stops */
    node_stop(&client);
    close(fd);
}

static void dial_fails_when_listener_hangs_up(void **state)
{
    struct pair *pair = *state;
    char address[64];
    int fd = deaf_listener(address, sizeof address);
    struct wire *wire = node_dial(&pair->client, address);
    int accepted = accept(fd, NULL, NULL);
    assert_true(accepted >= 0);
    static const char http[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    assert_int_equal(write(accepted, http, strlen(http)), strlen(http));
    close(accepted);
    assert_int_equal(wire_await_closed(wire), TETHER_EUNAVAILABLE);
    assert_false(wire->opened);
    close(fd);
}

static void dial_refuses_malformed_addresses(void **state)
{
    static const char *const addresses[] = {
        "",     "nonsense", "127.0.0.1", "127.0.0.1:notaport",   "127.0.0.1:99999999",
        "[::1", "::1:5",    "unix:",     "unix:/does/not/exist", "ftp://x:1/",
        ":",
    };
    struct pair *pair = *state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(addresses); i++) {
        struct wire *wire = node_dial(&pair->client, addresses[i]);
        tether_status st = wire_await_closed(wire); /* some lead to a port of this host */
        assert_true(st == TETHER_EUNAVAILABLE || st == TETHER_ENOTFOUND);
        assert_non_null(strstr(wire->why, "cannot connect to"));
    }
}

/* ---- Listening ---- */

static void listen_fails(const char *address, tether_status expected, const char *says)
{
    struct node node;
    tether_error error = {0};
    struct tether__transport_opts opts = {.listen = address};
    tether_status st = node_try_start(&node, &opts, &error);
    if (st != expected || !strstr(error.message, says))
        fail_msg("listening on '%s': %s: %s", address, tether_status_name(st), error.message);
}

static void listen_refuses_taken_and_impossible_addresses(void **state)
{
    struct pair *pair = *state;
    listen_fails(pair->server.transport->address, TETHER_EADDRINUSE, "another process does");
    listen_fails("203.0.113.1:0", TETHER_EINVAL, "no such address");
    listen_fails("nonsense", TETHER_EINVAL, "host:port");
    listen_fails("127.0.0.1:notaport", TETHER_EINVAL, "127.0.0.1:notaport");
}

static void ipv6_addresses_connect(void **state)
{
    struct pair *pair = *state;
    struct node node;
    tether_error error;
    if (!tether_test_has_ipv6())
        skip();
    if (node_try_start(&node, &(struct tether__transport_opts){.listen = "[::1]:0"}, &error))
        fail_msg("%s", error.message);
    assert_memory_equal(node.transport->address, "[::1]:", 6);
    struct wire *wire = node_dial(&pair->client, node.transport->address);
    wire_send(wire, "six", 3);
    wire_await_messages(wire, 1);
    node_stop(&node);
}

/* ---- Unix sockets ---- */

static char folder[] = "/tmp/tether-transport-XXXXXX";
static char socket_path[100], socket_address[110];

static int set_up_unix(void **state)
{
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(socket_path, sizeof socket_path, "%s/worker", folder);
    snprintf(socket_address, sizeof socket_address, "unix:%s", socket_path);
    return pair_set_up(state);
}

static int tear_down_unix(void **state)
{
    pair_tear_down(state);
    unlink(socket_path);
    return rmdir(folder);
}

static void unix_paths_connect(void **state)
{
    struct pair *pair = *state;
    struct node node;
    struct stat st;
    node_start(&node, &(struct tether__transport_opts){.listen = socket_address});
    assert_string_equal(node.transport->address, socket_address);
    assert_int_equal(stat(socket_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    listen_fails(socket_address, TETHER_EADDRINUSE, "another process does");
    struct wire *wire = node_dial(&pair->client, socket_address); /* it still works */
    char *data = node_pattern(PAIR_LIMIT);
    wire_send(wire, data, PAIR_LIMIT);
    wire_await_messages(wire, 1);
    free(data);
    node_stop(&node);
    assert_int_equal(stat(socket_path, &st), -1); /* it cleans up */
}

static void stale_unix_socket_is_replaced(void **state)
{
    (void)state;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    close(fd); /* as a worker that was killed leaves it */
    struct node node;
    node_start(&node, &(struct tether__transport_opts){.listen = socket_address});
    node_stop(&node);
}

static void listen_keeps_other_files_at_its_unix_path(void **state)
{
    (void)state;
    FILE *file = fopen(socket_path, "w");
    assert_non_null(file);
    fclose(file);
    listen_fails(socket_address, TETHER_EEXIST, "not a socket");
    assert_int_equal(access(socket_path, F_OK), 0);
    listen_fails("unix:/does/not/exist/at-all", TETHER_EIO, "No such file or directory");
    char long_path[200];
    snprintf(long_path, sizeof long_path, "unix:/tmp/%0120d", 1);
    listen_fails(long_path, TETHER_EINVAL, "longer than");
}

#define IN_PAIR(test) cmocka_unit_test_setup_teardown(test, pair_set_up, pair_tear_down)
#define WITH_UNIX(test) cmocka_unit_test_setup_teardown(test, set_up_unix, tear_down_unix)

static const struct CMUnitTest tests[] = {
    IN_PAIR(dial_fails_when_connection_is_refused),
    cmocka_unit_test(dial_fails_when_listener_does_not_answer_in_time),
    IN_PAIR(dial_fails_when_listener_hangs_up),
    IN_PAIR(dial_refuses_malformed_addresses),
    IN_PAIR(listen_refuses_taken_and_impossible_addresses),
    IN_PAIR(ipv6_addresses_connect),
    WITH_UNIX(unix_paths_connect),
    WITH_UNIX(stale_unix_socket_is_replaced),
    WITH_UNIX(listen_keeps_other_files_at_its_unix_path),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
