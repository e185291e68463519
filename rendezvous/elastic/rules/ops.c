/* The ops. The order of the checks in the join op is the protocol: don't reorder them. */
#include "rendezvous/elastic/rules/ops.h"

static bool in(const struct tether__rdzv_roster *roster, const struct tether__rdzv_context *context)
{
    return tether__rdzv_roster_find(roster, context->node) != NULL;
}

static bool heartbeat_is_due(const struct tether__rdzv_context *context)
{
    const struct tether__rdzv_member *heard =
        tether__rdzv_roster_find(&context->state->last_heartbeats, context->node);
    int64_t interval = context->settings->keep_alive_interval_ms * TETHER__NS_PER_MS;
    return heard && heard->heard_at <= context->now - interval;
}

enum tether__rdzv_action tether__rdzv_exit_op(const struct tether__rdzv_context *context,
                                              int64_t deadline)
{
    if (!in(&context->state->participants, context))
        return TETHER__RDZV_FINISH;
    if (context->now > deadline)
        return TETHER__RDZV_ERROR_TIMEOUT;
    return TETHER__RDZV_REMOVE_FROM_PARTICIPANTS;
}

static enum tether__rdzv_action wait_for_others(const struct tether__rdzv_context *context)
{
    return heartbeat_is_due(context) ? TETHER__RDZV_KEEP_ALIVE : TETHER__RDZV_SYNC;
}

/* The deadline for joining has passed: leaves the lists first, unless that takes too long as well.
 */
static enum tether__rdzv_action give_up(const struct tether__rdzv_context *context,
                                        int64_t deadline)
{
    if (context->now <= deadline + TETHER__RDZV_ROLLBACK_NS) {
        if (in(&context->state->participants, context))
            return TETHER__RDZV_REMOVE_FROM_PARTICIPANTS;
        if (in(&context->state->wait_list, context))
            return TETHER__RDZV_REMOVE_FROM_WAIT_LIST;
    }
    return TETHER__RDZV_ERROR_TIMEOUT;
}

enum tether__rdzv_action tether__rdzv_join_op(const struct tether__rdzv_context *context,
                                              int64_t deadline)
{
    const struct tether__rdzv_state *state = context->state;
    size_t participants = tether__rdzv_num_participants(state);
    size_t min_nodes = (size_t)context->settings->min_nodes;
    size_t max_nodes = (size_t)context->settings->max_nodes;
    bool redundant = in(&state->redundancy_list, context);

    if (state->closed)
        return redundant ? TETHER__RDZV_ERROR_GRACEFUL_EXIT : TETHER__RDZV_ERROR_CLOSED;

    /* A spare waits without a deadline for as long as the round is full. */
    if (redundant) {
        if (participants == max_nodes)
            return wait_for_others(context);
        return TETHER__RDZV_REMOVE_FROM_REDUNDANCY_LIST;
    }

    bool participant = in(&state->participants, context);
    if (state->complete && participant)
        return TETHER__RDZV_FINISH;

    if (context->now > deadline)
        return give_up(context, deadline);

    if (state->complete) {
        bool waiting = in(&state->wait_list, context);
        if (participants < max_nodes && !waiting)
            return TETHER__RDZV_ADD_TO_WAIT_LIST;
        if (participants >= max_nodes && !waiting)
            return TETHER__RDZV_ADD_TO_REDUNDANCY_LIST;
    } else if (participant) {
        if (participants >= min_nodes && participants <= max_nodes &&
            state->deadline != TETHER__NEVER && state->deadline < context->now)
            return TETHER__RDZV_MARK_COMPLETE;
    } else {
        return TETHER__RDZV_ADD_TO_PARTICIPANTS;
    }
    return wait_for_others(context);
}

enum tether__rdzv_action tether__rdzv_close_op(const struct tether__rdzv_context *context,
                                               int64_t deadline)
{
    if (context->state->closed)
        return TETHER__RDZV_FINISH;
    if (context->now > deadline)
        return TETHER__RDZV_ERROR_TIMEOUT;
    return TETHER__RDZV_MARK_CLOSED;
}

enum tether__rdzv_action tether__rdzv_keep_alive_op(const struct tether__rdzv_context *context,
                                                    int64_t deadline)
{
    if (!heartbeat_is_due(context))
        return TETHER__RDZV_FINISH;
    if (context->now > deadline)
        return TETHER__RDZV_ERROR_TIMEOUT;
    return TETHER__RDZV_KEEP_ALIVE;
}
