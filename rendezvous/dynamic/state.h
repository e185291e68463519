/* The state of a rendezvous: who is in the round, who waits, and how far the round is.
 *
 * A full state lists every node. A partial one, which is all that an ordinary node has of a large
 * group, lists only the node itself and counts the others; the questions below have the same answer
 * for both, so that the decisions (ops.h) can be made on either.
 *
 * Times are on the clock of the process that holds the state. They are never compared with those of
 * another host: what travels is how long the last call still lasts, and heartbeat numbers.
 *
 * No clock, socket or thread in here. Not thread-safe.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_STATE_H
#define TETHER_RENDEZVOUS_DYNAMIC_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "rendezvous/dynamic/roster.h"

struct tether__rdzv_state {
    uint64_t round;
    bool complete;      /* the round has its members and ranks */
    bool closed;        /* nobody can join any more */
    int32_t world_size; /* members when the round became complete; 0: it is not */

    /* The last call: set while enough nodes for a round are there and more may come. */
    int64_t deadline;    /* when the round becomes complete; TETHER__NEVER: no last call yet */
    uint64_t last_calls; /* how many there have been, so that two can be told apart */

    struct tether__rdzv_roster participants;    /* of the round; rank */
    struct tether__rdzv_roster wait_list;       /* for the next round */
    struct tether__rdzv_roster redundancy_list; /* spares: the round is full */
    struct tether__rdzv_roster last_heartbeats; /* heard_at, beat: of the nodes above */

    /* Nodes that are in a list but not listed here (partial state). */
    struct tether__rdzv_others {
        size_t participants, waiting, redundant;
    } others;

    /* Book-keeping of the node that leads (leader.h). */
    uint64_t term;   /* of the leader that wrote this */
    uint64_t folded; /* wishes up to this number are contained */
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

/* Notes that `node` was heard at `now`. TETHER_ENOMEM: nothing changed. */
tether_status tether__rdzv_state_heard(struct tether__rdzv_state *state,
                                       const struct tether__rdzv_node *node,
                                       int64_t now);

/* Takes the nodes that were last heard before `expired` off every list. Gives how many there were.
 * Can't fail. */
size_t tether__rdzv_state_sanitize(struct tether__rdzv_state *state,
                                   int64_t expired,
                                   size_t min_nodes);

/* What follows when participants have gone: a complete round that nobody is left in makes way for
 * the next one; a last call ends when fewer than `min_nodes` are left. */
void tether__rdzv_state_participants_gone(struct tether__rdzv_state *state, size_t min_nodes);

/* Makes the round complete: ends the last call and gives everybody a rank. A rank hint is honoured
 * where it is below the number of members and nobody sorted before has it; then those who had a
 * rank in the last round keep it; the rest take what is left, in their order. TETHER_ENOMEM:
 * nothing changed. */
tether_status tether__rdzv_state_complete(struct tether__rdzv_state *state);

#endif
