/* Forks: the references that other workers hold to objects of this one. */
#include "base/alloc.h"
#include "rref/context.h"

/* Compares the holder, too, so that a worker that uses the id of another worker's fork gets a fork
 * of its own. */
static struct tether__fork *fork_find_locked(tether_rref *rref,
                                             tether_rref_id id,
                                             struct tether__peer *peer)
{
    struct tether__fork *first = &rref->owner.first;
    if (first->key.object && first->key.peer == peer && tether__id_equal(first->key.id, id))
        return first;
    if (rref->owner.n_forks == (first->key.object ? 1 : 0))
        return NULL; /* the table has no fork of this object, which is so for most objects: skip the
                        look-up */
    struct tether__fork_key key = {id, rref, peer};
    struct tether__fork_key *found = tether__map_get(&rref->context->forks, &key);
    return found ? tether__container_of(found, struct tether__fork, key) : NULL;
}

/* Returns memory for one more fork of the object: in its entry if that is free, else allocated.
 * NULL: no memory. */
static struct tether__fork *fork_alloc_locked(tether_rref *rref,
                                              tether_rref_id id,
                                              struct tether__peer *peer)
{
    struct tether__fork *first = &rref->owner.first, *fork;
    if (!first->key.object) {
        first->key = (struct tether__fork_key){id, rref, peer};
        return first;
    }
    if (!(fork = tether__malloc(sizeof *fork)))
        return NULL;
    fork->key = (struct tether__fork_key){id, rref, peer};
    if (tether__map_put(&rref->context->forks, &fork->key) != TETHER_OK) {
        tether__free(fork);
        return NULL;
    }
    tether__list_push_back(&first->by_object, &fork->by_object);
    return fork;
}

tether_status tether__fork_add_locked(tether_rref *rref,
                                      tether_rref_id id,
                                      struct tether__ref_session holder)
{
    if (tether__ref_session_is_over_locked(holder))
        return TETHER_EFENCED;
    struct tether__fork *fork = fork_find_locked(rref, id, holder.peer);
    bool is_new = !fork;
    /* the same fork was added twice */
    if (fork && !tether__ref_session_is_over_locked(fork->holder))
        return fork->holder.number == holder.number ? TETHER_OK : TETHER_EEXIST;
    struct tether__ref_peer *ref_peer = tether__ref_peer_locked(holder.peer);
    if (is_new && ref_peer)
        fork = fork_alloc_locked(rref, id, holder.peer);
    if (!ref_peer || !fork)
        return TETHER_ENOMEM;
    if (is_new) {
        atomic_fetch_add_explicit(&rref->refs, 1, memory_order_relaxed);
        rref->owner.n_forks++;
        rref->owner.passed_on = true;
        rref->context->n_forks++;
        /* the fork is from an ended session that the fence has not processed yet: move it to the
         * new session */
    } else {
        tether__list_remove(&fork->by_holder);
    }
    fork->holder = holder;
    tether__list_push_back(&ref_peer->live.forks, &fork->by_holder);
    return TETHER_OK;
}

void tether__fork_drop_locked(struct tether__fork *fork, struct tether__collected *collected)
{
    tether_rref *rref = fork->key.object;
    tether__list_remove(&fork->by_holder);
    if (fork == &rref->owner.first) {
        fork->key.object = NULL;
    } else {
        tether__map_del(&rref->context->forks, &fork->key);
        tether__list_remove(&fork->by_object);
        tether__free(fork);
    }
    rref->owner.n_forks--;
    rref->context->n_forks--;
    tether__rref_drop_locked(rref, collected);
}

bool tether__fork_remove_locked(tether_rref *rref,
                                tether_rref_id id,
                                struct tether__peer *peer,
                                struct tether__collected *collected)
{
    struct tether__fork *fork = fork_find_locked(rref, id, peer);
    if (!fork)
        return false;
    tether__fork_drop_locked(fork, collected);
    return true;
}

struct tether__fork *tether__fork_next_locked(tether_rref *rref, struct tether__fork *fork)
{
    struct tether__fork *first = &rref->owner.first;
    if (!fork && first->key.object)
        return first;
    struct tether__list *next = fork ? fork->by_object.next : first->by_object.next;
    return next == &first->by_object ? NULL
                                     : tether__list_entry(next, struct tether__fork, by_object);
}
