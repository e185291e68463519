/* What the kinds of stores and the calls on them share: the store object itself, and the fallbacks.
 * Not public.
 */
#ifndef TETHER_RENDEZVOUS_STORE_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_INTERNAL_H

#include <stdatomic.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "rendezvous/store.h"

struct tether_store {
    /* immutable */
    struct tether_store_ops ops; /* never shorter than ours: what the maker lacked is NULL */
    void *impl;
    char *description;
    tether_store *inner; /* a prefix store's, owned by its impl; otherwise NULL */
    /* atomic */
    atomic_int refs;
    atomic_int timeout_ms; /* unused when there is an inner store: its time-out counts */
};

/* Copies `text` to `to`, of `size` bytes, for an error message: too long, it loses its middle (the
 * end of a key or path tells most); bytes that don't print become '?'. Returns `to`. */
char *tether__store_shorten(const char *text, char *to, size_t size);

/* Ends a call that gives several values, and gives none unless all are there: hands out `values` on
 * TETHER_OK; frees what is left, the array too. NULL: there are none. */
static inline void tether__store_hand_out(tether_buf *values,
                                          size_t n,
                                          tether_status status,
                                          tether_buf *ret_values)
{
    for (size_t i = 0; values && i < n; i++) {
        if (status == TETHER_OK) {
            tether_buf old = ret_values[i];
            ret_values[i] = values[i];
            values[i] = old;
        }
        tether_buf_fini(&values[i]);
    }
    tether__free(values);
}

/* The extended calls on top of the needed ones, for a store whose ops lack them. Arguments have
 * been checked as for the ops; `deadline` is on tether__clock_system. */
tether_status tether__store_try_get_fallback(const tether_store *store,
                                             const char *key,
                                             int64_t deadline,
                                             tether_buf *ret_value,
                                             tether_error *reterr);
tether_status tether__store_append_fallback(const tether_store *store,
                                            const char *key,
                                            tether_bytes value,
                                            int64_t deadline,
                                            tether_error *reterr);
tether_status tether__store_multi_get_fallback(const tether_store *store,
                                               const char *const *keys,
                                               size_t n,
                                               int64_t deadline,
                                               tether_buf *ret_values,
                                               tether_error *reterr);
tether_status tether__store_multi_set_fallback(const tether_store *store,
                                               const char *const *keys,
                                               const tether_bytes *values,
                                               size_t n,
                                               int64_t deadline,
                                               tether_error *reterr);
tether_status tether__store_barrier_fallback(const tether_store *store,
                                             const char *key,
                                             int64_t world_size,
                                             int64_t deadline,
                                             tether_error *reterr);

#endif
