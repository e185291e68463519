/* The state holder: a node's copy of the state, kept in step with the store.
 *
 * The caller reads state(), changes it, reports that with mark_dirty(), and calls sync(), which
 * sends the change and fetches news. Kinds: backend_holder.h (the full state, by compare-and-set)
 * and member.h (a node of a group with a leader). Not thread-safe except for pause().
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_SYNC_HOLDER_H
#define TETHER_RENDEZVOUS_ELASTIC_SYNC_HOLDER_H

#include "base/status.h"
#include "rendezvous/elastic/rules/actions.h"
#include "rendezvous/elastic/rules/state.h"

/* The outcome of the changes since the last sync(). */
enum tether__rdzv_sync {
    TETHER__RDZV_CLEAN,   /* there were no changes */
    TETHER__RDZV_WRITTEN, /* the changes are in force */
    TETHER__RDZV_LOST,    /* another node was faster: look at the state again */
    TETHER__RDZV_ASKED,   /* the changes were sent to the leader: read the state again later */
};

/* The next wait: plan() fills it in, pause() carries it out. */
struct tether__rdzv_pause {
    int64_t max_ns;
    char key[TETHER__RDZV_NODE_TEXT]; /* the pause ends once this key exists; empty: none */
};

struct tether__rdzv_holder {
    const struct tether__rdzv_holder_ops *ops;
};

struct tether__rdzv_holder_ops {
    /* Returns the state. LENDS; valid until the next sync(). */
    struct tether__rdzv_state *(*state)(struct tether__rdzv_holder *holder);

    /* Talks to the store until `deadline` at the latest. On error the changes are still unwritten
     * and the state may be old. */
    tether_status (*sync)(struct tether__rdzv_holder *holder,
                          int64_t deadline,
                          enum tether__rdzv_sync *ret_sync,
                          tether_error *reterr);

    /* Reports that `action` has been applied to state(). */
    void (*mark_dirty)(struct tether__rdzv_holder *holder, enum tether__rdzv_action action);

    /* plan() decides how to wait for news, `max_ns` at most; pause() waits. pause() may run while
     * another thread uses the holder. */
    void (*plan)(struct tether__rdzv_holder *holder,
                 int64_t max_ns,
                 struct tether__rdzv_pause *ret_pause);
    tether_status (*pause)(struct tether__rdzv_holder *holder,
                           const struct tether__rdzv_pause *pause,
                           tether_error *reterr);
};

#endif
