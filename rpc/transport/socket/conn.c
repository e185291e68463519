/* Makes conns over unix sockets and starts them.
 *
 * Happy path: dial() connects, which a unix socket does at once, and the poller tells opened(); or
 * the listener has accepted one. From then on transport/socket/receive.c and
 * transport/socket/send.c carry messages, until transport/socket/close.c ends it.
 *
 * Failure modes: an error of a dial arrives as closed(), on the poller; only without memory or
 * after stop() is there no conn. An accepted connection that cannot be served is closed.
 *
 * Locks: the events that epoll is asked for are under conn->mu, the lists of the side under
 * side->mu.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "rpc/transport/socket/socket.h"

/* How many bytes the kernel buffers for a conn before a send blocks: enough for a whole fragment
 * of a lane (256 KiB). The system may allow less. */
#define SEND_BUFFER_BYTES (512 << 10)

/* ---- Life ---- */

void tether__unix_conn_unref(struct tether__unix_conn *conn)
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
        tether__unix_conn_unref(tether__unix_conn_of(conn));
}

/* Makes a conn. TAKES `fd` (-1: there is none) and `peer`, also on failure. NULL: no memory. */
static struct tether__unix_conn *conn_new(struct tether__unix_side *side, int fd, char *peer)
{
    struct tether__unix_conn *conn = peer ? tether__calloc(1, sizeof *conn) : NULL;
    if (!conn) {
        tether__free(peer);
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    const int buffer = SEND_BUFFER_BYTES;
    if (fd >= 0) /* if this fails the conn is only slower */
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    conn->side = side;
    conn->peer = peer;
    conn->fd = fd;
    conn->base.transport = &side->transport->base;
    conn->base.peer = peer;
    conn->wants_in = true;
    conn->deadline = TETHER__NEVER;
    atomic_init(&conn->refs, 2); /* one for the transport, one for the owner */
    tether__frames_init(&conn->frames, side->transport->max_message_bytes);
    tether__list_init(&conn->timed);
    tether__list_init(&conn->all);
    tether__list_init(&conn->attention);
    pthread_mutex_init(&conn->mu, NULL);
    return conn;
}

/* Adds the conn to its side; false: the side has been stopped, and the conn was freed. */
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
    tether__unix_conn_unref(conn);
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
    if (conn->in_epoll) /* changing a registered descriptor cannot fail */
        epoll_ctl(conn->side->epoll_fd, EPOLL_CTL_MOD, conn->fd, &event);
}

/* Adds the conn to epoll. False: errno says why not. */
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

/* Returns a connected socket; -1: errno says why not. */
static int connect_to(const char *address)
{
    struct tether__unix_sockaddr to;
    pid_t pid;
    if (!tether__unix_sockaddr(address, &to)) {
        errno = EINVAL;
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    int error = connect(fd, (struct sockaddr *)&to.at, to.len) == 0 ? 0 : errno;
    if (!error && !tether__unix_is_our_users(fd, &pid))
        error = EACCES;
    if (!error)
        return fd;
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
    /* the conn may be closed by now, and only the owner's count keeps its memory */
    tether__unix_wake_side(side);
    return &conn->base;
}

static const char *dial_hint(int error)
{
    switch (error) {
        case ECONNREFUSED:
            return " (is it still running?)";
        case EACCES:
            return " (it runs as another user)";
        case EAGAIN:
            return " (too many others wait to be accepted)";
        case EINVAL:
            return " (want \"unix-abstract:NAME\", and not too long a name)";
        default:
            return "";
    }
}

/* Reports the result of the dial. False: the conn has ended. */
static bool begin_dialled(struct tether__unix_conn *conn)
{
    int error = conn->dial_error;
    if (!error && !enter_epoll(conn))
        error = errno;
    if (error) {
        /* ECONNREFUSED means that no process has the name: it is released only when the process
         * stops or ends. */
        tether_status status = error == ECONNREFUSED ? TETHER_ENOTFOUND : TETHER_EUNAVAILABLE;
        tether_error why;
        tether_error_set(&why, status, "cannot connect to %s: %s%s", conn->peer, strerror(error),
                         dial_hint(error));
        tether__unix_finish(conn, why.code, why.message);
        return false;
    }
    conn->base.events->opened(&conn->base, NULL);
    return true;
}

/* Logs a client of another user, at a limited rate, because such clients can come at any rate. */
static void log_other_user(struct tether__unix *transport, pid_t pid)
{
    unsigned left_out;
    if (tether__log_limit_passes(&transport->others_refused,
                                 tether__clock_now_ns(&tether__clock_system), &left_out))
        tether__log(TETHER_LOG_INFO, "rpc",
                    "hung up on process %ld, which runs as another user (and %u more since this "
                    "was last logged)",
                    (long)pid, left_out);
}

void tether__unix_accept(struct tether__unix *transport, int fd)
{
    struct tether__unix_side *side = &transport->sides[TETHER__SERVER];
    pid_t pid = 0;
    if (!tether__unix_is_our_users(fd, &pid)) {
        log_other_user(transport, pid);
        close(fd);
        return;
    }
    struct tether__unix_conn *conn =
        conn_new(side, fd, tether__asprintf("process %ld of this host", (long)pid));
    /* no memory, or the transport is stopping: the conn is freed, so the peer sees a broken
     * connection */
    if (!conn || !link_conn(conn, false))
        return;
    conn->begun = true;
    conn->frames.max_bytes = transport->max_first_bytes;
    transport->events->accepted(transport->userdata, &conn->base, NULL);
    if (!enter_epoll(conn))
        tether__unix_finish(conn, TETHER_EUNAVAILABLE, strerror(errno));
}

void tether__unix_proved(struct tether__conn *base)
{
    struct tether__unix_conn *conn = tether__unix_conn_of(base);
    conn->frames.max_bytes = conn->side->transport->max_message_bytes;
}

/* ---- Requests of other threads to the poller ---- */

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
