#ifndef TETHER_RPC_PEER_LIMITS_H
#define TETHER_RPC_PEER_LIMITS_H

#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/wire/slice.h"

/* Limits on the memory that one peer can make this worker hold (docs/security.md has them all):
 * - most_unread(): bytes of replies that the peer has not acknowledged; a result beyond that is
 *   replaced by an error;
 * - most_unread_asking(): the same bytes when the peer sends another request; beyond that its
 *   session is fenced;
 * - max_held_bytes(), max_held_calls(): the peer's unfinished calls, and the bytes of their
 *   arguments;
 * - most_unconfirmed(): references in the peer's messages that their owners have not confirmed;
 *   further ones are refused;
 * - most_gathered(): items about references that wait to be sent to the peer; beyond that no
 *   message of the peer with references is applied. */
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

/* A reference that waits for confirmation takes about 1 KiB, the request to its owner included. */
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
