/* Tether's transport as a contestant: `transport_bench contestant tcp|unix|near SPIN_US
 * CLIENT_CPU SERVER_CPU`, one message there and back. "near" is the transport of one host, the
 * others are gRPC. */
#ifndef TETHER_BENCH_TRANSPORT_ECHO_H
#define TETHER_BENCH_TRANSPORT_ECHO_H

/* Answers questions, or is the server; returns if the arguments ask for neither. */
void transport_echo_main(int argc, char **argv);

/* So many round trips of 64 bytes over that transport, for lib/counts.h. */
void transport_echo_rounds(const char *kind, long rounds);

#endif
