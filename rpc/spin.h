/* Whether it pays to spin before blocking: what the pollers of all transports go by.
 *
 * Before it blocks, a poller may look for events again and again for a while, letting others run in
 * between. Where the answer comes soon that saves the price of falling asleep and of being woken,
 * which on two CPUs is most of a round trip. Where it does not come it costs CPU time, so spins
 * that end without an event are counted: after a few in a row most polls go straight to blocking,
 * and only now and then one tries again. On a machine with one CPU nobody spins; to be bound to one
 * of several is no reason not to, since the peer may run on another.
 *
 * Belongs to one poller: no locks.
 */
#ifndef TETHER_RPC_SPIN_H
#define TETHER_RPC_SPIN_H

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#define TETHER__SPIN_FREE_MISSES 4     /* in a row, before polls are skipped */
#define TETHER__SPIN_MAX_SKIP_SHIFT 10 /* at most 1024 polls are skipped */

struct tether__spin {
    int64_t ns;      /* how long; 0: never */
    unsigned missed; /* spins in a row that ended without an event */
    unsigned skip;   /* polls that block at once before the next try */
};

static inline void tether__spin_init(struct tether__spin *spin, int spin_us)
{
    bool may = spin_us > 0 && sysconf(_SC_NPROCESSORS_ONLN) > 1;
    *spin = (struct tether__spin){.ns = may ? spin_us * INT64_C(1000) : 0};
}

/* Whether this poll spins; counts it if not. */
static inline bool tether__spin_may(struct tether__spin *spin)
{
    if (spin->ns == 0)
        return false;
    if (spin->skip > 0) {
        spin->skip--;
        return false;
    }
    return true;
}

static inline void tether__spin_hit(struct tether__spin *spin)
{
    spin->missed = 0;
}

static inline void tether__spin_missed(struct tether__spin *spin)
{
    if (spin->missed < TETHER__SPIN_FREE_MISSES + TETHER__SPIN_MAX_SKIP_SHIFT)
        spin->missed++;
    if (spin->missed > TETHER__SPIN_FREE_MISSES)
        spin->skip = 1u << (spin->missed - TETHER__SPIN_FREE_MISSES);
}

#endif
