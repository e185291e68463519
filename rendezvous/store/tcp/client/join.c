/* Joining: every store with `wait_for_workers` adds one to a common key, and the host waits until
 * the sum is the number of workers. */
#include <inttypes.h>

#include "base/clock.h"
#include "rendezvous/store/tcp/client/call.h"

#define COUNT_MS 2000 /* time to read how many stores have joined, after the deadline */

static void put_joined_key(struct tether__store_call *call,
                           enum tether__store_wire_op op,
                           uint64_t number)
{
    tether__store_conn_put_op(call->conn, op);
    tether__store_conn_put_key(call->conn, "", TETHER__STORE_WIRE_JOINED_KEY);
    tether__store_conn_put_u64(call->conn, number);
}

/* Adds `delta` to the count of joined stores and gives the sum. */
static tether_status add_joined(struct tether__store_call *call,
                                uint64_t delta,
                                int64_t *ret_joined)
{
    put_joined_key(call, TETHER__STORE_OP_ADD, delta);
    tether__store_call_ask(call);
    tether_status st = tether__store_call_get_status(call);
    if (st == TETHER_OK)
        *ret_joined = (int64_t)tether__store_conn_get_u64(call->conn);
    return st;
}

static tether_status join_worker(struct tether__store_tcp *store,
                                 int64_t deadline,
                                 tether_error *cause)
{
    struct tether__store_call call;
    int64_t joined;
    int left_ms = tether__deadline_left_ms(&tether__clock_system, deadline);
    tether_status st =
        tether__store_call_begin(&call, store, left_ms, TETHER__STORE_CALL_ONCE, cause);
    return st == TETHER_OK ? tether__store_call_end(&call, add_joined(&call, 1, &joined)) : st;
}

/* The server of a host is our own, so the host waits with one request in Tether's dialect. */
static tether_status join_host(struct tether__store_tcp *store,
                               int world_size,
                               int64_t deadline,
                               int64_t *ret_joined,
                               tether_error *cause)
{
    struct tether__store_call call = {.store = store, .deadline = deadline, .reterr = cause};
    tether_status st = tether__store_tcp_dial(store, TETHER_STORE_DIALECT_TETHER, call.deadline,
                                              &call.conn, cause);
    if (st != TETHER_OK)
        return st;
    tether__store_conn_begin(call.conn, call.deadline);
    put_joined_key(&call, TETHER__STORE_OP_BARRIER, (uint64_t)world_size);
    st = tether__store_call_wait(&call);
    if (st == TETHER_OK) {
        tether__store_call_settle(&call);
    } else if (st == TETHER_ECANCELED) {
        tether__store_conn_begin(call.conn, tether__deadline_in(&tether__clock_system, COUNT_MS));
        add_joined(&call, 0, ret_joined);
    }
    if (call.conn->status != TETHER_OK) {
        st = call.conn->status;
        *cause = call.conn->error;
    }
    tether__store_conn_close(call.conn);
    return st;
}

tether_status tether__store_tcp_join(struct tether__store_tcp *store,
                                     int world_size,
                                     int timeout_ms,
                                     int64_t deadline,
                                     tether_error *reterr)
{
    tether_error cause = {0};
    int64_t joined = 0;
    tether_status st = store->server ? join_host(store, world_size, deadline, &joined, &cause)
                                     : join_worker(store, deadline, &cause);
    if (st == TETHER_ECANCELED)
        return tether_error_set(reterr, TETHER_ETIMEOUT,
                                "Timed out after %d seconds waiting for clients. %" PRId64
                                "/%d clients joined.",
                                timeout_ms / 1000 + (timeout_ms % 1000 > 0), joined, world_size);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "joining the tcp store (%s, %d): %s", store->host,
                                store->port, cause.message);
    return TETHER_OK;
}
