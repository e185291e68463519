/* The agent's options, filled in and checked. */
#ifndef TETHER_RPC_AGENT_OPTIONS_H
#define TETHER_RPC_AGENT_OPTIONS_H

#include "rpc/agent.h"

/* Copies `from`, replaces zeros by defaults, and reads PEM files. On error there is nothing to
 * free. */
tether_status tether__options_init(struct tether_agent_opts *opts,
                                   const struct tether_agent_opts *from,
                                   tether_error *reterr);
void tether__options_fini(struct tether_agent_opts *opts);

#endif
