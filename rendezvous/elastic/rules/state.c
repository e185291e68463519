/* The state: heartbeats, completing a round, and ranks. */
#include "rendezvous/elastic/rules/state.h"

#include <string.h>

#include "base/alloc.h"

void tether__rdzv_state_init(struct tether__rdzv_state *state)
{
    memset(state, 0, sizeof *state);
    state->deadline = TETHER__NEVER;
}

void tether__rdzv_state_fini(struct tether__rdzv_state *state)
{
    tether__rdzv_roster_fini(&state->participants);
    tether__rdzv_roster_fini(&state->wait_list);
    tether__rdzv_roster_fini(&state->redundancy_list);
    tether__rdzv_roster_fini(&state->last_heartbeats);
    tether__rdzv_state_init(state);
}

tether_status tether__rdzv_state_heard(struct tether__rdzv_state *state,
                                       const struct tether__rdzv_node *node,
                                       int64_t now)
{
    struct tether__rdzv_member *member = tether__rdzv_roster_add(&state->last_heartbeats, node);
    if (!member)
        return TETHER_ENOMEM;
    member->heard_at = now;
    return TETHER_OK;
}

void tether__rdzv_state_participants_gone(struct tether__rdzv_state *state, size_t min_nodes)
{
    if (state->complete) {
        if (tether__rdzv_num_participants(state) == 0) {
            state->complete = false;
            state->world_size = 0;
            state->round++;
        }
    } else if (tether__rdzv_num_participants(state) < min_nodes) {
        state->deadline = TETHER__NEVER;
    }
}

size_t tether__rdzv_state_sanitize(struct tether__rdzv_state *state,
                                   int64_t expired,
                                   size_t min_nodes)
{
    size_t dead = 0;
    bool participant_gone = false;
    /* Starts at the end: removing several entries of an array is cheapest that way. */
    for (size_t i = state->last_heartbeats.n; i-- > 0;) {
        struct tether__rdzv_member *heard = state->last_heartbeats.members[i];
        if (heard->heard_at >= expired)
            continue;
        participant_gone |= tether__rdzv_roster_remove(&state->participants, &heard->node);
        tether__rdzv_roster_remove(&state->wait_list, &heard->node);
        tether__rdzv_roster_remove(&state->redundancy_list, &heard->node);
        tether__rdzv_roster_remove(&state->last_heartbeats, &heard->node);
        dead++;
    }
    if (participant_gone)
        tether__rdzv_state_participants_gone(state, min_nodes);
    return dead;
}

/* Gives members the rank that they prefer (the field at `offset`) if no other member has it. */
static void assign_preferred(struct tether__rdzv_roster *members, bool *taken, size_t offset)
{
    for (size_t i = 0; i < members->n; i++) {
        struct tether__rdzv_member *member = members->members[i];
        int32_t preferred;
        memcpy(&preferred, (char *)member + offset, sizeof preferred);
        if (member->rank >= 0 || preferred < 0 || (size_t)preferred >= members->n ||
            taken[preferred])
            continue;
        member->rank = preferred;
        taken[preferred] = true;
    }
}

tether_status tether__rdzv_state_complete(struct tether__rdzv_state *state)
{
    struct tether__rdzv_roster *members = &state->participants;
    bool *taken = tether__calloc(members->n + 1, sizeof *taken);
    if (!taken)
        return TETHER_ENOMEM;
    for (size_t i = 0; i < members->n; i++)
        members->members[i]->rank = -1;
    assign_preferred(members, taken, offsetof(struct tether__rdzv_member, hint));
    assign_preferred(members, taken, offsetof(struct tether__rdzv_member, previous));
    size_t next = 0;
    for (size_t i = 0; i < members->n; i++) {
        if (members->members[i]->rank >= 0)
            continue;
        while (taken[next])
            next++;
        members->members[i]->rank = (int32_t)next++;
    }
    tether__free(taken);
    state->complete = true;
    state->deadline = TETHER__NEVER;
    state->world_size = (int32_t)tether__rdzv_num_participants(state);
    return TETHER_OK;
}
