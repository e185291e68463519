/* The state of a dynamic rendezvous on etcd: one key, compared by its mod revision, and a heartbeat
 * key for each node on a lease that the node keeps alive, so that what a dead node leaves behind
 * goes away by itself.
 *
 *     tether_store_etcd_new(opts, &store, &err);
 *     tether_rdzv_backend_etcd_new(opts, "job-7", &backend, &err);
 *     tether_rdzv_new(&settings, store, backend, &rdzv, &err);
 *
 * In etcd, all is under the prefix of `opts`: rendezvous/<run id>/state, and
 * rendezvous/<run id>/beat/<node>. The state has a place in one request of etcd, 1.5 MiB unless
 * etcd was told otherwise: some 25,000 nodes.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_BACKEND_ETCD_H
#define TETHER_RENDEZVOUS_DYNAMIC_BACKEND_ETCD_H

#include "rendezvous/dynamic/backend.h"
#include "rendezvous/store_etcd.h"

TETHER_BEGIN_DECLS

/* Connects, as tether_store_etcd_new() does, with the same errors. Its name is "etcd".
 * `*ret_backend` is yours to release. Any thread; blocks. */
TETHER_API tether_status tether_rdzv_backend_etcd_new(const struct tether_store_etcd_opts *opts,
                                                      const char *run_id,
                                                      tether_rdzv_backend **ret_backend,
                                                      tether_error *reterr);

TETHER_END_DECLS

#endif
