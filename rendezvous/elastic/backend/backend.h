/* A backend keeps the state of a dynamic rendezvous: one value, read whole and written by
 * compare-and-set.
 *
 * A backend returns the state together with a token: opaque bytes that identify this version of it
 * (the value itself, a revision number, a counter). A write names the token of the version that it
 * is based on. The backend refuses it when another write came in between. The bytes of the state
 * mean nothing to the backend.
 *
 * Ready-made: on any tether_store (TCP, file, hash; below) and on etcd (elastic/backend/etcd.h).
 * Your own: fill a tether_rdzv_backend_ops.
 *
 * Ownership: backends are counted. You own what a `ret_` argument returns; arguments are borrowed.
 *
 * Threads: any thread. get_state() and set_state() block until the backend has answered: not for
 * inline functions.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_BACKEND_BACKEND_H
#define TETHER_RENDEZVOUS_ELASTIC_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "base/status.h"
#include "rendezvous/store.h"

TETHER_BEGIN_DECLS

typedef struct tether_rdzv_backend tether_rdzv_backend;

/* Functions are called from any thread, one at a time per handler, several at once when handlers
 * share a backend. `timeout_ms` is never TETHER_DEFAULT_MS; out arguments are never NULL, and
 * buffers are initialised and replaced by tether_buf_assign(). */
struct tether_rdzv_backend_ops {
    size_t size; /* set it to sizeof(struct tether_rdzv_backend_ops) */

    /* Gives the state and its token; TETHER_ENOTFOUND when nothing has been written yet. */
    tether_status (*get_state)(void *impl,
                               int timeout_ms,
                               tether_buf *ret_state,
                               tether_buf *ret_token,
                               tether_error *reterr);

    /* Writes `state` if the present version is the one that `token` stands for (empty token: if
     * nothing has been written yet). `*ret_has_set` says whether it did; the buffers get the state
     * and token that are now in force. They stay empty when there is no state any more. */
    tether_status (*set_state)(void *impl,
                               tether_bytes state,
                               tether_bytes token,
                               int timeout_ms,
                               bool *ret_has_set,
                               tether_buf *ret_state,
                               tether_buf *ret_token,
                               tether_error *reterr);

    void (*destroy)(void *impl);

    /* beat and read_beats may be NULL: heartbeats are then kept in the handler's store.
     *
     * beat publishes `count` for `node`; after `ttl_ms` without another beat the backend may
     * delete it. read_beats gives the last count of each node, 0 for a node without one. */
    tether_status (*beat)(void *impl,
                          const char *node,
                          uint64_t count,
                          int64_t ttl_ms,
                          int timeout_ms,
                          tether_error *reterr);
    tether_status (*read_beats)(void *impl,
                                const char *const *nodes,
                                size_t n,
                                int timeout_ms,
                                uint64_t *ret_counts,
                                tether_error *reterr);
};

/* Makes a backend of `ops` (copied) and `impl`. tether_rdzv_backend_name() returns `name` (copied).
 * TAKES `impl` on success: destroy(impl) runs at the last release; on error it is still yours.
 * TETHER_EINVAL when a needed function is missing. */
TETHER_API tether_status tether_rdzv_backend_new(const struct tether_rdzv_backend_ops *ops,
                                                 void *impl,
                                                 const char *name,
                                                 tether_rdzv_backend **ret_backend,
                                                 tether_error *reterr);

/* Makes a backend that keeps the state of job `run_id` under one key of `store` (retained). The
 * value is its own token. The backend's name is "store". Does no I/O yet. TETHER_ENOMEM. */
TETHER_API tether_status tether_rdzv_backend_store_new(tether_store *store,
                                                       const char *run_id,
                                                       tether_rdzv_backend **ret_backend,
                                                       tether_error *reterr);

/* tether_rdzv_backend_retain() returns the same backend; release accepts NULL and returns NULL.
 * Any thread. */
TETHER_API tether_rdzv_backend *tether_rdzv_backend_retain(tether_rdzv_backend *backend);
TETHER_API tether_rdzv_backend *tether_rdzv_backend_release(tether_rdzv_backend *backend);

/* Returns the backend's name. LENDS, as long as the backend. Never fails. */
TETHER_API const char *tether_rdzv_backend_name(const tether_rdzv_backend *backend);

/* Call the functions of the table above, for tests and tools that read the state themselves. The
 * caller initialises the `ret_` buffers. Errors: TETHER_ENOTFOUND (get_state: nothing has been
 * written), or an error of the backend, usually TETHER_ETIMEOUT or TETHER_EUNAVAILABLE. */
TETHER_API tether_status tether_rdzv_backend_get_state(tether_rdzv_backend *backend,
                                                       int timeout_ms,
                                                       tether_buf *ret_state,
                                                       tether_buf *ret_token,
                                                       tether_error *reterr);
TETHER_API tether_status tether_rdzv_backend_set_state(tether_rdzv_backend *backend,
                                                       tether_bytes state,
                                                       tether_bytes token,
                                                       int timeout_ms,
                                                       bool *ret_has_set,
                                                       tether_buf *ret_state,
                                                       tether_buf *ret_token,
                                                       tether_error *reterr);

TETHER_END_DECLS

#endif
