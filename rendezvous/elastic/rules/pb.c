/* Nodes as protobuf. */
#include "rendezvous/elastic/rules/pb.h"

#include <string.h>

void tether__rdzv_pb_from_self(Tether__Rendezvous__Member *ret_message,
                               const struct tether__rdzv_self *self,
                               int32_t rank)
{
    tether__rendezvous__member__init(ret_message);
    ret_message->addr = (char *)self->node.addr; /* protobuf-c only reads it while packing */
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
