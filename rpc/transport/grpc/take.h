/* Events that other threads than the poller take from the queue of a side. An inline function may
 * hold the poller for long, and a write that has ended must not wait for that. Implemented in
 * poll.c.
 *
 * Two ways: start_here() takes the event of a batch that the calling thread itself completes;
 * take_event() empties the queue while the poller handles an event. All other events are *left* to
 * the poller, which handles them before it asks the queue again.
 *
 * Lock order: conn->mu before side->take_mu before transport->mu.
 */
#ifndef TETHER_RPC_TRANSPORT_GRPC_TAKE_H
#define TETHER_RPC_TRANSPORT_GRPC_TAKE_H

#include "rpc/transport/grpc/grpc.h"

/* As tether__grpc_start(), for a batch that the calling thread can often complete at once. Then
 * `*ret_completed` is true, `*ret_ok` tells how it ended, and op->done() does not run. */
bool tether__grpc_start_here(struct tether__grpc_side *side,
                             grpc_call *call,
                             const grpc_op *ops,
                             size_t n,
                             struct tether__grpc_op *op,
                             bool *ret_completed,
                             bool *ret_ok);

/* Has the poller run op->done(), before what comes from the queue. Any thread. */
void tether__grpc_leave_to_poller(struct tether__grpc_side *side,
                                  struct tether__grpc_op *op,
                                  bool ok);

/* Takes all events from the queue while the poller handles one. Returns whether that of `op` is
 * among them; all others are left to the poller. */
bool tether__grpc_take_event(struct tether__grpc_side *side,
                             struct tether__grpc_op *op,
                             bool *ret_ok);

#endif
