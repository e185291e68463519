/* Which operations does a PyTorch server lack? V has no version numbers.
 *
 * Happy path: nothing is asked. A server that lacks an operation closes the connection on it, as it
 * does when it goes away. So a call that loses its connection sends a probe on a new one: if the
 * server closes that as well, and still takes a third, it lacks the operation. The answer is kept
 * with the store, so that a server is probed once for each of its parts.
 *
 * A server that lacks an operation has not carried it out, so the caller may do something else.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "rendezvous/store_call.h"

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

/* Asks for something that changes nothing, or is undone at once. */
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
        default: /* a barrier of one, and the end of its key */
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

/* The call's own failure, unless its time ran out before the probe could tell more: whether the
 * server lacks the operation is then not known, and it would not have been done in time anyway. */
static tether_status unexplained(tether_status st, int64_t deadline, tether_error *reterr)
{
    if (tether__clock_now_ns(&tether__clock_system) < deadline)
        return st;
    return tether_error_set(reterr, TETHER_ETIMEOUT,
                            "the time was up before it was known whether the server can do this");
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
    tether__store_conn_close(conn); /* what is left of a list is not read */
    if (has)
        atomic_store_explicit(known, HAS, memory_order_relaxed);
    if (!was_closed ||
        tether__store_tcp_dial(store, store->dialect, deadline, &conn, NULL) != TETHER_OK)
        return unexplained(st, deadline, reterr);
    tether__store_tcp_give(store, conn);
    atomic_store_explicit(known, LACKS, memory_order_relaxed);
    return tether__store_part_check(store, part, reterr);
}
