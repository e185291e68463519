/* Receipts and their lease; see the header. */
#include "rendezvous/store/etcd/client/receipts.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "protos/etcd.pb-c.h"

#define LEASE_S 3600
#define REVOKE_MS 1000

void tether__etcd_receipts_init(struct tether__etcd_receipts *receipts,
                                struct tether__etcd_channel *channel,
                                const char *prefix)
{
    *receipts = (struct tether__etcd_receipts){.channel = channel, .prefix = prefix};
    tether__list_init(&receipts->idle);
    pthread_mutex_init(&receipts->mu, NULL);
}

static void retire_all(struct tether__list *list)
{
    for (struct tether__list *node; (node = tether__list_pop_front(list));)
        tether__etcd_receipts_retire(tether__list_entry(node, struct tether__etcd_receipt, node));
}

void tether__etcd_receipts_fini(struct tether__etcd_receipts *receipts)
{
    retire_all(&receipts->idle);
    if (receipts->lease) {
        Etcdserverpb__LeaseRevokeRequest request = ETCDSERVERPB__LEASE_REVOKE_REQUEST__INIT;
        request.id = receipts->lease;
        tether__etcd_call_once(receipts->channel, &tether__etcd_lease_revoke_call, &request.base,
                               tether__deadline_in(&tether__clock_system, REVOKE_MS));
    }
    pthread_mutex_destroy(&receipts->mu);
}

tether_status tether__etcd_grant(struct tether__etcd_channel *channel,
                                 int64_t ttl_s,
                                 int64_t deadline,
                                 int64_t *ret_lease,
                                 tether_error *reterr)
{
    Etcdserverpb__LeaseGrantRequest request = ETCDSERVERPB__LEASE_GRANT_REQUEST__INIT;
    request.ttl = ttl_s;
    ProtobufCMessage *reply = NULL;
    tether_status st = tether__etcd_call(channel, &tether__etcd_lease_grant_call, &request.base,
                                         deadline, NULL, &reply, reterr);
    if (st != TETHER_OK)
        return st;
    const Etcdserverpb__LeaseGrantResponse *grant = (Etcdserverpb__LeaseGrantResponse *)reply;
    if (grant->id)
        *ret_lease = grant->id;
    else
        st = tether_error_set(reterr, TETHER_EIO, "etcd grants no lease: %s", grant->error);
    tether__pb_free(reply);
    return st;
}

/* Takes a new lease in place of `old`. */
static tether_status renew(struct tether__etcd_receipts *receipts,
                           int64_t old,
                           int64_t deadline,
                           tether_error *reterr)
{
    struct tether__list stale;
    tether__list_init(&stale);
    int64_t since = tether__clock_now_ns(&tether__clock_system), lease = 0;
    tether_status st = tether__etcd_grant(receipts->channel, LEASE_S, deadline, &lease, reterr);

    pthread_mutex_lock(&receipts->mu);
    if (st == TETHER_OK && receipts->lease == old) {
        receipts->lease = lease;
        receipts->lease_since = since;
        tether__list_splice(&stale, &receipts->idle);
    }
    receipts->renewing = false;
    pthread_mutex_unlock(&receipts->mu);
    retire_all(&stale);
    return st;
}

static struct tether__etcd_receipt *receipt_new(const char *prefix, int64_t lease, uint64_t number)
{
    size_t size = strlen(prefix) + sizeof "r/0123456789abcdef/01234567890123456789";
    struct tether__etcd_receipt *receipt = tether__malloc(sizeof *receipt + size);
    if (!receipt)
        return NULL;
    char *key = (char *)(receipt + 1);
    size_t len =
        (size_t)snprintf(key, size, "%sr/%016" PRIx64 "/%" PRIu64, prefix, (uint64_t)lease, number);
    *receipt = (struct tether__etcd_receipt){.lease = lease, .key = tether_bytes_of(key, len)};
    tether__list_init(&receipt->node);
    return receipt;
}

tether_status tether__etcd_receipts_take(struct tether__etcd_receipts *receipts,
                                         int64_t deadline,
                                         struct tether__etcd_receipt **ret_receipt,
                                         tether_error *reterr)
{
    pthread_mutex_lock(&receipts->mu);
    for (bool renewed = false;; renewed = true) {
        int64_t age = tether__clock_now_ns(&tether__clock_system) - receipts->lease_since;
        bool usable = receipts->lease && age < LEASE_S * TETHER__NS_PER_S;
        bool due = age >= LEASE_S * TETHER__NS_PER_S / 2 && !receipts->renewing && !renewed;
        if (usable && !due)
            break;
        int64_t old = receipts->lease;
        receipts->renewing = true;
        pthread_mutex_unlock(&receipts->mu);
        tether_status st = renew(receipts, old, deadline, usable ? NULL : reterr);
        if (st != TETHER_OK && !usable)
            return st;
        pthread_mutex_lock(&receipts->mu);
    }
    struct tether__list *idle = tether__list_pop_front(&receipts->idle);
    int64_t lease = receipts->lease;
    uint64_t number = idle ? 0 : receipts->next_number++;
    pthread_mutex_unlock(&receipts->mu);

    struct tether__etcd_receipt *receipt =
        idle ? tether__list_entry(idle, struct tether__etcd_receipt, node)
             : receipt_new(receipts->prefix, lease, number);
    if (!receipt)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for an etcd transaction");
    *ret_receipt = receipt;
    return TETHER_OK;
}

void tether__etcd_receipts_give_back(struct tether__etcd_receipts *receipts,
                                     struct tether__etcd_receipt *receipt)
{
    pthread_mutex_lock(&receipts->mu);
    bool current = receipt->lease == receipts->lease;
    if (current)
        tether__list_push_front(&receipts->idle, &receipt->node);
    pthread_mutex_unlock(&receipts->mu);
    if (!current)
        tether__etcd_receipts_retire(receipt);
}

void tether__etcd_receipts_retire(struct tether__etcd_receipt *receipt)
{
    tether__free(receipt);
}

void tether__etcd_receipts_lease_lost(struct tether__etcd_receipts *receipts, int64_t lease)
{
    struct tether__list stale;
    tether__list_init(&stale);
    pthread_mutex_lock(&receipts->mu);
    if (receipts->lease == lease) {
        receipts->lease = 0;
        tether__list_splice(&stale, &receipts->idle);
    }
    pthread_mutex_unlock(&receipts->mu);
    retire_all(&stale);
}
