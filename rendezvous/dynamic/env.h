/* What a rendezvous needs of the world beside its store: the time, a way to wait, and chance. Tests
 * bring their own, and then no real time passes.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_ENV_H
#define TETHER_RENDEZVOUS_DYNAMIC_ENV_H

#include <stdint.h>

#include "base/clock.h"

/* Embed it as the first field of one with state. */
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

/* Milliseconds that one request to the store may take when `deadline` is what counts. */
int tether__rdzv_io_ms(const struct tether__rdzv_env *env, int64_t deadline);

#endif
