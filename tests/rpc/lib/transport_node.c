/* A transport with two pollers and a record. */
#include "tests/rpc/lib/transport_node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

/* ---- Kinds ---- */

const struct node_kind node_grpc = {.make = tether__transport_grpc_new},
                       node_unix = {.make = tether__transport_unix_new, .is_unix = true},
                       node_unix_spin = {.make = tether__transport_unix_new,
                                         .is_unix = true,
                                         .spin_us = 50};
const struct node_kind *node_kind = &node_grpc;

const char *node_listen(void)
{
    static char address[64];
    static int n;
    if (!node_kind->is_unix)
        return "127.0.0.1:0";
    /* Tests in sandboxes of their own may have the same process id, and share these names. */
    snprintf(address, sizeof address, "unix-abstract:tether-node-%08x-%d", arc4random(), n++);
    return address;
}

/* ---- Waiting ---- */

typedef bool condition(void *subject, size_t n);

/* Waits for `holds`, or for the end of `wire` (when not NULL); tells whether it holds. */
static bool await(struct node *node,
                  struct wire *wire,
                  condition *holds,
                  void *subject,
                  size_t n,
                  const char *what)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += TETHER_TEST_LIMIT_MS / 1000;
    bool held, in_time = true;
    pthread_mutex_lock(&node->mu);
    while (!(held = holds(subject, n)) && !(wire && wire->closed) && in_time)
        in_time = pthread_cond_timedwait(&node->changed, &node->mu, &limit) == 0;
    pthread_mutex_unlock(&node->mu);
    if (!in_time)
        fail_msg("still no %s after %d ms", what, TETHER_TEST_LIMIT_MS);
    return held;
}

static bool is_opened(void *wire, size_t n)
{
    (void)n;
    return ((struct wire *)wire)->opened;
}

static bool is_closed(void *wire, size_t n)
{
    (void)n;
    return ((struct wire *)wire)->closed;
}

static bool has_messages(void *wire, size_t n)
{
    return ((struct wire *)wire)->n_messages >= n;
}

static bool has_sent(void *wire, size_t n)
{
    return ((struct wire *)wire)->n_sent >= n;
}

static bool has_accepted(void *node, size_t n)
{
    return ((struct node *)node)->n_accepted >= (int)n;
}

void wire_await_opened(struct wire *wire)
{
    if (!await(wire->node, wire, is_opened, wire, 0, "opened()"))
        fail_msg("closed instead of opened: %s", wire->why);
}

void wire_await_messages(struct wire *wire, size_t n)
{
    if (!await(wire->node, wire, has_messages, wire, n, "message()"))
        fail_msg("closed after %zu of %zu messages: %s", wire->n_messages, n, wire->why);
}

void wire_await_sent(struct wire *wire, size_t n)
{
    if (!await(wire->node, wire, has_sent, wire, n, "sent()"))
        fail_msg("closed after %zu of %zu were sent: %s", wire->n_sent, n, wire->why);
}

tether_status wire_await_closed(struct wire *wire)
{
    await(wire->node, NULL, is_closed, wire, 0, "closed()");
    return wire->status;
}

tether_status wire_await_either(struct wire *wire, size_t n_messages)
{
    bool came = await(wire->node, wire, has_messages, wire, n_messages, "message() or closed()");
    return came ? TETHER_OK : wire->status;
}

/* ---- Sending, one at a time ---- */

struct outgoing {
    struct tether__list in_wire;
    size_t n;
    struct tether__slice pieces[];
};

static struct outgoing *next_outgoing_locked(struct wire *wire)
{
    if (wire->sending)
        return NULL;
    struct tether__list *node = tether__list_pop_front(&wire->outgoing);
    wire->sending = node;
    return node ? tether__list_entry(node, struct outgoing, in_wire) : NULL;
}

static void pump(struct wire *wire)
{
    struct node *node = wire->node;
    bool out = true;
    pthread_mutex_lock(&node->mu);
    for (struct outgoing *next; out && (next = next_outgoing_locked(wire));) {
        pthread_mutex_unlock(&node->mu);
        out = node->transport->ops->send(wire->conn, next->pieces, next->n);
        free(next);
        pthread_mutex_lock(&node->mu);
        if (out) {
            wire->sending = false;
            wire->n_sent++;
            pthread_cond_broadcast(&node->changed);
        }
    }
    pthread_mutex_unlock(&node->mu);
}

void wire_send_pieces(struct wire *wire, const struct tether__slice *pieces, size_t n)
{
    struct outgoing *outgoing = malloc(sizeof *outgoing + n * sizeof *pieces);
    assert_non_null(outgoing);
    outgoing->n = n;
    for (size_t i = 0; i < n; i++)
        outgoing->pieces[i] = tether__slice_retain(pieces[i]);
    pthread_mutex_lock(&wire->node->mu);
    tether__list_push_back(&wire->outgoing, &outgoing->in_wire);
    pthread_mutex_unlock(&wire->node->mu);
    pump(wire);
}

void wire_send(struct wire *wire, const void *data, size_t len)
{
    struct tether__slice block = wire_block(data, len);
    wire_send_pieces(wire, &block, 1);
    tether__slice_release(block);
}

/* ---- Events ---- */

static void note_names(struct wire *wire, const char *const *names)
{
    for (int i = 0; names && (wire->n_names = i) < WIRE_MAX_NAMES && names[i]; i++)
        snprintf(wire->names[i], sizeof wire->names[i], "%s", names[i]);
}

static void on_opened(struct tether__conn *conn, const char *const *names)
{
    struct wire *wire = conn->userdata;
    pthread_mutex_lock(&wire->node->mu);
    note_names(wire, names);
    wire->opened = true;
    pthread_cond_broadcast(&wire->node->changed);
    pthread_mutex_unlock(&wire->node->mu);
}

static void on_sent(struct tether__conn *conn)
{
    struct wire *wire = conn->userdata;
    pthread_mutex_lock(&wire->node->mu);
    wire->sending = false;
    pthread_mutex_unlock(&wire->node->mu);
    pump(wire);
    pthread_mutex_lock(&wire->node->mu);
    wire->n_sent++; /* last, so that a thread that waits for the count knows that the next send has
                       begun */
    pthread_cond_broadcast(&wire->node->changed);
    pthread_mutex_unlock(&wire->node->mu);
}

static void on_message(struct tether__conn *conn, struct tether__slice message)
{
    struct wire *wire = conn->userdata;
    if (wire->accepted_as && !wire->node->mute)
        wire_send_pieces(wire, &message, 1);
    char *copy = malloc(message.len + 1);
    assert_non_null(copy);
    if (message.len)
        memcpy(copy, message.data, message.len);
    pthread_mutex_lock(&wire->node->mu);
    struct node *node = wire->node;
    if (node->retains && !wire->accepted_as && node->n_retained < NODE_MAX_RETAINED)
        node->retained[node->n_retained++] = tether__slice_retain(message);
    free(wire->last);
    wire->last = copy;
    wire->last_len = message.len;
    wire->n_messages++;
    uint32_t number = 0;
    if (message.len >= sizeof number)
        memcpy(&number, message.data, sizeof number);
    wire->in_order &= number == wire->n_messages;
    wire->n_bytes += message.len;
    pthread_cond_broadcast(&wire->node->changed);
    pthread_mutex_unlock(&wire->node->mu);
}

static void on_closed(struct tether__conn *conn, tether_status status, const char *why)
{
    struct wire *wire = conn->userdata;
    pthread_mutex_lock(&wire->node->mu);
    assert_false(wire->closed); /* once */
    wire->status = status;
    snprintf(wire->why, sizeof wire->why, "%s", why);
    wire->closed = true;
    pthread_cond_broadcast(&wire->node->changed);
    pthread_mutex_unlock(&wire->node->mu);
}

static const struct tether__conn_events wire_events = {on_opened, on_message, on_sent, on_closed};

static struct wire *wire_new(struct node *node)
{
    struct wire *wire = calloc(1, sizeof *wire);
    assert_non_null(wire);
    wire->node = node;
    wire->n_names = -1;
    wire->in_order = true;
    tether__list_init(&wire->outgoing);
    return wire;
}

static void on_accepted(void *userdata, struct tether__conn *conn, const char *const *names)
{
    struct node *node = userdata;
    struct wire *wire = wire_new(node);
    wire->conn = conn;
    note_names(wire, names);
    conn->events = &wire_events;
    conn->userdata = wire;
    if (!node_kind->is_unix) /* those have tests of their limits for conns without proof */
        conn->transport->ops->proved(conn);
    pthread_mutex_lock(&node->mu);
    wire->accepted_as = ++node->n_accepted;
    tether__list_push_back(&node->wires, &wire->in_node);
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->mu);
}

static tether_status on_admit(void *userdata,
                              tether_bytes token,
                              const char *const *cert_names,
                              bool *ret_proved,
                              tether_error *reterr)
{
    struct node *node = userdata;
    node_on_admit *admit = node->on_admit;
    (void)cert_names;
    *ret_proved = admit;
    return admit ? admit(token, reterr) : TETHER_OK;
}

static void on_unary(void *userdata, struct tether__unary *unary)
{
    struct node *node = userdata;
    node_on_unary *answer = node->on_unary;
    if (answer)
        answer(unary);
    else
        unary->reply(unary, TETHER_OK, NULL, tether__slice_retain(unary->payload));
}

static const struct tether__transport_events node_events = {
    .accepted = on_accepted,
    .admit = on_admit,
    .unary = on_unary,
};

/* ---- Nodes ---- */

static void *poll_client(void *node)
{
    struct tether__transport *transport = ((struct node *)node)->transport;
    while (transport->ops->poll(transport, TETHER__CLIENT, TETHER__NEVER)) {
    }
    return NULL;
}

static void *poll_server(void *node)
{
    struct tether__transport *transport = ((struct node *)node)->transport;
    while (transport->ops->poll(transport, TETHER__SERVER, TETHER__NEVER)) {
    }
    return NULL;
}

tether_status node_try_start(struct node *node,
                             const struct tether__transport_opts *opts,
                             tether_error *reterr)
{
    struct tether__transport_opts all = *opts;
    all.events = &node_events;
    all.userdata = node;
    tether__list_init(&node->wires);
    node->n_accepted = 0;
    node->transport = NULL;
    node->mute = false;
    node->retains = false;
    node->n_retained = 0;
    node->on_admit = NULL;
    node->on_unary = NULL;
    pthread_mutex_init(&node->mu, NULL);
    pthread_cond_init(&node->changed, NULL);
    if (!all.spin_us)
        all.spin_us = node_kind->spin_us;
    tether_status st = node_kind->make(&all, &node->transport, reterr);
    if (st == TETHER_OK)
        st = node->transport->ops->start(node->transport, reterr);
    if (st != TETHER_OK) {
        if (node->transport)
            node->transport->ops->destroy(node->transport);
        pthread_cond_destroy(&node->changed);
        pthread_mutex_destroy(&node->mu);
        return st;
    }
    assert_int_equal(pthread_create(&node->pollers[0], NULL, poll_client, node), 0);
    assert_int_equal(pthread_create(&node->pollers[1], NULL, poll_server, node), 0);
    return TETHER_OK;
}

void node_start(struct node *node, const struct tether__transport_opts *opts)
{
    tether_error error = {0};
    if (node_try_start(node, opts, &error) != TETHER_OK)
        fail_msg("%s", error.message);
}

static void wire_free(struct wire *wire)
{
    struct tether__list *node;
    while ((node = tether__list_pop_front(&wire->outgoing))) {
        struct outgoing *outgoing = tether__list_entry(node, struct outgoing, in_wire);
        for (size_t i = 0; i < outgoing->n; i++)
            tether__slice_release(outgoing->pieces[i]);
        free(outgoing);
    }
    free(wire->last);
    free(wire);
}

void node_stop(struct node *node)
{
    const struct tether__transport_ops *ops = node->transport->ops;
    ops->stop(node->transport);
    ops->stop(node->transport); /* harmless */
    pthread_join(node->pollers[0], NULL);
    pthread_join(node->pollers[1], NULL);
    struct tether__list *in_node;
    while ((in_node = tether__list_pop_front(&node->wires))) {
        struct wire *wire = tether__list_entry(in_node, struct wire, in_node);
        assert_true(wire->closed);
        ops->conn_release(wire->conn);
        wire_free(wire);
    }
    ops->destroy(node->transport);
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->mu);
}

struct wire *node_try_dial(struct node *node, const char *address)
{
    struct wire *wire = wire_new(node);
    wire->conn = node->transport->ops->dial(node->transport, address, &wire_events, wire);
    if (!wire->conn) {
        wire_free(wire);
        return NULL;
    }
    pthread_mutex_lock(&node->mu);
    tether__list_push_back(&node->wires, &wire->in_node);
    pthread_mutex_unlock(&node->mu);
    return wire;
}

struct wire *node_dial(struct node *node, const char *address)
{
    struct wire *wire = node_try_dial(node, address);
    assert_non_null(wire);
    return wire;
}

struct wire *node_accepted(struct node *node, int n)
{
    await(node, NULL, has_accepted, node, (size_t)n, "accepted()");
    struct wire *found = NULL;
    pthread_mutex_lock(&node->mu);
    TETHER__LIST_FOR_EACH(it, &node->wires) {
        struct wire *wire = tether__list_entry(it, struct wire, in_node);
        if (wire->accepted_as == n)
            found = wire;
    }
    pthread_mutex_unlock(&node->mu);
    return found;
}

void wire_close(struct wire *wire, bool polite)
{
    wire->node->transport->ops->close(wire->conn, polite);
}

/* ---- Pairs ---- */

int pair_set_up(void **state)
{
    static struct pair pair;
    node_start(&pair.server, &(struct tether__transport_opts){.listen = node_listen(),
                                                              .max_message_bytes = PAIR_LIMIT});
    node_start(&pair.client, &(struct tether__transport_opts){.max_message_bytes = PAIR_LIMIT});
    *state = &pair;
    return 0;
}

int pair_tear_down(void **state)
{
    struct pair *pair = *state;
    node_stop(&pair->client);
    node_stop(&pair->server);
    assert_int_equal(wire_live_blocks(), 0);
    return 0;
}

struct wire *pair_dial(struct pair *pair)
{
    return node_dial(&pair->client, pair->server.transport->address);
}
