/* The actions that change the state of a rendezvous, each for one node. */
#ifndef TETHER_RENDEZVOUS_ELASTIC_RULES_ACTIONS_H
#define TETHER_RENDEZVOUS_ELASTIC_RULES_ACTIONS_H

#include "base/status.h"
#include "rendezvous/elastic/rules/settings.h"
#include "rendezvous/elastic/rules/state.h"

/* The list of actions: X(name, text for messages). */
#define TETHER__RDZV_ACTION_MAP(X)                                      \
    X(KEEP_ALIVE, "sends a heartbeat")                                  \
    X(ADD_TO_PARTICIPANTS, "joins the round")                           \
    X(ADD_TO_WAIT_LIST, "waits for the next round")                     \
    X(ADD_TO_REDUNDANCY_LIST, "stands by as a spare")                   \
    X(REMOVE_FROM_PARTICIPANTS, "leaves the round")                     \
    X(REMOVE_FROM_WAIT_LIST, "leaves the wait list")                    \
    X(REMOVE_FROM_REDUNDANCY_LIST, "stops being a spare")               \
    X(MARK_COMPLETE, "completes the round")                             \
    X(MARK_CLOSED, "closes the rendezvous")                             \
    X(SYNC, "looks again later")                                        \
    X(FINISH, "is done")                                                \
    X(ERROR_CLOSED, "finds the rendezvous closed")                      \
    X(ERROR_GRACEFUL_EXIT, "is a spare of a rendezvous that is closed") \
    X(ERROR_TIMEOUT, "has run out of time")

enum tether__rdzv_action {
#define X(name, text) TETHER__RDZV_##name,
    TETHER__RDZV_ACTION_MAP(X)
#undef X
};

/* Returns the text of an action, such as "joins the round". Static string. */
const char *tether__rdzv_action_text(enum tether__rdzv_action action);

/* Whether the action changes the state. */
static inline bool tether__rdzv_action_changes(enum tether__rdzv_action action)
{
    return action <= TETHER__RDZV_MARK_CLOSED;
}

/* The node that acts and the ranks that it prefers. */
struct tether__rdzv_self {
    struct tether__rdzv_node node;
    int32_t hint;     /* the rank that it prefers; -1: none */
    int32_t previous; /* the rank that it had in the last round; -1: none */
    uint64_t past;    /* rounds below this one are over for the node: it never rejoins them */
};

/* Applies an action to the state. An action that does not apply (leaving a list that the node is
 * not in) changes nothing. TETHER_ENOMEM: nothing has changed. */
tether_status tether__rdzv_apply(struct tether__rdzv_state *state,
                                 enum tether__rdzv_action action,
                                 const struct tether__rdzv_self *self,
                                 const struct tether_rdzv_settings *settings,
                                 int64_t now);

#endif
