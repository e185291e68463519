/* How much one peer can make this worker hold. */
#ifndef TETHER_RPC_PEER_LIMITS_H
#define TETHER_RPC_PEER_LIMITS_H

#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/wire/slice.h"

/* Limits on the memory that one peer can make this worker hold (docs/security.md has them all):
 * - replies that the peer has not acknowledged: a result that does not fit is replaced by an error;
 * - the same, when the peer goes on asking for more: then its session is fenced;
 * - arguments of its calls that have not finished, and the number of these;
 * - references in its messages that their owners have yet to confirm: others are refused;
 * - messages that it is owed for references and does not take: none of its messages with references
 *   is applied meanwhile. */
static inline size_t tether__most_unread(const tether_agent *agent)
{
    return 2 * agent->opts.max_bytes_per_peer + agent->opts.max_message_bytes;
}

static inline size_t tether__most_unread_asking(const tether_agent *agent)
{
    return tether__most_unread(agent) + agent->opts.max_bytes_per_peer;
}

static inline size_t tether__max_held_bytes(const tether_agent *agent)
{
    return 4 * agent->opts.max_bytes_per_peer;
}

static inline size_t tether__max_held_calls(const tether_agent *agent)
{
    return 2 * (size_t)agent->opts.max_calls_per_peer;
}

#define TETHER__REF_BYTES 512 /* bytes that a reference in the argument of a call counts as */

/* A reference that is to be confirmed takes about 1 KiB, with the request to its owner. */
static inline size_t tether__most_unconfirmed(const tether_agent *agent)
{
    size_t most = agent->opts.max_bytes_per_peer / 1024;
    return most > TETHER__MAX_REFS ? most : TETHER__MAX_REFS;
}

static inline size_t tether__most_gathered(const tether_agent *agent)
{
    size_t most = agent->opts.max_bytes_per_peer / 128;
    return most > TETHER__MAX_REFS ? most : TETHER__MAX_REFS;
}

#endif
