/* The client of the TCP store: makes it, and manages the connections of its calls.
 *
 * Happy path: new() starts the server if this process hosts it, connects, finds out the dialect of
 * the server, and joins. After that every call takes a connection, idle or new, and returns it.
 *
 * Failure: new() retries to connect, with backoff, until its timeout. Later a server that cannot be
 * reached is an error at once: it has ended, and its data with it.
 *
 * Lock rule: `mu` guards the idle connections only and is a leaf; no I/O under it.
 */
#include "rendezvous/store_tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/backoff.h"
#include "base/clock.h"
#include "rendezvous/store/tcp/client/internal.h"

#define DEFAULT_HOST "127.0.0.1"
#define MAX_IDLE 16
#define FIRST_RETRY_NS (20 * TETHER__NS_PER_MS)
#define LAST_RETRY_NS TETHER__NS_PER_S
#define TRUSTED_IDLE_NS \
    TETHER__NS_PER_S /* a connection that was idle for longer is checked before use */

static int64_t now_ns(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

/* Returns a coarse time: every call reads it twice, so it must be cheap; a few milliseconds are
 * precise enough. */
static int64_t coarse_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * TETHER__NS_PER_S + now.tv_nsec;
}

/* ---- Connections for calls ------------------------------------------------------------------ */

tether_status tether__store_tcp_dial(struct tether__store_tcp *store,
                                     tether_store_dialect dialect,
                                     int64_t deadline,
                                     struct tether__store_conn **ret_conn,
                                     tether_error *reterr)
{
    int fd;
    struct tether_store_limits limits = store->limits;
    tether_status st = tether__net_dial_addr(&store->addr, deadline, &fd, reterr);
    if (st != TETHER_OK)
        return st;
    bool without_ping = dialect == TETHER_STORE_DIALECT_V && !store->has_ping;
    return tether__store_tcp_handshake(fd, dialect, without_ping, deadline, &limits, ret_conn,
                                       reterr);
}

/* Whether the server has closed an idle connection. */
static bool is_stale(struct tether__store_conn *conn)
{
    char byte;
    if (coarse_ns() - conn->last_used < TRUSTED_IDLE_NS)
        return false;
    return recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

tether_status tether__store_tcp_take(struct tether__store_tcp *store,
                                     int64_t deadline,
                                     struct tether__store_conn **ret_conn,
                                     bool *ret_reused,
                                     tether_error *reterr)
{
    for (;;) {
        pthread_mutex_lock(&store->mu);
        struct tether__list *node = tether__list_pop_front(&store->idle);
        store->n_idle -= node != NULL;
        pthread_mutex_unlock(&store->mu);
        *ret_reused = node != NULL;
        if (!node)
            return tether__store_tcp_dial(store, store->dialect, deadline, ret_conn, reterr);
        struct tether__store_conn *conn = tether__list_entry(node, struct tether__store_conn, node);
        if (!is_stale(conn)) {
            *ret_conn = conn;
            return TETHER_OK;
        }
        tether__store_conn_close(conn);
    }
}

static void close_idle(struct tether__store_tcp *store)
{
    struct tether__list idle = TETHER__LIST_INIT(idle);
    pthread_mutex_lock(&store->mu);
    tether__list_splice(&idle, &store->idle);
    store->n_idle = 0;
    pthread_mutex_unlock(&store->mu);
    for (struct tether__list *node; (node = tether__list_pop_front(&idle));)
        tether__store_conn_close(tether__list_entry(node, struct tether__store_conn, node));
}

void tether__store_tcp_give(struct tether__store_tcp *store, struct tether__store_conn *conn)
{
    bool is_idle = false;
    /* otherwise the connection is unusable, because unread bytes are left */
    bool in_step = conn->in_at == conn->in_len;
    if (conn->status == TETHER_OK && in_step) {
        conn->last_used = coarse_ns();
        pthread_mutex_lock(&store->mu);
        is_idle = store->n_idle < MAX_IDLE;
        if (is_idle) {
            tether__list_push_front(&store->idle, &conn->node);
            store->n_idle++;
        }
        pthread_mutex_unlock(&store->mu);
    } else if (conn->status == TETHER_EUNAVAILABLE) {
        close_idle(store);
    }
    if (!is_idle)
        tether__store_conn_close(conn);
}

/* ---- The first connection ------------------------------------------------------------------- */

static tether_status try_connect(struct tether__store_tcp *store,
                                 tether_store_dialect dialect,
                                 int64_t deadline,
                                 struct tether__store_conn **ret_conn,
                                 tether_error *reterr)
{
    int fd;
    struct tether_store_limits ours = store->limits;
    tether_status st = tether__net_dial(store->host, store->port, deadline, &fd, reterr);
    if (st != TETHER_OK)
        return st;
    store->addr.len = sizeof store->addr.sockaddr;
    getpeername(fd, (struct sockaddr *)&store->addr.sockaddr, &store->addr.len);
    st =
        tether__store_tcp_handshake(fd, dialect, false, deadline, &store->limits, ret_conn, reterr);
    bool older = dialect == TETHER_STORE_DIALECT_AUTO || dialect == TETHER_STORE_DIALECT_V;
    if (st != TETHER_EUNAVAILABLE || !older)
        return st;

    /* The server closes the connection on PING, so it may be an older one that does not know PING.
     */
    store->limits = ours;
    if (tether__net_dial_addr(&store->addr, deadline, &fd, NULL) != TETHER_OK ||
        tether__store_tcp_handshake(fd, dialect, true, deadline, &store->limits, ret_conn, NULL) !=
            TETHER_OK) {
        store->limits = ours;
        return tether_error_wrap(reterr, st,
                                 "the server is not a store of Tether or of PyTorch 2.2 and later "
                                 "(for an older one set dialect L0 or L1), or all its places "
                                 "are taken (its log says so)");
    }
    return TETHER_OK;
}

static tether_status connect_until(struct tether__store_tcp *store,
                                   tether_store_dialect dialect,
                                   int64_t deadline,
                                   tether_error *reterr)
{
    int64_t start = now_ns();
    struct tether__store_conn *conn;
    tether_error cause = {0};
    for (unsigned round = 0;; round++) {
        tether_error error = {0};
        tether_status st = try_connect(store, dialect, deadline, &conn, &error);
        if (st == TETHER_OK)
            break;
        if (st != TETHER_ETIMEOUT || cause.code == TETHER_OK)
            cause = error; /* a timeout at the end explains less than an earlier error */
        if (st != TETHER_EUNAVAILABLE && st != TETHER_ETIMEOUT)
            return tether_error_set(reterr, st == TETHER_ECORRUPT ? TETHER_EUNAVAILABLE : st,
                                    "connecting to (%s, %d): %s", store->host, store->port,
                                    cause.message);
        if (!tether__backoff_sleep(round, FIRST_RETRY_NS, LAST_RETRY_NS, deadline))
            return tether_error_set(reterr, TETHER_ETIMEOUT,
                                    "The client socket has timed out after %" PRId64
                                    " ms while trying to connect to (%s, %d): %s",
                                    (now_ns() - start) / TETHER__NS_PER_MS, store->host,
                                    store->port, cause.message);
    }
    store->dialect = conn->dialect;
    store->has_ping = conn->has_ping;
    tether__store_tcp_give(store, conn);
    return TETHER_OK;
}

/* ---- Making and ending it ------------------------------------------------------------------- */

static tether_status check_opts(const struct tether_store_tcp_opts *opts, tether_error *reterr)
{
    if (!opts || opts->size < sizeof *opts)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "tcp store options missing: use TETHER_STORE_TCP_OPTS()");
    if (opts->port < 0 || opts->port > 65535)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "port must have value from 0 to 65535 but was %d.", opts->port);
    if (opts->listen_fd && !opts->is_host)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "listen_fd is for the host of a tcp store only: set is_host");
    if (opts->world_size < 0 || opts->timeout_ms < -1)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "world_size (%d) and timeout_ms (%d) of a tcp store must not be "
                                "negative",
                                opts->world_size, opts->timeout_ms);
    return TETHER_OK;
}

/* Starts or shares the server, and makes the client dial the address where it really listens. */
static tether_status host_server(struct tether__store_tcp *store,
                                 const struct tether_store_tcp_opts *opts,
                                 tether_error *reterr)
{
    int copy = -1; /* the caller keeps its own socket until new() has succeeded */
    if (opts->listen_fd && (copy = fcntl(*opts->listen_fd, F_DUPFD_CLOEXEC, 0)) < 0)
        return tether_error_set(reterr, TETHER_EINVAL, "descriptor %d to listen on: %s",
                                *opts->listen_fd, strerror(errno));
    tether_status st = tether__store_tenant_new(
        TETHER_STORE_SERVER_OPTS(.host = store->host, .port = opts->port,
                                 .listen_fd = copy < 0 ? NULL : &copy, .insecure = opts->insecure,
                                 .legacy_is_l1 = opts->dialect == TETHER_STORE_DIALECT_L1,
                                 .limits = opts->limits),
        opts->multi_tenant, &store->server, reterr);
    if (st == TETHER_OK)
        store->port = tether_store_server_port(store->server);
    else if (copy >= 0)
        close(copy);
    return st;
}

void tether__store_tcp_destroy(void *impl)
{
    struct tether__store_tcp *store = impl;
    close_idle(store);
    tether__store_tenant_release(store->server);
    pthread_mutex_destroy(&store->mu);
    tether__free(store->host);
    tether__free(store);
}

static void describe(const struct tether__store_tcp *store, char *text, size_t size)
{
    bool bare_v6 = strchr(store->host, ':') && store->host[0] != '[';
    if (tether__net_unix_path(store->host))
        snprintf(text, size, "tcp store %s", store->host);
    else
        snprintf(text, size, bare_v6 ? "tcp store [%s]:%d" : "tcp store %s:%d", store->host,
                 store->port);
}

tether_status tether_store_tcp_new(const struct tether_store_tcp_opts *opts,
                                   tether_store **ret_store,
                                   tether_error *reterr)
{
    tether_status st = check_opts(opts, reterr);
    if (st != TETHER_OK)
        return st;
    struct tether__store_tcp *store = tether__calloc(1, sizeof *store);
    char *host = tether__strdup(opts->host ? opts->host : DEFAULT_HOST);
    if (!store || !host) {
        tether__free(host);
        tether__free(store);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a tcp store");
    }
    store->host = host;
    store->port = opts->port;
    store->limits = tether__store_wire_limits(opts->limits);
    tether__list_init(&store->idle);
    pthread_mutex_init(&store->mu, NULL);

    int timeout_ms = opts->timeout_ms ? opts->timeout_ms : TETHER_STORE_DEFAULT_TIMEOUT_MS;
    int64_t deadline = tether__deadline_in(&tether__clock_system, timeout_ms);
    if (opts->is_host)
        st = host_server(store, opts, reterr);
    if (st == TETHER_OK)
        st = connect_until(store, opts->dialect, deadline, reterr);
    if (st == TETHER_OK && opts->world_size && opts->wait_for_workers)
        st = tether__store_tcp_join(store, opts->world_size, timeout_ms, deadline, reterr);
    if (st == TETHER_OK) {
        char text[TETHER_ERROR_MESSAGE_SIZE];
        describe(store, text, sizeof text);
        st = tether__store_new(&tether__store_tcp_kind, store, text, ret_store, reterr);
    }
    if (st != TETHER_OK) {
        tether__store_tcp_destroy(store);
        return st;
    }
    if (opts->listen_fd)
        close(*opts->listen_fd);
    return tether_store_set_timeout(*ret_store, timeout_ms, reterr);
}

static struct tether__store_tcp *tcp_of(tether_store *store)
{
    return store ? tether__store_impl(tether_store_underlying_non_prefix(store),
                                      &tether__store_tcp_kind)
                 : NULL;
}

int tether_store_tcp_port(tether_store *store)
{
    const struct tether__store_tcp *tcp = tcp_of(store);
    return tcp ? tcp->port : -1;
}

const char *tether_store_tcp_host(tether_store *store)
{
    const struct tether__store_tcp *tcp = tcp_of(store);
    return tcp ? tcp->host : NULL;
}

tether_store_dialect tether_store_tcp_dialect(tether_store *store)
{
    const struct tether__store_tcp *tcp = tcp_of(store);
    return tcp ? tcp->dialect : TETHER_STORE_DIALECT_AUTO;
}
