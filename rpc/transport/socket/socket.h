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
    int epoll_fd, event_fd; /* -1: not created */
    /* used only by the poller */
    struct tether__spin spin;
    /* received bytes go there; NULL: there is none, because a value has kept it */
    struct tether__block *scratch;
    struct tether__unix_conn *hot; /* the conn that last received something; NULL: none */
    /* how many reads in a row were only of `hot`, without a check of the others */
    unsigned hot_hits;
    bool was_woken;            /* the last poll handled only requests of other threads */
    struct tether__list timed; /* conns that have a deadline */
    /* a lower bound of the deadlines of the conns and the listener */
    int64_t next_deadline;
    /* any thread */
    atomic_bool wake_pending;
    /* the poller is in epoll_wait() or about to enter it, so a wake-up must write to event_fd */
    atomic_bool asleep;
    atomic_bool just_sent; /* a message was just sent, so no answer can be there yet */
    atomic_uint n_armed;   /* conns that wait until they can write */
    /* under mu */
    bool shut; /* no new conns are accepted or dialled */
    struct tether__list conns, attention;
    pthread_mutex_t mu;
};

/* The listening socket. After start() only the server side's poller uses it, except that stop()
 * shuts it down. */
struct tether__unix_listener {
    int fd;            /* -1: the transport does not listen */
    int64_t resume_at; /* when accepting continues after a pause; TETHER__NEVER: it is not paused */
    bool has_warned;
};

/* Another transport, for which the client side's poller accepts. */
struct tether__unix_guest {
    struct tether__transport *transport; /* NULL: there is none */
    /* when accept() of the guest must be called at the latest; used only by the poller */
    int64_t due;
};

struct tether__unix_stats {
    atomic_ullong wakes; /* number of wake-ups that had to write to event_fd */
    atomic_ullong spin_hits;
    atomic_ullong spin_misses;
    atomic_ullong scratches; /* number of blocks made to receive into */
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
    /* set before the first poll() and constant from then on, except for `due` */
    struct tether__unix_guest guest;
    /* limits the log lines about refused processes of other users */
    struct tether__log_limit others_refused;
    atomic_bool stop_called;
    atomic_bool stopping; /* the transport stops, so the pollers end all conns */
};

/* How far the end of a conn has progressed; the values only go up. */
enum tether__unix_ending {
    TETHER__UNIX_IN_USE,
    /* close(polite) was called, or the peer has sent its end marker; waits for the present send */
    TETHER__UNIX_LAST_SEND,
    TETHER__UNIX_ENDED,   /* our half is closed; waits for the peer to close its half */
    TETHER__UNIX_ABORTED, /* the poller must end the conn */
};

struct tether__unix_conn {
    struct tether__conn base;
    struct tether__unix_side *side;
    char *peer;
    bool dialled;
    int dial_error;   /* errno of connect(); 0: connected */
    atomic_uint refs; /* one held by the transport until closed() has returned, one by the owner */
    atomic_bool mute; /* set by abort: no more messages are delivered */
    /* used only by the poller */
    bool begun; /* opened() or accepted() was called */
    struct tether__frames frames;
    struct tether__list timed;
    int64_t deadline;
    /* written by the poller under mu */
    int fd; /* -1: there was none, or it is closed */
    /* under mu */
    bool in_epoll, wants_out;
    atomic_bool wants_in; /* written under mu; the poller reads it without mu */
    bool broken;          /* writing has failed for good; a read finds the reason */
    bool sending;         /* the owner waits for sent() */
    bool sent_due;        /* the message is out, so the poller must call sent() */
    bool finished;
    struct tether__unix_held *held;          /* the part of a message that is not written yet */
    size_t end_sent;                         /* how many bytes of the end marker are written */
    _Atomic enum tether__unix_ending ending; /* written under mu; the poller reads it without mu */
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

/* Sets the time at which the conn is ended. Call it on the conn's poller. */
void tether__unix_set_deadline(struct tether__unix_conn *conn, int64_t deadline);

/* ---- transport/socket/conn.c ---- */

struct tether__conn *tether__unix_dial(struct tether__transport *transport,
                                       const char *address,
                                       const struct tether__conn_events *events,
                                       void *userdata);
/* Makes a conn of an accepted connection. TAKES `fd`. On the server's poller. */
void tether__unix_accept(struct tether__unix *transport, int fd);
void tether__unix_proved(struct tether__conn *conn);
void tether__unix_conn_release(struct tether__conn *conn);
void tether__unix_conn_unref(struct tether__unix_conn *conn);

/* Asks the poller to look at the conn, and wakes it. */
void tether__unix_attend_locked(struct tether__unix_conn *conn);
/* Handles a conn that has requested attention. On the poller; may end the conn, which must not be
 * touched afterwards. */
void tether__unix_serve(struct tether__unix_conn *conn);

/* Sets the events that epoll reports for the conn. */
void tether__unix_watch_locked(struct tether__unix_conn *conn, bool in, bool out);

/* ---- transport/socket/receive.c ---- */

/* Receives once. False: nothing was there. On the poller; may end the conn. */
bool tether__unix_receive(struct tether__unix_conn *conn);

/* ---- transport/socket/close.c ---- */

void tether__unix_close(struct tether__conn *conn, bool polite);

/* Ends the conn at once, for a cause that closed() will report. Any thread. */
void tether__unix_abort_locked(struct tether__unix_conn *conn, const tether_error *cause);

/* The functions from here on run on the conn's poller. Each may end the conn, which must then not
 * be touched. */

/* Continues with a graceful close, as far as that is possible now. */
void tether__unix_end(struct tether__unix_conn *conn);
/* Handles the end marker of the peer. */
void tether__unix_peer_ended(struct tether__unix_conn *conn);
/* Handles a deadline of the conn that has passed. */
void tether__unix_expired(struct tether__unix_conn *conn);
/* Ends the conn. closed() gets `status` and `why`, or the cause of an earlier abort. */
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

/* Returns whether the address has the form "unix-abstract:NAME"; NAME may be empty. */
bool tether__unix_is_address(const char *address);

/* Converts such an address. False: it has another form, or NAME is empty or too long. */
bool tether__unix_sockaddr(const char *address, struct tether__unix_sockaddr *ret_at);

/* Writes `asked`, with a random name if it has none. False: no random bytes are available. */
bool tether__unix_choose(const char *asked, char *ret_address, size_t size);

/* Returns whether the process at the other end runs as this user. `*ret_pid` is its pid (0: not
 * known).
 */
bool tether__unix_is_our_users(int fd, pid_t *ret_pid);

/* ---- transport/socket/listen.c ---- */

tether_status tether__unix_listen(struct tether__transport *transport, tether_error *reterr);
/* Accepts the next connection. This and the functions below run on the server's poller. */
void tether__unix_accept_next(struct tether__unix *transport);
/* Continues accepting after it was paused for lack of descriptors. */
void tether__unix_accept_again(struct tether__unix *transport);
/* Calls accept() of the guest transport, if there is one. */
void tether__unix_accept_for_guest(struct tether__unix *transport);
/* Refuses further dials. Any thread. */
void tether__unix_listen_stop(struct tether__unix *transport);
void tether__unix_listen_close(struct tether__unix *transport);

#endif
