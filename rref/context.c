/* The tables and their counts. See context.h. */
#include "rref/context.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

static unsigned long hash_id(const void *key, unsigned long seed)
{
    return tether__hash(key, sizeof(tether_rref_id), seed);
}

static bool equal_id(const void *a, const void *b)
{
    return tether__id_equal(*(const tether_rref_id *)a, *(const tether_rref_id *)b);
}

static const struct tether__map_type by_id = {hash_id, equal_id};

struct interned {
    tether_bytes key;
    char text[];
};

/* ---- Life of the context ---- */

static void free_values(struct tether__refs *refs)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (uint64_t *key; refs->watermarks.type && (key = tether__map_next(&refs->watermarks, &it));)
        tether__free(tether__container_of(key, struct tether__watermark, key));
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    for (tether_bytes *key; refs->names.type && (key = tether__map_next(&refs->names, &it));)
        tether__free(tether__container_of(key, struct interned, key));
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    for (tether_rref_id *key;
         refs->children.type && (key = tether__map_next(&refs->children, &it));)
        tether__free(tether__container_of(key, struct tether__pending_child, fork));
}

static void refs_destroy(struct tether__refs *refs)
{
    free_values(refs);
    tether__map_fini(&refs->owners);
    tether__map_fini(&refs->users);
    tether__map_fini(&refs->children);
    tether__map_fini(&refs->watermarks);
    tether__map_fini(&refs->names);
    pthread_mutex_destroy(&refs->mu);
    tether__free(refs);
}

struct tether__refs *tether__refs_retain(struct tether__refs *refs)
{
    atomic_fetch_add_explicit(&refs->refs, 1, memory_order_relaxed);
    return refs;
}

void tether__refs_release(struct tether__refs *refs)
{
    if (atomic_fetch_sub_explicit(&refs->refs, 1, memory_order_acq_rel) == 1)
        refs_destroy(refs);
}

struct tether__refs *tether__refs_of(tether_agent *agent)
{
    return agent->ext;
}

static void *attach(tether_agent *agent, tether_error *reterr)
{
    struct tether__refs *refs = tether__calloc(1, sizeof *refs);
    if (!refs) {
        tether_error_set(reterr, TETHER_ENOMEM, "no memory for an agent");
        return NULL;
    }
    refs->agent = agent;
    atomic_init(&refs->refs, 1);
    atomic_init(&refs->next_counter, 1);
    tether__list_init(&refs->parked);
    pthread_mutex_init(&refs->mu, NULL);
    if (tether__map_init(&refs->owners, &by_id) != TETHER_OK ||
        tether__map_init(&refs->users, &by_id) != TETHER_OK ||
        tether__map_init(&refs->children, &by_id) != TETHER_OK ||
        tether__map_init(&refs->watermarks, &tether__map_u64) != TETHER_OK ||
        tether__map_init(&refs->names, &tether__map_bytes) != TETHER_OK) {
        refs_destroy(refs);
        tether_error_set(reterr, TETHER_ENOMEM, "no memory for an agent");
        return NULL;
    }
    if (tether__refs_register_dump(refs, reterr) != TETHER_OK) {
        refs_destroy(refs);
        return NULL;
    }
    return refs;
}

/* The agent goes: what is still held by handles stays until they are released. */
static void detach(void *ext)
{
    struct tether__refs *refs = ext;
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&refs->mu);
    atomic_store(&refs->detached, true);
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_rref_id *key; (key = tether__map_next(&refs->owners, &it));) {
        tether_rref *rref = tether__container_of(key, struct tether_rref, id);
        atomic_fetch_add(&rref->refs, 1); /* stays while we are at it */
        while (rref->owner.n_forks)
            tether__fork_remove_at_locked(rref, 0, &collected);
        tether__rref_drop_locked(rref, &collected);
    }
    pthread_mutex_unlock(&refs->mu);
    tether__refs_settle(refs, &collected);
    for (size_t i = 0; i < refs->agent->n_peers; i++)
        tether__refs_drop_gathered(refs->agent->peers[i], UINT64_MAX);
    tether__refs_release(refs);
}

static const struct tether__ext_ops ops = {
    .attach = attach,
    .detach = detach,
    .pack_locked = tether__refs_pack_locked,
    .undo_locked = tether__refs_undo_locked,
    .pack_fini = tether__refs_pack_fini,
    .check = tether__refs_check,
    .before_write_locked = tether__refs_before_write_locked,
    .take = tether__refs_take,
    .untake = tether__refs_untake,
    .confirm = tether__refs_confirm,
    .remote_arrived = tether__refs_remote_arrived,
    .remote_done = tether__refs_remote_done,
    .hold_target = tether__refs_hold_target,
    .find_target = tether__refs_find_target,
    .frame = tether__refs_frame,
    .fenced = tether__refs_fenced,
    .drain = tether__refs_drain,
    .tick = tether__refs_tick,
};

/* A program that uses references links this file, and so has the extension. */
__attribute__((constructor)) static void register_extension(void)
{
    tether__ext_ops = &ops;
}

/* ---- Ids and names ---- */

tether_rref_id tether__refs_new_id(struct tether__refs *refs)
{
    return (tether_rref_id){
        .creator = refs->agent->self.id,
        .incarnation = (uint32_t)refs->agent->self.incarnation,
        .counter = atomic_fetch_add_explicit(&refs->next_counter, 1, memory_order_relaxed),
    };
}

const char *tether__refs_intern_locked(struct tether__refs *refs, const char *text)
{
    tether_bytes key = tether_bytes_str(text);
    tether_bytes *found = tether__map_get(&refs->names, &key);
    if (found)
        return tether__container_of(found, struct interned, key)->text;
    struct interned *name = tether__malloc(sizeof *name + key.len + 1);
    if (!name)
        return NULL;
    memcpy(name->text, text, key.len + 1);
    name->key = tether_bytes_of(name->text, key.len);
    if (tether__map_put(&refs->names, &name->key) == TETHER_OK)
        return name->text;
    tether__free(name);
    return NULL;
}

/* ---- Entries ---- */

static void retain_rider(struct tether__rider *rider)
{
    tether_rref_retain(tether__container_of(rider, struct tether_rref, rider));
}

static void release_rider(struct tether__rider *rider)
{
    tether_rref_release(tether__container_of(rider, struct tether_rref, rider));
}

static const struct tether__rider_ops rider_ops = {retain_rider, release_rider};

tether_rref *tether__rref_alloc(struct tether__refs *refs, bool is_owner, tether_rref_id id)
{
    size_t size = is_owner ? sizeof(tether_rref)
                           : offsetof(tether_rref, user) + sizeof((tether_rref){0}.user);
    tether_rref *rref = tether__calloc(1, size);
    if (!rref)
        return NULL;
    rref->rider.ops = &rider_ops;
    rref->context = tether__refs_retain(refs);
    rref->id = id;
    atomic_init(&rref->refs, 1);
    rref->is_owner = is_owner;
    rref->state = is_owner ? TETHER_RREF_CONFIRMED : TETHER_RREF_PENDING;
    return rref;
}

void tether__rref_free(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    for (struct tether__notice *notice; (notice = tether__notice_take_locked(rref));)
        tether__free(notice);
    if (rref->is_owner) {
        tether_value_release(rref->owner.value);
        if (rref->owner.forks != &rref->owner.first)
            tether__free(rref->owner.forks);
    }
    tether_future_release(rref->settled);
    tether__free(rref->cause);
    tether__free(rref);
    tether__refs_release(refs);
}

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

static void collect_locked(tether_rref *rref, struct tether__collected *collected)
{
    struct tether__refs *refs = rref->context;
    if (rref->in_table && rref->is_owner) {
        tether__map_del(&refs->owners, &rref->id);
    } else if (rref->in_table) {
        tether__map_del(&refs->users, &rref->user.fork);
        --*state_count(refs, rref->state);
    }
    rref->in_table = false;
    rref->next = collected->first;
    collected->first = rref;
}

void tether__rref_drop_locked(tether_rref *rref, struct tether__collected *collected)
{
    if (atomic_fetch_sub_explicit(&rref->refs, 1, memory_order_acq_rel) == 1)
        collect_locked(rref, collected);
}

static void settle_collected(struct tether__work *work)
{
    tether_rref *rref = tether__container_of(work, struct tether_rref, work);
    struct tether__refs *refs = rref->context;
    if (rref->is_owner && rref->owner.making) /* expected, and nobody wants it any more */
        tether__unpark(refs, rref->id);
    bool tell = !rref->is_owner && rref->user.known_to_owner && !atomic_load(&refs->detached);
    if (tell)
        tether__refs_queue_delete(rref);
    else
        tether__rref_free(rref);
}

/* By the work list: an object may hold references to others, which are collected then. */
void tether__refs_settle(struct tether__refs *refs, struct tether__collected *collected)
{
    tether_future *calm = NULL;
    for (tether_rref *rref = collected->first, *next; rref; rref = next) {
        next = rref->next;
        rref->work.run = settle_collected;
        tether__work_run(&rref->work);
    }
    collected->first = NULL;
    if (atomic_load(&refs->detached))
        return;
    pthread_mutex_lock(&refs->mu);
    tether__refs_check_calm_locked(refs, &calm);
    pthread_mutex_unlock(&refs->mu);
    tether__future_settle(calm, TETHER_OK, NULL);
}

tether_rref *tether_rref_retain(tether_rref *rref)
{
    if (rref && !tether__rref_is_no_memory(rref))
        atomic_fetch_add_explicit(&rref->refs, 1, memory_order_relaxed);
    return rref;
}

tether_rref *tether_rref_release(tether_rref *rref)
{
    if (!rref || tether__rref_is_no_memory(rref))
        return NULL;
    /* Not the last: no lock. The last is taken off under it, where look-ups happen. */
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
        tether__refs_settle(refs, &collected);
    tether__refs_release(refs);
    return NULL;
}

/* ---- Owners and forks ---- */

tether_rref *tether__owner_find_locked(struct tether__refs *refs, tether_rref_id id)
{
    tether_rref_id *found = tether__map_get(&refs->owners, &id);
    return found ? tether__container_of(found, struct tether_rref, id) : NULL;
}

tether_rref *tether__owner_expect_locked(struct tether__refs *refs,
                                         tether_rref_id id,
                                         struct tether__party maker)
{
    tether_rref *rref = tether__rref_alloc(refs, true, id);
    if (!rref)
        return NULL;
    rref->owner.making = rref->owner.expected = true;
    rref->owner.maker = maker;
    if (tether__owner_add_locked(rref) == TETHER_OK)
        return rref;
    tether__rref_free(rref);
    return NULL;
}

tether_status tether__owner_add_locked(tether_rref *rref)
{
    if (rref->in_table)
        return TETHER_OK;
    tether_status st = tether__map_put(&rref->context->owners, &rref->id);
    rref->in_table = st == TETHER_OK;
    return st;
}

tether_status tether__fork_add_locked(tether_rref *rref,
                                      tether_rref_id fork,
                                      struct tether__party holder)
{
    if (tether__party_is_over_locked(holder))
        return TETHER_EFENCED;
    for (uint32_t i = 0; i < rref->owner.n_forks; i++)
        if (tether__id_equal(rref->owner.forks[i].id, fork)) /* said twice, or not its own */
            return rref->owner.forks[i].holder.peer == holder.peer &&
                           rref->owner.forks[i].holder.epoch == holder.epoch
                       ? TETHER_OK
                       : TETHER_EEXIST;
    if (rref->owner.n_forks == 0 && !rref->owner.forks) {
        rref->owner.forks = &rref->owner.first;
        rref->owner.cap_forks = 1;
    }
    if (rref->owner.n_forks == rref->owner.cap_forks) {
        uint32_t cap = rref->owner.cap_forks * 2;
        bool inline_now = rref->owner.forks == &rref->owner.first;
        struct tether__fork *forks =
            tether__realloc(inline_now ? NULL : rref->owner.forks, cap * sizeof *forks);
        if (!forks)
            return TETHER_ENOMEM;
        if (inline_now)
            forks[0] = rref->owner.first;
        rref->owner.forks = forks;
        rref->owner.cap_forks = cap;
    }
    rref->owner.forks[rref->owner.n_forks++] = (struct tether__fork){fork, holder};
    atomic_fetch_add_explicit(&rref->refs, 1, memory_order_relaxed);
    rref->context->n_forks++;
    return TETHER_OK;
}

void tether__fork_remove_at_locked(tether_rref *rref,
                                   uint32_t i,
                                   struct tether__collected *collected)
{
    rref->owner.forks[i] = rref->owner.forks[--rref->owner.n_forks];
    rref->context->n_forks--;
    tether__rref_drop_locked(rref, collected);
}

bool tether__fork_remove_locked(tether_rref *rref,
                                tether_rref_id fork,
                                struct tether__peer *peer,
                                struct tether__collected *collected)
{
    for (uint32_t i = 0; i < rref->owner.n_forks; i++)
        if (tether__id_equal(rref->owner.forks[i].id, fork) &&
            rref->owner.forks[i].holder.peer == peer) {
            tether__fork_remove_at_locked(rref, i, collected);
            return true;
        }
    return false;
}

/* ---- Users ---- */

tether_status tether__user_add_locked(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    tether_status st = tether__map_put(&refs->users, &rref->user.fork);
    if (st != TETHER_OK)
        return st;
    rref->in_table = true;
    ++*state_count(refs, rref->state);
    return TETHER_OK;
}

void tether__user_set_state_locked(tether_rref *rref, tether_rref_state state)
{
    if (rref->in_table && !rref->is_owner) {
        --*state_count(rref->context, rref->state);
        ++*state_count(rref->context, state);
    }
    rref->state = (uint8_t)state;
}

tether_future *tether__rref_break_locked(tether_rref *rref, tether_status status, const char *why)
{
    if (rref->state == TETHER_RREF_BROKEN || rref->state == TETHER_RREF_RELEASED)
        return NULL;
    rref->cause_code = status;
    rref->cause = tether__malloc(sizeof *rref->cause);
    if (rref->cause)
        tether_error_set(rref->cause, status, "%s", why);
    tether__user_set_state_locked(rref, TETHER_RREF_BROKEN);
    return tether_future_retain(rref->settled);
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
    if (rref->state != TETHER_RREF_BROKEN)
        return TETHER_OK;
    return tether_error_set(
        reterr, rref->cause_code, "%s",
        rref->cause ? rref->cause->message : tether_status_text(rref->cause_code));
}

void tether__future_settle(tether_future *future, tether_status status, const tether_error *error)
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
                                       struct tether__party child)
{
    struct tether__pending_child *pending = tether__malloc(sizeof *pending);
    if (!pending)
        return TETHER_ENOMEM;
    *pending = (struct tether__pending_child){fork, parent, child};
    tether_status st = tether__map_put(&refs->children, &pending->fork);
    if (st != TETHER_OK) {
        tether__free(pending);
        return st;
    }
    atomic_fetch_add_explicit(&parent->refs, 1, memory_order_relaxed);
    return TETHER_OK;
}

void tether__child_remove_locked(struct tether__refs *refs,
                                 tether_rref_id fork,
                                 struct tether__peer *peer,
                                 struct tether__collected *collected)
{
    tether_rref_id *found = tether__map_get(&refs->children, &fork);
    if (!found)
        return; /* said twice */
    struct tether__pending_child *pending =
        tether__container_of(found, struct tether__pending_child, fork);
    if (pending->child.peer != peer)
        return; /* it is not this peer's to accept */
    tether__map_del(&refs->children, &fork);
    tether__rref_drop_locked(pending->parent, collected);
    tether__free(pending);
}

/* ---- Watermarks ---- */

static uint64_t watermark_key(tether_rref_id id)
{
    return id.incarnation; /* no two starts of a run have the same */
}

tether_status tether__watermark_raise_locked(struct tether__refs *refs, tether_rref_id id)
{
    uint64_t key = watermark_key(id);
    uint64_t *found = tether__map_get(&refs->watermarks, &key);
    if (!found) {
        struct tether__watermark *mark = tether__malloc(sizeof *mark);
        if (!mark)
            return TETHER_ENOMEM;
        *mark = (struct tether__watermark){key, id.counter};
        if (tether__map_put(&refs->watermarks, &mark->key) != TETHER_OK) {
            tether__free(mark);
            return TETHER_ENOMEM;
        }
        return TETHER_OK;
    }
    struct tether__watermark *mark = tether__container_of(found, struct tether__watermark, key);
    if (id.counter > mark->counter)
        mark->counter = id.counter;
    return TETHER_OK;
}

bool tether__may_come_locked(struct tether__refs *refs, tether_rref_id id)
{
    if (id.incarnation == refs->agent->self.incarnation) /* what we made is there, or gone */
        return false;
    uint64_t key = watermark_key(id);
    uint64_t *found = tether__map_get(&refs->watermarks, &key);
    return !found ||
           tether__container_of(found, struct tether__watermark, key)->counter < id.counter;
}
