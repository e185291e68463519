/* Protobuf-c with our allocator, and the messages that several files pack. */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_PB_H
#define TETHER_RENDEZVOUS_DYNAMIC_PB_H

#include "base/bytes.h"
#include "protos/rendezvous.pb-c.h"
#include "rendezvous/dynamic/actions.h"
#include "rendezvous/dynamic/roster.h"

/* Replaces `ret_bytes` by the packed message. TETHER_ENOMEM: nothing changed. */
tether_status tether__rdzv_pb_pack(const ProtobufCMessage *message, tether_buf *ret_bytes);

/* Unpacks: TETHER_ECORRUPT when it is not such a message, TETHER_ENOMEM. What comes out goes back
 * with tether__rdzv_pb_free(), which accepts NULL. */
tether_status tether__rdzv_pb_unpack(const ProtobufCMessageDescriptor *descriptor,
                                     tether_bytes bytes,
                                     void *ret_message);
void tether__rdzv_pb_free(void *message);

/* LENDS the address of `node` to `ret_message`. */
void tether__rdzv_pb_from_self(Tether__Rendezvous__Member *ret_message,
                               const struct tether__rdzv_self *self,
                               int32_t rank);

/* LENDS the address in `message` to `ret_self`. False: no such node can be. */
bool tether__rdzv_pb_to_self(const Tether__Rendezvous__Member *message,
                             struct tether__rdzv_self *ret_self);

#endif
