/* The counters of an agent and of its peers.
 *
 * Counters of one peer are guarded by its lock; those of the agent are atomic. Counting a message
 * costs one or two additions and no allocation.
 */
#ifndef TETHER_RPC_AGENT_COUNTERS_H
#define TETHER_RPC_AGENT_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"

/* The number of latency buckets. Bucket i counts calls that took less than 2^i microseconds and
 * were not in a lower bucket; the last bucket counts all others. */
#define TETHER__LATENCY_BUCKETS 25

struct tether__metrics {
    _Atomic uint64_t calls_ok, calls_failed;   /* calls of this worker that have ended */
    _Atomic uint64_t served_ok, served_failed; /* calls of others that this worker has answered */
    _Atomic uint64_t latency[TETHER__LATENCY_BUCKETS];
    _Atomic uint64_t latency_sum_us;
};

/* The counters of one peer; under peer->mu. */
struct tether__peer_metrics {
    uint64_t calls, errors;              /* calls from this worker to the peer */
    uint64_t bytes_sent, bytes_received; /* on both streams */
    uint64_t messages_sent, messages_received;
    uint64_t connects, fences, retries, retries_put_off;
};

/* call() counts a call of this worker that has ended. served() counts a call of another worker that
 * was answered. */
void tether__metrics_call(struct tether__metrics *metrics, tether_status status, int64_t took_ns);
void tether__metrics_served(struct tether__metrics *metrics, tether_status status);

#endif
