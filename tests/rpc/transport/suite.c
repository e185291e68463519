/* Tests that every transport passes, with two instances in one process: messages of all sizes,
 * limits, and the ways in which a conn ends. */
#include "tests/rpc/transport/suite.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/rpc/lib/transport_node.h"

/* ---- Messages ---- */

static void messages_of_all_sizes_arrive(void **state)
{
    static const size_t sizes[] = {
        0, 1, 23, 24, 64, 4095, 4096, 4097, 16384, 65536, PAIR_LIMIT - 10, PAIR_LIMIT, 7};
    struct wire *wire = pair_dial(*state);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        char *data = node_pattern(sizes[i]);
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
    struct wire *wire = pair_dial(*state);
    size_t len = 0;
    for (size_t i = 0; i < N; i++) {
        size_t piece_len = i % 5 == 0 ? 0 : i % 3 == 0 ? 9000 + i : i;
        char *data = node_pattern(piece_len);
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

/* More than one system call can take (IOV_MAX). */
static void message_of_very_many_pieces_arrives(void **state)
{
    enum { N = 3000 };
    static struct tether__slice pieces[N];
    struct wire *wire = pair_dial(*state);
    char *expected = node_pattern(N * 100), *at = expected;
    for (size_t i = 0; i < N; i++) {
        pieces[i] = (struct tether__slice){(const uint8_t *)at, i % 200, NULL};
        at += i % 200;
    }
    wire_send_pieces(wire, pieces, N);
    wire_await_messages(wire, 1);
    assert_int_equal(wire->last_len, at - expected);
    assert_memory_equal(wire->last, expected, wire->last_len);
    free(expected);
}

static void messages_keep_their_order(void **state)
{
    enum { N = 3000 };
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    for (uint32_t i = 1; i <= N; i++)
        wire_send(wire, &i, sizeof i);
    wire_await_messages(wire, N);
    uint32_t last;
    memcpy(&last, wire->last, sizeof last);
    assert_int_equal(last, N);
    assert_true(wire->in_order);
    assert_true(node_accepted(&pair->server, 1)->in_order);
}

static void many_conns_work_side_by_side(void **state)
{
    enum { N = 40 };
    struct pair *pair = *state;
    struct wire *wires[N];
    for (int i = 0; i < N; i++) {
        wires[i] = pair_dial(pair);
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

struct sender {
    struct wire *wire;
    pthread_t thread;
};

static void *send_numbers(void *arg)
{
    struct sender *sender = arg;
    static const size_t lens[] = {4, 100, 70000, 4000};
    char *data = node_pattern(70000);
    for (uint32_t i = 1; i <= 400; i++) {
        memcpy(data, &i, sizeof i);
        wire_send(sender->wire, data, lens[i % 4]);
    }
    free(data);
    return NULL;
}

static void threads_send_on_conns_of_their_own(void **state)
{
    enum { N = 3 };
    struct pair *pair = *state;
    struct sender senders[N];
    for (int i = 0; i < N; i++) {
        senders[i].wire = pair_dial(pair);
        assert_int_equal(pthread_create(&senders[i].thread, NULL, send_numbers, &senders[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(senders[i].thread, NULL);
        wire_await_messages(senders[i].wire, 400);
        assert_true(senders[i].wire->in_order);
        wire_close(senders[i].wire, true);
        assert_int_equal(wire_await_closed(senders[i].wire), TETHER_OK);
    }
}

/* Closes of all kinds while others send and receive. */
static void *close_abruptly(void *arg)
{
    wire_close(((struct sender *)arg)->wire, false);
    return NULL;
}

static void conn_may_be_closed_while_another_thread_sends(void **state)
{
    struct pair *pair = *state;
    for (int i = 0; i < 20; i++) {
        struct sender sender = {.wire = pair_dial(pair)}, closer = sender;
        assert_int_equal(pthread_create(&sender.thread, NULL, send_numbers, &sender), 0);
        if (i % 2)
            wire_await_messages(sender.wire, (size_t)i);
        assert_int_equal(pthread_create(&closer.thread, NULL, close_abruptly, &closer), 0);
        assert_int_equal(wire_await_closed(sender.wire), TETHER_ECANCELED);
        pthread_join(closer.thread, NULL);
        pthread_join(sender.thread, NULL);
    }
}

static void conn_has_the_address_of_its_peer(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
    wire_await_opened(wire);
    assert_string_equal(wire->conn->peer, pair->server.transport->address);
    struct wire *accepted = node_accepted(&pair->server, 1);
    if (node_kind->is_unix)
        assert_memory_equal(accepted->conn->peer, "process ", 8);
    else
        assert_memory_equal(accepted->conn->peer, "ipv4:127.0.0.1:", 15);
    assert_int_equal(accepted->n_names, -1);
}

static void messages_may_outlive_the_transport(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 23, 500, 4095, 4096, 30000, 500000};
    struct node server, client;
    node_start(&server, &(struct tether__transport_opts){.listen = node_listen()});
    node_start(&client, &(struct tether__transport_opts){0});
    client.retains = true;
    struct wire *wire = node_dial(&client, server.transport->address);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        char *data = node_pattern(sizes[i]);
        wire_send(wire, data, sizes[i]);
        wire_await_messages(wire, i + 1);
        free(data);
    }
    node_stop(&client);
    node_stop(&server);
    assert_int_equal(client.n_retained, TETHER__ARRAY_LEN(sizes));
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        char *data = node_pattern(sizes[i]);
        assert_int_equal(client.retained[i].len, sizes[i]);
        assert_memory_equal(client.retained[i].data, data, sizes[i]);
        tether__slice_release(client.retained[i]);
        free(data);
    }
}

/* ---- Limits ---- */

static void conn_ends_when_a_message_is_too_large_to_send(void **state)
{
    struct wire *other = pair_dial(*state), *wire = pair_dial(*state);
    char *data = node_pattern(PAIR_LIMIT + 1);
    wire_send(wire, data, PAIR_LIMIT + 1);
    assert_int_equal(wire_await_closed(wire), TETHER_ETOOBIG);
    assert_non_null(strstr(wire->why, "1048577"));
    wire_send(other, "x", 1);
    wire_await_messages(other, 1);
    free(data);
}

static void conn_ends_when_a_message_is_too_large_to_receive(void **state)
{
    struct pair *pair = *state;
    struct node generous;
    node_start(&generous, &(struct tether__transport_opts){.max_message_bytes = 4 * PAIR_LIMIT});
    struct wire *other = pair_dial(pair);
    wire_send(other, "x", 1);
    wire_await_messages(other, 1);
    struct wire *wire = node_dial(&generous, pair->server.transport->address);
    char *data = node_pattern(2 * PAIR_LIMIT);
    wire_send(wire, data, 2 * PAIR_LIMIT);
    /* Only gRPC tells the other end why. */
    assert_int_equal(wire_await_closed(wire),
                     node_kind->is_unix ? TETHER_EUNAVAILABLE : TETHER_ETOOBIG);
    struct wire *accepted = node_accepted(&pair->server, 2);
    assert_int_equal(wire_await_closed(accepted), TETHER_ETOOBIG);
    assert_int_equal(accepted->n_messages, 0);
    wire_send(other, "y", 1);
    wire_await_messages(other, 2);
    free(data);
    node_stop(&generous);
}

static void conn_ends_when_an_answer_is_too_large(void **state)
{
    struct pair *pair = *state;
    struct node modest;
    node_start(&modest, &(struct tether__transport_opts){.max_message_bytes = 1000});
    pair->server.mute = true;
    struct wire *wire = node_dial(&modest, pair->server.transport->address);
    char *data = node_pattern(PAIR_LIMIT);
    wire_send(node_accepted(&pair->server, 1), data, PAIR_LIMIT);
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
    char *data = node_pattern(50000);
    for (size_t i = 1; i <= IN_FLIGHT; i++)
        wire_send(wire, data, 50000);
    free(data);
}

static void graceful_close_by_the_dialler(void **state)
{
    struct pair *pair = *state;
    pair->server.mute = true;
    struct wire *wire = pair_dial(pair);
    send_many(wire);
    wire_await_sent(wire, IN_FLIGHT - 1);
    wire_close(wire, true); /* while the last message is being sent */
    wire_close(wire, true);
    assert_int_equal(wire_await_closed(wire), TETHER_OK);
    struct wire *accepted = node_accepted(&pair->server, 1);
    assert_int_equal(wire_await_closed(accepted), TETHER_OK);
    assert_int_equal(accepted->n_messages, IN_FLIGHT);
    assert_int_equal(accepted->n_bytes, IN_FLIGHT * 50000);
}

static void graceful_close_by_the_listener(void **state)
{
    struct pair *pair = *state;
    pair->server.mute = true;
    struct wire *wire = pair_dial(pair), *accepted = node_accepted(&pair->server, 1);
    send_many(accepted);
    wire_await_sent(accepted, IN_FLIGHT - 1);
    wire_close(accepted, true);
    assert_int_equal(wire_await_closed(wire), TETHER_OK);
    assert_int_equal(wire_await_closed(accepted), TETHER_OK);
    assert_int_equal(wire->n_messages, IN_FLIGHT);
}

static void both_ends_close_gracefully(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair), *accepted = node_accepted(&pair->server, 1);
    wire_close(wire, true);
    wire_close(accepted, true);
    assert_int_equal(wire_await_closed(wire), TETHER_OK);
    assert_int_equal(wire_await_closed(accepted), TETHER_OK);
}

static void abrupt_close_by_the_dialler(void **state)
{
    struct pair *pair = *state;
    struct wire *wire = pair_dial(pair);
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
    struct wire *wire = pair_dial(pair), *accepted = node_accepted(&pair->server, 1);
    send_many(wire);
    wire_await_opened(wire); /* its messages may arrive before it hears that it was accepted */
    wire_await_messages(accepted, 3);
    wire_close(accepted, false);
    assert_int_equal(wire_await_closed(accepted), TETHER_ECANCELED);
    assert_int_equal(wire_await_closed(wire), TETHER_EUNAVAILABLE);
    assert_non_null(strstr(wire->why, "broke"));
}

static void sends_after_the_end_are_dropped(void **state)
{
    struct wire *wire = pair_dial(*state);
    char *data = node_pattern(10000);
    wire_close(wire, false);
    wire_send(wire, data, 10000);
    assert_int_equal(wire_await_closed(wire), TETHER_ECANCELED);
    wire_send(wire, data, 10000);
    free(data);
}

static void stop_closes_all_open_conns(void **state)
{
    enum { N = 10 };
    struct pair *pair = *state;
    struct wire *wires[N];
    for (int i = 0; i < N; i++) {
        wires[i] = pair_dial(pair);
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
        wires[i] = pair_dial(pair);
    pair->client.transport->ops->stop(pair->client.transport);
    for (int i = 0; i < N; i++) {
        tether_status st = wire_await_closed(wires[i]);
        assert_true(st == TETHER_ESHUTDOWN || st == TETHER_EUNAVAILABLE || st == TETHER_ENOTFOUND);
    }
    assert_null(node_try_dial(&pair->client, node_listen()));
}

/* ---- Out of memory ---- */

static tether_status round_trip(void *userdata)
{
    (void)userdata;
    struct node server = {0}, client = {0};
    const struct tether__transport_opts listening = {.listen = node_listen()}, dialling = {0};
    tether_status st = node_try_start(&server, &listening, NULL);
    if (st != TETHER_OK)
        return st;
    st = node_try_start(&client, &dialling, NULL);
    if (st != TETHER_OK)
        goto undo_server;
    struct wire *wire = node_try_dial(&client, server.transport->address);
    if (wire) {
        char *data = node_pattern(300000);
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

static void transport_survives_failed_allocations(void **state)
{
    (void)state;
    tether_test_heap_fail_each(round_trip, NULL);
    assert_int_equal(wire_live_blocks(), 0);
}

#define IN_PAIR(test) cmocka_unit_test_setup_teardown(test, pair_set_up, pair_tear_down)

static const struct CMUnitTest tests[] = {
    IN_PAIR(messages_of_all_sizes_arrive),
    IN_PAIR(pieces_arrive_as_one_message),
    IN_PAIR(message_of_very_many_pieces_arrives),
    IN_PAIR(messages_keep_their_order),
    IN_PAIR(many_conns_work_side_by_side),
    IN_PAIR(threads_send_on_conns_of_their_own),
    IN_PAIR(conn_may_be_closed_while_another_thread_sends),
    IN_PAIR(conn_has_the_address_of_its_peer),
    cmocka_unit_test(messages_may_outlive_the_transport),
    IN_PAIR(conn_ends_when_a_message_is_too_large_to_send),
    IN_PAIR(conn_ends_when_a_message_is_too_large_to_receive),
    IN_PAIR(conn_ends_when_an_answer_is_too_large),
    IN_PAIR(graceful_close_by_the_dialler),
    IN_PAIR(graceful_close_by_the_listener),
    IN_PAIR(both_ends_close_gracefully),
    IN_PAIR(abrupt_close_by_the_dialler),
    IN_PAIR(abrupt_close_by_the_listener),
    IN_PAIR(sends_after_the_end_are_dropped),
    IN_PAIR(stop_closes_all_open_conns),
    cmocka_unit_test(transport_survives_failed_allocations),
};

int transport_suite(const struct node_kind *kind)
{
    node_kind = kind;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
