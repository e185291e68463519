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
    /* The peer's server answered. `cert_names` as for accepted(), but of the server's certificate;
     * NULL without TLS. */
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
    const struct tether__conn_events *events; /* set by the dialler, or in accepted() */
    void *userdata;
    const char *peer; /* the address of the other end: "ipv4:127.0.0.1:41234"; for messages */
};

/* A call from a client that speaks only gRPC. Answer it exactly once, from any thread, with
 * reply(), also when it is canceled; fields LEND until then, but for `cert_names`, which do until
 * unary() has returned. stop() answers for who has not: reply() then only gives the memory back,
 * and may come after destroy(). */
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
    tether_trace trace;            /* from its "traceparent" */
    int64_t deadline;              /* of the system clock (base/clock.h); TETHER__NEVER */
    const char *peer;              /* "ipv4:127.0.0.1:41234", for messages */
    const char *const *cert_names; /* as for accepted() */
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
     * Anything but TETHER_OK reaches the client with the message in `reterr`. `*ret_proved`, false
     * before: the client has shown who it is, where others may call as well. NULL: all may. */
    tether_status (*admit)(void *userdata,
                           tether_bytes token,
                           const char *const *cert_names,
                           bool *ret_proved,
                           tether_error *reterr);
    /* NULL: unary calls are refused. */
    void (*unary)(void *userdata, struct tether__unary *unary);
    /* Returns whether the health check answers SERVING. NULL: it always does. */
    bool (*is_serving)(void *userdata);
    /* A client of a transport that starts late waits for begin(): have another thread call it, and
     * then begun(). False: that cannot be done, and the client is turned away. On the thread that
     * calls accept(); must not block. */
    bool (*begin_wanted)(void *userdata);
};

struct tether__tls {
    const char *ca_pem, *cert_pem, *key_pem; /* contents, not paths; NULL: not used */
    bool require_client_cert;
    bool one_way; /* clients are not asked for a certificate */
    /* These fields explain a refusal in errors, because a listener that refuses a certificate only
     * hangs up. */
    bool own_is_foreign; /* the CA has not signed `cert_pem` */
    int64_t own_ends_at; /* when `cert_pem` expires, in seconds since 1970; 0: not known */
    const char
        *server_name; /* the name that a server's certificate must carry, when not the host */
};

struct tether__transport_opts {
    const char *listen; /* "127.0.0.1:0", "[::1]:0", "unix:/path"; NULL: does not listen */
    const struct tether__tls *tls;
    size_t max_message_bytes; /* larger ones close the conn with TETHER_ETOOBIG; 0: 4 MiB */
    size_t max_unary_bytes;   /* of a plain gRPC call; 0: as max_message_bytes */
    size_t max_plain_calls;   /* of all plain gRPC clients, that have not ended; 0: 1,024 */
    size_t max_plain_bytes; /* in their requests, and in their results; 0: twice max_unary_bytes */
    size_t max_first_bytes; /* of a message on an accepted conn before proved(); 0: no less */
    int connect_timeout_ms; /* dial() until opened(), and close(polite) until closed(); 0: 10 s */
    int expected_peers;     /* how many conns there will be, about; 0: not known */
    int spin_us;            /* poll this long, yielding, before blocking; 0: block at once */
    bool late;              /* start() only listens; see begin(). Not with TLS */
    const struct tether__transport_events *events;
    void *userdata;
};

struct tether__transport_ops {
    /* Starts to listen. The bound addresses (with real ports) are then in the transport. */
    tether_status (*start)(struct tether__transport *transport, tether_error *reterr);

    /* Of a transport that starts `late`: does the rest of the work of start(), which may take some
     * milliseconds. dial() and poll() are for the time after it. Not beside stop(); after an error
     * it may be called again, after success it does nothing. NULL: no such transport. */
    tether_status (*begin)(struct tether__transport *transport, tether_error *reterr);

    /* Both sides are polled from here on, so connections may be served. Not `ok`: begin() or what
     * the caller does after it has failed, and clients that wait for it are turned away. */
    void (*begun)(struct tether__transport *transport, bool ok);

    /* Of a transport that starts `late`, after start(): a descriptor that can be read when accept()
     * has something to do (-1: it does not listen). accept() does it and returns when it wants to
     * be called again at the latest. One thread, also before begin(); not beside or after stop().
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

    /* One message of `n` pieces. Only when the last one is out. True: this one is already, and the
     * next may go; false: sent() says so later, unless the conn closes. Any thread. TAKES a retain
     * of each piece; pieces without an owner are copied. */
    bool (*send)(struct tether__conn *conn, const struct tether__slice *pieces, size_t n);

    /* Whether the message of the last send() is out, and the next may go; sent() does not come
     * then. False also if the thread that polls that side waits for events: sent() comes soon. Any
     * thread, but only while the owner waits for sent(). NULL: always false. */
    bool (*take_sent)(struct tether__conn *conn);

    /* Ends the conn: gracefully (messages that were sent go out first, and others may still come)
     * or at once (none come any more). closed() follows. Any thread; a second call does nothing,
     * but for one at once after a polite one. */
    void (*close)(struct tether__conn *conn, bool polite);

    /* The other end of an accepted conn has authenticated, so limits for unauthenticated clients no
     * longer apply to the conn. On its poller. NULL: there are none. */
    void (*proved)(struct tether__conn *conn);

    /* Gives the memory back; after closed(), or from within it. */
    void (*conn_release)(struct tether__conn *conn);

    /* Handles events of one side until at least one was handled, wake() was called, or `deadline`
     * (ns of the system clock) has passed. One thread per side at a time. False: the side is shut
     * down and drained, nothing will come any more. */
    bool (*poll)(struct tether__transport *transport, enum tether__side side, int64_t deadline);

    /* Handles one event of that side that is there already. False: there was none. For the thread
     * that may poll(). */
    bool (*poll_ready)(struct tether__transport *transport, enum tether__side side);

    /* Makes the poll() of that side that runs now, or the next one, return soon. Any thread; many
     * calls cost hardly more than one. */
    void (*wake)(struct tether__transport *transport, enum tether__side side);

    /* Refuses new conns, closes those there are at once, and answers all unary calls that have no
     * answer yet, with TETHER_ESHUTDOWN; polls return false once all is drained. Any thread; a
     * second call does nothing. */
    void (*stop)(struct tether__transport *transport);

    /* When no thread polls any more and every conn has been released. Does the rest of the work of
     * stop() and poll(). NULL is fine. */
    void (*destroy)(struct tether__transport *transport);
};

struct tether__transport {
    const struct tether__transport_ops *ops;
    char address[256]; /* where peers can reach us, after start() */
    bool vouches;      /* the kernel says that the other end of each conn runs as this user */
};

/* The transport between hosts, and for all gRPC clients. Copies what it needs of `opts`. */
tether_status tether__transport_grpc_new(const struct tether__transport_opts *opts,
                                         struct tether__transport **ret_transport,
                                         tether_error *reterr);

/* The one between workers of a host (docs/wire.md): `listen` is "unix-abstract:NAME" ("" for NAME:
 * any) or NULL, and so is what dial() takes. It has no TLS and no unary calls. opened() says that
 * the peer listens, not yet that it has looked. */
tether_status tether__transport_unix_new(const struct tether__transport_opts *opts,
                                         struct tether__transport **ret_transport,
                                         tether_error *reterr);

/* Has the poller of its client side call accept() of a transport that starts late. Before the first
 * poll(); `late` must outlive the last one. */
tether_status tether__transport_unix_accept_for(struct tether__transport *transport,
                                                struct tether__transport *late,
                                                tether_error *reterr);

#endif
