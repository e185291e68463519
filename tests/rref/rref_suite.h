/* The tests of remote references, over real gRPC or over the simulated network. */
#ifndef TETHER_TESTS_RREF_RREF_SUITE_H
#define TETHER_TESTS_RREF_RREF_SUITE_H

#include <stdbool.h>

int tether_test_rref_suite(bool over_sim); /* what main() returns */

#endif
