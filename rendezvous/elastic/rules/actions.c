/* Applies actions to the state. */
#include "rendezvous/elastic/rules/actions.h"

const char *tether__rdzv_action_text(enum tether__rdzv_action action)
{
    static const char *const texts[] = {
#define X(name, text) [TETHER__RDZV_##name] = text,
        TETHER__RDZV_ACTION_MAP(X)
#undef X
    };
    return texts[action];
}

/* The heartbeat of a node before a change, to restore it when memory runs out half-way. */
struct heartbeat {
    bool known;
    int64_t heard_at;
};

static struct heartbeat heartbeat_of(const struct tether__rdzv_state *state,
                                     const struct tether__rdzv_node *node)
{
    const struct tether__rdzv_member *heard =
        tether__rdzv_roster_find(&state->last_heartbeats, node);
    return (struct heartbeat){heard != NULL, heard ? heard->heard_at : 0};
}

static void restore_heartbeat(struct tether__rdzv_state *state,
                              const struct tether__rdzv_node *node,
                              struct heartbeat was)
{
    if (was.known)
        tether__rdzv_state_heard(state, node,
                                 /* cannot fail, because the entry exists: it allocates nothing */
                                 was.heard_at);
    else
        tether__rdzv_roster_remove(&state->last_heartbeats, node);
}

/* Adds the node to `list` and records that it was heard; on failure does neither. */
static struct tether__rdzv_member *enter(struct tether__rdzv_state *state,
                                         struct tether__rdzv_roster *list,
                                         const struct tether__rdzv_self *self,
                                         int64_t now)
{
    struct heartbeat was = heartbeat_of(state, &self->node);
    if (tether__rdzv_state_heard(state, &self->node, now) != TETHER_OK)
        return NULL;
    struct tether__rdzv_member *member = tether__rdzv_roster_add(list, &self->node);
    if (!member) {
        restore_heartbeat(state, &self->node, was);
        return NULL;
    }
    member->hint = self->hint;
    member->previous = self->previous;
    return member;
}

static tether_status add_to_participants(struct tether__rdzv_state *state,
                                         const struct tether__rdzv_self *self,
                                         const struct tether_rdzv_settings *settings,
                                         int64_t now)
{
    struct heartbeat was = heartbeat_of(state, &self->node);
    struct tether__rdzv_member *member = enter(state, &state->participants, self, now);
    if (!member)
        return TETHER_ENOMEM;
    member->rank = 0;
    size_t count = tether__rdzv_num_participants(state);
    if (count == (size_t)settings->max_nodes) {
        if (tether__rdzv_state_complete(state) != TETHER_OK) {
            tether__rdzv_roster_remove(&state->participants, &self->node);
            restore_heartbeat(state, &self->node, was);
            return TETHER_ENOMEM;
        }
    } else if (count == (size_t)settings->min_nodes) {
        state->deadline = now + settings->timeouts.last_call_ms * TETHER__NS_PER_MS;
        state->last_calls++;
    }
    tether__rdzv_roster_remove(&state->wait_list, &self->node);
    return TETHER_OK;
}

static void leave(struct tether__rdzv_state *state,
                  struct tether__rdzv_roster *list,
                  const struct tether__rdzv_self *self)
{
    if (tether__rdzv_roster_remove(list, &self->node))
        tether__rdzv_roster_remove(&state->last_heartbeats, &self->node);
}

tether_status tether__rdzv_apply(struct tether__rdzv_state *state,
                                 enum tether__rdzv_action action,
                                 const struct tether__rdzv_self *self,
                                 const struct tether_rdzv_settings *settings,
                                 int64_t now)
{
    switch (action) {
        case TETHER__RDZV_KEEP_ALIVE:
            return tether__rdzv_state_heard(state, &self->node, now);
        case TETHER__RDZV_ADD_TO_PARTICIPANTS:
            return add_to_participants(state, self, settings, now);
        case TETHER__RDZV_ADD_TO_WAIT_LIST:
            if (!enter(state, &state->wait_list, self, now))
                return TETHER_ENOMEM;
            tether__rdzv_roster_remove(&state->redundancy_list, &self->node);
            return TETHER_OK;
        case TETHER__RDZV_ADD_TO_REDUNDANCY_LIST:
            return enter(state, &state->redundancy_list, self, now) ? TETHER_OK : TETHER_ENOMEM;
        case TETHER__RDZV_REMOVE_FROM_PARTICIPANTS:
            leave(state, &state->participants, self);
            tether__rdzv_state_participants_gone(state, (size_t)settings->min_nodes);
            return TETHER_OK;
        case TETHER__RDZV_REMOVE_FROM_WAIT_LIST:
            leave(state, &state->wait_list, self);
            return TETHER_OK;
        case TETHER__RDZV_REMOVE_FROM_REDUNDANCY_LIST:
            leave(state, &state->redundancy_list, self);
            return TETHER_OK;
        case TETHER__RDZV_MARK_COMPLETE:
            return tether__rdzv_state_complete(state);
        case TETHER__RDZV_MARK_CLOSED:
            state->closed = true;
            return TETHER_OK;
        default: /* SYNC, FINISH and the errors change nothing */
            return TETHER_OK;
    }
}
