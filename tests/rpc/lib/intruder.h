/* A hostile dialler: it speaks the wire protocol of workers, and says in a handshake all that the
 * test wants. It belongs into a process of its own (proc.h). */
#ifndef TETHER_TESTS_RPC_INTRUDER_H
#define TETHER_TESTS_RPC_INTRUDER_H

#include "protos/rpc.pb-c.h"
#include "rpc/handshake/pairing.h"
#include "tests/rpc/lib/transport_node.h"

/* Sends one frame alone in its batch. */
void intruder_send(struct wire *wire, Tether__Frame *frame);

/* Dials the worker `to` as `who`. If the worker answers the first message, with any answer, the
 * last message follows, with `state`. */
struct wire *intruder_dial(struct node *node,
                           const char *address,
                           const char *to,
                           const struct tether__self *who,
                           Tether__State *state);

#endif
