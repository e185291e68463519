/* Public functions that use the object of a reference: fetch it, and call its methods. */
#include "rref/rref.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/threads/state.h"
#include "rpc/future/internal.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/wire/packed.h"
#include "rref/context.h"

tether_future *tether__failed_future(tether_status status, const tether_error *error)
{
    tether_future *future = tether_future_new();
    if (!future)
        return tether__future_no_memory();
    tether_future_finish(future, status, error, NULL);
    return future;
}

/* Returns TETHER_OK if the reference can be used at all. Takes the lock. */
static tether_status check(tether_rref *rref, tether_error *reterr)
{
    if (tether__rref_is_none(rref))
        return tether__rref_none_cause(rref, reterr);
    pthread_mutex_lock(&rref->context->mu);
    tether_status st = tether__rref_usable_locked(rref, reterr);
    pthread_mutex_unlock(&rref->context->mu);
    return st;
}

/* Checks that the reference and the agent can be used. After success the caller leaves the agent
 * when it is done. */
static tether_status enter(tether_rref *rref,
                           const char *what,
                           int timeout_ms,
                           tether_error *reterr)
{
    tether_status st = check(rref, reterr);
    if (st == TETHER_OK)
        st = tether__timeout_check(timeout_ms, reterr);
    if (st == TETHER_OK && !tether__agent_enter(rref->context->agent))
        st = tether__agent_has_stopped(what, reterr);
    return st;
}

static tether_status must_not_block(const char *what, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EDEADLK,
                            "%s would block the thread that brings the answer: use the "
                            "asynchronous form, or register the function as pooled",
                            what);
}

/* ---- Uses that wait for the object to be made ---- */

struct tether__use tether__rref_use_of(const tether_rref *rref)
{
    tether_rref_id fork = rref->user.fork;
    return (struct tether__use){(uint64_t)fork.creator << 32 | fork.incarnation, fork.counter};
}

/* Ties the call first, then checks the reference again. A thread that breaks the reference does
 * these steps in the other order, so one of both sees the other. */
void tether__rref_tie(tether_rref *rref, struct tether__call *call)
{
    bool own = rref->is_owner;
    if (tether_rref_status(rref, NULL) == TETHER_RREF_CONFIRMED || own)
        return;
    tether_error error = {0};
    tether__call_tie(call, tether__rref_use_of(rref));
    tether_status st = check(rref, &error);
    if (st != TETHER_OK)
        tether__calls_end_use(rref->user.owner.peer, tether__rref_use_of(rref), st, &error);
}

/* ---- Copying it here ----------------------------------------------------------------------------
 */

static enum tether__outcome pack_fetch(void *userdata,
                                       uint64_t id,
                                       uint32_t timeout_ms,
                                       struct tether__packed *ret_packed)
{
    tether_rref *rref = userdata;
    Tether__Fetch message = TETHER__FETCH__INIT;
    Tether__RefId object = tether__wire_id(rref->id);
    message.id = id;
    message.object = &object;
    message.timeout_ms = timeout_ms;
    message.owner_incarnation = rref->user.owner_incarnation;
    return tether__outcome_of(tether__pack(ret_packed, &message.base));
}

/* The future of to_here() when this worker owns the object. It holds no count of the object. */
struct own_fetch {
    tether_future future;
    const struct tether__clock *clock;
    int64_t began;
    const char *waits_for; /* the state of the object when the fetch began, for the error */
    char owner[TETHER_MAX_WORKER_NAME + 1];
};

static void destroy_own_fetch(tether_future *future)
{
    tether__future_fini(future);
    tether__free(tether__container_of(future, struct own_fetch, future));
}

static void explain_own_wait(tether_future *future, int timeout_ms, tether_error *ret_error)
{
    const struct own_fetch *fetch = tether__container_of(future, struct own_fetch, future);
    (void)timeout_ms;
    tether__object_is_late(ret_error, fetch->owner,
                           tether__clock_now_ns(fetch->clock) - fetch->began, fetch->waits_for);
}

static const struct tether__future_ops own_fetch_ops = {
    .destroy = destroy_own_fetch,
    .explain_wait = explain_own_wait,
};

/* Fetches an object of this worker: at once, or when it has been made. */
static tether_future *own_to_here(tether_rref *rref, int64_t deadline)
{
    struct tether__refs *refs = rref->context;
    tether_error error = {0};
    bool waits = false;
    tether_value *value = NULL;
    struct tether__peer *self = NULL;
    struct own_fetch *fetch = tether__malloc(sizeof *fetch);
    if (!fetch)
        return tether__future_no_memory();
    tether_future *result = &fetch->future;
    tether__future_init(result, &own_fetch_ops, tether__agent_timers(refs->agent));
    fetch->clock = refs->clock;
    fetch->began = tether__clock_now_ns(fetch->clock);
    /* default; replaced below if the object is not made yet */
    fetch->waits_for = "it has been made";
    snprintf(fetch->owner, sizeof fetch->owner, "%s", tether_agent_name(refs->agent));
    tether_status st =
        tether__agent_peer(refs->agent, tether_agent_name(refs->agent), &self, &error);
    if (st == TETHER_OK) {
        pthread_mutex_lock(&refs->mu);
        st = tether__rref_usable_locked(rref, &error);
        if (st == TETHER_OK && rref->owner.making) {
            struct tether__waiting waiting = {
                .what = TETHER__WAITING_HERE,
                .from = {self, tether__peer_session(self)},
                .object = rref->id,
                .deadline = deadline,
                .future = tether_future_retain(result),
            };
            fetch->waits_for = tether__object_waits_for_locked(rref);
            /* puts the object into the table, so that its creation finds the waiting request */
            st = tether__owner_add_locked(rref);
            waits = st == TETHER_OK && tether__waiting_add_locked(refs, &waiting, rref);
            if (!waits) {
                st = tether_error_set(&error, TETHER_ENOMEM, "no memory to wait for the object");
                tether_future_release(result);
            }
        } else if (st == TETHER_OK) {
            value = tether_value_retain(rref->owner.value);
        }
        pthread_mutex_unlock(&refs->mu);
        tether__peer_release(self);
    }
    if (!waits)
        tether_future_finish(result, st, &error, value);
    tether_value_release(value);
    return result;
}

/* Fetches the object from another worker. After success the caller owns the call's future. */
static tether_status start_fetch(tether_rref *rref,
                                 int64_t deadline,
                                 struct tether__call **ret_call,
                                 tether_error *reterr)
{
    tether_future *future;
    tether_status st = tether__call_request(rref->user.owner.peer, TETHER__FRAME_FETCH, "to_here",
                                            false, deadline, pack_fetch, rref, &future, reterr);
    if (st != TETHER_OK)
        return st;
    *ret_call = tether__container_of(future, struct tether__call, future);
    tether__rref_tie(rref, *ret_call);
    return TETHER_OK;
}

/* Fetches the object; the caller is inside the agent's gate. */
static tether_future *to_here(tether_rref *rref, int64_t deadline)
{
    tether_error error = {0};
    struct tether__call *call = NULL;
    if (rref->is_owner)
        return own_to_here(rref, deadline);
    tether_status st = start_fetch(rref, deadline, &call, &error);
    return st == TETHER_OK ? &call->future : tether__failed_future(st, &error);
}

tether_future *tether_rref_to_here_async(tether_rref *rref, int timeout_ms)
{
    tether_error error = {0};
    tether_status st = enter(rref, "to_here()", timeout_ms, &error);
    if (st != TETHER_OK)
        return tether__failed_future(st, &error);
    tether_agent *agent = rref->context->agent;
    tether_future *future = to_here(rref, tether__call_deadline(agent, timeout_ms));
    tether__agent_exit(agent);
    return future;
}

/* Looks at an object of this worker. Retains it if `ret_value` is not NULL; `*ret_making` is set
 * if it is not made yet. Checks all under one lock, so that a creation that fails meanwhile is not
 * mistaken for an object without a value. */
static tether_status look_at_own(tether_rref *rref,
                                 bool *ret_making,
                                 tether_value **ret_value,
                                 tether_error *reterr)
{
    pthread_mutex_lock(&rref->context->mu);
    tether_status st = tether__rref_usable_locked(rref, reterr);
    *ret_making = rref->owner.making;
    if (st == TETHER_OK && !*ret_making && ret_value)
        *ret_value = tether_value_retain(rref->owner.value);
    pthread_mutex_unlock(&rref->context->mu);
    return st;
}

static tether_status await_fetch(tether_rref *rref,
                                 int64_t deadline,
                                 tether_value **ret_value,
                                 tether_error *reterr)
{
    struct tether__call *call = NULL;
    tether_status st = start_fetch(rref, deadline, &call, reterr);
    if (st != TETHER_OK)
        return st;
    st = tether__call_wait(call, ret_value, reterr);
    tether_future_release(&call->future);
    return st;
}

static tether_status await_own(tether_rref *rref,
                               int64_t deadline,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    tether_future *future = own_to_here(rref, deadline);
    if (!tether__future_await(future, deadline)) {
        tether_error late;
        explain_own_wait(future, 0, &late);
        /* has no effect if the future is done by now */
        tether_future_finish(future, TETHER_ETIMEOUT, &late, NULL);
    }
    tether_status st = tether__future_result(future, ret_value, reterr);
    tether_future_release(future);
    return st;
}

tether_status tether_rref_to_here(tether_rref *rref,
                                  int timeout_ms,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    if (tether__thread_state.must_not_block)
        return must_not_block("to_here()", reterr);
    bool making = true;
    tether_status st = TETHER_OK;
    if (rref && rref->is_owner) /* the common case needs no future and no message */
        st = look_at_own(rref, &making, ret_value, reterr);
    if (st != TETHER_OK || !making)
        return st;
    st = enter(rref, "to_here()", timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    tether_agent *agent = rref->context->agent;
    int64_t deadline = tether__call_deadline(agent, timeout_ms);
    st = rref->is_owner ? await_own(rref, deadline, ret_value, reterr)
                        : await_fetch(rref, deadline, ret_value, reterr);
    tether__agent_exit(agent);
    return st;
}

tether_status tether_rref_local_value(tether_rref *rref,
                                      tether_value **ret_value,
                                      tether_error *reterr)
{
    tether_status st = check(rref, reterr);
    if (st != TETHER_OK)
        return st;
    if (!rref->is_owner)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the object lives on '%s': use tether_rref_to_here()",
                                tether_rref_owner_name(rref));
    bool making;
    tether_value *value = NULL;
    st = look_at_own(rref, &making, &value, reterr);
    tether_value_release(value); /* LENDS: the reference keeps the value */
    if (st == TETHER_OK && making)
        return tether_error_set(reterr, TETHER_EBUSY, "the object is still being made");
    if (st == TETHER_OK)
        *ret_value = value;
    return st;
}

/* ---- Method calls ---- */

tether_status tether__rref_begin_use(tether_rref *rref,
                                     const char *method,
                                     struct tether__rref_use *ret_use,
                                     tether_error *reterr)
{
    memset(ret_use, 0, sizeof *ret_use);
    tether_status st = check(rref, reterr);
    if (st != TETHER_OK)
        return st;
    struct tether__refs *refs = rref->context;
    st = tether__call_check(refs->agent, method, TETHER_DEFAULT_MS, reterr);
    if (st != TETHER_OK)
        return st;
    ret_use->id = tether__wire_id(rref->id);
    ret_use->target.target = &ret_use->id;
    ret_use->target.about = &rref->attached;
    if (!rref->is_owner) {
        ret_use->target.owner_incarnation = rref->user.owner_incarnation;
        ret_use->peer = tether__peer_retain(rref->user.owner.peer);
        return TETHER_OK;
    }
    pthread_mutex_lock(&refs->mu);
    if (!rref->owner.making)
        ret_use->target.local_object = tether_value_retain(rref->owner.value);
    else
        st = tether__owner_add_locked(rref); /* the call must find it once it is made */
    pthread_mutex_unlock(&refs->mu);
    if (st == TETHER_OK)
        st =
            tether__agent_peer(refs->agent, tether_agent_name(refs->agent), &ret_use->peer, reterr);
    return st;
}

void tether__rref_end_use(struct tether__rref_use *use)
{
    if (use->peer)
        tether__peer_release(use->peer);
    tether_value_release(use->target.local_object);
}

static tether_status start_method(tether_rref *rref,
                                  const char *method,
                                  const tether_value *arg,
                                  int64_t deadline,
                                  tether_future **ret_future,
                                  tether_error *reterr)
{
    struct tether__rref_use use;
    struct tether__call *call = NULL;
    tether_status st = tether__rref_begin_use(rref, method, &use, reterr);
    if (st == TETHER_OK) {
        use.target.target = &use.id;
        st = tether__call_start(rref->context->agent, use.peer, method, &use.target, arg, deadline,
                                &call, reterr);
    }
    tether__rref_end_use(&use);
    if (st != TETHER_OK)
        return st;
    tether__rref_tie(rref, call);
    *ret_future = &call->future;
    return TETHER_OK;
}

tether_future *tether_rref_async(tether_rref *rref,
                                 const char *method,
                                 const tether_value *arg,
                                 int timeout_ms)
{
    tether_error error = {0};
    tether_future *future = NULL;
    tether_status st = enter(rref, method, timeout_ms, &error);
    if (st != TETHER_OK)
        return tether__failed_future(st, &error);
    tether_agent *agent = rref->context->agent;
    int64_t deadline = tether__call_deadline(agent, timeout_ms);
    st = start_method(rref, method, arg, deadline, &future, &error);
    if (st == TETHER_OK)
        tether__call_schedule(tether__container_of(future, struct tether__call, future));
    tether__agent_exit(agent);
    return st == TETHER_OK ? future : tether__failed_future(st, &error);
}

tether_status tether_rref_sync(tether_rref *rref,
                               const char *method,
                               const tether_value *arg,
                               int timeout_ms,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    if (tether__thread_state.must_not_block)
        return must_not_block("a method call", reterr);
    tether_future *future = tether_rref_async(rref, method, arg, timeout_ms);
    tether_status st = tether_future_wait(future, TETHER_DEFAULT_MS, ret_value, reterr);
    tether_future_release(future);
    return st;
}
