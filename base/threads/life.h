/* A reference count for memory with several owners, and a function that frees it after the last
 * release. Embed it in the object. It keeps the memory valid; whether the object can still be used
 * is up to the object.
 *
 * Threads: any. end() runs on the thread of the last release.
 */
#ifndef TETHER_BASE_THREADS_LIFE_H
#define TETHER_BASE_THREADS_LIFE_H

#include <stdatomic.h>
#include <stdint.h>

struct tether__life {
    _Atomic uint64_t refs;
    void (*end)(struct tether__life *life); /* frees the object; runs after the last release */
};

/* Starts with one reference, which the caller holds. */
static inline void tether__life_init(struct tether__life *life,
                                     void (*end)(struct tether__life *life))
{
    atomic_init(&life->refs, 1);
    life->end = end;
}

static inline void tether__life_retain(struct tether__life *life)
{
    atomic_fetch_add_explicit(&life->refs, 1, memory_order_relaxed);
}

static inline void tether__life_release(struct tether__life *life)
{
    if (atomic_fetch_sub_explicit(&life->refs, 1, memory_order_acq_rel) == 1)
        life->end(life);
}

#endif
