/* What the two halves of the key-value core share: kv.c (values and queues) and kv_wait.c. */
#ifndef TETHER_RENDEZVOUS_KV_INTERNAL_H
#define TETHER_RENDEZVOUS_KV_INTERNAL_H

#include "rendezvous/kv.h"

/* What few keys have. Exists while any of its lists has something in it. */
struct tether__kv_extra {
    struct tether__list queue;   /* tether__kv_item */
    size_t queue_len, n_claimed; /* the claimed ones are among the queue's */
    /* tether__kv_slot: wait, wait_turn, wait_pop, barrier */
    struct tether__list waiters, takers, poppers, members;
};

/* Exists while it has a value or an extra. */
struct tether__kv_entry {
    tether_bytes key; /* what the map sees; points to `name` */
    tether_buf value; /* data is NULL: no value */
    struct tether__kv_extra *extra;
    char name[];
};

struct tether__kv_item {
    struct tether__list node;
    tether_buf value;
};

/* The entry of `key`; NULL when there is none, or when no memory is left to make one. */
struct tether__kv_entry *tether__kv_entry_find(const struct tether__kv *kv, tether_bytes key);
struct tether__kv_entry *tether__kv_entry_make(struct tether__kv *kv, tether_bytes key);

/* The entry with its extra, both made when they are not there; NULL when out of memory. */
struct tether__kv_entry *tether__kv_entry_make_extra(struct tether__kv *kv, tether_bytes key);

/* Frees what the entry no longer needs, itself included. */
void tether__kv_entry_trim(struct tether__kv *kv, struct tether__kv_entry *entry);

static inline bool tether__kv_entry_present(const struct tether__kv_entry *entry)
{
    return entry->value.data || (entry->extra && entry->extra->queue_len > 0);
}

static inline bool tether__kv_entry_can_pop(const struct tether__kv_entry *entry)
{
    return entry->extra && entry->extra->queue_len > entry->extra->n_claimed;
}

/* Takes the first element out of the queue, which is not empty. Call entry_changed() afterwards. */
struct tether__kv_item *tether__kv_entry_take(struct tether__kv *kv,
                                              struct tether__kv_entry *entry);

/* Adds to the number without waking anybody up: call entry_counted() afterwards. */
tether_status tether__kv_entry_add(struct tether__kv *kv,
                                   struct tether__kv_entry *entry,
                                   int64_t delta,
                                   int64_t *ret_sum);

/* Tells the waiters of `entry` whether it is present now; those that are complete go to kv->ready.
 */
void tether__kv_entry_changed(struct tether__kv *kv, struct tether__kv_entry *entry);

/* Hands `item` to the popper that has waited longest, else puts it into the queue: at its end, or
 * back at its front. */
void tether__kv_entry_give(struct tether__kv *kv,
                           struct tether__kv_entry *entry,
                           struct tether__kv_item *item,
                           bool at_front);

/* As entry_changed(), after an add: tells those as well who wait at a barrier for the sum. */
void tether__kv_entry_counted(struct tether__kv *kv, struct tether__kv_entry *entry, int64_t sum);

/* Calls ready() of all that are complete. The last step of every call that changes something. */
void tether__kv_run_ready(struct tether__kv *kv);

#endif
