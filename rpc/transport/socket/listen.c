/* The listening unix socket.
 *
 * Happy path: start() makes the socket, and the poller of the server side accepts processes that
 * dial and run as this user. stop() refuses further dials; the poller closes the socket.
 *
 * Failure modes: start() says what is in the way. Out of descriptors or memory: accepting stops, so
 * that the poller does not turn in circles over a dial that it cannot take, and goes on when a conn
 * has closed or a while later; the dials wait meanwhile.
 *
 * The poller of the client side accepts for another transport (its *guest*), which so needs no
 * thread before it has a connection to serve. That of the server side would not do: it may be in an
 * inline function for any time.
 *
 * No locks: the listener is the poller's. stop() only shuts the socket down, and is done with that
 * before the poller may close it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "rpc/transport/socket/socket.h"

#define PAUSE_MS 100 /* how long accepting pauses before the next try */

/* ---- The beginning ---- */

/* Returns a socket that is bound and listens; -1: errno says why not. */
static int open_socket(const struct tether__unix_sockaddr *at)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (bind(fd, (const struct sockaddr *)&at->at, at->len) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static bool watch(struct tether__unix *transport, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = &transport->listener};
    return epoll_ctl(transport->sides[TETHER__SERVER].epoll_fd, op, transport->listener.fd,
                     &event) == 0;
}

tether_status tether__unix_listen(struct tether__transport *base, tether_error *reterr)
{
    struct tether__unix *transport = tether__unix_of(base);
    struct tether__unix_listener *listener = &transport->listener;
    if (!transport->listen)
        return TETHER_OK;
    struct tether__unix_sockaddr at;
    if (!tether__unix_choose(transport->listen, base->address, sizeof base->address) ||
        !tether__unix_sockaddr(base->address, &at))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "cannot listen on %s: a name has up to %zu characters",
                                transport->listen, sizeof at.at.sun_path - 1);
    listener->fd = open_socket(&at);
    if (listener->fd >= 0 && watch(transport, EPOLL_CTL_ADD, EPOLLIN))
        return TETHER_OK;
    bool taken = errno == EADDRINUSE; /* on error, destroy() frees what was made */
    return tether_error_set(reterr, taken ? TETHER_EADDRINUSE : TETHER_EIO,
                            "cannot listen on %s: %s", base->address,
                            taken ? "another process does" : strerror(errno));
}

/* ---- Accepting ---- */

static void pause_accepting(struct tether__unix *transport, int error)
{
    struct tether__unix_side *side = &transport->sides[TETHER__SERVER];
    struct tether__unix_listener *listener = &transport->listener;
    if (!listener->has_warned)
        tether__log(TETHER_LOG_WARN, "rpc",
                    "cannot accept connections on %s for now: %s; who dials has to wait",
                    transport->base.address, strerror(error));
    listener->has_warned = true;
    listener->resume_at = tether__deadline_in(&tether__clock_system, PAUSE_MS);
    if (listener->resume_at < side->next_deadline)
        side->next_deadline = listener->resume_at;
    watch(transport, EPOLL_CTL_MOD, 0);
}

void tether__unix_accept_again(struct tether__unix *transport)
{
    if (transport->listener.resume_at == TETHER__NEVER)
        return;
    transport->listener.resume_at = TETHER__NEVER;
    if (transport->listener.fd >= 0)
        watch(transport, EPOLL_CTL_MOD, EPOLLIN);
}

void tether__unix_accept_next(struct tether__unix *transport)
{
    int fd = accept4(transport->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        tether__unix_accept(transport, fd);
    else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
        pause_accepting(transport, errno);
    /* other errors mean that the dialler has closed or stop() was called: nothing to do */
}

/* ---- For another transport ---- */

tether_status tether__transport_unix_accept_for(struct tether__transport *base,
                                                struct tether__transport *late,
                                                tether_error *reterr)
{
    struct tether__unix *transport = tether__unix_of(base);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &transport->guest};
    int fd = late->ops->accept_fd(late);
    transport->guest = (struct tether__unix_guest){.due = TETHER__NEVER};
    if (fd < 0)
        return TETHER_OK;
    if (epoll_ctl(transport->sides[TETHER__CLIENT].epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return tether_error_set(reterr, TETHER_EIO, "starting to accept connections: %s",
                                strerror(errno));
    transport->guest.transport = late;
    return TETHER_OK;
}

void tether__unix_accept_for_guest(struct tether__unix *transport)
{
    struct tether__unix_side *side = &transport->sides[TETHER__CLIENT];
    struct tether__unix_guest *guest = &transport->guest;
    if (!guest->transport)
        return;
    guest->due = guest->transport->ops->accept(guest->transport);
    if (guest->due < side->next_deadline)
        side->next_deadline = guest->due;
}

/* ---- The end ---- */

void tether__unix_listen_stop(struct tether__unix *transport)
{
    if (transport->listener.fd >= 0)
        shutdown(transport->listener.fd, SHUT_RDWR);
}

void tether__unix_listen_close(struct tether__unix *transport)
{
    if (transport->listener.fd < 0)
        return;
    watch(transport, EPOLL_CTL_DEL, 0);
    close(transport->listener.fd);
    transport->listener.fd = -1;
}
