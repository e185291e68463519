/* Accepting connections ourselves: gRPC's own listener stops accepting for ever when the process
 * has no descriptor left for a connection.
 *
 * Happy path: one thread accepts; a connection waits here until its client has sent the first bytes
 * (of TLS, or the preface of HTTP/2 and the head of a frame); then gRPC gets the descriptor.
 *
 * A client that speaks plain text to a listener with TLS, or the other way round, is told so in its
 * own protocol (mismatch.c). gRPC never sees it.
 *
 * Failure modes: no descriptor left: one is kept in reserve, to accept the connection and close it,
 * so that its client learns of it, and the next one is tried. A client that says nothing is dropped
 * after HANDSHAKE_MS, or earlier when more than MAX_WAITING wait: then the oldest goes.
 *
 * With TLS gRPC itself ends a handshake that takes longer (GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/support/alloc.h>
#include <grpc/support/string_util.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/threads/thread.h"
#include "rpc/transport/grpc/grpc.h"

#define MAX_WAITING 256
#define HANDSHAKE_MS 10000
#define CATCH_UP_MS 1 /* when gRPC has yet to close those that have ended */
#define LOOK_MS 5     /* between two looks at the unproved ones */
#define PAUSE_MS 100  /* when not even the reserve could be had back */

#define MISMATCH_MAX_BYTES \
    (64 * 1024) /* bytes that a client may send while it gets an explanation of its mistake */

/* A client without TLS sends the preface first, then a SETTINGS frame, whose head has 9 bytes. One
 * with TLS sends a record, whose head has 5. */
enum { PLAIN_BYTES = sizeof TETHER__GRPC_PREFACE - 1 + 9, TLS_BYTES = 6 };

struct waiting {
    int fd;
    int64_t deadline;
    bool is_mismatch; /* it gets an explanation of its mistake */
    struct tether__grpc_mismatch mismatch;
    size_t n_read; /* while it is */
};

struct tether__grpc_acceptor {
    grpc_server *server;
    grpc_server_credentials *credentials;
    struct tether__grpc_unproved *unproved;
    const struct tether__grpc_external *external; /* NULL: plain text */
    struct tether__grpc_listeners *listeners;
    pthread_t thread;
    bool runs;
    atomic_bool stopping;
    int wake; /* an eventfd */
    /* the thread's */
    int reserve;        /* a descriptor to do without; -1: none */
    int64_t paused_for; /* no connection is accepted before this time */
    int64_t look_from;  /* the unproved ones are not looked at before this time */
    bool must_look;     /* then they are, also if nothing came */
    bool has_warned;
    struct tether__log_limit mismatches;
    struct waiting waiting[MAX_WAITING]; /* the oldest first */
    size_t n_waiting;
};

/* ---- One connection ---- */

#define ADDRESS_SIZE (INET6_ADDRSTRLEN + 16)

/* Writes the address of the other end, "ipv4:127.0.0.1:41234". False: it has none any more. */
static bool address_of(int fd, char ret_address[ADDRESS_SIZE])
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char ip[INET6_ADDRSTRLEN];
    if (getpeername(fd, (struct sockaddr *)&at, &len) != 0)
        return false;
    bool v6 = at.ss_family == AF_INET6;
    if (at.ss_family == AF_UNIX) {
        snprintf(ret_address, ADDRESS_SIZE, "unix:");
        return true;
    }
    const struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&at;
    const struct sockaddr_in *in4 = (struct sockaddr_in *)&at;
    if (!inet_ntop(at.ss_family, v6 ? (const void *)&in6->sin6_addr : &in4->sin_addr, ip,
                   sizeof ip))
        return false;
    snprintf(ret_address, ADDRESS_SIZE, v6 ? "ipv6:[%s]:%d" : "ipv4:%s:%d", ip,
             ntohs(v6 ? in6->sin6_port : in4->sin_port));
    return true;
}

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

/* The number of bytes that shows the protocol; poll() reports the socket only when so many are
 * there. */
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
    acceptor->waiting[acceptor->n_waiting++] = (struct waiting){
        .fd = fd, .deadline = tether__deadline_in(&tether__clock_system, HANDSHAKE_MS)};
}

static bool is_unix(int fd)
{
    int domain = 0;
    socklen_t len = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_UNIX;
}

/* ---- Clients with TLS where there is none, or without ---- */

static void log_mismatch(struct tether__grpc_acceptor *acceptor, int fd)
{
    unsigned left_out;
    char address[ADDRESS_SIZE] = "a client";
    int64_t now = tether__clock_now_ns(&tether__clock_system);
    if (!tether__log_limit_passes(&acceptor->mismatches, now, &left_out))
        return;
    address_of(fd, address);
    tether__log(TETHER_LOG_WARN, "rpc",
                "refused %s: it %s: give both ends a certificate, or neither (and %u more since "
                "this was last logged)",
                address,
                acceptor->external ? "speaks plain text, and this worker has TLS"
                                   : "has TLS, and this worker speaks plain text",
                left_out);
}

/* False: it does not fit into the socket's buffer. */
static bool answer(const struct waiting *client, const uint8_t *out, size_t n)
{
    return n == 0 || send(client->fd, out, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

static bool begin_mismatch(struct tether__grpc_acceptor *acceptor, struct waiting *client)
{
    uint8_t out[TETHER__GRPC_MISMATCH_BYTES];
    log_mismatch(acceptor, client->fd);
    client->is_mismatch = true;
    wake_at(client->fd, 1);
    return answer(client, out,
                  tether__grpc_mismatch_begin(&client->mismatch, !acceptor->external, out));
}

/* Reads on until the client closes the connection, also after the whole answer was sent: a gRPC
 * client ignores an answer that is followed by the end of the connection. False: the connection has
 * ended. */
static bool go_on_with_mismatch(struct waiting *client)
{
    uint8_t bytes[4096], out[TETHER__GRPC_MISMATCH_BYTES];
    ssize_t n = recv(client->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0 || (client->n_read += (size_t)n) > MISMATCH_MAX_BYTES)
        return false;
    return client->mismatch.is_over ||
           answer(client, out,
                  tether__grpc_mismatch_feed(&client->mismatch, bytes, (size_t)n, out));
}

/* ---- The first bytes ---- */

/* How many bytes must arrive before the protocol of the client can be judged; 0: the present
 * ones are enough. Clients of a unix path belong to this user, and poll() has no low-water marks
 * there. */
static int bytes_missing(enum tether__grpc_speech speech, int fd, size_t n)
{
    bool is_plain = speech == TETHER__GRPC_BEGINS_PLAIN || speech == TETHER__GRPC_SPEAKS_PLAIN;
    int all = speech == TETHER__GRPC_SPEAKS_OTHER ? 0 : is_plain ? PLAIN_BYTES : TLS_BYTES;
    return n < (size_t)all && !is_unix(fd) ? all : 0;
}

static void hand_over(struct tether__grpc_acceptor *acceptor, size_t i)
{
    int fd = acceptor->waiting[i].fd;
    wake_at(fd, 1);
    int grpcs_fd = acceptor->external && is_unix(fd)
                       ? fd
                       : tether__grpc_unproved_enter(acceptor->unproved, fd);
    if (grpcs_fd < 0) {
        drop(acceptor, i);
        return;
    }
    forget(acceptor, i);
    if (acceptor->external)
        tether__grpc_external_take(acceptor->external, grpcs_fd);
    else
        grpc_server_add_channel_from_fd(acceptor->server, grpcs_fd, acceptor->credentials);
}

/* Bytes of it are here, or its end. gRPC refuses bytes that are neither TLS nor HTTP/2. */
static void look_at(struct tether__grpc_acceptor *acceptor, size_t i)
{
    char first[PLAIN_BYTES];
    struct waiting *client = &acceptor->waiting[i];
    if (client->is_mismatch) {
        if (!go_on_with_mismatch(client))
            drop(acceptor, i);
        return;
    }
    if (!tether__grpc_unproved_has_room(acceptor->unproved))
        return;
    ssize_t n = recv(client->fd, first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop(acceptor, i);
        return;
    }
    enum tether__grpc_speech speech = tether__grpc_speech_of(first, (size_t)n);
    int missing = bytes_missing(speech, client->fd, (size_t)n);
    /* otherwise poll() would return at once for the bytes that are there */
    if (missing)
        wake_at(client->fd, missing);
    else if (speech != (acceptor->external ? TETHER__GRPC_SPEAKS_PLAIN : TETHER__GRPC_SPEAKS_TLS))
        hand_over(acceptor, i);
    else if (!begin_mismatch(acceptor, client))
        drop(acceptor, i);
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

static void look_at_unproved(struct tether__grpc_acceptor *acceptor)
{
    acceptor->must_look = tether__grpc_unproved_look(acceptor->unproved);
    acceptor->look_from = tether__deadline_in(&tether__clock_system, LOOK_MS);
}

/* How long to poll: until the first of those that wait has had its time, or a pause is over. */
static int time_left_ms(const struct tether__grpc_acceptor *acceptor, bool paused, bool may_look)
{
    int64_t until = acceptor->n_waiting ? acceptor->waiting[0].deadline : TETHER__NEVER;
    if (paused && acceptor->paused_for < until)
        until = acceptor->paused_for;
    if (!may_look && acceptor->look_from < until)
        until = acceptor->look_from;
    return until == TETHER__NEVER ? -1 : tether__deadline_left_ms(&tether__clock_system, until);
}

static void *accept_main(void *arg)
{
    struct tether__grpc_acceptor *acceptor = arg;
    const struct tether__grpc_listeners *listeners = acceptor->listeners;
    struct pollfd fds[2 + TETHER__GRPC_MAX_LISTENERS + MAX_WAITING];
    while (!atomic_load(&acceptor->stopping)) {
        int64_t now = tether__clock_now_ns(&tether__clock_system);
        while (acceptor->n_waiting && acceptor->waiting[0].deadline <= now)
            drop(acceptor, 0);
        bool may_look = acceptor->look_from <= now;
        if (may_look && acceptor->must_look) {
            look_at_unproved(acceptor);
            may_look = false;
        }
        bool is_behind = !tether__grpc_unproved_has_room(acceptor->unproved);
        if (is_behind && acceptor->paused_for <= now)
            acceptor->paused_for = tether__deadline_in(&tether__clock_system, CATCH_UP_MS);
        acceptor->must_look |= is_behind; /* ends that there is no room for are not told again */
        bool paused = now < acceptor->paused_for;
        size_t n = 0, n_waiting = acceptor->n_waiting;
        fds[n++] = (struct pollfd){.fd = acceptor->wake, .events = POLLIN};
        fds[n++] =
            (struct pollfd){.fd = may_look ? acceptor->unproved->events : -1, .events = POLLIN};
        size_t first_listener = n;
        for (size_t i = 0; i < listeners->n; i++)
            fds[n++] = (struct pollfd){.fd = paused ? -1 : listeners->fds[i], .events = POLLIN};
        size_t first_waiting = n;
        for (size_t i = 0; i < n_waiting; i++)
            fds[n++] =
                (struct pollfd){.fd = is_behind ? -1 : acceptor->waiting[i].fd, .events = POLLIN};
        if (poll(fds, n, time_left_ms(acceptor, paused, may_look)) <= 0)
            continue;
        if (fds[1].revents)
            look_at_unproved(acceptor);
        for (size_t i = n_waiting; i-- > 0;) /* from the end: one that goes moves those behind it */
            if (fds[first_waiting + i].revents)
                look_at(acceptor, i);
        for (size_t i = 0; i < listeners->n; i++)
            if (fds[first_listener + i].revents)
                accept_one(acceptor, listeners->fds[i]);
    }
    while (acceptor->n_waiting)
        drop(acceptor, 0);
    return NULL;
}

/* ---- Life ---- */

tether_status tether__grpc_acceptor_new(grpc_server *server,
                                        grpc_server_credentials *credentials,
                                        const struct tether__grpc_external *external,
                                        struct tether__grpc_listeners *listeners,
                                        struct tether__grpc_acceptor **ret_acceptor,
                                        tether_error *reterr)
{
    struct tether__grpc_acceptor *acceptor = tether__calloc(1, sizeof *acceptor);
    if (!acceptor)
        return tether_error_set(reterr, TETHER_ENOMEM, "starting to listen: out of memory");
    acceptor->server = server;
    acceptor->credentials = credentials;
    acceptor->external = external;
    acceptor->listeners = listeners;
    acceptor->reserve = take_reserve();
    acceptor->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *ret_acceptor = acceptor;
    if (acceptor->wake < 0)
        return tether_error_set(reterr, TETHER_EIO, "starting to listen: %s", strerror(errno));
    return TETHER_OK;
}

tether_status tether__grpc_acceptor_run(struct tether__grpc_acceptor *acceptor,
                                        struct tether__grpc_unproved *unproved,
                                        tether_error *reterr)
{
    acceptor->unproved = unproved;
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

/* gRPC names such a connection "fd:12"; the address is more useful to readers. */
char *tether__grpc_peer_of(grpc_call *call)
{
    char *peer = grpc_call_get_peer(call), address[ADDRESS_SIZE];
    if (!peer || strncmp(peer, "fd:", 3) != 0 || !address_of(atoi(peer + 3), address))
        return peer;
    gpr_free(peer);
    return gpr_strdup(address);
}
