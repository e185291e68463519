/* Heartbeats: each node increments a small key of its own, so a heartbeat costs one write of a few
 * bytes in a group of any size. A backend that can keep heartbeats does (etcd: keys with a lease);
 * otherwise they are in the store.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_SYNC_HEARTBEAT_H
#define TETHER_RENDEZVOUS_ELASTIC_SYNC_HEARTBEAT_H

#include "rendezvous/elastic/backend/backend.h"
#include "rendezvous/elastic/rules/roster.h"
#include "rendezvous/store.h"

/* The place of the heartbeats. Immutable; backend and store are borrowed. Any thread. */
struct tether__rdzv_heartbeats {
    tether_rdzv_backend *backend;
    tether_store *store; /* the store under the prefix of the rendezvous */
    int64_t ttl_ms;
};

/* Writes heartbeat number `count` of `node`. */
tether_status tether__rdzv_heartbeat_send(const struct tether__rdzv_heartbeats *heartbeats,
                                          const struct tether__rdzv_node *node,
                                          uint64_t count,
                                          int timeout_ms,
                                          tether_error *reterr);

/* Gives the last number of each member of `roster`; 0 for a member without one. */
tether_status tether__rdzv_heartbeat_read(const struct tether__rdzv_heartbeats *heartbeats,
                                          const struct tether__rdzv_roster *roster,
                                          int timeout_ms,
                                          uint64_t *ret_counts,
                                          tether_error *reterr);

/* Deletes the number of a node (as text) that has left. Ignores errors. */
void tether__rdzv_heartbeat_delete(const struct tether__rdzv_heartbeats *heartbeats,
                                   const char *node,
                                   int timeout_ms);

#endif
