/* The tests that every transport has to pass. */
#ifndef TETHER_TESTS_RPC_TRANSPORT_SUITE_H
#define TETHER_TESTS_RPC_TRANSPORT_SUITE_H

#include "tests/rpc/lib/transport_node.h"

/* Runs the tests over transports of that kind. Returns the exit status for main(). */
int transport_suite(const struct node_kind *kind);

#endif
