/* The sources of nondeterminism of a rendezvous beside its store: clock, sleep and random numbers.
 * Tests replace them, so that no real time passes.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_SYNC_ENV_H
#define TETHER_RENDEZVOUS_ELASTIC_SYNC_ENV_H

#include <stdint.h>

#include "base/clock.h"

/* The functions of an environment. An implementation with state embeds this struct as its first
 * field. */
struct tether__rdzv_env {
    const struct tether__clock *clock;
    void (*delay)(const struct tether__rdzv_env *env, int64_t ns);
    uint64_t (*random)(const struct tether__rdzv_env *env);
};

extern const struct tether__rdzv_env tether__rdzv_env_system;

static inline int64_t tether__rdzv_now(const struct tether__rdzv_env *env)
{
    return tether__clock_now_ns(env->clock);
}

static inline void tether__rdzv_delay(const struct tether__rdzv_env *env, int64_t ns)
{
    env->delay(env, ns);
}

/* Waits for a random time below `max_ns`. */
void tether__rdzv_delay_random(const struct tether__rdzv_env *env, int64_t max_ns);

/* Returns the time for one request to the store: until `deadline`, a minute at most. */
int tether__rdzv_io_ms(const struct tether__rdzv_env *env, int64_t deadline);

#endif
