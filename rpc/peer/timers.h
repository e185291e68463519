/* The timers of one peer. */
#ifndef TETHER_RPC_PEER_TIMERS_H
#define TETHER_RPC_PEER_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct tether__peer;

/* Runs the peer's timers that are due by `now`. Returns when it must be called again.
 * `*ret_idle_is_over`: the peer has been idle for long enough to be dropped. */
int64_t tether__peer_tick(struct tether__peer *peer, int64_t now, bool *ret_idle_is_over);

/* Whether a message of this kind may be handed to the lane now (a test may say no). */
tether_status tether__peer_may_send(const struct tether__peer *peer, uint32_t kind);

/* Returns when the peer may be dropped if it stays idle; TETHER__NEVER: it is not idle. */
int64_t tether__peer_idle_until_locked(struct tether__peer *peer, int64_t now);

#endif
