/* Lane streams over gRPC, two transports in one process: messages of all sizes, the ways in which a
 * conn ends, and what goes wrong when dialling and listening. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "rpc/transport_grpc.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/lib/wait.h"
#include "tests/rpc/transport_node.h"

#define LIMIT (1u << 20)

static const struct tether__transport_opts listening = {.listen = "127.0.0.1:0",
                                                        .max_message_bytes = LIMIT};
static const struct tether__transport_opts dialling = {.max_message_bytes = LIMIT};

struct pair {
    struct node server, client;
};

static int set_up(void **state)
{
    static struct pair pair;
    node_start(&pair.server, &listening);
    node_start(&pair.client, &dialling);
    *state = &pair;
    return 0;
}

static int tear_down(void **state)
{
    struct pair *pair = *state;
    node_stop(&pair->client);
    node_stop(&pair->server);
    assert_int_equal(wire_live_blocks(), 0);
    return 0;
}

static struct wire *dial(struct pair *pair)
{
    return node_dial(&pair->client, pair->server.transport->address);
}

/* ---- Messages ---- */

static char *pattern(size_t len)
{
    char *data = malloc(len + 1);
    assert_non_null(data);
    for (size_t i = 0; i < len; i++)
        data[i] = (char)(i * 31 + len);
    return data;
}

static void echo_of_all_sizes(void **state)
{
    static const size_t sizes[] = {0,    1,     23,    24,         64,    4095, 4096,
                                   4097, 16384, 65536, LIMIT - 10, LIMIT, 7};
    struct wire *wire = dial(*state);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        char *data = pattern(sizes[i]);
        wire_send(wire, data, sizes[i]);
        wire_await_messages(wire, i + 1);
        assert_int_equal(wire->last_len, sizes[i]);
        assert_memory_equal(wire->last, data, sizes[i]);
        free(data);
    }
}

static void pieces_arrive_as_one_message(void **state)
{
    enum { N = 40 };
    static char expected[N * 10000];
    struct tether__slice pieces[N];
    struct wire *wire = dial(*state);
    size_t len = 0;
    for (size_t i = 0; i < N; i++) {
        size_t piece_len = i % 5 == 0 ? 0 : i % 3 == 0 ? 9000 + i : i;
        char *data = pattern(piece_len);
        if (piece_len)
            memcpy(expected + len, data, piece_len);
        /* Every other one has no owner: the transport must copy it before send() returns. */
        pieces[i] = i % 2 ? wire_block(data, piece_len)
                          : (struct tether__slice){(uint8_t *)expected + len, piece_len, NULL};
        len += piece_len;
        free(data);
    }
    wire_send_pieces(wire, pieces, N);
    for (size_t i = 0; i < N; i++)
        tether__slice_release(pieces[i]);
    wire_await_messages(wire, 1);
    assert_int_equal(wire->last_len, len);
    assert_memory_equal(wire->last, expected, len);
}

static void messages_keep_their_order(void **state)
{
    enum { N = 3000 };
    struct pair *pair = *state;
    struct wire *wire = dial(pair);
    for (uint32_t i = 1; i <= N; i++)
        wire_send(wire, &i, sizeof i);
    wire_await_messages(wire, N);
    uint32_t last;
    memcpy(&last, wire->last, sizeof last);
    assert_int_equal(last, N);
    assert_true(wire->in_order);
    assert_true(node_accepted(&pair->server, 1)->in_order);
}

static void many_conns(void **state)
{
    enum { N = 40 };
    struct pair *pair = *state;
    struct wire *wires[N];
    for (int i = 0; i < N; i++) {
        wires[i] = dial(pair);
        for (int j = 0; j <= i; j++)
            wire_send(wires[i], &i, sizeof i);
    }
    for (int i = 0; i < N; i++) {
        wire_await_messages(wires[i], (size_t)i + 1);
        assert_memory_equal(wires[i]->last, &i, sizeof i);
        wire_close(wires[i], i % 2);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(wire_await_closed(wires[i]), i % 2 ? TETHER_OK : TETHER_ECANCELED);
}

static void both_ends_know_the_other(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = dial(pair);
    wire_await_opened(wire);
    assert_string_equal(wire->conn->peer, pair->server.transport->address);
    struct wire *accepted = node_accepted(&pair->server, 1);
    assert_memory_equal(accepted->conn->peer, "ipv4:127.0.0.1:", 15);
    assert_int_equal(accepted->n_names, -1);
}

/* ---- Limits ---- */

static void too_large_to_send(void **state)
{
    struct wire *other = dial(*state), *wire = dial(*state);
    char *data = pattern(LIMIT + 1);
    wire_send(wire, data, LIMIT + 1);
    assert_int_equal(wire_await_closed(wire), TETHER_ETOOBIG);
    assert_non_null(strstr(wire->why, "1048577"));
    wire_send(other, "x", 1);
    wire_await_messages(other, 1);
    free(data);
}

static void too_large_to_receive(void **state)
{
    struct pair *pair = *state;
    struct node generous;
    node_start(&generous, &(struct tether__transport_opts){.max_message_bytes = 4 * LIMIT});
    struct wire *other = dial(pair);
    wire_send(other, "x", 1);
    wire_await_messages(other, 1);
    struct wire *wire = node_dial(&generous, pair->server.transport->address);
    char *data = pattern(2 * LIMIT);
    wire_send(wire, data, 2 * LIMIT);
    assert_int_equal(wire_await_closed(wire), TETHER_ETOOBIG);
    struct wire *accepted = node_accepted(&pair->server, 2);
    assert_int_equal(wire_await_closed(accepted), TETHER_ETOOBIG);
    assert_int_equal(accepted->n_messages, 0);
    wire_send(other, "y", 1);
    wire_await_messages(other, 2);
    free(data);
    node_stop(&generous);
}

static void too_large_an_answer(void **state)
{
    struct pair *pair = *state;
    struct node modest;
    node_start(&modest, &(struct tether__transport_opts){.max_message_bytes = 1000});
    pair->server.mute = true;
    struct wire *wire = node_dial(&modest, pair->server.transport->address);
    char *data = pattern(LIMIT);
    wire_send(node_accepted(&pair->server, 1), data, LIMIT);
    assert_int_equal(wire_await_closed(wire), TETHER_ETOOBIG);
    assert_int_equal(wire_await_closed(node_accepted(&pair->server, 1)), TETHER_EUNAVAILABLE);
    free(data);
    node_stop(&modest);
}

/* ---- The ways to end ---- */

#define IN_FLIGHT 200

/* A message long enough that most of them are still under way when the last has been queued. */
static void send_many(struct wire *wire)
{
    char *data = pattern(50000);
    for (size_t i = 1; i <= IN_FLIGHT; i++)
        wire_send(wire, data, 50000);
    free(data);
}

static void polite_close_by_the_dialler(void **state)
{
    struct pair *pair = *state;
    pair->server.mute = true;
    struct wire *wire = dial(pair);
    send_many(wire);
    wire_await_sent(wire, IN_FLIGHT - 1);
    wire_close(wire, true); /* with the last under way */
    wire_close(wire, true);
    assert_int_equal(wire_await_closed(wire), TETHER_OK);
    struct wire *accepted = node_accepted(&pair->server, 1);
    assert_int_equal(wire_await_closed(accepted), TETHER_OK);
    assert_int_equal(accepted->n_messages, IN_FLIGHT);
    assert_int_equal(accepted->n_bytes, IN_FLIGHT * 50000);
}

static void polite_close_by_the_listener(void **state)
{
    struct pair *pair = *state;
    pair->server.mute = true;
    struct wire *wire = dial(pair), *accepted = node_accepted(&pair->server, 1);
    send_many(accepted);
    wire_await_sent(accepted, IN_FLIGHT - 1);
    wire_close(accepted, true);
    assert_int_equal(wire_await_closed(wire), TETHER_OK);
    assert_int_equal(wire_await_closed(accepted), TETHER_OK);
    assert_int_equal(wire->n_messages, IN_FLIGHT);
}

static void both_close_politely(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = dial(pair), *accepted = node_accepted(&pair->server, 1);
    wire_close(wire, true);
    wire_close(accepted, true);
    assert_int_equal(wire_await_closed(wire), TETHER_OK);
    assert_int_equal(wire_await_closed(accepted), TETHER_OK);
}

static void abrupt_close_by_the_dialler(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = dial(pair);
    send_many(wire);
    wire_await_messages(wire, 3);
    wire_close(wire, false);
    wire_close(wire, true); /* does nothing any more */
    assert_int_equal(wire_await_closed(wire), TETHER_ECANCELED);
    assert_int_equal(wire_await_closed(node_accepted(&pair->server, 1)), TETHER_EUNAVAILABLE);
}

static void abrupt_close_by_the_listener(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = dial(pair), *accepted = node_accepted(&pair->server, 1);
    send_many(wire);
    wire_await_messages(accepted, 3);
    wire_close(accepted, false);
    assert_int_equal(wire_await_closed(accepted), TETHER_ECANCELED);
    assert_int_equal(wire_await_closed(wire), TETHER_EUNAVAILABLE);
    assert_non_null(strstr(wire->why, "broke"));
}

static void sends_after_the_end_are_dropped(void **state)
{
    struct wire *wire = dial(*state);
    char *data = pattern(10000);
    wire_close(wire, false);
    wire_send(wire, data, 10000);
    assert_int_equal(wire_await_closed(wire), TETHER_ECANCELED);
    wire_send(wire, data, 10000);
    free(data);
}

static void all_open_at_stop(void **state)
{
    enum { N = 10 };
    struct pair *pair = *state;
    struct wire *wires[N];
    for (int i = 0; i < N; i++) {
        wires[i] = dial(pair);
        send_many(wires[i]);
    }
    for (int i = 0; i < N; i++)
        wire_await_messages(wires[i], 1);
    pair->server.transport->ops->stop(pair->server.transport);
    for (int i = 0; i < N; i++) {
        assert_int_equal(wire_await_closed(wires[i]), TETHER_EUNAVAILABLE);
        assert_int_equal(wire_await_closed(node_accepted(&pair->server, i + 1)), TETHER_ESHUTDOWN);
    }
    /* The other way round: the dialler stops with dials under way. */
    for (int i = 0; i < N; i++)
        wires[i] = dial(pair);
    pair->client.transport->ops->stop(pair->client.transport);
    for (int i = 0; i < N; i++) {
        tether_status st = wire_await_closed(wires[i]);
        assert_true(st == TETHER_ESHUTDOWN || st == TETHER_EUNAVAILABLE);
    }
    assert_null(node_try_dial(&pair->client, "127.0.0.1:1"));
}

/* ---- Dialling what is not there ---- */

static void refused(void **state)
{
    struct pair *pair = *state;
    char address[256];
    struct node other;
    node_start(&other, &listening);
    snprintf(address, sizeof address, "%s", other.transport->address);
    node_stop(&other);

    for (int i = 0; i < 3; i++) { /* none waits for the backoff of another */
        struct wire *wire = node_dial(&pair->client, address);
        assert_int_equal(wire_await_closed(wire), TETHER_EUNAVAILABLE);
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

static void no_answer_in_time(void **state)
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

static void peer_that_hangs_up(void **state)
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

static void bad_addresses(void **state)
{
    static const char *const addresses[] = {
        "",     "nonsense", "127.0.0.1", "127.0.0.1:notaport",   "127.0.0.1:99999999",
        "[::1", "::1:5",    "unix:",     "unix:/does/not/exist", "ftp://x:1/",
        ":",
    };
    struct pair *pair = *state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(addresses); i++) {
        struct wire *wire = node_dial(&pair->client, addresses[i]);
        assert_int_equal(wire_await_closed(wire), TETHER_EUNAVAILABLE);
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
    /* With another address that is fine: nothing may stay bound. */
    opts = (struct tether__transport_opts){.listen = "127.0.0.1:0", .listen_also = address};
    assert_int_equal(node_try_start(&node, &opts, &error), expected);
}

static void taken_and_impossible_addresses(void **state)
{
    struct pair *pair = *state;
    listen_fails(pair->server.transport->address, TETHER_EADDRINUSE, "another process does");
    listen_fails("203.0.113.1:0", TETHER_EINVAL, "no such address");
    listen_fails("nonsense", TETHER_EINVAL, "host:port");
    listen_fails("127.0.0.1:notaport", TETHER_EINVAL, "127.0.0.1:notaport");
}

static void ipv6(void **state)
{
    struct pair *pair = *state;
    struct node node;
    tether_error error;
    if (node_try_start(&node, &(struct tether__transport_opts){.listen = "[::1]:0"}, &error))
        skip(); /* a machine without IPv6 */
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
    return set_up(state);
}

static int tear_down_unix(void **state)
{
    tear_down(state);
    unlink(socket_path);
    return rmdir(folder);
}

static void unix_socket_beside_tcp(void **state)
{
    struct pair *pair = *state;
    struct node node;
    struct stat st;
    node_start(&node, &(struct tether__transport_opts){.listen = "127.0.0.1:0",
                                                       .listen_also = socket_address});
    assert_string_equal(node.transport->unix_address, socket_address);
    assert_int_equal(stat(socket_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    struct wire *a = node_dial(&pair->client, node.transport->unix_address),
                *b = node_dial(&pair->client, node.transport->address);
    char *data = pattern(LIMIT);
    wire_send(a, data, LIMIT);
    wire_send(b, data, LIMIT);
    wire_await_messages(a, 1);
    wire_await_messages(b, 1);
    free(data);
    node_stop(&node);
    assert_int_equal(stat(socket_path, &st), -1); /* it cleans up */
}

static void unix_socket_only(void **state)
{
    struct pair *pair = *state;
    struct node node;
    node_start(&node, &(struct tether__transport_opts){.listen = socket_address});
    assert_string_equal(node.transport->address, socket_address);
    assert_string_equal(node.transport->unix_address, "");
    listen_fails(socket_address, TETHER_EADDRINUSE, "another process does");
    struct wire *wire = node_dial(&pair->client, socket_address); /* it still works */
    wire_send(wire, "x", 1);
    wire_await_messages(wire, 1);
    node_stop(&node);
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

static void files_in_the_way_stay(void **state)
{
    (void)state;
    FILE *file = fopen(socket_path, "w");
    assert_non_null(file);
    fclose(file);
    listen_fails(socket_address, TETHER_EEXIST, "not a socket");
    assert_int_equal(access(socket_path, F_OK), 0);
    listen_fails("unix:/does/not/exist/at-all", TETHER_EIO, "gRPC");
    char long_path[200];
    snprintf(long_path, sizeof long_path, "unix:/tmp/%0120d", 1);
    listen_fails(long_path, TETHER_EINVAL, "longer than");
}

/* ---- Polling ---- */

static int64_t now(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

static void *wake_a_lot(void *transport)
{
    for (int i = 0; i < 1000; i++)
        ((struct tether__transport *)transport)->ops->wake(transport, TETHER__CLIENT);
    return NULL;
}

static void poll_waits_wakes_and_ends(void **state)
{
    (void)state;
    struct tether__transport *transport;
    struct tether__transport_opts opts = {.spin_us = 20};
    assert_int_equal(tether__transport_grpc_new(&opts, &transport, NULL), TETHER_OK);
    const struct tether__transport_ops *ops = transport->ops;
    struct tether__grpc_stats *stats = &tether__grpc_of(transport)->stats;

    int64_t begin = now();
    assert_true(ops->poll(transport, TETHER__CLIENT, begin + 20 * TETHER__NS_PER_MS));
    assert_true(now() - begin >= 20 * TETHER__NS_PER_MS);
    assert_true(ops->poll(transport, TETHER__CLIENT, begin)); /* has passed */

    ops->wake(transport, TETHER__CLIENT); /* before the poll that it is for */
    assert_true(ops->poll(transport, TETHER__CLIENT, TETHER__NEVER));

    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_a_lot, transport), 0);
    assert_true(ops->poll(transport, TETHER__CLIENT, TETHER__NEVER)); /* blocked or not */
    pthread_join(thread, NULL);
    assert_true(ops->poll(transport, TETHER__CLIENT, now()));

    /* Nobody polls: any number of wake-ups is one event. */
    unsigned long long wakes = atomic_load(&stats->wakes);
    wake_a_lot(transport);
    assert_int_equal(atomic_load(&stats->wakes), wakes + 1);

    ops->wake(transport, TETHER__SERVER);
    ops->stop(transport);
    while (ops->poll(transport, TETHER__CLIENT, TETHER__NEVER)) {
    }
    while (ops->poll(transport, TETHER__SERVER, TETHER__NEVER)) {
    }
    ops->wake(transport, TETHER__CLIENT); /* harmless */
    assert_false(ops->poll(transport, TETHER__CLIENT, TETHER__NEVER));
    ops->destroy(transport);
}

static void spin_that_does_not_pay_is_given_up(void **state)
{
    (void)state;
    struct tether__transport *transport;
    struct tether__transport_opts opts = {.spin_us = 20};
    assert_int_equal(tether__transport_grpc_new(&opts, &transport, NULL), TETHER_OK);
    struct tether__grpc_stats *stats = &tether__grpc_of(transport)->stats;
    for (int i = 0; i < 200; i++)
        transport->ops->poll(transport, TETHER__CLIENT, now() + TETHER__NS_PER_MS / 10);
    assert_int_equal(atomic_load(&stats->spin_hits), 0);
    assert_true(atomic_load(&stats->spin_misses) < 20); /* 0 on a single CPU */
    transport->ops->destroy(transport);
}

static void bad_options(void **state)
{
    (void)state;
    struct tether__transport *transport;
    struct tether__transport_opts opts = {.max_message_bytes = (size_t)1 << 40};
    tether_error error;
    assert_int_equal(tether__transport_grpc_new(&opts, &transport, &error), TETHER_EINVAL);
    transport = NULL;
    opts.max_message_bytes = 0;
    assert_int_equal(tether__transport_grpc_new(&opts, &transport, &error), TETHER_OK);
    transport->ops->destroy(transport); /* never started */
}

/* ---- Out of memory ---- */

static tether_status round_trip(void *userdata)
{
    (void)userdata;
    struct node server = {0}, client = {0};
    tether_status st = node_try_start(&server, &listening, NULL);
    if (st != TETHER_OK)
        return st;
    st = node_try_start(&client, &dialling, NULL);
    if (st != TETHER_OK)
        goto undo_server;
    struct wire *wire = node_try_dial(&client, server.transport->address);
    if (wire) {
        char *data = pattern(300000);
        wire_send(wire, "x", 1);
        wire_send(wire, data, 300000);
        st = wire_await_either(wire, 2);
        free(data);
    }
    if (!wire || st != TETHER_OK)
        st = TETHER_ENOMEM; /* one end has no memory, the other hears that the conn broke */
    node_stop(&client);
undo_server:
    node_stop(&server);
    return st;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    tether_test_heap_fail_each(round_trip, NULL);
    assert_int_equal(wire_live_blocks(), 0);
}

#define IN_PAIR(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define WITH_UNIX(test) cmocka_unit_test_setup_teardown(test, set_up_unix, tear_down_unix)

static const struct CMUnitTest tests[] = {
    IN_PAIR(echo_of_all_sizes),
    IN_PAIR(pieces_arrive_as_one_message),
    IN_PAIR(messages_keep_their_order),
    IN_PAIR(many_conns),
    IN_PAIR(both_ends_know_the_other),
    IN_PAIR(too_large_to_send),
    IN_PAIR(too_large_to_receive),
    IN_PAIR(too_large_an_answer),
    IN_PAIR(polite_close_by_the_dialler),
    IN_PAIR(polite_close_by_the_listener),
    IN_PAIR(both_close_politely),
    IN_PAIR(abrupt_close_by_the_dialler),
    IN_PAIR(abrupt_close_by_the_listener),
    IN_PAIR(sends_after_the_end_are_dropped),
    IN_PAIR(all_open_at_stop),
    IN_PAIR(refused),
    cmocka_unit_test(no_answer_in_time),
    IN_PAIR(peer_that_hangs_up),
    IN_PAIR(bad_addresses),
    IN_PAIR(taken_and_impossible_addresses),
    IN_PAIR(ipv6),
    WITH_UNIX(unix_socket_beside_tcp),
    WITH_UNIX(unix_socket_only),
    WITH_UNIX(stale_unix_socket_is_replaced),
    WITH_UNIX(files_in_the_way_stay),
    cmocka_unit_test(poll_waits_wakes_and_ends),
    cmocka_unit_test(spin_that_does_not_pay_is_given_up),
    cmocka_unit_test(bad_options),
    cmocka_unit_test(every_allocation_may_fail),
};

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
