/* Heartbeats: each node has a small key of its own and counts it up, so that a beat costs one write
 * of a few bytes however large the group is. They are kept by the backend where it has a way
 * (etcd: keys that go away by themselves), else in the store.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_PULSE_H
#define TETHER_RENDEZVOUS_DYNAMIC_PULSE_H

#include "rendezvous/dynamic/backend.h"
#include "rendezvous/dynamic/roster.h"
#include "rendezvous/store.h"

/* Immutable; both are borrowed. Any thread. */
struct tether__rdzv_pulse {
    tether_rdzv_backend *backend;
    tether_store *store; /* under the prefix of the rendezvous */
    int64_t ttl_ms;
};

/* Publishes beat number `count` of `node`. */
tether_status tether__rdzv_pulse_beat(const struct tether__rdzv_pulse *pulse,
                                      const struct tether__rdzv_node *node,
                                      uint64_t count,
                                      int timeout_ms,
                                      tether_error *reterr);

/* Gives the last published number of each member of `roster`, 0 for those that there is none of. */
tether_status tether__rdzv_pulse_read(const struct tether__rdzv_pulse *pulse,
                                      const struct tether__rdzv_roster *roster,
                                      int timeout_ms,
                                      uint64_t *ret_counts,
                                      tether_error *reterr);

/* Forgets the number of a node (as text) that has gone. Best effort. */
void tether__rdzv_pulse_forget(const struct tether__rdzv_pulse *pulse,
                               const char *node,
                               int timeout_ms);

#endif
