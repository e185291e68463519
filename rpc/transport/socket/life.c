/* The transport between workers of one host, over plain unix sockets: how it begins and ends. A
 * round trip takes a fraction of what gRPC needs; gRPC serves the rest: connections between hosts,
 * TLS, and clients that speak only gRPC.
 *
 * Happy path: new() makes what the two sides wait on; start() listens; dial() and the listener make
 * conns; stop() has the pollers end them all, each of which then tells false; destroy().
 *
 * Failure modes: no memory, no descriptors, options that make no sense: new() says so.
 */
#include "rpc/transport/socket/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"

#define DEFAULT_MAX_MESSAGE_BYTES (4u << 20)
#define DEFAULT_PATIENCE_MS 10000

/* ---- The end ---- */

static void stop(struct tether__transport *base)
{
    struct tether__unix *transport = tether__unix_of(base);
    if (atomic_exchange(&transport->stop_called, true))
        return;
    tether__unix_listen_stop(transport);
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&transport->sides[i].mu);
        transport->sides[i].shut = true;
        pthread_mutex_unlock(&transport->sides[i].mu);
    }
    atomic_store(&transport->stopping, true);
    for (int i = 0; i < 2; i++)
        tether__unix_wake_side(&transport->sides[i]);
}

static void side_fini(struct tether__unix_side *side)
{
    tether__block_release(side->scratch);
    if (side->epoll_fd >= 0)
        close(side->epoll_fd);
    if (side->event_fd >= 0)
        close(side->event_fd);
    pthread_mutex_destroy(&side->mu);
}

static void destroy(struct tether__transport *base)
{
    if (!base)
        return;
    struct tether__unix *transport = tether__unix_of(base);
    stop(base);
    for (int i = 0; i < 2; i++)
        while (tether__unix_poll(base, i, TETHER__NEVER)) {
        }
    for (int i = 0; i < 2; i++)
        side_fini(&transport->sides[i]);
    tether__free(transport->listen);
    tether__free(transport);
}

/* ---- The beginning ---- */

static const struct tether__transport_ops ops = {
    .start = tether__unix_listen,
    .dial = tether__unix_dial,
    .send = tether__unix_send,
    .take_sent = tether__unix_take_sent,
    .close = tether__unix_close,
    .proved = tether__unix_proved,
    .conn_release = tether__unix_conn_release,
    .poll = tether__unix_poll,
    .poll_ready = tether__unix_poll_ready,
    .wake = tether__unix_wake,
    .stop = stop,
    .destroy = destroy,
};

/* Initialises one side. False: errno says why not. Call fini() in any case. */
static bool side_init(struct tether__unix_side *side, struct tether__unix *transport, int spin_us)
{
    side->transport = transport;
    tether__spin_init(&side->spin, spin_us);
    side->next_deadline = TETHER__NEVER;
    tether__list_init(&side->timed);
    tether__list_init(&side->conns);
    tether__list_init(&side->attention);
    pthread_mutex_init(&side->mu, NULL);
    side->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    side->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    return side->epoll_fd >= 0 && side->event_fd >= 0 &&
           epoll_ctl(side->epoll_fd, EPOLL_CTL_ADD, side->event_fd, &event) == 0;
}

static tether_status check(const struct tether__transport_opts *opts, tether_error *reterr)
{
    if (opts->tls)
        return tether_error_set(
            reterr, TETHER_EINVAL,
            "a unix socket has no TLS: the kernel tells who is at the other end");
    if (opts->max_message_bytes >= TETHER__UNIX_END)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "max_message_bytes is %zu, but must be below %lu",
                                opts->max_message_bytes, (unsigned long)TETHER__UNIX_END);
    if (opts->listen && !tether__unix_is_address(opts->listen))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "cannot listen on '%s': want \"unix-abstract:NAME\"", opts->listen);
    return TETHER_OK;
}

tether_status tether__transport_unix_new(const struct tether__transport_opts *opts,
                                         struct tether__transport **ret_transport,
                                         tether_error *reterr)
{
    tether_status st = check(opts, reterr);
    if (st != TETHER_OK)
        return st;
    struct tether__unix *transport = tether__calloc(1, sizeof *transport);
    if (!transport)
        return tether_error_set(reterr, TETHER_ENOMEM, "making a unix transport: out of memory");
    transport->base.ops = &ops;
    /* conns come only from processes of this user: accept and dial hang up on all others */
    transport->base.vouches = true;
    transport->events = opts->events;
    transport->userdata = opts->userdata;
    transport->max_message_bytes =
        opts->max_message_bytes ? (uint32_t)opts->max_message_bytes : DEFAULT_MAX_MESSAGE_BYTES;
    transport->max_first_bytes =
        opts->max_first_bytes ? (uint32_t)opts->max_first_bytes : transport->max_message_bytes;
    transport->patience_ns =
        (opts->connect_timeout_ms > 0 ? opts->connect_timeout_ms : DEFAULT_PATIENCE_MS) *
        TETHER__NS_PER_MS;
    transport->listener.fd = -1;
    transport->listener.resume_at = TETHER__NEVER;
    transport->guest.due = TETHER__NEVER;
    for (int i = 0; i < 2; i++)
        if (!side_init(&transport->sides[i], transport, opts->spin_us) && st == TETHER_OK)
            st = tether_error_set(reterr, TETHER_EIO, "making a unix transport: %s",
                                  strerror(errno));
    transport->listen = opts->listen ? tether__strdup(opts->listen) : NULL;
    if (opts->listen && !transport->listen && st == TETHER_OK)
        st = tether_error_set(reterr, TETHER_ENOMEM, "making a unix transport: out of memory");
    if (st != TETHER_OK) {
        destroy(&transport->base);
        return st;
    }
    *ret_transport = &transport->base;
    return TETHER_OK;
}
