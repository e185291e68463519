/* Packs and unpacks protobuf-c messages with our allocator. Any thread. */
#ifndef TETHER_BASE_PB_H
#define TETHER_BASE_PB_H

#include <protobuf-c/protobuf-c.h>

#include "base/bytes.h"

/* Replaces `ret_bytes` by the packed message. TETHER_ENOMEM: nothing changed. */
tether_status tether__pb_pack(const ProtobufCMessage *message, tether_buf *ret_bytes);

/* Unpacks a message, which the caller frees with tether__pb_free(). TETHER_ECORRUPT when the bytes
 * are not such a message, TETHER_ENOMEM. */
tether_status tether__pb_unpack(const ProtobufCMessageDescriptor *descriptor,
                                tether_bytes bytes,
                                void *ret_message);
void *tether__pb_free(void *message); /* accepts and returns NULL */

#endif
