/* A clock that stands still until the test moves it. Any thread.
 *
 *     struct tether_test_clock clock = TETHER_TEST_CLOCK_INIT;
 *     struct lease *l = lease_new(&clock.base, 3000);
 *     tether_test_clock_advance_ms(&clock, 3001);
 */
#ifndef TETHER_TESTS_LIB_FAKE_CLOCK_H
#define TETHER_TESTS_LIB_FAKE_CLOCK_H

#include <stdatomic.h>

#include "base/clock.h"
#include "base/macros.h"

struct tether_test_clock {
    struct tether__clock base;
    _Atomic int64_t ns;
};

/* Initialises a clock at an arbitrary time, so that a test finds code that takes zero for "now" or
 * "never". */
#define TETHER_TEST_CLOCK_INIT ((struct tether_test_clock){{tether_test_clock_now_ns}, 1000000007})

static inline int64_t tether_test_clock_now_ns(const struct tether__clock *base)
{
    const struct tether_test_clock *clock =
        tether__container_of(base, struct tether_test_clock, base);
    return atomic_load(&clock->ns);
}

static inline void tether_test_clock_advance_ns(struct tether_test_clock *clock, int64_t ns)
{
    atomic_fetch_add(&clock->ns, ns);
}

static inline void tether_test_clock_advance_ms(struct tether_test_clock *clock, int64_t ms)
{
    tether_test_clock_advance_ns(clock, ms * TETHER__NS_PER_MS);
}

#endif
