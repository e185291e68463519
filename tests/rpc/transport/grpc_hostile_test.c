/* Bytes that are no gRPC, on the port of a worker: the worker closes such a connection, and its
 * other conns are not affected. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/transport/grpc/grpc.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/transport_node.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define SETTINGS "\0\0\0\4\0\0\0\0\0"
/* HEADERS of POST /tether.Worker/Lane on stream 1, as a client would send them. */
#define OPEN_LANE                  \
    "\0\0\x39\1\4\0\0\0\1\x83\x86" \
    "\x44\x13/tether.Worker/Lane"  \
    "\x41\1x"                      \
    "\x5f\x10"                     \
    "application/grpc"             \
    "\x40\2te\x08trailers"

struct attack {
    const char *what;
    const char *bytes;
    size_t len;
    bool waits; /* the server need not hang up, since more may come */
};

#define BYTES(text) text, sizeof(text) - 1

static const struct attack attacks[] = {
    {"nothing", BYTES(""), true},
    {"text", BYTES("hello, is this the store?\n"), false},
    {"HTTP/1", BYTES("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), false},
    {"TLS", BYTES("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), false},
    {"zeros", BYTES("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), false},
    {"half a preface", BYTES("PRI * HTTP/2.0\r\n"), true},
    {"no settings", BYTES(PREFACE "\0\0\4\x8\0\0\0\0\0\0\0\0\1"), false},
    {"frame beyond the agreed size", BYTES(PREFACE SETTINGS "\xff\xff\xff\0\0\0\0\0\1"), false},
    {"data on a stream that is not open", BYTES(PREFACE SETTINGS "\0\0\1\0\0\0\0\0\3x"), true},
    {"settings of a wrong length", BYTES(PREFACE "\0\0\5\4\0\0\0\0\0xxxxx"), false},
    {"broken header compression", BYTES(PREFACE SETTINGS "\0\0\4\1\4\0\0\0\1\xff\xff\xff\xff"),
     false},
    {"lane with a message of 4 GiB announced",
     BYTES(PREFACE SETTINGS OPEN_LANE "\0\0\5\0\0\0\0\0\1\0\xff\xff\xff\xff"), true},
    {"lane with a flag that does not exist",
     BYTES(PREFACE SETTINGS OPEN_LANE "\0\0\6\0\0\0\0\0\1\7\0\0\0\1x"), true},
};

static int connect_to(const char *address)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void write_all(int fd, const char *bytes, size_t len)
{
    while (len) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n < 0)
            return; /* cut off already */
        bytes += n;
        len -= (size_t)n;
    }
}

/* Reads until the other end hangs up. */
static void await_hangup(int fd, const char *what)
{
    char buffer[4096];
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    ssize_t n;
    do {
        if (poll(&poller, 1, TETHER_TEST_LIMIT_MS) != 1)
            fail_msg("%s: the server does not hang up", what);
        n = recv(fd, buffer, sizeof buffer, 0);
    } while (n > 0);
}

static void echo_once(struct wire *wire)
{
    size_t n = wire->n_messages;
    wire_send(wire, "still here?", 11);
    wire_await_messages(wire, n + 1);
}

static void other_conns_are_not_affected_by_malformed_http2(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    int open[TETHER__ARRAY_LEN(attacks)];
    for (size_t i = 0; i < TETHER__ARRAY_LEN(attacks); i++) {
        open[i] = connect_to(pair->server.transport->address);
        write_all(open[i], attacks[i].bytes, attacks[i].len);
        if (!attacks[i].waits)
            await_hangup(open[i], attacks[i].what);
        echo_once(wire);
    }
    node_accepted(&pair->server, 3);       /* two of the attacks have opened a lane */
    struct wire *second = pair_dial(pair); /* new ones get in, too */
    echo_once(second);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(attacks); i++)
        close(open[i]);
    echo_once(wire);
}

static void other_conns_are_not_affected_by_random_bytes(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    unsigned seed = 1;
    for (int i = 0; i < 50; i++) {
        char bytes[2000];
        int fd = connect_to(pair->server.transport->address);
        if (i % 2) /* half of it gets past the preface */
            write_all(fd, PREFACE SETTINGS, sizeof(PREFACE SETTINGS) - 1);
        for (size_t j = 0; j < sizeof bytes; j++)
            bytes[j] = (char)rand_r(&seed);
        write_all(fd, bytes, sizeof bytes);
        close(fd);
    }
    echo_once(wire);
}

static void other_conns_are_not_affected_by_many_silent_clients(void **state)
{
    enum { N = 200 };
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    int fds[N];
    for (int i = 0; i < N; i++)
        fds[i] = connect_to(pair->server.transport->address);
    echo_once(wire);
    echo_once(pair_dial(pair));
    for (int i = 0; i < N; i++)
        close(fds[i]);
}

/* It would wake the acceptor until its time is over, after that of the silent one. */
static void client_that_ends_within_preface_is_closed_before_silent_client(void **state)
{
    struct pair *pair = *state;
    int silent = connect_to(pair->server.transport->address);
    echo_once(pair_dial(pair));
    int ended = connect_to(pair->server.transport->address);
    write_all(ended, PREFACE, 5);
    assert_int_equal(shutdown(ended, SHUT_WR), 0);
    struct pollfd both[] = {{.fd = silent, .events = POLLIN}, {.fd = ended, .events = POLLIN}};
    assert_true(poll(both, 2, TETHER_TEST_LIMIT_MS) > 0);
    assert_true(both[1].revents);
    close(silent);
    close(ended);
}

/* gRPC buffers a whole message before the transport can see that it is too large. */
static void memory_for_too_large_messages_is_bounded(void **state)
{
    struct pair *pair = *state;
    struct node generous;
    const size_t len = 200u << 20;
    node_start(&generous, &(struct tether__transport_opts){.max_message_bytes = len});
    grpc_resource_quota_resize(tether__grpc_of(pair->server.transport)->quota, 16u << 20);
    struct wire *wire = node_dial(&generous, pair->server.transport->address);
    char *data = calloc(1, len);
    assert_non_null(data);
    wire_send(wire, data, len);
    tether_status st = wire_await_closed(wire);
    free(data);
    assert_true(st == TETHER_ETOOBIG || st == TETHER_EUNAVAILABLE);
    /* the server never received the whole message */
    assert_null(strstr(wire->why, "over the limit of"));
    node_stop(&generous);
    echo_once(pair_dial(pair));
}

#define IN_PAIR(test) cmocka_unit_test_setup_teardown(test, pair_set_up, pair_tear_down)

static const struct CMUnitTest tests[] = {
    IN_PAIR(other_conns_are_not_affected_by_malformed_http2),
    IN_PAIR(other_conns_are_not_affected_by_random_bytes),
    IN_PAIR(other_conns_are_not_affected_by_many_silent_clients),
    IN_PAIR(client_that_ends_within_preface_is_closed_before_silent_client),
    IN_PAIR(memory_for_too_large_messages_is_bounded),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
