/* Calls that others make of us: finding the function, running it in the right place.
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
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "protos/rpc.pb-c.h"
#include "rpc/incoming.h"
#include "rpc/value_internal.h"
#include "rpc/wire.h"

/* ---- Running ---- */

static void run_function(struct tether__incoming *incoming)
{
    const struct tether__function *function = incoming->function;
    struct tether__incoming *outer = tether__current.incoming;
    tether_trace outer_trace = tether__trace;
    tether__current.incoming = incoming;
    tether__trace = incoming->trace;
    tether__current.must_not_block += function->run_inline;
    tether__log(TETHER_LOG_TRACE, "rpc", "%s: '%s' runs for '%s'", incoming->agent->name,
                incoming->function_name, tether__incoming_caller(incoming));
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
        tether__incoming_answer(incoming, st, error.message, value);
        tether_value_release(value);
    }
    tether__current.must_not_block -= function->run_inline;
    tether__current.incoming = outer;
    tether__trace = outer_trace;
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
        tether__incoming_answer(incoming, TETHER_ETIMEOUT,
                                "its time was up before a thread was free for it", NULL);
    else if (tether__incoming_cancelled(incoming))
        tether__incoming_answer(incoming, TETHER_ECANCELED, "canceled before it ran", NULL);
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
    tether__incoming_answer(incoming, st, text, NULL);
}

/* Makes a heap copy and remembers it, so that it can be cancelled and can wait. TETHER_ENOMEM;
 * TETHER_EEXIST: the caller numbers two calls alike. */
static tether_status keep(const struct tether__incoming *on_stack,
                          struct tether__incoming **ret_incoming)
{
    struct tether__incoming *incoming = tether__malloc(sizeof *incoming);
    if (!incoming)
        return TETHER_ENOMEM;
    *incoming = *on_stack;
    incoming->on_heap = true;
    if (incoming->peer) {
        pthread_mutex_lock(&incoming->peer->mu);
        tether_status st = tether__map_put(&incoming->peer->incoming, &incoming->id);
        pthread_mutex_unlock(&incoming->peer->mu);
        if (st != TETHER_OK) {
            tether__free(incoming);
            return st;
        }
        incoming->listed = true;
    }
    atomic_fetch_add(&incoming->agent->running, 1);
    *ret_incoming = incoming;
    return TETHER_OK;
}

static void answer_unkept(struct tether__incoming *on_stack, tether_status status)
{
    tether__incoming_answer(on_stack, status,
                            status == TETHER_EEXIST ? "a call with this number is running already"
                                                    : "no memory to run the call",
                            NULL);
}

/* Whether the function can be run at all: registered, and a method where there is an object. */
static bool can_run(struct tether__incoming *incoming)
{
    const struct tether__function *function = incoming->function;
    char text[256];
    tether_status st = TETHER_OK;
    if (!function) {
        st = TETHER_ENOTFOUND;
        snprintf(text, sizeof text,
                 "no %s named '%.100s' is registered there: check the name, or register it there "
                 "before tether_agent_start()",
                 incoming->object ? "method" : "function", incoming->function_name);
    } else if (function->method && !incoming->object) {
        st = TETHER_EINVAL;
        snprintf(text, sizeof text,
                 "it is a method: call it on a reference, with tether_rref_sync()");
    } else if (incoming->object && !function->method) {
        st = TETHER_EINVAL;
        snprintf(text, sizeof text, "it is not a method: call it with tether_rpc_sync()");
    } else if (function->method && !tether_value_object(incoming->object, function->type)) {
        const tether_type *type = tether_value_type(incoming->object);
        st = TETHER_ETYPE;
        snprintf(text, sizeof text,
                 "the object is of type '%s', not '%s': check which reference you hold",
                 type ? type->name : "bytes", function->type->name);
    }
    if (st != TETHER_OK)
        tether__incoming_answer(incoming, st, text, NULL);
    return st == TETHER_OK;
}

/* Whether nothing is run for this caller at present, whatever it asks. Then it is told. */
static bool turn_away(struct tether__incoming *incoming)
{
    char text[160];
    if (atomic_load(&incoming->agent->leaving) && !incoming->local) {
        tether__incoming_answer(incoming, TETHER_EUNAVAILABLE, "it is leaving the group", NULL);
        return true;
    }
    if (incoming->unread <= incoming->agent->opts.max_bytes_per_peer)
        return false;
    snprintf(text, sizeof text,
             "%zu bytes of replies are still on their way to this caller: wait for some, or raise "
             "max_bytes_per_peer there",
             incoming->unread);
    tether__incoming_answer(incoming, TETHER_EBUSY, text, NULL);
    return true;
}

static void dispatch(struct tether__incoming *incoming)
{
    if (turn_away(incoming))
        return;
    if (!can_run(incoming))
        return;
    if (!incoming->on_heap && incoming->function->run_inline && !incoming->function->async_fn) {
        run_function(incoming);
        return;
    }
    struct tether__incoming *kept = incoming;
    tether_status st = incoming->on_heap ? TETHER_OK : keep(incoming, &kept);
    if (st == TETHER_OK)
        run(kept);
    else
        answer_unkept(incoming, st);
}

static void set_function(struct tether__incoming *incoming, const char *name, size_t len)
{
    size_t kept = len < sizeof incoming->function_name ? len : sizeof incoming->function_name - 1;
    memcpy(incoming->function_name, name, kept);
    incoming->function_name[kept] = '\0';
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
        st = tether__ext_ops->find_target(incoming->agent->ext, incoming->peer,
                                          incoming->session_epoch, &incoming->target,
                                          incoming->owner_incarnation, incoming->deadline,
                                          &incoming->resume, &incoming->object, &error);
    if (st == TETHER_OK) {
        if (incoming->object)
            set_method(incoming);
        dispatch(incoming);
    } else if (st != TETHER_EBUSY) {
        tether__incoming_answer(incoming, st, error.message, NULL);
    }
}

static void resume(struct tether__resume *waiting, tether_status status, const tether_error *error)
{
    struct tether__incoming *incoming =
        tether__container_of(waiting, struct tether__incoming, resume);
    if (status == TETHER_OK && incoming->refusal != TETHER_OK) {
        status = incoming->refusal;
        error = incoming->why_refused;
    }
    if (status == TETHER_OK)
        go_on(incoming);
    else
        tether__incoming_answer(incoming, status,
                                error ? error->message : tether_status_text(status), NULL);
}

/* It will not run, but first its references are settled. */
static void refuse(struct tether__incoming *incoming,
                   tether_status status,
                   const tether_error *error)
{
    incoming->refusal = status;
    incoming->why_refused = tether__malloc(sizeof *error);
    if (incoming->why_refused)
        *incoming->why_refused = *error;
}

/* The argument, or, when it cannot be read, an empty value for the references to ride on: they have
 * come in any case. */
static tether_status read_argument(struct tether__incoming *incoming,
                                   const Tether__Call *call,
                                   struct tether__slice payload)
{
    if (!payload.len && !call->n_ref && !call->type[0])
        return TETHER_OK;
    tether_error error = {0};
    tether_value *arg = NULL;
    tether_status st = tether__value_received(
        payload, tether__registry_find_type(&incoming->agent->registry, call->type), &arg, &error);
    if (st != TETHER_OK && st != TETHER_ENOMEM) {
        refuse(incoming, st, &error);
        st = tether_value_new(tether_bytes_of(NULL, 0), &arg, NULL);
    }
    if (arg)
        incoming->arg = arg;
    return st;
}

/* Forgets a call of which nobody has been told that it came. */
static void forget(struct tether__incoming *incoming)
{
    struct tether__peer *peer = incoming->peer;
    tether__incoming_unlist(incoming);
    tether__free(incoming->why_refused);
    if (incoming->arg != tether__empty_value())
        tether_value_release(incoming->arg);
    tether_agent *agent = incoming->agent;
    tether__free(incoming);
    if (atomic_fetch_sub(&agent->running, 1) == 1)
        tether__agent_tell_idle(agent);
    tether__peer_release(peer);
}

/* A call that carries references, makes an object, or is about one. First all that can fail for
 * want of memory: then it comes again, for a reference must not get lost. */
static tether_status dispatch_with_refs(struct tether__incoming *on_stack,
                                        const Tether__Call *call,
                                        struct tether__slice payload)
{
    struct tether__peer *peer = on_stack->peer;
    void *ext = on_stack->agent->ext;
    struct tether__arrival *arrival = NULL;
    tether_error error = {0};
    if (!ext) {
        tether__incoming_answer(on_stack, TETHER_ENOTSUP,
                                "this worker was built without references (rref/rref.h)", NULL);
        return TETHER_OK;
    }
    on_stack->resume.run = resume;
    struct tether__incoming *incoming;
    tether_status st = keep(on_stack, &incoming);
    if (st == TETHER_ENOMEM) {
        tether__peer_release(peer);
        return st;
    }
    if (st != TETHER_OK) {
        answer_unkept(on_stack, st);
        return TETHER_OK;
    }
    st = read_argument(incoming, call, payload);
    if (st == TETHER_OK && call->n_ref)
        st = tether__ext_ops->take(ext, peer, incoming->session_epoch, call->ref, call->n_ref,
                                   incoming->arg, &arrival);
    if (st == TETHER_OK && call->n_result) {
        st = tether__ext_ops->remote_arrived(ext, peer, incoming->session_epoch, call,
                                             &incoming->result, &error);
        incoming->has_result = st == TETHER_OK;
    }
    if (st == TETHER_ENOMEM) {
        if (arrival)
            tether__ext_ops->untake(arrival);
        forget(incoming);
        return st;
    }
    if (call->target) {
        incoming->has_target = true;
        incoming->target = *call->target;
        incoming->owner_incarnation = call->owner_incarnation;
        if (arrival) /* who calls may let go of it before they are confirmed */
            incoming->held =
                tether__ext_ops->hold_target(ext, call->target, call->owner_incarnation);
    }
    if (st != TETHER_OK && incoming->refusal == TETHER_OK)
        refuse(incoming, st, &error);
    st = arrival ? tether__ext_ops->confirm(arrival, &incoming->resume, &error) : TETHER_OK;
    if (st != TETHER_EBUSY)
        resume(&incoming->resume, st, &error);
    return TETHER_OK;
}

/* An inline function that makes an object out of bytes: it waits for nothing and is not kept. */
static tether_status dispatch_making(struct tether__incoming *incoming,
                                     const Tether__Call *call,
                                     struct tether__slice payload)
{
    tether_error error = {0};
    tether_status st = read_argument(incoming, call, payload);
    if (st == TETHER_OK)
        st = tether__ext_ops->remote_arrived(incoming->agent->ext, incoming->peer,
                                             incoming->session_epoch, call, &incoming->result,
                                             &error);
    if (st == TETHER_ENOMEM) { /* it comes again */
        if (incoming->arg != tether__empty_value())
            tether_value_release(incoming->arg);
        tether__peer_release(incoming->peer);
        return st;
    }
    incoming->has_result = st == TETHER_OK;
    if (st == TETHER_OK)
        dispatch(incoming);
    else
        tether__incoming_answer(incoming, st, error.message, NULL);
    return TETHER_OK;
}

static bool makes_inline(const struct tether__incoming *incoming, const Tether__Call *call)
{
    const struct tether__function *function = incoming->function;
    return incoming->agent->ext && function && function->run_inline && !function->async_fn &&
           call->n_result && !call->n_ref && !call->target && !call->type[0];
}

tether_status tether__dispatch_call(struct tether__peer *peer,
                                    uint64_t epoch,
                                    const struct tether__inbound *message,
                                    size_t unread)
{
    TETHER__ARENA(arena, 512);
    const Tether__Call *call;
    tether_status st = tether__wire_unpack(&tether__call__descriptor, message->header, &arena,
                                           (const void **)&call);
    if (st == TETHER_OK) {
        struct tether__incoming incoming = {
            .id = call->id,
            .agent = peer->agent,
            .peer = tether__peer_retain(peer),
            .session_epoch = epoch,
            .arg = tether__empty_value(),
            .deadline = call->timeout_ms
                            ? tether__deadline_in(peer->agent->clock, (int)call->timeout_ms)
                            : TETHER__NEVER,
            .unread = unread,
        };
        if (call->trace.len == sizeof incoming.trace.bytes)
            memcpy(incoming.trace.bytes, call->trace.data, sizeof incoming.trace.bytes);
        set_function(&incoming, call->function, strlen(call->function));
        if (makes_inline(&incoming, call))
            st = dispatch_making(&incoming, call, message->payload);
        else if (call->n_ref || call->target || call->n_result || call->type[0])
            st = dispatch_with_refs(&incoming, call, message->payload);
        else if (message->payload.len &&
                 tether__value_from_slice(message->payload, &incoming.arg) != TETHER_OK)
            tether__incoming_answer(&incoming, TETHER_ENOMEM, "no memory for the argument", NULL);
        else
            dispatch(&incoming);
    }
    tether__arena_fini(&arena);
    return st;
}

void tether__incoming_cancel_locked(struct tether__peer *peer, uint64_t id)
{
    uint64_t *found = tether__map_get(&peer->incoming, &id);
    if (found)
        atomic_store(&tether__container_of(found, struct tether__incoming, id)->cancelled, true);
}

void tether__dispatch_cancel(struct tether__peer *peer, const struct tether__inbound *message)
{
    TETHER__ARENA(arena, 64);
    const Tether__Cancel *cancel;
    if (tether__wire_unpack(&tether__cancel__descriptor, message->header, &arena,
                            (const void **)&cancel) == TETHER_OK) {
        pthread_mutex_lock(&peer->mu);
        tether__incoming_cancel_locked(peer, cancel->id);
        tether__reply_withdraw_locked(peer, cancel->id);
        pthread_mutex_unlock(&peer->mu);
    }
    tether__arena_fini(&arena);
}

void tether__incoming_cancel_all_locked(struct tether__peer *peer)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (uint64_t *id; (id = tether__map_next(&peer->incoming, &it));) {
        struct tether__incoming *incoming = tether__container_of(id, struct tether__incoming, id);
        atomic_store(&incoming->cancelled, true);
        incoming->listed = false; /* the next session may use the number again */
        tether__map_del(&peer->incoming, id);
    }
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
        .arg = arg ? tether_value_retain((tether_value *)arg) : tether__empty_value(),
        .object = tether_value_retain(target ? target->local_object : NULL),
        .deadline = call->deadline,
        .trace = call->trace,
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
    struct tether__incoming *kept;
    tether_status st = keep(&incoming, &kept);
    if (st == TETHER_OK)
        go_on(kept);
    else
        answer_unkept(&incoming, st);
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

/* Who only speaks gRPC has no name but those in its certificate. */
static bool may_call(const tether_agent *agent, const struct tether__unary *unary)
{
    if (!agent->opts.allowed_peers)
        return true;
    for (const char *const *name = unary->cert_names; name && *name; name++)
        if (tether__name_is_allowed(agent, *name))
            return true;
    return false;
}

void tether__dispatch_unary(tether_agent *agent, struct tether__unary *unary)
{
    struct tether__incoming incoming = {
        .agent = agent,
        .unary = unary,
        .arg = tether__empty_value(),
        .deadline = unary->deadline,
        .trace = unary->trace,
    };
    set_function(&incoming, unary->function.data, unary->function.len);
    if (!token_fits(agent, unary->token))
        tether__incoming_answer(&incoming, TETHER_EAUTH, "this group has a token: send it along",
                                NULL);
    else if (!may_call(agent, unary))
        tether__incoming_answer(&incoming, TETHER_EPERM,
                                "none of the names in your certificate is among the allowed_peers",
                                NULL);
    else if (atomic_load(&agent->state) >= TETHER__AGENT_STOPPING)
        tether__incoming_answer(&incoming, TETHER_ESHUTDOWN, "this worker is not serving", NULL);
    else if (unary->payload.len &&
             tether__value_from_slice(unary->payload, &incoming.arg) != TETHER_OK)
        tether__incoming_answer(&incoming, TETHER_ENOMEM, "no memory for the argument", NULL);
    else
        dispatch(&incoming);
}
