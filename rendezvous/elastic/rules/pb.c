/* Protobuf-c with our allocator. */
#include "rendezvous/elastic/rules/pb.h"

#include <string.h>

#include "base/alloc.h"

/* `userdata` is a bool that remembers a failure, so that it is not taken for a bad message. */
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

tether_status tether__rdzv_pb_pack(const ProtobufCMessage *message, tether_buf *ret_bytes)
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

tether_status tether__rdzv_pb_unpack(const ProtobufCMessageDescriptor *descriptor,
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

void tether__rdzv_pb_free(void *message)
{
    ProtobufCAllocator allocator = {pb_alloc, pb_free, NULL};
    if (message)
        protobuf_c_message_free_unpacked(message, &allocator);
}

void tether__rdzv_pb_from_self(Tether__Rendezvous__Member *ret_message,
                               const struct tether__rdzv_self *self,
                               int32_t rank)
{
    tether__rendezvous__member__init(ret_message);
    ret_message->addr = (char *)self->node.addr; /* only read while packing */
    ret_message->pid = self->node.pid;
    ret_message->local_id = self->node.local_id;
    ret_message->rank = (uint32_t)rank;
    ret_message->hint_plus_1 = (uint32_t)(self->hint + 1);
    ret_message->previous_plus_1 = (uint32_t)(self->previous + 1);
    ret_message->past = self->past;
}

static bool to_rank(uint32_t plus_1, int32_t *ret_rank)
{
    *ret_rank = (int32_t)plus_1 - 1;
    return plus_1 <= TETHER_RDZV_MAX_NODES;
}

bool tether__rdzv_pb_to_self(const Tether__Rendezvous__Member *message,
                             struct tether__rdzv_self *ret_self)
{
    ret_self->node = (struct tether__rdzv_node){message->addr, message->pid, message->local_id};
    ret_self->past = message->past;
    size_t len = strlen(message->addr);
    return len > 0 && len <= TETHER__RDZV_ADDR_MAX && message->rank < TETHER_RDZV_MAX_NODES &&
           to_rank(message->hint_plus_1, &ret_self->hint) &&
           to_rank(message->previous_plus_1, &ret_self->previous);
}
