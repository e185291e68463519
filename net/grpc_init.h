/* Starts gRPC. All of Tether starts gRPC through this function, since the first start in a process
 * fixes the polling strategy of gRPC.
 */
#ifndef TETHER_NET_GRPC_INIT_H
#define TETHER_NET_GRPC_INIT_H

#include <stdbool.h>

/* Calls grpc_init(). The first call also sets the polling strategy (unless GRPC_POLL_STRATEGY is
 * set) and sends gRPC's messages to the log hook (unless GRPC_VERBOSITY or GRPC_TRACE asks for
 * gRPC's own log). `expected_peers` is the approximate number of connections; 0: not known. Pairs
 * with grpc_shutdown(). Any thread. */
void tether__grpc_init(int expected_peers);

/* Whether gRPC can get the few descriptors that its pollers need: it ends the process when it gets
 * none. Ask before the first channel or server. Any thread. */
bool tether__grpc_has_descriptors(void);

#endif
