/* The entries of the tables: references of this worker and the objects that it owns. */
#include "base/alloc.h"
#include "rref/context.h"

static void retain_attached(struct tether__attached_ref *it)
{
    tether_rref_retain(tether__container_of(it, struct tether_rref, attached));
}

static void release_attached(struct tether__attached_ref *it)
{
    tether_rref_release(tether__container_of(it, struct tether_rref, attached));
}

static const struct tether__attached_ref_ops attached_ops = {retain_attached, release_attached};

tether_rref *tether__rref_alloc(struct tether__refs *refs, bool is_owner, tether_rref_id id)
{
    size_t size = is_owner ? sizeof(tether_rref)
                           : offsetof(tether_rref, user) + sizeof((tether_rref){0}.user);
    tether_rref *rref = tether__calloc(1, size);
    if (!rref)
        return NULL;
    rref->attached.ops = &attached_ops;
    rref->context = tether__refs_retain(refs);
    rref->id = id;
    atomic_init(&rref->refs, 1);
    rref->is_owner = is_owner;
    tether__list_init(&rref->node);
    if (is_owner)
        tether__list_init(&rref->owner.first.by_object);
    rref->state = is_owner ? TETHER_RREF_CONFIRMED : TETHER_RREF_PENDING;
    return rref;
}

void tether__rref_free(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    for (struct tether__notice *notice; (notice = tether__notice_take_locked(rref));)
        tether__free(notice);
    if (rref->is_owner)
        tether_value_release(rref->owner.value);
    else if (rref->user.owner.peer)
        tether__peer_release(rref->user.owner.peer);
    tether_future_release(rref->ready);
    if (rref->cause)
        tether__cause_release(rref->cause);
    tether__free(rref);
    tether__refs_release(refs);
}

static void collect_locked(tether_rref *rref, struct tether__collected *collected)
{
    struct tether__refs *refs = rref->context;
    if (rref->in_table && rref->is_owner) {
        tether__map_del(&refs->owners, &rref->id);
    } else if (rref->in_table) {
        tether__user_remove_locked(rref);
    }
    rref->in_table = false;
    if (rref->is_owner && rref->owner.expected)
        tether__expected_remove_locked(rref);
    tether__list_remove(&rref->node);
    if (rref->type)
        tether__name_put_locked(refs, rref->type);
    if (rref->site_is_name)
        tether__name_put_locked(refs, rref->site);
    rref->type = rref->site = NULL;
    rref->next = collected->first;
    collected->first = rref;
}

void tether__rref_drop_locked(tether_rref *rref, struct tether__collected *collected)
{
    if (atomic_fetch_sub_explicit(&rref->refs, 1, memory_order_acq_rel) == 1)
        collect_locked(rref, collected);
}

static void run_collected(struct tether__work *work)
{
    tether_rref *rref = tether__container_of(work, struct tether_rref, work);
    struct tether__refs *refs = rref->context;
    /* the object was announced, and released before its call came */
    if (rref->is_owner && rref->owner.making)
        tether__waiting_answer(refs, rref->id);
    bool tell = !rref->is_owner && rref->known_to_owner && !atomic_load(&refs->detached);
    if (tell)
        tether__refs_queue_delete(rref);
    else
        tether__rref_free(rref);
}

/* Uses the work list, because an object may hold references to others, which are then collected in
 * turn. */
void tether__refs_run_collected(struct tether__refs *refs, struct tether__collected *collected)
{
    tether_future *drained = NULL;
    for (tether_rref *rref = collected->first, *next; rref; rref = next) {
        next = rref->next;
        rref->work.run = run_collected;
        tether__work_run(&rref->work);
    }
    collected->first = NULL;
    if (atomic_load(&refs->detached))
        return;
    pthread_mutex_lock(&refs->mu);
    tether__refs_check_drained_locked(refs, &drained);
    pthread_mutex_unlock(&refs->mu);
    if (drained)
        tether__future_finish_and_release(drained, TETHER_OK, NULL);
}

tether_rref *tether_rref_retain(tether_rref *rref)
{
    if (!tether__rref_is_none(rref))
        atomic_fetch_add_explicit(&rref->refs, 1, memory_order_relaxed);
    return rref;
}

tether_rref *tether_rref_release(tether_rref *rref)
{
    if (tether__rref_is_none(rref))
        return NULL;
    /* A count other than the last is dropped without the lock. The last is dropped under the lock,
     * because look-ups in the tables happen there. */
    uint32_t n = atomic_load_explicit(&rref->refs, memory_order_relaxed);
    while (n > 1)
        if (atomic_compare_exchange_weak_explicit(&rref->refs, &n, n - 1, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return NULL;
    struct tether__refs *refs = tether__refs_retain(rref->context);
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&refs->mu);
    tether__rref_drop_locked(rref, &collected);
    pthread_mutex_unlock(&refs->mu);
    if (collected.first)
        tether__refs_run_collected(refs, &collected);
    tether__refs_release(refs);
    return NULL;
}
