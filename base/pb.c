/* protobuf-c with our allocator. */
#include "base/pb.h"

#include <stdbool.h>

#include "base/alloc.h"

/* `userdata` points to a bool that records a lack of memory, so that it is not mistaken for a
 * malformed message. */
static void *pb_alloc(void *userdata, size_t size)
{
    void *ptr = tether__malloc(size);
    if (!ptr)
        *(bool *)userdata = true;
    return ptr;
}

static void pb_free(void *userdata, void *ptr)
{
    (void)userdata;
    tether__free(ptr);
}

tether_status tether__pb_pack(const ProtobufCMessage *message, tether_buf *ret_bytes)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    tether_buf packed = TETHER_BUF_INIT;
    if (tether_buf_reserve(&packed, size) != TETHER_OK)
        return TETHER_ENOMEM;
    packed.len = protobuf_c_message_pack(message, (uint8_t *)packed.data);
    packed.data[packed.len] = '\0';
    tether_buf_fini(ret_bytes);
    *ret_bytes = packed;
    return TETHER_OK;
}

tether_status tether__pb_unpack(const ProtobufCMessageDescriptor *descriptor,
                                tether_bytes bytes,
                                void *ret_message)
{
    bool no_memory = false;
    ProtobufCAllocator allocator = {pb_alloc, pb_free, &no_memory};
    void *message = protobuf_c_message_unpack(descriptor, &allocator, bytes.len, bytes.data);
    if (!message)
        return no_memory ? TETHER_ENOMEM : TETHER_ECORRUPT;
    *(void **)ret_message = message;
    return TETHER_OK;
}

void *tether__pb_free(void *message)
{
    ProtobufCAllocator allocator = {pb_alloc, pb_free, NULL};
    if (message)
        protobuf_c_message_free_unpacked(message, &allocator);
    return NULL;
}
