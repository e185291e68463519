/* Builds transactions as protobuf messages from tether__etcd_op. Each is one block of memory; keys
 * and values are borrowed from the ops. */
#ifndef TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_REQUEST_H
#define TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_REQUEST_H

#include "rendezvous/store/etcd/client/client.h"
#include "rendezvous/store/etcd/client/receipts.h"

/* A transaction that reads. NULL: out of memory. The caller frees it with tether__free(). */
Etcdserverpb__TxnRequest *tether__etcd_read_request(const struct tether__etcd_op *ranges, size_t n);

/* A transaction that applies `change` and changes the receipt if the receipt is still at its
 * revision, and otherwise reads the receipt:
 *
 *     if mod_revision(receipt) == receipt->revision
 *         if <test>  then..., put(receipt, "+")
 *         else       otherwise..., put(receipt, "-")
 *     else
 *         range(receipt)
 *
 * NULL: out of memory. The caller frees it with tether__free(). */
Etcdserverpb__TxnRequest *tether__etcd_change_request(const struct tether__etcd_change *change,
                                                      const struct tether__etcd_receipt *receipt);

#endif
