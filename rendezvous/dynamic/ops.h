/* What a node does next: the decisions of the rendezvous, as pure functions.
 *
 * Each op looks at the state, the settings and the time and says which action (actions.h) to take.
 * It is asked again after every action until it says FINISH or an error. An op changes nothing.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_OPS_H
#define TETHER_RENDEZVOUS_DYNAMIC_OPS_H

#include "rendezvous/dynamic/actions.h"
#include "rendezvous/dynamic/settings.h"
#include "rendezvous/dynamic/state.h"

/* A node that has run out of time while it joins tries for so long to take itself off the lists. */
#define TETHER__RDZV_ROLLBACK_NS (5 * TETHER__NS_PER_S)

/* What a decision is made from. */
struct tether__rdzv_context {
    const struct tether__rdzv_node *node; /* the one that decides */
    const struct tether__rdzv_state *state;
    const struct tether_rdzv_settings *settings;
    int64_t now;
};

typedef enum tether__rdzv_action tether__rdzv_op(const struct tether__rdzv_context *context,
                                                 int64_t deadline);

/* Leave the round that the node takes part in. */
tether__rdzv_op tether__rdzv_exit_op;

/* Be a participant of a complete round. */
tether__rdzv_op tether__rdzv_join_op;

/* Have the rendezvous closed. */
tether__rdzv_op tether__rdzv_close_op;

/* Have a heartbeat that is recent enough. */
tether__rdzv_op tether__rdzv_keep_alive_op;

#endif
