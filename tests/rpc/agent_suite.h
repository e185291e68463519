/* The tests that every agent passes, over real gRPC or over the simulated network. */
#ifndef TETHER_TESTS_RPC_AGENT_SUITE_H
#define TETHER_TESTS_RPC_AGENT_SUITE_H

#include <stdbool.h>

int tether_test_agent_suite(bool over_sim); /* what main() returns */

#endif
