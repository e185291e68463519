/* Public functions that attach a reference, ask about it, or watch it. */
#include "rref/rref.h"

#include "base/alloc.h"
#include "rpc/future/internal.h"
#include "rref/context.h"

/* ---- Riding on values ---- */

tether_status tether_value_attach(tether_value *value, tether_rref *rref, tether_error *reterr)
{
    if (tether__rref_is_none(rref))
        return tether__rref_none_cause(rref, reterr);
    tether_status st = tether__value_attach(value, &rref->attached);
    return st == TETHER_OK ? st
                           : tether_error_set(reterr, st, "attaching a reference: %s",
                                              st == TETHER_ETOOBIG ? "a value carries 1024 at most"
                                                                   : "out of memory");
}

size_t tether_value_n_rrefs(const tether_value *value)
{
    return tether__value_n_attached(value);
}

tether_rref *tether_value_rref(const tether_value *value, size_t i)
{
    return i < tether__value_n_attached(value)
               ? tether__container_of(value->attached[i], struct tether_rref, attached)
               : NULL;
}

/* ---- Asking ---- */

tether_rref_state tether_rref_status(const tether_rref *rref, tether_error *reterr)
{
    if (tether__rref_is_none(rref)) {
        tether__rref_none_cause(rref, reterr);
        return TETHER_RREF_BROKEN;
    }
    /* take the lock once, so that state and cause belong to the same moment */
    pthread_mutex_lock(&rref->context->mu);
    tether__rref_usable_locked(rref, reterr);
    tether_rref_state state = tether__rref_state_locked(rref);
    pthread_mutex_unlock(&rref->context->mu);
    return state;
}

const char *tether_rref_state_name(tether_rref_state state)
{
    static const char *const names[] = {"pending", "confirmed", "broken", "released"};
    return (size_t)state < TETHER__ARRAY_LEN(names) ? names[state] : "?";
}

bool tether_rref_is_owner(const tether_rref *rref)
{
    return rref && rref->is_owner;
}

uint32_t tether_rref_owner(const tether_rref *rref)
{
    if (tether__rref_is_none(rref))
        return UINT32_MAX;
    if (rref->is_owner)
        return rref->context->self->id;
    pthread_mutex_lock(&rref->context->mu);
    uint32_t id = tether__rref_owner_id(rref);
    pthread_mutex_unlock(&rref->context->mu);
    return id;
}

const char *tether_rref_owner_name(const tether_rref *rref)
{
    if (tether__rref_is_none(rref))
        return "?";
    if (rref->is_owner)
        return tether_agent_name(rref->context->agent);
    return rref->user.owner.peer ? tether__peer_name(rref->user.owner.peer) : "?";
}

const char *tether_rref_type(const tether_rref *rref)
{
    if (tether__rref_is_none(rref))
        return "";
    pthread_mutex_lock(&rref->context->mu);
    const char *type = rref->type ? rref->type : "";
    pthread_mutex_unlock(&rref->context->mu);
    return type;
}

tether_rref_id tether_rref_get_id(const tether_rref *rref)
{
    return rref ? rref->id : (tether_rref_id){0};
}

bool tether_rref_equal(const tether_rref *a, const tether_rref *b)
{
    return a == b || (a && b && tether__id_is_set(a->id) && tether__id_equal(a->id, b->id));
}

bool tether_rref_confirmed_by_owner(const tether_rref *rref)
{
    return tether_rref_status(rref, NULL) == TETHER_RREF_CONFIRMED;
}

/* Returns the poller that receives the news that the reference is ready: the owner's or, if no
 * other worker is the owner, the agent's.
 */
static struct tether__poller *poller_of(tether_rref *rref)
{
    struct tether__peer *owner = rref->is_owner ? NULL : rref->user.owner.peer;
    return owner ? tether__peer_poller(owner) : tether__agent_timers(rref->context->agent);
}

/* Returns the future that is done when the reference is confirmed (user) or the object is made
 * (owner). */
static tether_future *ready_future(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    tether_error error = {0};
    pthread_mutex_lock(&refs->mu);
    tether_status st = tether__rref_usable_locked(rref, &error);
    bool waits = st == TETHER_OK &&
                 (rref->is_owner ? rref->owner.making : rref->state == TETHER_RREF_PENDING);
    if (!rref->ready && (rref->ready = tether_future_new()) && waits)
        tether__future_set_poller(rref->ready, poller_of(rref));
    tether_future *future = tether_future_retain(rref->ready);
    pthread_mutex_unlock(&refs->mu);
    if (!future)
        return tether__future_no_memory();
    if (!waits)
        tether_future_finish(future, st, &error, NULL);
    return future;
}
tether_future *tether_rref_confirmed(tether_rref *rref)
{
    tether_error error = {0};
    if (tether__rref_is_none(rref))
        return tether__failed_future(tether__rref_none_cause(rref, &error), &error);
    if (!rref->is_owner)
        return ready_future(rref);
    /* the object is our own: no confirmation is needed, so the future is done at once */
    tether_future *future = tether_future_new();
    if (!future)
        return tether__future_no_memory();
    tether_future_finish(future, TETHER_OK, NULL, NULL);
    return future;
}

struct tether__notice *tether__notice_take_locked(tether_rref *rref)
{
    struct tether__notice *last = rref->notices;
    if (!last)
        return NULL;
    struct tether__notice *first = last->next;
    last->next = first->next;
    if (first == last)
        rref->notices = NULL;
    return first;
}

tether_status tether_rref_on_owner_lost(tether_rref *rref,
                                        tether_rref_lost_fn *fn,
                                        void *userdata,
                                        tether_error *reterr)
{
    if (tether__rref_is_none(rref))
        return tether__rref_none_cause(rref, reterr);
    struct tether__notice *notice = tether__malloc(sizeof *notice);
    if (!notice)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory to watch the owner");
    *notice = (struct tether__notice){fn, userdata, NULL};
    pthread_mutex_lock(&rref->context->mu);
    struct tether__notice *last = rref->notices;
    notice->next = last ? last->next : notice;
    if (last)
        last->next = notice;
    rref->notices = notice;
    bool lost = rref->lost;
    pthread_mutex_unlock(&rref->context->mu);
    if (lost)
        tether__rref_give_notice(rref);
    return TETHER_OK;
}

/* ---- Weak references ---- */

struct tether_rref_weak {
    struct tether__refs *context; /* retained */
    bool is_owner;
    tether_rref_id key; /* the key in `owners` or `users` */
};

tether_rref_weak *tether_rref_weak_new(tether_rref *rref)
{
    tether_rref_weak *weak = tether__rref_is_none(rref) ? NULL : tether__malloc(sizeof *weak);
    if (!weak)
        return NULL;
    struct tether__refs *refs = rref->context;
    pthread_mutex_lock(&refs->mu);
    tether_status st = rref->is_owner ? tether__owner_add_locked(rref) : TETHER_OK;
    pthread_mutex_unlock(&refs->mu);
    if (st != TETHER_OK)
        return tether__free(weak);
    weak->context = tether__refs_retain(refs);
    weak->is_owner = rref->is_owner;
    weak->key = rref->is_owner ? rref->id : rref->user.fork;
    return weak;
}

tether_rref *tether_rref_weak_lock(tether_rref_weak *weak)
{
    if (!weak)
        return NULL;
    struct tether__refs *refs = weak->context;
    pthread_mutex_lock(&refs->mu);
    tether_rref_id *found =
        tether__map_get(weak->is_owner ? &refs->owners : &refs->users, &weak->key);
    tether_rref *rref = NULL;
    if (found)
        rref = weak->is_owner ? tether__container_of(found, struct tether_rref, id)
                              : tether__container_of(found, struct tether_rref, user.fork);
    tether_rref_retain(rref);
    pthread_mutex_unlock(&refs->mu);
    return rref;
}

tether_rref_weak *tether_rref_weak_release(tether_rref_weak *weak)
{
    if (weak) {
        tether__refs_release(weak->context);
        tether__free(weak);
    }
    return NULL;
}
