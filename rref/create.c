/* remote(): making an object on another worker, from both ends.
 *
 * Here: the reference is pending from the moment the call is queued; its ids are drawn then, so
 * that they reach the owner in order. There: the object's entry and our fork exist from the moment
 * the call arrives, before its function runs; so a delete of ours, however early, finds what it
 * deletes. A call whose argument goes in pieces can be overtaken by later messages, so an announce
 * goes ahead of it, in order.
 *
 * A creation that fails, times out or is fenced breaks the reference with its cause. If the owner
 * may have the object, it is still told when the reference is released.
 */
#include <string.h>

#include "base/alloc.h"
#include "rpc/future/internal.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/wire/packed.h"
#include "rref/context.h"

struct making {
    tether_rref *rref;
    bool announced;
};

static tether_status announce_locked(struct tether__peer *peer,
                                     struct making *making,
                                     const char *site)
{
    Tether__Announce message = TETHER__ANNOUNCE__INIT;
    Tether__RefId result = tether__wire_id(making->rref->id);
    Tether__RefId fork = tether__wire_id(making->rref->user.fork);
    struct tether__packed packed;
    message.result = &result;
    message.result_fork = &fork;
    message.site = (char *)(site ? site : "");
    tether_status st = tether__pack(&packed, &message.base);
    if (st != TETHER_OK)
        return st;
    st = tether__peer_queue_locked(peer, TETHER__FRAME_ANNOUNCE, packed.bytes);
    tether__packed_fini(&packed);
    making->announced = st == TETHER_OK;
    return st;
}

/* Draws the ids of the object in the order in which calls are queued, so the owner sees our
 * counters rise. */
static tether_status prepare_locked(void *userdata,
                                    struct tether__peer *peer,
                                    struct tether__call_target *target)
{
    struct making *making = userdata;
    tether_rref *rref = making->rref;
    struct tether__refs *refs = rref->context;
    rref->id = tether__refs_new_id(refs);
    rref->user.fork = tether__refs_new_id(refs);
    rref->user.owner.number = tether__peer_session(peer);
    target->makes = true;
    tether__id_to_numbers(rref->id, target->result);
    tether__id_to_numbers(rref->user.fork, target->result_fork);
    pthread_mutex_lock(&refs->mu);
    tether_status st = tether__user_add_locked(rref);
    /* from here on the owner may have the fork, as far as this worker can tell */
    rref->known_to_owner = st == TETHER_OK;
    pthread_mutex_unlock(&refs->mu);
    if (st == TETHER_OK && target->in_pieces)
        st = announce_locked(peer, making, target->site);
    target->announced = making->announced;
    return st;
}

static void drop_count(tether_rref *rref)
{
    struct tether__refs *refs = tether__refs_retain(rref->context);
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&refs->mu);
    tether__rref_drop_locked(rref, &collected);
    pthread_mutex_unlock(&refs->mu);
    tether__refs_run_collected(refs, &collected);
    tether__refs_release(refs);
}

/* The creation has failed: fails the calls that wait for the object, and runs the callbacks of
 * tether_rref_on_owner_lost(). Runs from the work list, because such a call may itself be a
 * creation that others wait for.
 */
static void tell_of_failure(struct tether__work *work)
{
    tether_rref *rref = tether__container_of(work, struct tether_rref, work);
    tether_error error = {0};
    pthread_mutex_lock(&rref->context->mu);
    tether_status status = tether__rref_usable_locked(rref, &error);
    bool lost = rref->lost;
    pthread_mutex_unlock(&rref->context->mu);
    if (status != TETHER_OK && tether__id_is_set(rref->user.fork))
        tether__calls_end_use(rref->user.owner.peer, tether__rref_use_of(rref), status, &error);
    if (lost)
        tether__rref_give_notice(rref);
    drop_count(rref);
}

/* Ends the creation, successful or not, and drops the count that it held. `lost`: it failed
 * because the session with the owner has ended. */
static void made(tether_rref *rref, tether_status status, const tether_error *error, bool lost)
{
    if (lost)
        status = TETHER_EOWNERDIED;
    struct tether__refs *refs = rref->context;
    tether_future *ready = NULL;
    pthread_mutex_lock(&refs->mu);
    if (status == TETHER_OK && rref->state == TETHER_RREF_PENDING) {
        tether__user_set_state_locked(rref, TETHER_RREF_CONFIRMED);
        if (rref->user.owner.peer)
            rref->user.owner_incarnation = (uint32_t)tether__peer_start(rref->user.owner.peer);
        rref->user.owner_id = tether__rref_owner_id(rref);
        ready = tether_future_retain(rref->ready);
    } else if (status != TETHER_OK) {
        ready = tether__rref_break_locked(rref, status, error->message);
        rref->lost |= lost;
    }
    pthread_mutex_unlock(&refs->mu);
    tether__future_finish_and_release(ready, status, error);
    if (status == TETHER_OK) {
        drop_count(rref);
        return;
    }
    rref->work.run = tell_of_failure;
    tether__work_run(&rref->work);
}

static void on_reply(tether_future *future, void *userdata)
{
    tether_error error = {0};
    tether_status st = tether_future_status(future, &error);
    made(userdata, st, &error, tether__future_is_loss(future));
}

static void on_own_reply(tether_future *future, void *userdata)
{
    tether_error error = {0};
    tether_status st = tether_future_status(future, &error);
    if (st != TETHER_OK)
        tether__owner_give_up(userdata, st, &error);
    tether_rref_release(userdata);
}

/* Returned when there is no memory for a reference. It has no context: see tether__rref_is_none().
 */
static struct tether_rref no_memory_rref = {
    .state = TETHER_RREF_BROKEN,
    .cause_code = TETHER_ENOMEM,
};
static struct tether_rref null_rref = {
    .state = TETHER_RREF_BROKEN,
    .cause_code = TETHER_EINVAL,
};

static tether_rref *no_memory(void)
{
    return &no_memory_rref;
}

tether_status tether__rref_none_cause(const tether_rref *rref, tether_error *reterr)
{
    if (rref == no_memory())
        return tether_error_set(reterr, TETHER_ENOMEM, "there was no memory for this reference");
    return tether_error_set(reterr, TETHER_EINVAL,
                            "the reference is NULL: does the value that it comes from carry one?");
}

/* Calls `fn` on `peer`, with `object` when it is a method, and keeps the result as `rref`. */
static tether_rref *make(struct tether__refs *refs,
                         struct tether__peer *peer,
                         const char *fn,
                         const struct tether__call_target *about,
                         const tether_value *arg,
                         int timeout_ms,
                         const char *site,
                         tether_status st,
                         tether_error *error)
{
    tether_agent *agent = refs->agent;
    bool own = peer && tether__peer_is_self(peer);
    tether_rref *rref =
        tether__rref_alloc(refs, own, own ? tether__refs_new_id(refs) : (tether_rref_id){0, 0, 0});
    if (!rref)
        return no_memory();
    rref->site = site;
    tether_rref_retain(rref); /* one count for the caller, one for the creation */
    if (own) {
        rref->owner.making = true;
        pthread_mutex_lock(&refs->mu);
        tether__list_push_back(&refs->own, &rref->node);
        pthread_mutex_unlock(&refs->mu);
    } else if (peer)
        rref->user.owner.peer = tether__peer_retain(peer);
    if (!own)
        rref->user.owner_id = UINT32_MAX; /* not known until we connect */
    struct making making = {.rref = rref};
    struct tether__call_target target = about ? *about : (struct tether__call_target){0};
    struct tether__call *call = NULL;
    target.site = site;
    target.prepare_locked = own ? NULL : prepare_locked;
    target.prepare_userdata = &making;
    target.result_here = own ? rref : NULL;
    target.result_there = own ? NULL : rref;
    if (st == TETHER_OK) {
        int64_t deadline = tether__call_deadline(agent, timeout_ms);
        /* a count for on_own_reply(), because the call may end before or after its function */
        if (own)
            tether_rref_retain(rref);
        st = tether__call_start(agent, peer, fn, &target, arg, deadline, &call, error);
        if (st == TETHER_OK)
            tether__call_schedule(call);
        else if (own)
            tether_rref_release(rref);
    }
    if (st != TETHER_OK && own) {
        tether__owner_made(rref, st, error->message, NULL);
    } else if (st != TETHER_OK) {
        /* the reference may be in the table, where a fence can access it */
        pthread_mutex_lock(&refs->mu);
        rref->known_to_owner = making.announced;
        pthread_mutex_unlock(&refs->mu);
        made(rref, st, error, false);
    } else {
        if (target.about)
            tether__rref_tie(tether__container_of(target.about, struct tether_rref, attached),
                             call);
        tether_future_then(&call->future, own ? on_own_reply : on_reply, rref);
        tether_future_release(&call->future);
    }
    return rref;
}

tether_rref *tether_remote_at(tether_agent *agent,
                              const char *to,
                              const char *fn,
                              const tether_value *arg,
                              int timeout_ms,
                              const char *site)
{
    tether_error error = {0};
    struct tether__peer *peer = NULL;
    bool entered = tether__agent_enter(agent);
    tether_status st = entered ? tether__call_check(agent, fn, timeout_ms, &error)
                               : tether__agent_has_stopped(fn, &error);
    if (st == TETHER_OK && tether__agent_options(agent)->observe)
        st = tether_error_set(&error, TETHER_EPERM,
                              "an observer neither makes nor holds references: join the group");
    if (st == TETHER_OK)
        st = tether__agent_resolve(agent, to, &peer, &error);
    tether_rref *rref =
        make(tether__refs_of(agent), peer, fn, NULL, arg, timeout_ms, site, st, &error);
    if (peer)
        tether__peer_release(peer);
    if (entered)
        tether__agent_exit(agent);
    return rref;
}

tether_rref *tether_rref_remote_at(tether_rref *rref,
                                   const char *method,
                                   const tether_value *arg,
                                   int timeout_ms,
                                   const char *site)
{
    if (tether__rref_is_none(rref))
        return rref ? rref : &null_rref;
    tether_error error = {0};
    struct tether__rref_use use = {0};
    tether_agent *agent = rref->context->agent;
    bool entered = tether__agent_enter(agent);
    tether_status st = tether__rref_begin_use(rref, method, &use, &error);
    if (st == TETHER_OK)
        st = tether__timeout_check(timeout_ms, &error);
    if (st == TETHER_OK && !entered)
        st = tether__agent_has_stopped(method, &error);
    tether_rref *result =
        make(rref->context, use.peer, method, &use.target, arg, timeout_ms, site, st, &error);
    tether__rref_end_use(&use);
    if (entered)
        tether__agent_exit(agent);
    return result;
}

tether_status tether_rref_new_at(tether_agent *agent,
                                 tether_value *value,
                                 const char *site,
                                 tether_rref **ret_rref,
                                 tether_error *reterr)
{
    struct tether__refs *refs = tether__refs_of(agent);
    /* a shutdown still lets functions create the object that they return, so do not use the gate
     * here */
    if (!tether__agent_is_running(agent))
        return tether_error_set(reterr, TETHER_ESHUTDOWN, "the agent is not running");
    tether_rref *rref = tether__rref_alloc(refs, true, tether__refs_new_id(refs));
    if (!rref)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a reference");
    const tether_type *type = tether_value_type(value);
    rref->site = site;
    rref->owner.value = tether_value_retain(value);
    /* The agent's gate is not needed: only `refs` is used, which each reference keeps. From here
     * on a shutdown on another thread can see the reference. */
    pthread_mutex_lock(&refs->mu);
    rref->type = type ? tether__name_get_locked(refs, type->name) : NULL;
    tether__list_push_back(&refs->own, &rref->node);
    pthread_mutex_unlock(&refs->mu);
    *ret_rref = rref;
    return TETHER_OK;
}
