/* Reads, exactly-once changes, and the single-key and lease calls on top. See client.h. */
#include "rendezvous/store/etcd/client/client.h"

#include "base/alloc.h"
#include "rendezvous/store/etcd/client/receipts.h"
#include "rendezvous/store/etcd/client/request.h"

#define MAX_PREFIX 1024

struct tether__etcd {
    /* immutable */
    struct tether__etcd_channel *channel;
    char *prefix;
    /* `receipts` has a lock of its own */
    struct tether__etcd_receipts receipts;
};

/* ---- The client ----------------------------------------------------------------------------- */

tether_status tether__etcd_new(const struct tether_store_etcd_opts *opts,
                               int64_t deadline,
                               struct tether__etcd **ret_etcd,
                               tether_error *reterr)
{
    const char *prefix = opts->prefix ? opts->prefix : TETHER__ETCD_DEFAULT_PREFIX;
    if (strnlen(prefix, MAX_PREFIX + 1) > MAX_PREFIX)
        return tether_error_set(reterr, TETHER_ETOOBIG, "the prefix is longer than %d bytes",
                                MAX_PREFIX);
    struct tether__etcd *etcd = tether__calloc(1, sizeof *etcd);
    if (!etcd || !(etcd->prefix = tether__strdup(prefix))) {
        tether__free(etcd);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for an etcd client");
    }
    tether_status st = tether__etcd_channel_new(opts, &etcd->channel, reterr);
    if (st != TETHER_OK) {
        tether__free(etcd->prefix);
        tether__free(etcd);
        return st;
    }
    tether__etcd_receipts_init(&etcd->receipts, etcd->channel, etcd->prefix);
    /* The first receipt needs a lease, so this checks that etcd answers and accepts us. */
    struct tether__etcd_receipt *first = NULL;
    st = tether__etcd_receipts_take(&etcd->receipts, deadline, &first, reterr);
    if (st != TETHER_OK) {
        tether__etcd_free(etcd);
        return st;
    }
    tether__etcd_receipts_give_back(&etcd->receipts, first);
    *ret_etcd = etcd;
    return TETHER_OK;
}

struct tether__etcd *tether__etcd_free(struct tether__etcd *etcd)
{
    if (!etcd)
        return NULL;
    tether__etcd_receipts_fini(&etcd->receipts);
    tether__etcd_channel_free(etcd->channel);
    tether__free(etcd->prefix);
    tether__free(etcd);
    return NULL;
}

const char *tether__etcd_prefix(const struct tether__etcd *etcd)
{
    return etcd->prefix;
}

const char *tether__etcd_describe(const struct tether__etcd *etcd)
{
    return tether__etcd_channel_describe(etcd->channel);
}

struct tether__etcd_channel *tether__etcd_channel(struct tether__etcd *etcd)
{
    return etcd->channel;
}

/* ---- Transactions --------------------------------------------------------------------------- */

static tether_status malformed(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ECORRUPT, "etcd sent an unexpected answer");
}

static bool are_ranges(const Etcdserverpb__TxnResponse *reply, size_t n)
{
    if (!reply->header || reply->n_responses != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (reply->responses[i]->response_case !=
            ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE)
            return false;
    return true;
}

tether_status tether__etcd_read(struct tether__etcd *etcd,
                                const struct tether__etcd_op *ranges,
                                size_t n,
                                int64_t deadline,
                                Etcdserverpb__TxnResponse **ret_reply,
                                tether_error *reterr)
{
    Etcdserverpb__TxnRequest *request = tether__etcd_read_request(ranges, n);
    if (!request)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for an etcd transaction");
    ProtobufCMessage *message = NULL;
    tether_status st = tether__etcd_call(etcd->channel, &tether__etcd_txn, &request->base, deadline,
                                         NULL, &message, reterr);
    tether__free(request);
    if (st != TETHER_OK)
        return st;
    if (!are_ranges((Etcdserverpb__TxnResponse *)message, n)) {
        tether__pb_free(message);
        return malformed(reterr);
    }
    *ret_reply = (Etcdserverpb__TxnResponse *)message;
    return TETHER_OK;
}

/* Interprets etcd's answer to a change. */
enum verdict {
    VERDICT_DONE,
    VERDICT_REFUSED,    /* the change was not applied and will not be */
    VERDICT_START_OVER, /* the change was not applied: try again with another receipt */
    VERDICT_IN_DOUBT,   /* the change may have been applied, or may be applied later */
    /* the change may have been applied, and no receipt is left that would show it */
    VERDICT_UNKNOWN,
    VERDICT_MALFORMED,
};

static enum verdict judge(Etcdserverpb__TxnResponse *reply,
                          const struct tether__etcd_change *change,
                          bool in_doubt,
                          struct tether__etcd_receipt *receipt,
                          struct tether__etcd_outcome *ret_outcome)
{
    if (reply->succeeded) {
        Etcdserverpb__TxnResponse *inner = reply;
        if (change->test != TETHER__ETCD_ALWAYS) {
            if (reply->n_responses != 1 || reply->responses[0]->response_case !=
                                               ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_TXN)
                return VERDICT_MALFORMED;
            inner = reply->responses[0]->response_txn;
        }
        size_t n_ops = inner->succeeded ? change->n_then : change->n_otherwise;
        if (!reply->header || inner->n_responses != n_ops + 1)
            return VERDICT_MALFORMED;
        receipt->revision = reply->header->revision;
        *ret_outcome = (struct tether__etcd_outcome){.held = inner->succeeded,
                                                     .revision = receipt->revision,
                                                     .reply = inner,
                                                     .whole = &reply->base};
        return VERDICT_DONE;
    }
    if (!are_ranges(reply, 1))
        return VERDICT_MALFORMED;
    const Etcdserverpb__RangeResponse *range = reply->responses[0]->response_range;
    if (range->n_kvs == 0)
        return in_doubt ? VERDICT_UNKNOWN : VERDICT_START_OVER;
    if (!in_doubt)
        return VERDICT_START_OVER; /* another program has changed the receipt: etcd was restored to
                                      an older state */
    const Mvccpb__KeyValue *kv = range->kvs[0];
    receipt->revision = kv->mod_revision;
    *ret_outcome = (struct tether__etcd_outcome){
        .held = kv->value.len && kv->value.data[0] == '+',
        .revision = kv->mod_revision,
    };
    return VERDICT_DONE;
}

/* etcd no longer has one of the leases that this transaction refers to. If it is the receipt's
 * lease, late copies can't be recognised any more. If it is a lease of the caller, no copy has been
 * applied: an applied copy would have changed the receipt, and then etcd checks no lease. */
static enum verdict judge_lost_lease(struct tether__etcd *etcd,
                                     int64_t deadline,
                                     bool in_doubt,
                                     int64_t lease)
{
    tether_status st = tether__etcd_lease_keepalive(etcd, lease, deadline, NULL);
    if (st == TETHER_OK)
        return VERDICT_REFUSED;
    return in_doubt ? VERDICT_UNKNOWN : VERDICT_START_OVER;
}

/* Tries the change with one receipt. True: finished, with `*ret_status`. */
static bool change_with(struct tether__etcd *etcd,
                        const struct tether__etcd_change *change,
                        int64_t deadline,
                        struct tether__etcd_receipt *receipt,
                        struct tether__etcd_outcome *ret_outcome,
                        tether_status *ret_status,
                        tether_error *reterr)
{
    int64_t lease = receipt->lease;
    Etcdserverpb__TxnRequest *request = tether__etcd_change_request(change, receipt);
    if (!request) {
        tether__etcd_receipts_give_back(&etcd->receipts, receipt);
        *ret_status =
            tether_error_set(reterr, TETHER_ENOMEM, "out of memory for an etcd transaction");
        return true;
    }
    bool in_doubt;
    ProtobufCMessage *reply = NULL;
    tether_status st = tether__etcd_call(etcd->channel, &tether__etcd_txn, &request->base, deadline,
                                         &in_doubt, &reply, reterr);
    tether__free(request);

    enum verdict verdict;
    if (st == TETHER_OK)
        verdict = judge((Etcdserverpb__TxnResponse *)reply, change, in_doubt, receipt, ret_outcome);
    else if (st == TETHER_ENOTFOUND)
        verdict = judge_lost_lease(etcd, deadline, in_doubt, lease);
    else
        verdict = in_doubt ? VERDICT_IN_DOUBT : VERDICT_REFUSED;

    if (verdict == VERDICT_DONE || verdict == VERDICT_REFUSED)
        tether__etcd_receipts_give_back(&etcd->receipts, receipt);
    else
        tether__etcd_receipts_retire(receipt);
    if (verdict == VERDICT_START_OVER || verdict == VERDICT_UNKNOWN)
        tether__etcd_receipts_lease_lost(&etcd->receipts, lease);
    if (verdict != VERDICT_DONE || !ret_outcome->whole)
        tether__pb_free(reply);

    switch (verdict) {
        case VERDICT_DONE:
        case VERDICT_REFUSED:
            *ret_status = st;
            return true;
        case VERDICT_START_OVER:
            return false;
        case VERDICT_IN_DOUBT:
            *ret_status = tether_error_wrap(reterr, st, "the change may have been applied");
            return true;
        case VERDICT_UNKNOWN:
            *ret_status = tether_error_set(
                reterr, TETHER_EUNAVAILABLE,
                "the change may have been applied or not: the reply is lost, and the "
                "lease of its receipt has ended");
            return true;
        default:
            *ret_status = malformed(reterr);
            return true;
    }
}

tether_status tether__etcd_change(struct tether__etcd *etcd,
                                  const struct tether__etcd_change *change,
                                  int64_t deadline,
                                  struct tether__etcd_outcome *ret_outcome,
                                  tether_error *reterr)
{
    for (;;) {
        struct tether__etcd_receipt *receipt = NULL;
        tether_status st = tether__etcd_receipts_take(&etcd->receipts, deadline, &receipt, reterr);
        if (st != TETHER_OK)
            return st;
        if (change_with(etcd, change, deadline, receipt, ret_outcome, &st, reterr))
            return st;
    }
}

void tether__etcd_outcome_fini(struct tether__etcd_outcome *outcome)
{
    tether__pb_free(outcome->whole);
    *outcome = TETHER__ETCD_OUTCOME_INIT;
}

/* ---- One key -------------------------------------------------------------------------------- */

tether_status tether__etcd_take_value(const Etcdserverpb__RangeResponse *range,
                                      struct tether__etcd_value *ret_value,
                                      tether_error *reterr)
{
    const Mvccpb__KeyValue *kv = range->n_kvs ? range->kvs[0] : NULL;
    tether_bytes bytes = {0};
    if (kv)
        bytes = tether_bytes_of(kv->value.data, kv->value.len);
    if (tether_buf_assign(&ret_value->bytes, bytes) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a value of %zu bytes",
                                bytes.len);
    ret_value->mod_revision = kv ? kv->mod_revision : 0;
    return TETHER_OK;
}

tether_status tether__etcd_get(struct tether__etcd *etcd,
                               tether_bytes key,
                               int64_t deadline,
                               struct tether__etcd_value *ret_value,
                               int64_t *ret_revision,
                               tether_error *reterr)
{
    struct tether__etcd_op range = {.kind = TETHER__ETCD_RANGE, .key = key};
    Etcdserverpb__TxnResponse *reply = NULL;
    tether_status st = tether__etcd_read(etcd, &range, 1, deadline, &reply, reterr);
    if (st != TETHER_OK)
        return st;
    st = tether__etcd_take_value(reply->responses[0]->response_range, ret_value, reterr);
    if (st == TETHER_OK && ret_revision)
        *ret_revision = reply->header->revision;
    tether__pb_free(reply);
    return st;
}

tether_status tether__etcd_put(struct tether__etcd *etcd,
                               tether_bytes key,
                               tether_bytes bytes,
                               int64_t lease,
                               int64_t deadline,
                               tether_error *reterr)
{
    struct tether__etcd_op put = {
        .kind = TETHER__ETCD_PUT, .key = key, .value = bytes, .lease = lease};
    struct tether__etcd_change change = {.then = &put, .n_then = 1};
    struct tether__etcd_outcome outcome = TETHER__ETCD_OUTCOME_INIT;
    tether_status st = tether__etcd_change(etcd, &change, deadline, &outcome, reterr);
    tether__etcd_outcome_fini(&outcome);
    return st;
}

tether_status tether__etcd_compare_put(struct tether__etcd *etcd,
                                       tether_bytes key,
                                       tether_bytes bytes,
                                       tether_bytes also,
                                       int64_t deadline,
                                       struct tether__etcd_value *current,
                                       bool *ret_done,
                                       tether_error *reterr)
{
    struct tether__etcd_op then[] = {
        {.kind = TETHER__ETCD_PUT, .key = key, .value = bytes},
        {.kind = TETHER__ETCD_DELETE, .key = also},
    };
    struct tether__etcd_op look = {.kind = TETHER__ETCD_RANGE, .key = key};
    struct tether__etcd_change change = {
        .test = TETHER__ETCD_MOD_REVISION_IS,
        .test_key = key,
        .number = current->mod_revision,
        .then = then,
        .n_then = also.len ? 2 : 1,
        .otherwise = &look,
        .n_otherwise = 1,
    };
    /* Allocate before sending, so that nothing can fail after the change is applied. */
    tether_status st = tether_buf_reserve(&current->bytes, bytes.len);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "out of memory for a value of %zu bytes", bytes.len);
    struct tether__etcd_outcome outcome = TETHER__ETCD_OUTCOME_INIT;
    st = tether__etcd_change(etcd, &change, deadline, &outcome, reterr);
    if (st != TETHER_OK)
        return st;
    if (outcome.held) {
        tether_buf_assign(&current->bytes, bytes);
        current->mod_revision = outcome.revision;
    } else if (outcome.reply && outcome.reply->responses[0]->response_case ==
                                    ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE) {
        st = tether__etcd_take_value(outcome.reply->responses[0]->response_range, current, reterr);
    } else {
        st = tether__etcd_get(etcd, key, deadline, current, NULL, reterr);
    }
    if (st == TETHER_OK)
        *ret_done = outcome.held;
    tether__etcd_outcome_fini(&outcome);
    return st;
}

tether_status tether__etcd_delete(struct tether__etcd *etcd,
                                  tether_bytes key,
                                  int64_t deadline,
                                  bool *ret_deleted,
                                  tether_error *reterr)
{
    struct tether__etcd_op delete = {.kind = TETHER__ETCD_DELETE, .key = key};
    struct tether__etcd_change change = {
        .test = TETHER__ETCD_VERSION_ABOVE, /* the condition: the key exists */
        .test_key = key,
        .number = 0,
        .then = &delete,
        .n_then = 1,
    };
    struct tether__etcd_outcome outcome = TETHER__ETCD_OUTCOME_INIT;
    tether_status st = tether__etcd_change(etcd, &change, deadline, &outcome, reterr);
    if (st == TETHER_OK && ret_deleted)
        *ret_deleted = outcome.held;
    tether__etcd_outcome_fini(&outcome);
    return st;
}

/* ---- Leases --------------------------------------------------------------------------------- */

tether_status tether__etcd_lease_grant(struct tether__etcd *etcd,
                                       int64_t ttl_s,
                                       int64_t deadline,
                                       int64_t *ret_lease,
                                       tether_error *reterr)
{
    return tether__etcd_grant(etcd->channel, ttl_s, deadline, ret_lease, reterr);
}

tether_status tether__etcd_own_lease(struct tether__etcd *etcd,
                                     int64_t deadline,
                                     int64_t *ret_lease,
                                     tether_error *reterr)
{
    struct tether__etcd_receipt *receipt = NULL;
    tether_status st = tether__etcd_receipts_take(&etcd->receipts, deadline, &receipt, reterr);
    if (st != TETHER_OK)
        return st;
    *ret_lease = receipt->lease;
    tether__etcd_receipts_give_back(&etcd->receipts, receipt);
    return TETHER_OK;
}

tether_status tether__etcd_lease_keepalive(struct tether__etcd *etcd,
                                           int64_t lease,
                                           int64_t deadline,
                                           tether_error *reterr)
{
    Etcdserverpb__LeaseKeepAliveRequest request = ETCDSERVERPB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    request.id = lease;
    ProtobufCMessage *reply = NULL;
    tether_status st = tether__etcd_call(etcd->channel, &tether__etcd_lease_keepalive_call,
                                         &request.base, deadline, NULL, &reply, reterr);
    if (st == TETHER_OK && ((Etcdserverpb__LeaseKeepAliveResponse *)reply)->ttl <= 0)
        st = tether_error_set(reterr, TETHER_ENOTFOUND, "etcd has no such lease (any more)");
    tether__pb_free(reply);
    return st;
}
