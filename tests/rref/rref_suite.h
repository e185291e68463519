/* The tests of remote references that run over every transport. */
#ifndef TETHER_TESTS_RREF_RREF_SUITE_H
#define TETHER_TESTS_RREF_RREF_SUITE_H

#include "tests/rpc/lib/world.h"

int tether_test_rref_suite(enum tether_test_net over); /* returns the exit status for main() */

#endif
