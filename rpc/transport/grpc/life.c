/* Start and stop of the gRPC transport.
 *
 * Happy path: new() starts gRPC and makes the two queues; start() listens; dial() and the accepted
 * calls make conns; stop() ends them all, and poll() of each side tells false once its queue has
 * given everything back; destroy(). If the transport starts late, new() and start() leave gRPC
 * alone, and begin() starts it; without begin() nothing of gRPC is ever used.
 */
#include "rpc/transport/grpc/grpc.h"

#include <limits.h>

#include "base/alloc.h"
#include "base/threads/cond.h"
#include "net/grpc_init.h"

#define DEFAULT_MAX_MESSAGE_BYTES (4u << 20)
#define DEFAULT_PATIENCE_MS 10000
#define DEFAULT_PLAIN_CALLS 1024
#define GIVE_BACK_MS 30000

/* gRPC checks the length of a message only when all of it has arrived, and buffers without a limit
 * until then, also for clients that have not authenticated. The quota bounds what all clients
 * together can make it buffer; beyond the quota gRPC cancels streams. A worker's stream that is
 * cancelled is dialled again and its session goes on. */
#define QUOTA_BYTES ((size_t)256 << 20)
/* the quota holds at least so many messages of the largest allowed size */
#define QUOTA_MESSAGES 64
#define QUOTA_UNARY 4 /* and at least so many plain calls of the largest allowed size */

/* ---- Channel arguments ---- */

grpc_arg tether__grpc_int_arg(const char *key, int64_t value)
{
    return (grpc_arg){GRPC_ARG_INTEGER, (char *)key, {.integer = (int)value}};
}

grpc_arg tether__grpc_quota_arg(const struct tether__grpc *transport)
{
    return (grpc_arg){GRPC_ARG_POINTER,
                      GRPC_ARG_RESOURCE_QUOTA,
                      {.pointer = {transport->quota, grpc_resource_quota_arg_vtable()}}};
}

/* ---- The end ---- */

/* Returns the next conn that stop() has to close, with a reference; NULL: none is left. */
static struct tether__grpc_conn *take_conn(struct tether__grpc_side *side)
{
    struct tether__grpc_conn *conn = NULL;
    pthread_mutex_lock(&side->transport->mu);
    struct tether__list *node = tether__list_pop_front(&side->conns);
    if (node) {
        conn = tether__list_entry(node, struct tether__grpc_conn, all);
        tether__grpc_conn_ref(conn);
    }
    pthread_mutex_unlock(&side->transport->mu);
    return conn;
}

static void stop(struct tether__transport *base)
{
    struct tether__grpc *transport = tether__grpc_of(base);
    pthread_mutex_lock(&transport->mu);
    bool again = transport->stopping;
    transport->stopping = true;
    pthread_mutex_unlock(&transport->mu);
    if (again)
        return;
    for (int i = 0; i < 2; i++) {
        struct tether__grpc_conn *conn;
        while ((conn = take_conn(&transport->sides[i]))) {
            tether__grpc_abort(conn,
                               &(tether_error){TETHER_ESHUTDOWN, "this worker is shutting down"});
            tether__grpc_conn_unref(conn);
        }
    }
    tether__grpc_answer_all(transport);
    tether__grpc_listen_stop(transport);
    for (int i = 0; transport->begun && i < 2; i++)
        tether__grpc_side_leave(&transport->sides[i]);
}

static void side_fini(struct tether__grpc_side *side)
{
    if (side->queue)
        grpc_completion_queue_destroy(side->queue);
    pthread_mutex_destroy(&side->take_mu);
}

/* Waits until gRPC has released every piece that was lent to it, which happens soon after the last
 * call has ended. False: gRPC still holds some. */
static bool await_none_lent(struct tether__grpc *transport)
{
    int64_t deadline = tether__deadline_in(&tether__clock_system, GIVE_BACK_MS);
    pthread_mutex_lock(&transport->mu);
    while (transport->n_lent &&
           tether__cond_wait(&transport->none_lent, &transport->mu, deadline)) {
    }
    bool none = transport->n_lent == 0;
    pthread_mutex_unlock(&transport->mu);
    return none;
}

static void release_grpc(struct tether__grpc *transport)
{
    grpc_channel_destroy(transport->lame);
    grpc_resource_quota_unref(transport->quota);
    if (transport->dial_credentials)
        grpc_channel_credentials_release(transport->dial_credentials);
    if (transport->listen_credentials)
        grpc_server_credentials_release(transport->listen_credentials);
}

static void destroy(struct tether__transport *base)
{
    if (!base)
        return;
    struct tether__grpc *transport = tether__grpc_of(base);
    stop(base);
    for (int i = 0; i < 2; i++)
        while (tether__grpc_poll(base, i, TETHER__NEVER)) {
        }
    tether__grpc_listen_destroy(transport);
    for (int i = 0; i < 2; i++)
        side_fini(&transport->sides[i]);
    tether__grpc_unproved_fini(&transport->unproved);
    bool begun = transport->begun;
    if (begun)
        release_grpc(transport);
    tether__free(transport->server_name);
    tether__free(transport->listen);
    if (await_none_lent(transport)) { /* if gRPC still holds pieces, leak the transport: freeing it
                                         would crash when they are released */
        pthread_cond_destroy(&transport->none_lent);
        pthread_mutex_destroy(&transport->mu);
        tether__free(transport);
    }
    if (begun)
        grpc_shutdown_blocking();
}

/* ---- The beginning ---- */

static void side_init(struct tether__grpc_side *side, struct tether__grpc *transport, int spin_us)
{
    side->transport = transport;
    tether__spin_init(&side->spin, spin_us);
    atomic_init(&side->next_deadline, TETHER__NEVER);
    side->users = 1; /* a count that stop() drops */
    pthread_mutex_init(&side->take_mu, NULL);
    tether__list_init(&side->conns);
    tether__list_init(&side->timed);
    tether__list_init(&side->resting);
}

static size_t quota_for(size_t max_message, size_t max_unary)
{
    size_t quota = QUOTA_BYTES;
    if (max_message > quota / QUOTA_MESSAGES)
        quota = max_message * QUOTA_MESSAGES;
    if (max_unary > quota / QUOTA_UNARY)
        quota = max_unary < SIZE_MAX / QUOTA_UNARY ? max_unary * QUOTA_UNARY : SIZE_MAX;
    return quota;
}

/* Starts gRPC and creates the objects of gRPC that both sides need. */
static tether_status start_grpc(struct tether__grpc *transport,
                                const struct tether__tls *tls,
                                tether_error *reterr)
{
    if (!tether__grpc_has_descriptors())
        return tether_error_set(reterr, TETHER_EIO,
                                "starting gRPC: too many open files: close some, or raise "
                                "`ulimit -n`");
    tether__grpc_init(transport->expected_peers);
    transport->lame = grpc_lame_client_channel_create("wake", GRPC_STATUS_OK, "");
    transport->quota = grpc_resource_quota_create("tether");
    grpc_resource_quota_resize(transport->quota,
                               quota_for(transport->max_message_bytes, transport->max_unary_bytes));
    for (int i = 0; i < 2; i++)
        transport->sides[i].queue = grpc_completion_queue_create_for_next(NULL);
    transport->begun = true;
    return tether__grpc_credentials(transport, tls, reterr);
}

static tether_status begin(struct tether__transport *base, tether_error *reterr)
{
    struct tether__grpc *transport = tether__grpc_of(base);
    if (transport->begun)
        return TETHER_OK;
    tether_status st = start_grpc(transport, NULL, reterr);
    if (st == TETHER_OK)
        tether__grpc_listen_begin(transport);
    return st;
}

static void begun(struct tether__transport *base, bool ok)
{
    tether__grpc_listen_open(tether__grpc_of(base), ok);
}

static const struct tether__transport_ops ops = {
    .start = tether__grpc_listen,
    .begin = begin,
    .begun = begun,
    .accept_fd = tether__grpc_accept_fd,
    .accept = tether__grpc_accept_turn,
    .dial = tether__grpc_dial,
    .send = tether__grpc_send,
    .take_sent = tether__grpc_take_sent,
    .close = tether__grpc_close,
    .proved = tether__grpc_proved,
    .conn_release = tether__grpc_conn_release,
    .poll = tether__grpc_poll,
    .poll_ready = tether__grpc_poll_ready,
    .wake = tether__grpc_wake,
    .stop = stop,
    .destroy = destroy,
};

tether_status tether__transport_grpc_new(const struct tether__transport_opts *opts,
                                         struct tether__transport **ret_transport,
                                         tether_error *reterr)
{
    size_t max = opts->max_message_bytes ? opts->max_message_bytes : DEFAULT_MAX_MESSAGE_BYTES;
    if (max > INT_MAX)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "max_message_bytes is %zu, but gRPC can do no more than %d", max,
                                INT_MAX);
    if (opts->late && opts->tls)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "making a gRPC transport: with TLS it cannot start late");
    struct tether__grpc *transport = tether__calloc(1, sizeof *transport);
    if (!transport)
        return tether_error_set(reterr, TETHER_ENOMEM, "making a gRPC transport: out of memory");

    transport->base.ops = &ops;
    transport->events = opts->events;
    transport->userdata = opts->userdata;
    transport->max_message_bytes = max;
    transport->max_unary_bytes = opts->max_unary_bytes ? opts->max_unary_bytes : max;
    transport->max_plain_calls =
        opts->max_plain_calls ? opts->max_plain_calls : DEFAULT_PLAIN_CALLS;
    transport->max_plain_bytes =
        opts->max_plain_bytes ? opts->max_plain_bytes : 2 * transport->max_unary_bytes;
    transport->patience_ns =
        (opts->connect_timeout_ms > 0 ? opts->connect_timeout_ms : DEFAULT_PATIENCE_MS) *
        TETHER__NS_PER_MS;
    transport->expected_peers = opts->expected_peers;
    transport->late = opts->late;
    tether__list_init(&transport->unanswered);
    tether__list_init(&transport->budget.reading);
    pthread_mutex_init(&transport->mu, NULL);
    tether__grpc_unproved_init(&transport->unproved);
    tether__cond_init(&transport->none_lent);
    for (int i = 0; i < 2; i++)
        side_init(&transport->sides[i], transport, opts->spin_us);

    transport->listen = opts->listen ? tether__strdup(opts->listen) : NULL;
    tether_status st = TETHER_OK;
    if (opts->listen && !transport->listen)
        st = tether_error_set(reterr, TETHER_ENOMEM, "making a gRPC transport: out of memory");
    if (st == TETHER_OK && !opts->late)
        st = start_grpc(transport, opts->tls, reterr);
    if (st != TETHER_OK) {
        destroy(&transport->base);
        return st;
    }
    *ret_transport = &transport->base;
    return TETHER_OK;
}
