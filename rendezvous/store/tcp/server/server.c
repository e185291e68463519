/* The store server: listens, and serves its clients (client.c) on one libuv loop thread.
 *
 * Threads: all fields except immutable ones belong to the loop thread; other threads post tasks.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "rendezvous/store/tcp/server/internal.h"

/* more than any system allows; the kernel limits it to net.core.somaxconn */
#define BACKLOG 65535
#define DEFAULT_STALL_MS 30000
#define STALL_SWEEPS 4 /* number of sweeps within the stall timeout */
#define MIN_SWEEP_MS 10
#define MAX_SWEEP_MS 1000

/* ---- On the loop ---------------------------------------------------------------------------- */

static void accept_one(struct tether__store_listener *listener)
{
    listener->owes_accept = !tether__store_places_may_accept(listener->server) ||
                            !tether__store_client_accept(listener);
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct tether__store_listener *listener = stream->data;
    if (status != 0)
        return; /* libuv has closed the connection: out of descriptors */
    accept_one(listener);
    if (listener->owes_accept)
        tether__store_server_arm_sweep(listener->server);
}

/* Accepts one waiting connection of each listener. Returns whether one still waits. */
static bool accept_owed(tether_store_server *server)
{
    bool again = false;
    for (int i = 0; i < server->n_listeners; i++) {
        struct tether__store_listener *listener = &server->listeners[i];
        if (listener->owes_accept)
            accept_one(listener);
        again = again || listener->owes_accept;
    }
    return again;
}

static void on_sweep(uv_timer_t *timer)
{
    tether_store_server *server = timer->data;
    bool again = accept_owed(server);
    again = tether__store_places_sweep(server) || again;
    if (server->stall_timeout_ms >= 0)
        again = tether__store_hub_sweep(&server->hub) || again;
    TETHER__LIST_FOR_EACH(node, &server->clients)
        again = tether__store_client_sweep(
                    tether__list_entry(node, struct tether__store_client, node)) ||
                again;
    /* flush now, because the loop may sleep before the end of its round */
    tether__store_server_flush(server);
    if (!again)
        uv_timer_stop(timer);
}

/* Runs after each round of reading and writing: sends the replies. */
static void on_round_end(uv_check_t *round_end)
{
    tether_store_server *server = round_end->data;
    server->n_accepts = 0;
    accept_owed(server);
    tether__store_server_flush(server);
    if (!tether__list_empty(&server->hub.claims))
        tether__store_server_arm_sweep(server);
}

void tether__store_server_arm_sweep(tether_store_server *server)
{
    if (!uv_is_active((uv_handle_t *)&server->sweep))
        uv_timer_start(&server->sweep, on_sweep, server->sweep_ms, server->sweep_ms);
}

/* ---- Starting and stopping ------------------------------------------------------------------ */

struct start_task {
    struct tether__task task;
    tether_store_server *server;
    const int *fds;
    int n, unix_at; /* number of sockets, and the index of the unix socket among them; -1: none */
    int rc;
};

static void run_start(struct tether__task *task)
{
    struct start_task *start = tether__container_of(task, struct start_task, task);
    tether_store_server *server = start->server;
    uv_loop_t *loop = tether__loop_uv(&server->loop);
    uv_timer_init(loop, &server->sweep);
    server->sweep.data = server;
    uv_timer_init(loop, &server->settle);
    server->settle.data = server;
    uv_check_init(loop, &server->round_end);
    server->round_end.data = server;
    uv_check_start(&server->round_end, on_round_end);
    for (int i = 0; i < start->n && start->rc == 0; i++) {
        struct tether__store_listener *listener = &server->listeners[i];
        bool is_pipe = i == start->unix_at;
        start->rc = tether__store_stream_init(loop, &listener->uv, is_pipe);
        if (start->rc != 0)
            break;
        listener->server = server;
        listener->uv.handle.data = listener;
        server->n_listeners++;
        start->rc = is_pipe ? uv_pipe_open(&listener->uv.pipe, start->fds[i])
                            : uv_tcp_open(&listener->uv.tcp, start->fds[i]);
        if (start->rc == 0)
            start->rc = uv_listen(&listener->uv.stream, BACKLOG, on_connection);
        /* without this call libuv would sleep a little after each accept */
        if (start->rc == 0 && !is_pipe)
            uv_tcp_simultaneous_accepts(&listener->uv.tcp, 1);
    }
}

struct server_task {
    struct tether__task task;
    tether_store_server *server;
    struct tether_store_server_stats *ret_stats;
};

static void run_stop(struct tether__task *task)
{
    tether_store_server *server = tether__container_of(task, struct server_task, task)->server;
    for (int i = 0; i < server->n_listeners; i++)
        uv_close(&server->listeners[i].uv.handle, NULL);
    uv_close((uv_handle_t *)&server->sweep, NULL);
    uv_close((uv_handle_t *)&server->settle, NULL);
    uv_close((uv_handle_t *)&server->round_end, NULL);
    TETHER__LIST_FOR_EACH(node, &server->clients)
        tether__store_client_drop(tether__list_entry(node, struct tether__store_client, node));
}

static void stop(tether_store_server *server)
{
    struct server_task task = {.task.run = run_stop, .server = server};
    tether__loop_call(&server->loop, &task.task);
    tether__loop_stop(&server->loop);
}

static tether_status check_adopted(const struct tether_store_server_opts *opts,
                                   tether_error *reterr)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof addr;
    int fd = *opts->listen_fd, port = tether__net_port(fd);
    if (getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "descriptor %d to listen on is no socket: %s", fd, strerror(errno));
    if (opts->port != 0 && opts->port != port)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "descriptor %d is bound to port %d, not to the port %d asked for",
                                fd, port, opts->port);
    if (!opts->insecure && !tether__net_is_loopback((struct sockaddr *)&addr)) {
        char text[TETHER__NET_TEXT_SIZE];
        tether__net_text((struct sockaddr *)&addr, len, text);
        return tether_error_set(reterr, TETHER_EPERM,
                                "descriptor %d is bound to %s, beyond loopback: set 'insecure' if "
                                "only trusted hosts can reach it",
                                fd, text);
    }
    return TETHER_OK;
}

/* Binds all sockets. The caller closes those in `fds`, also on error. */
static tether_status bind_sockets(const struct tether_store_server_opts *opts,
                                  struct start_task *start,
                                  int fds[TETHER__STORE_SERVER_MAX_LISTENERS],
                                  tether_error *reterr)
{
    tether_status st = TETHER_OK;
    start->fds = fds;
    start->unix_at = -1;
    if (opts->listen_fd) {
        st = check_adopted(opts, reterr);
        /* Duplicate the descriptor, so that the caller keeps its own if a later step fails. */
        int copy = st == TETHER_OK ? fcntl(*opts->listen_fd, F_DUPFD_CLOEXEC, 0) : -1;
        if (st == TETHER_OK && copy < 0)
            st = tether_error_set(reterr, TETHER_EIO, "copying descriptor %d: %s", *opts->listen_fd,
                                  strerror(errno));
        if (st == TETHER_OK) {
            start->unix_at = tether__net_port(copy) == 0 ? 0 : -1;
            fds[start->n++] = copy;
        }
    } else if (opts->host || !opts->unix_path) {
        const char *host = opts->host ? opts->host : "127.0.0.1";
        st = tether__net_bind(host, opts->port, opts->insecure, fds, &start->n, reterr);
    }
    if (st == TETHER_OK && opts->unix_path) {
        st =
            tether__net_bind_unix(opts->unix_path, &fds[start->n], &start->server->unix_id, reterr);
        if (st == TETHER_OK)
            start->unix_at = start->n++;
    }
    return st;
}

static tether_status check_opts(const struct tether_store_server_opts *opts, tether_error *reterr)
{
    if (!opts || opts->size < sizeof *opts)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "store server options missing: use TETHER_STORE_SERVER_OPTS()");
    if (opts->port < 0 || opts->port > 65535)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "port must have value from 0 to 65535 but was %d.", opts->port);
    if (opts->max_clients < 0 || opts->stall_timeout_ms < -1)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "max_clients (%d) and stall_timeout_ms (%d) must not be negative",
                                opts->max_clients, opts->stall_timeout_ms);
    return TETHER_OK;
}

static uint64_t sweep_period(int stall_timeout_ms)
{
    int period = stall_timeout_ms < 0 ? MAX_SWEEP_MS : stall_timeout_ms / STALL_SWEEPS;
    return (uint64_t)(period < MIN_SWEEP_MS   ? MIN_SWEEP_MS
                      : period > MAX_SWEEP_MS ? MAX_SWEEP_MS
                                              : period);
}

static void server_free(tether_store_server *server)
{
    tether__store_hub_fini(&server->hub);
    tether__free(server->unix_path);
    tether__free(server);
}

tether_status tether_store_server_new(const struct tether_store_server_opts *opts,
                                      tether_store_server **ret_server,
                                      tether_error *reterr)
{
    tether_status st = check_opts(opts, reterr);
    if (st != TETHER_OK)
        return st;
    struct tether_store_server_opts all = *opts;
    const char *path = all.host ? tether__net_unix_path(all.host) : NULL;
    if (path) { /* "unix:/path" means the same as unix_path */
        all.host = NULL;
        all.unix_path = path;
    }
    tether_store_server *server = tether__calloc(1, sizeof *server);
    if (!server)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a store server");
    server->max_clients =
        all.max_clients ? (uint64_t)all.max_clients : tether__store_places_default();
    server->stall_timeout_ms = all.stall_timeout_ms ? all.stall_timeout_ms : DEFAULT_STALL_MS;
    server->sweep_ms = sweep_period(server->stall_timeout_ms);
    tether__list_init(&server->clients);
    tether__list_init(&server->unsure);
    tether__list_init(&server->silent);

    int fds[TETHER__STORE_SERVER_MAX_LISTENERS];
    struct start_task start = {.task.run = run_start, .server = server};
    struct tether_store_limits limits = tether__store_wire_limits(all.limits);
    st = tether__store_hub_init(&server->hub, &limits, all.legacy_is_l1);
    if (st == TETHER_OK && all.unix_path) {
        server->unix_path = tether__strdup(all.unix_path);
        st = server->unix_path ? TETHER_OK : TETHER_ENOMEM;
    }
    if (st != TETHER_OK) {
        tether_error_set(reterr, st, "out of memory for a store server");
        goto undo_server;
    }
    st = bind_sockets(&all, &start, fds, reterr);
    if (st != TETHER_OK)
        goto undo_sockets;
    server->port = start.unix_at == 0 ? 0 : tether__net_port(fds[0]);
    st = tether__loop_start(&server->loop, "tether-store", reterr);
    if (st != TETHER_OK)
        goto undo_sockets;
    tether__loop_call(&server->loop, &start.task);
    if (start.rc != 0) {
        st = tether_error_set(reterr, start.rc == UV_EADDRINUSE ? TETHER_EADDRINUSE : TETHER_EIO,
                              "The server socket has failed to listen on any local network "
                              "address: %s",
                              uv_strerror(start.rc));
        goto undo_loop;
    }
    if (all.listen_fd)
        close(*all.listen_fd);
    *ret_server = server;
    return TETHER_OK;

undo_loop:
    stop(server); /* closes the listeners; the other sockets are closed below */
    for (int i = 0; i < server->n_listeners; i++)
        fds[i] = -1;
undo_sockets:
    for (int i = 0; i < start.n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (server->unix_path && start.unix_at >= 0)
        tether__socket_path_remove(server->unix_path, server->unix_id);
undo_server:
    server_free(server);
    return st;
}

tether_store_server *tether_store_server_release(tether_store_server *server)
{
    if (!server)
        return NULL;
    stop(server);
    if (server->unix_path)
        tether__socket_path_remove(server->unix_path, server->unix_id);
    server_free(server);
    return NULL;
}

int tether_store_server_port(const tether_store_server *server)
{
    return server->port;
}

static void run_stats(struct tether__task *task)
{
    struct server_task *call = tether__container_of(task, struct server_task, task);
    const struct tether__store_hub *hub = &call->server->hub;
    *call->ret_stats = call->server->stats;
    call->ret_stats->requests = hub->requests;
    call->ret_stats->waiting = hub->waiting;
    call->ret_stats->keys = tether__kv_count(&hub->kv);
    call->ret_stats->buffered_bytes = hub->buffered;
}

void tether_store_server_stats(tether_store_server *server,
                               struct tether_store_server_stats *ret_stats)
{
    struct server_task task = {.task.run = run_stats, .server = server, .ret_stats = ret_stats};
    tether__loop_call(&server->loop, &task.task);
}
