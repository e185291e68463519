/* Runs the calls of others: finds the function, and a thread for it.
 *
 * Happy path: an inline function runs at once, on the thread that received the call, and its call
 * is on that thread's stack. For a pooled function the call is *kept*: it is copied to the heap,
 * added to session->incoming, and queued for a thread of the pool. For an asynchronous function the
 * kept call is the reply handle.
 *
 * Failure modes: if the function is unknown, the pool is full, or the deadline passes before a
 * thread is free, the function is not run and the caller gets an error. A caller that was fenced
 * gets no reply; its function sees that the call was cancelled.
 *
 * Lock rule: peer->mu guards session->incoming, and is not held while a function runs.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/threads/life.h"
#include "base/threads/state.h"
#include "rpc/agent/internal.h"
#include "rpc/group/group.h"
#include "rpc/peer/calls/progress.h"
#include "rpc/peer/limits.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/serve/incoming.h"
#include "rpc/serve/serve.h"
#include "rpc/wire/value_internal.h"

/* ---- The function ---- */

void tether__incoming_set_function(struct tether__incoming *incoming, const char *name, size_t len)
{
    size_t n = len < sizeof incoming->function_name ? len : sizeof incoming->function_name - 1;
    memcpy(incoming->function_name, name, n);
    incoming->function_name[n] = '\0';
    incoming->function =
        tether__registry_find(&incoming->agent->registry, tether_bytes_of(name, len));
}

void tether__incoming_set_method(struct tether__incoming *incoming)
{
    char name[TETHER__MAX_FUNCTION_NAME + 1];
    const tether_type *type = tether_value_type(incoming->object);
    int len =
        snprintf(name, sizeof name, "%s.%s", type ? type->name : "bytes", incoming->function_name);
    tether__incoming_set_function(incoming, name,
                                  (size_t)len < sizeof name ? (size_t)len : sizeof name - 1);
}

/* Whether the function can be run: it is registered, and it is a method exactly if the call is
 * about an object. If not, answers the call. */
static bool can_run(struct tether__incoming *incoming)
{
    const struct tether__function *function = incoming->function;
    tether_error why;
    tether_status st = TETHER_OK;
    if (!function) {
        st = tether_error_set(
            &why, TETHER_ENOTFOUND,
            "no %s named '%.100s' is registered there: check the name, or register it there "
            "before tether_agent_start()",
            incoming->object ? "method" : "function", incoming->function_name);
    } else if (function->method && !incoming->object) {
        st = tether_error_set(&why, TETHER_EINVAL,
                              "it is a method: call it on a reference, with tether_rref_sync()");
    } else if (incoming->object && !function->method) {
        st = tether_error_set(&why, TETHER_EINVAL,
                              "it is not a method: call it with tether_rpc_sync()");
    } else if (function->method && !tether_value_object(incoming->object, function->type)) {
        const tether_type *type = tether_value_type(incoming->object);
        st =
            tether_error_set(&why, TETHER_ETYPE,
                             "the object is of type '%s', not '%s': check which reference you hold",
                             type ? type->name : "bytes", function->type->name);
    }
    if (st != TETHER_OK)
        tether__incoming_answer(incoming, st, why.message, NULL);
    return st == TETHER_OK;
}

/* Refuses a call of another worker while this worker leaves, and a call whose caller has too many
 * unacknowledged replies. True: the call has been answered with the refusal. */
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

/* ---- Kept calls ---- */

/* Whether one more call of the peer, with an argument of `len` bytes, may be kept. While none is
 * kept, an argument of any size may. */
static bool has_room_locked(const struct tether__session *session, size_t len)
{
    const tether_agent *agent = session->peer->agent;
    size_t present = session->held_bytes, most = tether__max_held_bytes(agent);
    return tether__map_count(&session->incoming) < tether__max_held_calls(agent) &&
           (present == 0 || (present <= most && len <= most - present));
}

tether_status tether__incoming_keep(const struct tether__incoming *on_stack,
                                    bool has_refs,
                                    struct tether__incoming **ret_incoming)
{
    struct tether__incoming *incoming = tether__malloc(sizeof *incoming);
    if (!incoming)
        return TETHER_ENOMEM;
    *incoming = *on_stack;
    incoming->on_heap = true;
    atomic_init(&incoming->refs, 1);
    if (incoming->peer) {
        struct tether__session *session = incoming->session;
        tether__peer_lock(incoming->peer);
        bool has_room =
            has_refs || incoming->local || has_room_locked(session, incoming->held_bytes);
        tether_status st = has_room ? TETHER_OK : TETHER_EBUSY;
        bool ended = atomic_load(&session->ended);
        if (has_room && !ended)
            st = tether__map_put(&session->incoming, &incoming->id);
        incoming->listed = st == TETHER_OK && !ended;
        if (incoming->listed)
            session->held_bytes += incoming->held_bytes;
        tether__peer_unlock(incoming->peer);
        if (st != TETHER_OK) {
            tether__free(incoming);
            return st;
        }
    }
    atomic_fetch_add(&incoming->agent->running, 1);
    *ret_incoming = incoming;
    return TETHER_OK;
}

void tether__incoming_answer_unkept(struct tether__incoming *on_stack, tether_status status)
{
    const char *why = "no memory to run the call";
    if (status == TETHER_EEXIST)
        why = "a call with this number is running already";
    else if (status == TETHER_EBUSY)
        why =
            "too many calls of this caller, or too many bytes in their arguments, have not "
            "finished there: wait for some, or raise max_calls_per_peer or max_bytes_per_peer "
            "there";
    tether__incoming_answer(on_stack, status, why, NULL);
}

void tether__incoming_forget(struct tether__incoming *incoming)
{
    struct tether__session *session = incoming->session;
    tether__incoming_unlist(incoming);
    tether__free(incoming->why_refused);
    if (incoming->arg != tether__empty_value())
        tether_value_release(incoming->arg);
    tether_agent *agent = incoming->agent;
    tether__free(incoming);
    if (atomic_fetch_sub(&agent->running, 1) == 1)
        tether__condition_notify(&agent->idle);
    tether__session_release(session);
}

void tether__incoming_cancel_locked(struct tether__session *session, uint64_t id)
{
    uint64_t *found = tether__map_get(&session->incoming, &id);
    if (found)
        atomic_store(&tether__container_of(found, struct tether__incoming, id)->cancelled, true);
}

enum tether__call_state tether__incoming_state_locked(const struct tether__session *session,
                                                      uint64_t id)
{
    uint64_t *found = tether__map_get(&session->incoming, &id);
    if (!found)
        return TETHER__CALL_NOT_HERE;
    const struct tether__incoming *incoming =
        tether__container_of(found, struct tether__incoming, id);
    if (atomic_load_explicit(&incoming->runs, memory_order_relaxed))
        return TETHER__CALL_RUNS;
    return incoming->waits ? TETHER__CALL_WAITS : TETHER__CALL_QUEUED;
}

/* ---- Running ---- */

static void run_function(struct tether__incoming *incoming)
{
    const struct tether__function *function = incoming->function;
    struct tether__incoming *outer = tether__thread_state.incoming;
    tether_trace outer_trace = tether__trace;
    tether__thread_state.incoming = incoming;
    tether__trace = incoming->trace;
    atomic_store_explicit(&incoming->runs, true, memory_order_relaxed);
    tether__thread_state.must_not_block += function->run_inline;
    tether__log(TETHER_LOG_TRACE, "rpc", "%s: '%s' runs for '%s'", incoming->agent->name,
                incoming->function_name, tether__incoming_caller(incoming));
    if (function->async_fn) {
        atomic_fetch_add_explicit(&incoming->refs, 1, memory_order_relaxed);
        incoming->keeps_agent = true;
        tether__life_retain(&incoming->agent->life);
        function->async_fn(function->userdata, incoming->arg, (tether_reply *)incoming);
        /* another thread may have answered and released the call already */
        tether__incoming_unref(incoming);
    } else {
        tether_value *value = NULL;
        tether_error error = {0};
        tether_status returned =
            function->method
                ? function->method(function->userdata,
                                   tether_value_object(incoming->object, function->type),
                                   incoming->arg, &value, &error)
                : function->fn(function->userdata, incoming->arg, &value, &error);
        tether_status st = tether__status_from_outside(returned);
        if (st != returned && error.code == TETHER_OK)
            tether_error_set(&error, st, "returned %d, which is not a tether_status", returned);
        if (st != TETHER_OK && error.code == TETHER_OK)
            snprintf(error.message, sizeof error.message, "%s", tether_status_text(st));
        tether__thread_state.incoming = NULL;
        tether__incoming_answer(incoming, st, error.message, value);
        tether_value_release(value);
    }
    tether__thread_state.must_not_block -= function->run_inline;
    tether__thread_state.incoming = outer;
    tether__trace = outer_trace;
}

static bool is_late(const struct tether__incoming *incoming)
{
    return incoming->deadline != TETHER__NEVER &&
           tether__clock_now_ns(incoming->agent->clock) >= incoming->deadline;
}

/* Whether a reference in the argument broke while the call waited for its object or for a thread.
 * If so, answers the call with the cause. */
static bool lost_a_reference(struct tether__incoming *incoming)
{
    if (!tether__value_n_attached(incoming->arg) || !incoming->agent->ext)
        return false;
    tether_error error;
    error.message[0] = '\0';
    tether_status st = tether__ext_ops->check(incoming->agent->ext, incoming->arg, false, &error);
    if (st != TETHER_OK)
        tether__incoming_answer(incoming, st, error.message, NULL);
    return st != TETHER_OK;
}

static void run_pooled(struct tether__task *task)
{
    struct tether__incoming *incoming = tether__container_of(task, struct tether__incoming, task);
    tether_agent *agent = incoming->agent;
    if (is_late(incoming))
        tether__incoming_answer(incoming, TETHER_ETIMEOUT,
                                "its time was up before a thread was free for it", NULL);
    else if (tether__incoming_cancelled(incoming))
        tether__incoming_answer(incoming, TETHER_ECANCELED, "canceled before it ran", NULL);
    else if (!lost_a_reference(incoming))
        run_function(incoming);
    /* sends frames of calls that the function has made and does not wait for */
    tether__agent_flush(agent);
}

/* Runs the function inline, or submits it to the pool. TAKES the call. */
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
             : st == TETHER_EIO
                 ? "none of its %d threads can be started: raise the limit of threads"
                 : "this worker of %d threads is shutting down",
             incoming->agent->opts.threads);
    tether__incoming_answer(incoming, st, text, NULL);
}

void tether__incoming_run(struct tether__incoming *incoming)
{
    if (turn_away(incoming))
        return;
    if (!can_run(incoming) || lost_a_reference(incoming))
        return;
    if (!incoming->on_heap && incoming->function->run_inline && !incoming->function->async_fn) {
        run_function(incoming);
        return;
    }
    struct tether__incoming *on_heap = incoming;
    tether_status st =
        incoming->on_heap ? TETHER_OK : tether__incoming_keep(incoming, false, &on_heap);
    if (st == TETHER_OK)
        run(on_heap);
    else
        tether__incoming_answer_unkept(incoming, st);
}
