/* The agent's options, filled in and checked. */
#ifndef TETHER_RPC_AGENT_OPTIONS_H
#define TETHER_RPC_AGENT_OPTIONS_H

#include "rpc/agent.h"

/* Copies `from`, with defaults for what is zero and PEM files read in. On error nothing is left. */
tether_status tether__options_init(struct tether_agent_opts *opts,
                                   const struct tether_agent_opts *from,
                                   tether_error *reterr);
void tether__options_fini(struct tether_agent_opts *opts);

#endif
