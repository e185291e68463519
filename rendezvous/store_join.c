/* Joining: every store that waits for the workers adds one to a key that they all know, and the
 * host waits until it is the number of workers. */
#include <inttypes.h>

#include "base/clock.h"
#include "rendezvous/store_call.h"

static void put_joined_key(struct tether__call *call, enum tether__wire_op op, uint64_t number)
{
    tether__conn_put_op(call->conn, op);
    tether__conn_put_key(call->conn, "", TETHER__WIRE_JOINED_KEY);
    tether__conn_put_u64(call->conn, number);
}

/* Adds to the count and gives the sum. */
static tether_status add_joined(struct tether__call *call, uint64_t delta, int64_t *ret_joined)
{
    put_joined_key(call, TETHER__OP_ADD, delta);
    tether__call_ask(call);
    tether_status st = tether__call_get_status(call);
    if (st == TETHER_OK)
        *ret_joined = (int64_t)tether__conn_get_u64(call->conn);
    return st;
}

static tether_status join_worker(struct tether__tcp_store *store,
                                 int timeout_ms,
                                 tether_error *cause)
{
    struct tether__call call;
    int64_t joined;
    tether_status st = tether__call_begin(&call, store, timeout_ms, TETHER__ONCE, cause);
    return st == TETHER_OK ? tether__call_end(&call, add_joined(&call, 1, &joined)) : st;
}

/* The host's server is our own, so it waits in one request, whatever dialect its calls will speak.
 */
static tether_status join_host(struct tether__tcp_store *store,
                               int world_size,
                               int timeout_ms,
                               int64_t *ret_joined,
                               tether_error *cause)
{
    struct tether__call call = {.store = store, .reterr = cause};
    call.deadline = tether__deadline_in(&tether__clock_system, timeout_ms);
    tether_status st =
        tether__tcp_dial(store, TETHER_STORE_DIALECT_TETHER, call.deadline, &call.conn, cause);
    if (st != TETHER_OK)
        return st;
    tether__conn_begin(call.conn, call.deadline);
    put_joined_key(&call, TETHER__OP_BARRIER, (uint64_t)world_size);
    st = tether__call_wait(&call);
    if (st == TETHER_OK) {
        tether__call_settle(&call);
    } else if (st == TETHER_ECANCELED) {
        tether__conn_begin(call.conn, TETHER__NEVER);
        add_joined(&call, 0, ret_joined);
    }
    if (call.conn->status != TETHER_OK) {
        st = call.conn->status;
        *cause = call.conn->error;
    }
    tether__conn_close(call.conn);
    return st;
}

tether_status tether__tcp_join(struct tether__tcp_store *store,
                               int world_size,
                               int timeout_ms,
                               tether_error *reterr)
{
    tether_error cause = {0};
    int64_t joined = 0;
    tether_status st = store->server ? join_host(store, world_size, timeout_ms, &joined, &cause)
                                     : join_worker(store, timeout_ms, &cause);
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
