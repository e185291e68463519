/* Holds the full state, kept in step with a backend by compare-and-set.
 *
 * sync() writes the state when it is dirty and else reads it, unless what was read is younger than
 * the cache duration. Either way nodes whose heartbeats have stopped are then taken off the lists.
 * A write that was lost brings the winner's state in.
 *
 * How a heartbeat is judged: each node publishes a number that it counts up (pulse.h). An observer
 * notes on its own clock when a number was new; no wall clock of another host is trusted. Only time
 * in which the observer could look is counted: a store or an observer that stood still for a while
 * (SIGSTOP, a sleeping machine) makes nobody look dead.
 *
 * Not thread-safe.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_BACKEND_HOLDER_H
#define TETHER_RENDEZVOUS_DYNAMIC_BACKEND_HOLDER_H

#include "rendezvous/dynamic/backend.h"
#include "rendezvous/dynamic/env.h"
#include "rendezvous/dynamic/holder.h"
#include "rendezvous/dynamic/pulse.h"

struct tether__rdzv_backend_holder {
    struct tether__rdzv_holder base;
    tether_rdzv_backend *backend;
    struct tether__rdzv_pulse *pulse; /* NULL: heartbeats are what state().last_heartbeats has */
    const struct tether_rdzv_settings *settings;
    const struct tether__rdzv_env *env;
    int64_t cache_ns; /* 0: read always; TETHER__NEVER: only when a write was lost */

    struct tether__rdzv_state state;
    tether_buf token;
    bool dirty;
    bool synced;         /* `synced_at` counts */
    int64_t synced_at;   /* the last time that state and backend were the same */
    bool listened;       /* `listened_at` counts */
    int64_t listened_at; /* the last look at the heartbeats */
};

/* Nothing is allocated and nobody is asked yet. `backend` is borrowed. */
void tether__rdzv_backend_holder_init(struct tether__rdzv_backend_holder *holder,
                                      tether_rdzv_backend *backend,
                                      struct tether__rdzv_pulse *pulse,
                                      const struct tether_rdzv_settings *settings,
                                      const struct tether__rdzv_env *env,
                                      int64_t cache_ns);
void tether__rdzv_backend_holder_fini(struct tether__rdzv_backend_holder *holder);

/* When the heartbeats will be looked at next. */
int64_t tether__rdzv_backend_holder_listens_at(const struct tether__rdzv_backend_holder *holder);

/* Looks at the heartbeats if it is time to and takes dead nodes off the lists of state(); says how
 * many. The caller marks the state dirty to have that written. */
tether_status tether__rdzv_backend_holder_listen(struct tether__rdzv_backend_holder *holder,
                                                 int64_t deadline,
                                                 size_t *ret_dead,
                                                 tether_error *reterr);

#endif
