/* A transport with a user for tests: two threads that poll, and a record of the events of each
 * conn.
 *
 *     struct node server, client;
 *     node_start(&server, &(struct tether__transport_opts){.listen = "127.0.0.1:0"});
 *     node_start(&client, &(struct tether__transport_opts){0});
 *     struct wire *wire = node_dial(&client, server.transport->address);
 *     wire_send(wire, "hello", 5);
 *     wire_await_messages(wire, 1);
 *     node_stop(&client);
 *     node_stop(&server);
 *
 * A node answers what it accepts by sending the same back, unless `mute`. Every wait fails the test
 * at TETHER_TEST_LIMIT_MS. The memory of the tests themselves is not the library's, so that the
 * failing heap (heap.h) leaves it alone.
 */
#ifndef TETHER_TESTS_RPC_TRANSPORT_NODE_H
#define TETHER_TESTS_RPC_TRANSPORT_NODE_H

#include <pthread.h>

#include "base/list.h"
#include "rpc/transport/transport.h"

/* Which transport the nodes have. */
struct node_kind {
    tether_status (*make)(const struct tether__transport_opts *opts,
                          struct tether__transport **ret_transport,
                          tether_error *reterr);
    bool is_unix; /* listens on unix sockets only */
    int spin_us;  /* for nodes whose options have none */
};
extern const struct node_kind node_grpc, node_unix, node_unix_spin;
extern const struct node_kind *node_kind; /* node_grpc unless set; not while there are nodes */

/* Where a node of this kind can listen; each call may give another. Static memory. */
const char *node_listen(void);

#define NODE_MAX_RETAINED 8

typedef void node_on_unary(struct tether__unary *unary);
typedef tether_status node_on_admit(tether_bytes token, tether_error *reterr);

struct node {
    struct tether__transport *transport;
    pthread_t pollers[2];
    atomic_bool mute;                  /* accepted conns get no answers */
    atomic_bool retains;               /* fills `retained`; the test releases them */
    _Atomic(node_on_admit *) on_admit; /* NULL: admits every peer */
    _Atomic(node_on_unary *) on_unary; /* NULL: echoes the payload */
    /* under mu */
    struct tether__list wires;
    int n_accepted;
    struct tether__slice
        retained[NODE_MAX_RETAINED]; /* the first messages that it dialled for, retained */
    int n_retained;
    pthread_cond_t changed;
    pthread_mutex_t mu;
};

#define WIRE_MAX_NAMES 64

/* One conn as a test sees it; lives until node_stop(). Read the fields after a wait for them. */
struct wire {
    struct tether__list in_node;
    struct node *node;
    struct tether__conn *conn;
    int accepted_as; /* 1, 2, 3 ... ; 0: dialled */
    /* under node->mu */
    struct tether__list outgoing;
    bool sending, opened, closed;
    bool in_order; /* as long as each message begins with its number, from 1 on, as a uint32_t */
    size_t n_messages, n_sent, n_bytes;
    char *last; /* the last message */
    size_t last_len;
    tether_status status;
    char why[512];
    char names[WIRE_MAX_NAMES][64]; /* of the other end's certificate */
    int n_names;                    /* -1: none */
};

/* Makes and starts it; `opts` need neither events nor userdata. start() fails the test when it
 * cannot; try_start() tells. */
void node_start(struct node *node, const struct tether__transport_opts *opts);
tether_status node_try_start(struct node *node,
                             const struct tether__transport_opts *opts,
                             tether_error *reterr);

/* Stops it, joins the pollers, destroys it; asserts that every conn was told its end. */
void node_stop(struct node *node);

struct wire *node_dial(struct node *node, const char *address);
struct wire *node_try_dial(struct node *node, const char *address); /* NULL: out of memory */
/* The nth that was accepted, counted from 1; waits for it. */
struct wire *node_accepted(struct node *node, int n);

/* Queues a message, which goes out when those before it are sent. */
void wire_send(struct wire *wire, const void *data, size_t len);
void wire_send_pieces(struct wire *wire, const struct tether__slice *pieces, size_t n);

void wire_close(struct wire *wire, bool polite);
void wire_await_opened(struct wire *wire);
void wire_await_messages(struct wire *wire, size_t n);
void wire_await_sent(struct wire *wire, size_t n);
tether_status wire_await_closed(struct wire *wire);

/* Waits for messages or the end; TETHER_OK: they came. */
tether_status wire_await_either(struct wire *wire, size_t n_messages);

/* A listening node and one that dials it, as the state of a cmocka test; both take messages of up
 * to PAIR_LIMIT bytes. Tearing down asserts that no block is left. */
#define PAIR_LIMIT (1u << 20)
struct pair {
    struct node server, client;
};
int pair_set_up(void **state);
int pair_tear_down(void **state);
struct wire *pair_dial(struct pair *pair);

/* `len` bytes of which no two neighbours are alike; free() them. */
char *node_pattern(size_t len);

/* A counted copy of `data`; release it. */
struct tether__slice wire_block(const void *data, size_t len);

/* Such blocks that the transport has not released yet, in this process. */
long wire_live_blocks(void);

#endif
