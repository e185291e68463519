/* The key-value core: keys, values, queues and their waiters. The hash store guards it with a
 * mutex; the store server runs it on its loop thread. No locks, no I/O, no clock.
 *
 * Happy path: set() makes a key present. A call that completes a waiter, which then has all its
 * keys, calls the waiter's ready() after the whole change has been applied. So a waiter sees a
 * multi_set completely or not at all.
 *
 * Failure: TETHER_ENOMEM, TETHER_ETOOBIG (a value beyond `max_value`, or all of them together
 * beyond `max_bytes`) and TETHER_EINVAL (add on something that is not a number) change nothing.
 *
 * Threads: none; the owner of the struct guards it, also during ready(). ready() may read, and
 * start and cancel waits, but must not change keys or queues.
 *
 * Memory: beside key and value a small key costs 48 bytes, its slot in the table and the rounding
 * of the allocator: 123 bytes in all at a million keys. Keys without queues and waiters pay nothing
 * for them.
 */
#ifndef TETHER_RENDEZVOUS_STORE_KV_KV_H
#define TETHER_RENDEZVOUS_STORE_KV_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/status.h"

struct tether__kv_entry; /* a key, with its value, queue and waiters */
struct tether__kv_item;  /* an element of a queue */

struct tether__kv {
    struct tether__map entries;
    struct tether__list ready; /* waiters that are complete and whose ready() was not called yet */
    size_t count;              /* entries that have a value */
    size_t max_value;
    size_t bytes; /* tether__kv_cost() of all values and queued elements */
    /* limit of `bytes`: changes beyond it return TETHER_ETOOBIG. No limit after init; set it at
     * any time. */
    size_t max_bytes;
    uint64_t steps; /* number of waiters that changes have checked so far; tests limit it */
};

/* The bytes that a value or a queued element is charged: key, value, and about the memory of table,
 * entry and allocator. */
#define TETHER__KV_OVERHEAD 128
static inline size_t tether__kv_cost(size_t key_len, size_t value_len)
{
    return key_len + value_len + TETHER__KV_OVERHEAD;
}

tether_status tether__kv_init(struct tether__kv *kv, size_t max_value);

/* Frees everything. There must be no waiters. Accepts zeroed memory. */
void tether__kv_fini(struct tether__kv *kv);

/* ---- Values --------------------------------------------------------------------------------- */

/* The value of `key`, LENT until the next change; false when there is none. */
bool tether__kv_get(const struct tether__kv *kv, tether_bytes key, tether_bytes *ret_value);

tether_status tether__kv_set(struct tether__kv *kv, tether_bytes key, tether_bytes value);

/* As set, but TAKES the memory of `value` on success (it is left empty): no copy. */
tether_status tether__kv_set_take(struct tether__kv *kv, tether_bytes key, tether_buf *value);

/* Sets all keys or, on error, none. A key that comes twice gets its last value. */
tether_status tether__kv_multi_set(struct tether__kv *kv,
                                   const tether_bytes *keys,
                                   const tether_bytes *values,
                                   size_t n);

tether_status tether__kv_append(struct tether__kv *kv, tether_bytes key, tether_bytes value);

tether_status tether__kv_add(struct tether__kv *kv,
                             tether_bytes key,
                             int64_t delta,
                             int64_t *ret_sum);

/* As tether_store_compare_set. `ret_value` is LENT until the next change (it may be `expected`
 * itself). */
tether_status tether__kv_compare_set(struct tether__kv *kv,
                                     tether_bytes key,
                                     tether_bytes expected,
                                     tether_bytes desired,
                                     bool *ret_swapped,
                                     tether_bytes *ret_value);

/* Deletes the value; a queue of that name stays. False when there was no value. */
bool tether__kv_delete(struct tether__kv *kv, tether_bytes key);

static inline size_t tether__kv_count(const struct tether__kv *kv)
{
    return kv->count;
}

/* Iterates over the keys that have a value, in no order; false at the end. No changes meanwhile.
 *
 *     struct tether__map_iter it = TETHER__MAP_ITER;
 *     for (tether_bytes key; tether__kv_next(&kv, &it, &key);)
 */
bool tether__kv_next(struct tether__kv *kv, struct tether__map_iter *it, tether_bytes *ret_key);

/* Copies all keys that have a value into a new array of `*ret_count` buffers. TETHER_ENOMEM. */
tether_status tether__kv_keys(struct tether__kv *kv, tether_buf **ret_keys, size_t *ret_count);

/* Calls `visit` for every value and every queued element; the elements of one queue come in their
 * order. Texts are LENT for the call. Ends with the first error of `visit` and returns it. */
typedef tether_status tether__kv_visit_fn(void *userdata,
                                          tether_bytes key,
                                          tether_bytes value,
                                          bool queued);
tether_status tether__kv_visit(struct tether__kv *kv, tether__kv_visit_fn *visit, void *userdata);

/* Whether `key` has a value or a queue that is not empty. */
bool tether__kv_present(const struct tether__kv *kv, tether_bytes key);

/* The sum that add() gives on `old` (NULL: no value). TETHER_EINVAL when `old` is not a whole
 * decimal number or the sum does not fit. For stores that keep their values elsewhere. */
tether_status tether__kv_sum(const tether_bytes *old, int64_t delta, int64_t *ret_sum);

/* ---- Queues --------------------------------------------------------------------------------- */

/* Gives the element to the caller that has waited longest in tether__kv_wait_pop(), otherwise
 * appends it to the queue. */
tether_status tether__kv_queue_push(struct tether__kv *kv, tether_bytes key, tether_bytes value);

/* Moves the first element to `ret_value` (replacing it); false when the queue is empty, or all of
 * its elements are reserved by claims. */
bool tether__kv_queue_pop(struct tether__kv *kv, tether_bytes key, tether_buf *ret_value);

/* The first element, LENT until the next change; false when the queue is empty. */
bool tether__kv_queue_first(const struct tether__kv *kv, tether_bytes key, tether_bytes *ret_value);

size_t tether__kv_queue_len(const struct tether__kv *kv, tether_bytes key);

/* Reserves one element for one caller (tether__kv_wait_turn). Zeroed memory: no claim. */
struct tether__kv_claim {
    struct tether__kv_entry *entry;
};

static inline bool tether__kv_has_claim(const struct tether__kv_claim *claim)
{
    return claim->entry != NULL;
}

/* Pops the reserved element if the claim belongs to the queue of `key`; otherwise returns false. */
bool tether__kv_claim_pop(struct tether__kv *kv,
                          struct tether__kv_claim *claim,
                          tether_bytes key,
                          tether_buf *ret_value);

/* Ends the reservation and gives the element to the next waiter. Does nothing without a claim. */
void tether__kv_claim_drop(struct tether__kv *kv, struct tether__kv_claim *claim);

/* ---- Waiting -------------------------------------------------------------------------------- */

struct tether__kv_waiter;

/* Called once when the wait is over, never after a cancel. The core does not use the waiter any
 * more, so it may be freed or used again. `popped` is the element of a wait_pop, which the callee
 * may move out of it (the core frees the rest); otherwise NULL. */
typedef void tether__kv_ready_fn(struct tether__kv_waiter *waiter, tether_buf *popped);

/* The keys that a waiter counts as present. */
enum tether__kv_want {
    TETHER__KV_WANT_ANY, /* a value or a queue that is not empty */
    TETHER__KV_WANT_VALUE,
    TETHER__KV_WANT_QUEUE, /* a queue that is not empty */
};

/* One key that a waiter waits for. */
struct tether__kv_slot {
    struct tether__list node; /* a node of a list of the entry */
    struct tether__kv_waiter *waiter;
    struct tether__kv_entry *entry;
    bool present;
};

/* Embed it in the object that waits. Only the core uses the fields. */
struct tether__kv_waiter {
    tether__kv_ready_fn *ready;
    struct tether__list node;      /* a node of kv->ready */
    struct tether__kv_slot *slots; /* array of `n` slots; points to `one` when n is 1 */
    struct tether__kv_slot one;
    size_t n, missing;
    enum tether__kv_want want;
    int64_t world_size;              /* of a barrier: how many arrivals complete it */
    struct tether__heap_node member; /* the node in the barrier's heap while `is_member` */
    bool is_member;
    struct tether__kv_item *item;   /* the element that a wait_pop() got */
    struct tether__kv_claim *claim; /* the claim that a wait_turn() fills in */
};

/* Calls `ready` as soon as all keys are present at the same time as `want` demands, perhaps before
 * it returns. On error it is not called. Keys need not outlive the call. */
tether_status tether__kv_wait(struct tether__kv *kv,
                              struct tether__kv_waiter *waiter,
                              enum tether__kv_want want,
                              const tether_bytes *keys,
                              size_t n,
                              tether__kv_ready_fn *ready);

/* As wait for one key, for a caller that pops afterwards. A value completes all waiters; an element
 * of a queue completes only the one that has waited longest, and gives it `claim`. `claim` must
 * outlive the wait and be empty before it. */
tether_status tether__kv_wait_turn(struct tether__kv *kv,
                                   struct tether__kv_waiter *waiter,
                                   tether_bytes key,
                                   struct tether__kv_claim *claim,
                                   tether__kv_ready_fn *ready);

/* Waits for an element of a queue and pops it. Callers are served in the order of their calls. */
tether_status tether__kv_wait_pop(struct tether__kv *kv,
                                  struct tether__kv_waiter *waiter,
                                  tether_bytes key,
                                  tether__kv_ready_fn *ready);

/* Adds one to the number at `key` and waits until it is at least `world_size`; plain adds count,
 * too. The caller stays counted when it cancels. */
tether_status tether__kv_wait_barrier(struct tether__kv *kv,
                                      struct tether__kv_waiter *waiter,
                                      tether_bytes key,
                                      int64_t world_size,
                                      tether__kv_ready_fn *ready);

/* Ends the wait without a call of ready(). Does nothing if ready() has been called or the waiter is
 * zeroed memory. */
void tether__kv_cancel(struct tether__kv *kv, struct tether__kv_waiter *waiter);

#endif
