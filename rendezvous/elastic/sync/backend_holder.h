/* Holds the full state, kept in step with a backend by compare-and-set.
 *
 * sync() writes the state when it is dirty. Otherwise it reads the state, unless the last read is
 * younger than the cache duration. Then it removes nodes whose heartbeats have stopped. A write
 * that is lost to another node brings in the state of that node.
 *
 * Heartbeats: each node publishes a number that it increments (heartbeat.h). An observer records on
 * its own clock when a number was new; it never uses the clock of another host. Only time in which
 * the observer could read the heartbeats counts: no node looks dead because the store or the
 * observer was suspended for a while (SIGSTOP, a sleeping machine).
 *
 * Not thread-safe.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_SYNC_BACKEND_HOLDER_H
#define TETHER_RENDEZVOUS_ELASTIC_SYNC_BACKEND_HOLDER_H

#include "rendezvous/elastic/backend/backend.h"
#include "rendezvous/elastic/sync/env.h"
#include "rendezvous/elastic/sync/heartbeat.h"
#include "rendezvous/elastic/sync/holder.h"

struct tether__rdzv_backend_holder {
    struct tether__rdzv_holder base;
    tether_rdzv_backend *backend;
    struct tether__rdzv_heartbeats
        *heartbeats; /* NULL: heartbeats are only those in `last_heartbeats` of the state */
    const struct tether_rdzv_settings *settings;
    const struct tether__rdzv_env *env;
    int64_t cache_ns; /* 0: always read; TETHER__NEVER: read only when a write was lost */

    struct tether__rdzv_state state;
    tether_buf token;
    bool dirty;
    bool synced;         /* `synced_at` is valid */
    int64_t synced_at;   /* when state and backend were last the same */
    bool listened;       /* `listened_at` is valid */
    int64_t listened_at; /* when the heartbeats were last read */
};

/* Allocates nothing and does no I/O. All pointers are borrowed. */
void tether__rdzv_backend_holder_init(struct tether__rdzv_backend_holder *holder,
                                      tether_rdzv_backend *backend,
                                      struct tether__rdzv_heartbeats *heartbeats,
                                      const struct tether_rdzv_settings *settings,
                                      const struct tether__rdzv_env *env,
                                      int64_t cache_ns);
void tether__rdzv_backend_holder_fini(struct tether__rdzv_backend_holder *holder);

/* Returns the time of the next read of heartbeats. */
int64_t tether__rdzv_backend_holder_listens_at(const struct tether__rdzv_backend_holder *holder);

/* Reads the heartbeats if that is due, and removes dead nodes from the lists of state(); gives how
 * many. The caller marks the state dirty to have the removal written. */
tether_status tether__rdzv_backend_holder_listen(struct tether__rdzv_backend_holder *holder,
                                                 int64_t deadline,
                                                 size_t *ret_dead,
                                                 tether_error *reterr);

#endif
