/* Limits log messages that a client can cause at will: one line a minute, and the next line says
 * how many were left out.
 *
 *     unsigned left_out;
 *     if (tether__log_limit_passes(&limit, now, &left_out))
 *         tether__log(TETHER_LOG_WARN, "rpc", "refused %s (and %u more)", who, left_out);
 */
#ifndef TETHER_BASE_LOG_LIMIT_H
#define TETHER_BASE_LOG_LIMIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define TETHER__LOG_PAUSE_NS (60 * TETHER__NS_PER_S)

/* The state of a limit. It starts with all fields zero. */
struct tether__log_limit {
    _Atomic int64_t next; /* no line is written before this time */
    atomic_uint left_out; /* number of messages left out since the last line */
};

/* Returns whether the line may be written; `*ret_left_out` is the number of messages left out
 * since the last line. Any thread. */
static inline bool tether__log_limit_passes(struct tether__log_limit *limit,
                                            int64_t now,
                                            unsigned *ret_left_out)
{
    int64_t next = atomic_load(&limit->next);
    if ((next && now < next) ||
        !atomic_compare_exchange_strong(&limit->next, &next, now + TETHER__LOG_PAUSE_NS)) {
        atomic_fetch_add(&limit->left_out, 1);
        return false;
    }
    *ret_left_out = atomic_exchange(&limit->left_out, 0);
    return true;
}

#endif
