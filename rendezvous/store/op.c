/* The path of every store operation: checks, deadline, the kind's run() or its emulation, and the
 * error message. A prefix store's errors pass unchanged, because the store below it has already
 * named the whole key. */
#include "rendezvous/store/op.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status_internal.h"
#include "rendezvous/store/kv/kv.h"

#define UNSET_HINT "not all are set: are their writers running, with this store and prefix?"

static const struct {
    const char *name; /* name of the operation in messages */
    const char *hint; /* the likely reason of a timeout; NULL: the operation does not wait */
    const char *part; /* the part that a store without the operation lacks; NULL: emulated */
} kinds[] = {
    [TETHER__STORE_SET] = {"set", NULL, NULL},
    [TETHER__STORE_GET] =
        {"get", "no client has set it: is its writer running, with this store and prefix?", NULL},
    [TETHER__STORE_TRY_GET] = {"try_get", NULL, NULL},
    [TETHER__STORE_ADD] = {"add", NULL, NULL},
    [TETHER__STORE_COMPARE_SET] = {"compare_set", NULL, NULL},
    [TETHER__STORE_CHECK] = {"check", NULL, NULL},
    [TETHER__STORE_WAIT] = {"wait for", UNSET_HINT, NULL},
    [TETHER__STORE_DELETE] = {"delete", NULL, NULL},
    [TETHER__STORE_NUM_KEYS] = {"num_keys", NULL, "num_keys"},
    [TETHER__STORE_APPEND] = {"append", NULL, NULL},
    [TETHER__STORE_MULTI_GET] = {"multi_get", UNSET_HINT, NULL},
    [TETHER__STORE_MULTI_SET] = {"multi_set", NULL, NULL},
    [TETHER__STORE_LIST_KEYS] = {"list_keys", NULL, "list_keys"},
    [TETHER__STORE_QUEUE_PUSH] = {"queue_push", NULL, "queues"},
    [TETHER__STORE_QUEUE_POP] =
        {"queue_pop", "no client has pushed: is a producer running, with this store and prefix?",
         "queues"},
    [TETHER__STORE_QUEUE_LEN] = {"queue_len", NULL, "queues"},
    [TETHER__STORE_BARRIER] = {"barrier",
                               "not all have come: are they running, with this store and prefix?",
                               NULL},
};

/* ---- Checks --------------------------------------------------------------------------------- */

static tether_status check_key(const char *key, tether_error *cause)
{
    if (!key || !*key)
        return tether_error_set(cause, TETHER_EINVAL, "a key is %s", key ? "empty" : "NULL");
    if (strnlen(key, TETHER_STORE_MAX_KEY + 1) > TETHER_STORE_MAX_KEY)
        return tether_error_set(cause, TETHER_ETOOBIG, "a key is longer than %d bytes",
                                TETHER_STORE_MAX_KEY);
    return TETHER_OK;
}

static tether_status check_value(tether_bytes value, tether_error *cause)
{
    if (!value.data && value.len)
        return tether_error_set(cause, TETHER_EINVAL, "the value is NULL but %zu bytes long",
                                value.len);
    return TETHER_OK;
}

static tether_status check(struct tether__store_op *op)
{
    tether_error *cause = &op->cause;
    if (op->timeout_ms < TETHER_DEFAULT_MS)
        return tether_error_set(cause, TETHER_EINVAL,
                                "%d ms is not a timeout; use -1 to wait "
                                "for ever, 0 to poll",
                                op->timeout_ms);
    if (op->n > TETHER_STORE_MAX_KEYS_PER_CALL)
        return tether_error_set(cause, TETHER_ETOOBIG, "%zu keys are more than %d", op->n,
                                TETHER_STORE_MAX_KEYS_PER_CALL);
    if (op->n && !op->keys)
        return tether_error_set(cause, TETHER_EINVAL, "the array of keys is NULL");
    tether_status st = TETHER_OK;
    for (size_t i = 0; st == TETHER_OK && i < op->n; i++)
        st = check_key(op->keys[i], cause);
    if (st == TETHER_OK && op->null_argument)
        st = tether_error_set(cause, TETHER_EINVAL, "%s is NULL", op->null_argument);
    if (st == TETHER_OK)
        st = check_value(op->expected, cause);
    for (size_t i = 0; op->values && st == TETHER_OK && i < op->n; i++)
        st = check_value(op->values[i], cause);
    if (st == TETHER_OK && op->kind == TETHER__STORE_BARRIER && op->number < 1)
        st = tether_error_set(cause, TETHER_EINVAL,
                              "a barrier of %" PRId64 " callers: give a number of 1 or more",
                              op->number);
    return st;
}

/* ---- Messages ------------------------------------------------------------------------------- */

char *tether__store_shorten(const char *text, char *to, size_t size)
{
    size_t len = strlen(text), front = size / 4;
    if (len < size)
        memcpy(to, text, len + 1);
    else
        snprintf(to, size, "%.*s...%s", (int)front, text, text + len - (size - front - 4));
    for (char *c = to; *c; c++)
        if (!isprint((unsigned char)*c))
            *c = '?';
    return to;
}

#define KEYS_TEXT_SIZE 120

/* Writes the keys for a message, such as " 'a', 'b' and 3 more". */
static void keys_text(const char *const *keys, size_t n, char text[KEYS_TEXT_SIZE])
{
    size_t len = 0, shown = 0, most = n == 1 ? 90 : 40;
    text[0] = '\0';
    for (; keys && shown < n && len + most + 25 < KEYS_TEXT_SIZE; shown++) {
        char key[91];
        tether__store_shorten(keys[shown] ? keys[shown] : "", key, most + 1);
        len += (size_t)snprintf(text + len, KEYS_TEXT_SIZE - len, "%s '%s'", shown ? "," : "", key);
    }
    if (shown < n)
        snprintf(text + len, KEYS_TEXT_SIZE - len, " and %zu more", n - shown);
}

/* Puts the operation, its keys, the store and the time since `start` in front of the cause. */
static tether_status explain(const tether_store *store,
                             struct tether__store_op *op,
                             int64_t start,
                             tether_status st)
{
    const tether_error cause = op->cause;
    const char *name = kinds[op->kind].name, *why = cause.message;
    char keys[KEYS_TEXT_SIZE], where[81];
    keys_text(op->keys, op->n, keys);
    tether__store_shorten(store->description, where, sizeof where);
    int64_t elapsed_ms = (tether__clock_now_ns(&tether__clock_system) - start) / TETHER__NS_PER_MS;
    if (st == TETHER_ETIMEOUT && !*why && kinds[op->kind].hint)
        why = kinds[op->kind].hint;
    if (st == TETHER_ETIMEOUT)
        return tether_error_set(&op->cause, st, "%s%s on %s: timeout after %" PRId64 " ms%s%s",
                                name, keys, where, elapsed_ms, *why ? ": " : "", why);
    return tether_error_set(&op->cause, st, "%s%s on %s failed after %" PRId64 " ms: %s", name,
                            keys, where, elapsed_ms, *why ? why : tether_status_text(st));
}

tether_status tether__store_op_not_a_number(struct tether__store_op *op)
{
    return tether_error_set(&op->cause, TETHER_EINVAL,
                            "the value is not a whole number, or the sum is beyond 64 bits: "
                            "count in another key");
}

/* ---- Parts of several kinds ------------------------------------------------------------------ */

tether_status tether__store_op_look(struct tether__store_op *op, struct tether__kv *kv)
{
    tether_bytes key = op->n ? tether_bytes_str(op->keys[0]) : (tether_bytes){NULL, 0}, value;
    switch (op->kind) {
        case TETHER__STORE_TRY_GET:
            return tether__kv_get(kv, key, &value) ? tether_buf_assign(op->results, value)
                                                   : TETHER_ENOTFOUND;
        case TETHER__STORE_CHECK:
            op->yes = true;
            for (size_t i = 0; op->yes && i < op->n; i++)
                op->yes = tether__kv_present(kv, tether_bytes_str(op->keys[i]));
            return TETHER_OK;
        case TETHER__STORE_NUM_KEYS:
            op->count = (int64_t)tether__kv_count(kv);
            return TETHER_OK;
        case TETHER__STORE_LIST_KEYS:
            return tether__kv_keys(kv, &op->list->keys, &op->list->count);
        case TETHER__STORE_QUEUE_LEN:
            op->count = (int64_t)tether__kv_queue_len(kv, key);
            return TETHER_OK;
        default:
            return TETHER_ENOTSUP;
    }
}

tether_status tether__store_op_edit(struct tether__store_op *op,
                                    const tether_bytes *present,
                                    tether_buf *next,
                                    bool *ret_write)
{
    tether_bytes value = present ? *present : (tether_bytes){NULL, 0};
    *ret_write = true;
    if (op->kind == TETHER__STORE_ADD) {
        char text[24];
        if (tether__kv_sum(present, op->number, &op->count) != TETHER_OK)
            return tether__store_op_not_a_number(op);
        snprintf(text, sizeof text, "%" PRId64, op->count);
        return tether_buf_assign(next, tether_bytes_str(text));
    }
    if (op->kind == TETHER__STORE_APPEND) {
        tether_status st = tether_buf_assign(next, value);
        return st == TETHER_OK ? tether_buf_append(next, op->values[0]) : st;
    }
    op->yes = *ret_write = tether_bytes_equal(value, op->expected);
    return tether_buf_assign(next, op->yes ? op->values[0] : present ? value : op->expected);
}

/* ---- Running -------------------------------------------------------------------------------- */

static tether_status dispatch(const tether_store *store, struct tether__store_op *op)
{
    bool has_keys = op->kind != TETHER__STORE_NUM_KEYS && op->kind != TETHER__STORE_LIST_KEYS;
    if (has_keys && op->n == 0) { /* without keys, check() is true and wait() returns at once */
        op->yes = true;
        return TETHER_OK;
    }
    bool lacks = store->lacks & TETHER__STORE_BIT(op->kind);
    tether_status st = lacks ? TETHER_ENOTSUP
                             : tether__status_from_outside((int)store->kind->run(store->impl, op));
    if (st == TETHER_ENOTSUP && kinds[op->kind].part)
        return lacks ? tether_error_set(&op->cause, st, "this kind of store has no %s",
                                        kinds[op->kind].part)
                     : st;
    /* A server may turn out to lack a barrier when it is asked for one. */
    if (st == TETHER_ENOTSUP && (lacks || op->kind == TETHER__STORE_BARRIER))
        return tether__store_run_fallback(store, op);
    if (st == TETHER_ENOTFOUND && op->kind == TETHER__STORE_QUEUE_POP && !op->cause.message[0])
        tether_error_set(&op->cause, st, "queue is empty");
    return st;
}

tether_status tether__store_run(tether_store *store, struct tether__store_op *op)
{
    if (!store)
        return tether_error_set(&op->cause, TETHER_EINVAL, "%s: the store is NULL",
                                kinds[op->kind].name);
    int64_t start = tether__clock_now_ns(&tether__clock_system);
    tether_status st = check(op);
    if (st != TETHER_OK)
        return explain(store, op, start, st);
    if (op->timeout_ms == TETHER_DEFAULT_MS)
        op->timeout_ms = tether_store_get_timeout(store);
    op->deadline = op->timeout_ms < 0 ? TETHER__NEVER : start + op->timeout_ms * TETHER__NS_PER_MS;
    st = dispatch(store, op);
    if (st == TETHER_OK || (store->inner && op->cause.message[0])) {
        op->cause.code = st;
        return st;
    }
    return explain(store, op, start, st);
}
