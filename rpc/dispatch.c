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
    struct tether__call *local;              /* the call itself, when it is our own */
    const struct tether__function *function; /* NULL: nobody registered it */
    char function_name[TETHER__MAX_FUNCTION_NAME + 1];
    tether_value *arg;    /* never NULL */
    tether_value *object; /* that a method is given; NULL: none */
    int64_t deadline;
    bool on_heap;
    bool has_result, has_target;
    Tether__RefId result, target; /* remote(), method call */
    uint64_t owner_incarnation;
    struct tether__resume resume; /* goes on when the references are confirmed */
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

/* ---- Answering ---- */

/* The reply itself: `value` is what goes out, with its references forked for the peer. */
static tether_status send_reply_locked(struct tether__peer *peer,
                                       Tether__Reply *reply,
                                       tether_value *value,
                                       tether_error *reterr)
{
    struct tether__packed packed;
    struct tether__ref_pack pack = {0};
    void *ext = peer->agent->ext;
    if (tether__value_n_riders(value)) {
        tether_status st = tether__ext_ops->pack_locked(ext, peer, value, true, &pack, reterr);
        if (st != TETHER_OK)
            return st;
        reply->n_ref = pack.n;
        reply->ref = pack.refs;
    }
    tether_status st = tether__pack(&packed, &reply->base);
    if (st == TETHER_OK) {
        st = tether__link_send_locked(&peer->in, TETHER__FRAME_REPLY, packed.bytes,
                                      tether__value_slice(value), NULL);
        tether__packed_fini(&packed);
    }
    if (pack.n && st != TETHER_OK)
        tether__ext_ops->undo_locked(ext, peer, &pack);
    else if (pack.n)
        tether__ext_ops->pack_fini(&pack);
    reply->n_ref = 0;
    reply->ref = NULL;
    return st;
}

void tether__reply_to(struct tether__peer *peer,
                      uint64_t session_epoch,
                      uint64_t id,
                      tether_status status,
                      const char *error,
                      tether_value *value)
{
    tether_error why = {0};
    tether_value *sent = NULL;
    if (status == TETHER_OK) {
        status = tether__value_to_send(value, &sent, &why);
        error = why.message;
    }
    Tether__Reply reply = TETHER__REPLY__INIT;
    reply.id = id;
    reply.status = status;
    if (status != TETHER_OK)
        reply.error = (char *)error;
    else if (value && value->type)
        reply.type = (char *)value->type->name;

    pthread_mutex_lock(&peer->mu);
    if (peer->session_epoch == session_epoch) {
        tether_status st = send_reply_locked(peer, &reply, sent, &why);
        if (st != TETHER_OK && status == TETHER_OK) { /* say at least why there is no result */
            char text[160];
            snprintf(text, sizeof text, "the result of %zu bytes cannot be sent: %s",
                     tether_value_bytes(sent).len, tether_status_text(st));
            reply.status = st;
            reply.error = text;
            reply.type = "";
            send_reply_locked(peer, &reply, NULL, NULL);
        }
    }
    pthread_mutex_unlock(&peer->mu);
    tether_value_release(sent);
}

static void answer_lane(struct tether__incoming *incoming,
                        tether_status status,
                        const char *error,
                        tether_value *value)
{
    struct tether__peer *peer = incoming->peer;
    if (incoming->on_heap) {
        pthread_mutex_lock(&peer->mu);
        tether__map_del(&peer->incoming, &incoming->id);
        pthread_mutex_unlock(&peer->mu);
    }
    tether__reply_to(peer, incoming->session_epoch, incoming->id, status, error, value);
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
        tether_error_set(&error, status, "worker '%s', function '%s': %s", peer->name,
                         incoming->function_name, text);
    tether__call_finish(call, status, &error, value);
}

/* Sends the answer and gives the incoming call back. `value` is borrowed. */
static void answer(struct tether__incoming *incoming,
                   tether_status status,
                   const char *error,
                   tether_value *value)
{
    tether__metrics_served(&incoming->agent->metrics, status);
    if (incoming->has_result) { /* the object stays here; the caller hears only how it went */
        tether__ext_ops->remote_done(incoming->agent->ext, &incoming->result, status, error, value);
        value = NULL;
    }
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
    tether_value_release(incoming->object);
    if (incoming->on_heap) {
        tether_agent *agent = incoming->agent;
        tether__free(incoming);
        if (atomic_fetch_sub(&agent->running, 1) == 1)
            tether__agent_tell_idle(agent);
    }
}

/* ---- Running ---- */

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
        tether_status st =
            function->method
                ? function->method(function->userdata,
                                   tether_value_object(incoming->object, function->type),
                                   incoming->arg, &value, &error)
                : function->fn(function->userdata, incoming->arg, &value, &error);
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

/* Makes a heap copy and remembers it, so that it can be cancelled and can wait. NULL: no memory. */
static struct tether__incoming *keep(const struct tether__incoming *on_stack)
{
    struct tether__incoming *incoming = tether__malloc(sizeof *incoming);
    if (!incoming)
        return NULL;
    *incoming = *on_stack;
    incoming->on_heap = true;
    if (incoming->peer) {
        pthread_mutex_lock(&incoming->peer->mu);
        tether_status st = tether__map_put(&incoming->peer->incoming, &incoming->id);
        pthread_mutex_unlock(&incoming->peer->mu);
        if (st != TETHER_OK)
            return tether__free(incoming);
    }
    atomic_fetch_add(&incoming->agent->running, 1);
    return incoming;
}

/* Whether the function can be run at all: registered, and a method where there is an object. */
static bool can_run(struct tether__incoming *incoming)
{
    const struct tether__function *function = incoming->function;
    char text[200];
    tether_status st = TETHER_OK;
    if (!function) {
        st = TETHER_ENOTFOUND;
        snprintf(text, sizeof text, "no %s named '%.100s' is registered there",
                 incoming->object ? "method" : "function", incoming->function_name);
    } else if (function->method && !incoming->object) {
        st = TETHER_EINVAL;
        snprintf(text, sizeof text, "it is a method: call it on a reference");
    } else if (incoming->object && !function->method) {
        st = TETHER_EINVAL;
        snprintf(text, sizeof text, "it is not a method");
    } else if (function->method && !tether_value_object(incoming->object, function->type)) {
        const tether_type *type = tether_value_type(incoming->object);
        st = TETHER_ETYPE;
        snprintf(text, sizeof text, "the object is of type '%s', not '%s'",
                 type ? type->name : "bytes", function->type->name);
    }
    if (st != TETHER_OK)
        answer(incoming, st, text, NULL);
    return st == TETHER_OK;
}

static void dispatch(struct tether__incoming *incoming)
{
    if (atomic_load(&incoming->agent->leaving) && !incoming->local) {
        answer(incoming, TETHER_EUNAVAILABLE, "it is leaving the group", NULL);
        return;
    }
    if (!can_run(incoming))
        return;
    if (!incoming->on_heap && incoming->function->run_inline && !incoming->function->async_fn) {
        run_function(incoming);
        return;
    }
    struct tether__incoming *kept = incoming->on_heap ? incoming : keep(incoming);
    if (kept)
        run(kept);
    else
        answer(incoming, TETHER_ENOMEM, "no memory to run the call", NULL);
}

static void set_function(struct tether__incoming *incoming, const char *name, size_t len)
{
    snprintf(incoming->function_name, sizeof incoming->function_name, "%.*s", (int)len, name);
    incoming->function =
        tether__registry_find(&incoming->agent->registry, tether_bytes_of(name, len));
}

/* ---- Where calls come from ---- */

/* A method is registered under its type's name, which only the owner of the object knows for sure.
 */
static void set_method(struct tether__incoming *incoming)
{
    char name[TETHER__MAX_FUNCTION_NAME + 1];
    const tether_type *type = tether_value_type(incoming->object);
    int len =
        snprintf(name, sizeof name, "%s.%s", type ? type->name : "bytes", incoming->function_name);
    set_function(incoming, name, (size_t)len < sizeof name ? (size_t)len : sizeof name - 1);
}

/* Its references are confirmed: now the object, then the function. */
static void go_on(struct tether__incoming *incoming)
{
    tether_error error = {0};
    tether_status st = TETHER_OK;
    if (incoming->has_target && !incoming->object)
        st = tether__ext_ops->find_target(incoming->agent->ext, incoming->peer, &incoming->target,
                                          incoming->owner_incarnation, incoming->deadline,
                                          &incoming->resume, &incoming->object, &error);
    if (st == TETHER_OK) {
        if (incoming->object)
            set_method(incoming);
        dispatch(incoming);
    } else if (st != TETHER_EBUSY) {
        answer(incoming, st, error.message, NULL);
    }
}

static void resume(struct tether__resume *waiting, tether_status status, const tether_error *error)
{
    struct tether__incoming *incoming =
        tether__container_of(waiting, struct tether__incoming, resume);
    if (status == TETHER_OK)
        go_on(incoming);
    else
        answer(incoming, status, error ? error->message : tether_status_text(status), NULL);
}

/* A call that carries references, makes an object, or is about one. */
static void dispatch_with_refs(struct tether__incoming *on_stack,
                               const Tether__Call *call,
                               struct tether__slice payload)
{
    tether_agent *agent = on_stack->agent;
    struct tether__peer *peer = on_stack->peer;
    tether_error error = {0};
    tether_value *arg = NULL;
    tether_status st =
        agent->ext ? TETHER_OK
                   : tether_error_set(&error, TETHER_ENOTSUP,
                                      "this worker was built without references (rref/rref.h)");
    if (st == TETHER_OK && call->result && call->result_fork)
        st = tether__ext_ops->remote_arrived(agent->ext, peer, call, &error);
    if (st == TETHER_OK && call->result) {
        on_stack->has_result = true;
        on_stack->result = *call->result;
    }
    if (st == TETHER_OK && call->target) {
        on_stack->has_target = true;
        on_stack->target = *call->target;
        on_stack->owner_incarnation = call->owner_incarnation;
    }
    on_stack->resume.run = resume;
    struct tether__incoming *incoming = keep(on_stack);
    if (!incoming) {
        answer(on_stack, TETHER_ENOMEM, "no memory to run the call", NULL);
        return;
    }
    if (st == TETHER_OK && (payload.len || call->n_ref || call->type[0]))
        st = tether__value_received(
            payload, tether__registry_find_type(&agent->registry, call->type), &arg, &error);
    if (arg)
        incoming->arg = arg;
    if (st == TETHER_OK && call->n_ref)
        st = tether__ext_ops->arrived(agent->ext, peer, call->ref, call->n_ref, false, arg,
                                      &incoming->resume, &error);
    if (st == TETHER_OK)
        go_on(incoming);
    else if (st != TETHER_EBUSY)
        answer(incoming, st, error.message, NULL);
}

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
        set_function(&incoming, call->function, strlen(call->function));
        if (call->n_ref || call->target || call->result || call->type[0])
            dispatch_with_refs(&incoming, call, message->payload);
        else if (message->payload.len &&
                 tether__value_from_slice(message->payload, &incoming.arg) != TETHER_OK)
            answer(&incoming, TETHER_ENOMEM, "no memory for the argument", NULL);
        else
            dispatch(&incoming);
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
                            const struct tether__call_target *target,
                            const tether_value *arg)
{
    struct tether__incoming incoming = {
        .id = call->id,
        .agent = call->agent,
        .peer = tether__peer_retain(call->peer),
        .local = call,
        .arg = arg ? tether_value_retain((tether_value *)arg) : empty_value(),
        .object = tether_value_retain(target ? target->local_object : NULL),
        .deadline = call->deadline,
        .resume = {resume},
    };
    set_function(&incoming, call->function, strlen(call->function));
    if (!target || !target->target || incoming.object) {
        if (incoming.object)
            set_method(&incoming);
        dispatch(&incoming);
        return;
    }
    incoming.has_target = true; /* the object is still being made */
    incoming.target = *target->target;
    struct tether__incoming *kept = keep(&incoming);
    if (kept)
        go_on(kept);
    else
        answer(&incoming, TETHER_ENOMEM, "no memory to run the call", NULL);
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
    set_function(&incoming, unary->function.data, unary->function.len);
    if (!token_fits(agent, unary->token))
        answer(&incoming, TETHER_EAUTH, "this group has a token: send it along", NULL);
    else if (atomic_load(&agent->state) >= TETHER__AGENT_STOPPING)
        answer(&incoming, TETHER_ESHUTDOWN, "this worker is not serving", NULL);
    else if (unary->payload.len &&
             tether__value_from_slice(unary->payload, &incoming.arg) != TETHER_OK)
        answer(&incoming, TETHER_ENOMEM, "no memory for the argument", NULL);
    else
        dispatch(&incoming);
}

/* ---- What the running function can see ---- */

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
