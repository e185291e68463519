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
    /* next in the side's list `left` of ops for the poller; under transport->mu */
    struct tether__grpc_op *next;
    bool ok;
};

/* The state of the thread that polls a side. ASKS: it waits on the queue. HANDLES: it handles an
 * event. TAKEN: it handles an event while another thread takes events from the queue, so it must
 * not ask the queue before that thread has finished. */
enum tether__grpc_poller { TETHER__GRPC_ASKS, TETHER__GRPC_HANDLES, TETHER__GRPC_TAKEN };

struct tether__grpc_side {
    struct tether__grpc *transport;
    grpc_completion_queue *queue;
    /* used only by the poller */
    struct tether__spin spin;
    struct tether__list resting; /* conns for which gRPC has not been asked for the next message */
    /* any thread */
    atomic_bool emptied;  /* a message was just sent, so no answer can be there yet */
    atomic_bool has_left; /* `left` is not empty; written under transport->mu */
    atomic_int poller;    /* an enum tether__grpc_poller */
    /* held by the thread that takes events from the queue while the poller handles one */
    pthread_mutex_t take_mu;
    struct tether__grpc_op woken;
    atomic_bool wake_pending;
    /* how often the poller has begun to wait on the queue; 0: `cpu_clock` is not set yet */
    atomic_ullong polls;
    atomic_int cpu_clock;          /* clock of the CPU time of the first thread that polled */
    _Atomic int64_t next_deadline; /* a lower bound of the deadlines of this side's conns */
    /* under transport->mu */
    size_t users;
    bool shut;
    struct tether__list conns; /* all conns that stop() has to close */
    struct tether__list timed; /* conns that have a deadline */
    /* events that other threads took from the queue for the poller, oldest first */
    struct tether__grpc_op *left;
};

struct tether__grpc_server;   /* transport/grpc/listen.c */
struct tether__grpc_received; /* transport/grpc/buffer.c: a received message, counted */

struct tether__grpc_stats {
    atomic_ullong batches;   /* number of calls of grpc_call_start_batch() */
    atomic_ullong wakes;     /* number of wake-ups that reached the queue */
    atomic_ullong spin_hits; /* number of spins that found an event, so the poller did not block */
    atomic_ullong spin_misses;
    atomic_ullong copies_in; /* number of received messages that were copied into one block */
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
    bool late; /* gRPC is not used before begin() */
    bool has_tls, has_own_cert, own_cert_is_foreign;
    bool requires_cert; /* all clients need a certificate */
    /* when our certificate expires, in seconds since 1970; 0: not known */
    int64_t own_cert_ends_at;
    char *server_name;
    /* immutable after new(), or after begin() */
    bool begun; /* gRPC has started, so the fields below are set */
    /* a channel without a connection: a watch on it times out at once, which wake() uses to make
     * an event */
    grpc_channel *lame;
    grpc_channel_credentials *dial_credentials;
    grpc_server_credentials *listen_credentials;
    grpc_resource_quota *quota; /* limits gRPC's memory for messages that are being received */
    struct tether__grpc_side sides[2];
    /* any thread */
    struct tether__grpc_unproved unproved;
    struct tether__grpc_stats stats;
    /* set by start() */
    struct tether__grpc_server *server;
    /* under mu */
    bool stopping;
    struct tether__list unanswered; /* unary calls that the owner has not answered */
    struct tether__grpc_budget budget;
    size_t n_lent; /* how many lent pieces gRPC has not released yet */
    pthread_cond_t none_lent;
    pthread_mutex_t mu;
};

/* How far the end of a conn has progressed; the values only go up. */
enum tether__grpc_ending {
    TETHER__GRPC_IN_USE,
    /* close(polite) was called or the peer has half-closed; waits for the present send */
    TETHER__GRPC_LAST_SEND,
    TETHER__GRPC_ENDED,   /* our half is closed; waits for the peer to close its half */
    TETHER__GRPC_ABORTED, /* cancelled; waits until gRPC reports that */
};

struct tether__grpc_conn {
    struct tether__conn base;
    struct tether__grpc_side *side;
    grpc_channel *channel; /* the conn's own channel; NULL for an accepted conn */
    grpc_call *call;
    char *peer;
    uint64_t unproved_id; /* id of the connection in unproved.c; 0: its client has authenticated */
    struct tether__grpc_op opened, received, sent, ended, over;
    /* held by the transport until closed() has returned, by the owner, and by threads that use
     * the conn */
    atomic_uint refs;
    atomic_bool mute; /* set by abort: no more messages are delivered */
    /* used only by the poller */
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
    unsigned pending; /* number of ops that have not completed */
    bool finished;    /* all ops have completed: closed() has been called, or is about to be */
    bool sending;
    bool settled; /* accepted, or opened() was called: the next event is a message */
    enum tether__grpc_ending ending;
    tether_error abort_cause; /* the cause of an abort; its code is TETHER_OK if there was none */
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

/* Channel arguments for both ends: they switch off features of gRPC that cost time for each
 * message and are of no use here. Its limit on the length of a message is checked only when all of
 * it is there, as we can ourselves (is_too_large()); and the size of a compressed one is known
 * only after decompression. */
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

/* Counts the caller as a user of the queue. False: the transport is stopping. */
bool tether__grpc_side_enter(struct tether__grpc_side *side);
bool tether__grpc_side_enter_locked(struct tether__grpc_side *side);
/* Drops such a count; the last one shuts the queue down. */
void tether__grpc_side_leave(struct tether__grpc_side *side);

/* Sets the time at which the conn is aborted; TETHER__NEVER removes it. */
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

/* Makes one slice (with one retain) from a received message. TAKES `buffer`. `spare` NULL: copies
 * all of it, for messages that are kept for long. Otherwise a small message is lent without a
 * copy, and `*spare` (may be NULL) is reused for its struct. False: out of memory, and the buffer
 * was freed. */
bool tether__grpc_receive(struct tether__grpc *transport,
                          grpc_byte_buffer *buffer,
                          struct tether__grpc_received **spare,
                          struct tether__slice *ret_slice);

/* Drops the retain. After the last one the struct that held the message may be stored in `*spare`.
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

/* Asks gRPC for the next message of all conns in `resting`. */
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

/* Half-closes the call. No message may be under way. */
void tether__grpc_end_locked(struct tether__grpc_conn *conn);

/* Called when an op has completed and is not started again. Calls closed() after the last one. */
void tether__grpc_op_back(struct tether__grpc_conn *conn);

/* Called when the conn's deadline has passed. */
void tether__grpc_expired(struct tether__grpc_conn *conn);

/* Takes the conn out of the transport's lists. */
void tether__grpc_conn_unlink(struct tether__grpc_conn *conn);

/* ---- transport/grpc/address.c ---- */

/* Splits "host:port" into the host without brackets and the port (LENDS). False: it has another
 * form. */
bool tether__grpc_split(const char *address, char *host, size_t host_size, const char **ret_port);

/* The target that gRPC dials for an address of ours: "ipv4:127.0.0.1:1234". NULL: no memory. */
char *tether__grpc_target(const char *address);

/* Writes `address` with the actual port instead of the requested one. */
void tether__grpc_set_bound(char *ret_bound, size_t size, const char *address, int port);

/* Size for the address of the other end, such as "ipv4:127.0.0.1:41234". */
#define TETHER__GRPC_ADDRESS_SIZE 64
bool tether__grpc_address_of(int fd, char ret_address[TETHER__GRPC_ADDRESS_SIZE]);

bool tether__grpc_is_unix(int fd);

/* Returns the caller's address as "ipv4:127.0.0.1:41234"; free it with gpr_free(). */
char *tether__grpc_peer_of(grpc_call *call);

/* Says why gRPC could not listen on `address`. */
tether_status tether__grpc_why_not(const struct tether__grpc *transport,
                                   const char *address,
                                   tether_error *reterr);

/* Says that gRPC does not accept the certificate and key of a listener. */
tether_status tether__grpc_bad_tls(const char *address, tether_error *reterr);

/* ---- transport/grpc/listen.c ---- */

tether_status tether__grpc_listen(struct tether__transport *transport, tether_error *reterr);

/* If the transport starts late and listens, lets its server accept calls. Connections come once
 * tether__grpc_acceptor_open() has been called. */
void tether__grpc_listen_begin(struct tether__grpc *transport);
void tether__grpc_listen_open(struct tether__grpc *transport, bool ok);

int tether__grpc_accept_fd(struct tether__transport *transport);
int64_t tether__grpc_accept_turn(struct tether__transport *transport);

/* Makes the server refuse new calls and cancels the present ones. */
void tether__grpc_listen_stop(struct tether__grpc *transport);
void tether__grpc_listen_destroy(struct tether__grpc *transport);

/* ---- transport/grpc/plain.c ---- */

/* A call of tether.Worker/Call has come; nothing of its request has been read. TAKES `call`. On the
 * server's poller. */
void tether__grpc_unary(struct tether__grpc *transport,
                        grpc_call *call,
                        const grpc_metadata_array *metadata,
                        gpr_timespec deadline);
/* Answers all calls that the owner has not answered, because the transport is stopping. */
void tether__grpc_answer_all(struct tether__grpc *transport);

/* ---- transport/grpc/health.c ---- */

/* Answers a call of Health/Check. TAKES `call`. */
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

/* The verified names in the certificate of a call's peer. Call fini() even when there are none. */
struct tether__grpc_names {
    grpc_auth_context *context;
    const char **names; /* NULL-terminated; freed by fini() */
};
/* Returns NULL without a verified certificate, else `names->names`, which is NULL-terminated. */
const char *const *tether__grpc_names_init(struct tether__grpc_names *names, grpc_call *call);
void tether__grpc_names_fini(struct tether__grpc_names *names);

#endif
