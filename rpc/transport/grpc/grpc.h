/* Inside the gRPC transport: shared by its files, and included by no others.
 *
 *   transport/grpc/life.c    the transport itself: new, start, stop, destroy
 *   transport/grpc/poll.c    poll and wake of a side, the spin, deadlines, events that others take
 *   transport/grpc/conn.c    lane streams, dialled and accepted: begin, send, receive
 *   transport/grpc/close.c   how they end
 *   transport/grpc/listen.c  the listening server and the calls that it takes in
 *   transport/grpc/bind.c    the sockets that it listens on
 *   transport/grpc/accept.c  accepting connections
 *   transport/grpc/mismatch.c  answers to clients with TLS where there is none, or without
 *   transport/grpc/external.c  handing accepted connections to a gRPC server that has TLS
 *   transport/grpc/address.c addresses, and why one cannot be listened on
 *   transport/grpc/plain.c   unary calls, for clients that speak only gRPC
 *   transport/grpc/budget.c  what these calls may hold, all together
 *   transport/grpc/health.c  the health check
 *   transport/grpc/answer.c  calls that are answered once
 *   transport/grpc/unproved.c  connections whose clients have not shown who they are
 *   transport/grpc/tls.c     credentials and the names in certificates
 *   transport/grpc/buffer.c  slices of ours to and from slices of gRPC
 *
 * Each operation that gRPC completes is an embedded *op*. Its address is the tag.
 *
 * A side counts the `users` of its queue, which may start operations. The queue is shut down when
 * the last one has left after stop(), so no operation meets a queue that is shut.
 *
 * Lock order: conn->mu before transport->mu (take.h has a third). No event of the owner's runs
 * under them, though gRPC may release slices under conn->mu (see transport.h).
 */
#ifndef TETHER_RPC_TRANSPORT_GRPC_GRPC_H
#define TETHER_RPC_TRANSPORT_GRPC_GRPC_H

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/list.h"
#include "rpc/transport/grpc/budget.h"
#include "rpc/transport/grpc/unproved.h"
#include "rpc/transport/spin.h"
#include "rpc/transport/transport.h"

struct tether__grpc;

struct tether__grpc_op {
    void (*done)(struct tether__grpc_op *op, bool ok);
    /* of one that is left to the poller, under transport->mu */
    struct tether__grpc_op *next;
    bool ok;
};

/* The state of the thread that polls a side. TAKEN: it handles an event, and another thread takes
 * events from the queue; it must not ask the queue before that thread has finished. */
enum tether__grpc_poller { TETHER__GRPC_ASKS, TETHER__GRPC_HANDLES, TETHER__GRPC_TAKEN };

struct tether__grpc_side {
    struct tether__grpc *transport;
    grpc_completion_queue *queue;
    /* the poller's */
    struct tether__spin spin;
    struct tether__list resting; /* conns that have not been asked for their next message */
    /* any thread */
    atomic_bool emptied;     /* something was just sent: nothing is there by now */
    atomic_bool has_left;    /* `left` is not empty; written under transport->mu */
    atomic_int poller;       /* enum tether__grpc_poller */
    pthread_mutex_t take_mu; /* held by the thread that takes events beside the poller */
    struct tether__grpc_op woken;
    atomic_bool wake_pending;
    atomic_ullong polls;  /* how often the poller has begun to ask; 0: cpu_clock is not there yet */
    atomic_int cpu_clock; /* of the first thread that polled */
    _Atomic int64_t next_deadline; /* no conn of this side has an earlier one */
    /* under transport->mu */
    size_t users;
    bool shut;
    struct tether__list conns;    /* those that stop() still has to close */
    struct tether__list timed;    /* conns that have a deadline */
    struct tether__grpc_op *left; /* events that other threads took from the queue, oldest first */
};

struct tether__grpc_server;   /* transport/grpc/listen.c */
struct tether__grpc_received; /* transport/grpc/buffer.c: a received message, counted */

struct tether__grpc_stats {
    atomic_ullong batches;   /* grpc_call_start_batch() */
    atomic_ullong wakes;     /* wake-ups that reached the queue */
    atomic_ullong spin_hits; /* spins that saved a block */
    atomic_ullong spin_misses;
    atomic_ullong copies_in; /* received messages that were copied together */
};

struct tether__grpc {
    struct tether__transport base;
    /* immutable after new() */
    const struct tether__transport_events *events;
    void *userdata;
    char *listen;
    size_t max_message_bytes, max_unary_bytes;
    size_t max_plain_calls, max_plain_bytes;
    int64_t patience_ns; /* connect_timeout_ms */
    int expected_peers;
    bool late; /* new() and start() leave gRPC alone, and begin() starts it */
    bool has_tls, has_own_cert, own_cert_is_foreign;
    bool requires_cert;       /* of all clients */
    int64_t own_cert_ends_at; /* in seconds since 1970; 0: not known */
    char *server_name;
    /* immutable after new(), or after begin() */
    bool begun;         /* gRPC has started, so the next fields are set */
    grpc_channel *lame; /* a watch on it times out at once: how wake() makes an event */
    grpc_channel_credentials *dial_credentials;
    grpc_server_credentials *listen_credentials;
    grpc_resource_quota *quota; /* of memory for what is being received */
    struct tether__grpc_side sides[2];
    /* any thread */
    struct tether__grpc_unproved unproved;
    struct tether__grpc_stats stats;
    /* set by start() */
    struct tether__grpc_server *server;
    /* under mu */
    bool stopping;
    struct tether__list unanswered; /* unary calls that their owner has */
    struct tether__grpc_budget budget;
    size_t n_lent; /* pieces of messages that gRPC has not given back yet */
    pthread_cond_t none_lent;
    pthread_mutex_t mu;
};

/* How far the end of a conn has come; only ever goes down this list. */
enum tether__grpc_ending {
    TETHER__GRPC_IN_USE,
    TETHER__GRPC_LAST_SEND, /* close(polite) was called, or the peer is done: waits for the send */
    TETHER__GRPC_ENDED,     /* our half is closed; waits for the peer's */
    TETHER__GRPC_ABORTED,   /* canceled; waits for gRPC to say so */
};

struct tether__grpc_conn {
    struct tether__conn base;
    struct tether__grpc_side *side;
    grpc_channel *channel; /* NULL when accepted */
    grpc_call *call;
    char *peer;
    uint64_t unproved_id; /* of the connection; 0: its client has shown who it is */
    struct tether__grpc_op opened, received, sent, ended, over;
    atomic_uint refs; /* the transport until closed() has returned, the owner, and borrowers */
    atomic_bool mute; /* aborted: no more messages */
    /* the poller's */
    struct tether__list resting;
    bool is_open;
    grpc_byte_buffer *incoming;
    struct tether__grpc_received *spare;
    grpc_metadata_array initial_metadata, trailing_metadata;
    int canceled;
    grpc_status_code code;
    grpc_slice details;
    /* under mu */
    grpc_byte_buffer outgoing;
    unsigned pending; /* ops that have not come back */
    bool finished;    /* all have: closed() has been called, or is about to be */
    bool sending;
    bool settled; /* accepted, or opened() is called from here on: the next event is a message */
    enum tether__grpc_ending ending;
    tether_error abort_cause; /* TETHER_OK: was not aborted */
    pthread_mutex_t mu;
    /* under transport->mu */
    struct tether__list all, timed;
    int64_t deadline;
};

static inline struct tether__grpc *tether__grpc_of(struct tether__transport *transport)
{
    return tether__container_of(transport, struct tether__grpc, base);
}

/* ---- transport/grpc/life.c ---- */

grpc_arg tether__grpc_int_arg(const char *key, int64_t value);
grpc_arg tether__grpc_quota_arg(const struct tether__grpc *transport);

/* For both ends: gRPC without what costs each message something and does nothing for us. Its limit
 * on the length of a message is checked only when all of it is there, as we can ourselves
 * (is_too_large()); and what a compressed one grows to is known only when it has grown. */
#define TETHER__GRPC_COMMON_ARGS(transport)                                          \
    tether__grpc_int_arg(GRPC_ARG_MINIMAL_STACK, 1),                                 \
        tether__grpc_int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1), \
        tether__grpc_int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0), tether__grpc_quota_arg(transport)

/* ---- transport/grpc/poll.c ---- */

bool tether__grpc_poll(struct tether__transport *transport,
                       enum tether__side side,
                       int64_t deadline);
bool tether__grpc_poll_ready(struct tether__transport *transport, enum tether__side which);
void tether__grpc_wake(struct tether__transport *transport, enum tether__side side);

/* Becomes a user of the queue; false when the transport is stopping. */
bool tether__grpc_side_enter(struct tether__grpc_side *side);
bool tether__grpc_side_enter_locked(struct tether__grpc_side *side);
/* Stops being one; the last shuts the queue. */
void tether__grpc_side_leave(struct tether__grpc_side *side);

/* The conn is aborted when this comes; TETHER__NEVER takes an earlier one away. */
void tether__grpc_set_deadline(struct tether__grpc_conn *conn, int64_t deadline);

/* Starts a batch whose completion calls `op`. False: nothing was started. */
bool tether__grpc_start(struct tether__grpc *transport,
                        grpc_call *call,
                        const grpc_op *ops,
                        size_t n,
                        struct tether__grpc_op *op);

/* ---- transport/grpc/buffer.c ---- */

/* Fills `slices` (empty) with the pieces: TAKES a retain of each; small ones and those without an
 * owner are copied. */
void tether__grpc_gather(struct tether__grpc *transport,
                         grpc_slice_buffer *slices,
                         const struct tether__slice *pieces,
                         size_t n);

/* Whether a message is over the limit; then sets `ret_cause`. `peer` is its sender. */
bool tether__grpc_is_too_large(const grpc_byte_buffer *buffer,
                               size_t limit,
                               const char *peer,
                               tether_error *ret_cause);

/* TAKES `buffer`. The slice has one retain. `*spare` (may be NULL) is used, if there is one, for
 * what needs no copy. All is copied when `spare` is NULL: for messages that are kept for long.
 * False: out of memory, and the buffer is gone. */
bool tether__grpc_receive(struct tether__grpc *transport,
                          grpc_byte_buffer *buffer,
                          struct tether__grpc_received **spare,
                          struct tether__slice *ret_slice);

/* Gives the retain back; after the last one, the struct that held the message may become `*spare`.
 */
void tether__grpc_received_release(struct tether__slice slice,
                                   struct tether__grpc_received **spare);
void tether__grpc_received_free(struct tether__grpc_received *spare);

/* ---- transport/grpc/conn.c ---- */

#define TETHER__GRPC_LANE_METHOD "/tether.Worker/Lane"

struct tether__conn *tether__grpc_dial(struct tether__transport *transport,
                                       const char *address,
                                       const struct tether__conn_events *events,
                                       void *userdata);
bool tether__grpc_send(struct tether__conn *conn, const struct tether__slice *pieces, size_t n);
bool tether__grpc_take_sent(struct tether__conn *conn);
void tether__grpc_conn_release(struct tether__conn *conn);

/* Asks for the next message of those that rest. */
void tether__grpc_receive_all(struct tether__grpc_side *side);

/* A peer has opened a lane: TAKES `call`. On the server's poller. */
void tether__grpc_accept(struct tether__grpc *transport, grpc_call *call);
void tether__grpc_proved(struct tether__conn *conn);

void tether__grpc_conn_ref(struct tether__grpc_conn *conn);
void tether__grpc_conn_unref(struct tether__grpc_conn *conn);

static inline struct tether__grpc_conn *tether__grpc_conn_of(struct tether__conn *conn)
{
    return tether__container_of(conn, struct tether__grpc_conn, base);
}

static inline bool tether__grpc_is_dialled(const struct tether__grpc_conn *conn)
{
    return conn->channel;
}

/* ---- transport/grpc/close.c ---- */

void tether__grpc_close(struct tether__conn *conn, bool polite);
void tether__grpc_close_gracefully_locked(struct tether__grpc_conn *conn);

/* Ends the conn at once, for a cause that closed() will report. Any thread. */
void tether__grpc_abort(struct tether__grpc_conn *conn, const tether_error *cause);
void tether__grpc_abort_locked(struct tether__grpc_conn *conn, const tether_error *cause);

/* Closes our half: nothing is being sent. */
void tether__grpc_end_locked(struct tether__grpc_conn *conn);

/* One op has completed and is not started again; closed() is called after the last. */
void tether__grpc_op_back(struct tether__grpc_conn *conn);

/* Its deadline has come. */
void tether__grpc_expired(struct tether__grpc_conn *conn);

/* Takes it out of the transport's lists. */
void tether__grpc_conn_unlink(struct tether__grpc_conn *conn);

/* ---- transport/grpc/address.c ---- */

/* The host without brackets, and the port (LENDS), of "host:port". False: it is none. */
bool tether__grpc_split(const char *address, char *host, size_t host_size, const char **ret_port);

/* The target that gRPC dials for an address of ours: "ipv4:127.0.0.1:1234". NULL: no memory. */
char *tether__grpc_target(const char *address);

/* `address` with the port that it got. */
void tether__grpc_set_bound(char *ret_bound, size_t size, const char *address, int port);

/* Writes the address of the other end, "ipv4:127.0.0.1:41234". False: it has none any more. */
#define TETHER__GRPC_ADDRESS_SIZE 64
bool tether__grpc_address_of(int fd, char ret_address[TETHER__GRPC_ADDRESS_SIZE]);

bool tether__grpc_is_unix(int fd);

/* Returns the caller's address in that form; free it with gpr_free(). */
char *tether__grpc_peer_of(grpc_call *call);

/* Says why gRPC could not listen on `address`. */
tether_status tether__grpc_why_not(const struct tether__grpc *transport,
                                   const char *address,
                                   tether_error *reterr);

/* Says that gRPC does not accept the certificate and key of a listener. */
tether_status tether__grpc_bad_tls(const char *address, tether_error *reterr);

/* ---- transport/grpc/listen.c ---- */

tether_status tether__grpc_listen(struct tether__transport *transport, tether_error *reterr);

/* Has the server take calls in, if the transport starts late and listens. Connections come when
 * open() has been called. */
void tether__grpc_listen_begin(struct tether__grpc *transport);
void tether__grpc_listen_open(struct tether__grpc *transport, bool ok);

int tether__grpc_accept_fd(struct tether__transport *transport);
int64_t tether__grpc_accept_turn(struct tether__transport *transport);

/* Refuses calls from here on and cancels those there are. */
void tether__grpc_listen_stop(struct tether__grpc *transport);
void tether__grpc_listen_destroy(struct tether__grpc *transport);

/* ---- transport/grpc/plain.c ---- */

/* A call of tether.Worker/Call has come; nothing of its request has been read. TAKES `call`. On the
 * server's poller. */
void tether__grpc_unary(struct tether__grpc *transport,
                        grpc_call *call,
                        const grpc_metadata_array *metadata,
                        gpr_timespec deadline);
/* Answers the calls that their owner has not answered: the transport is stopping. */
void tether__grpc_answer_all(struct tether__grpc *transport);

/* ---- transport/grpc/health.c ---- */

/* Health/Check: TAKES `call`. */
void tether__grpc_health(struct tether__grpc *transport, grpc_call *call);

/* ---- transport/grpc/answer.c ---- */

/* Answers with an error and no message: TAKES `call`. Any thread. */
void tether__grpc_refuse(struct tether__grpc *transport,
                         grpc_call *call,
                         tether_status status,
                         const char *error);

/* ---- transport/grpc/tls.c ---- */

tether_status tether__grpc_credentials(struct tether__grpc *transport,
                                       const struct tether__tls *tls,
                                       tether_error *reterr);

/* The verified names in the certificate of a call's peer. fini() also when it has none. */
struct tether__grpc_names {
    grpc_auth_context *context;
    const char **names; /* ended by NULL; freed by fini() */
};
/* NULL without a verified certificate, else `names->names`, ended by NULL. */
const char *const *tether__grpc_names_init(struct tether__grpc_names *names, grpc_call *call);
void tether__grpc_names_fini(struct tether__grpc_names *names);

#endif
