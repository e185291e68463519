/* The system's clock, sleep and random numbers. */
#include "rendezvous/elastic/sync/env.h"

#include <sys/random.h>

#define IO_MS 60000 /* longest time for one request to the store */

static void sleep_ns(const struct tether__rdzv_env *env, int64_t ns)
{
    (void)env;
    tether__sleep_ns(ns);
}

static uint64_t random_u64(const struct tether__rdzv_env *env)
{
    uint64_t value;
    if (getrandom(&value, sizeof value, GRND_NONBLOCK) != (ssize_t)sizeof value)
        value = (uint64_t)tether__rdzv_now(env) * UINT64_C(0x9e3779b97f4a7c15);
    return value;
}

const struct tether__rdzv_env tether__rdzv_env_system = {
    .clock = &tether__clock_system,
    .delay = sleep_ns,
    .random = random_u64,
};

void tether__rdzv_delay_random(const struct tether__rdzv_env *env, int64_t max_ns)
{
    if (max_ns > 0)
        tether__rdzv_delay(env, (int64_t)(env->random(env) % (uint64_t)max_ns));
}

int tether__rdzv_io_ms(const struct tether__rdzv_env *env, int64_t deadline)
{
    int left = tether__deadline_left_ms(env->clock, deadline);
    return left < 0 || left > IO_MS ? IO_MS : left;
}
