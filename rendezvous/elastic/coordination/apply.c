/* Changes that the leader makes to the state on behalf of other nodes: the requests that have
 * arrived, and the steps that follow from the state and the time.
 *
 * ops.c makes the decisions, for one node at a time and without a deadline: each node watches its
 * own. A request may have a number but no key, because its node died before it wrote the key or is
 * slow. It delays the requests behind it for two seconds; then the leader skips it. A slow node
 * notices that, and asks again.
 */
#include <string.h>

#include "base/log.h"
#include "rendezvous/elastic/coordination/internal.h"
#include "rendezvous/elastic/rules/ops.h"

#define MISSING_NS (2 * TETHER__NS_PER_S)
#define MAX_STEPS 4 /* limit of the steps of one node: spare, wait list, participant */

/* ---- Changes for one node ------------------------------------------------------------------- */

static tether_status apply(struct tether__rdzv_member_holder *member,
                           enum tether__rdzv_action action,
                           const struct tether__rdzv_self *self,
                           tether_error *reterr)
{
    if (tether__rdzv_apply(&member->leadership->full.state, action, self, member->settings,
                           tether__rdzv_now(member->env)) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM,
                                "out of memory to change the rendezvous state");
    member->leadership->full.dirty = true;
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
            .state = &member->leadership->full.state,
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

/* Takes the next steps of up to `limit` nodes of `list`. Starts at the end, because a step may
 * remove a node from the list. */
static tether_status advance_list(struct tether__rdzv_member_holder *member,
                                  struct tether__rdzv_roster *list,
                                  size_t limit,
                                  tether_error *reterr)
{
    for (size_t i = list->n; i-- > 0 && limit > 0; limit--) {
        /* The entry is freed when the node moves to another list, so copy its node first. */
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

/* Nodes on the wait list join before a node whose request is applied now. */
static tether_status let_waiting_in(struct tether__rdzv_member_holder *member, tether_error *reterr)
{
    struct tether__rdzv_state *state = &member->leadership->full.state;
    if (state->complete || state->closed)
        return TETHER_OK;
    return advance_list(member, &state->wait_list, state->wait_list.n, reterr);
}

static tether_status leave(struct tether__rdzv_member_holder *member,
                           const struct tether__rdzv_self *self,
                           tether_error *reterr)
{
    const struct tether__rdzv_state *state = &member->leadership->full.state;
    tether_status st = TETHER_OK;
    if (tether__rdzv_roster_find(&state->participants, &self->node))
        st = apply(member, TETHER__RDZV_REMOVE_FROM_PARTICIPANTS, self, reterr);
    if (st == TETHER_OK && tether__rdzv_roster_find(&state->wait_list, &self->node))
        st = apply(member, TETHER__RDZV_REMOVE_FROM_WAIT_LIST, self, reterr);
    if (st == TETHER_OK && tether__rdzv_roster_find(&state->redundancy_list, &self->node))
        st = apply(member, TETHER__RDZV_REMOVE_FROM_REDUNDANCY_LIST, self, reterr);
    return st;
}

/* Lets a node join the round that is formed. Rounds below `past` in its request are over for it,
 * so it leaves those first. */
static tether_status join(struct tether__rdzv_member_holder *member,
                          const struct tether__rdzv_self *self,
                          tether_error *reterr)
{
    const struct tether__rdzv_state *state = &member->leadership->full.state;
    tether_status st = TETHER_OK;
    if (state->complete && state->round < self->past &&
        tether__rdzv_roster_find(&state->participants, &self->node))
        st = apply(member, TETHER__RDZV_REMOVE_FROM_PARTICIPANTS, self, reterr);
    if (st == TETHER_OK)
        st = let_waiting_in(member, reterr);
    return st == TETHER_OK ? advance(member, self, reterr) : st;
}

tether_status tether__rdzv_apply_request(struct tether__rdzv_member_holder *member,
                                         enum tether__rdzv_request_kind kind,
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
            tether__log(TETHER_LOG_WARN, "rendezvous",
                        "a request of a node at '%s' can't be decoded: ignored",
                        member->settings->run_id);
            return TETHER_OK;
    }
}

/* ---- Changes for all nodes ------------------------------------------------------------------ */

static tether_status apply_next(void *userdata,
                                enum tether__rdzv_request_kind kind,
                                const struct tether__rdzv_self *self,
                                tether_error *reterr)
{
    struct tether__rdzv_member_holder *member = userdata;
    tether_status st = tether__rdzv_apply_request(member, kind, self, reterr);
    if (st == TETHER_OK) {
        member->leadership->full.state.applied++;
        member->leadership->full.dirty = true;
    }
    return st;
}

tether_status tether__rdzv_apply_requests(struct tether__rdzv_member_holder *member,
                                          int timeout_ms,
                                          tether_error *reterr)
{
    struct tether__rdzv_leadership *lead = member->leadership;
    struct tether__rdzv_state *state = &lead->full.state;
    uint64_t count, taken = 0;
    tether_status st = tether__rdzv_request_count(member->store, timeout_ms, &count, reterr);
    if (st != TETHER_OK || count <= state->applied)
        return st;
    /* While a request is missing, read only that one: the others come after it. */
    uint64_t last = lead->missing == state->applied + 1 ? lead->missing : count;
    st = tether__rdzv_request_read(member->store, state->applied + 1, last, timeout_ms, apply_next,
                                   member, &taken, reterr);
    if (st != TETHER_OK || state->applied >= last)
        return st;
    int64_t now = tether__rdzv_now(member->env);
    if (lead->missing != state->applied + 1) {
        lead->missing = state->applied + 1;
        lead->missing_since = now;
    } else if (now - lead->missing_since >= MISSING_NS) {
        state->applied++;
        lead->full.dirty = true;
    }
    return TETHER_OK;
}

/* Moves the wait list to the spares, for a round that is full. Participants re-form as long as
 * nodes wait, so a node that can't get in must not stay on the wait list. */
static tether_status make_spares(struct tether__rdzv_member_holder *member, tether_error *reterr)
{
    struct tether__rdzv_state *state = &member->leadership->full.state;
    while (state->wait_list.n > 0) {
        const struct tether__rdzv_node *last =
            &state->wait_list.members[state->wait_list.n - 1]->node;
        if (tether__rdzv_roster_move(&state->redundancy_list, &state->wait_list, last) != TETHER_OK)
            return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for the list of spares");
        member->leadership->full.dirty = true;
    }
    return TETHER_OK;
}

tether_status tether__rdzv_advance_round(struct tether__rdzv_member_holder *member,
                                         tether_error *reterr)
{
    struct tether__rdzv_state *state = &member->leadership->full.state;
    size_t max_nodes = (size_t)member->settings->max_nodes;
    size_t taken = state->participants.n + state->wait_list.n;
    tether_status st = TETHER_OK;
    if (state->closed)
        return st;
    if (taken < max_nodes) /* let in as many spares as there is room for */
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
