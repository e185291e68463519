/* The tests of an agent that run over every network. */
#ifndef TETHER_TESTS_RPC_AGENT_SUITE_H
#define TETHER_TESTS_RPC_AGENT_SUITE_H

#include "tests/rpc/lib/world.h"

int tether_test_agent_suite(enum tether_test_net over); /* returns the exit status for main() */

#endif
