/* The receipts of an etcd client (client.h explains them) and their lease.
 *
 * Happy path: take() gives a receipt that no other change uses; give_back() keeps it for the next
 * change. The first take() makes the lease. A new lease replaces it after half its time; it is
 * never kept alive, so nothing has to run in the background.
 *
 * Failure modes: a receipt whose change ended in doubt is retired, since a late copy may still
 * change it. A lease that etcd no longer has is dropped with all its receipts.
 *
 * Lock rule: `mu` is a leaf; etcd is not called under it.
 */
#ifndef TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_RECEIPTS_H
#define TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_RECEIPTS_H

#include <pthread.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/list.h"
#include "rendezvous/store/etcd/client/channel.h"

struct tether__etcd_receipt {
    struct tether__list node;
    int64_t lease;
    int64_t revision; /* revision of the receipt's last change; 0: not used yet */
    tether_bytes key; /* points to the bytes after this struct */
};

struct tether__etcd_receipts {
    /* immutable */
    struct tether__etcd_channel *channel;
    const char *prefix;
    /* fields under mu */
    int64_t lease; /* the lease of the receipts; 0: none */
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

/* All receipts must have been given back or retired. Asks etcd once to revoke the lease. */
void tether__etcd_receipts_fini(struct tether__etcd_receipts *receipts);

tether_status tether__etcd_receipts_take(struct tether__etcd_receipts *receipts,
                                         int64_t deadline,
                                         struct tether__etcd_receipt **ret_receipt,
                                         tether_error *reterr);
void tether__etcd_receipts_give_back(struct tether__etcd_receipts *receipts,
                                     struct tether__etcd_receipt *receipt);
void tether__etcd_receipts_retire(struct tether__etcd_receipt *receipt);

/* Reports that etcd does not have `lease` any more. */
void tether__etcd_receipts_lease_lost(struct tether__etcd_receipts *receipts, int64_t lease);

/* Makes a lease; tether__etcd_lease_grant() uses this function. */
tether_status tether__etcd_grant(struct tether__etcd_channel *channel,
                                 int64_t ttl_s,
                                 int64_t deadline,
                                 int64_t *ret_lease,
                                 tether_error *reterr);

#endif
