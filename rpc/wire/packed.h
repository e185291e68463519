/* A packed protobuf-c message to be put into a lane: on the stack when it is small. */
#ifndef TETHER_RPC_WIRE_PACKED_H
#define TETHER_RPC_WIRE_PACKED_H

#include <protobuf-c/protobuf-c.h>

#include "base/alloc.h"
#include "base/bytes.h"

struct tether__packed {
    tether_bytes bytes;
    uint8_t *heap;
    uint8_t stack[512];
};

/* Packs `message`. After TETHER_ENOMEM there is nothing to free. */
static inline tether_status tether__pack(struct tether__packed *packed,
                                         const ProtobufCMessage *message)
{
    size_t len = protobuf_c_message_get_packed_size(message);
    packed->heap = len > sizeof packed->stack ? tether__malloc(len) : NULL;
    if (len > sizeof packed->stack && !packed->heap)
        return TETHER_ENOMEM;
    uint8_t *to = packed->heap ? packed->heap : packed->stack;
    protobuf_c_message_pack(message, to);
    packed->bytes = tether_bytes_of(to, len);
    return TETHER_OK;
}

static inline void tether__packed_fini(struct tether__packed *packed)
{
    packed->heap = tether__free(packed->heap);
}

#endif
