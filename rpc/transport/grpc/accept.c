/* Accepting connections ourselves: gRPC's own listener stops accepting for ever when the process
 * has no descriptor left for a connection.
 *
 * Happy path: turn() accepts; a connection waits here until its client has sent the first bytes
 * (of TLS, or the preface of HTTP/2 and the head of a frame); then gRPC gets the descriptor. A
 * thread of its own does the turns, or the poller of the local route. If gRPC has not started yet,
 * the first client that has begun to speak has it started, and waits for that (open()).
 *
 * `set` has all sockets, and `all` has `set` and an event descriptor, which is edge-triggered and
 * never read. While the acceptor pauses, `all` does not look at `set`.
 *
 * A client that speaks plain text to a listener with TLS, or the other way round, is told so in its
 * own protocol (mismatch.c). gRPC never sees it.
 *
 * Failure modes: no descriptor left: one is kept in reserve, to accept the connection and close
 * it, so that its client learns of it, and the next one is tried. A client that says nothing is
 * dropped after HANDSHAKE_MS, or earlier when more than MAX_WAITING wait: then the oldest goes. If
 * gRPC does not start, the clients that wait for it are dropped, and the next one makes it try
 * again.
 *
 * With TLS gRPC itself ends a handshake that takes longer (GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS).
 */
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/threads/thread.h"
#include "rpc/transport/grpc/accept.h"

#define MAX_WAITING 256
#define MAX_EVENTS 4 /* events of one turn; local calls may wait for it */
#define HANDSHAKE_MS 10000
#define CATCH_UP_MS 1 /* length of a pause in which gRPC closes ended connections */
#define LOOK_MS 5     /* time between two checks of the connections without proof */
#define PAUSE_MS 100  /* how long accepting pauses if the reserve cannot be reopened */
#define MISMATCH_MAX_BYTES (64 * 1024) /* limit of bytes read from a client that is told so */

struct waiting {
    int fd;
    int64_t deadline;
    bool is_ready;    /* waits only for gRPC to start; `set` no longer has the socket */
    bool is_mismatch; /* speaks the wrong protocol, so it gets an explanation */
    struct tether__grpc_mismatch mismatch;
    size_t n_read; /* bytes read from it since then */
};

struct tether__grpc_acceptor {
    /* immutable after new() */
    struct tether__grpc *transport;
    struct tether__grpc_unproved *unproved;
    const struct tether__grpc_external *external; /* NULL: plain text */
    const struct tether__grpc_listeners *listeners;
    int all, set, wake;
    /* any thread */
    _Atomic(grpc_server *) server; /* NULL: not started */
    atomic_bool start_failed;      /* drop those that wait for it */
    atomic_bool stopping;
    pthread_t thread;
    bool runs;
    /* used only by the thread that does the turns */
    int reserve;          /* a spare descriptor; -1: none */
    int64_t paused_until; /* when accepting continues; 0: it is not paused */
    int64_t look_from;    /* next check of connections without proof; 0: at once */
    bool must_look;       /* check then, even if no bytes arrived */
    bool has_warned;
    struct tether__log_limit mismatches;
    struct waiting waiting[MAX_WAITING]; /* pending ones, the oldest first */
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

/* Makes epoll report the socket only once `bytes` bytes are there, which show the protocol. */
static void wake_at(int fd, int bytes)
{
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

static bool watch(const struct tether__grpc_acceptor *acceptor, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(acceptor->set, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void unwatch(const struct tether__grpc_acceptor *acceptor, int fd)
{
    epoll_ctl(acceptor->set, EPOLL_CTL_DEL, fd, NULL);
}

static void keep(struct tether__grpc_acceptor *acceptor, int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!watch(acceptor, fd)) {
        close(fd);
        return;
    }
    if (acceptor->n_waiting == MAX_WAITING)
        drop(acceptor, 0);
    acceptor->waiting[acceptor->n_waiting++] = (struct waiting){
        .fd = fd, .deadline = tether__deadline_in(&tether__clock_system, HANDSHAKE_MS)};
}

/* ---- Clients with TLS where there is none, or without ---- */

/* Sends the answer to a mismatch. False: it does not fit into the socket's buffer. */
static bool answer(const struct waiting *client, const uint8_t *out, size_t n)
{
    return n == 0 || send(client->fd, out, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

static bool begin_mismatch(struct tether__grpc_acceptor *acceptor, struct waiting *client)
{
    uint8_t out[TETHER__GRPC_MISMATCH_BYTES];
    tether__grpc_log_mismatch(&acceptor->mismatches, client->fd, acceptor->external);
    client->is_mismatch = true;
    wake_at(client->fd, 1);
    return answer(client, out,
                  tether__grpc_mismatch_begin(&client->mismatch, !acceptor->external, out));
}

/* Reads until the client closes the connection, even after the whole answer was sent: a gRPC
 * client ignores an answer that is followed by the end of the connection. False: the connection
 * has ended. */
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

static void hand_over(struct tether__grpc_acceptor *acceptor, size_t i, grpc_server *server)
{
    struct waiting *client = &acceptor->waiting[i];
    int fd = client->fd;
    if (!client->is_ready)
        unwatch(acceptor, fd);
    wake_at(fd, 1);
    int grpcs_fd = acceptor->external && tether__grpc_is_unix(fd)
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
        grpc_server_add_channel_from_fd(server, grpcs_fd, acceptor->transport->listen_credentials);
}

/* Makes the client wait for the start of gRPC. Each client asks, because an earlier request may
 * have had no effect. False: gRPC cannot start. */
static bool await_start(struct tether__grpc_acceptor *acceptor, struct waiting *client)
{
    const struct tether__transport_events *events = acceptor->transport->events;
    client->is_ready = events->begin_wanted && events->begin_wanted(acceptor->transport->userdata);
    if (client->is_ready)
        unwatch(acceptor, client->fd);
    return client->is_ready;
}

static void admit(struct tether__grpc_acceptor *acceptor, size_t i)
{
    grpc_server *server = atomic_load(&acceptor->server);
    if (server)
        hand_over(acceptor, i, server);
    else if (!await_start(acceptor, &acceptor->waiting[i]))
        drop(acceptor, i);
}

/* gRPC has started or has failed: hands waiting clients over to it, or drops them. */
static void serve_ready(struct tether__grpc_acceptor *acceptor)
{
    grpc_server *server = atomic_load(&acceptor->server);
    bool has_failed = atomic_exchange(&acceptor->start_failed, false);
    for (size_t i = acceptor->n_waiting; (server || has_failed) && i-- > 0;) {
        if (!acceptor->waiting[i].is_ready)
            continue;
        if (has_failed)
            drop(acceptor, i);
        else if (tether__grpc_unproved_has_room(acceptor->unproved))
            hand_over(acceptor, i, server);
    }
}

/* Returns whether the client sends no more. epoll reports that again and again, also below the
 * low-water mark. */
static bool has_ended(int fd)
{
    return poll(&(struct pollfd){.fd = fd, .events = POLLRDHUP}, 1, 0) > 0;
}

/* Handles bytes or the end of client `i`. gRPC refuses bytes that are neither TLS nor HTTP/2. */
static void look_at(struct tether__grpc_acceptor *acceptor, size_t i)
{
    char first[TETHER__GRPC_FIRST_BYTES];
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
    int wanted = tether__grpc_bytes_wanted(speech);
    /* Clients of a unix path belong to this user, and epoll has no low-water marks there. */
    bool is_short = n < wanted && !tether__grpc_is_unix(client->fd);
    bool fits =
        speech != (acceptor->external ? TETHER__GRPC_SPEAKS_PLAIN : TETHER__GRPC_SPEAKS_TLS);
    if (is_short && !has_ended(client->fd))
        wake_at(client->fd, wanted); /* without this epoll would report the same bytes again */
    else if (!is_short && fits)
        admit(acceptor, i);
    else if (is_short || !begin_mismatch(acceptor, client))
        drop(acceptor, i);
}

/* ---- Accepting ---- */

static int take_reserve(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Makes `all` report events of one of its sets, or ignore them. */
static void heed(const struct tether__grpc_acceptor *acceptor, int set, bool heeds)
{
    struct epoll_event event = {.events = heeds ? EPOLLIN : 0, .data.fd = set};
    epoll_ctl(acceptor->all, EPOLL_CTL_MOD, set, &event);
}

static void pause_for(struct tether__grpc_acceptor *acceptor, int ms)
{
    acceptor->paused_until = tether__deadline_in(&tether__clock_system, ms);
    heed(acceptor, acceptor->set, false);
}

/* Refuses a client when no descriptor is left: accepts and closes it with the reserve. */
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
        pause_for(acceptor, PAUSE_MS);
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

/* ---- Turns ---- */

static bool is_listener(const struct tether__grpc_acceptor *acceptor, int fd)
{
    size_t i = 0;
    while (i < acceptor->listeners->n && acceptor->listeners->fds[i] != fd)
        i++;
    return i < acceptor->listeners->n;
}

/* Returns the client's index, or n_waiting if there is none. */
static size_t find_waiting(const struct tether__grpc_acceptor *acceptor, int fd)
{
    size_t i = 0;
    while (i < acceptor->n_waiting && acceptor->waiting[i].fd != fd)
        i++;
    return i;
}

/* `fd` is just a hint: an earlier event of the same turn may have closed it, and accept() may have
 * opened another one by that number. */
static void handle(struct tether__grpc_acceptor *acceptor, int fd)
{
    size_t i = find_waiting(acceptor, fd);
    if (is_listener(acceptor, fd))
        accept_one(acceptor, fd);
    else if (i < acceptor->n_waiting)
        look_at(acceptor, i);
}

static void handle_events(struct tether__grpc_acceptor *acceptor)
{
    struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(acceptor->set, events, MAX_EVENTS, 0);
    for (int i = 0; i < n && !acceptor->paused_until; i++)
        handle(acceptor, events[i].data.fd);
    if (!acceptor->paused_until && !tether__grpc_unproved_has_room(acceptor->unproved)) {
        pause_for(acceptor, CATCH_UP_MS);
        acceptor->must_look = true; /* their ends are reported once */
    }
}

/* Checks the connections without proof if that is due. `came`: bytes or an end came on one. */
static void look_at_unproved(struct tether__grpc_acceptor *acceptor, int64_t now, bool came)
{
    if (acceptor->look_from > now)
        return;
    if (came || acceptor->must_look) {
        acceptor->must_look = tether__grpc_unproved_look(acceptor->unproved);
        if (!acceptor->look_from)
            heed(acceptor, acceptor->unproved->events, false);
        acceptor->look_from = tether__deadline_in(&tether__clock_system, LOOK_MS);
    } else if (acceptor->look_from) {
        acceptor->look_from = 0;
        heed(acceptor, acceptor->unproved->events, true);
    }
}

int64_t tether__grpc_acceptor_turn(struct tether__grpc_acceptor *acceptor)
{
    struct epoll_event events[3];
    int n = epoll_wait(acceptor->all, events, TETHER__ARRAY_LEN(events),
                       0); /* clears the wake-up event */
    bool came = false;
    for (int i = 0; i < n; i++)
        came |= events[i].data.fd == acceptor->unproved->events;
    int64_t now = tether__clock_now_ns(&tether__clock_system);
    while (acceptor->n_waiting && acceptor->waiting[0].deadline <= now)
        drop(acceptor, 0);
    if (acceptor->paused_until && acceptor->paused_until <= now) {
        acceptor->paused_until = 0;
        heed(acceptor, acceptor->set, true);
    }
    look_at_unproved(acceptor, now, came);
    if (!acceptor->paused_until) {
        serve_ready(acceptor);
        handle_events(acceptor);
    }
    int64_t next = acceptor->n_waiting ? acceptor->waiting[0].deadline : TETHER__NEVER;
    if ((acceptor->look_from || acceptor->must_look) && acceptor->look_from < next)
        next = acceptor->look_from;
    return acceptor->paused_until && acceptor->paused_until < next ? acceptor->paused_until : next;
}

static void *accept_main(void *arg)
{
    struct tether__grpc_acceptor *acceptor = arg;
    struct epoll_event event;
    int64_t next = 0;
    while (!atomic_load(&acceptor->stopping)) {
        epoll_wait(acceptor->all, &event, 1, tether__deadline_left_ms(&tether__clock_system, next));
        next = tether__grpc_acceptor_turn(acceptor);
    }
    return NULL;
}

/* ---- Life ---- */

static bool make_sets(struct tether__grpc_acceptor *acceptor)
{
    struct epoll_event woken = {.events = EPOLLIN | EPOLLET, .data.fd = acceptor->wake};
    struct epoll_event nested = {.events = EPOLLIN, .data.fd = acceptor->set};
    struct epoll_event unproved = {.events = EPOLLIN, .data.fd = acceptor->unproved->events};
    if (acceptor->wake < 0 || acceptor->set < 0 || acceptor->all < 0 ||
        epoll_ctl(acceptor->all, EPOLL_CTL_ADD, acceptor->wake, &woken) != 0 ||
        epoll_ctl(acceptor->all, EPOLL_CTL_ADD, acceptor->set, &nested) != 0 ||
        epoll_ctl(acceptor->all, EPOLL_CTL_ADD, acceptor->unproved->events, &unproved) != 0)
        return false;
    size_t i = 0;
    while (i < acceptor->listeners->n && watch(acceptor, acceptor->listeners->fds[i]))
        i++;
    return i == acceptor->listeners->n;
}

tether_status tether__grpc_acceptor_new(struct tether__grpc *transport,
                                        const struct tether__grpc_external *external,
                                        struct tether__grpc_listeners *listeners,
                                        struct tether__grpc_acceptor **ret_acceptor,
                                        tether_error *reterr)
{
    struct tether__grpc_acceptor *acceptor = tether__calloc(1, sizeof *acceptor);
    if (!acceptor)
        return tether_error_set(reterr, TETHER_ENOMEM, "starting to listen: out of memory");
    acceptor->transport = transport;
    acceptor->unproved = &transport->unproved;
    acceptor->external = external;
    acceptor->listeners = listeners;
    acceptor->reserve = take_reserve();
    acceptor->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    acceptor->set = epoll_create1(EPOLL_CLOEXEC);
    acceptor->all = epoll_create1(EPOLL_CLOEXEC);
    *ret_acceptor = acceptor;
    bool limits_backlog = transport->events->admit && !transport->requires_cert;
    tether_status st = tether__grpc_unproved_listen(&transport->unproved, limits_backlog, reterr);
    if (st != TETHER_OK)
        return st;
    return make_sets(acceptor)
               ? TETHER_OK
               : tether_error_set(reterr, TETHER_EIO, "starting to listen: %s", strerror(errno));
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

int tether__grpc_acceptor_fd(const struct tether__grpc_acceptor *acceptor)
{
    return acceptor->all;
}

void tether__grpc_acceptor_open(struct tether__grpc_acceptor *acceptor, grpc_server *server)
{
    atomic_store(&acceptor->server, server);
    if (!server)
        atomic_store(&acceptor->start_failed, true);
    eventfd_write(acceptor->wake, 1);
}

void tether__grpc_acceptor_stop(struct tether__grpc_acceptor *acceptor)
{
    if (!acceptor)
        return;
    atomic_store(&acceptor->stopping, true);
    if (acceptor->runs && eventfd_write(acceptor->wake, 1) == 0)
        pthread_join(acceptor->thread, NULL);
    acceptor->runs = false;
    while (acceptor->n_waiting)
        drop(acceptor, 0);
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

void tether__grpc_acceptor_free(struct tether__grpc_acceptor *acceptor)
{
    if (!acceptor)
        return;
    tether__grpc_acceptor_stop(acceptor);
    close_if_open(acceptor->reserve);
    close_if_open(acceptor->all);
    close_if_open(acceptor->set);
    close_if_open(acceptor->wake);
    tether__free(acceptor);
}
