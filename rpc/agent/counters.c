/* Counts calls. See counters.h. */
#include "rpc/agent/counters.h"

void tether__metrics_call(struct tether__metrics *metrics, tether_status status, int64_t took_ns)
{
    uint64_t us = took_ns > 0 ? (uint64_t)took_ns / 1000 : 0;
    unsigned bucket = us ? 64u - (unsigned)__builtin_clzll(us) : 0;
    if (bucket >= TETHER__LATENCY_BUCKETS)
        bucket = TETHER__LATENCY_BUCKETS - 1;
    atomic_fetch_add_explicit(status == TETHER_OK ? &metrics->calls_ok : &metrics->calls_failed, 1,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->latency[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->latency_sum_us, us, memory_order_relaxed);
}

void tether__metrics_served(struct tether__metrics *metrics, tether_status status)
{
    atomic_fetch_add_explicit(status == TETHER_OK ? &metrics->served_ok : &metrics->served_failed,
                              1, memory_order_relaxed);
}
