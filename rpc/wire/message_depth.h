/* How deep the messages inside of a packed protobuf message are nested. protobuf-c calls itself for
 * each level when it unpacks, so the sender of the bytes would choose how much stack that takes.
 */
#ifndef TETHER_RPC_WIRE_MESSAGE_DEPTH_H
#define TETHER_RPC_WIRE_MESSAGE_DEPTH_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

#include "base/bytes.h"

#define TETHER__MAX_DEPTH 100 /* the limit of protobuf's own libraries */

/* Whether `bytes`, read as a message of `type`, has at most TETHER__MAX_DEPTH levels. True also for
 * malformed bytes that protobuf-c rejects before it comes to a deeper level. Uses no heap and a
 * stack of constant size. */
bool tether__message_depth_fits(const ProtobufCMessageDescriptor *type, tether_bytes bytes);

#endif
