/* Sends requests and reads replies; ops.c has the requests of each operation. */
#include "rendezvous/store/tcp/client/call.h"

#include "base/clock.h"

#define POLL_MS 5000   /* time for the server to answer a call with a timeout of 0 */
#define CANCEL_MS 2000 /* time for the server to acknowledge a cancelled wait */

/* ---- Every call ----------------------------------------------------------------------------- */

int64_t tether__store_call_deadline(int timeout_ms)
{
    return tether__deadline_in(&tether__clock_system, timeout_ms == 0 ? POLL_MS : timeout_ms);
}

tether_status tether__store_call_begin(struct tether__store_call *call,
                                       struct tether__store_tcp *store,
                                       int timeout_ms,
                                       enum tether__store_call_repeat repeat,
                                       tether_error *reterr)
{
    *call = (struct tether__store_call){.store = store,
                                        .is_poll = timeout_ms == 0,
                                        .repeat = repeat == TETHER__STORE_CALL_REPEATABLE,
                                        .reterr = reterr};
    call->deadline = tether__store_call_deadline(timeout_ms);
    tether_status st =
        tether__store_tcp_take(store, call->deadline, &call->conn, &call->reused, reterr);
    if (st != TETHER_OK)
        return st;
    tether__store_conn_begin(call->conn, call->deadline);
    call->conn->has_time =
        call->reused && (timeout_ms < 0 || timeout_ms > 2 * TETHER__STORE_CONN_SLICE_MS);
    return TETHER_OK;
}

tether_status tether__store_call_end(struct tether__store_call *call, tether_status st)
{
    if (call->conn->status != TETHER_OK) {
        st = call->conn->status;
        if (call->reterr)
            *call->reterr = call->conn->error;
    }
    tether__store_tcp_give(call->store, call->conn);
    return st;
}

/* Sends the same request on a new connection. False: the deadline has passed. */
static bool send_again(struct tether__store_call *call)
{
    struct tether__store_conn *fresh;
    if (tether__store_tcp_dial(call->store, call->store->dialect, call->deadline, &fresh,
                               &call->conn->error) != TETHER_OK)
        return true; /* the connection keeps its error, which end() reports */
    tether__store_conn_begin(fresh, call->deadline);
    tether__store_conn_move_request(fresh, call->conn);
    tether__store_tcp_give(call->store, call->conn);
    call->conn = fresh;
    tether__store_conn_send(fresh);
    return tether__store_conn_wait_readable(fresh);
}

/* Sends the request and waits for the reply to begin. False: the deadline has passed. */
static bool exchange(struct tether__store_call *call)
{
    tether__store_conn_send(call->conn);
    bool came = tether__store_conn_wait_readable(call->conn);
    if (call->conn->status == TETHER_EUNAVAILABLE && call->reused && call->repeat &&
        !call->conn->replied) {
        call->reused = false;
        came = send_again(call);
    }
    return came;
}

void tether__store_call_ask(struct tether__store_call *call)
{
    if (!exchange(call))
        call->conn->status =
            tether_error_set(&call->conn->error, TETHER_ETIMEOUT, "the server does not answer");
}

/* Maps the status byte of a reply of our server to a status and its cause. */
static tether_status status_of(struct tether__store_call *call, uint8_t byte)
{
    static const struct {
        tether_status status;
        const char *why;
    } known[] = {
        {TETHER_EINVAL, TETHER__STORE_CALL_NO_NUMBER},
        {TETHER_ETOOBIG,
         "beyond the server's limits: the value or reply is too long, or the "
         "server has reached its limit of stored bytes (`max_kept`, tether-store "
         "--max-kept): delete keys, or raise it"},
        {TETHER_ENOMEM, "the server is out of memory"},
        {TETHER_EBUSY, "the server has reached its limit of buffered bytes (`max_buffered`)"},
        {TETHER_ECANCELED, ""}, /* the caller adds the reason */
    };
    if (call->conn->status != TETHER_OK || byte == TETHER_OK)
        return TETHER_OK; /* tether__store_call_end() reports the error of the connection */
    for (size_t i = 0; i < TETHER__ARRAY_LEN(known); i++)
        if (known[i].status == byte)
            return tether_error_set(call->reterr, byte, "%s", known[i].why);
    return call->conn->status = tether_error_set(&call->conn->error, TETHER_ECORRUPT,
                                                 "the server answers with status %d", byte);
}

tether_status tether__store_call_get_status(struct tether__store_call *call)
{
    return tether__store_call_speaks_tether(call)
               ? status_of(call, tether__store_conn_get_u8(call->conn))
               : TETHER_OK;
}

/* ---- Requests without a reply, in PyTorch's dialects ---------------------------------------- */

/* Adds a request that has a reply, which shows that the request before it was executed. */
static void put_fence(struct tether__store_call *call)
{
    if (tether__store_call_speaks_tether(call))
        return;
    if (call->conn->has_ping) {
        tether__store_conn_put_op(call->conn, TETHER__STORE_OP_PING);
        tether__store_conn_put_u32(call->conn, TETHER__STORE_WIRE_MAGIC);
        return;
    }
    tether__store_conn_put_op(call->conn, TETHER__STORE_OP_CHECK);
    tether__store_conn_put_u64(call->conn, 1);
    tether__store_conn_put_key(call->conn, "", TETHER__STORE_WIRE_JOINED_KEY);
}

static void get_fence(struct tether__store_call *call)
{
    bool ok = call->conn->has_ping
                  ? tether__store_conn_get_u32(call->conn) == TETHER__STORE_WIRE_MAGIC
                  : tether__store_conn_get_u8(call->conn) <= TETHER__STORE_WIRE_NOT_READY;
    if (!ok && call->conn->status == TETHER_OK)
        call->conn->status = tether_error_set(&call->conn->error, TETHER_ECORRUPT,
                                              "the server's replies are out of step");
}

tether_status tether__store_call_carry_out(struct tether__store_call *call)
{
    put_fence(call);
    tether__store_call_ask(call);
    tether_status st = tether__store_call_get_status(call);
    if (!tether__store_call_speaks_tether(call))
        get_fence(call);
    return st;
}

/* ---- Waiting -------------------------------------------------------------------------------- */

static bool can_cancel(const struct tether__store_call *call)
{
    return tether__store_wire_opcode(TETHER__STORE_OP_CANCEL_WAIT, call->conn->dialect) >= 0;
}

static void cancel(struct tether__store_call *call)
{
    tether__store_conn_begin(call->conn, tether__deadline_in(&tether__clock_system, CANCEL_MS));
    tether__store_conn_put_op(call->conn, TETHER__STORE_OP_CANCEL_WAIT);
    tether__store_conn_send(call->conn);
    call->canceled = true;
}

static uint8_t gave_up(const struct tether__store_call *call)
{
    return tether__store_call_speaks_tether(call) ? TETHER_ECANCELED
                                                  : TETHER__STORE_WIRE_WAIT_CANCELED;
}

tether_status tether__store_call_wait(struct tether__store_call *call)
{
    if (call->is_poll) {
        tether__store_conn_put_op(call->conn, TETHER__STORE_OP_CANCEL_WAIT);
        call->canceled = true;
    }
    if (!exchange(call)) {
        if (call->canceled || !can_cancel(call)) {
            call->conn->status = tether_error_set(
                &call->conn->error, TETHER_ETIMEOUT,
                call->canceled ? "the server does not answer" : "the keys do not exist");
            return TETHER_ETIMEOUT;
        }
        cancel(call);
    }
    uint8_t first = tether__store_conn_get_u8(call->conn);
    if (call->canceled && call->conn->status == TETHER_OK && first == gave_up(call))
        return TETHER_ECANCELED;
    tether_status st = tether__store_call_speaks_tether(call) ? status_of(call, first) : TETHER_OK;
    if (st != TETHER_OK)
        tether__store_call_settle(call); /* nothing of the reply follows, so settle now */
    return st;
}

/* Reads the answer to a cancel that came too late; it follows the reply of the wait. */
void tether__store_call_settle(struct tether__store_call *call)
{
    if (!call->canceled || call->conn->status != TETHER_OK)
        return;
    if (tether__store_conn_get_u8(call->conn) != gave_up(call) && call->conn->status == TETHER_OK)
        call->conn->status = tether_error_set(&call->conn->error, TETHER_ECORRUPT,
                                              "the server's replies are out of step");
}

void tether__store_call_put_keys(struct tether__store_call *call,
                                 enum tether__store_wire_op op,
                                 const char *const *keys,
                                 size_t n)
{
    tether__store_conn_put_op(call->conn, op);
    tether__store_conn_put_u64(call->conn, n);
    for (size_t i = 0; i < n; i++)
        tether__store_conn_put_key(call->conn, TETHER__STORE_WIRE_USER_KEY, keys[i]);
}

void tether__store_call_put_key(struct tether__store_call *call,
                                enum tether__store_wire_op op,
                                const char *key)
{
    tether__store_conn_put_op(call->conn, op);
    tether__store_conn_put_key(call->conn, TETHER__STORE_WIRE_USER_KEY, key);
}

bool tether__store_call_check_keys(struct tether__store_call *call,
                                   const char *const *keys,
                                   size_t n)
{
    tether__store_call_put_keys(call, TETHER__STORE_OP_CHECK, keys, n);
    tether__store_call_ask(call);
    tether__store_call_get_status(call);
    return tether__store_conn_get_u8(call->conn) == TETHER__STORE_WIRE_READY;
}

tether_status tether__store_call_wait_keys(struct tether__store_call *call,
                                           const char *const *keys,
                                           size_t n)
{
    if (call->is_poll && !can_cancel(call))
        return tether__store_call_check_keys(call, keys, n) ? TETHER_OK : TETHER_ECANCELED;
    tether__store_call_put_keys(call, TETHER__STORE_OP_WAIT, keys, n);
    tether_status st = tether__store_call_wait(call);
    if (st == TETHER_OK)
        tether__store_call_settle(call);
    call->canceled = false;
    return st;
}

void tether__store_call_next_request(struct tether__store_call *call)
{
    if (call->conn->status == TETHER_OK)
        tether__store_conn_begin(call->conn, call->deadline);
    call->reused = false;
}
