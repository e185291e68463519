/* The protobuf messages that several files pack. */
#ifndef TETHER_RENDEZVOUS_ELASTIC_RULES_PB_H
#define TETHER_RENDEZVOUS_ELASTIC_RULES_PB_H

#include "base/pb.h"
#include "protos/rendezvous.pb-c.h"
#include "rendezvous/elastic/rules/actions.h"
#include "rendezvous/elastic/rules/roster.h"

/* LENDS the address of `node` to `ret_message`. */
void tether__rdzv_pb_from_self(Tether__Rendezvous__Member *ret_message,
                               const struct tether__rdzv_self *self,
                               int32_t rank);

/* LENDS the address in `message` to `ret_self`. False: the fields describe no valid node. */
bool tether__rdzv_pb_to_self(const Tether__Rendezvous__Member *message,
                             struct tether__rdzv_self *ret_self);

#endif
