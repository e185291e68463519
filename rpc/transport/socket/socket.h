/* Inside the transport between workers of one host: shared by its files, and included by no others.
 *
 *   transport/socket/life.c         the transport itself: new, stop, destroy
 *   transport/socket/poll.c    poll and wake of a side, the spin, deadlines
 *   transport/socket/conn.c    conns, dialled and accepted: how conns begin
 *   transport/socket/send.c    sending
 *   transport/socket/receive.c receiving
 *   transport/socket/close.c   how they end
 *   transport/socket/listen.c  the listening socket
 *   transport/socket/address.c names, and the process behind a connection
 *   transport/socket/frames.c  messages from bytes
 *
 * Threads: any thread may write to a conn's socket (under conn->mu) or mark the conn as
 * ended. Everything else is the poller's of its side: it alone reads, closes sockets and calls
 * events, so closed() is always the last. Another thread that needs the poller puts the conn into
 * the side's list of conns that want *attention*, and wakes the poller.
 *
 * Lock order: conn->mu before side->mu. Both are leaves otherwise: neither is held while an event
 * runs or a piece is released.
 */
#ifndef TETHER_RPC_TRANSPORT_SOCKET_SOCKET_H
#define TETHER_RPC_TRANSPORT_SOCKET_SOCKET_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/un.h>

#include "base/list.h"
#include "base/log_limit.h"
#include "rpc/transport/socket/frames.h"
#include "rpc/transport/spin.h"
#include "rpc/transport/transport.h"

struct tether__unix;
struct tether__unix_conn;
struct tether__unix_held; /* transport/socket/send.c: the rest of a message */

struct tether__unix_side {
    struct tether__unix *transport;
    int epoll_fd, event_fd; /* -1: not made */
    /* the poller's */
    struct tether__spin spin;
    struct tether__block *scratch; /* received bytes go there; NULL: a value has kept it */
    struct tether__unix_conn *hot; /* the one that last received something, or NULL */
    unsigned hot_hits;             /* in a row, without a look at the others */
    bool was_woken;                /* the last poll handled nothing but what others wanted */
    struct tether__list timed;     /* conns that have a deadline */
    int64_t next_deadline;         /* none of them has an earlier one, nor has the listener */
    /* any thread */
    atomic_bool wake_pending;
    atomic_bool asleep;    /* in epoll_wait(), or about to be: a wake must write to event_fd */
    atomic_bool just_sent; /* nothing can be there yet */
    atomic_uint n_armed;   /* conns that wait until they can write */
    /* under mu */
    bool shut; /* no new conns */
    struct tether__list conns, attention;
    pthread_mutex_t mu;
};

/* The listening socket; the server side's poller's after start(), but for what stop() does. */
struct tether__unix_listener {
    int fd;            /* -1: does not listen */
    int64_t resume_at; /* TETHER__NEVER: accepts */
    bool has_warned;
};

/* Another transport, for which the client side's poller accepts. */
struct tether__unix_guest {
    struct tether__transport *transport; /* NULL: there is none */
    int64_t due; /* when it wants to be called at the latest; the poller's */
};

struct tether__unix_stats {
    atomic_ullong wakes; /* wake-ups that needed a write */
    atomic_ullong spin_hits;
    atomic_ullong spin_misses;
    atomic_ullong scratches; /* blocks made to receive into */
};

struct tether__unix {
    struct tether__transport base;
    /* immutable after new() */
    const struct tether__transport_events *events;
    void *userdata;
    char *listen;
    uint32_t max_message_bytes, max_first_bytes;
    int64_t patience_ns; /* connect_timeout_ms */
    struct tether__unix_side sides[2];
    struct tether__unix_stats stats;
    struct tether__unix_listener listener;
    struct tether__unix_guest guest;         /* immutable after the first poll(), but for `due` */
    struct tether__log_limit others_refused; /* processes of other users that were hung up on */
    atomic_bool stop_called;
    atomic_bool stopping; /* the pollers may end everything */
};

/* How far the end of a conn has come; only ever goes down this list. */
enum tether__unix_ending {
    TETHER__UNIX_IN_USE,
    TETHER__UNIX_LAST_SEND, /* close(polite) was called, or the peer is done: waits for the send */
    TETHER__UNIX_ENDED,     /* our half is closed; waits for the peer's */
    TETHER__UNIX_ABORTED,   /* the poller is to end it */
};

struct tether__unix_conn {
    struct tether__conn base;
    struct tether__unix_side *side;
    char *peer;
    bool dialled;
    int dial_error;   /* errno; 0: connected */
    atomic_uint refs; /* the transport until closed() has returned, and the owner */
    atomic_bool mute; /* aborted: no more messages */
    /* the poller's */
    bool begun; /* opened() or accepted() was called */
    struct tether__frames frames;
    struct tether__list timed;
    int64_t deadline;
    /* written by the poller under mu */
    int fd; /* -1: never was, or is closed */
    /* under mu */
    bool in_epoll, wants_out;
    atomic_bool wants_in; /* the poller reads it without mu */
    bool broken;          /* cannot be written to any more; a read returns the reason */
    bool sending;         /* sent() is owed */
    bool sent_due;        /* and all is out */
    bool finished;
    struct tether__unix_held *held;          /* the rest of a message that is not out yet */
    size_t end_sent;                         /* bytes of the marker that says that we are done */
    _Atomic enum tether__unix_ending ending; /* the poller reads it without mu */
    tether_error abort_cause;
    pthread_mutex_t mu;
    /* under side->mu */
    struct tether__list all, attention;
};

static inline struct tether__unix *tether__unix_of(struct tether__transport *transport)
{
    return tether__container_of(transport, struct tether__unix, base);
}

static inline struct tether__unix_conn *tether__unix_conn_of(struct tether__conn *conn)
{
    return tether__container_of(conn, struct tether__unix_conn, base);
}

/* ---- transport/socket/poll.c ---- */

bool tether__unix_poll(struct tether__transport *transport,
                       enum tether__side side,
                       int64_t deadline);
bool tether__unix_poll_ready(struct tether__transport *transport, enum tether__side side);
void tether__unix_wake(struct tether__transport *transport, enum tether__side side);
void tether__unix_wake_side(struct tether__unix_side *side);

/* The conn is ended when this comes. On its poller. */
void tether__unix_set_deadline(struct tether__unix_conn *conn, int64_t deadline);

/* ---- transport/socket/conn.c ---- */

struct tether__conn *tether__unix_dial(struct tether__transport *transport,
                                       const char *address,
                                       const struct tether__conn_events *events,
                                       void *userdata);
/* A peer has dialled: TAKES `fd`. On the server's poller. */
void tether__unix_accept(struct tether__unix *transport, int fd);
void tether__unix_proved(struct tether__conn *conn);
void tether__unix_conn_release(struct tether__conn *conn);
void tether__unix_conn_unref(struct tether__unix_conn *conn);

/* Asks the poller to look at the conn, and wakes it. */
void tether__unix_attend_locked(struct tether__unix_conn *conn);
/* It has been asked to. On the poller; may end the conn, which must not be touched afterwards. */
void tether__unix_serve(struct tether__unix_conn *conn);

/* Tells epoll what the conn waits for. */
void tether__unix_watch_locked(struct tether__unix_conn *conn, bool in, bool out);

/* ---- transport/socket/receive.c ---- */

/* Receives once. False: nothing was there. On the poller; may end the conn. */
bool tether__unix_receive(struct tether__unix_conn *conn);

/* ---- transport/socket/close.c ---- */

void tether__unix_close(struct tether__conn *conn, bool polite);

/* Ends the conn at once, for a cause that closed() will report. Any thread. */
void tether__unix_abort_locked(struct tether__unix_conn *conn, const tether_error *cause);

/* From here on: on the conn's poller. Each may end it: it must not be touched afterwards. */

/* Goes on with a polite end, as far as it can. */
void tether__unix_end(struct tether__unix_conn *conn);
/* The end marker has come. */
void tether__unix_peer_ended(struct tether__unix_conn *conn);
/* Its deadline has come. */
void tether__unix_expired(struct tether__unix_conn *conn);
/* Ends it; `status` and `why` are for closed(), unless it was aborted for another cause. */
void tether__unix_finish(struct tether__unix_conn *conn, tether_status status, const char *why);

/* ---- transport/socket/send.c ---- */

bool tether__unix_send(struct tether__conn *conn, const struct tether__slice *pieces, size_t n);
bool tether__unix_take_sent(struct tether__conn *conn);
/* The socket can be written to again: continues with the held message. On the poller; does not end
 * the conn.
 */
void tether__unix_writable(struct tether__unix_conn *conn);
void tether__unix_held_free(struct tether__unix_held *held); /* NULL is fine */

/* ---- transport/socket/address.c ---- */

struct tether__unix_sockaddr {
    struct sockaddr_un at;
    socklen_t len;
};

/* Whether it is "unix-abstract:NAME"; the name may be missing. */
bool tether__unix_is_address(const char *address);

/* False: it is not, or the name is missing or too long. */
bool tether__unix_sockaddr(const char *address, struct tether__unix_sockaddr *ret_at);

/* `asked` itself, or, without a name, with one that cannot be guessed. False: there is none. */
bool tether__unix_choose(const char *asked, char *ret_address, size_t size);

/* Whether the process at the other end runs as this user; `*ret_pid` (0: not known) is its number.
 */
bool tether__unix_is_our_users(int fd, pid_t *ret_pid);

/* ---- transport/socket/listen.c ---- */

tether_status tether__unix_listen(struct tether__transport *transport, tether_error *reterr);
/* Another process has dialled. On the server's poller, as is all that follows. */
void tether__unix_accept_next(struct tether__unix *transport);
/* Accepts again, when that had to stop for lack of descriptors. */
void tether__unix_accept_again(struct tether__unix *transport);
/* Has the other transport accept, if there is one. */
void tether__unix_accept_for_guest(struct tether__unix *transport);
/* Refuses further dials. Any thread. */
void tether__unix_listen_stop(struct tether__unix *transport);
void tether__unix_listen_close(struct tether__unix *transport);

#endif
