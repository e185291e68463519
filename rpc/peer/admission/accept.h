/* Accepts connections from other workers and handles them until their handshake is over. */
#ifndef TETHER_RPC_PEER_ACCEPT_H
#define TETHER_RPC_PEER_ACCEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/agent.h"
#include "rpc/transport/transport.h"

extern const struct tether__transport_events tether__agent_transport_events;

/* Whether `name` is in the option allowed_peers; true if there is no such list. */
bool tether__name_is_allowed(const tether_agent *agent, const char *name);

/* Closes conns whose handshake has taken too long; returns when it must be called again. */
int64_t tether__pending_conns_tick(tether_agent *agent, int64_t now);

#endif
