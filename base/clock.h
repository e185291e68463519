/* Clocks: code that depends on the time gets a clock as an argument, so that tests can replace it.
 * Deadlines are absolute nanoseconds of that clock.
 */
#ifndef TETHER_BASE_CLOCK_H
#define TETHER_BASE_CLOCK_H

#include <stdint.h>

#include "base/macros.h"

/* Embed it as the first field of a clock with state (tests/lib/fake_clock.h does). */
struct tether__clock {
    /* Nanoseconds since some fixed moment; never goes back. Any thread. */
    int64_t (*now_ns)(const struct tether__clock *clock);
};

/* The system clock, CLOCK_BOOTTIME: it counts while the machine is suspended, so that leases
 * expire meanwhile. */
extern const struct tether__clock tether__clock_system;

#define TETHER__NS_PER_MS INT64_C(1000000)
#define TETHER__NS_PER_S INT64_C(1000000000)
#define TETHER__NEVER INT64_MAX /* the deadline that never comes */

static inline int64_t tether__clock_now_ns(const struct tether__clock *clock)
{
    return clock->now_ns(clock);
}

static inline int64_t tether__clock_now_ms(const struct tether__clock *clock)
{
    return clock->now_ns(clock) / TETHER__NS_PER_MS;
}

/* The moment `timeout_ms` from now; negative: TETHER__NEVER. Saturates. */
int64_t tether__deadline_in(const struct tether__clock *clock, int timeout_ms);

/* Milliseconds left until `deadline`, rounded up so that a wait never ends early: 0 when it has
 * passed, -1 for TETHER__NEVER, INT_MAX at most. */
int tether__deadline_left_ms(const struct tether__clock *clock, int64_t deadline);
/* Like tether__deadline_left_ms(), for a caller that has just read the clock. */
int tether__deadline_left_ms_at(int64_t now, int64_t deadline);

/* Sleeps for `ns` on the monotonic clock, also when signals interrupt it. */
void tether__sleep_ns(int64_t ns);

#endif
