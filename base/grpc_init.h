/* Starting gRPC: everything in Tether that uses it does so through here, since the first start in a
 * process settles how gRPC polls for good.
 */
#ifndef TETHER_BASE_GRPC_INIT_H
#define TETHER_BASE_GRPC_INIT_H

/* grpc_init(), the first time with Tether's choices in place: how to poll (unless
 * GRPC_POLL_STRATEGY says otherwise), and gRPC's messages to the log hook (unless GRPC_VERBOSITY or
 * GRPC_TRACE asks for gRPC's own log). `expected_peers` is how many connections there will be,
 * about; 0: not known. Pairs with grpc_shutdown(). Any thread. */
void tether__grpc_init(int expected_peers);

#endif
