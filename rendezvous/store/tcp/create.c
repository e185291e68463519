/* Creates a TCP store for a group as PyTorch's create_c10d_store() does: chooses the port, retries
 * when it is in use, and waits for all members. */
#include <fcntl.h>
#include <string.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "net/net.h"
#include "rendezvous/store_helpers.h"
#include "rendezvous/store_tcp.h"

#define DEFAULT_RETRIES 3
#define FIRST_RETRY_NS (200 * TETHER__NS_PER_MS) /* the wait is random, 100 to 200 ms */
#define LONGEST_RETRY_NS (10 * TETHER__NS_PER_S)

/* Copies the options, which may be shorter in an older caller, and fills in the defaults. */
static tether_status resolve(const struct tether_store_create_opts *given,
                             struct tether_store_create_opts *opts,
                             tether_error *reterr)
{
    *opts = (struct tether_store_create_opts){0};
    if (!given || given->size < offsetof(struct tether_store_create_opts, server_port))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "options missing: use TETHER_STORE_CREATE_OPTS()");
    memcpy(opts, given, given->size < sizeof *opts ? given->size : sizeof *opts);
    if (opts->world_size == 0)
        opts->world_size = 1;
    if (opts->timeout_ms == 0)
        opts->timeout_ms = TETHER_STORE_CREATE_TIMEOUT_MS;
    if (opts->retries == 0)
        opts->retries = DEFAULT_RETRIES;

    if (opts->world_size < 0 || opts->timeout_ms < -1 || opts->server_port < TETHER_PORT_ANY ||
        opts->server_port > 65535)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "world_size %d, timeout_ms %d or server_port %d is out of range",
                                opts->world_size, opts->timeout_ms, opts->server_port);
    if (opts->server_port == 0 && opts->world_size > 1)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "server_port must be specified when world_size > 1, got %d",
                                opts->world_size);
    if (opts->server_port <= 0 && !opts->is_server)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a member that is not the server needs server_port");
    return TETHER_OK;
}

tether_status tether_store_create(const struct tether_store_create_opts *given,
                                  tether_store **ret_store,
                                  tether_error *reterr)
{
    struct tether_store_create_opts opts;
    tether_status st = resolve(given, &opts, reterr);
    if (st != TETHER_OK)
        return st;
    int64_t deadline = tether__deadline_in(&tether__clock_system, opts.timeout_ms);
    int port = opts.server_port == TETHER_PORT_ANY ? 0 : opts.server_port;
    int retries_left = opts.is_server && opts.retries > 0 ? opts.retries : 0;
    tether_store *store = NULL;
    int left_ms = opts.timeout_ms;
    for (unsigned round = 0;; round++) {
        st = tether_store_tcp_new(
            TETHER_STORE_TCP_OPTS(.host = opts.server_addr, .port = port, .is_host = opts.is_server,
                                  .insecure = opts.insecure, .world_size = opts.world_size,
                                  .wait_for_workers = !opts.dont_wait, .timeout_ms = left_ms),
            &store, reterr);
        if (st != TETHER_EADDRINUSE || retries_left-- == 0)
            break;
        if (!tether__backoff_sleep(round, FIRST_RETRY_NS, LONGEST_RETRY_NS, deadline))
            break;
        left_ms = tether__deadline_left_ms(&tether__clock_system, deadline);
        if (left_ms == 0) /* avoid 0, which would mean the default */
            break;
    }
    if (st == TETHER_OK && !opts.dont_wait) {
        left_ms = tether__deadline_left_ms(&tether__clock_system, deadline);
        st = tether_store_rank_barrier(store, -1, opts.world_size, "_tcp_store", left_ms, reterr);
        if (st == TETHER_ETIMEOUT)
            tether_error_wrap(reterr, st, "timed out waiting for all %d members to join",
                              opts.world_size);
    }
    if (st != TETHER_OK) {
        tether_store_release(store);
        return st;
    }
    *ret_store = store;
    return TETHER_OK;
}

tether_status tether_get_socket_with_port(int *ret_fd, int *ret_port, tether_error *reterr)
{
    int fds[TETHER__NET_MAX_LISTENERS], n = 0;
    tether_status st = tether__net_bind("127.0.0.1", 0, false, fds, &n, reterr);
    if (st != TETHER_OK)
        st = tether__net_bind("::1", 0, false, fds, &n, reterr);
    if (st != TETHER_OK)
        return st;
    fcntl(fds[0], F_SETFL, fcntl(fds[0], F_GETFL) & ~O_NONBLOCK);
    *ret_fd = fds[0];
    *ret_port = tether__net_port(fds[0]);
    return TETHER_OK;
}
