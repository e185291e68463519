/* Conns over unix sockets, dialled and accepted: how they begin, receive and end.
 *
 * Happy path: dial() connects, which a unix socket does at once, and the poller tells opened(); or
 * the listener has accepted one. Then messages come, lent out of the side's scratch block. Whoever
 * is done writes the end marker and closes its half of the socket; the other answers with the same,
 * and both are told TETHER_OK.
 *
 * Failure modes: a peer that is gone without the marker broke off; one that does not answer ours
 * within the patience, that announces too long a message, or for whose message there is no memory,
 * is closed at once. All of it ends in finish(), on the poller.
 *
 * Locks: `ending` and who waits for what are under conn->mu; what is received belongs to the poller
 * and needs none.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "rpc/transport_unix.h"

/* A payload of 64 KiB with its headers fits, so that it can be lent out without a copy. */
#define SCRATCH_BYTES (72u << 10)

/* ---- Life ---- */

static void conn_unref(struct tether__unix_conn *conn)
{
    if (atomic_fetch_sub_explicit(&conn->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&conn->mu);
    tether__free(conn->peer);
    tether__free(conn);
}

void tether__unix_conn_release(struct tether__conn *conn)
{
    if (conn)
        conn_unref(tether__unix_conn_of(conn));
}

/* TAKES `fd` (-1: there is none) and `peer`, also when it fails. NULL: no memory. */
static struct tether__unix_conn *conn_new(struct tether__unix_side *side, int fd, char *peer)
{
    struct tether__unix_conn *conn = peer ? tether__calloc(1, sizeof *conn) : NULL;
    if (!conn) {
        tether__free(peer);
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    conn->side = side;
    conn->peer = peer;
    conn->fd = fd;
    conn->base.transport = &side->transport->base;
    conn->base.peer = peer;
    conn->wants_in = true;
    conn->deadline = TETHER__NEVER;
    atomic_init(&conn->refs, 2); /* the transport's and the owner's */
    tether__frames_init(&conn->frames, side->transport->max_message_bytes);
    tether__list_init(&conn->timed);
    tether__list_init(&conn->all);
    tether__list_init(&conn->attention);
    pthread_mutex_init(&conn->mu, NULL);
    return conn;
}

/* Makes it known to the side; false: that is shut, and the conn is gone. */
static bool link_conn(struct tether__unix_conn *conn, bool wants_attention)
{
    struct tether__unix_side *side = conn->side;
    pthread_mutex_lock(&side->mu);
    bool shut = side->shut;
    if (!shut) {
        tether__list_push_back(&side->conns, &conn->all);
        if (wants_attention)
            tether__list_push_back(&side->attention, &conn->attention);
    }
    pthread_mutex_unlock(&side->mu);
    if (!shut)
        return true;
    if (conn->fd >= 0)
        close(conn->fd);
    atomic_store(&conn->refs, 1);
    conn_unref(conn);
    return false;
}

void tether__unix_attend_locked(struct tether__unix_conn *conn)
{
    struct tether__unix_side *side = conn->side;
    pthread_mutex_lock(&side->mu);
    if (tether__list_empty(&conn->attention))
        tether__list_push_back(&side->attention, &conn->attention);
    pthread_mutex_unlock(&side->mu);
    tether__unix_wake_side(side);
}

/* ---- What epoll is asked for ---- */

static uint32_t interest_locked(const struct tether__unix_conn *conn)
{
    return (conn->wants_in ? EPOLLIN : 0u) | (conn->wants_out ? EPOLLOUT : 0u);
}

void tether__unix_watch_locked(struct tether__unix_conn *conn, bool in, bool out)
{
    if (in == conn->wants_in && out == conn->wants_out)
        return;
    if (out && !conn->wants_out)
        atomic_fetch_add(&conn->side->n_armed, 1);
    else if (!out && conn->wants_out)
        atomic_fetch_sub(&conn->side->n_armed, 1);
    conn->wants_in = in;
    conn->wants_out = out;
    struct epoll_event event = {.events = interest_locked(conn), .data.ptr = conn};
    if (conn->in_epoll) /* changing what is there cannot fail */
        epoll_ctl(conn->side->epoll_fd, EPOLL_CTL_MOD, conn->fd, &event);
}

/* False: errno says why. */
static bool enter_epoll(struct tether__unix_conn *conn)
{
    pthread_mutex_lock(&conn->mu);
    struct epoll_event event = {.events = interest_locked(conn), .data.ptr = conn};
    conn->in_epoll = epoll_ctl(conn->side->epoll_fd, EPOLL_CTL_ADD, conn->fd, &event) == 0;
    bool entered = conn->in_epoll;
    pthread_mutex_unlock(&conn->mu);
    return entered;
}

/* ---- The beginning ---- */

/* A connected socket; -1: errno says why not. */
static int connect_to(const char *address)
{
    struct sockaddr_un at;
    const char *path = tether__socket_path(address);
    if (!path || !tether__socket_sockaddr(path, &at)) {
        errno = EINVAL;
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

struct tether__conn *tether__unix_dial(struct tether__transport *base,
                                       const char *address,
                                       const struct tether__conn_events *events,
                                       void *userdata)
{
    struct tether__unix_side *side = &tether__unix_of(base)->sides[TETHER__CLIENT];
    int fd = connect_to(address), error = fd < 0 ? errno : 0;
    struct tether__unix_conn *conn = conn_new(side, fd, tether__strdup(address));
    if (!conn)
        return NULL;
    conn->dialled = true;
    conn->dial_error = error;
    conn->base.events = events;
    conn->base.userdata = userdata;
    if (!link_conn(conn, true))
        return NULL;
    tether__unix_wake_side(side); /* the conn may be closed and gone by now, but for the owner */
    return &conn->base;
}

static const char *dial_hint(int error)
{
    switch (error) {
        case ECONNREFUSED:
        case ENOENT:
            return " (is it still running?)";
        case EACCES:
        case EPERM:
            return " (does it run as another user?)";
        case EAGAIN:
            return " (too many others wait to be accepted)";
        case EINVAL:
            return " (want \"unix:/path\", and not too long a path)";
        default:
            return "";
    }
}

/* Tells how the dial went. False: it is over. */
static bool begin_dialled(struct tether__unix_conn *conn)
{
    int error = conn->dial_error;
    if (!error && !enter_epoll(conn))
        error = errno;
    if (error) {
        tether_error why;
        tether_error_set(&why, TETHER_EUNAVAILABLE, "cannot connect to %s: %s%s", conn->peer,
                         strerror(error), dial_hint(error));
        tether__unix_finish(conn, why.code, why.message);
        return false;
    }
    conn->base.events->opened(&conn->base);
    return true;
}

static char *name_of_peer(int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0)
        return tether__strdup("a process of this host");
    return tether__asprintf("process %ld of this host", (long)who.pid);
}

void tether__unix_accept(struct tether__unix *transport, int fd)
{
    struct tether__unix_side *side = &transport->sides[TETHER__SERVER];
    struct tether__unix_conn *conn = conn_new(side, fd, name_of_peer(fd));
    if (!conn || !link_conn(conn, false))
        return; /* no memory, or stopping: the peer hears that it broke */
    conn->begun = true;
    transport->events->accepted(transport->userdata, &conn->base, NULL);
    if (!enter_epoll(conn))
        tether__unix_finish(conn, TETHER_EUNAVAILABLE, strerror(errno));
}

/* ---- Receiving ---- */

/* Makes sure that there is a block to receive into. */
static struct tether__block *scratch(struct tether__unix_side *side)
{
    if (side->scratch && !tether__block_is_mine(side->scratch))
        side->scratch = tether__block_release(side->scratch);
    if (!side->scratch) {
        side->scratch = tether__block_new(SCRATCH_BYTES);
        atomic_fetch_add_explicit(&side->transport->stats.scratches, 1, memory_order_relaxed);
    }
    return side->scratch;
}

static void broke_off(struct tether__unix_conn *conn, int error)
{
    tether_error why;
    tether_error_set(&why, TETHER_EUNAVAILABLE, "the connection %s %s broke off%s%s",
                     conn->dialled ? "to" : "from", conn->peer, error ? ": " : "",
                     error ? strerror(error) : "");
    tether__unix_finish(conn, why.code, why.message);
}

/* The peer is done: nothing more is read, and we are done, too, with what is being sent. */
static void peer_ended(struct tether__unix_conn *conn)
{
    pthread_mutex_lock(&conn->mu);
    if (conn->ending == TETHER__UNIX_IN_USE)
        conn->ending = TETHER__UNIX_LAST_SEND;
    tether__unix_watch_locked(conn, false, conn->wants_out);
    pthread_mutex_unlock(&conn->mu);
    tether__unix_end(conn);
}

static void too_big(struct tether__unix_conn *conn)
{
    tether_error why;
    tether_error_set(
        &why, TETHER_ETOOBIG, "a message of %lu bytes from %s is over the limit of %lu",
        (unsigned long)conn->frames.announced, conn->peer, (unsigned long)conn->frames.max_bytes);
    tether__unix_finish(conn, why.code, why.message);
}

static bool is_over(const struct tether__unix_conn *conn)
{
    return atomic_load_explicit(&conn->mute, memory_order_relaxed) ||
           atomic_load_explicit(&conn->side->transport->stopping, memory_order_relaxed);
}

static void deliver(struct tether__unix_conn *conn, struct tether__slice bytes)
{
    while (!is_over(conn)) {
        struct tether__slice message;
        switch (tether__frames_next(&conn->frames, &bytes, &message)) {
            case TETHER__NEXT_MESSAGE:
                conn->base.events->message(&conn->base, message);
                break;
            case TETHER__NEXT_NONE:
                return;
            case TETHER__NEXT_END:
                peer_ended(conn);
                return;
            case TETHER__NEXT_TOO_BIG:
                too_big(conn);
                return;
            case TETHER__NEXT_NO_MEMORY:
                tether__unix_finish(conn, TETHER_ENOMEM, "no memory for a received message");
                return;
        }
    }
}

/* A short read means that nothing more is there: to read again would only say so. */
bool tether__unix_receive(struct tether__unix_conn *conn)
{
    struct tether__unix_side *side = conn->side;
    struct tether__block *block = scratch(side);
    if (!block) {
        tether__unix_finish(conn, TETHER_ENOMEM, "no memory to receive into");
        return true;
    }
    uint8_t *to;
    size_t room = tether__frames_room(&conn->frames, &to);
    struct iovec parts[2] = {{to, room}, {block->data, block->size}};
    ssize_t n =
        room ? recvmsg(conn->fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 2}, MSG_DONTWAIT)
             : recv(conn->fd, block->data, block->size, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        broke_off(conn, n < 0 ? errno : 0);
        return true;
    }
    side->hot = conn;
    size_t filled = (size_t)n < room ? (size_t)n : room;
    tether__frames_filled(&conn->frames, filled);
    deliver(conn, (struct tether__slice){block->data, (size_t)n - filled, &block->owner});
    return true;
}

/* ---- The end ---- */

void tether__unix_finish(struct tether__unix_conn *conn, tether_status status, const char *why)
{
    struct tether__unix_side *side = conn->side;
    tether_error end;
    tether_error_set(&end, status, "%s", why);
    pthread_mutex_lock(&conn->mu);
    if (conn->ending == TETHER__UNIX_ABORTED)
        end = conn->abort_cause;
    int fd = conn->fd;
    struct tether__unix_kept *kept = conn->kept;
    if (conn->in_epoll) /* a child between fork and exec has the socket, too: closing is not enough
                         */
        epoll_ctl(side->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    conn->in_epoll = false;
    tether__unix_watch_locked(conn, false, false);
    conn->finished = true;
    conn->fd = -1;
    conn->kept = NULL;
    pthread_mutex_unlock(&conn->mu);

    if (fd >= 0) {
        shutdown(fd, SHUT_RDWR);
        close(fd);
    }
    pthread_mutex_lock(&side->mu);
    tether__list_remove(&conn->all);
    tether__list_remove(&conn->attention);
    pthread_mutex_unlock(&side->mu);
    tether__list_remove(&conn->timed);
    if (side->hot == conn)
        side->hot = NULL;
    tether__unix_kept_free(kept);
    tether__frames_fini(&conn->frames);
    if (side == &side->transport->sides[TETHER__SERVER])
        tether__unix_accept_again(side->transport); /* there is a descriptor again */
    conn->base.events->closed(&conn->base, end.code, end.message);
    conn_unref(conn);
}

void tether__unix_expired(struct tether__unix_conn *conn)
{
    tether_error why;
    tether_error_set(&why, TETHER_EUNAVAILABLE, "%s did not close the connection within %lld ms",
                     conn->peer,
                     (long long)(conn->side->transport->patience_ns / TETHER__NS_PER_MS));
    tether__unix_finish(conn, why.code, why.message);
}

/* Writes the marker behind the last message, as far as that goes now. */
static void write_end_locked(struct tether__unix_conn *conn)
{
    uint8_t marker[TETHER__UNIX_HEADER_BYTES];
    tether__frames_header(marker, TETHER__UNIX_END);
    ssize_t n = send(conn->fd, marker + conn->end_sent, sizeof marker - conn->end_sent,
                     MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0)
        conn->end_sent += (size_t)n;
    if (conn->end_sent < sizeof marker && (n >= 0 || errno == EAGAIN || errno == EINTR)) {
        tether__unix_watch_locked(conn, conn->wants_in, true);
        return;
    }
    /* If it could not be written the peer is gone, and what is left to read tells how. */
    shutdown(conn->fd, SHUT_WR);
    conn->ending = TETHER__UNIX_ENDED;
    tether__unix_watch_locked(conn, conn->wants_in, false);
}

void tether__unix_end(struct tether__unix_conn *conn)
{
    if (conn->deadline == TETHER__NEVER)
        tether__unix_set_deadline(
            conn, tether__clock_now_ns(&tether__clock_system) + conn->side->transport->patience_ns);
    pthread_mutex_lock(&conn->mu);
    if (conn->ending == TETHER__UNIX_LAST_SEND && !conn->sending)
        write_end_locked(conn);
    bool over = conn->ending == TETHER__UNIX_ENDED && conn->frames.ended;
    pthread_mutex_unlock(&conn->mu);
    if (!over)
        return;
    tether_error why;
    tether_error_set(&why, TETHER_OK, "the connection %s %s was closed",
                     conn->dialled ? "to" : "from", conn->peer);
    tether__unix_finish(conn, TETHER_OK, why.message);
}

void tether__unix_serve(struct tether__unix_conn *conn)
{
    pthread_mutex_lock(&conn->mu);
    bool aborted = conn->ending == TETHER__UNIX_ABORTED;
    pthread_mutex_unlock(&conn->mu);
    if (aborted) {
        tether__unix_finish(conn, TETHER_OK, "");
        return;
    }
    if (!conn->begun) {
        conn->begun = true;
        if (!begin_dialled(conn))
            return;
    }
    pthread_mutex_lock(&conn->mu);
    bool all_out = conn->sent_due;
    if (all_out)
        conn->sent_due = conn->sending = false;
    bool next_may_go = all_out && conn->ending == TETHER__UNIX_IN_USE;
    bool ending = conn->ending == TETHER__UNIX_LAST_SEND;
    pthread_mutex_unlock(&conn->mu);
    if (next_may_go)
        conn->base.events->sent(&conn->base);
    if (ending)
        tether__unix_end(conn);
}

void tether__unix_abort_locked(struct tether__unix_conn *conn, const tether_error *cause)
{
    if (conn->ending == TETHER__UNIX_ABORTED || conn->finished)
        return;
    conn->ending = TETHER__UNIX_ABORTED;
    conn->abort_cause = *cause;
    atomic_store(&conn->mute, true);
    if (conn->fd >= 0)
        shutdown(conn->fd, SHUT_RDWR); /* the peer need not wait for our poller to hear of it */
    tether__unix_attend_locked(conn);
}

void tether__unix_close(struct tether__conn *base, bool polite)
{
    struct tether__unix_conn *conn = tether__unix_conn_of(base);
    pthread_mutex_lock(&conn->mu);
    if (!polite) {
        tether__unix_abort_locked(
            conn, &(tether_error){TETHER_ECANCELED, "the connection was closed by this side"});
    } else if (conn->ending == TETHER__UNIX_IN_USE && !conn->finished) {
        conn->ending = TETHER__UNIX_LAST_SEND;
        tether__unix_attend_locked(conn);
    }
    pthread_mutex_unlock(&conn->mu);
}
