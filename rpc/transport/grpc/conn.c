/* Lane streams: /tether.Worker/Lane, dialled and accepted.
 *
 * Happy path, dialled: a fresh channel and one call on it; opened() when the server's initial
 * metadata is there, then messages both ways. close(polite) half-closes once the last send is
 * through; the server answers with its status, and closed() tells TETHER_OK.
 *
 * Happy path, accepted: the server's initial metadata goes out at once. When the peer has
 * half-closed, or close(polite) was called, the status goes out.
 *
 * Failure modes: a peer that cannot be reached, breaks off or breaks a limit ends the call with a
 * status; abort() cancels it for a reason of ours. Either way gRPC gives back every operation that
 * is under way, and closed() comes with the last of them.
 *
 * A channel per conn, so that no dial waits for the backoff of an earlier one, and none shares a
 * connection with another.
 *
 * gRPC allows a batch that only sends beside one that only receives: those that send are started
 * under conn->mu, those that receive by the poller alone (the first ones, before it can know of
 * the conn).
 */
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/slice_buffer.h>
#include <grpc/support/alloc.h>
#include <string.h>

#include "base/alloc.h"
#include "rpc/transport/grpc/take.h"

/* HTTP/2 wants a request to name an authority. We set it once, rather than have gRPC look at every
 * batch. With TLS it must be the server's name, and is up to gRPC. */
#define AUTHORITY "tether"

/* Both ends send this key in their initial metadata to show that the call is a lane. */
#define LANE_KEY "tether-lane"

/* ---- Life ---- */

void tether__grpc_conn_ref(struct tether__grpc_conn *conn)
{
    atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
}

static void conn_free(struct tether__grpc_conn *conn)
{
    if (conn->call)
        grpc_call_unref(conn->call);
    if (conn->channel)
        grpc_channel_destroy(conn->channel);
    grpc_metadata_array_destroy(&conn->initial_metadata);
    grpc_metadata_array_destroy(&conn->trailing_metadata);
    grpc_slice_unref(conn->details);
    grpc_slice_buffer_destroy(&conn->outgoing.data.raw.slice_buffer);
    tether__grpc_received_free(conn->spare);
    pthread_mutex_destroy(&conn->mu);
    tether__free(conn->peer);
    tether__free(conn);
}

void tether__grpc_conn_unref(struct tether__grpc_conn *conn)
{
    if (atomic_fetch_sub_explicit(&conn->refs, 1, memory_order_acq_rel) == 1)
        conn_free(conn);
}

void tether__grpc_conn_release(struct tether__conn *conn)
{
    if (conn)
        tether__grpc_conn_unref(tether__grpc_conn_of(conn));
}

/* Makes a conn without a call, counted already as a user of its side. NULL: out of memory, or the
 * transport is stopping. */
static struct tether__grpc_conn *conn_new(struct tether__grpc_side *side, const char *peer)
{
    struct tether__grpc_conn *conn = tether__calloc(1, sizeof *conn);
    if (!conn)
        return NULL;
    conn->peer = tether__strdup(peer);
    if (!conn->peer)
        goto undo_conn;

    conn->side = side;
    conn->base.transport = &side->transport->base;
    conn->base.peer = conn->peer;
    atomic_init(&conn->refs, 2); /* one for the transport, one for the owner */
    conn->deadline = TETHER__NEVER;
    conn->outgoing.type = GRPC_BB_RAW;
    grpc_slice_buffer_init(&conn->outgoing.data.raw.slice_buffer);
    grpc_metadata_array_init(&conn->initial_metadata);
    grpc_metadata_array_init(&conn->trailing_metadata);
    conn->details = grpc_empty_slice();
    tether__list_init(&conn->all);
    tether__list_init(&conn->timed);
    tether__list_init(&conn->resting);
    pthread_mutex_init(&conn->mu, NULL);

    pthread_mutex_lock(&side->transport->mu);
    bool entered = tether__grpc_side_enter_locked(side);
    if (entered)
        tether__list_push_back(&side->conns, &conn->all);
    pthread_mutex_unlock(&side->transport->mu);
    if (entered)
        return conn;

    conn_free(conn);
    return NULL;
undo_conn:
    tether__free(conn);
    return NULL;
}

/* ---- Sending ---- */

static void on_sent(struct tether__grpc_op *op, bool ok)
{
    struct tether__grpc_conn *conn = tether__container_of(op, struct tether__grpc_conn, sent);
    pthread_mutex_lock(&conn->mu);
    conn->sending = false;
    if (conn->ending == TETHER__GRPC_LAST_SEND)
        tether__grpc_end_locked(conn);
    bool next_may_go = ok && conn->ending == TETHER__GRPC_IN_USE;
    pthread_mutex_unlock(&conn->mu);
    atomic_store_explicit(&conn->side->emptied, true, memory_order_relaxed);
    if (next_may_go)
        conn->base.events->sent(&conn->base);
    tether__grpc_op_back(conn);
}

/* Ends a write on this thread. False: the conn has ended or may have, so the poller must handle
 * the event.
 */
static bool write_ended_locked(struct tether__grpc_conn *conn, bool ok)
{
    atomic_store_explicit(&conn->side->emptied, true, memory_order_relaxed);
    if (conn->pending == 1) { /* this was the last op, so closed() follows */
        tether__grpc_leave_to_poller(conn->side, &conn->sent, ok);
        return false;
    }
    conn->pending--;
    conn->sending = false;
    return ok;
}

static void send_locked(struct tether__grpc_conn *conn,
                        const struct tether__slice *pieces,
                        size_t n)
{
    struct tether__grpc_side *side = conn->side;
    tether__grpc_gather(side->transport, &conn->outgoing.data.raw.slice_buffer, pieces, n);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = &conn->outgoing;
    conn->sending = true;
    conn->pending++;
    if (!tether__grpc_start(side->transport, conn->call, &op, 1, &conn->sent)) {
        conn->sending = false;
        conn->pending--;
        tether__grpc_abort_locked(
            conn,
            &(tether_error){TETHER_EINTERNAL, "gRPC refused a message; was the last one sent()?"});
    }
    /* gRPC has moved the slices out, unless it refused them. Refused slices must not be sent with
     * the next message. */
    grpc_slice_buffer_reset_and_unref(&conn->outgoing.data.raw.slice_buffer);
}

bool tether__grpc_send(struct tether__conn *base, const struct tether__slice *pieces, size_t n)
{
    struct tether__grpc_conn *conn = tether__grpc_conn_of(base);
    size_t max = conn->side->transport->max_message_bytes, len = 0;
    for (size_t i = 0; i < n; i++)
        len += pieces[i].len;

    pthread_mutex_lock(&conn->mu);
    bool usable = conn->ending == TETHER__GRPC_IN_USE && !conn->finished;
    if (usable && len > max) {
        usable = false;
        tether_error cause;
        tether_error_set(&cause, TETHER_ETOOBIG,
                         "a message of %zu bytes to %s is over the limit of %zu", len, conn->peer,
                         max);
        tether__grpc_abort_locked(conn, &cause);
    }
    if (usable)
        send_locked(conn, pieces, n);
    pthread_mutex_unlock(&conn->mu);
    /* closed() reports the reason if the pieces were not sent */
    for (size_t i = 0; !usable && i < n; i++)
        tether__slice_release(pieces[i]);
    return false;
}

bool tether__grpc_take_sent(struct tether__conn *base)
{
    struct tether__grpc_conn *conn = tether__grpc_conn_of(base);
    bool ok, out = false;
    pthread_mutex_lock(&conn->mu);
    if (conn->ending == TETHER__GRPC_IN_USE && conn->sending && conn->settled &&
        tether__grpc_take_event(conn->side, &conn->sent, &ok))
        out = write_ended_locked(conn, ok);
    pthread_mutex_unlock(&conn->mu);
    return out;
}

/* ---- Receiving ---- */

/* gRPC tells the peer at once that there is room again when it is asked for the next message, in a
 * packet of its own, unless a message of ours leaves first and carries that note. So the poller
 * asks only when it is about to wait: by then a reply, or the next request, is on its way. */
static void receive_later(struct tether__grpc_conn *conn)
{
    tether__list_push_back(&conn->side->resting, &conn->resting);
}

static bool receive_next(struct tether__grpc_conn *conn)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &conn->incoming;
    return tether__grpc_start(conn->side->transport, conn->call, &op, 1, &conn->received);
}

void tether__grpc_receive_all(struct tether__grpc_side *side)
{
    struct tether__list *node;
    while ((node = tether__list_pop_front(&side->resting))) {
        struct tether__grpc_conn *conn =
            tether__list_entry(node, struct tether__grpc_conn, resting);
        if (!receive_next(conn)) {
            tether__grpc_abort(
                conn, &(tether_error){TETHER_EINTERNAL, "gRPC refused to receive a message"});
            tether__grpc_op_back(conn);
        }
    }
}

static void deliver(struct tether__grpc_conn *conn, grpc_byte_buffer *buffer)
{
    struct tether__grpc *transport = conn->side->transport;
    tether_error cause = {TETHER_ENOMEM, "no memory for a received message"};
    struct tether__slice message;
    if (tether__grpc_is_too_large(buffer, transport->max_message_bytes, conn->peer, &cause)) {
        grpc_byte_buffer_destroy(buffer);
        tether__grpc_abort(conn, &cause);
    } else if (!tether__grpc_receive(transport, buffer, &conn->spare, &message)) {
        tether__grpc_abort(conn, &cause);
    } else {
        conn->base.events->message(&conn->base, message);
        tether__grpc_received_release(message, &conn->spare);
    }
}

/* Handles the half-close of the peer. A listener then sends its status; a dialler gets the reason
 * from the status. */
static void on_last_received(struct tether__grpc_conn *conn)
{
    if (tether__grpc_is_dialled(conn))
        return;
    pthread_mutex_lock(&conn->mu);
    tether__grpc_close_gracefully_locked(conn);
    pthread_mutex_unlock(&conn->mu);
}

static void on_received(struct tether__grpc_op *op, bool ok)
{
    struct tether__grpc_conn *conn = tether__container_of(op, struct tether__grpc_conn, received);
    grpc_byte_buffer *buffer = conn->incoming;
    conn->incoming = NULL;
    if (!buffer) {
        if (ok) /* otherwise the connection broke, and the op `over` gets the reason */
            on_last_received(conn);
        tether__grpc_op_back(conn);
        return;
    }
    if (atomic_load(&conn->mute))
        grpc_byte_buffer_destroy(buffer);
    else
        deliver(conn, buffer);
    receive_later(conn);
}

/* ---- The beginning ---- */

/* Whether the server's initial metadata has LANE_KEY. gRPC reports success even when the server
 * sent only an error, so this tells the two apart. */
static bool has_mark(const grpc_metadata_array *metadata)
{
    for (size_t i = 0; i < metadata->count; i++)
        if (grpc_slice_str_cmp(metadata->metadata[i].key, LANE_KEY) == 0)
            return true;
    return false;
}

static void on_opened(struct tether__grpc_op *op, bool ok)
{
    struct tether__grpc_conn *conn = tether__container_of(op, struct tether__grpc_conn, opened);
    if (ok && has_mark(&conn->initial_metadata) && !atomic_load(&conn->mute)) {
        conn->is_open = true;
        pthread_mutex_lock(&conn->mu);
        conn->settled = true;
        if (conn->ending == TETHER__GRPC_IN_USE)
            tether__grpc_set_deadline(conn, TETHER__NEVER);
        pthread_mutex_unlock(&conn->mu);
        struct tether__grpc_names names;
        conn->base.events->opened(&conn->base, tether__grpc_names_init(&names, conn->call));
        tether__grpc_names_fini(&names);
    }
    tether__grpc_op_back(conn);
}

static void on_over(struct tether__grpc_op *op, bool ok)
{
    (void)ok; /* the status is valid even when the op failed */
    tether__grpc_op_back(tether__container_of(op, struct tether__grpc_conn, over));
}

static void on_ended(struct tether__grpc_op *op, bool ok)
{
    (void)ok; /* if it could not be sent, the op `over` gets the reason */
    tether__grpc_op_back(tether__container_of(op, struct tether__grpc_conn, ended));
}

/* Starts the ops that send the initial metadata and wait for the end of the call. */
static bool begin(struct tether__grpc_conn *conn)
{
    grpc_metadata mark = {.key = grpc_slice_from_static_string(LANE_KEY),
                          .value = grpc_slice_from_static_string("1")};
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}};
    ops[0].data.send_initial_metadata.metadata = &mark;
    ops[0].data.send_initial_metadata.count = 1;
    if (tether__grpc_is_dialled(conn)) {
        ops[1].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
        ops[1].data.recv_status_on_client.trailing_metadata = &conn->trailing_metadata;
        ops[1].data.recv_status_on_client.status = &conn->code;
        ops[1].data.recv_status_on_client.status_details = &conn->details;
    } else {
        ops[1].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
        ops[1].data.recv_close_on_server.cancelled = &conn->canceled;
    }
    return tether__grpc_start(conn->side->transport, conn->call, ops, 2, &conn->over);
}

static bool await_open(struct tether__grpc_conn *conn)
{
    grpc_op op = {.op = GRPC_OP_RECV_INITIAL_METADATA};
    op.data.recv_initial_metadata.recv_initial_metadata = &conn->initial_metadata;
    return tether__grpc_start(conn->side->transport, conn->call, &op, 1, &conn->opened);
}

/* Starts the conn: from here on its ops complete on the poller. False: no op was started. */
static bool set_going_locked(struct tether__grpc_conn *conn)
{
    conn->opened.done = on_opened;
    conn->received.done = on_received;
    conn->sent.done = on_sent;
    conn->ended.done = on_ended;
    conn->over.done = on_over;
    if (!begin(conn))
        return false;
    conn->pending++;
    bool started = true;
    conn->settled = !tether__grpc_is_dialled(conn);
    if (!conn->settled && (started = await_open(conn)))
        conn->pending++;
    if (started && (started = receive_next(conn)))
        conn->pending++;
    if (!started)
        tether__grpc_abort_locked(
            conn, &(tether_error){TETHER_EINTERNAL, "gRPC refused to start a stream"});
    if (conn->ending == TETHER__GRPC_ABORTED)
        grpc_call_cancel(conn->call, NULL); /* stop() has aborted the conn before the call began */
    return true;
}

/* Frees a conn that was never started. */
static void conn_undo(struct tether__grpc_conn *conn)
{
    struct tether__grpc_side *side = conn->side;
    tether__grpc_conn_unlink(conn);
    tether__grpc_conn_unref(conn);
    tether__grpc_conn_unref(conn);
    tether__grpc_side_leave(side);
}

static grpc_channel *channel_new(struct tether__grpc *transport, const char *address)
{
    grpc_arg args[] = {
        TETHER__GRPC_COMMON_ARGS(transport),
        tether__grpc_int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                             transport->patience_ns / TETHER__NS_PER_MS),
        tether__grpc_int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        tether__grpc_int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        tether__grpc_int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        tether__grpc_int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        tether__grpc_int_arg(GRPC_ARG_DISABLE_CLIENT_AUTHORITY_FILTER, !transport->has_tls),
        {GRPC_ARG_STRING, GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, {.string = transport->server_name}},
    };
    grpc_channel_args all = {TETHER__ARRAY_LEN(args) - !transport->server_name, args};
    char *target = tether__grpc_target(address);
    if (!target)
        return NULL;
    grpc_channel *channel = grpc_channel_create(target, transport->dial_credentials, &all);
    tether__free(target);
    return channel;
}

struct tether__conn *tether__grpc_dial(struct tether__transport *base,
                                       const char *address,
                                       const struct tether__conn_events *events,
                                       void *userdata)
{
    struct tether__grpc *transport = tether__grpc_of(base);
    struct tether__grpc_conn *conn =
        transport->begun ? conn_new(&transport->sides[TETHER__CLIENT], address) : NULL;
    if (!conn)
        return NULL;
    conn->base.events = events;
    conn->base.userdata = userdata;
    conn->channel = channel_new(transport, address);
    grpc_slice authority = grpc_slice_from_static_string(AUTHORITY);
    if (conn->channel)
        conn->call = grpc_channel_create_call(
            conn->channel, NULL, GRPC_PROPAGATE_DEFAULTS, conn->side->queue,
            grpc_slice_from_static_string(TETHER__GRPC_LANE_METHOD),
            transport->has_tls ? NULL : &authority, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (!conn->call)
        goto undo_conn;

    pthread_mutex_lock(&conn->mu);
    tether__grpc_set_deadline(conn,
                              tether__clock_now_ns(&tether__clock_system) + transport->patience_ns);
    bool going = set_going_locked(conn);
    pthread_mutex_unlock(&conn->mu);
    if (going)
        return &conn->base;
undo_conn:
    conn_undo(conn);
    return NULL;
}

void tether__grpc_proved(struct tether__conn *conn)
{
    tether__grpc_unproved_remove(&tether__grpc_of(conn->transport)->unproved,
                                 tether__grpc_conn_of(conn)->unproved_id);
}

void tether__grpc_accept(struct tether__grpc *transport, grpc_call *call)
{
    char *peer = tether__grpc_peer_of(call);
    struct tether__grpc_conn *conn = conn_new(&transport->sides[TETHER__SERVER], peer);
    gpr_free(peer);
    if (!conn) {
        grpc_call_cancel_with_status(call, GRPC_STATUS_UNAVAILABLE,
                                     "the worker is stopping, or out of memory", NULL);
        grpc_call_unref(call);
        return;
    }
    conn->call = call;
    conn->unproved_id = tether__grpc_unproved_call_begins(&transport->unproved, call);
    pthread_mutex_lock(&conn->mu);
    bool going = set_going_locked(conn);
    pthread_mutex_unlock(&conn->mu);
    if (!going) {
        tether__grpc_unproved_call_ends(&transport->unproved, conn->unproved_id, false);
        conn_undo(conn);
        return;
    }
    struct tether__grpc_names names;
    const char *const *cert_names = tether__grpc_names_init(&names, call);
    transport->events->accepted(transport->userdata, &conn->base, cert_names);
    tether__grpc_names_fini(&names);
}
