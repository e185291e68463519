/* Ports for tests that must know theirs beforehand; where they needn't, bind to port 0. */
#ifndef TETHER_TESTS_LIB_PORT_H
#define TETHER_TESTS_LIB_PORT_H

/* A port of loopback that is free and stays so: below those that the kernel gives out by itself,
 * so that only somebody who asks for this very one could take it. Never the same twice in a row. */
int tether_test_quiet_port(void);

#endif
