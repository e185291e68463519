/* Ops: pure functions that decide what a node does next.
 *
 * Each op looks at the state, the settings and the time and returns the action (actions.h) to take.
 * The executor calls it again after every action until it returns FINISH or an error. An op changes
 * nothing.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_RULES_OPS_H
#define TETHER_RENDEZVOUS_ELASTIC_RULES_OPS_H

#include "rendezvous/elastic/rules/actions.h"
#include "rendezvous/elastic/rules/settings.h"
#include "rendezvous/elastic/rules/state.h"

/* A node whose time to join is over tries to leave the lists for this long. */
#define TETHER__RDZV_ROLLBACK_NS (5 * TETHER__NS_PER_S)

/* The inputs of a decision. */
struct tether__rdzv_context {
    const struct tether__rdzv_node *node; /* the node that acts */
    const struct tether__rdzv_state *state;
    const struct tether_rdzv_settings *settings;
    int64_t now;
};

typedef enum tether__rdzv_action tether__rdzv_op(const struct tether__rdzv_context *context,
                                                 int64_t deadline);

/* Goal: the node has left the round that it takes part in. */
tether__rdzv_op tether__rdzv_exit_op;

/* Goal: the node is a participant of a complete round. */
tether__rdzv_op tether__rdzv_join_op;

/* Goal: the rendezvous is closed. */
tether__rdzv_op tether__rdzv_close_op;

/* Goal: the last heartbeat of the node is younger than the keep-alive interval. */
tether__rdzv_op tether__rdzv_keep_alive_op;

#endif
