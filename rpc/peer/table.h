/* The agent's table of peers, the heap of peers whose timers are due, and the removal of idle
 * peers.
 *
 * Peers come into the table when this program, another worker's message or a handshake names them.
 * Each peer has a time when its timers are due next, in a heap: a tick costs as much as the peers
 * that are due, however many others there are.
 *
 * A peer is *idle* when it has no session, connection, call, attempt or gathered message. An idle
 * peer that nothing here refers to is dropped: after one lease if no start of it was ever known,
 * else after TETHER__KEEP_GONE_LEASES leases, in which users can see that it is dead or lost. Ranks
 * of a static group stay. docs/decisions.md ("Dropped peers") says what is remembered of them.
 *
 * Locks: agent->mu guards the table, agent->due_mu the heap. due_mu is a leaf.
 */
#ifndef TETHER_RPC_PEER_TABLE_H
#define TETHER_RPC_PEER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/heap.h"
#include "rpc/agent.h"

struct tether__peer;

#define TETHER__KEEP_GONE_LEASES 10

/* An entry of agent->peers, which is in the order in which peers were added. Entries of dropped
 * peers stay until the table is compacted, so that one drop costs little. */
struct tether__peer_entry {
    uint64_t serial;
    struct tether__peer *peer; /* NULL: dropped */
};

/* Adds a peer. The table takes the caller's count of it, except on TETHER_ENOMEM. */
tether_status tether__agent_add_peer_locked(tether_agent *agent, struct tether__peer *peer);

/* Returns the next peer in the order of addition, retained; NULL after the last. `*cursor` is 0
 * before the first call. Peers that are added or dropped between two calls do not make it skip or
 * repeat others. */
struct tether__peer *tether__agent_next_peer(tether_agent *agent, uint64_t *cursor);
struct tether__peer *tether__agent_next_peer_locked(tether_agent *agent,
                                                    uint64_t *cursor); /* not retained */

/* Makes the timers of the peer run at `due` at the latest. The caller holds peer->mu or has just
 * released it, and may hold any other lock. Cheap if the timers run by then anyway. */
void tether__peer_schedule(struct tether__peer *peer, int64_t due);

/* Runs the timers of all peers that are due by `now`, and drops peers that were idle for long
 * enough. Returns when it must be called again. Background thread. */
int64_t tether__peers_tick(tether_agent *agent, int64_t now);

bool tether__peer_is_due_first(const struct tether__heap_node *a,
                               const struct tether__heap_node *b);

/* Frees the table with the agent's memory. No other thread uses the agent any more. */
void tether__peers_fini(tether_agent *agent);

#endif
