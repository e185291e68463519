/* The operations of the TCP store: the request of each, and the meaning of its reply. */
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/store/kv/kv.h"
#include "rendezvous/store/tcp/client/call.h"

#define NO_PART TETHER__STORE_N_PARTS

static const struct traits {
    enum tether__store_wire_op wire;
    enum tether__store_call_repeat repeat;
    /* the part of the server that the operation needs; some servers lack it */
    enum tether__store_part part;
} traits[] = {
#define ROW(kind, wire, repeat, part) \
    [TETHER__STORE_##kind] = {TETHER__STORE_OP_##wire, TETHER__STORE_CALL_##repeat, part}
    ROW(SET, SET, REPEATABLE, NO_PART),
    ROW(GET, GET, REPEATABLE, NO_PART),
    ROW(TRY_GET, GET, REPEATABLE, NO_PART),
    ROW(ADD, ADD, ONCE, NO_PART),
    ROW(COMPARE_SET, COMPARE_SET, ONCE, NO_PART),
    ROW(CHECK, CHECK, REPEATABLE, NO_PART),
    ROW(WAIT, WAIT, REPEATABLE, NO_PART),
    ROW(DELETE, DELETE, ONCE, NO_PART),
    ROW(NUM_KEYS, NUM_KEYS, REPEATABLE, NO_PART),
    ROW(APPEND, APPEND, ONCE, NO_PART),
    ROW(MULTI_GET, MULTI_GET, REPEATABLE, NO_PART),
    ROW(MULTI_SET, MULTI_SET, REPEATABLE, NO_PART),
    ROW(LIST_KEYS, LIST_KEYS, REPEATABLE, TETHER__STORE_PART_LIST_KEYS),
    ROW(QUEUE_PUSH, QUEUE_PUSH, ONCE, TETHER__STORE_PART_QUEUES),
    ROW(QUEUE_POP, QUEUE_POP, ONCE, TETHER__STORE_PART_QUEUES),
    ROW(QUEUE_LEN, QUEUE_LEN, REPEATABLE, TETHER__STORE_PART_QUEUES),
    ROW(BARRIER, BARRIER, ONCE, TETHER__STORE_PART_BARRIER),
#undef ROW
};

/* ---- Limits, before anything is sent -------------------------------------------------------- */

static tether_status check_value(const struct tether_store_limits *limits,
                                 tether_bytes value,
                                 tether_error *cause)
{
    if (value.len > limits->max_value)
        return tether_error_set(cause, TETHER_ETOOBIG,
                                "a value of %zu bytes is longer than the limit of %zu", value.len,
                                limits->max_value);
    return TETHER_OK;
}

static tether_status check_limits(const struct tether_store_limits *limits,
                                  struct tether__store_op *op)
{
    bool many = op->kind == TETHER__STORE_CHECK || op->kind == TETHER__STORE_WAIT ||
                op->kind == TETHER__STORE_MULTI_GET || op->kind == TETHER__STORE_MULTI_SET;
    size_t total = 2 * sizeof(uint64_t);
    if (many && op->n > limits->max_keys)
        return tether_error_set(&op->cause, TETHER_ETOOBIG,
                                "%zu keys are more than the server's limit of %zu a call", op->n,
                                limits->max_keys);
    tether_status st = check_value(limits, op->expected, &op->cause);
    for (size_t i = 0; st == TETHER_OK && i < op->n; i++) {
        size_t len = strnlen(op->keys[i], limits->max_key + 1);
        tether_bytes value = op->values ? op->values[i] : (tether_bytes){NULL, 0};
        if (len > limits->max_key)
            st = tether_error_set(&op->cause, TETHER_ETOOBIG,
                                  "a key is longer than the server's limit of %zu bytes",
                                  limits->max_key);
        else
            st = check_value(limits, value, &op->cause);
        total += 2 * sizeof(uint64_t) + sizeof TETHER__STORE_WIRE_USER_KEY + len + value.len;
    }
    if (st == TETHER_OK && many && total > limits->max_message)
        st = tether_error_set(&op->cause, TETHER_ETOOBIG,
                              "%zu bytes in one call are more than the limit of %zu", total,
                              limits->max_message);
    return st;
}

/* ---- Requests and replies ------------------------------------------------------------------- */

/* Waits for the keys, then reads the value of each. */
static tether_status get_values(struct tether__store_call *call,
                                const struct tether__store_op *op,
                                tether_buf *ret_values)
{
    tether_status st = TETHER_OK;
    if (!tether__store_call_speaks_tether(call)) {
        st = tether__store_call_wait_keys(call, op->keys, op->n);
        if (st != TETHER_OK)
            return st;
        tether__store_call_next_request(call);
    }
    if (op->n == 1)
        tether__store_call_put_key(call, TETHER__STORE_OP_GET, op->keys[0]);
    else
        tether__store_call_put_keys(call, TETHER__STORE_OP_MULTI_GET, op->keys, op->n);
    if (tether__store_call_speaks_tether(call))
        st = tether__store_call_wait(call);
    else
        tether__store_call_ask(call);
    if (st != TETHER_OK)
        return st;
    for (size_t i = 0; i < op->n; i++)
        tether__store_conn_get_bytes(call->conn, call->store->limits.max_message, &ret_values[i]);
    tether__store_call_settle(call);
    return TETHER_OK;
}

/* Sends the request; its reply is one number. */
static tether_status ask_number(struct tether__store_call *call, struct tether__store_op *op)
{
    tether__store_call_ask(call);
    tether_status st = tether__store_call_get_status(call);
    op->count = st == TETHER_OK ? (int64_t)tether__store_conn_get_u64(call->conn) : 0;
    op->yes = op->count != 0;
    return st;
}

static tether_status compare_set(struct tether__store_call *call, struct tether__store_op *op)
{
    tether__store_conn_put_bytes(call->conn, op->expected);
    tether__store_conn_put_bytes(call->conn, op->values[0]);
    tether__store_call_ask(call);
    tether_status st = tether__store_call_get_status(call);
    if (st != TETHER_OK)
        return st;
    bool tells = tether__store_call_speaks_tether(call);
    op->yes = tells && tether__store_conn_get_u8(call->conn) != 0;
    tether__store_conn_get_bytes(call->conn, call->store->limits.max_message, op->results);
    if (!tells)
        op->yes = tether_bytes_equal(tether_buf_bytes(op->results), op->values[0]);
    return TETHER_OK;
}

/* PyTorch's server pops at once or fails, and another client may pop first after a wait. */
static tether_status pop_by_waiting(struct tether__store_call *call,
                                    const char *key,
                                    tether_buf *ret_value)
{
    for (;;) {
        tether__store_call_put_key(call, TETHER__STORE_OP_QUEUE_POP, key);
        tether__store_call_ask(call);
        int64_t len = (int64_t)tether__store_conn_get_u64(call->conn);
        if (call->conn->status != TETHER_OK)
            return TETHER_OK; /* tether__store_call_end() reports the error */
        if (len > 0) {
            tether__store_conn_get_bytes(call->conn, call->store->limits.max_message, ret_value);
            return TETHER_OK;
        }
        if (call->is_poll)
            return TETHER_ECANCELED;
        tether__store_call_next_request(call);
        tether_status st = tether__store_call_wait_keys(call, &key, 1);
        if (st != TETHER_OK)
            return st;
        tether__store_call_next_request(call);
    }
}

static tether_status queue_pop(struct tether__store_call *call, struct tether__store_op *op)
{
    if (!tether__store_call_speaks_tether(call))
        return pop_by_waiting(call, op->keys[0], op->results);
    tether__store_call_put_key(call, TETHER__STORE_OP_QUEUE_POP, op->keys[0]);
    tether_status st = tether__store_call_wait(call);
    if (st == TETHER_OK) {
        tether__store_conn_get_bytes(call->conn, call->store->limits.max_message, op->results);
        tether__store_call_settle(call);
    }
    return st;
}

static tether_status barrier(struct tether__store_call *call, const struct tether__store_op *op)
{
    tether__store_conn_put_u64(call->conn, (uint64_t)op->number);
    tether_status st = tether__store_call_wait(call);
    if (st == TETHER_OK)
        tether__store_call_settle(call);
    return st;
}

static void read_key_list(struct tether__store_call *call, tether_store_keys *keys)
{
    size_t room = 0;
    uint64_t count = tether__store_conn_get_u64(call->conn);
    for (uint64_t i = 0; i < count && call->conn->status == TETHER_OK; i++) {
        if (keys->count == room) { /* grow as keys arrive: the announced count may be wrong */
            room = room ? 2 * room : 64;
            tether_buf *more = tether__realloc(keys->keys, room * sizeof *more);
            if (!more) {
                call->conn->status = tether_error_set(&call->conn->error, TETHER_ENOMEM,
                                                      "out of memory for the keys");
                return;
            }
            keys->keys = more;
        }
        tether_buf *key = &keys->keys[keys->count];
        *key = TETHER_BUF_INIT;
        tether__store_conn_get_bytes(call->conn, TETHER_STORE_MAX_KEY + 1, key);
        if (call->conn->status == TETHER_OK && key->len > 1 && key->data[0] == '/') {
            /* remove the "/" from the front, and keep the NUL */
            memmove(key->data, key->data + 1, key->len--);
            keys->count++;
        } else { /* skip a key that the library itself uses */
            tether_buf_fini(key);
        }
    }
}

/* Sends the requests of `op` and reads the replies. The caller ends the call. */
static tether_status exchange(struct tether__store_call *call,
                              struct tether__store_op *op,
                              tether_buf *values,
                              tether_store_keys *list)
{
    const enum tether__store_wire_op wire = traits[op->kind].wire;
    switch (op->kind) {
        case TETHER__STORE_SET:
        case TETHER__STORE_APPEND:
        case TETHER__STORE_QUEUE_PUSH:
            tether__store_call_put_key(call, wire, op->keys[0]);
            tether__store_conn_put_bytes(call->conn, op->values[0]);
            return tether__store_call_carry_out(call);
        case TETHER__STORE_MULTI_SET:
            tether__store_conn_put_op(call->conn, wire);
            tether__store_conn_put_u64(call->conn, op->n);
            for (size_t i = 0; i < op->n; i++) {
                tether__store_conn_put_key(call->conn, TETHER__STORE_WIRE_USER_KEY, op->keys[i]);
                tether__store_conn_put_bytes(call->conn, op->values[i]);
            }
            return tether__store_call_carry_out(call);
        case TETHER__STORE_TRY_GET:
            call->is_poll = true;
            return get_values(call, op, values);
        case TETHER__STORE_GET:
        case TETHER__STORE_MULTI_GET:
            return get_values(call, op, values);
        case TETHER__STORE_CHECK:
            op->yes = tether__store_call_check_keys(call, op->keys, op->n);
            return TETHER_OK;
        case TETHER__STORE_WAIT:
            return tether__store_call_wait_keys(call, op->keys, op->n);
        case TETHER__STORE_ADD:
            tether__store_call_put_key(call, wire, op->keys[0]);
            tether__store_conn_put_u64(call->conn, (uint64_t)op->number);
            return ask_number(call, op);
        case TETHER__STORE_DELETE:
        case TETHER__STORE_QUEUE_LEN:
            tether__store_call_put_key(call, wire, op->keys[0]);
            return ask_number(call, op);
        case TETHER__STORE_NUM_KEYS:
            tether__store_conn_put_op(call->conn, wire);
            return ask_number(call, op);
        case TETHER__STORE_COMPARE_SET:
            tether__store_call_put_key(call, wire, op->keys[0]);
            return compare_set(call, op);
        case TETHER__STORE_QUEUE_POP:
            return queue_pop(call, op);
        case TETHER__STORE_BARRIER:
            tether__store_call_put_key(call, wire, op->keys[0]);
            return barrier(call, op);
        case TETHER__STORE_LIST_KEYS:
            tether__store_conn_put_op(call->conn, wire);
            tether__store_call_ask(call);
            tether_status st = tether__store_call_get_status(call);
            if (st == TETHER_OK)
                read_key_list(call, list);
            return st;
    }
    return TETHER_ENOTSUP;
}

/* ---- Running -------------------------------------------------------------------------------- */

static tether_status try_get(struct tether__store_tcp *store,
                             const struct tether__store_op *op,
                             tether_buf *ret_value,
                             tether_error *reterr)
{
    struct tether__store_op get = {.kind = TETHER__STORE_TRY_GET,
                                   .keys = op->keys,
                                   .n = 1,
                                   .timeout_ms = op->timeout_ms,
                                   .deadline = op->deadline,
                                   .results = ret_value};
    tether_status st = tether__store_tcp_kind.run(store, &get);
    if (st != TETHER_OK && reterr)
        *reterr = get.cause;
    return st;
}

/* PyTorch's server refuses an add by closing the connection. The present value shows whether the
 * add was invalid. */
static tether_status explain_failed_add(struct tether__store_tcp *store,
                                        struct tether__store_op *op,
                                        tether_status st)
{
    tether_buf value = TETHER_BUF_INIT;
    int64_t sum;
    if (try_get(store, op, &value, NULL) == TETHER_OK) {
        tether_bytes present = tether_buf_bytes(&value);
        if (tether__kv_sum(&present, op->number, &sum) == TETHER_EINVAL)
            st = tether_error_set(&op->cause, TETHER_EINVAL, TETHER__STORE_CALL_NO_NUMBER);
    }
    tether_buf_fini(&value);
    return st;
}

/* PyTorch's server does not say whether it has swapped, so this reads the value before the swap. It
 * is decisive unless another client changes the key in between. `*ret_done`: there is nothing to
 * swap, and the result is set. */
static tether_status read_before_swap(struct tether__store_tcp *store,
                                      struct tether__store_op *op,
                                      bool *ret_done)
{
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = try_get(store, op, &value, &op->cause);
    if (st != TETHER_OK && st != TETHER_ENOTFOUND)
        return st;
    tether_bytes present = tether_buf_bytes(&value);
    *ret_done = !tether_bytes_equal(present, op->expected);
    if (*ret_done)
        st = tether_buf_assign(op->results, st == TETHER_OK ? present : op->expected);
    else
        st = TETHER_OK;
    op->yes = false;
    tether_buf_fini(&value);
    return st;
}

/* MULTI_GET and LIST_KEYS hand their results over together, so that an error in the middle leaves
 * the caller's results alone. */
static tether_status run_call(struct tether__store_tcp *store, struct tether__store_op *op)
{
    struct tether__store_call call;
    tether_store_keys list = {NULL, 0};
    const bool many = op->kind == TETHER__STORE_MULTI_GET;
    tether_buf *values = many ? tether__calloc(op->n, sizeof *values) : op->results;
    if (many && !values)
        return tether_error_set(&op->cause, TETHER_ENOMEM, "out of memory for %zu values", op->n);
    bool may_be_refusal = false;
    tether_status st =
        tether__store_call_begin(&call, store, op->timeout_ms, traits[op->kind].repeat, &op->cause);
    if (st == TETHER_OK) {
        st = exchange(&call, op, values, &list);
        may_be_refusal = op->kind == TETHER__STORE_ADD &&
                         call.conn->status == TETHER_EUNAVAILABLE &&
                         !tether__store_call_speaks_tether(&call);
        st = tether__store_call_end(&call, st);
    }
    if (many)
        tether__store_hand_out(values, op->n, st, op->results);
    if (st == TETHER_OK && op->kind == TETHER__STORE_LIST_KEYS)
        *op->list = list;
    else
        tether_store_keys_fini(&list);
    return may_be_refusal ? explain_failed_add(store, op, st) : st;
}

/* Returns the status and the cause of an operation that timed out. */
static tether_status canceled(struct tether__store_op *op)
{
    if (op->kind == TETHER__STORE_TRY_GET)
        return tether_error_set(&op->cause, TETHER_ENOTFOUND, "the key does not exist");
    if (op->kind == TETHER__STORE_QUEUE_POP && op->timeout_ms == 0)
        return tether_error_set(&op->cause, TETHER_ENOTFOUND, "queue is empty");
    return TETHER_ETIMEOUT;
}

static tether_status tcp_run(void *impl, struct tether__store_op *op)
{
    struct tether__store_tcp *store = impl;
    const enum tether__store_part part = traits[op->kind].part;
    int64_t deadline = tether__store_call_deadline(op->timeout_ms);
    bool done = false;
    tether_status st = check_limits(&store->limits, op);
    if (st == TETHER_OK && part != NO_PART)
        st = tether__store_part_check(store, part, &op->cause);
    if (st == TETHER_OK && op->kind == TETHER__STORE_COMPARE_SET &&
        store->dialect != TETHER_STORE_DIALECT_TETHER)
        st = read_before_swap(store, op, &done);
    if (st == TETHER_OK && !done)
        st = run_call(store, op);
    if (part != NO_PART)
        st = tether__store_part_explain(store, part, st, deadline, &op->cause);
    return st == TETHER_ECANCELED ? canceled(op) : st;
}

/* Returns the operations that the dialect lacks; op.c emulates them. */
static uint32_t tcp_lacks(const void *impl)
{
    const struct tether__store_tcp *store = impl;
    uint32_t set = 0;
    for (size_t kind = 0; kind < TETHER__ARRAY_LEN(traits); kind++)
        if (tether__store_wire_opcode(traits[kind].wire, store->dialect) < 0)
            set |= TETHER__STORE_BIT(kind);
    return set;
}

const struct tether__store_kind tether__store_tcp_kind = {tcp_run, tether__store_tcp_destroy,
                                                          tcp_lacks};
