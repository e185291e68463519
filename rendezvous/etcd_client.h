/* An etcd client with what a store and a rendezvous need: reads of the newest state, changes that
 * are applied exactly once, leases, and watches (etcd_watch.h). Not public.
 *
 *     struct tether__etcd_value state = TETHER__ETCD_VALUE_INIT;
 *     st = tether__etcd_get(etcd, key, deadline, &state, NULL, reterr);
 *     ...
 *     st = tether__etcd_compare_put(etcd, key, new_bytes, 0, deadline, &state, &done, reterr);
 *
 * Exactly once: a change whose reply is lost is sent again, although etcd may have applied it. So
 * every change also writes a *receipt*, a key that only this change writes at this time, under the
 * condition that the receipt is still as it was before. Of all copies that are sent, the first that
 * etcd gets to moves the receipt and the others do nothing but read it: its value says which
 * branch was taken. This holds for copies that arrive late, by another endpoint, after the call
 * has returned or after the client has gone: the receipt is put with the client's lease, and etcd
 * applies no part of a transaction whose lease is no more.
 *   A receipt is used by one change at a time and then by the next. One whose change ended in
 * doubt (out of time) is never used again. Receipts go away with the lease: at once when the
 * client is closed, by themselves within the hour when it was killed.
 *
 * Keys are whole: nothing is put in front of them. Everything reads its own writes and those of
 * every client that returned before (etcd's reads are linearizable).
 *
 * Any thread, several at once; a call blocks until its deadline (of tether__clock_system) at most.
 * Errors as for tether__etcd_call().
 */
#ifndef TETHER_RENDEZVOUS_ETCD_CLIENT_H
#define TETHER_RENDEZVOUS_ETCD_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"
#include "protos/etcd.pb-c.h"
#include "rendezvous/etcd_channel.h"

struct tether__etcd;

/* Operations of a transaction that etcd takes at most, ours included (its --max-txn-ops). */
#define TETHER__ETCD_MAX_OPS 126

/* Connects, authenticates and takes the lease for the receipts. */
tether_status tether__etcd_new(const struct tether__etcd_opts *opts,
                               int64_t deadline,
                               struct tether__etcd **ret_etcd,
                               tether_error *reterr);

/* Nothing may be under way. Asks etcd to drop the receipts, but does not insist. Accepts and
 * returns NULL. */
struct tether__etcd *tether__etcd_free(struct tether__etcd *etcd);

const char *tether__etcd_prefix(const struct tether__etcd *etcd);   /* LENDS */
const char *tether__etcd_describe(const struct tether__etcd *etcd); /* the endpoints; LENDS */
struct tether__etcd_channel *tether__etcd_channel(struct tether__etcd *etcd); /* LENDS */

/* ---- One key ------------------------------------------------------------------------------- */

struct tether__etcd_value {
    tether_buf bytes;
    int64_t mod_revision; /* of its last change; 0: there is no such key */
};
#define TETHER__ETCD_VALUE_INIT ((struct tether__etcd_value){TETHER_BUF_INIT, 0})

/* The value now, and the revision of the whole store that it was read at (may be NULL). */
tether_status tether__etcd_get(struct tether__etcd *etcd,
                               tether_bytes key,
                               int64_t deadline,
                               struct tether__etcd_value *ret_value,
                               int64_t *ret_revision,
                               tether_error *reterr);

/* Copies the first key of a range that was read, or notes that there is none. */
tether_status tether__etcd_take_value(const Etcdserverpb__RangeResponse *range,
                                      struct tether__etcd_value *ret_value,
                                      tether_error *reterr);

/* Sets it. `lease` (0: none) makes it go away with that lease. */
tether_status tether__etcd_put(struct tether__etcd *etcd,
                               tether_bytes key,
                               tether_bytes bytes,
                               int64_t lease,
                               int64_t deadline,
                               tether_error *reterr);

/* Sets it if nobody has since `current` was read (`current->mod_revision`; 0: if it is absent).
 * Afterwards `current` is what is there: ours, or what somebody else put there. */
tether_status tether__etcd_compare_put(struct tether__etcd *etcd,
                                       tether_bytes key,
                                       tether_bytes bytes,
                                       int64_t lease,
                                       int64_t deadline,
                                       struct tether__etcd_value *current,
                                       bool *ret_done,
                                       tether_error *reterr);

/* As compare_put(), and removes the key `also` (empty: none) in the same step. */
tether_status tether__etcd_compare_put_and_delete(struct tether__etcd *etcd,
                                                  tether_bytes key,
                                                  tether_bytes bytes,
                                                  tether_bytes also,
                                                  int64_t deadline,
                                                  struct tether__etcd_value *current,
                                                  bool *ret_done,
                                                  tether_error *reterr);

/* Removes it; `*ret_deleted` (may be NULL) says whether it was there. */
tether_status tether__etcd_delete(struct tether__etcd *etcd,
                                  tether_bytes key,
                                  int64_t deadline,
                                  bool *ret_deleted,
                                  tether_error *reterr);

/* Before trying again what somebody else was faster at: waits, longer each round and never as long
 * as others do. False when the deadline has come. */
bool tether__etcd_back_off(unsigned round, int64_t deadline);

/* ---- Leases -------------------------------------------------------------------------------- */

/* Keys put with a lease go away when it has not been kept alive for `ttl_s`. */
tether_status tether__etcd_lease_grant(struct tether__etcd *etcd,
                                       int64_t ttl_s,
                                       int64_t deadline,
                                       int64_t *ret_lease,
                                       tether_error *reterr);

/* The lease of this client itself, which ends within the hour after the client was killed. */
tether_status tether__etcd_own_lease(struct tether__etcd *etcd,
                                     int64_t deadline,
                                     int64_t *ret_lease,
                                     tether_error *reterr);

/* Starts its time over. TETHER_ENOTFOUND when it has run out. */
tether_status tether__etcd_lease_keepalive(struct tether__etcd *etcd,
                                           int64_t lease,
                                           int64_t deadline,
                                           tether_error *reterr);

/* Ends it and removes its keys. TETHER_ENOTFOUND when it has run out. */
tether_status tether__etcd_lease_revoke(struct tether__etcd *etcd,
                                        int64_t lease,
                                        int64_t deadline,
                                        tether_error *reterr);

/* ---- Transactions -------------------------------------------------------------------------- */

enum tether__etcd_op_kind { TETHER__ETCD_RANGE, TETHER__ETCD_PUT, TETHER__ETCD_DELETE };

struct tether__etcd_op {
    enum tether__etcd_op_kind kind;
    tether_bytes key, end; /* [key, end); no end: the key alone (always so for a put) */
    /* put */
    tether_bytes value;
    int64_t lease;
    /* range */
    int64_t limit, revision; /* 0: all of it, as it is now */
    bool keys_only, count_only;
    bool last_first; /* in descending order of keys, so that a limit of 1 gives the last */
};

/* Reads all at one moment: `n` ranges, TETHER__ETCD_MAX_OPS at most. The reply has as many
 * responses, each with its response_range; it goes back with tether__etcd_reply_free(). */
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
    enum tether__etcd_test test; /* of `test_key` against `number` */
    tether_bytes test_key;
    int64_t number;
    const struct tether__etcd_op *then, *otherwise; /* no key may be put twice in one of them */
    size_t n_then, n_otherwise;
};

struct tether__etcd_outcome {
    bool held;        /* the test held: `then` was carried out, else `otherwise` */
    int64_t revision; /* of the change */
    Etcdserverpb__TxnResponse
        *reply; /* with a response for each op; NULL: it got lost on its way */
    ProtobufCMessage *whole;
};
#define TETHER__ETCD_OUTCOME_INIT ((struct tether__etcd_outcome){0})

/* Carries the change out, exactly once. When it fails it may or may not have been carried out if
 * the error says so, and has not been otherwise. */
tether_status tether__etcd_change(struct tether__etcd *etcd,
                                  const struct tether__etcd_change *change,
                                  int64_t deadline,
                                  struct tether__etcd_outcome *ret_outcome,
                                  tether_error *reterr);
void tether__etcd_outcome_fini(struct tether__etcd_outcome *outcome);

#endif
