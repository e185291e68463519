/* The headers of calls and replies, without protobuf-c where that is possible.
 *
 * Every call packs and unpacks one Call and one Reply. protobuf-c looks at every field of the
 * descriptor, twice to pack and three times to unpack: 3,000 instructions more, of the 14,300 of a
 * call between two workers of one host.
 *
 * These functions write and read the same bytes field by field. They leave messages that they don't
 * know to protobuf-c: those with references or a target, with fields of a newer version, too large
 * for the stack, or malformed. So a message means the same either way, and protobuf-c alone decides
 * which bytes are malformed. tests/rpc/call_header_test compares both for messages of all kinds.
 */
#ifndef TETHER_RPC_WIRE_CALL_HEADER_H
#define TETHER_RPC_WIRE_CALL_HEADER_H

#include "protos/rpc.pb-c.h"
#include "rpc/wire/packed.h"
#include "rpc/wire/wire.h"

/* Packs a call like tether__pack(). */
tether_status tether__call_header_pack(struct tether__packed *packed, const Tether__Call *call);
tether_status tether__reply_header_pack(struct tether__packed *packed, const Tether__Reply *reply);

/* Unpacks a call like tether__wire_unpack(). */
tether_status tether__call_header_unpack(tether_bytes bytes,
                                         struct tether__arena *arena,
                                         const Tether__Call **ret_call);
tether_status tether__reply_header_unpack(tether_bytes bytes,
                                          struct tether__arena *arena,
                                          const Tether__Reply **ret_reply);

#endif
