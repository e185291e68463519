/* Workers of one process with the function "name", which returns the name of its worker. */
#ifndef TETHER_TESTS_RPC_NAMED_H
#define TETHER_TESTS_RPC_NAMED_H

#include "rpc/agent.h"

/* Starts an agent with that function. Fails the test when it does not start. */
tether_agent *named_start(const struct tether_agent_opts *opts);

/* Fails the test unless `to` answers `from` with its name. */
void named_call(tether_agent *from, const char *to);

#endif
