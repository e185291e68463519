/* Decides whether it pays to spin before blocking, for the pollers of all transports.
 *
 * Before it blocks, a poller may look for events again and again for a while, letting others run in
 * between. Where the answer comes soon that saves the price of falling asleep and of being woken,
 * which on two CPUs is most of a round trip. It is in vain where
 * - the answer does not come in that time: then it only costs CPU time;
 * - others want the CPU: a thread that yields gets it back when their turn is over, after
 *   milliseconds, while a thread that sleeps and is woken goes before them.
 * Such spins are counted: after a few in a row most polls go straight to blocking, and only now and
 * then one tries again. On a machine with one CPU no thread spins; to be bound to one of several is
 * no reason not to, since the peer may run on another.
 *
 * Belongs to one poller: no locks.
 */
#ifndef TETHER_RPC_TRANSPORT_SPIN_H
#define TETHER_RPC_TRANSPORT_SPIN_H

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#define TETHER__SPIN_FREE_MISSES 4     /* after so many failed spins in a row polls are skipped */
#define TETHER__SPIN_MAX_SKIP_SHIFT 10 /* at most 1024 polls are skipped */
/* if a spin took so long, another process has used the CPU meanwhile */
#define TETHER__SPIN_TURN_NS 700000
#define TETHER__SPIN_TURN_SHIFT 5 /* after such a spin 64 polls or more are skipped */

struct tether__spin {
    int64_t ns;      /* how long to spin; 0: never */
    unsigned missed; /* spins in a row that found no event */
    unsigned skip;   /* polls that block at once before the next try */
};

static inline void tether__spin_init(struct tether__spin *spin, int spin_us)
{
    bool may = spin_us > 0 && sysconf(_SC_NPROCESSORS_ONLN) > 1;
    *spin = (struct tether__spin){.ns = may ? spin_us * INT64_C(1000) : 0};
}

/* Returns whether this poll spins. If not, counts it as skipped. */
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

/* Records a spin that found no event. */
static inline void tether__spin_missed(struct tether__spin *spin)
{
    if (spin->missed < TETHER__SPIN_FREE_MISSES + TETHER__SPIN_MAX_SKIP_SHIFT)
        spin->missed++;
    if (spin->missed > TETHER__SPIN_FREE_MISSES)
        spin->skip = 1u << (spin->missed - TETHER__SPIN_FREE_MISSES);
}

/* Records a spin that found an event `took_ns` after its begin. If another process used the CPU
 * meanwhile, that costs more than many spins save, so many hits are needed to forget it. */
static inline void tether__spin_hit(struct tether__spin *spin, int64_t took_ns)
{
    if (took_ns > TETHER__SPIN_TURN_NS) {
        if (spin->missed < TETHER__SPIN_FREE_MISSES + TETHER__SPIN_TURN_SHIFT)
            spin->missed = TETHER__SPIN_FREE_MISSES + TETHER__SPIN_TURN_SHIFT;
        tether__spin_missed(spin);
    } else if (spin->missed > 0) {
        spin->missed--;
    }
}

#endif
