/* Ports for tests that must know the port beforehand; all other tests bind to port 0. */
#ifndef TETHER_TESTS_LIB_PORT_H
#define TETHER_TESTS_LIB_PORT_H

#include <stdbool.h>

/* Returns a free port of loopback below the kernel's ephemeral ports, so that only a process that
 * asks for this port can take it. Two calls in a row return different ports. */
int tether_test_quiet_port(void);

/* Whether this machine has the address ::1. Fails the test on errors with another cause, so that a
 * test is skipped only for lack of IPv6. */
bool tether_test_has_ipv6(void);

#endif
