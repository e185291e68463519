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

static unsigned long hash_fork(const void *key, unsigned long seed)
{
    return tether__hash(key, sizeof(struct tether__fork_key), seed);
}

static bool equal_fork(const void *a, const void *b)
{
    const struct tether__fork_key *one = a, *other = b;
    return one->object == other->object && tether__id_equal(one->id, other->id);
}

static const struct tether__map_type by_fork = {hash_fork, equal_fork};

static unsigned long hash_waiting(const void *key, unsigned long seed)
{
    return tether__hash(key, sizeof(struct tether__parked_fork), seed);
}

static bool equal_waiting(const void *a, const void *b)
{
    const struct tether__parked_fork *one = a, *other = b;
    return one->from == other->from && tether__id_equal(one->id, other->id);
}

static const struct tether__map_type by_waiting_fork = {hash_waiting, equal_waiting};

static bool is_due_first(const struct tether__heap_node *a, const struct tether__heap_node *b)
{
    return tether__container_of(a, const struct tether__parked, by_deadline)->deadline <
           tether__container_of(b, const struct tether__parked, by_deadline)->deadline;
}

/* ---- Life of the context ---- */

static void free_values(struct tether__refs *refs)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (uint64_t *key; refs->watermarks.type && (key = tether__map_next(&refs->watermarks, &it));)
        tether__free(tether__container_of(key, struct tether__watermark, key));
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    for (tether_bytes *key; refs->names.type && (key = tether__map_next(&refs->names, &it));)
        tether__free(tether__container_of(key, struct tether__name, key));
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
    tether__map_fini(&refs->forks);
    tether__map_fini(&refs->awaited);
    tether__map_fini(&refs->waiting_forks);
    pthread_mutex_destroy(&refs->mu);
    tether_agent *agent = refs->agent;
    tether__free(refs);
    tether__life_release(&agent->life);
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
    tether__life_retain(&agent->life);
    atomic_init(&refs->refs, 1);
    atomic_init(&refs->next_counter, 1);
    atomic_init(&refs->n_told, 0);
    tether__list_init(&refs->own);
    tether__list_init(&refs->fencing);
    tether__list_init(&refs->makers);
    tether__list_init(&refs->passed);
    tether__heap_init(&refs->deadlines, is_due_first);
    pthread_mutex_init(&refs->mu, NULL);
    if (tether__map_init(&refs->owners, &by_id) != TETHER_OK ||
        tether__map_init(&refs->users, &by_id) != TETHER_OK ||
        tether__map_init(&refs->children, &by_id) != TETHER_OK ||
        tether__map_init(&refs->watermarks, &tether__map_u64) != TETHER_OK ||
        tether__map_init(&refs->names, &tether__map_bytes) != TETHER_OK ||
        tether__map_init(&refs->forks, &by_fork) != TETHER_OK ||
        tether__map_init(&refs->awaited, &by_id) != TETHER_OK ||
        tether__map_init(&refs->waiting_forks, &by_waiting_fork) != TETHER_OK) {
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

static void drop_forks_locked(struct tether__peer *peer, struct tether__collected *collected);
static void forget_peer_locked(struct tether__peer *peer);

/* The agent goes: what is still held by handles stays until they are released. */
static void detach(void *ext)
{
    struct tether__refs *refs = ext;
    struct tether__collected collected = {NULL};
    tether__fence_finish(refs);
    pthread_mutex_lock(&refs->mu);
    atomic_store(&refs->detached, true);
    for (size_t i = 0; i < refs->agent->n_peers; i++)
        drop_forks_locked(refs->agent->peers[i], &collected);
    pthread_mutex_unlock(&refs->mu);
    tether__refs_settle(refs, &collected);
    for (size_t i = 0; i < refs->agent->n_peers; i++)
        tether__fence_drop_gathered(refs, refs->agent->peers[i], UINT64_MAX);
    tether__fence_finish(refs);
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; i < refs->agent->n_peers; i++)
        forget_peer_locked(refs->agent->peers[i]);
    pthread_mutex_unlock(&refs->mu);
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
    .result_type = tether__refs_result_type,
    .hold_target = tether__refs_hold_target,
    .find_target = tether__refs_find_target,
    .frame = tether__refs_frame,
    .fenced = tether__refs_fenced,
    .told = tether__refs_told,
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

const char *tether__name_get_locked(struct tether__refs *refs, const char *text)
{
    return tether__name_get_bytes_locked(refs, tether_bytes_str(text));
}

const char *tether__name_get_bytes_locked(struct tether__refs *refs, tether_bytes key)
{
    tether_bytes *found = tether__map_get(&refs->names, &key);
    if (found)
        return tether__name_retain_locked(
            tether__container_of(found, struct tether__name, key)->text);
    struct tether__name *name = tether__malloc(sizeof *name + key.len + 1);
    if (!name)
        return NULL;
    memcpy(name->text, key.data, key.len);
    name->text[key.len] = '\0';
    name->key = tether_bytes_of(name->text, key.len);
    name->refs = 1;
    if (tether__map_put(&refs->names, &name->key) == TETHER_OK)
        return name->text;
    tether__free(name);
    return NULL;
}

static struct tether__name *name_of(const char *text)
{
    return (struct tether__name *)(void *)((char *)text - offsetof(struct tether__name, text));
}

const char *tether__name_retain_locked(const char *text)
{
    if (text)
        name_of(text)->refs++;
    return text;
}

void tether__name_put_locked(struct tether__refs *refs, const char *text)
{
    if (!text || --name_of(text)->refs > 0)
        return;
    tether__map_del(&refs->names, &name_of(text)->key);
    tether__free(name_of(text));
}

/* ---- Peers ---- */

static void lists_init(struct tether__ref_lists *lists)
{
    tether__list_init(&lists->forks);
    tether__list_init(&lists->users);
    tether__list_init(&lists->children);
    tether__list_init(&lists->expected);
    tether__list_init(&lists->asked);
}

struct tether__ref_peer *tether__ref_peer_locked(struct tether__peer *peer)
{
    struct tether__ref_peer *ref_peer = peer->ext_peer;
    if (ref_peer)
        return ref_peer;
    ref_peer = tether__calloc(1, sizeof *ref_peer);
    if (!ref_peer)
        return NULL;
    ref_peer->peer = peer;
    lists_init(&ref_peer->live);
    lists_init(&ref_peer->ended);
    tether__list_init(&ref_peer->fencing);
    tether__list_init(&ref_peer->awaited);
    tether__list_init(&ref_peer->makers);
    peer->ext_peer = ref_peer;
    return ref_peer;
}

static void empty(struct tether__list *list)
{
    while (tether__list_pop_front(list))
        ;
}

/* The agent goes, and nobody can hold our objects any more. */
static void drop_forks_locked(struct tether__peer *peer, struct tether__collected *collected)
{
    struct tether__ref_peer *ref_peer = peer->ext_peer;
    if (!ref_peer)
        return;
    tether__list_splice(&ref_peer->live.forks, &ref_peer->ended.forks);
    for (struct tether__list *node; (node = tether__list_pop_front(&ref_peer->live.forks));)
        tether__fork_drop_locked(tether__list_entry(node, struct tether__fork, by_holder),
                                 collected);
}

/* References may outlive the agent, its peers do not. */
static void forget_peer_locked(struct tether__peer *peer)
{
    struct tether__ref_peer *ref_peer = peer->ext_peer;
    if (!ref_peer)
        return;
    struct tether__ref_lists *const both[] = {&ref_peer->live, &ref_peer->ended};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(both); i++) {
        empty(&both[i]->forks);
        empty(&both[i]->users);
        empty(&both[i]->children);
        empty(&both[i]->expected);
        empty(&both[i]->asked);
    }
    empty(&ref_peer->awaited);
    tether__list_remove(&ref_peer->makers);
    tether__list_remove(&ref_peer->fencing);
    tether__cause_release(ref_peer->why);
    tether__free(ref_peer);
    peer->ext_peer = NULL;
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
    tether_future_release(rref->settled);
    tether__cause_release(rref->cause);
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
    tether__list_remove(&rref->node);
    tether__name_put_locked(refs, rref->type);
    tether__name_put_locked(refs, rref->site_is_name ? rref->site : NULL);
    rref->type = rref->site = NULL;
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
    bool tell = !rref->is_owner && rref->known_to_owner && !atomic_load(&refs->detached);
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
    struct tether__ref_peer *ref_peer = tether__ref_peer_locked(maker.peer);
    tether_rref *rref = ref_peer ? tether__rref_alloc(refs, true, id) : NULL;
    if (!rref)
        return NULL;
    rref->owner.making = rref->owner.expected = true;
    rref->owner.maker = maker;
    if (tether__owner_add_locked(rref) == TETHER_OK) {
        tether__list_push_back(&ref_peer->live.expected, &rref->node);
        return rref;
    }
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

static struct tether__fork *fork_find_locked(tether_rref *rref, tether_rref_id id)
{
    struct tether__fork *first = &rref->owner.first;
    if (first->key.object && tether__id_equal(first->key.id, id))
        return first;
    if (rref->owner.n_forks == (first->key.object ? 1 : 0))
        return NULL; /* most objects: no look-up */
    struct tether__fork_key key = {id, rref};
    struct tether__fork_key *found = tether__map_get(&rref->context->forks, &key);
    return found ? tether__container_of(found, struct tether__fork, key) : NULL;
}

/* Room for one more fork of the object, in its entry or in the table. NULL: no memory. */
static struct tether__fork *fork_alloc_locked(tether_rref *rref, tether_rref_id id)
{
    struct tether__fork *first = &rref->owner.first, *fork;
    if (!first->key.object) {
        first->key = (struct tether__fork_key){id, rref};
        return first;
    }
    if (!(fork = tether__malloc(sizeof *fork)))
        return NULL;
    fork->key = (struct tether__fork_key){id, rref};
    if (tether__map_put(&rref->context->forks, &fork->key) != TETHER_OK) {
        tether__free(fork);
        return NULL;
    }
    tether__list_push_back(&first->by_object, &fork->by_object);
    return fork;
}

tether_status tether__fork_add_locked(tether_rref *rref,
                                      tether_rref_id id,
                                      struct tether__party holder)
{
    if (tether__party_is_over_locked(holder))
        return TETHER_EFENCED;
    struct tether__fork *fork = fork_find_locked(rref, id);
    bool is_new = !fork;
    if (fork && !tether__party_is_over_locked(fork->holder)) /* said twice, or not its own */
        return fork->holder.peer == holder.peer && fork->holder.epoch == holder.epoch
                   ? TETHER_OK
                   : TETHER_EEXIST;
    struct tether__ref_peer *ref_peer = tether__ref_peer_locked(holder.peer);
    if (is_new && ref_peer)
        fork = fork_alloc_locked(rref, id);
    if (!ref_peer || !fork)
        return TETHER_ENOMEM;
    if (is_new) {
        atomic_fetch_add_explicit(&rref->refs, 1, memory_order_relaxed);
        rref->owner.n_forks++;
        rref->owner.passed_on = true;
        rref->context->n_forks++;
    } else { /* its fence has not come to it yet: it is of the later session from here on */
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
    struct tether__fork *fork = fork_find_locked(rref, id);
    if (!fork || fork->holder.peer != peer)
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

/* ---- Users ---- */

tether_status tether__user_add_locked(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    struct tether__party *owner = &rref->user.owner;
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
    return tether_future_retain(rref->settled);
}

tether_future *tether__rref_break_locked(tether_rref *rref, tether_status status, const char *why)
{
    tether_error error;
    tether_error_set(&error, status, "%s", why);
    struct tether__cause *cause = tether__cause_new(&error);
    tether_future *settled = tether__rref_break_with_locked(rref, status, cause);
    tether__cause_release(cause);
    return settled;
}

/* Whether a fence has ended its session, and has not come to it yet. */
static bool is_doomed_locked(const tether_rref *rref)
{
    return !rref->is_owner && rref->in_table &&
           (rref->state == TETHER_RREF_PENDING || rref->state == TETHER_RREF_CONFIRMED) &&
           !atomic_load(&rref->context->detached) && tether__party_is_over_locked(rref->user.owner);
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
        const struct tether__ref_peer *ref_peer = rref->user.owner.peer->ext_peer;
        cause = ref_peer->why;
        code = tether__fence_code(ref_peer, rref);
    } else if (rref->state != TETHER_RREF_BROKEN) {
        return TETHER_OK;
    }
    return tether_error_set(reterr, code, "%s",
                            cause ? cause->error.message : tether_status_text(code));
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
        return; /* said twice */
    struct tether__pending_child *pending =
        tether__container_of(found, struct tether__pending_child, fork);
    if (pending->child.peer == peer) /* else it is not this peer's to accept */
        tether__child_drop_locked(refs, pending, collected);
}

/* ---- Watermarks ---- */

static uint64_t watermark_key(tether_rref_id id)
{
    return id.incarnation; /* no two starts of a run have the same */
}

static bool is_made_first(const struct tether__heap_node *a, const struct tether__heap_node *b)
{
    return tether__container_of(a, const struct tether__awaited, by_counter)->id.counter <
           tether__container_of(b, const struct tether__awaited, by_counter)->id.counter;
}

struct tether__watermark *tether__watermark_locked(struct tether__refs *refs, tether_rref_id id)
{
    uint64_t key = watermark_key(id);
    uint64_t *found = tether__map_get(&refs->watermarks, &key);
    if (found)
        return tether__container_of(found, struct tether__watermark, key);
    struct tether__watermark *mark = tether__malloc(sizeof *mark);
    if (!mark)
        return NULL;
    mark->key = key;
    mark->counter = 0;
    tether__heap_init(&mark->awaited, is_made_first);
    tether__list_init(&mark->passed);
    if (tether__map_put(&refs->watermarks, &mark->key) == TETHER_OK)
        return mark;
    tether__free(mark);
    return NULL;
}

void tether__watermark_forget_locked(struct tether__refs *refs, struct tether__watermark *mark)
{
    if (mark->counter > 0 || tether__heap_top(&mark->awaited))
        return;
    tether__list_remove(&mark->passed);
    tether__map_del(&refs->watermarks, &mark->key);
    tether__free(mark);
}

tether_status tether__watermark_raise_locked(struct tether__refs *refs, tether_rref_id id)
{
    struct tether__watermark *mark = tether__watermark_locked(refs, id);
    if (!mark)
        return TETHER_ENOMEM;
    if (id.counter <= mark->counter)
        return TETHER_OK;
    mark->counter = id.counter;
    if (tether__heap_top(&mark->awaited) && tether__list_empty(&mark->passed))
        tether__list_push_back(&refs->passed, &mark->passed);
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
