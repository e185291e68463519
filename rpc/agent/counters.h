/* The counters of an agent and of its peers.
 *
 * Counters of one peer are under its lock; those of the agent are atomic. Counting costs an
 * addition or two per message and never an allocation.
 */
#ifndef TETHER_RPC_AGENT_COUNTERS_H
#define TETHER_RPC_AGENT_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"

/* Latency of calls: bucket i counts those of less than 2^i microseconds, the last all others. */
#define TETHER__LATENCY_BUCKETS 25

struct tether__metrics {
    _Atomic uint64_t calls_ok, calls_failed;   /* ours, answered */
    _Atomic uint64_t served_ok, served_failed; /* others', answered */
    _Atomic uint64_t latency[TETHER__LATENCY_BUCKETS];
    _Atomic uint64_t latency_sum_us;
};

/* Of one peer; under peer->mu. */
struct tether__peer_metrics {
    uint64_t calls, errors;              /* calls from this worker to the peer */
    uint64_t bytes_sent, bytes_received; /* on the streams, both ways */
    uint64_t messages_sent, messages_received;
    uint64_t connects, fences, retries, retries_put_off;
};

/* Counts a call that has ended; one of another worker that was answered. */
void tether__metrics_call(struct tether__metrics *metrics, tether_status status, int64_t took_ns);
void tether__metrics_served(struct tether__metrics *metrics, tether_status status);

#endif
