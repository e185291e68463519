/* Tether's transport as a contestant: `transport_bench contestant tcp|unix|local SPIN_US
 * CLIENT_CPU SERVER_CPU`, for the round trip of one message. "local" is the transport within a
 * host, the others are gRPC. */
#ifndef TETHER_BENCH_TRANSPORT_ECHO_H
#define TETHER_BENCH_TRANSPORT_ECHO_H

/* Runs the contestant or the server if the arguments say so; otherwise returns. */
void transport_echo_main(int argc, char **argv);

/* Runs `rounds` round trips of 64 bytes over that transport, for lib/counts.h. */
void transport_echo_rounds(const char *kind, long rounds);

#endif
