/* Shared by kv.c (entries and values), queue.c and wait.c (waiters). */
#ifndef TETHER_RENDEZVOUS_STORE_KV_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_KV_INTERNAL_H

#include "rendezvous/store/kv/kv.h"

/* Data that few keys need. Exists while one of its lists is not empty. */
struct tether__kv_extra {
    struct tether__list queue; /* tether__kv_item */
    /* both counts are of queued elements; `queue_len` includes the claimed ones */
    size_t queue_len, n_claimed;
    /* tether__kv_slot of callers of wait(), wait_turn() and wait_pop() */
    struct tether__list waiters, takers, poppers;
    /* whether the key had a value and a queue when `waiters` was last updated */
    bool had_value, had_queue;
    /* tether__kv_waiter of a barrier; the least world size is at the top */
    struct tether__heap members;
    struct tether__list complete; /* tether__kv_slot of members whose ready() has not run yet */
};

/* A key. The entry exists while it has a value or an extra. */
struct tether__kv_entry {
    tether_bytes key; /* the key in the map; points to `name` */
    tether_buf value; /* the value; data is NULL if there is none */
    struct tether__kv_extra *extra;
    char name[];
};

struct tether__kv_item {
    struct tether__list node;
    tether_buf value;
};

/* Return the entry of `key`. find() returns NULL when there is none, make() when out of memory. */
struct tether__kv_entry *tether__kv_entry_find(const struct tether__kv *kv, tether_bytes key);
struct tether__kv_entry *tether__kv_entry_make(struct tether__kv *kv, tether_bytes key);

/* Returns the entry of `key` with its extra, and makes both if necessary. NULL when out of memory.
 */
struct tether__kv_entry *tether__kv_entry_make_extra(struct tether__kv *kv, tether_bytes key);

/* Frees the extra, and the entry itself, when they are not needed any more. */
void tether__kv_entry_trim(struct tether__kv *kv, struct tether__kv_entry *entry);

static inline bool tether__kv_entry_present(const struct tether__kv_entry *entry)
{
    return entry->value.data || (entry->extra && entry->extra->queue_len > 0);
}

static inline bool tether__kv_entry_can_pop(const struct tether__kv_entry *entry)
{
    return entry->extra && entry->extra->queue_len > entry->extra->n_claimed;
}

/* Copies `value` to a buffer of exactly its size: most values never grow. */
tether_status tether__kv_copy_value(tether_bytes value, tether_buf *ret_copy);

/* Whether `old` bytes may be replaced by `new`. A change that frees memory is always allowed. */
static inline bool tether__kv_has_room(const struct tether__kv *kv, size_t old, size_t new)
{
    size_t others = kv->bytes - old;
    return new <= old || (others <= kv->max_bytes && new <= kv->max_bytes - others);
}

/* Takes the first element out of the queue, which is not empty. Call entry_changed() afterwards. */
struct tether__kv_item *tether__kv_entry_take(struct tether__kv *kv,
                                              struct tether__kv_entry *entry);

/* Adds to the number without completing waiters: call entry_counted() afterwards. */
tether_status tether__kv_entry_add(struct tether__kv *kv,
                                   struct tether__kv_entry *entry,
                                   int64_t delta,
                                   int64_t *ret_sum);

/* Updates the waiters of `entry` after a change; moves those that are complete to kv->ready. */
void tether__kv_entry_changed(struct tether__kv *kv, struct tether__kv_entry *entry);

/* Gives `item` to the popper that has waited longest, otherwise inserts it into the queue: at its
 * end, or at its front. */
void tether__kv_entry_give(struct tether__kv *kv,
                           struct tether__kv_entry *entry,
                           struct tether__kv_item *item,
                           bool at_front);

/* As entry_changed(), after an add: also completes the barrier members that wait for `sum`. */
void tether__kv_entry_counted(struct tether__kv *kv, struct tether__kv_entry *entry, int64_t sum);

/* Orders the members of a barrier. */
bool tether__kv_member_less(const struct tether__heap_node *a, const struct tether__heap_node *b);

/* Calls ready() of all complete waiters. The last step of every call that changes something. */
void tether__kv_run_ready(struct tether__kv *kv);

#endif
