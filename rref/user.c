/* References of this worker to objects of other workers, and those that it has passed on. */
#include "base/alloc.h"
#include "rref/context.h"

static size_t *state_count(struct tether__refs *refs, uint8_t state)
{
    switch (state) {
        case TETHER_RREF_PENDING:
            return &refs->n_pending;
        case TETHER_RREF_CONFIRMED:
            return &refs->n_confirmed;
        default:
            return &refs->n_broken;
    }
}

tether_status tether__user_add_locked(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    struct tether__ref_session *owner = &rref->user.owner;
    struct tether__ref_peer *ref_peer = tether__ref_peer_locked(owner->peer);
    if (!ref_peer)
        return TETHER_ENOMEM;
    tether_status st = tether__map_put(&refs->users, &rref->user.fork);
    if (st != TETHER_OK)
        return st;
    tether__list_push_back(&ref_peer->live.users, &rref->node);
    rref->in_table = true;
    ++*state_count(refs, rref->state);
    return TETHER_OK;
}

void tether__user_remove_locked(tether_rref *rref)
{
    tether__map_del(&rref->context->users, &rref->user.fork);
    --*state_count(rref->context, rref->state);
}

void tether__user_set_state_locked(tether_rref *rref, tether_rref_state state)
{
    if (rref->in_table && !rref->is_owner) {
        --*state_count(rref->context, rref->state);
        ++*state_count(rref->context, state);
    }
    rref->state = (uint8_t)state;
}

struct tether__cause *tether__cause_new(const tether_error *error)
{
    struct tether__cause *cause = tether__malloc(sizeof *cause);
    if (cause) {
        atomic_init(&cause->refs, 1);
        cause->error = *error;
    }
    return cause;
}

struct tether__cause *tether__cause_retain(struct tether__cause *cause)
{
    if (cause)
        atomic_fetch_add_explicit(&cause->refs, 1, memory_order_relaxed);
    return cause;
}

void tether__cause_release(struct tether__cause *cause)
{
    if (cause && atomic_fetch_sub_explicit(&cause->refs, 1, memory_order_acq_rel) == 1)
        tether__free(cause);
}

tether_future *tether__rref_break_with_locked(tether_rref *rref,
                                              tether_status status,
                                              struct tether__cause *cause)
{
    if (rref->state == TETHER_RREF_BROKEN || rref->state == TETHER_RREF_RELEASED)
        return NULL;
    _Static_assert(TETHER_EINTERNAL <= UINT8_MAX, "a status fits in a byte");
    rref->cause_code = (uint8_t)tether__status_from_outside(status);
    rref->cause = tether__cause_retain(cause);
    tether__user_set_state_locked(rref, TETHER_RREF_BROKEN);
    return tether_future_retain(rref->ready);
}

tether_future *tether__rref_break_locked(tether_rref *rref, tether_status status, const char *why)
{
    tether_error error;
    tether_error_set(&error, status, "%s", why);
    struct tether__cause *cause = tether__cause_new(&error);
    tether_future *ready = tether__rref_break_with_locked(rref, status, cause);
    tether__cause_release(cause);
    return ready;
}

/* Returns whether a fence has ended the reference's session but has not processed the reference
 * yet. */
static bool is_doomed_locked(const tether_rref *rref)
{
    return !rref->is_owner && rref->in_table &&
           (rref->state == TETHER_RREF_PENDING || rref->state == TETHER_RREF_CONFIRMED) &&
           !atomic_load(&rref->context->detached) &&
           tether__ref_session_is_over_locked(rref->user.owner);
}

tether_rref_state tether__rref_state_locked(const tether_rref *rref)
{
    return is_doomed_locked(rref) ? TETHER_RREF_BROKEN : (tether_rref_state)rref->state;
}

tether_status tether__rref_usable_locked(const tether_rref *rref, tether_error *reterr)
{
    if (atomic_load(&rref->context->detached))
        return tether_error_set(reterr, TETHER_ESHUTDOWN,
                                "the agent that this reference belongs to has been released: use "
                                "references before that");
    if (rref->state == TETHER_RREF_RELEASED)
        return tether_error_set(reterr, TETHER_ESHUTDOWN,
                                "this reference was given back when its agent shut down: use "
                                "references before tether_agent_shutdown()");
    const struct tether__cause *cause = rref->cause;
    tether_status code = (tether_status)rref->cause_code;
    if (is_doomed_locked(rref)) {
        const struct tether__ref_peer *ref_peer =
            tether__ref_peer_find_locked(rref->user.owner.peer);
        cause = ref_peer->why;
        code = tether__fence_code(ref_peer, rref);
    } else if (rref->state != TETHER_RREF_BROKEN) {
        return TETHER_OK;
    }
    return tether_error_set(reterr, code, "%s",
                            cause ? cause->error.message : tether_status_text(code));
}

void tether__future_finish_and_release(tether_future *future,
                                       tether_status status,
                                       const tether_error *error)
{
    if (!future)
        return;
    tether_future_finish(future, status, error, NULL);
    tether_future_release(future);
}

/* ---- Pending children ---- */

tether_status tether__child_add_locked(struct tether__refs *refs,
                                       tether_rref *parent,
                                       tether_rref_id fork,
                                       struct tether__ref_session child)
{
    struct tether__ref_peer *ref_peer = tether__ref_peer_locked(child.peer);
    struct tether__pending_child *pending = ref_peer ? tether__malloc(sizeof *pending) : NULL;
    if (!pending)
        return TETHER_ENOMEM;
    *pending = (struct tether__pending_child){.fork = fork, .parent = parent, .child = child};
    tether_status st = tether__map_put(&refs->children, &pending->fork);
    if (st != TETHER_OK) {
        tether__free(pending);
        return st;
    }
    tether__list_push_back(&ref_peer->live.children, &pending->node);
    atomic_fetch_add_explicit(&parent->refs, 1, memory_order_relaxed);
    return TETHER_OK;
}

void tether__child_drop_locked(struct tether__refs *refs,
                               struct tether__pending_child *pending,
                               struct tether__collected *collected)
{
    tether__map_del(&refs->children, &pending->fork);
    tether__list_remove(&pending->node);
    tether__rref_drop_locked(pending->parent, collected);
    tether__free(pending);
}

void tether__child_remove_locked(struct tether__refs *refs,
                                 tether_rref_id fork,
                                 struct tether__peer *peer,
                                 struct tether__collected *collected)
{
    tether_rref_id *found = tether__map_get(&refs->children, &fork);
    if (!found)
        return; /* the peer has sent this accept before */
    struct tether__pending_child *pending =
        tether__container_of(found, struct tether__pending_child, fork);
    /* only the peer that the reference was passed on to may accept it */
    if (pending->child.peer == peer)
        tether__child_drop_locked(refs, pending, collected);
}
