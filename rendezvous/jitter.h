/* How long to wait before trying again: twice as long each round, and never two callers alike, so
 * that those who collided once don't collide again. */
#ifndef TETHER_RENDEZVOUS_JITTER_H
#define TETHER_RENDEZVOUS_JITTER_H

#include <stdint.h>
#include <stdlib.h>

/* Nanoseconds, at random from the upper half of min(first * 2^round, longest). */
static inline int64_t tether__jitter_ns(unsigned round, int64_t first, int64_t longest)
{
    int64_t step = round < 20 && first << round < longest ? first << round : longest;
    return step / 2 + arc4random_uniform((uint32_t)(step / 2 / 1000) + 1) * INT64_C(1000);
}

#endif
