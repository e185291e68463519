/* The calls of the TCP store, one by one: what is asked, and what the answer means. */
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/kv.h"
#include "rendezvous/store_call.h"

/* ---- Limits, before anything is sent -------------------------------------------------------- */

static tether_status check_key(const struct tether__store_tcp *store,
                               const char *key,
                               tether_error *reterr)
{
    size_t len = strnlen(key, store->limits.max_key + 1);
    if (len > store->limits.max_key)
        return tether_error_set(reterr, TETHER_ETOOBIG,
                                "a key is longer than the server's limit of %zu bytes",
                                store->limits.max_key);
    return TETHER_OK;
}

static tether_status check_value(const struct tether__store_tcp *store,
                                 tether_bytes value,
                                 tether_error *reterr)
{
    if (value.len > store->limits.max_value)
        return tether_error_set(reterr, TETHER_ETOOBIG,
                                "a value of %zu bytes is longer than the limit of %zu", value.len,
                                store->limits.max_value);
    return TETHER_OK;
}

static tether_status check_one(void *impl,
                               const char *key,
                               tether_bytes value,
                               tether_error *reterr)
{
    tether_status st = check_key(impl, key, reterr);
    return st == TETHER_OK ? check_value(impl, value, reterr) : st;
}

static tether_status check_many(void *impl,
                                const char *const *keys,
                                const tether_bytes *values,
                                size_t n,
                                tether_error *reterr)
{
    const struct tether__store_tcp *store = impl;
    size_t total = 2 * sizeof(uint64_t);
    if (n > store->limits.max_keys)
        return tether_error_set(reterr, TETHER_ETOOBIG,
                                "%zu keys are more than the server's limit of %zu a call", n,
                                store->limits.max_keys);
    tether_status st = TETHER_OK;
    for (size_t i = 0; st == TETHER_OK && i < n; i++) {
        static const tether_bytes none = {NULL, 0};
        tether_bytes value = values ? values[i] : none;
        st = check_one(impl, keys[i], value, reterr);
        total +=
            2 * sizeof(uint64_t) + sizeof TETHER__STORE_WIRE_USER_KEY + strlen(keys[i]) + value.len;
    }
    if (st == TETHER_OK && total > store->limits.max_message)
        st = tether_error_set(reterr, TETHER_ETOOBIG,
                              "%zu bytes in one call are more than the limit of %zu", total,
                              store->limits.max_message);
    return st;
}

/* ---- The calls ------------------------------------------------------------------------------ */

/* What was not there in time is a time-out to the caller. */
static tether_status in_time(tether_status st)
{
    return st == TETHER_ECANCELED ? TETHER_ETIMEOUT : st;
}

static tether_status put_value(void *impl,
                               enum tether__store_wire_op op,
                               enum tether__store_call_repeat repeat,
                               const char *key,
                               tether_bytes value,
                               int timeout_ms,
                               tether_error *reterr)
{
    struct tether__store_call call;
    tether_status st = check_one(impl, key, value, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, repeat, reterr);
    if (st != TETHER_OK)
        return st;
    tether__store_call_put_key(&call, op, key);
    tether__store_conn_put_bytes(call.conn, value);
    return tether__store_call_carry_out(&call);
}

static tether_status tcp_set(void *impl,
                             const char *key,
                             tether_bytes value,
                             int timeout_ms,
                             tether_error *reterr)
{
    return put_value(impl, TETHER__STORE_OP_SET, TETHER__STORE_CALL_REPEATABLE, key, value,
                     timeout_ms, reterr);
}

static tether_status tcp_append(void *impl,
                                const char *key,
                                tether_bytes value,
                                int timeout_ms,
                                tether_error *reterr)
{
    return put_value(impl, TETHER__STORE_OP_APPEND, TETHER__STORE_CALL_ONCE, key, value, timeout_ms,
                     reterr);
}

static tether_status tcp_queue_push(void *impl,
                                    const char *key,
                                    tether_bytes value,
                                    int timeout_ms,
                                    tether_error *reterr)
{
    int64_t deadline = tether__store_call_deadline(timeout_ms);
    tether_status st = tether__store_part_check(impl, TETHER__STORE_PART_QUEUES, reterr);
    if (st == TETHER_OK)
        st = put_value(impl, TETHER__STORE_OP_QUEUE_PUSH, TETHER__STORE_CALL_ONCE, key, value,
                       timeout_ms, reterr);
    return tether__store_part_explain(impl, TETHER__STORE_PART_QUEUES, st, deadline, reterr);
}

static tether_status tcp_multi_set(void *impl,
                                   const char *const *keys,
                                   const tether_bytes *values,
                                   size_t n,
                                   int timeout_ms,
                                   tether_error *reterr)
{
    struct tether__store_call call;
    tether_status st = check_many(impl, keys, values, n, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_REPEATABLE,
                                      reterr);
    if (st != TETHER_OK)
        return st;
    tether__store_conn_put_op(call.conn, TETHER__STORE_OP_MULTI_SET);
    tether__store_conn_put_u64(call.conn, n);
    for (size_t i = 0; i < n; i++) {
        tether__store_conn_put_key(call.conn, TETHER__STORE_WIRE_USER_KEY, keys[i]);
        tether__store_conn_put_bytes(call.conn, values[i]);
    }
    return tether__store_call_carry_out(&call);
}

/* Waits for keys, then fills a value for each. */
static tether_status get_values(struct tether__store_call *call,
                                const char *const *keys,
                                size_t n,
                                tether_buf *ret_values)
{
    const struct tether_store_limits *limits = &call->store->limits;
    bool one = n == 1;
    tether_status st;
    if (!tether__store_call_speaks_tether(call)) {
        st = tether__store_call_wait_keys(call, keys, n);
        if (st != TETHER_OK)
            return tether__store_call_end(call, st);
        tether__store_call_next_request(call);
    }
    if (one)
        tether__store_call_put_key(call, TETHER__STORE_OP_GET, keys[0]);
    else
        tether__store_call_put_keys(call, TETHER__STORE_OP_MULTI_GET, keys, n);
    if (tether__store_call_speaks_tether(call)) {
        st = tether__store_call_wait(call);
    } else {
        st = TETHER_OK;
        tether__store_call_ask(call);
    }
    if (st != TETHER_OK)
        return tether__store_call_end(call, st);
    for (size_t i = 0; i < n; i++)
        tether__store_conn_get_bytes(call->conn, limits->max_message, &ret_values[i]);
    tether__store_call_settle(call);
    return tether__store_call_end(call, TETHER_OK);
}

static tether_status tcp_get(void *impl,
                             const char *key,
                             int timeout_ms,
                             tether_buf *ret_value,
                             tether_error *reterr)
{
    struct tether__store_call call;
    tether_status st = check_key(impl, key, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_REPEATABLE,
                                      reterr);
    return st == TETHER_OK ? in_time(get_values(&call, &key, 1, ret_value)) : st;
}

static tether_status tcp_try_get(void *impl,
                                 const char *key,
                                 int timeout_ms,
                                 tether_buf *ret_value,
                                 tether_error *reterr)
{
    struct tether__store_call call;
    tether_status st = check_key(impl, key, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_REPEATABLE,
                                      reterr);
    if (st != TETHER_OK)
        return st;
    call.is_poll = true;
    st = get_values(&call, &key, 1, ret_value);
    if (st == TETHER_ECANCELED)
        st = tether_error_set(reterr, TETHER_ENOTFOUND, "there is no such key");
    return st;
}

/* Values are handed over together, so that an error in the middle leaves the caller's alone. */
static tether_status tcp_multi_get(void *impl,
                                   const char *const *keys,
                                   size_t n,
                                   int timeout_ms,
                                   tether_buf *ret_values,
                                   tether_error *reterr)
{
    struct tether__store_call call;
    tether_status st = check_many(impl, keys, NULL, n, reterr);
    tether_buf *values = st == TETHER_OK ? tether__calloc(n, sizeof *values) : NULL;
    if (st == TETHER_OK && !values)
        st = tether_error_set(reterr, TETHER_ENOMEM, "no memory for %zu values", n);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_REPEATABLE,
                                      reterr);
    if (st == TETHER_OK)
        st = in_time(get_values(&call, keys, n, values));
    for (size_t i = 0; values && i < n; i++) {
        tether_buf_fini(st == TETHER_OK ? &ret_values[i] : &values[i]);
        if (st == TETHER_OK)
            ret_values[i] = values[i];
    }
    tether__free(values);
    return st;
}

/* PyTorch's dialects refuse an add by closing the connection. Whether it was that shows in the
 * value that is there. */
static tether_status look_why_add_failed(void *impl,
                                         const char *key,
                                         int64_t delta,
                                         int timeout_ms,
                                         tether_status st,
                                         tether_error *reterr)
{
    tether_buf value = TETHER_BUF_INIT;
    int64_t sum;
    if (tcp_try_get(impl, key, timeout_ms, &value, NULL) == TETHER_OK) {
        tether_bytes there = tether_buf_bytes(&value);
        if (tether__kv_sum(&there, delta, &sum) == TETHER_EINVAL)
            st = tether_error_set(reterr, TETHER_EINVAL, TETHER__STORE_CALL_NO_NUMBER);
    }
    tether_buf_fini(&value);
    return st;
}

static tether_status tcp_add(void *impl,
                             const char *key,
                             int64_t delta,
                             int timeout_ms,
                             int64_t *ret_sum,
                             tether_error *reterr)
{
    struct tether__store_call call;
    tether_status st = check_key(impl, key, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_ONCE, reterr);
    if (st != TETHER_OK)
        return st;
    tether__store_call_put_key(&call, TETHER__STORE_OP_ADD, key);
    tether__store_conn_put_u64(call.conn, (uint64_t)delta);
    tether__store_call_ask(&call);
    st = tether__store_call_get_status(&call);
    int64_t sum = st == TETHER_OK ? (int64_t)tether__store_conn_get_u64(call.conn) : 0;
    bool may_be_refusal =
        call.conn->status == TETHER_EUNAVAILABLE && !tether__store_call_speaks_tether(&call);
    st = tether__store_call_end(&call, st);
    if (st == TETHER_OK)
        *ret_sum = sum;
    else if (may_be_refusal)
        st = look_why_add_failed(impl, key, delta, timeout_ms, st, reterr);
    return st;
}

/* PyTorch's server does not say whether it has swapped. Unless somebody else changes the key in
 * between, what was there before tells: whether there is something to swap. */
static tether_status look_before_swap(void *impl,
                                      const char *key,
                                      tether_bytes expected,
                                      int timeout_ms,
                                      bool *ret_matches,
                                      tether_buf *ret_value,
                                      tether_error *reterr)
{
    tether_buf there = TETHER_BUF_INIT;
    tether_status st = tcp_try_get(impl, key, timeout_ms, &there, reterr);
    if (st != TETHER_OK && st != TETHER_ENOTFOUND)
        return st;
    *ret_matches = tether_bytes_equal(tether_buf_bytes(&there), expected);
    if (!*ret_matches)
        st = tether_buf_assign(ret_value, st == TETHER_OK ? tether_buf_bytes(&there) : expected);
    else
        st = TETHER_OK;
    tether_buf_fini(&there);
    return st;
}

static tether_status tcp_compare_set(void *impl,
                                     const char *key,
                                     tether_bytes expected,
                                     tether_bytes desired,
                                     int timeout_ms,
                                     bool *ret_swapped,
                                     tether_buf *ret_value,
                                     tether_error *reterr)
{
    struct tether__store_call call;
    const struct tether__store_tcp *store = impl;
    bool tells = store->dialect == TETHER_STORE_DIALECT_TETHER, matches = true;
    tether_status st = check_one(impl, key, expected, reterr);
    if (st == TETHER_OK)
        st = check_value(impl, desired, reterr);
    if (st == TETHER_OK && !tells)
        st = look_before_swap(impl, key, expected, timeout_ms, &matches, ret_value, reterr);
    if (st == TETHER_OK && !matches) {
        *ret_swapped = false;
        return TETHER_OK;
    }
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_ONCE, reterr);
    if (st != TETHER_OK)
        return st;
    tether__store_call_put_key(&call, TETHER__STORE_OP_COMPARE_SET, key);
    tether__store_conn_put_bytes(call.conn, expected);
    tether__store_conn_put_bytes(call.conn, desired);
    tether__store_call_ask(&call);
    st = tether__store_call_get_status(&call);
    bool swapped = st == TETHER_OK && tells && tether__store_conn_get_u8(call.conn) != 0;
    if (st == TETHER_OK)
        tether__store_conn_get_bytes(call.conn, call.store->limits.max_message, ret_value);
    st = tether__store_call_end(&call, st);
    if (st == TETHER_OK)
        *ret_swapped = tells ? swapped : tether_bytes_equal(tether_buf_bytes(ret_value), desired);
    return st;
}

static tether_status tcp_check(void *impl,
                               const char *const *keys,
                               size_t n,
                               int timeout_ms,
                               bool *ret_ready,
                               tether_error *reterr)
{
    struct tether__store_call call;
    tether_status st = check_many(impl, keys, NULL, n, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_REPEATABLE,
                                      reterr);
    if (st != TETHER_OK)
        return st;
    bool ready = tether__store_call_check_keys(&call, keys, n);
    st = tether__store_call_end(&call, TETHER_OK);
    if (st == TETHER_OK)
        *ret_ready = ready;
    return st;
}

static tether_status tcp_wait(void *impl,
                              const char *const *keys,
                              size_t n,
                              int timeout_ms,
                              tether_error *reterr)
{
    struct tether__store_call call;
    tether_status st = check_many(impl, keys, NULL, n, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_REPEATABLE,
                                      reterr);
    if (st != TETHER_OK)
        return st;
    st = tether__store_call_wait_keys(&call, keys, n);
    return in_time(tether__store_call_end(&call, st));
}

/* A request whose reply is one number; without a key when `key` is NULL. */
static tether_status get_number(void *impl,
                                enum tether__store_wire_op op,
                                enum tether__store_call_repeat repeat,
                                const char *key,
                                int timeout_ms,
                                int64_t *ret_number,
                                tether_error *reterr)
{
    struct tether__store_call call;
    tether_status st = key ? check_key(impl, key, reterr) : TETHER_OK;
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, repeat, reterr);
    if (st != TETHER_OK)
        return st;
    if (key)
        tether__store_call_put_key(&call, op, key);
    else
        tether__store_conn_put_op(call.conn, op);
    tether__store_call_ask(&call);
    st = tether__store_call_get_status(&call);
    int64_t number = st == TETHER_OK ? (int64_t)tether__store_conn_get_u64(call.conn) : 0;
    st = tether__store_call_end(&call, st);
    if (st == TETHER_OK)
        *ret_number = number;
    return st;
}

static tether_status tcp_del(void *impl,
                             const char *key,
                             int timeout_ms,
                             bool *ret_deleted,
                             tether_error *reterr)
{
    int64_t deleted;
    tether_status st = get_number(impl, TETHER__STORE_OP_DELETE, TETHER__STORE_CALL_ONCE, key,
                                  timeout_ms, &deleted, reterr);
    if (st == TETHER_OK)
        *ret_deleted = deleted != 0;
    return st;
}

static tether_status tcp_num_keys(void *impl,
                                  int timeout_ms,
                                  int64_t *ret_count,
                                  tether_error *reterr)
{
    return get_number(impl, TETHER__STORE_OP_NUM_KEYS, TETHER__STORE_CALL_REPEATABLE, NULL,
                      timeout_ms, ret_count, reterr);
}

static tether_status tcp_queue_len(void *impl,
                                   const char *key,
                                   int timeout_ms,
                                   int64_t *ret_len,
                                   tether_error *reterr)
{
    int64_t deadline = tether__store_call_deadline(timeout_ms);
    tether_status st = tether__store_part_check(impl, TETHER__STORE_PART_QUEUES, reterr);
    if (st == TETHER_OK)
        st = get_number(impl, TETHER__STORE_OP_QUEUE_LEN, TETHER__STORE_CALL_REPEATABLE, key,
                        timeout_ms, ret_len, reterr);
    return tether__store_part_explain(impl, TETHER__STORE_PART_QUEUES, st, deadline, reterr);
}

/* PyTorch's server pops at once or not at all, and others may be quicker after a wait. */
static tether_status pop_by_waiting(struct tether__store_call *call,
                                    const char *key,
                                    tether_buf *ret_value)
{
    for (;;) {
        tether__store_call_put_key(call, TETHER__STORE_OP_QUEUE_POP, key);
        tether__store_call_ask(call);
        int64_t len = (int64_t)tether__store_conn_get_u64(call->conn);
        if (call->conn->status != TETHER_OK)
            return TETHER_OK; /* tether__store_call_end() says what is wrong */
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

static tether_status tcp_queue_pop(void *impl,
                                   const char *key,
                                   int timeout_ms,
                                   tether_buf *ret_value,
                                   tether_error *reterr)
{
    struct tether__store_call call;
    int64_t deadline = tether__store_call_deadline(timeout_ms);
    tether_status st = check_key(impl, key, reterr);
    if (st == TETHER_OK)
        st = tether__store_part_check(impl, TETHER__STORE_PART_QUEUES, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_ONCE, reterr);
    if (st != TETHER_OK)
        return st;
    if (!tether__store_call_speaks_tether(&call)) {
        st = pop_by_waiting(&call, key, ret_value);
    } else {
        tether__store_call_put_key(&call, TETHER__STORE_OP_QUEUE_POP, key);
        st = tether__store_call_wait(&call);
        if (st == TETHER_OK) {
            tether__store_conn_get_bytes(call.conn, call.store->limits.max_message, ret_value);
            tether__store_call_settle(&call);
        }
    }
    st = tether__store_call_end(&call, st);
    if (st == TETHER_ECANCELED && timeout_ms == 0)
        return tether_error_set(reterr, TETHER_ENOTFOUND, "queue is empty");
    st = tether__store_part_explain(impl, TETHER__STORE_PART_QUEUES, st, deadline, reterr);
    return in_time(st);
}

static tether_status tcp_barrier(void *impl,
                                 const char *key,
                                 int64_t world_size,
                                 int timeout_ms,
                                 tether_error *reterr)
{
    struct tether__store_call call;
    int64_t deadline = tether__store_call_deadline(timeout_ms);
    tether_status st = check_key(impl, key, reterr);
    if (st == TETHER_OK)
        st = tether__store_part_check(impl, TETHER__STORE_PART_BARRIER, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_ONCE, reterr);
    if (st != TETHER_OK)
        return st;
    tether__store_call_put_key(&call, TETHER__STORE_OP_BARRIER, key);
    tether__store_conn_put_u64(call.conn, (uint64_t)world_size);
    st = tether__store_call_wait(&call);
    if (st == TETHER_OK)
        tether__store_call_settle(&call);
    st = tether__store_call_end(&call, st);
    st = tether__store_part_explain(impl, TETHER__STORE_PART_BARRIER, st, deadline, reterr);
    return in_time(st);
}

static void read_key_list(struct tether__store_call *call, tether_store_keys *keys)
{
    size_t room = 0;
    uint64_t count = tether__store_conn_get_u64(call->conn);
    for (uint64_t i = 0; i < count && call->conn->status == TETHER_OK; i++) {
        if (keys->count == room) { /* as they come: the count is only the server's word */
            room = room ? 2 * room : 64;
            tether_buf *more = tether__realloc(keys->keys, room * sizeof *more);
            if (!more) {
                call->conn->status =
                    tether_error_set(&call->conn->error, TETHER_ENOMEM, "no memory for the keys");
                return;
            }
            keys->keys = more;
        }
        tether_buf *key = &keys->keys[keys->count];
        *key = TETHER_BUF_INIT;
        tether__store_conn_get_bytes(call->conn, TETHER_STORE_MAX_KEY + 1, key);
        if (call->conn->status == TETHER_OK && key->len > 1 && key->data[0] == '/') {
            memmove(key->data, key->data + 1, key->len--); /* with the NUL */
            keys->count++;
        } else { /* not a user's */
            tether_buf_fini(key);
        }
    }
}

static tether_status tcp_list_keys(void *impl,
                                   int timeout_ms,
                                   tether_store_keys *ret_keys,
                                   tether_error *reterr)
{
    struct tether__store_call call;
    tether_store_keys keys = {NULL, 0};
    int64_t deadline = tether__store_call_deadline(timeout_ms);
    tether_status st = tether__store_part_check(impl, TETHER__STORE_PART_LIST_KEYS, reterr);
    if (st == TETHER_OK)
        st = tether__store_call_begin(&call, impl, timeout_ms, TETHER__STORE_CALL_REPEATABLE,
                                      reterr);
    if (st != TETHER_OK)
        return st;
    tether__store_conn_put_op(call.conn, TETHER__STORE_OP_LIST_KEYS);
    tether__store_call_ask(&call);
    st = tether__store_call_get_status(&call);
    if (st == TETHER_OK)
        read_key_list(&call, &keys);
    st = tether__store_call_end(&call, st);
    if (st == TETHER_OK)
        *ret_keys = keys;
    else
        tether_store_keys_fini(&keys);
    return tether__store_part_explain(impl, TETHER__STORE_PART_LIST_KEYS, st, deadline, reterr);
}

const struct tether_store_ops tether__store_tcp_ops = {
    .size = sizeof(struct tether_store_ops),
    .set = tcp_set,
    .get = tcp_get,
    .add = tcp_add,
    .compare_set = tcp_compare_set,
    .check = tcp_check,
    .wait = tcp_wait,
    .del = tcp_del,
    .destroy = tether__store_tcp_destroy,
    .try_get = tcp_try_get,
    .num_keys = tcp_num_keys,
    .append = tcp_append,
    .multi_get = tcp_multi_get,
    .multi_set = tcp_multi_set,
    .list_keys = tcp_list_keys,
    .queue_push = tcp_queue_push,
    .queue_pop = tcp_queue_pop,
    .queue_len = tcp_queue_len,
    .barrier = tcp_barrier,
};
