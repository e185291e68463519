/* An etcd client for the store and the rendezvous: linearizable reads, changes that are applied
 * exactly once, leases, and watches (watch.h). Not public.
 *
 *     struct tether__etcd_value state = TETHER__ETCD_VALUE_INIT;
 *     st = tether__etcd_get(etcd, key, deadline, &state, NULL, reterr);
 *     ...
 *     st = tether__etcd_compare_put(etcd, key, new_bytes, also, deadline, &state, &done, reterr);
 *
 * Exactly once: a change whose reply is lost is sent again, although etcd may have applied it. So
 * every change also writes a *receipt*, a key that only this change writes at this time, on the
 * condition that the receipt has not changed. The first copy that etcd processes changes the
 * receipt; the others only read it, and its value says which branch was taken. This holds for
 * copies that arrive late, through another endpoint, after the call has returned or after the
 * client has ended: the receipt is put with the client's lease, and etcd applies no part of a
 * transaction whose lease has expired. A receipt is used by one change at a time, then by the next.
 * A receipt whose change ended in doubt (timeout) is never used again. etcd deletes receipts with
 * the lease: at once when the client is closed, within the hour when it was killed.
 *
 * Keys are complete: no prefix is added. Every read sees the caller's own writes and those of every
 * client that returned before (etcd's reads are linearizable).
 *
 * Any thread, several at once; a call blocks until its deadline (of tether__clock_system) at most.
 * Errors as for tether__etcd_call().
 */
#ifndef TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_CLIENT_H
#define TETHER_RENDEZVOUS_STORE_ETCD_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"
#include "protos/etcd.pb-c.h"
#include "rendezvous/store/etcd/client/channel.h"

struct tether__etcd;

/* The largest number of operations of a transaction, those of the client itself included (etcd's
 * --max-txn-ops). */
#define TETHER__ETCD_MAX_OPS 126

/* Connects, authenticates and takes the lease for the receipts. */
tether_status tether__etcd_new(const struct tether_store_etcd_opts *opts,
                               int64_t deadline,
                               struct tether__etcd **ret_etcd,
                               tether_error *reterr);

/* No call may be running. Asks etcd once to delete the receipts. Accepts and returns NULL. */
struct tether__etcd *tether__etcd_free(struct tether__etcd *etcd);

const char *tether__etcd_prefix(const struct tether__etcd *etcd); /* LENDS */
/* returns the endpoints, for messages; LENDS */
const char *tether__etcd_describe(const struct tether__etcd *etcd);
struct tether__etcd_channel *tether__etcd_channel(struct tether__etcd *etcd); /* LENDS */

/* ---- One key ------------------------------------------------------------------------------- */

struct tether__etcd_value {
    tether_buf bytes;
    int64_t mod_revision; /* revision of the key's last change; 0: there is no such key */
};
#define TETHER__ETCD_VALUE_INIT ((struct tether__etcd_value){TETHER_BUF_INIT, 0})

/* Reads the value, and the revision of the whole store at that time (may be NULL). */
tether_status tether__etcd_get(struct tether__etcd *etcd,
                               tether_bytes key,
                               int64_t deadline,
                               struct tether__etcd_value *ret_value,
                               int64_t *ret_revision,
                               tether_error *reterr);

/* Copies the first value of a range that was read; mod_revision 0 if the range is empty. */
tether_status tether__etcd_take_value(const Etcdserverpb__RangeResponse *range,
                                      struct tether__etcd_value *ret_value,
                                      tether_error *reterr);

/* Sets the key. etcd deletes it when `lease` (0: none) ends. */
tether_status tether__etcd_put(struct tether__etcd *etcd,
                               tether_bytes key,
                               tether_bytes bytes,
                               int64_t lease,
                               int64_t deadline,
                               tether_error *reterr);

/* Sets the key if no client has changed it since `current` was read (`current->mod_revision`; 0: if
 * it is absent), and deletes the key `also` (empty: none) in the same transaction. Afterwards
 * `current` is the present value: ours, or that of another client. */
tether_status tether__etcd_compare_put(struct tether__etcd *etcd,
                                       tether_bytes key,
                                       tether_bytes bytes,
                                       tether_bytes also,
                                       int64_t deadline,
                                       struct tether__etcd_value *current,
                                       bool *ret_done,
                                       tether_error *reterr);

/* Deletes the key; `*ret_deleted` (may be NULL) says whether it existed. */
tether_status tether__etcd_delete(struct tether__etcd *etcd,
                                  tether_bytes key,
                                  int64_t deadline,
                                  bool *ret_deleted,
                                  tether_error *reterr);

/* ---- Leases -------------------------------------------------------------------------------- */

/* Makes a lease. etcd deletes its keys when it has not been kept alive for `ttl_s`. */
tether_status tether__etcd_lease_grant(struct tether__etcd *etcd,
                                       int64_t ttl_s,
                                       int64_t deadline,
                                       int64_t *ret_lease,
                                       tether_error *reterr);

/* Gives the client's own lease, which ends within an hour after the client was killed. */
tether_status tether__etcd_own_lease(struct tether__etcd *etcd,
                                     int64_t deadline,
                                     int64_t *ret_lease,
                                     tether_error *reterr);

/* Renews the lease. TETHER_ENOTFOUND when it has expired. */
tether_status tether__etcd_lease_keepalive(struct tether__etcd *etcd,
                                           int64_t lease,
                                           int64_t deadline,
                                           tether_error *reterr);

/* ---- Transactions -------------------------------------------------------------------------- */

enum tether__etcd_op_kind { TETHER__ETCD_RANGE, TETHER__ETCD_PUT, TETHER__ETCD_DELETE };

struct tether__etcd_op {
    enum tether__etcd_op_kind kind;
    tether_bytes key, end; /* the range [key, end); empty `end`: only `key` (always so for a put) */
    /* put */
    tether_bytes value;
    int64_t lease;
    /* range */
    /* largest number of keys, and the revision to read; 0: all keys, the present state */
    int64_t limit, revision;
    bool keys_only, count_only;
    bool last_first; /* read in descending order of keys, so that a limit of 1 gives the last key */
};

/* Reads `n` ranges, TETHER__ETCD_MAX_OPS at most, all at one revision. The reply has a
 * response_range for each; free it with tether__pb_free(). */
tether_status tether__etcd_read(struct tether__etcd *etcd,
                                const struct tether__etcd_op *ranges,
                                size_t n,
                                int64_t deadline,
                                Etcdserverpb__TxnResponse **ret_reply,
                                tether_error *reterr);

enum tether__etcd_test {
    TETHER__ETCD_ALWAYS,
    TETHER__ETCD_MOD_REVISION_IS,
    TETHER__ETCD_VERSION_ABOVE, /* the version of an absent key is 0 */
};

struct tether__etcd_change {
    enum tether__etcd_test test; /* how to compare `test_key` with `number` */
    tether_bytes test_key;
    int64_t number;
    /* operations if the test holds, and if not; neither list may put a key twice */
    const struct tether__etcd_op *then, *otherwise;
    size_t n_then, n_otherwise;
};

struct tether__etcd_outcome {
    bool held;        /* the test held, so `then` was applied; false: `otherwise` was */
    int64_t revision; /* revision of etcd after the change */
    Etcdserverpb__TxnResponse *reply; /* has a response for each op; NULL: the reply was lost */
    ProtobufCMessage *whole;
};
#define TETHER__ETCD_OUTCOME_INIT ((struct tether__etcd_outcome){0})

/* Applies the change exactly once. A failed change has not been applied, unless the error says that
 * it may have been. */
tether_status tether__etcd_change(struct tether__etcd *etcd,
                                  const struct tether__etcd_change *change,
                                  int64_t deadline,
                                  struct tether__etcd_outcome *ret_outcome,
                                  tether_error *reterr);
void tether__etcd_outcome_fini(struct tether__etcd_outcome *outcome);

#endif
