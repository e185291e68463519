/* How a conn over a unix socket ends.
 *
 * Happy path: the end that closes writes the end marker behind its last message and closes its half
 * of the socket. The other end answers with the same, and both get TETHER_OK.
 *
 * Failure modes: a peer that does not answer the marker within the patience is closed at once.
 * abort ends a conn from any thread, for a cause that closed() tells. All of it, and what receiving
 * finds, ends in finish(), on the poller.
 *
 * Locks: `ending` is under conn->mu and only goes on.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/transport/socket/socket.h"

/* Takes the descriptor away from all threads and removes it from epoll. Closing is not enough for
 * that, because a child between fork and exec also has the socket. -1: there was none. */
static int take_socket_locked(struct tether__unix_conn *conn)
{
    int fd = conn->fd;
    if (conn->in_epoll)
        epoll_ctl(conn->side->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    conn->in_epoll = false;
    tether__unix_watch_locked(conn, false, false);
    conn->finished = true;
    conn->fd = -1;
    return fd;
}

/* Takes the conn out of the side's lists, so that the poller does not use it again. */
static void forget(struct tether__unix_conn *conn)
{
    struct tether__unix_side *side = conn->side;
    pthread_mutex_lock(&side->mu);
    tether__list_remove(&conn->all);
    tether__list_remove(&conn->attention);
    pthread_mutex_unlock(&side->mu);
    tether__list_remove(&conn->timed);
    if (side->hot == conn)
        side->hot = NULL;
}

void tether__unix_finish(struct tether__unix_conn *conn, tether_status status, const char *why)
{
    struct tether__unix *transport = conn->side->transport;
    tether_error end;
    tether_error_set(&end, status, "%s", why);
    pthread_mutex_lock(&conn->mu);
    if (conn->ending == TETHER__UNIX_ABORTED)
        end = conn->abort_cause;
    int fd = take_socket_locked(conn);
    struct tether__unix_held *held = conn->held;
    conn->held = NULL;
    pthread_mutex_unlock(&conn->mu);

    if (fd >= 0) {
        shutdown(fd, SHUT_RDWR);
        close(fd);
    }
    forget(conn);
    tether__unix_held_free(held);
    tether__frames_fini(&conn->frames);
    if (conn->side == &transport->sides[TETHER__SERVER])
        tether__unix_accept_again(transport); /* a descriptor is free now, so accepting can go on */
    conn->base.events->closed(&conn->base, end.code, end.message);
    tether__unix_conn_unref(conn);
}

void tether__unix_expired(struct tether__unix_conn *conn)
{
    tether_error why;
    tether_error_set(&why, TETHER_EUNAVAILABLE, "%s did not close the connection within %lld ms",
                     conn->peer,
                     (long long)(conn->side->transport->patience_ns / TETHER__NS_PER_MS));
    tether__unix_finish(conn, why.code, why.message);
}

/* Writes the end marker after the last message, as far as the socket accepts it now. */
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
    /* If the end marker could not be written, the peer has closed, and the unread bytes show how.
     */
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

/* Handles the peer's end marker: reads nothing more, and sends nothing after the present message.
 */
void tether__unix_peer_ended(struct tether__unix_conn *conn)
{
    pthread_mutex_lock(&conn->mu);
    if (conn->ending == TETHER__UNIX_IN_USE)
        conn->ending = TETHER__UNIX_LAST_SEND;
    tether__unix_watch_locked(conn, false, conn->wants_out);
    pthread_mutex_unlock(&conn->mu);
    tether__unix_end(conn);
}

void tether__unix_abort_locked(struct tether__unix_conn *conn, const tether_error *cause)
{
    if (conn->ending == TETHER__UNIX_ABORTED || conn->finished)
        return;
    conn->ending = TETHER__UNIX_ABORTED;
    conn->abort_cause = *cause;
    atomic_store(&conn->mute, true);
    /* shut down now, so that the peer need not wait until our poller closes the socket */
    if (conn->fd >= 0)
        shutdown(conn->fd, SHUT_RDWR);
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
