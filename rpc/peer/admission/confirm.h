/* Claims of workers that cannot prove them: the directory decides. */
#ifndef TETHER_RPC_PEER_CONFIRM_H
#define TETHER_RPC_PEER_CONFIRM_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/agent.h"

/* We have been told that a later start of this worker has joined: from here on everything that it
 * has with others fails with TETHER_EFENCED. Any lock may be held. */
#define TETHER__REPLACED "this worker has been replaced by a later start of the same name"

void tether__agent_replaced(tether_agent *agent);

/* A peer says that this worker has been replaced: asks the directory. Any lock may be held. */
void tether__agent_on_replaced(tether_agent *agent);

/* A client says that it is start `incarnation` of worker `name`, and cannot prove it: asks the
 * directory, and makes the peer if the directory confirms it. A few at a time; the rest must come
 * again. */
void tether__agent_confirm(tether_agent *agent, const char *name, uint64_t incarnation);

#endif
