/* Accepting TCP connections ourselves, without TLS: gRPC's own listener gives up for good when the
 * process has no descriptor left for a connection.
 *
 * Happy path: one thread accepts; a connection waits here until its client has sent the preface of
 * HTTP/2 and the head of its first frame; then gRPC gets the descriptor.
 *
 * Failure modes: no descriptor left: one is kept in reserve, to accept the connection and close it,
 * so that its client learns of it, and the next one is tried. A client that says nothing is dropped
 * after HANDSHAKE_MS, or earlier when more than MAX_WAITING wait: then the oldest goes.
 *
 * With TLS gRPC listens: it takes descriptors only for plain text.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/support/alloc.h>
#include <grpc/support/string_util.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/thread.h"
#include "rpc/transport_grpc.h"

#define MAX_LISTENERS 8
#define MAX_WAITING 256
#define HANDSHAKE_MS 10000
#define PAUSE_MS 100 /* when not even the reserve could be had back */

/* What a client sends first: the preface, then a SETTINGS frame, whose head has 9 bytes. */
static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum { PREFACE_BYTES = sizeof preface - 1, FIRST_BYTES = PREFACE_BYTES + 9 };

struct waiting {
    int fd;
    int64_t deadline;
};

struct tether__grpc_acceptor {
    grpc_server *server;
    grpc_server_credentials *credentials;
    pthread_t thread;
    bool runs;
    atomic_bool stopping;
    int wake; /* an eventfd */
    int listeners[MAX_LISTENERS];
    size_t n_listeners;
    /* the thread's */
    int reserve;        /* a descriptor to do without; -1: none */
    int64_t paused_for; /* no connection is accepted before this time */
    bool has_warned;
    struct waiting waiting[MAX_WAITING]; /* the oldest first */
    size_t n_waiting;
};

/* ---- One connection ---- */

static void forget(struct tether__grpc_acceptor *acceptor, size_t i)
{
    acceptor->n_waiting--;
    memmove(&acceptor->waiting[i], &acceptor->waiting[i + 1],
            (acceptor->n_waiting - i) * sizeof acceptor->waiting[0]);
}

static void drop(struct tether__grpc_acceptor *acceptor, size_t i)
{
    close(acceptor->waiting[i].fd);
    forget(acceptor, i);
}

/* How many bytes it takes to tell; poll() then says nothing earlier. */
static void wake_at(int fd, int bytes)
{
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

static void keep(struct tether__grpc_acceptor *acceptor, int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (acceptor->n_waiting == MAX_WAITING)
        drop(acceptor, 0);
    acceptor->waiting[acceptor->n_waiting++] =
        (struct waiting){fd, tether__deadline_in(&tether__clock_system, HANDSHAKE_MS)};
}

/* Bytes of it are here, or its end. What is no HTTP/2 is gRPC's to refuse. */
static void look_at(struct tether__grpc_acceptor *acceptor, size_t i)
{
    char first[FIRST_BYTES];
    int fd = acceptor->waiting[i].fd;
    ssize_t n = recv(fd, first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop(acceptor, i);
        return;
    }
    size_t compared = n < PREFACE_BYTES ? (size_t)n : PREFACE_BYTES;
    if (n < FIRST_BYTES && memcmp(first, preface, compared) == 0) {
        wake_at(fd, FIRST_BYTES); /* else poll() would return at once for what is there */
        return;
    }
    wake_at(fd, 1);
    forget(acceptor, i);
    grpc_server_add_channel_from_fd(acceptor->server, fd, acceptor->credentials);
}

/* ---- Accepting ---- */

static int take_reserve(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* There is no descriptor for it: with the reserve it is accepted and closed. */
static void turn_away(struct tether__grpc_acceptor *acceptor, int listener)
{
    if (!acceptor->has_warned)
        tether__log(TETHER_LOG_WARN, "rpc",
                    "no file descriptor is left for a connection: raise the limit (ulimit -n)");
    acceptor->has_warned = true;
    if (acceptor->reserve >= 0)
        close(acceptor->reserve);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    acceptor->reserve = take_reserve();
    if (acceptor->reserve < 0)
        acceptor->paused_for = tether__deadline_in(&tether__clock_system, PAUSE_MS);
}

static void accept_one(struct tether__grpc_acceptor *acceptor, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        keep(acceptor, fd);
    else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        turn_away(acceptor, listener);
    if (fd >= 0 && acceptor->reserve < 0)
        acceptor->reserve = take_reserve();
}

/* How long to poll: until the first of those that wait has had its time, or the pause is over. */
static int time_left_ms(const struct tether__grpc_acceptor *acceptor, bool paused)
{
    int64_t until = acceptor->n_waiting ? acceptor->waiting[0].deadline : TETHER__NEVER;
    if (paused && acceptor->paused_for < until)
        until = acceptor->paused_for;
    return until == TETHER__NEVER ? -1 : tether__deadline_left_ms(&tether__clock_system, until);
}

static void *accept_main(void *arg)
{
    struct tether__grpc_acceptor *acceptor = arg;
    struct pollfd fds[1 + MAX_LISTENERS + MAX_WAITING];
    while (!atomic_load(&acceptor->stopping)) {
        int64_t now = tether__clock_now_ns(&tether__clock_system);
        while (acceptor->n_waiting && acceptor->waiting[0].deadline <= now)
            drop(acceptor, 0);
        bool paused = now < acceptor->paused_for;
        size_t n = 0, n_waiting = acceptor->n_waiting;
        fds[n++] = (struct pollfd){.fd = acceptor->wake, .events = POLLIN};
        for (size_t i = 0; i < acceptor->n_listeners; i++)
            fds[n++] =
                (struct pollfd){.fd = paused ? -1 : acceptor->listeners[i], .events = POLLIN};
        size_t first_waiting = n;
        for (size_t i = 0; i < n_waiting; i++)
            fds[n++] = (struct pollfd){.fd = acceptor->waiting[i].fd, .events = POLLIN};
        if (poll(fds, n, time_left_ms(acceptor, paused)) <= 0)
            continue;
        for (size_t i = n_waiting; i-- > 0;) /* from the end: one that goes moves those behind it */
            if (fds[first_waiting + i].revents)
                look_at(acceptor, i);
        for (size_t i = 0; i < acceptor->n_listeners; i++)
            if (fds[1 + i].revents)
                accept_one(acceptor, acceptor->listeners[i]);
    }
    while (acceptor->n_waiting)
        drop(acceptor, 0);
    return NULL;
}

/* ---- Listening ---- */

static int port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0)
        return -1;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

static int listen_on(const struct addrinfo *at, int port)
{
    struct sockaddr_storage to;
    int one = 1;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    memcpy(&to, at->ai_addr, at->ai_addrlen);
    if (at->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)&to)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)&to)->sin_port = htons((uint16_t)port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&to, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Every address that the host has, all with one port. */
static int listen_on_all(struct tether__grpc_acceptor *acceptor, const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    int bound = atoi(port);
    for (const struct addrinfo *at = found; at && acceptor->n_listeners < MAX_LISTENERS;
         at = at->ai_next) {
        int fd = listen_on(at, bound);
        if (fd < 0)
            continue;
        acceptor->listeners[acceptor->n_listeners++] = fd;
        bound = port_of(fd);
    }
    freeaddrinfo(found);
    return acceptor->n_listeners ? bound : -1;
}

tether_status tether__grpc_acceptor_new(grpc_server *server,
                                        grpc_server_credentials *credentials,
                                        const char *host,
                                        const char *port,
                                        struct tether__grpc_acceptor **ret_acceptor,
                                        int *ret_port,
                                        tether_error *reterr)
{
    struct tether__grpc_acceptor *acceptor = tether__calloc(1, sizeof *acceptor);
    if (!acceptor)
        return tether_error_set(reterr, TETHER_ENOMEM, "starting to listen: out of memory");
    acceptor->server = server;
    acceptor->credentials = credentials;
    acceptor->reserve = take_reserve();
    acceptor->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *ret_acceptor = acceptor;
    if (acceptor->wake < 0)
        return tether_error_set(reterr, TETHER_EIO, "starting to listen: %s", strerror(errno));
    *ret_port = listen_on_all(acceptor, host, port);
    return TETHER_OK;
}

tether_status tether__grpc_acceptor_run(struct tether__grpc_acceptor *acceptor,
                                        tether_error *reterr)
{
    int rc = tether__thread_start(&acceptor->thread, "tether-accept", accept_main, acceptor);
    if (rc != 0)
        return tether_error_set(reterr, TETHER_EIO, "starting the accepting thread: %s",
                                strerror(rc));
    acceptor->runs = true;
    return TETHER_OK;
}

void tether__grpc_acceptor_stop(struct tether__grpc_acceptor *acceptor)
{
    uint64_t one = 1;
    if (!acceptor)
        return;
    atomic_store(&acceptor->stopping, true);
    if (acceptor->runs && write(acceptor->wake, &one, sizeof one) == sizeof one)
        pthread_join(acceptor->thread, NULL);
    acceptor->runs = false;
    while (acceptor->n_listeners)
        close(acceptor->listeners[--acceptor->n_listeners]);
}

void tether__grpc_acceptor_free(struct tether__grpc_acceptor *acceptor)
{
    if (!acceptor)
        return;
    tether__grpc_acceptor_stop(acceptor);
    if (acceptor->reserve >= 0)
        close(acceptor->reserve);
    if (acceptor->wake >= 0)
        close(acceptor->wake);
    tether__free(acceptor);
}

/* ---- Names ---- */

/* gRPC knows such a connection as "fd:12"; people want the address. */
char *tether__grpc_peer_of(grpc_call *call)
{
    char *peer = grpc_call_get_peer(call), text[INET6_ADDRSTRLEN + 16], ip[INET6_ADDRSTRLEN];
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    if (!peer || strncmp(peer, "fd:", 3) != 0 ||
        getpeername(atoi(peer + 3), (struct sockaddr *)&at, &len) != 0)
        return peer;
    bool v6 = at.ss_family == AF_INET6;
    const struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&at;
    const struct sockaddr_in *in4 = (struct sockaddr_in *)&at;
    if (!inet_ntop(at.ss_family, v6 ? (const void *)&in6->sin6_addr : &in4->sin_addr, ip,
                   sizeof ip))
        return peer;
    snprintf(text, sizeof text, v6 ? "ipv6:[%s]:%d" : "ipv4:%s:%d", ip,
             ntohs(v6 ? in6->sin6_port : in4->sin_port));
    gpr_free(peer);
    return gpr_strdup(text);
}
