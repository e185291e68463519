/* Waiters of the key-value core.
 *
 * A waiter has a slot for each key, linked into that key's entry. A slot remembers whether its key
 * is present, and the waiter counts the keys that are missing. So a key that comes or goes costs
 * one step for each waiter of that key; other changes of a value cost none. A waiter that misses no
 * key moves to kv->ready; run_ready() unlinks its slots and calls it once the change has been
 * applied.
 *
 * Members of a barrier are in a heap, least world size first, so that an arrival looks only at the
 * members that it completes, even if callers give very different world sizes.
 */
#include "base/alloc.h"
#include "rendezvous/store/kv/internal.h"

/* Removes the waiter from every list, and frees entries that nothing else needs. */
static void detach(struct tether__kv *kv, struct tether__kv_waiter *waiter)
{
    tether__list_remove(&waiter->node);
    if (waiter->is_member)
        tether__heap_remove(&waiter->slots[0].entry->extra->members, &waiter->member);
    waiter->is_member = false;
    for (size_t i = 0; i < waiter->n; i++) {
        tether__list_remove(&waiter->slots[i].node);
        tether__kv_entry_trim(kv, waiter->slots[i].entry);
    }
    if (waiter->slots != &waiter->one)
        tether__free(waiter->slots);
    waiter->slots = NULL;
    waiter->n = 0;
}

void tether__kv_run_ready(struct tether__kv *kv)
{
    for (struct tether__list *node; (node = tether__list_pop_front(&kv->ready));) {
        struct tether__kv_waiter *waiter = tether__list_entry(node, struct tether__kv_waiter, node);
        struct tether__kv_item *item = waiter->item;
        waiter->item = NULL;
        detach(kv, waiter);
        waiter->ready(waiter, item ? &item->value : NULL);
        if (item)
            tether_buf_fini(&item->value);
        tether__free(item);
    }
}

/* A waiter may be in the list already, because a ready() can change keys; it moves to the end. */
static void make_ready(struct tether__kv *kv, struct tether__kv_waiter *waiter)
{
    tether__list_remove(&waiter->node);
    tether__list_push_back(&kv->ready, &waiter->node);
}

static bool is_there(const struct tether__kv_entry *entry, enum tether__kv_want want)
{
    bool queued = entry->extra && entry->extra->queue_len > 0;
    return (want != TETHER__KV_WANT_QUEUE && entry->value.data) ||
           (want != TETHER__KV_WANT_VALUE && queued);
}

/* Completes callers of wait_turn: all of them when there is a value, otherwise one for each element
 * without a claim. */
static void offer(struct tether__kv *kv, struct tether__kv_entry *entry)
{
    TETHER__LIST_FOR_EACH(node, &entry->extra->takers) {
        struct tether__kv_waiter *waiter =
            tether__list_entry(node, struct tether__kv_slot, node)->waiter;
        if (waiter->missing == 0)
            continue;
        if (!entry->value.data) {
            if (!tether__kv_entry_can_pop(entry))
                return;
            entry->extra->n_claimed++;
            waiter->claim->entry = entry;
        }
        waiter->missing = 0;
        make_ready(kv, waiter);
    }
}

/* Updates the slots of all waiters of `entry`, which has got or lost its value or its queue. */
static void update_waiters(struct tether__kv *kv, struct tether__kv_entry *entry)
{
    TETHER__LIST_FOR_EACH(node, &entry->extra->waiters) {
        struct tether__kv_slot *slot = tether__list_entry(node, struct tether__kv_slot, node);
        kv->steps++;
        bool present = is_there(entry, slot->waiter->want);
        if (slot->present == present)
            continue;
        slot->present = present;
        slot->waiter->missing += present ? -1 : 1;
        if (slot->waiter->missing == 0)
            make_ready(kv, slot->waiter);
        else
            tether__list_remove(&slot->waiter->node);
    }
}

void tether__kv_entry_changed(struct tether__kv *kv, struct tether__kv_entry *entry)
{
    struct tether__kv_extra *extra = entry->extra;
    if (!extra)
        return;
    bool has_value = entry->value.data != NULL, has_queue = extra->queue_len > 0;
    if (has_value != extra->had_value || has_queue != extra->had_queue)
        update_waiters(kv, entry);
    extra->had_value = has_value;
    extra->had_queue = has_queue;
    offer(kv, entry);
}

/* A popper that has been given something stays linked until it has been told, so that the entry
 * stays too. */
void tether__kv_entry_give(struct tether__kv *kv,
                           struct tether__kv_entry *entry,
                           struct tether__kv_item *item,
                           bool at_front)
{
    struct tether__kv_extra *extra = entry->extra;
    TETHER__LIST_FOR_EACH(node, &extra->poppers) {
        struct tether__kv_waiter *waiter =
            tether__list_entry(node, struct tether__kv_slot, node)->waiter;
        if (!waiter->item) {
            waiter->item = item;
            make_ready(kv, waiter);
            return;
        }
    }
    tether__list_push_back(at_front ? extra->queue.next : &extra->queue, &item->node);
    extra->queue_len++;
    kv->bytes += tether__kv_cost(entry->key.len, item->value.len);
    tether__kv_entry_changed(kv, entry);
}

/* Readies a waiter for `n` keys; it is in no list yet. */
static tether_status waiter_init(struct tether__kv_waiter *waiter,
                                 size_t n,
                                 tether__kv_ready_fn *ready)
{
    *waiter = (struct tether__kv_waiter){.ready = ready};
    tether__list_init(&waiter->node);
    waiter->slots = n > 1 ? tether__calloc(n, sizeof *waiter->slots) : &waiter->one;
    return waiter->slots ? TETHER_OK : TETHER_ENOMEM;
}

/* Gives the waiter's next slot the entry of `key`, whose extra is there afterwards. */
static struct tether__kv_slot *add_slot(struct tether__kv *kv,
                                        struct tether__kv_waiter *waiter,
                                        tether_bytes key)
{
    struct tether__kv_entry *entry = tether__kv_entry_make_extra(kv, key);
    if (!entry)
        return NULL;
    struct tether__kv_slot *slot = &waiter->slots[waiter->n++];
    slot->waiter = waiter;
    slot->entry = entry;
    tether__list_init(&slot->node);
    return slot;
}

static bool all_there(const struct tether__kv *kv,
                      const tether_bytes *keys,
                      size_t n,
                      enum tether__kv_want want)
{
    for (size_t i = 0; i < n; i++) {
        struct tether__kv_entry *entry = tether__kv_entry_find(kv, keys[i]);
        if (!entry || !is_there(entry, want))
            return false;
    }
    return true;
}

tether_status tether__kv_wait(struct tether__kv *kv,
                              struct tether__kv_waiter *waiter,
                              enum tether__kv_want want,
                              const tether_bytes *keys,
                              size_t n,
                              tether__kv_ready_fn *ready)
{
    /* the common case: all keys are there, so nothing must be allocated */
    if (all_there(kv, keys, n, want)) {
        waiter_init(waiter, 0, ready);
        make_ready(kv, waiter);
        tether__kv_run_ready(kv);
        return TETHER_OK;
    }
    tether_status st = waiter_init(waiter, n, ready);
    if (st != TETHER_OK)
        return st;
    waiter->want = want;
    for (size_t i = 0; i < n; i++) {
        struct tether__kv_slot *slot = add_slot(kv, waiter, keys[i]);
        if (!slot) {
            detach(kv, waiter);
            return TETHER_ENOMEM;
        }
        slot->present = is_there(slot->entry, want);
        waiter->missing += !slot->present;
        tether__list_push_back(&slot->entry->extra->waiters, &slot->node);
    }
    return TETHER_OK;
}

tether_status tether__kv_wait_turn(struct tether__kv *kv,
                                   struct tether__kv_waiter *waiter,
                                   tether_bytes key,
                                   struct tether__kv_claim *claim,
                                   tether__kv_ready_fn *ready)
{
    waiter_init(waiter, 1, ready);
    waiter->claim = claim;
    waiter->missing = 1;
    struct tether__kv_slot *slot = add_slot(kv, waiter, key);
    if (!slot)
        return TETHER_ENOMEM;
    tether__list_push_back(&slot->entry->extra->takers, &slot->node);
    offer(kv, slot->entry);
    tether__kv_run_ready(kv);
    return TETHER_OK;
}

/* Hands the claimed element to a popper or to the next caller of wait_turn. */
static void unclaim(struct tether__kv *kv, struct tether__kv_claim *claim)
{
    struct tether__kv_entry *entry = claim->entry;
    claim->entry = NULL;
    entry->extra->n_claimed--;
    tether__kv_entry_give(kv, entry, tether__kv_entry_take(kv, entry), true);
    tether__kv_entry_changed(kv, entry); /* a popper may have got the last element */
}

void tether__kv_claim_drop(struct tether__kv *kv, struct tether__kv_claim *claim)
{
    if (!claim->entry)
        return;
    unclaim(kv, claim);
    tether__kv_run_ready(kv);
}

tether_status tether__kv_wait_pop(struct tether__kv *kv,
                                  struct tether__kv_waiter *waiter,
                                  tether_bytes key,
                                  tether__kv_ready_fn *ready)
{
    waiter_init(waiter, 1, ready);
    struct tether__kv_slot *slot = add_slot(kv, waiter, key);
    if (!slot)
        return TETHER_ENOMEM;
    struct tether__kv_extra *extra = slot->entry->extra;
    tether__list_push_back(&extra->poppers, &slot->node);
    if (tether__kv_entry_can_pop(slot->entry)) {
        waiter->item = tether__kv_entry_take(kv, slot->entry);
        if (extra->queue_len == 0)
            tether__kv_entry_changed(kv, slot->entry);
        make_ready(kv, waiter);
        tether__kv_run_ready(kv);
    }
    return TETHER_OK;
}

static struct tether__kv_waiter *member_of(const struct tether__heap_node *node)
{
    return tether__container_of(node, struct tether__kv_waiter, member);
}

bool tether__kv_member_less(const struct tether__heap_node *a, const struct tether__heap_node *b)
{
    return member_of(a)->world_size < member_of(b)->world_size;
}

void tether__kv_entry_counted(struct tether__kv *kv, struct tether__kv_entry *entry, int64_t sum)
{
    if (!entry->extra)
        return;
    for (struct tether__heap_node *top; (top = tether__heap_top(&entry->extra->members));) {
        struct tether__kv_waiter *waiter = member_of(top);
        kv->steps++;
        if (waiter->world_size > sum)
            break;
        tether__heap_remove(&entry->extra->members, top);
        waiter->is_member = false;
        /* Keeps the entry until this member is told, even if the ready() of another deletes it. */
        tether__list_push_back(&entry->extra->complete, &waiter->slots[0].node);
        make_ready(kv, waiter);
    }
    tether__kv_entry_changed(kv, entry);
}

tether_status tether__kv_wait_barrier(struct tether__kv *kv,
                                      struct tether__kv_waiter *waiter,
                                      tether_bytes key,
                                      int64_t world_size,
                                      tether__kv_ready_fn *ready)
{
    waiter_init(waiter, 1, ready);
    waiter->world_size = world_size;
    struct tether__kv_slot *slot = add_slot(kv, waiter, key);
    if (!slot)
        return TETHER_ENOMEM;
    int64_t sum;
    tether_status st = tether__kv_entry_add(kv, slot->entry, 1, &sum);
    if (st != TETHER_OK) {
        detach(kv, waiter);
        return st;
    }
    waiter->is_member = true;
    tether__heap_insert(&slot->entry->extra->members, &waiter->member);
    tether__kv_entry_counted(kv, slot->entry, sum);
    tether__kv_run_ready(kv);
    return TETHER_OK;
}

void tether__kv_cancel(struct tether__kv *kv, struct tether__kv_waiter *waiter)
{
    if (!waiter->node.next || (waiter->n == 0 && tether__list_empty(&waiter->node)))
        return;
    struct tether__kv_item *item = waiter->item;
    if (item) { /* its ready() has not run yet, so its element goes to the next popper */
        struct tether__kv_entry *entry = waiter->slots[0].entry;
        tether__list_remove(&waiter->slots[0].node);
        waiter->item = NULL;
        tether__kv_entry_give(kv, entry, item, true);
    }
    if (waiter->claim && waiter->claim->entry) {
        tether__list_remove(&waiter->slots[0].node);
        unclaim(kv, waiter->claim);
    }
    detach(kv, waiter);
}
