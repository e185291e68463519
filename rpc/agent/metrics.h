/* The counters of an agent, and how they are shown.
 *
 * Counters of one peer are under its lock; those of the agent are atomic. Counting costs an
 * addition or two per message and never an allocation.
 */
#ifndef TETHER_RPC_AGENT_METRICS_H
#define TETHER_RPC_AGENT_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"

struct tether_agent;
struct tether__metrics_server;

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
    uint64_t calls, errors;              /* ours to it */
    uint64_t bytes_sent, bytes_received; /* on the streams, both ways */
    uint64_t messages_sent, messages_received;
    uint64_t connects, fences, retries, retries_put_off;
};

/* A peer that is given up is shown for so long after it was last heard; then its counters are added
 * to those of peer="(gone)", which no worker can be called. */
#define TETHER__METRICS_KEEP_MS (5 * 60 * 1000)

void tether__metrics_call(struct tether__metrics *metrics, tether_status status, int64_t took_ns);
void tether__metrics_served(struct tether__metrics *metrics, tether_status status);

struct tether__peer;

/* Adds the counters of a peer to those of all peers that are gone. agent->mu and peer->mu are held.
 */
void tether__metrics_bury_locked(struct tether_agent *agent, struct tether__peer *peer);

/* Serves the text over HTTP at `listen` ("host:port") on a thread of its own. */
tether_status tether__metrics_serve(struct tether_agent *agent,
                                    const char *listen,
                                    struct tether__metrics_server **ret_server,
                                    tether_error *reterr);
const char *tether__metrics_address(const struct tether__metrics_server *server); /* LENDS */
void tether__metrics_stop(struct tether__metrics_server *server);                 /* NULL is fine */

#endif
