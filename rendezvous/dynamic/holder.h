/* The state holder: a node's copy of the state and the way to keep it and the store in step.
 *
 * Its user looks at state(), changes it, says so with mark_dirty(), and calls sync(): that brings
 * the change out and news in. Kinds: backend_holder.h (the full state, by compare-and-set), and
 * member.h (what a node of a large group uses). Not thread-safe but for pause().
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_HOLDER_H
#define TETHER_RENDEZVOUS_DYNAMIC_HOLDER_H

#include "base/status.h"
#include "rendezvous/dynamic/actions.h"
#include "rendezvous/dynamic/state.h"

/* What has become of the changes since the last sync(). */
enum tether__rdzv_sync {
    TETHER__RDZV_CLEAN,   /* there were none */
    TETHER__RDZV_WRITTEN, /* they are in force */
    TETHER__RDZV_LOST,    /* somebody else was faster: look at the state again */
    TETHER__RDZV_ASKED,   /* they are on their way: look at the state again later */
};

/* Something to wait for; made by plan(), used by pause(). */
struct tether__rdzv_pause {
    int64_t max_ns;
    char key[TETHER__RDZV_NODE_TEXT]; /* ends the pause when it comes to exist; empty: nothing does
                                       */
};

struct tether__rdzv_holder {
    const struct tether__rdzv_holder_ops *ops;
};

struct tether__rdzv_holder_ops {
    /* LENDS; valid until the next sync(). */
    struct tether__rdzv_state *(*state)(struct tether__rdzv_holder *holder);

    /* Talks to the store, until `deadline` at the most. On error the changes are still to be
     * written; the state may be old. */
    tether_status (*sync)(struct tether__rdzv_holder *holder,
                          int64_t deadline,
                          enum tether__rdzv_sync *ret_sync,
                          tether_error *reterr);

    /* `action` has been applied to state(). */
    void (*mark_dirty)(struct tether__rdzv_holder *holder, enum tether__rdzv_action action);

    /* Plans to wait for news, for `max_ns` at the most, and then does so. pause() may run while
     * another thread uses the holder. */
    void (*plan)(struct tether__rdzv_holder *holder,
                 int64_t max_ns,
                 struct tether__rdzv_pause *ret_pause);
    tether_status (*pause)(struct tether__rdzv_holder *holder,
                           const struct tether__rdzv_pause *pause,
                           tether_error *reterr);
};

#endif
