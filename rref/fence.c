/* A session has ended: what the peer held of us is released, what we hold of it breaks, what we
 * passed on to it is ours alone again. Whatever belongs to a later session is left alone. */
#include "base/alloc.h"
#include "rref/context.h"

static bool is_of(struct tether__party party, struct tether__peer *peer, uint64_t epoch)
{
    return party.peer == peer && party.epoch <= epoch;
}

static void release_forks_locked(struct tether__refs *refs,
                                 struct tether__peer *peer,
                                 uint64_t epoch,
                                 struct tether__collected *collected)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *key; (key = tether__map_next(&refs->owners, &it));) {
        tether_rref *rref = tether__container_of(key, struct tether_rref, id);
        atomic_fetch_add_explicit(&rref->refs, 1, memory_order_relaxed); /* while we are at it */
        for (uint32_t i = rref->owner.n_forks; i-- > 0;)
            if (is_of(rref->owner.forks[i].holder, peer, epoch))
                tether__fork_remove_at_locked(rref, i, collected);
        tether__rref_drop_locked(rref, collected);
    }
}

static void unpin_children_locked(struct tether__refs *refs,
                                  struct tether__peer *peer,
                                  uint64_t epoch,
                                  struct tether__collected *collected)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *key; (key = tether__map_next(&refs->children, &it));) {
        struct tether__pending_child *child =
            tether__container_of(key, struct tether__pending_child, fork);
        if (!is_of(child->child, peer, epoch))
            continue;
        tether__map_del(&refs->children, key);
        tether__rref_drop_locked(child->parent, collected);
        tether__free(child);
    }
}

/* Gives up one object that the peer was about to have made here, retained; NULL: none left. */
static tether_rref *unexpect_one_locked(struct tether__refs *refs,
                                        struct tether__peer *peer,
                                        uint64_t epoch,
                                        struct tether__map_iter *it,
                                        tether_future **ret_settled)
{
    for (tether_rref_id *key; (key = tether__map_next(&refs->owners, it));) {
        tether_rref *rref = tether__container_of(key, struct tether_rref, id);
        if (!rref->owner.expected || !is_of(rref->owner.maker, peer, epoch))
            continue;
        rref->owner.expected = rref->owner.making = false;
        *ret_settled = tether__rref_break_locked(rref, TETHER_EGONE,
                                                 "its maker was lost before it could be made");
        return tether_rref_retain(rref);
    }
    return NULL;
}

/* Breaks one reference to an object of the peer's, retained; NULL: there is none left. */
static tether_rref *break_one_locked(struct tether__refs *refs,
                                     struct tether__peer *peer,
                                     uint64_t epoch,
                                     const tether_error *why,
                                     struct tether__map_iter *it,
                                     tether_future **ret_settled)
{
    for (tether_rref_id *key; (key = tether__map_next(&refs->users, it));) {
        tether_rref *rref = tether__container_of(key, struct tether_rref, user.fork);
        if (!is_of(rref->user.owner, peer, epoch))
            continue;
        rref->user.known_to_owner = false; /* it has forgotten us */
        if (rref->lost || rref->state == TETHER_RREF_RELEASED)
            continue;
        rref->lost = true;
        /* Who was never there cannot be lost; but who has been there can. */
        bool known = why->code == TETHER_ENOTFOUND && rref->state == TETHER_RREF_CONFIRMED;
        *ret_settled =
            tether__rref_break_locked(rref, known ? TETHER_EOWNERDIED : why->code, why->message);
        return tether_rref_retain(rref);
    }
    return NULL;
}

/* Links the broken ones by a list of their own, so that the table is walked once. */
struct broken {
    struct broken *next;
    tether_rref *rref;
    tether_future *settled;
};

void tether__rref_give_notice(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    for (;;) {
        pthread_mutex_lock(&refs->mu);
        struct tether__notice *notice = tether__notice_take_locked(rref);
        pthread_mutex_unlock(&refs->mu);
        if (!notice)
            return;
        tether__current.must_not_block++;
        notice->fn(rref, notice->userdata);
        tether__current.must_not_block--;
        tether__free(notice);
    }
}

/* Tells who waits for it, or for the loss. TAKES both. */
static void settle_one(tether_rref *rref, tether_future *settled)
{
    tether_error error = {0};
    pthread_mutex_lock(&rref->context->mu);
    tether_status st = tether__rref_usable_locked(rref, &error);
    pthread_mutex_unlock(&rref->context->mu);
    tether__future_settle(settled, st, &error);
    if (rref->is_owner)
        tether__unpark(rref->context, rref->id);
    else
        tether__rref_give_notice(rref);
    tether_rref_release(rref);
}

static void settle_all(struct broken *broken)
{
    for (struct broken *next; broken; broken = next) {
        next = broken->next;
        settle_one(broken->rref, broken->settled);
        tether__free(broken);
    }
}

/* Breaks all that the fence breaks. */
static struct broken *break_all_locked(struct tether__refs *refs,
                                       struct tether__peer *peer,
                                       uint64_t epoch,
                                       const tether_error *why)
{
    struct broken *all = NULL;
    struct tether__map_iter users = TETHER__MAP_ITER, owners = TETHER__MAP_ITER;
    for (;;) {
        tether_future *settled = NULL;
        tether_rref *rref = break_one_locked(refs, peer, epoch, why, &users, &settled);
        if (!rref)
            rref = unexpect_one_locked(refs, peer, epoch, &owners, &settled);
        if (!rref)
            return all;
        struct broken *one = tether__malloc(sizeof *one);
        if (one) {
            *one = (struct broken){all, rref, settled};
            all = one;
            continue;
        }
        /* No memory for the list: settle this one now and walk the tables again. */
        pthread_mutex_unlock(&refs->mu);
        settle_one(rref, settled);
        pthread_mutex_lock(&refs->mu);
        users = owners = (struct tether__map_iter)TETHER__MAP_ITER;
    }
}

void tether__refs_fenced(void *ext,
                         struct tether__peer *peer,
                         uint64_t epoch,
                         const tether_error *why)
{
    struct tether__refs *refs = ext;
    struct tether__collected collected = {NULL};
    tether_error error;
    bool lost = why->code != TETHER_ENOTFOUND && why->code != TETHER_ESHUTDOWN;
    tether_error_set(&error, lost ? TETHER_EOWNERDIED : why->code, "%s%s",
                     lost ? "the owner of the object is lost (make it anew elsewhere): " : "",
                     why->message);

    pthread_mutex_lock(&refs->mu);
    if (peer->ext_first_epoch <= epoch) /* from here on nothing new counts in its name */
        peer->ext_first_epoch = epoch + 1;
    pthread_mutex_unlock(&refs->mu);
    tether__unpark_peer(refs, peer, epoch, why->code == TETHER_ENOTFOUND);
    pthread_mutex_lock(&refs->mu);
    release_forks_locked(refs, peer, epoch, &collected);
    unpin_children_locked(refs, peer, epoch, &collected);
    struct broken *all = break_all_locked(refs, peer, epoch, &error);
    pthread_mutex_unlock(&refs->mu);
    settle_all(all);
    tether__refs_drop_gathered(peer, epoch);
    tether__refs_settle(refs, &collected);
}
