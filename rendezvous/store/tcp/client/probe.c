/* Finds out which operations a PyTorch server lacks. Dialect V has no version numbers.
 *
 * Happy path: no probe is needed. A server that lacks an operation closes the connection on it, but
 * it also does so when it ends. So a call that loses its connection sends a probe on a new one. If
 * the server closes that as well, and still accepts a third, it lacks the operation. The store
 * remembers the answer, so each part is probed once.
 *
 * A server that lacks an operation has not executed it, so the caller may use an emulation.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "rendezvous/store/tcp/client/call.h"

enum { UNKNOWN, HAS, LACKS };

static const char *const texts[] = {
    [TETHER__STORE_PART_QUEUES] =
        "the server has no queues: PyTorch has them from 2.8 on, with libuv only",
    [TETHER__STORE_PART_LIST_KEYS] = "the server can't list its keys: PyTorch can from 2.10 on",
    [TETHER__STORE_PART_BARRIER] = "the server has no barrier: PyTorch has it from 2.11 on",
};

tether_status tether__store_part_check(const struct tether__store_tcp *store,
                                       enum tether__store_part part,
                                       tether_error *reterr)
{
    if (atomic_load_explicit(&store->parts[part], memory_order_relaxed) != LACKS)
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_ENOTSUP, "%s", texts[part]);
}

/* Sends a request that changes nothing, or that the next one undoes. */
static void put_probe(struct tether__store_conn *conn, enum tether__store_part part)
{
    char key[64];
    uint64_t number;
    switch (part) {
        case TETHER__STORE_PART_QUEUES:
            tether__store_conn_put_op(conn, TETHER__STORE_OP_QUEUE_LEN);
            tether__store_conn_put_key(conn, TETHER__STORE_WIRE_USER_KEY, "tether/probe");
            break;
        case TETHER__STORE_PART_LIST_KEYS:
            tether__store_conn_put_op(conn, TETHER__STORE_OP_LIST_KEYS);
            break;
        default: /* a barrier for one caller; the next request deletes its key */
            arc4random_buf(&number, sizeof number);
            snprintf(key, sizeof key, "tether/probe/%016" PRIx64, number);
            tether__store_conn_put_op(conn, TETHER__STORE_OP_BARRIER);
            tether__store_conn_put_key(conn, TETHER__STORE_WIRE_USER_KEY, key);
            tether__store_conn_put_u64(conn, 1);
            tether__store_conn_put_op(conn, TETHER__STORE_OP_DELETE);
            tether__store_conn_put_key(conn, TETHER__STORE_WIRE_USER_KEY, key);
    }
}

static void get_answer(struct tether__store_conn *conn, enum tether__store_part part)
{
    if (part == TETHER__STORE_PART_BARRIER)
        tether__store_conn_get_u8(conn);
    tether__store_conn_get_u64(conn);
}

/* Returns the failure of the call itself, or a timeout when the probe did not finish in time: then
 * it is not known whether the server lacks the operation. */
static tether_status unexplained(tether_status st, int64_t deadline, tether_error *reterr)
{
    if (tether__clock_now_ns(&tether__clock_system) < deadline)
        return st;
    return tether_error_set(
        reterr, TETHER_ETIMEOUT,
        "the deadline passed before a probe showed whether the server has this operation");
}

tether_status tether__store_part_explain(struct tether__store_tcp *store,
                                         enum tether__store_part part,
                                         tether_status st,
                                         int64_t deadline,
                                         tether_error *reterr)
{
    atomic_int *known = &store->parts[part];
    struct tether__store_conn *conn;
    if (st != TETHER_EUNAVAILABLE || store->dialect != TETHER_STORE_DIALECT_V ||
        atomic_load_explicit(known, memory_order_relaxed) == HAS)
        return st;
    if (tether__store_tcp_dial(store, store->dialect, deadline, &conn, NULL) != TETHER_OK)
        return unexplained(st, deadline, reterr);
    tether__store_conn_begin(conn, deadline);
    put_probe(conn, part);
    tether__store_conn_send(conn);
    if (tether__store_conn_wait_readable(conn))
        get_answer(conn, part);
    bool has = conn->status == TETHER_OK && conn->replied;
    bool was_closed = conn->status == TETHER_EUNAVAILABLE && !conn->replied;
    /* close the connection, because the rest of the list is not read */
    tether__store_conn_close(conn);
    if (has)
        atomic_store_explicit(known, HAS, memory_order_relaxed);
    if (!was_closed ||
        tether__store_tcp_dial(store, store->dialect, deadline, &conn, NULL) != TETHER_OK)
        return unexplained(st, deadline, reterr);
    tether__store_tcp_give(store, conn);
    atomic_store_explicit(known, LACKS, memory_order_relaxed);
    return tether__store_part_check(store, part, reterr);
}
