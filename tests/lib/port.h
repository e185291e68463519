/* Ports for tests that must know theirs beforehand; where they needn't, bind to port 0. */
#ifndef TETHER_TESTS_LIB_PORT_H
#define TETHER_TESTS_LIB_PORT_H

#include <stdbool.h>

/* A port of loopback that is free and stays so: below those that the kernel gives out by itself,
 * so that only somebody who asks for this very one could take it. Never the same twice in a row. */
int tether_test_quiet_port(void);

/* Whether this machine has the address ::1. Fails the test on any error that does not say that the
 * kernel has no IPv6 or no such address, so that a test skips for this reason only. */
bool tether_test_has_ipv6(void);

#endif
