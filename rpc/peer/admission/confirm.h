/* Claims that workers cannot prove: the directory decides whether they are true. */
#ifndef TETHER_RPC_PEER_CONFIRM_H
#define TETHER_RPC_PEER_CONFIRM_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/agent.h"

/* replaced() notes that a later start of this worker has joined: from now on the sessions and calls
 * of this start fail with TETHER_EFENCED. Any lock may be held. */
#define TETHER__REPLACED "this worker has been replaced by a later start of the same name"

void tether__agent_replaced(tether_agent *agent);

/* Asks the directory whether this worker has been replaced, because a peer says so. Any lock may be
 * held. */
void tether__agent_on_replaced(tether_agent *agent);

/* Asks the directory about a client that claims, without proof, to be start `incarnation` of worker
 * `name`. If the directory confirms that, adds the peer. Only a few such look-ups run at once; a
 * client beyond that must dial again. */
void tether__agent_confirm(tether_agent *agent, const char *name, uint64_t incarnation);

#endif
