/* The transport: carries batches between workers, behind a private vtable, so that the agent
 * runs unchanged over gRPC (transport_grpc), over plain unix sockets (transport_unix) and over a
 * simulated network with virtual time.
 *
 * A *conn* is one bidirectional stream of messages. dial() makes one that we asked for (its events
 * come from polling the CLIENT side); a listening transport makes one for each that a peer asked
 * for (SERVER side). All callbacks run on the thread that polls that side, one at a time per conn,
 * holding no lock of the transport; they may call back into it.
 *
 * Life of a conn: opened (dialled ones only) → message / sent … → closed, exactly once, always,
 * also after close(). The conn's memory belongs to the transport; it is gone after closed() has
 * returned and the owner has called conn_release().
 *
 * Sending: one send at a time; send() itself, take_sent() or sent() says that the next may go. The
 * pieces are retained by the caller for the transport, which releases each when the bytes are no
 * longer needed. Such a release may come from within any call into the transport and on any thread:
 * it must not take a lock that is held while calling the transport. None comes after destroy().
 */
#ifndef TETHER_RPC_TRANSPORT_TRANSPORT_H
#define TETHER_RPC_TRANSPORT_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/trace.h"
#include "rpc/wire/slice.h"

enum tether__side { TETHER__CLIENT, TETHER__SERVER };

struct tether__transport;
struct tether__conn;
struct tether__unary;

struct tether__conn_events {
    /* Called when the server of the peer has answered. `cert_names` has the names in the server's
     * certificate, as in accepted(); NULL without TLS. */
    void (*opened)(struct tether__conn *conn, const char *const *cert_names);
    void (*message)(struct tether__conn *conn, struct tether__slice message); /* LENDS */
    void (*sent)(struct tether__conn *conn);
    /* TETHER_OK: the peer closed it gracefully, or we did; TETHER_ECANCELED: we closed it at once;
     * TETHER_EUNAVAILABLE: not reachable in time, or broken; TETHER_ENOTFOUND: it was dialled, and
     * the connection was refused: no process listens at that address; TETHER_EPERM, TETHER_EAUTH:
     * it was dialled, and an unauthenticated listener refused, or its TLS does not fit ours. `why`
     * is a sentence. */
    void (*closed)(struct tether__conn *conn, tether_status status, const char *why);
};

struct tether__conn {
    struct tether__transport *transport;
    const struct tether__conn_events *events; /* the owner sets it after dial() or in accepted() */
    void *userdata;
    const char *peer; /* address of the other end for messages, such as "ipv4:127.0.0.1:41234" */
};

/* A call from a client that speaks only gRPC. Answer it exactly once, from any thread, with
 * reply(), also when it is canceled; fields LEND until then, but for `cert_names`, which do until
 * unary() has returned. stop() answers calls that have no answer yet: reply() then only frees the
 * memory, and may come after destroy(). */
struct tether__unary {
    struct tether__transport *transport;
    /* `error` is for people, used when `status` is not TETHER_OK. TAKES a retain of `payload`; one
     * without an owner is copied. */
    void (*reply)(struct tether__unary *unary,
                  tether_status status,
                  const char *error,
                  struct tether__slice payload);
    tether_bytes function;
    struct tether__slice payload;
    tether_trace trace; /* the trace from the client's "traceparent" */
    int64_t deadline;   /* on the system clock (base/clock.h); TETHER__NEVER: none */
    /* address of the client for messages, such as "ipv4:127.0.0.1:41234" */
    const char *peer;
    const char *const *cert_names; /* names in the client's certificate, as in accepted() */
    void *userdata;                /* for the code that answers; the transport leaves it alone */
    atomic_bool canceled;          /* true once the caller has cancelled or timed out */
};

struct tether__transport_events {
    /* A peer has dialled us. Set conn->events and userdata before returning. `cert_names` are the
     * verified names in the peer's certificate (DNS entries of subjectAltName), ended by NULL; NULL
     * without mutual TLS. LENDS. */
    void (*accepted)(void *userdata, struct tether__conn *conn, const char *const *cert_names);
    /* Decides whether a client that speaks only gRPC may call at all, by the token of its metadata
     * ("authorization: Bearer <token>"; empty: none) and the names in its certificate (as for
     * accepted()). Runs before any byte of the request is read: a refused client costs no memory.
     * Anything but TETHER_OK reaches the client with the message in `reterr`. Set `*ret_proved`,
     * which is false before, if the client has authenticated, also where that is not required.
     * NULL: all may. */
    tether_status (*admit)(void *userdata,
                           tether_bytes token,
                           const char *const *cert_names,
                           bool *ret_proved,
                           tether_error *reterr);
    /* NULL: unary calls are refused. */
    void (*unary)(void *userdata, struct tether__unary *unary);
    /* Returns whether the health check answers SERVING. NULL: it always does. */
    bool (*is_serving)(void *userdata);
    /* Asks the owner to have another thread call begin() and then begun(), because a client of a
     * late transport waits. False: that is not possible, and the client is refused. Runs on the
     * thread that calls accept(); must not block. */
    bool (*begin_wanted)(void *userdata);
};

struct tether__tls {
    const char *ca_pem, *cert_pem, *key_pem; /* PEM texts, not paths; NULL: not used */
    bool require_client_cert;
    bool one_way; /* TLS without client certificates */
    /* These fields explain a refusal in errors, because a listener that refuses a certificate only
     * hangs up. */
    bool own_is_foreign;     /* the CA in `ca_pem` has not signed `cert_pem` */
    int64_t own_ends_at;     /* when `cert_pem` expires, in seconds since 1970; 0: not known */
    const char *server_name; /* the name that a server's certificate must have; NULL: the host */
};

struct tether__transport_opts {
    /* address to listen on: "127.0.0.1:0", "[::1]:0", "unix:/path"; NULL: does not listen */
    const char *listen;
    const struct tether__tls *tls;
    size_t max_message_bytes; /* a larger message closes the conn with TETHER_ETOOBIG; 0: 4 MiB */
    /* limit of a request or result of a plain gRPC call; 0: max_message_bytes */
    size_t max_unary_bytes;
    /* limit of plain gRPC calls under way, of all clients together; 0: 1,024 */
    size_t max_plain_calls;
    /* limit of the bytes in requests of plain calls, and in their results; 0: twice
     * max_unary_bytes */
    size_t max_plain_bytes;
    /* limit of a message on an accepted conn before proved(); 0: no separate limit */
    size_t max_first_bytes;
    /* time from dial() to opened(), and from close(polite) to closed(); 0: 10 s */
    int connect_timeout_ms;
    int expected_peers; /* approximate number of conns; 0: not known */
    /* how long poll() spins, yielding, before it blocks; 0: block at once */
    int spin_us;
    bool late; /* start() only listens, and begin() does the rest. Not with TLS */
    const struct tether__transport_events *events;
    void *userdata;
};

struct tether__transport_ops {
    /* Starts to listen. Afterwards `address` has the actual ports. */
    tether_status (*start)(struct tether__transport *transport, tether_error *reterr);

    /* Only for a transport that starts `late`: does the rest of start(), which may take some
     * milliseconds. Call dial() and poll() only after it. Must not run at the same time as stop().
     * After an error it may be called again; after success it does nothing. NULL: the transport
     * cannot start late. */
    tether_status (*begin)(struct tether__transport *transport, tether_error *reterr);

    /* Tells the transport that both sides are polled now, so connections can be served. `ok`
     * false: begin() or a later step of the caller has failed, and waiting clients are refused. */
    void (*begun)(struct tether__transport *transport, bool ok);

    /* Only for a transport that starts `late`, after start(): returns a descriptor that can be
     * read when accept() has something to do (-1: it does not listen). accept() does it and
     * returns when it wants to be called again at the latest. One thread at a time, also before
     * begin(); not during or after stop().
     */
    int (*accept_fd)(struct tether__transport *transport);
    int64_t (*accept)(struct tether__transport *transport);

    /* Never fails: an error arrives as closed(), perhaps before this has returned. NULL only
     * when out of memory or after stop(). May send() at once, without awaiting opened(). Any
     * thread.
     */
    struct tether__conn *(*dial)(struct tether__transport *transport,
                                 const char *address,
                                 const struct tether__conn_events *events,
                                 void *userdata);

    /* Sends one message of `n` pieces. Call it only when the previous message is out. True:
     * this message is out already, and the next may be sent. False: sent() is called later,
     * unless the conn closes. Any thread. TAKES a retain of each piece; pieces without an owner
     * are copied. */
    bool (*send)(struct tether__conn *conn, const struct tether__slice *pieces, size_t n);

    /* Returns whether the message of the last send() is out. If so, the next may be sent, and
     * sent() is not called. Also returns false if the thread that polls that side waits for
     * events: sent() comes soon. Any thread, but only while the owner waits for sent(). NULL:
     * always false. */
    bool (*take_sent)(struct tether__conn *conn);

    /* Ends the conn, and closed() follows. Gracefully: messages that were sent go out first, and
     * others may still arrive. At once: no more messages arrive. Any thread; a second call does
     * nothing, except that one at once may follow a graceful one. */
    void (*close)(struct tether__conn *conn, bool polite);

    /* Tells the transport that the other end of an accepted conn has authenticated, so limits for
     * unauthenticated clients no longer apply. On the conn's poller. NULL: the transport has no
     * such limits. */
    void (*proved)(struct tether__conn *conn);

    /* Releases the owner's count of the conn, in closed() or later. */
    void (*conn_release)(struct tether__conn *conn);

    /* Handles events of one side until at least one was handled, wake() was called, or `deadline`
     * (ns of the system clock) has passed. One thread per side at a time. False: the side is shut
     * down and drained, nothing will come any more. */
    bool (*poll)(struct tether__transport *transport, enum tether__side side, int64_t deadline);

    /* Handles one event of the side if one is there already. False: there was none. Only for the
     * thread that may call poll(). */
    bool (*poll_ready)(struct tether__transport *transport, enum tether__side side);

    /* Makes the poll() of that side that runs now, or the next one, return soon. Any thread; many
     * calls cost hardly more than one. */
    void (*wake)(struct tether__transport *transport, enum tether__side side);

    /* Refuses new conns, closes the present ones at once, and answers all unary calls without an
     * answer with TETHER_ESHUTDOWN. When all is drained, poll() returns false. Any thread; a
     * second call does nothing. */
    void (*stop)(struct tether__transport *transport);

    /* Frees the transport. Call it when no thread polls any more and every conn has been released.
     * Also completes stop() and poll() if needed. NULL is fine. */
    void (*destroy)(struct tether__transport *transport);
};

struct tether__transport {
    const struct tether__transport_ops *ops;
    char address[256]; /* where peers can reach this worker; set by start() */
    bool vouches;      /* the kernel guarantees that the other end of each conn runs as this user */
};

/* Makes the transport between hosts and for gRPC clients. Copies what it needs from `opts`. */
tether_status tether__transport_grpc_new(const struct tether__transport_opts *opts,
                                         struct tether__transport **ret_transport,
                                         tether_error *reterr);

/* Makes the transport between workers of one host (docs/wire.md). `listen` is "unix-abstract:NAME"
 * (empty NAME: a random one) or NULL; dial() takes the same form. It has no TLS and no unary
 * calls. opened() says only that the peer's socket listens, not that the peer has accepted the
 * conn. */
tether_status tether__transport_unix_new(const struct tether__transport_opts *opts,
                                         struct tether__transport **ret_transport,
                                         tether_error *reterr);

/* Makes the poller of this transport's client side call accept() of `late`, a transport that
 * starts late. Call it before the first poll(); `late` must outlive the last one. */
tether_status tether__transport_unix_accept_for(struct tether__transport *transport,
                                                struct tether__transport *late,
                                                tether_error *reterr);

#endif
