/* A backend on etcd: one key for the state, compared by its mod revision, and a heartbeat key for
 * each node. The node keeps the lease of its key alive, so etcd deletes the keys of dead nodes.
 *
 *     tether_store_etcd_new(opts, &store, &err);
 *     tether_rdzv_backend_etcd_new(opts, "job-7", &backend, &err);
 *     tether_rdzv_new(&settings, store, backend, &rdzv, &err);
 *
 * All keys are under the prefix of `opts`: rendezvous/<run id>/state, and
 * rendezvous/<run id>/beat/<node>. The state must fit into one etcd request, 1.5 MiB by default:
 * about 25,000 nodes.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_BACKEND_ETCD_H
#define TETHER_RENDEZVOUS_ELASTIC_BACKEND_ETCD_H

#include "rendezvous/elastic/backend/backend.h"
#include "rendezvous/store_etcd.h"

TETHER_BEGIN_DECLS

/* Connects as tether_store_etcd_new() does, with the same errors. The backend's name is "etcd".
 * `*ret_backend` is yours to release. Any thread; blocks. */
TETHER_API tether_status tether_rdzv_backend_etcd_new(const struct tether_store_etcd_opts *opts,
                                                      const char *run_id,
                                                      tether_rdzv_backend **ret_backend,
                                                      tether_error *reterr);

TETHER_END_DECLS

#endif
