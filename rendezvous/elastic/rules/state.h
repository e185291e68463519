/* The state of a rendezvous: its nodes, their lists, and how far the round is.
 *
 * A full state lists every node. A partial state, which is all that a follower has, lists only the
 * node itself and counts the others. The functions below give the same answers for both, so ops.h
 * can decide on either.
 *
 * Times are on the clock of the process that holds the state. They are never compared with those of
 * another host: nodes exchange only the time left of the last call, and heartbeat numbers.
 *
 * Uses no clock, socket or thread. Not thread-safe.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_RULES_STATE_H
#define TETHER_RENDEZVOUS_ELASTIC_RULES_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "rendezvous/elastic/rules/roster.h"

struct tether__rdzv_state {
    uint64_t round;
    bool complete;      /* the round has its members and ranks */
    bool closed;        /* no node can join any more */
    int32_t world_size; /* members when the round became complete; 0: it is not complete */

    /* The last call: runs while the round has enough nodes and more may join. */
    int64_t deadline; /* when the round becomes complete; TETHER__NEVER: no last call yet */
    /* number of last calls so far: tells a new last call from the present one */
    uint64_t last_calls;

    struct tether__rdzv_roster participants;    /* nodes of the round, with their ranks */
    struct tether__rdzv_roster wait_list;       /* nodes that wait for the next round */
    struct tether__rdzv_roster redundancy_list; /* spares: nodes for which the round has no room */
    /* heard_at and beat of the nodes in the lists above */
    struct tether__rdzv_roster last_heartbeats;

    /* Nodes that are in a list but not listed here (partial state). */
    struct tether__rdzv_others {
        size_t participants, waiting, redundant;
    } others;

    /* Kept by the leader (coordination/member.h). */
    uint64_t term;    /* term of the leader that wrote this state */
    uint64_t applied; /* number of the last request that this state contains */
};

void tether__rdzv_state_init(struct tether__rdzv_state *state);
void tether__rdzv_state_fini(struct tether__rdzv_state *state); /* leaves an empty state */

static inline size_t tether__rdzv_num_participants(const struct tether__rdzv_state *state)
{
    return state->participants.n + state->others.participants;
}

static inline size_t tether__rdzv_num_waiting(const struct tether__rdzv_state *state)
{
    return state->wait_list.n + state->others.waiting;
}

static inline size_t tether__rdzv_num_redundant(const struct tether__rdzv_state *state)
{
    return state->redundancy_list.n + state->others.redundant;
}

/* Records that `node` was heard at `now`. TETHER_ENOMEM: nothing changed. */
tether_status tether__rdzv_state_heard(struct tether__rdzv_state *state,
                                       const struct tether__rdzv_node *node,
                                       int64_t now);

/* Removes the nodes that were last heard before `expired` from every list; returns how many. Can't
 * fail. */
size_t tether__rdzv_state_sanitize(struct tether__rdzv_state *state,
                                   int64_t expired,
                                   size_t min_nodes);

/* Updates the round after participants have left: a complete round without participants gives way
 * to the next one; a last call ends when fewer than `min_nodes` are left. */
void tether__rdzv_state_participants_gone(struct tether__rdzv_state *state, size_t min_nodes);

/* Makes the round complete: ends the last call and gives every participant a rank. First come rank
 * hints: a hint counts if it is below the number of participants and no node sorted before has it.
 * Then nodes keep the rank of the last round where it is free. The rest take the free ranks in
 * order. TETHER_ENOMEM: nothing changed. */
tether_status tether__rdzv_state_complete(struct tether__rdzv_state *state);

#endif
