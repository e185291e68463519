/* The store server: sockets around sessions (store_session.h), all on one libuv loop thread.
 *
 * Happy path: a readable client's bytes go straight from the loop's one read buffer through the
 * parser; the replies of all requests in them, and those to other clients whose waits they ended,
 * leave at the end of the turn, one write a client, without a queue in between.
 *
 * Unhappy: what is left of a half request is kept in a buffer of the client's own, which grows with
 * the bytes that came, not with the length that was announced. A client that does not read its
 * replies is no longer read from, and dropped when it has taken nothing for `stall_timeout_ms`.
 * What cannot be parsed is dropped at once. None of this touches another client.
 *
 * Threads: everything but the immutable fields belongs to the loop thread; others ask it by tasks.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/loop.h"
#include "rendezvous/net.h"
#include "rendezvous/store_session.h"
#include "rendezvous/store_tcp.h"

#define READ_SIZE ((size_t)64 << 10)
#define KEEP_SIZE ((size_t)4 << 10) /* buffers up to here stay with an idle client */
#define BACKLOG 65535               /* the kernel cuts it to net.core.somaxconn */
#define KEEPALIVE_S 60
#define DEFAULT_STALL_MS 30000
#define STALL_TICKS 4 /* sweeps without progress after which a client is dropped */
#define MIN_SWEEP_MS 10
#define MAX_LISTENERS (TETHER__NET_MAX_LISTENERS + 1)

union stream {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct listener {
    union stream uv;
    struct tether_store_server *server;
    bool owes_accept; /* a connection waits for the memory to take it */
};

struct client {
    union stream uv;
    struct tether_store_server *server;
    struct tether__list node;
    struct tether__session session;
    tether_buf in; /* the front of a request that is not all here yet */
    size_t need;   /* how long `in` must get before it is worth another look */
    tether_buf writing;
    uv_write_t write;
    size_t last_queue; /* what the last sweep saw unsent, and how many saw no less */
    int stuck_sweeps;
    bool is_paused, is_closing;
};

struct tether_store_server {
    /* immutable once started */
    struct tether__loop loop;
    int port;
    char *unix_path;
    uint64_t max_clients;
    int stall_timeout_ms;

    /* loop thread only */
    struct tether__hub hub;
    struct listener listeners[MAX_LISTENERS];
    int n_listeners;
    struct tether__list clients;
    uv_timer_t sweep;
    bool is_stopping;
    struct tether_store_server_stats stats; /* the figures that are not counted elsewhere */
    char read_buffer[READ_SIZE];
};

/* ---- Clients -----------------------------------------------------------------------------------
 */

static struct client *client_of_session(struct tether__session *session)
{
    return tether__container_of(session, struct client, session);
}

static void on_client_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;
    tether_buf_fini(&client->in);
    tether_buf_fini(&client->writing);
    tether__free(client);
}

static void drop(struct client *client)
{
    if (client->is_closing)
        return;
    client->is_closing = true;
    client->server->stats.clients--;
    tether__list_remove(&client->node);
    tether__session_fini(&client->session);
    uv_close(&client->uv.handle, on_client_closed);
}

static bool charge(struct client *client)
{
    return tether__session_charge(&client->session, client->in.cap + client->writing.cap);
}

static void shrink(tether_buf *buf)
{
    buf->len = 0;
    if (buf->cap > KEEP_SIZE)
        tether_buf_fini(buf);
}

static void feed(struct client *client, const char *data, size_t len);
static void flush(struct client *client);
static void flush_dirty(struct tether_store_server *server);

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct client *client = handle->data;
    tether_buf *in = &client->in;
    if (in->len == 0) {
        *buf = (uv_buf_t){client->server->read_buffer, READ_SIZE};
        return;
    }
    /* Into the rest of the request itself; at most as much again as has really come. */
    size_t want = client->need > in->len ? client->need - in->len : 1;
    size_t most = in->len > READ_SIZE ? in->len : READ_SIZE;
    if (tether_buf_reserve(in, want < most ? want : most) == TETHER_OK && charge(client))
        *buf = (uv_buf_t){in->data + in->len, in->cap - in->len - 1};
    else
        *buf = (uv_buf_t){NULL, 0}; /* on_read() gets UV_ENOBUFS */
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct client *client = stream->data;
    struct tether_store_server *server = client->server;
    if (n == 0)
        return;
    if (n < 0) {
        server->stats.stalled += n == UV_ENOBUFS;
        drop(client);
        return;
    }
    server->stats.bytes_in += (uint64_t)n;
    if (buf->base == server->read_buffer) {
        feed(client, buf->base, (size_t)n);
    } else {
        client->in.len += (size_t)n;
        if (client->in.len >= client->need)
            feed(client, client->in.data, client->in.len);
    }
    flush_dirty(server);
}

static void on_written(uv_write_t *write, int status)
{
    struct client *client = write->data;
    if (client->is_closing)
        return;
    client->server->stats.bytes_out += client->writing.len;
    client->last_queue = 0;
    tether_buf_fini(&client->writing);
    charge(client);
    if (status < 0) {
        drop(client);
        return;
    }
    flush(client);
    flush_dirty(client->server);
}

/* All replies are on their way: reads and requests go on. */
static void resume(struct client *client)
{
    client->is_paused = false;
    if (client->in.len)
        feed(client, client->in.data, client->in.len);
    if (!client->is_closing && !client->is_paused)
        uv_read_start(&client->uv.stream, on_alloc, on_read);
}

/* Sends what has gathered; what the socket does not take at once is left to libuv. Whether all is
 * out. */
static bool send_out(struct client *client)
{
    tether_buf *out = &client->session.out;
    if (client->writing.len)
        return false; /* on_written() comes back */
    if (out->len == 0)
        return true;
    uv_buf_t buf = {out->data, out->len};
    int sent = uv_try_write(&client->uv.stream, &buf, 1);
    if (sent < 0 && sent != UV_EAGAIN) {
        drop(client);
        return false;
    }
    if (sent > 0 && (size_t)sent == out->len) {
        client->server->stats.bytes_out += out->len;
        shrink(out);
        return charge(client);
    }
    size_t from = sent > 0 ? (size_t)sent : 0;
    client->writing = *out;
    *out = TETHER_BUF_INIT;
    client->stuck_sweeps = 0;
    buf = (uv_buf_t){client->writing.data + from, client->writing.len - from};
    client->write.data = client;
    if (!charge(client) || uv_write(&client->write, &client->uv.stream, &buf, 1, on_written) != 0)
        drop(client);
    return false;
}

static void flush(struct client *client)
{
    if (send_out(client) && client->is_paused)
        resume(client);
}

static void flush_dirty(struct tether_store_server *server)
{
    for (struct tether__list *node; (node = tether__list_pop_front(&server->hub.dirty));) {
        struct client *client =
            client_of_session(tether__list_entry(node, struct tether__session, dirty_node));
        if (client->session.why) {
            tether__log(TETHER_LOG_DEBUG, "store", "dropping a client: %s", client->session.why);
            if (client->session.is_overload)
                server->stats.stalled++;
            else
                server->stats.malformed++;
            drop(client);
        } else {
            flush(client);
        }
    }
}

/* Gives the session `data`, which is `in` or what has just been read, and keeps what it leaves. */
static void feed(struct client *client, const char *data, size_t len)
{
    struct tether__session *session = &client->session;
    size_t taken = tether__session_feed(session, data, len, &client->need);
    size_t rest = len - taken;
    if (session->why) {
        tether__session_fail(session, session->why); /* for flush_dirty() to see */
        return;
    }
    if (data == client->in.data) {
        if (taken)
            memmove(client->in.data, data + taken, rest);
        client->in.len = rest;
        if (rest == 0)
            shrink(&client->in);
    } else if (rest && tether_buf_append(&client->in, tether_bytes_of(data + taken, rest))) {
        tether__session_fail(session, "out of memory");
        return;
    }
    if (client->in.cap && !charge(client))
        return;
    if (session->out.len >= TETHER__SESSION_HIGH_WATER) {
        client->is_paused = true;
        uv_read_stop(&client->uv.stream);
    }
}

/* ---- Accepting ---------------------------------------------------------------------------------
 */

static int stream_init(uv_loop_t *loop, union stream *stream, bool is_pipe)
{
    return is_pipe ? uv_pipe_init(loop, &stream->pipe, 0) : uv_tcp_init(loop, &stream->tcp);
}

/* False when there is no memory for the connection: it stays with the listener. */
static bool accept_one(struct listener *listener)
{
    struct tether_store_server *server = listener->server;
    struct client *client = tether__calloc(1, sizeof *client);
    if (!client)
        return false;
    bool is_pipe = listener->uv.handle.type == UV_NAMED_PIPE;
    stream_init(listener->uv.handle.loop, &client->uv, is_pipe);
    client->uv.handle.data = client;
    client->server = server;
    tether__store_session_init(&client->session, &server->hub);
    tether__list_push_back(&server->clients, &client->node);
    server->stats.clients++;
    if (uv_accept(&listener->uv.stream, &client->uv.stream) != 0) {
        drop(client);
    } else if (server->stats.clients > server->max_clients) {
        server->stats.refused++;
        drop(client);
    } else {
        server->stats.accepted++;
        if (!is_pipe) {
            uv_tcp_nodelay(&client->uv.tcp, 1);
            uv_tcp_keepalive(&client->uv.tcp, 1, KEEPALIVE_S);
        }
        uv_read_start(&client->uv.stream, on_alloc, on_read);
    }
    return true;
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct listener *listener = stream->data;
    if (status == 0) /* else libuv has turned the connection away: out of descriptors */
        listener->owes_accept = !accept_one(listener);
}

/* ---- The sweep: clients that do not read, connections that could not be taken -------------------
 */

static void sweep_client(struct client *client)
{
    size_t queue = uv_stream_get_write_queue_size(&client->uv.stream);
    bool stuck = queue > 0 && queue == client->last_queue;
    client->last_queue = queue;
    client->stuck_sweeps = stuck ? client->stuck_sweeps + 1 : 0;
    if (client->stuck_sweeps >= STALL_TICKS) {
        client->server->stats.stalled++;
        drop(client);
    }
}

static void on_sweep(uv_timer_t *timer)
{
    struct tether_store_server *server = timer->data;
    for (int i = 0; i < server->n_listeners; i++)
        if (server->listeners[i].owes_accept)
            server->listeners[i].owes_accept = !accept_one(&server->listeners[i]);
    TETHER__LIST_FOR_EACH(node, &server->clients)
        sweep_client(tether__list_entry(node, struct client, node));
    flush_dirty(server);
}

/* ---- Starting and stopping ---------------------------------------------------------------------
 */

struct start_task {
    struct tether__task task;
    tether_store_server *server;
    const int *fds;
    int n, unix_at; /* which of them is a unix socket; -1: none */
    int rc;
};

static void run_start(struct tether__task *task)
{
    struct start_task *start = tether__container_of(task, struct start_task, task);
    tether_store_server *server = start->server;
    uv_loop_t *loop = tether__loop_uv(&server->loop);
    uv_timer_init(loop, &server->sweep);
    server->sweep.data = server;
    int period = server->stall_timeout_ms < 0 ? DEFAULT_STALL_MS : server->stall_timeout_ms;
    period = period / STALL_TICKS < MIN_SWEEP_MS ? MIN_SWEEP_MS : period / STALL_TICKS;
    uv_timer_start(&server->sweep, on_sweep, (uint64_t)period, (uint64_t)period);
    for (int i = 0; i < start->n && start->rc == 0; i++) {
        struct listener *listener = &server->listeners[i];
        bool is_pipe = i == start->unix_at;
        start->rc = stream_init(loop, &listener->uv, is_pipe);
        if (start->rc != 0)
            break;
        listener->server = server;
        listener->uv.handle.data = listener;
        server->n_listeners++;
        start->rc = is_pipe ? uv_pipe_open(&listener->uv.pipe, start->fds[i])
                            : uv_tcp_open(&listener->uv.tcp, start->fds[i]);
        if (start->rc == 0)
            start->rc = uv_listen(&listener->uv.stream, BACKLOG, on_connection);
        if (start->rc == 0 && !is_pipe) /* else libuv sleeps a little after each accept */
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
    TETHER__LIST_FOR_EACH(node, &server->clients)
        drop(tether__list_entry(node, struct client, node));
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
                                "descriptor %d is bound to %s, beyond loopback: say 'insecure' if "
                                "the network keeps strangers out",
                                fd, text);
    }
    return TETHER_OK;
}

/* Gets all sockets bound; those in `fds` afterwards are ours, on errors too. */
static tether_status bind_sockets(const struct tether_store_server_opts *opts,
                                  struct start_task *start,
                                  int fds[MAX_LISTENERS],
                                  tether_error *reterr)
{
    tether_status st = TETHER_OK;
    start->fds = fds;
    start->unix_at = -1;
    if (opts->listen_fd) {
        st = check_adopted(opts, reterr);
        /* A copy, so that the caller's is still his if something fails from here on. */
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
        st = tether__net_bind_unix(opts->unix_path, &fds[start->n], reterr);
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

tether_status tether_store_server_new(const struct tether_store_server_opts *opts,
                                      tether_store_server **ret_server,
                                      tether_error *reterr)
{
    tether_status st = check_opts(opts, reterr);
    if (st != TETHER_OK)
        return st;
    struct tether_store_server_opts all = *opts;
    const char *path = all.host ? tether__net_unix_path(all.host) : NULL;
    if (path) { /* "unix:/path" is as good as unix_path */
        all.host = NULL;
        all.unix_path = path;
    }
    tether_store_server *server = tether__calloc(1, sizeof *server);
    if (!server)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a store server");
    server->max_clients = all.max_clients ? (uint64_t)all.max_clients : UINT64_MAX;
    server->stall_timeout_ms = all.stall_timeout_ms ? all.stall_timeout_ms : DEFAULT_STALL_MS;
    tether__list_init(&server->clients);

    int fds[MAX_LISTENERS];
    struct start_task start = {.task.run = run_start, .server = server};
    struct tether_store_limits limits = tether__wire_limits(all.limits);
    st = tether__hub_init(&server->hub, &limits, all.legacy_is_l1);
    if (st == TETHER_OK && all.unix_path) {
        server->unix_path = tether__strdup(all.unix_path);
        st = server->unix_path ? TETHER_OK : TETHER_ENOMEM;
    }
    if (st != TETHER_OK) {
        tether_error_set(reterr, st, "no memory for a store server");
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
    stop(server); /* closes what listens; the rest of the sockets is below */
    for (int i = 0; i < server->n_listeners; i++)
        fds[i] = -1;
undo_sockets:
    for (int i = 0; i < start.n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (server->unix_path && start.unix_at >= 0)
        unlink(server->unix_path);
undo_server:
    tether__hub_fini(&server->hub);
    tether__free(server->unix_path);
    tether__free(server);
    return st;
}

tether_store_server *tether_store_server_release(tether_store_server *server)
{
    if (!server)
        return NULL;
    stop(server);
    if (server->unix_path)
        unlink(server->unix_path);
    tether__hub_fini(&server->hub);
    tether__free(server->unix_path);
    tether__free(server);
    return NULL;
}

int tether_store_server_port(const tether_store_server *server)
{
    return server->port;
}

static void run_stats(struct tether__task *task)
{
    struct server_task *call = tether__container_of(task, struct server_task, task);
    const struct tether__hub *hub = &call->server->hub;
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
