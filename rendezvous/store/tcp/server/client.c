/* A connection of the store server.
 *
 * Happy path: the parser reads a client's bytes straight from the one read buffer of the loop. When
 * the bytes of all readable clients have been parsed, each client with replies gets one write, also
 * clients whose waits have ended. Earlier writes would wake clients that take the CPU away from the
 * server while it still reads.
 *
 * Failure: an incomplete request is kept in a buffer of the client, which grows with the bytes that
 * have arrived, not with the announced length. The server stops reading from a client that does not
 * read its replies, and drops it when it has read nothing for `stall_timeout_ms`. A client that
 * sends an invalid request is dropped at once. None of this affects another client.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "rendezvous/store/tcp/server/internal.h"

#define KEEP_SIZE ((size_t)4 << 10) /* an idle client keeps buffers up to this size */
#define KEEPALIVE_S 60

/* The value of an L1 client's APPEND may arrive so long after its key, and the first DELETE of an
 * L0 connection waits so long for its reply. Longer than a TCP stack takes to retransmit a lost
 * segment (200 ms). */
#define SETTLE_MS 250

static struct tether__store_client *client_of_session(struct tether__store_session *session)
{
    return tether__container_of(session, struct tether__store_client, session);
}

static void on_client_closed(uv_handle_t *handle)
{
    struct tether__store_client *client = handle->data;
    tether_buf_fini(&client->in);
    tether_buf_fini(&client->writing);
    tether__free(client);
}

void tether__store_client_drop(struct tether__store_client *client)
{
    if (client->is_closing)
        return;
    client->is_closing = true;
    client->server->stats.clients--;
    tether__list_remove(&client->node);
    tether__list_remove(&client->unsure_node);
    tether__store_places_leave(client);
    tether__store_session_fini(&client->session);
    uv_close(&client->uv.handle, on_client_closed);
}

static bool charge(struct tether__store_client *client)
{
    return tether__store_session_charge(&client->session, client->in.cap + client->writing.cap);
}

static void shrink(tether_buf *buf)
{
    buf->len = 0;
    if (buf->cap > KEEP_SIZE)
        tether_buf_fini(buf);
}

static void feed(struct tether__store_client *client, const char *data, size_t len);
static void flush(struct tether__store_client *client);

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct tether__store_client *client = handle->data;
    tether_buf *in = &client->in;
    if (in->len == 0) {
        *buf = (uv_buf_t){client->server->read_buffer, TETHER__STORE_SERVER_READ_SIZE};
        return;
    }
    /* Reads into the buffer of the request; at most as many bytes as have arrived already. */
    size_t want = client->need > in->len ? client->need - in->len : 1;
    size_t most =
        in->len > TETHER__STORE_SERVER_READ_SIZE ? in->len : TETHER__STORE_SERVER_READ_SIZE;
    if (tether_buf_reserve(in, want < most ? want : most) == TETHER_OK && charge(client))
        *buf = (uv_buf_t){in->data + in->len, in->cap - in->len - 1};
    else
        *buf = (uv_buf_t){NULL, 0}; /* without memory on_read() gets UV_ENOBUFS */
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct tether__store_client *client = stream->data;
    tether_store_server *server = client->server;
    if (n == 0)
        return;
    if (n < 0) {
        server->stats.stalled += n == UV_ENOBUFS;
        tether__store_client_drop(client);
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
}

static void on_written(uv_write_t *write, int status)
{
    struct tether__store_client *client = write->data;
    if (client->is_closing)
        return;
    client->server->stats.bytes_out += client->writing.len;
    tether_buf_fini(&client->writing);
    charge(client);
    if (status < 0) {
        tether__store_client_drop(client);
        return;
    }
    flush(client);
}

/* Continues to read and execute, because all replies have been written. */
static void resume(struct tether__store_client *client)
{
    client->is_paused = false;
    if (client->in.len)
        feed(client, client->in.data, client->in.len);
    if (!client->is_closing && !client->is_paused)
        uv_read_start(&client->uv.stream, on_alloc, on_read);
}

/* Writes the replies; libuv writes later what the socket does not accept now. Returns whether all
 * bytes are written. */
static bool send_out(struct tether__store_client *client)
{
    tether_buf *out = &client->session.out;
    if (client->writing.len)
        return false; /* on_written() continues when libuv has written the rest */
    if (out->len == 0)
        return true;
    uv_buf_t buf = {out->data, out->len};
    int sent = uv_try_write(&client->uv.stream, &buf, 1);
    if (sent < 0 && sent != UV_EAGAIN) {
        tether__store_client_drop(client);
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
    client->last_queue = 0;
    tether__store_server_arm_sweep(client->server);
    buf = (uv_buf_t){client->writing.data + from, client->writing.len - from};
    client->write.data = client;
    if (!charge(client) || uv_write(&client->write, &client->uv.stream, &buf, 1, on_written) != 0)
        tether__store_client_drop(client);
    return false;
}

static void flush(struct tether__store_client *client)
{
    if (send_out(client) && client->is_paused)
        resume(client);
}

void tether__store_server_flush(tether_store_server *server)
{
    for (struct tether__list *node; (node = tether__list_pop_front(&server->hub.dirty));) {
        struct tether__store_client *client =
            client_of_session(tether__list_entry(node, struct tether__store_session, dirty_node));
        if (client->session.why) {
            tether__log(TETHER_LOG_DEBUG, "store", "dropping a client: %s", client->session.why);
            if (client->session.is_overload)
                server->stats.stalled++;
            else
                server->stats.malformed++;
            tether__store_client_drop(client);
        } else {
            flush(client);
        }
    }
}

static void on_settle(uv_timer_t *timer)
{
    tether__store_server_settle(timer->data);
}

/* Sets the timer to the first session that becomes due. */
static void arm_settle(tether_store_server *server)
{
    if (tether__list_empty(&server->unsure) || uv_is_active((uv_handle_t *)&server->settle))
        return;
    const struct tether__store_client *first =
        tether__list_entry(server->unsure.next, struct tether__store_client, unsure_node);
    uint64_t passed_ms = uv_now(server->settle.loop) - first->unsure_since_ms;
    uv_timer_start(&server->settle, on_settle, passed_ms < SETTLE_MS ? SETTLE_MS - passed_ms : 0,
                   0);
}

/* Feeds the session with `data` (`in`, or bytes just read), and keeps the bytes that it leaves. */
static void feed(struct tether__store_client *client, const char *data, size_t len)
{
    struct tether__store_session *session = &client->session;
    size_t taken = tether__store_session_feed(session, data, len, &client->need);
    size_t rest = len - taken;
    tether__store_places_heard(client);
    if (session->why) {
        tether__store_session_fail(session,
                                   /* fails again with the same reason, so that
                                    * tether__store_server_flush() handles the session */
                                   session->why);
        return;
    }
    if (data == client->in.data) {
        if (taken)
            memmove(client->in.data, data + taken, rest);
        client->in.len = rest;
        if (rest == 0)
            shrink(&client->in);
    } else if (rest && tether_buf_append(&client->in, tether_bytes_of(data + taken, rest))) {
        tether__store_session_fail(session, "out of memory");
        return;
    }
    if (client->in.cap && !charge(client))
        return;
    if (session->out.len >= TETHER__STORE_SESSION_HIGH_WATER) {
        client->is_paused = true;
        uv_read_stop(&client->uv.stream);
    }
    tether__list_remove(&client->unsure_node);
    if (session->is_unsure) {
        client->unsure_since_ms = uv_now(client->uv.handle.loop);
        tether__list_push_back(&client->server->unsure, &client->unsure_node);
        arm_settle(client->server);
    }
}

void tether__store_server_settle(tether_store_server *server)
{
    uint64_t now_ms = uv_now(server->settle.loop);
    TETHER__LIST_FOR_EACH(node, &server->unsure) {
        struct tether__store_client *client =
            tether__list_entry(node, struct tether__store_client, unsure_node);
        if (now_ms - client->unsure_since_ms < SETTLE_MS)
            break;
        tether__list_remove(&client->unsure_node);
        tether__store_session_settle(&client->session);
        feed(client, client->in.data, client->in.len);
    }
    /* flush now, because the loop may sleep before the end of its round */
    tether__store_server_flush(server);
    arm_settle(server);
}

int tether__store_stream_init(uv_loop_t *loop, union tether__store_stream *stream, bool is_pipe)
{
    return is_pipe ? uv_pipe_init(loop, &stream->pipe, 0) : uv_tcp_init(loop, &stream->tcp);
}

bool tether__store_client_accept(struct tether__store_listener *listener)
{
    tether_store_server *server = listener->server;
    struct tether__store_client *client = tether__calloc(1, sizeof *client);
    if (!client)
        return false;
    bool is_pipe = listener->uv.handle.type == UV_NAMED_PIPE;
    tether__store_stream_init(listener->uv.handle.loop, &client->uv, is_pipe);
    client->uv.handle.data = client;
    client->server = server;
    tether__store_session_init(&client->session, &server->hub);
    tether__list_init(&client->unsure_node);
    tether__list_init(&client->silent_node);
    tether__list_push_back(&server->clients, &client->node);
    server->stats.clients++;
    if (uv_accept(&listener->uv.stream, &client->uv.stream) != 0 ||
        !tether__store_places_enter(client)) {
        tether__store_client_drop(client);
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

bool tether__store_client_sweep(struct tether__store_client *client)
{
    tether_store_server *server = client->server;
    size_t queue = uv_stream_get_write_queue_size(&client->uv.stream);
    uint64_t now_ms = uv_now(client->uv.handle.loop);
    if (queue != client->last_queue) {
        client->last_queue = queue;
        client->stuck_since_ms = now_ms;
    }
    if (queue == 0)
        return false;
    if (server->stall_timeout_ms >= 0 &&
        now_ms - client->stuck_since_ms >= (uint64_t)server->stall_timeout_ms) {
        server->stats.stalled++;
        tether__store_client_drop(client);
    }
    return true;
}
