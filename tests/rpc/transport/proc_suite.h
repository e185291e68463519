/* The tests that every transport has to pass between two processes. */
#ifndef TETHER_TESTS_RPC_TRANSPORT_PROC_SUITE_H
#define TETHER_TESTS_RPC_TRANSPORT_PROC_SUITE_H

#include "tests/rpc/lib/transport_node.h"

/* Runs them over transports of that kind; all that main() does. */
int transport_proc_suite(const struct node_kind *kind, int argc, char **argv);

#endif
