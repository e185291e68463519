/* The tests that every agent passes, over whatever carries calls. */
#ifndef TETHER_TESTS_RPC_AGENT_SUITE_H
#define TETHER_TESTS_RPC_AGENT_SUITE_H

#include "tests/rpc/lib/world.h"

int tether_test_agent_suite(enum tether_test_net over); /* what main() returns */

#endif
