/* Heartbeats of a backend that keeps them itself. sync/heartbeat.c keeps those of other backends.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_BACKEND_HEARTBEATS_H
#define TETHER_RENDEZVOUS_ELASTIC_BACKEND_HEARTBEATS_H

#include "rendezvous/elastic/backend/backend.h"

/* Whether the backend keeps heartbeats, so that the two functions below may be called. */
bool tether__rdzv_backend_has_beats(const tether_rdzv_backend *backend);

tether_status tether__rdzv_backend_beat(tether_rdzv_backend *backend,
                                        const char *node,
                                        uint64_t count,
                                        int64_t ttl_ms,
                                        int timeout_ms,
                                        tether_error *reterr);
tether_status tether__rdzv_backend_read_beats(tether_rdzv_backend *backend,
                                              const char *const *nodes,
                                              size_t n,
                                              int timeout_ms,
                                              uint64_t *ret_counts,
                                              tether_error *reterr);

#endif
