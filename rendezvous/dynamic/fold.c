/* What the leader does to the state for others: the wishes that have come, and what follows from
 * the state and the time.
 *
 * The decisions are those of ops.c, asked for one node at a time and without a deadline: each node
 * watches its own. A wish that has a number but is not there (its node died in between, or is slow)
 * holds up those behind it for two seconds, then it is skipped. A slow node notices, and asks
 * again.
 */
#include <string.h>

#include "base/log.h"
#include "rendezvous/dynamic/member_internal.h"
#include "rendezvous/dynamic/ops.h"

#define HOLE_NS (2 * TETHER__NS_PER_S)
#define MAX_STEPS 4 /* of one node: spare, wait list, participant */

/* ---- Acting for one node -------------------------------------------------------------------- */

static tether_status apply(struct tether__rdzv_member_holder *member,
                           enum tether__rdzv_action action,
                           const struct tether__rdzv_self *self,
                           tether_error *reterr)
{
    if (tether__rdzv_apply(&member->full.state, action, self, member->settings,
                           tether__rdzv_now(member->env)) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory to change the rendezvous state");
    member->full.dirty = true;
    return TETHER_OK;
}

/* Takes the steps towards a complete round that `self` would take by itself. */
static tether_status advance(struct tether__rdzv_member_holder *member,
                             const struct tether__rdzv_self *self,
                             tether_error *reterr)
{
    for (int step = 0; step < MAX_STEPS; step++) {
        struct tether__rdzv_context context = {
            .node = &self->node,
            .state = &member->full.state,
            .settings = member->settings,
            .now = tether__rdzv_now(member->env),
        };
        enum tether__rdzv_action action = tether__rdzv_join_op(&context, TETHER__NEVER);
        if (!tether__rdzv_action_changes(action) || action == TETHER__RDZV_KEEP_ALIVE)
            break;
        tether_status st = apply(member, action, self, reterr);
        if (st != TETHER_OK)
            return st;
    }
    return TETHER_OK;
}

/* Lets the nodes of `list` take their next steps, as many as `limit`. From the end: a node may
 * leave the list. */
static tether_status advance_list(struct tether__rdzv_member_holder *member,
                                  struct tether__rdzv_roster *list,
                                  size_t limit,
                                  tether_error *reterr)
{
    for (size_t i = list->n; i-- > 0 && limit > 0; limit--) {
        /* The entry goes when the node changes lists; its name has to outlive that. */
        const struct tether__rdzv_member *entry = list->members[i];
        char addr[TETHER__RDZV_ADDR_MAX + 1];
        struct tether__rdzv_self self = {entry->node, entry->hint, entry->previous, 0};
        self.node.addr = strcpy(addr, entry->node.addr);
        tether_status st = advance(member, &self, reterr);
        if (st != TETHER_OK)
            return st;
    }
    return TETHER_OK;
}

/* Who waits for a round goes before who asks for one now. */
static tether_status let_waiting_in(struct tether__rdzv_member_holder *member, tether_error *reterr)
{
    struct tether__rdzv_state *state = &member->full.state;
    if (state->complete || state->closed)
        return TETHER_OK;
    return advance_list(member, &state->wait_list, state->wait_list.n, reterr);
}

static tether_status leave(struct tether__rdzv_member_holder *member,
                           const struct tether__rdzv_self *self,
                           tether_error *reterr)
{
    const struct tether__rdzv_state *state = &member->full.state;
    tether_status st = TETHER_OK;
    if (tether__rdzv_roster_find(&state->participants, &self->node))
        st = apply(member, TETHER__RDZV_REMOVE_FROM_PARTICIPANTS, self, reterr);
    if (st == TETHER_OK && tether__rdzv_roster_find(&state->wait_list, &self->node))
        st = apply(member, TETHER__RDZV_REMOVE_FROM_WAIT_LIST, self, reterr);
    if (st == TETHER_OK && tether__rdzv_roster_find(&state->redundancy_list, &self->node))
        st = apply(member, TETHER__RDZV_REMOVE_FROM_REDUNDANCY_LIST, self, reterr);
    return st;
}

/* A node that asks for another round has left the one that it is in. */
static tether_status join(struct tether__rdzv_member_holder *member,
                          const struct tether__rdzv_self *self,
                          tether_error *reterr)
{
    const struct tether__rdzv_state *state = &member->full.state;
    tether_status st = TETHER_OK;
    if (state->complete && state->round < self->past &&
        tether__rdzv_roster_find(&state->participants, &self->node))
        st = apply(member, TETHER__RDZV_REMOVE_FROM_PARTICIPANTS, self, reterr);
    if (st == TETHER_OK)
        st = let_waiting_in(member, reterr);
    return st == TETHER_OK ? advance(member, self, reterr) : st;
}

tether_status tether__rdzv_grant(struct tether__rdzv_member_holder *member,
                                 enum tether__rdzv_wish_kind kind,
                                 const struct tether__rdzv_self *self,
                                 tether_error *reterr)
{
    switch (kind) {
        case TETHER__RDZV_JOIN:
            return join(member, self, reterr);
        case TETHER__RDZV_LEAVE:
            return leave(member, self, reterr);
        case TETHER__RDZV_CLOSE:
            return apply(member, TETHER__RDZV_MARK_CLOSED, self, reterr);
        default:
            tether__log(TETHER_LOG_WARN, "rendezvous", "a wish at '%s' can't be read: ignored",
                        member->settings->run_id);
            return TETHER_OK;
    }
}

/* ---- Acting for all ------------------------------------------------------------------------- */

static tether_status fold_one(void *userdata,
                              enum tether__rdzv_wish_kind kind,
                              const struct tether__rdzv_self *self,
                              tether_error *reterr)
{
    struct tether__rdzv_member_holder *member = userdata;
    tether_status st = tether__rdzv_grant(member, kind, self, reterr);
    if (st == TETHER_OK) {
        member->full.state.folded++;
        member->full.dirty = true;
    }
    return st;
}

tether_status tether__rdzv_fold(struct tether__rdzv_member_holder *member,
                                int timeout_ms,
                                tether_error *reterr)
{
    struct tether__rdzv_state *state = &member->full.state;
    uint64_t count, taken = 0;
    tether_status st = tether__rdzv_wish_count(&member->notes, timeout_ms, &count, reterr);
    if (st != TETHER_OK || count <= state->folded)
        return st;
    /* Past a hole only when it has been filled; a single look tells. */
    uint64_t last = member->hole == state->folded + 1 ? member->hole : count;
    st = tether__rdzv_wish_read(&member->notes, state->folded + 1, last, timeout_ms, fold_one,
                                member, &taken, reterr);
    if (st != TETHER_OK || state->folded >= last)
        return st;
    int64_t now = tether__rdzv_now(member->env);
    if (member->hole != state->folded + 1) {
        member->hole = state->folded + 1;
        member->hole_since = now;
    } else if (now - member->hole_since >= HOLE_NS) {
        state->folded++;
        member->full.dirty = true;
    }
    return TETHER_OK;
}

/* A full round leaves nothing to wait for: who waits becomes a spare, or those in the round would
 * break up and form again without end. */
static tether_status make_spares(struct tether__rdzv_member_holder *member, tether_error *reterr)
{
    struct tether__rdzv_state *state = &member->full.state;
    while (state->wait_list.n > 0) {
        const struct tether__rdzv_node *last =
            &state->wait_list.members[state->wait_list.n - 1]->node;
        if (tether__rdzv_roster_move(&state->redundancy_list, &state->wait_list, last) != TETHER_OK)
            return tether_error_set(reterr, TETHER_ENOMEM, "no memory for the list of spares");
        member->full.dirty = true;
    }
    return TETHER_OK;
}

/* What follows from the state and the time, whoever's turn it would be. */
tether_status tether__rdzv_settle(struct tether__rdzv_member_holder *member, tether_error *reterr)
{
    struct tether__rdzv_state *state = &member->full.state;
    size_t max_nodes = (size_t)member->settings->max_nodes;
    size_t taken = state->participants.n + state->wait_list.n;
    tether_status st = TETHER_OK;
    if (state->closed)
        return st;
    if (taken < max_nodes) /* no more spares than there is room for */
        st = advance_list(member, &state->redundancy_list, max_nodes - taken, reterr);
    if (st == TETHER_OK)
        st = let_waiting_in(member, reterr);
    if (st == TETHER_OK && !state->complete && state->participants.n > 0 &&
        state->deadline < tether__rdzv_now(member->env)) {
        const struct tether__rdzv_member *any = state->participants.members[0];
        struct tether__rdzv_self self = {any->node, any->hint, any->previous, 0};
        st = advance(member, &self, reterr);
    }
    if (st == TETHER_OK && state->complete && state->participants.n >= max_nodes)
        st = make_spares(member, reterr);
    return st;
}
