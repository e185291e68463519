/* Transactions as protobuf: from tether__etcd_op to what etcd reads. Everything in one block of
 * memory; keys and values are borrowed from the ops. */
#ifndef TETHER_RENDEZVOUS_ETCD_REQUEST_H
#define TETHER_RENDEZVOUS_ETCD_REQUEST_H

#include "rendezvous/etcd_client.h"
#include "rendezvous/etcd_receipts.h"

/* A transaction that reads. NULL: no memory. Goes back with tether__free(). */
Etcdserverpb__TxnRequest *tether__etcd_read_request(const struct tether__etcd_op *ranges, size_t n);

/* A transaction that carries `change` out if `receipt` is where it was, moves the receipt either
 * way the test goes, and reads it if it was not:
 *
 *     if mod_revision(receipt) == receipt->revision
 *         if <test>  then..., put(receipt, "+")
 *         else       otherwise..., put(receipt, "-")
 *     else
 *         range(receipt)
 *
 * As above for memory. */
Etcdserverpb__TxnRequest *tether__etcd_change_request(const struct tether__etcd_change *change,
                                                      const struct tether__etcd_receipt *receipt);

#endif
