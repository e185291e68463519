/* Calls that others make of us: finding the function, running it in the right place, answering.
 *
 * Happy path: an inline function runs here and now, on the thread that received the call, without
 * an allocation of its own; a pooled one gets an *incoming* object and goes to the pool; an
 * asynchronous one keeps the incoming object as its reply handle.
 *
 * A call comes from a lane, from a client that speaks only gRPC (unary), or from this worker itself
 * (local); they differ only in how the answer goes back.
 *
 * Failure modes: unknown function, full pool, deadline passed before it ran: the caller gets an
 * error, the function is not run. A caller that was fenced gets no answer; the function can see
 * that it was cancelled.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent_internal.h"
#include "rpc/packed.h"
#include "rpc/value_internal.h"
#include "rpc/wire.h"

struct tether__incoming {
    /* immutable */
    uint64_t id; /* the key of peer->incoming */
    tether_agent *agent;
    struct tether__peer *peer; /* retained; NULL for a unary call */
    uint64_t session_epoch;    /* of the session that it came in */
    struct tether__unary *unary;
    struct tether__call *local; /* the call itself, when it is our own */
    const struct tether__function *function;
    tether_value *arg; /* never NULL */
    int64_t deadline;
    bool on_heap;
    /* any thread */
    _Atomic bool cancelled;
    struct tether__task task;
};

/* The public handle is the incoming call itself. */
struct tether_reply {
    struct tether__incoming incoming;
};

/* What a function is given when its caller sent nothing. Never freed. */
static tether_value *empty_value(void)
{
    static char nothing[1];
    static tether_value empty = {
        .refs = UINT32_MAX / 2,
        .data = (const uint8_t *)nothing,
        .text = nothing,
    };
    return &empty;
}

/* ---- Answering
 * ------------------------------------------------------------------------------------------ */

static void answer_lane(struct tether__incoming *incoming,
                        tether_status status,
                        const char *error,
                        tether_value *value)
{
    struct tether__peer *peer = incoming->peer;
    struct tether__packed packed;
    Tether__Reply reply = TETHER__REPLY__INIT;
    reply.id = incoming->id;
    reply.status = status;
    if (status != TETHER_OK)
        reply.error = (char *)error;
    bool packed_ok = tether__pack(&packed, &reply.base) == TETHER_OK;

    pthread_mutex_lock(&peer->mu);
    if (incoming->on_heap)
        tether__map_del(&peer->incoming, &incoming->id);
    if (packed_ok && peer->session_epoch == incoming->session_epoch) {
        tether_status st = tether__link_send_locked(&peer->in, TETHER__FRAME_REPLY, packed.bytes,
                                                    tether__value_slice(value), NULL);
        if (st != TETHER_OK && status == TETHER_OK) { /* say at least why there is no result */
            struct tether__packed excuse;
            char text[160];
            snprintf(text, sizeof text, "the result of %zu bytes cannot be sent: %s",
                     tether_value_bytes(value).len, tether_status_text(st));
            reply.status = st;
            reply.error = text;
            if (tether__pack(&excuse, &reply.base) == TETHER_OK) {
                tether__link_send_locked(&peer->in, TETHER__FRAME_REPLY, excuse.bytes,
                                         TETHER__SLICE_EMPTY, NULL);
                tether__packed_fini(&excuse);
            }
        }
    }
    pthread_mutex_unlock(&peer->mu);
    if (packed_ok)
        tether__packed_fini(&packed);
}

static void answer_local(struct tether__incoming *incoming,
                         tether_status status,
                         const char *text,
                         tether_value *value)
{
    struct tether__peer *peer = incoming->peer;
    pthread_mutex_lock(&peer->mu);
    tether__map_del(&peer->incoming, &incoming->id);
    struct tether__call *call = tether__call_take_locked(peer, incoming->id);
    pthread_mutex_unlock(&peer->mu);
    if (!call)
        return; /* it has timed out or was cancelled */
    tether_error error;
    if (status != TETHER_OK)
        tether_error_set(&error, status, "worker '%s', function '%.*s': %s", peer->name,
                         (int)incoming->function->name.len,
                         (const char *)incoming->function->name.data, text);
    tether__call_finish(call, status, &error, value);
}

/* Sends the answer and gives the incoming call back. `value` is borrowed. */
static void answer(struct tether__incoming *incoming,
                   tether_status status,
                   const char *error,
                   tether_value *value)
{
    if (incoming->unary)
        incoming->unary->transport->ops->unary_reply(
            incoming->unary, status, error,
            tether__slice_retain(tether__value_slice(status == TETHER_OK ? value : NULL)));
    else if (incoming->local)
        answer_local(incoming, status, error, value);
    else
        answer_lane(incoming, status, error, status == TETHER_OK ? value : NULL);
    if (incoming->peer)
        tether__peer_release(incoming->peer);
    if (incoming->arg != empty_value())
        tether_value_release(incoming->arg);
    if (incoming->on_heap) {
        tether_agent *agent = incoming->agent;
        tether__free(incoming);
        if (atomic_fetch_sub(&agent->running, 1) == 1)
            tether__agent_tell_idle(agent);
    }
}

/* ---- Running
 * ---------------------------------------------------------------------------------------------- */

static void run_function(struct tether__incoming *incoming)
{
    const struct tether__function *function = incoming->function;
    struct tether__incoming *outer = tether__current.incoming;
    tether__current.incoming = incoming;
    tether__current.must_not_block += function->run_inline;
    if (function->async_fn) {
        function->async_fn(function->userdata, incoming->arg, (tether_reply *)incoming);
        /* `incoming` may be gone */
    } else {
        tether_value *value = NULL;
        tether_error error = {0};
        tether_status st = function->fn(function->userdata, incoming->arg, &value, &error);
        if (st != TETHER_OK && error.code == TETHER_OK)
            snprintf(error.message, sizeof error.message, "%s", tether_status_text(st));
        tether__current.incoming = NULL;
        answer(incoming, st, error.message, value);
        tether_value_release(value);
    }
    tether__current.must_not_block -= function->run_inline;
    tether__current.incoming = outer;
}

static bool is_late(const struct tether__incoming *incoming)
{
    return incoming->deadline != TETHER__NEVER &&
           tether__clock_now_ns(incoming->agent->clock) >= incoming->deadline;
}

static void run_pooled(struct tether__task *task)
{
    struct tether__incoming *incoming = tether__container_of(task, struct tether__incoming, task);
    if (is_late(incoming))
        answer(incoming, TETHER_ETIMEOUT, "its time was up before a thread was free for it", NULL);
    else if (tether__incoming_cancelled(incoming))
        answer(incoming, TETHER_ECANCELED, "canceled before it ran", NULL);
    else
        run_function(incoming);
}

/* Runs `incoming` where its function wants to run. Takes it over. */
static void run(struct tether__incoming *incoming)
{
    if (incoming->function->run_inline) {
        run_function(incoming);
        return;
    }
    incoming->task.run = run_pooled;
    tether_status st =
        tether__agent_submit(incoming->agent, &incoming->agent->pool, &incoming->task);
    if (st == TETHER_OK)
        return;
    char text[128];
    snprintf(text, sizeof text,
             st == TETHER_EBUSY ? "all %d threads are busy and the queue is full: try later"
                                : "this worker of %d threads is shutting down",
             incoming->agent->opts.threads);
    answer(incoming, st, text, NULL);
}

/* Makes a heap copy and remembers it, so that it can be cancelled. False: no memory. */
static bool keep(struct tether__incoming *on_stack)
{
    struct tether__incoming *incoming = tether__malloc(sizeof *incoming);
    if (!incoming)
        return false;
    *incoming = *on_stack;
    incoming->on_heap = true;
    atomic_fetch_add(&incoming->agent->running, 1);
    if (incoming->peer) {
        pthread_mutex_lock(&incoming->peer->mu);
        tether_status st = tether__map_put(&incoming->peer->incoming, &incoming->id);
        pthread_mutex_unlock(&incoming->peer->mu);
        if (st != TETHER_OK) {
            atomic_fetch_sub(&incoming->agent->running, 1);
            tether__free(incoming);
            return false;
        }
    }
    run(incoming);
    return true;
}

static void dispatch(struct tether__incoming *incoming)
{
    bool stays = !incoming->function->run_inline || incoming->function->async_fn;
    if (!stays)
        run_function(incoming);
    else if (!keep(incoming))
        answer(incoming, TETHER_ENOMEM, "no memory to run the call", NULL);
}

static void unknown_function(struct tether__incoming *incoming, const char *name, size_t len)
{
    char text[160];
    static const struct tether__function none;
    snprintf(text, sizeof text, "no function named '%.*s' is registered there",
             (int)(len > 80 ? 80 : len), name);
    incoming->function = &none;
    answer(incoming, TETHER_ENOTFOUND, text, NULL);
}

static void dispatch_by_name(struct tether__incoming *incoming, const char *name, size_t len)
{
    incoming->function =
        tether__registry_find(&incoming->agent->registry, tether_bytes_of(name, len));
    if (incoming->function)
        dispatch(incoming);
    else
        unknown_function(incoming, name, len);
}

/* ---- Where calls come from
 * -------------------------------------------------------------------------------- */

void tether__dispatch_call(struct tether__peer *peer, const struct tether__inbound *message)
{
    TETHER__ARENA(arena, 512);
    const Tether__Call *call;
    if (tether__wire_unpack(&tether__call__descriptor, message->header, &arena,
                            (const void **)&call) == TETHER_OK) {
        struct tether__incoming incoming = {
            .id = call->id,
            .agent = peer->agent,
            .peer = tether__peer_retain(peer),
            .session_epoch = atomic_load(&peer->session_epoch),
            .arg = empty_value(),
            .deadline = call->timeout_ms
                            ? tether__deadline_in(peer->agent->clock, (int)call->timeout_ms)
                            : TETHER__NEVER,
        };
        if (message->payload.len &&
            tether__value_from_slice(message->payload, &incoming.arg) != TETHER_OK)
            answer(&incoming, TETHER_ENOMEM, "no memory for the argument", NULL);
        else
            dispatch_by_name(&incoming, call->function, strlen(call->function));
    }
    tether__arena_fini(&arena);
}

void tether__dispatch_cancel(struct tether__peer *peer, const struct tether__inbound *message)
{
    TETHER__ARENA(arena, 64);
    const Tether__Cancel *cancel;
    if (tether__wire_unpack(&tether__cancel__descriptor, message->header, &arena,
                            (const void **)&cancel) == TETHER_OK) {
        pthread_mutex_lock(&peer->mu);
        uint64_t id = cancel->id;
        uint64_t *found = tether__map_get(&peer->incoming, &id);
        if (found)
            atomic_store(&tether__container_of(found, struct tether__incoming, id)->cancelled,
                         true);
        pthread_mutex_unlock(&peer->mu);
    }
    tether__arena_fini(&arena);
}

void tether__incoming_cancel_all_locked(struct tether__peer *peer)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (uint64_t *id; (id = tether__map_next(&peer->incoming, &it));)
        atomic_store(&tether__container_of(id, struct tether__incoming, id)->cancelled, true);
}

void tether__dispatch_local(struct tether__call *call,
                            const struct tether__function *function,
                            const tether_value *arg)
{
    static const struct tether__function none;
    struct tether__incoming incoming = {
        .id = call->id,
        .agent = call->agent,
        .peer = tether__peer_retain(call->peer),
        .session_epoch = 0,
        .local = call,
        .function = function ? function : &none,
        .arg = arg ? tether_value_retain((tether_value *)arg) : empty_value(),
        .deadline = call->deadline,
    };
    if (function)
        dispatch(&incoming);
    else
        unknown_function(&incoming, call->function, strlen(call->function));
}

static bool token_fits(const tether_agent *agent, tether_bytes token)
{
    const char *want = agent->opts.token;
    if (!want)
        return true;
    unsigned char differs = strlen(want) != token.len;
    for (size_t i = 0; i < token.len && want[i]; i++)
        differs |= (unsigned char)(want[i] ^ ((const char *)token.data)[i]);
    return !differs;
}

void tether__dispatch_unary(tether_agent *agent, struct tether__unary *unary)
{
    struct tether__incoming incoming = {
        .agent = agent,
        .unary = unary,
        .arg = empty_value(),
        .deadline = unary->deadline,
    };
    if (!token_fits(agent, unary->token))
        answer(&incoming, TETHER_EAUTH, "this group has a token: send it along", NULL);
    else if (atomic_load(&agent->state) != TETHER__AGENT_RUNNING)
        answer(&incoming, TETHER_ESHUTDOWN, "this worker is not serving", NULL);
    else if (unary->payload.len &&
             tether__value_from_slice(unary->payload, &incoming.arg) != TETHER_OK)
        answer(&incoming, TETHER_ENOMEM, "no memory for the argument", NULL);
    else
        dispatch_by_name(&incoming, unary->function.data, unary->function.len);
}

/* ---- What the running function can see
 * ---------------------------------------------------------------------- */

const char *tether__incoming_caller(const struct tether__incoming *incoming)
{
    return incoming->unary ? incoming->unary->peer : incoming->peer->name;
}

int64_t tether__incoming_deadline(const struct tether__incoming *incoming)
{
    return incoming->deadline;
}

bool tether__incoming_cancelled(const struct tether__incoming *incoming)
{
    return atomic_load(&incoming->cancelled) ||
           (incoming->unary && atomic_load(&incoming->unary->canceled));
}

const char *tether_caller_name(void)
{
    return tether__current.incoming ? tether__incoming_caller(tether__current.incoming) : NULL;
}

int tether_caller_time_left_ms(void)
{
    struct tether__incoming *incoming = tether__current.incoming;
    return incoming ? tether__deadline_left_ms(incoming->agent->clock, incoming->deadline) : -1;
}

bool tether_caller_has_cancelled(void)
{
    return tether__current.incoming && tether__incoming_cancelled(tether__current.incoming);
}

void tether_reply_ok(tether_reply *reply, tether_value *value)
{
    answer(&reply->incoming, TETHER_OK, "", value);
}

void tether_reply_error(tether_reply *reply, tether_status status, const char *format, ...)
{
    char text[TETHER_ERROR_MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    answer(&reply->incoming, status == TETHER_OK ? TETHER_EREMOTE : status, text, NULL);
}

bool tether_reply_is_cancelled(const tether_reply *reply)
{
    return tether__incoming_cancelled(&reply->incoming);
}
