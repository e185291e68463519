/* Lets threads other than the poller take events from the queue of a side. An inline function may
 * hold the poller for long, and a write that has ended must not wait for that. Implemented in
 * poll.c.
 *
 * take_event() empties the queue while the poller handles an event. All other events are *left* to
 * the poller, which handles them before it asks the queue again.
 *
 * Lock order: conn->mu before side->take_mu before transport->mu.
 */
#ifndef TETHER_RPC_TRANSPORT_GRPC_TAKE_H
#define TETHER_RPC_TRANSPORT_GRPC_TAKE_H

#include "rpc/transport/grpc/grpc.h"

/* Makes the poller run op->done(), before it handles further events of the queue. Any thread. */
void tether__grpc_leave_to_poller(struct tether__grpc_side *side,
                                  struct tether__grpc_op *op,
                                  bool ok);

/* Takes all events from the queue while the poller handles one. Returns whether that of `op` is
 * among them; all others are left to the poller. */
bool tether__grpc_take_event(struct tether__grpc_side *side,
                             struct tether__grpc_op *op,
                             bool *ret_ok);

#endif
