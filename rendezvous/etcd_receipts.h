/* The receipts of an etcd client (etcd_client.h tells what for), and the lease they hang on.
 *
 * Happy path: take() hands out a receipt that no other change uses, give_back() puts it by for the
 * next. The lease is taken at the start and replaced by a new one at half its time: it is never
 * kept alive, so nothing has to run in the background.
 *
 * Failure modes: a receipt whose change ended in doubt is retired: a late copy may still move it.
 * A lease that etcd no longer knows is given up with all its receipts.
 *
 * Lock rule: `mu` is a leaf; etcd is not called under it.
 */
#ifndef TETHER_RENDEZVOUS_ETCD_RECEIPTS_H
#define TETHER_RENDEZVOUS_ETCD_RECEIPTS_H

#include <pthread.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/list.h"
#include "rendezvous/etcd_channel.h"

struct tether__etcd_receipt {
    struct tether__list node;
    int64_t lease;
    int64_t revision; /* of its last move; 0: not yet used */
    tether_bytes key; /* behind this struct */
};

struct tether__etcd_receipts {
    /* immutable */
    struct tether__etcd_channel *channel;
    const char *prefix;
    /* under mu */
    int64_t lease; /* 0: none */
    int64_t lease_since;
    bool renewing;
    uint64_t next_number;
    struct tether__list idle;
    pthread_mutex_t mu;
};

/* Borrows both arguments. Takes no lease yet. */
void tether__etcd_receipts_init(struct tether__etcd_receipts *receipts,
                                struct tether__etcd_channel *channel,
                                const char *prefix);

/* None may be out. Asks etcd to drop the lease, but does not insist. */
void tether__etcd_receipts_fini(struct tether__etcd_receipts *receipts);

tether_status tether__etcd_receipts_take(struct tether__etcd_receipts *receipts,
                                         int64_t deadline,
                                         struct tether__etcd_receipt **ret_receipt,
                                         tether_error *reterr);
void tether__etcd_receipts_give_back(struct tether__etcd_receipts *receipts,
                                     struct tether__etcd_receipt *receipt);
void tether__etcd_receipts_retire(struct tether__etcd_receipt *receipt);

/* etcd does not know `lease` (any more). */
void tether__etcd_receipts_lease_lost(struct tether__etcd_receipts *receipts, int64_t lease);

/* Also behind tether__etcd_lease_grant(). */
tether_status tether__etcd_grant(struct tether__etcd_channel *channel,
                                 int64_t ttl_s,
                                 int64_t deadline,
                                 int64_t *ret_lease,
                                 tether_error *reterr);

#endif
