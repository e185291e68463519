/* The store object and the public calls on it.
 *
 * Every call goes the same way: call_begin() checks the arguments and fixes the time-out, the
 * store's own function (or the fallback) does the work, and call_end() puts the call, the keys, the
 * store and the elapsed time in front of what went wrong. So a kind of store only has to name the
 * cause. A prefix store's errors pass unchanged: the store below has named the whole key already.
 *
 * No locks here: the reference count and the default time-out are atomic, all else is immutable.
 */
#include "rendezvous/store.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "rendezvous/store_internal.h"

/* ---- The object ----------------------------------------------------------------------------- */

tether_status tether_store_new(const struct tether_store_ops *ops,
                               void *impl,
                               const char *description,
                               tether_store **ret_store,
                               tether_error *reterr)
{
    struct tether_store_ops all = {0};
    if (!ops || ops->size < offsetof(struct tether_store_ops, try_get))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "store functions missing: set ops->size to sizeof *ops");
    memcpy(&all, ops, ops->size < sizeof all ? ops->size : sizeof all);
    all.size = sizeof all;
    if (!all.set || !all.get || !all.add || !all.compare_set || !all.check || !all.wait ||
        !all.del || !all.destroy)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a store needs set, get, add, compare_set, check, wait, del and "
                                "destroy: one of them is NULL");
    if (!description)
        return tether_error_set(reterr, TETHER_EINVAL, "a store needs a description");

    tether_store *store = tether__calloc(1, sizeof *store);
    char *copy = tether__strdup(description);
    if (!store || !copy) {
        tether__free(copy);
        tether__free(store);
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a %s", description);
    }
    store->ops = all;
    store->impl = impl;
    store->description = copy;
    atomic_init(&store->refs, 1);
    atomic_init(&store->timeout_ms, TETHER_STORE_DEFAULT_TIMEOUT_MS);
    *ret_store = store;
    return TETHER_OK;
}

tether_store *tether_store_retain(tether_store *store)
{
    if (store)
        atomic_fetch_add_explicit(&store->refs, 1, memory_order_relaxed);
    return store;
}

tether_store *tether_store_release(tether_store *store)
{
    if (store && atomic_fetch_sub_explicit(&store->refs, 1, memory_order_acq_rel) == 1) {
        store->ops.destroy(store->impl);
        tether__free(store->description);
        tether__free(store);
    }
    return NULL;
}

void *tether_store_impl(const tether_store *store, const struct tether_store_ops *ops)
{
    return store && store->ops.destroy == ops->destroy ? store->impl : NULL;
}

const char *tether_store_describe(const tether_store *store)
{
    return store->description;
}

tether_store *tether_store_underlying(tether_store *store)
{
    return store->inner ? store->inner : store;
}

tether_store *tether_store_underlying_non_prefix(tether_store *store)
{
    while (store->inner)
        store = store->inner;
    return store;
}

bool tether_store_has_extended_api(const tether_store *store)
{
    while (store->inner)
        store = store->inner;
    return store->ops.append && store->ops.multi_get && store->ops.multi_set;
}

tether_status tether_store_set_timeout(tether_store *store, int timeout_ms, tether_error *reterr)
{
    if (timeout_ms < -1)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "%d ms is no time-out for %s: use -1 to wait for ever", timeout_ms,
                                store->description);
    atomic_store_explicit(&tether_store_underlying_non_prefix(store)->timeout_ms, timeout_ms,
                          memory_order_relaxed);
    return TETHER_OK;
}

int tether_store_get_timeout(const tether_store *store)
{
    while (store->inner)
        store = store->inner;
    return atomic_load_explicit(&store->timeout_ms, memory_order_relaxed);
}

void tether_store_keys_fini(tether_store_keys *keys)
{
    if (!keys)
        return;
    for (size_t i = 0; i < keys->count; i++)
        tether_buf_fini(&keys->keys[i]);
    tether__free(keys->keys);
    *keys = (tether_store_keys){NULL, 0};
}

/* ---- The way of every call ------------------------------------------------------------------ */

struct call {
    const char *name;
    const tether_store *store;
    const char *const *keys;
    size_t n;
    int timeout_ms; /* never TETHER_DEFAULT_MS */
    int64_t start, deadline;
    tether_error cause;
    bool began;
};

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

static tether_status call_begin(struct call *call,
                                const char *name,
                                const tether_store *store,
                                const char *const *keys,
                                size_t n,
                                int timeout_ms)
{
    *call = (struct call){.name = name, .store = store, .keys = keys, .n = n};
    call->cause.message[0] = '\0';
    if (!store)
        return tether_error_set(&call->cause, TETHER_EINVAL, "the store is NULL");
    call->start = tether__clock_now_ns(&tether__clock_system);
    if (timeout_ms < TETHER_DEFAULT_MS)
        return tether_error_set(&call->cause, TETHER_EINVAL, "%d ms is no time-out", timeout_ms);
    if (n > TETHER_STORE_MAX_KEYS_PER_CALL)
        return tether_error_set(&call->cause, TETHER_ETOOBIG, "%zu keys are more than %d", n,
                                TETHER_STORE_MAX_KEYS_PER_CALL);
    if (n && !keys)
        return tether_error_set(&call->cause, TETHER_EINVAL, "the array of keys is NULL");
    for (size_t i = 0; i < n; i++) {
        tether_status st = check_key(keys[i], &call->cause);
        if (st != TETHER_OK)
            return st;
    }
    call->timeout_ms =
        timeout_ms == TETHER_DEFAULT_MS ? tether_store_get_timeout(store) : timeout_ms;
    call->deadline =
        call->timeout_ms < 0 ? TETHER__NEVER : call->start + call->timeout_ms * TETHER__NS_PER_MS;
    call->began = true;
    return TETHER_OK;
}

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

/* " 'a', 'b' and 3 more" */
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

/* Why a call that waits for others may have waited in vain. */
static const char *wait_hint(const char *call)
{
    static const struct {
        const char *call, *hint;
    } hints[] = {
        {"get", "nobody has set it: is its writer running, with this store and prefix?"},
        {"wait for", "not all are set: are their writers running, with this store and prefix?"},
        {"multi_get", "not all are set: are their writers running, with this store and prefix?"},
        {"barrier", "not all have come: are they running, with this store and prefix?"},
        {"queue_pop", "nobody has pushed: is a producer running, with this store and prefix?"},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(hints); i++)
        if (strcmp(call, hints[i].call) == 0)
            return hints[i].hint;
    return "";
}

static tether_status call_end(const struct call *call, tether_status st, tether_error *reterr)
{
    if (st == TETHER_OK || !reterr)
        return st;
    const char *cause = call->cause.message;
    if (call->began && call->store->inner && *cause) {
        *reterr = call->cause;
        reterr->code = st;
        return st;
    }
    if (!call->store)
        return tether_error_set(reterr, st, "%s: %s", call->name, cause);

    char keys[KEYS_TEXT_SIZE], where[81];
    keys_text(call->keys, call->n, keys);
    tether__store_shorten(call->store->description, where, sizeof where);
    int64_t elapsed_ms =
        (tether__clock_now_ns(&tether__clock_system) - call->start) / TETHER__NS_PER_MS;
    if (st == TETHER_ETIMEOUT && !*cause)
        cause = wait_hint(call->name);
    if (st == TETHER_ETIMEOUT)
        return tether_error_set(reterr, st, "%s%s on %s: timeout after %" PRId64 " ms%s%s",
                                call->name, keys, where, elapsed_ms, *cause ? ": " : "", cause);
    return tether_error_set(reterr, st, "%s%s on %s failed after %" PRId64 " ms: %s", call->name,
                            keys, where, elapsed_ms, *cause ? cause : tether_status_text(st));
}

static tether_status null_output(struct call *call, const char *name)
{
    return tether_error_set(&call->cause, TETHER_EINVAL, "%s is NULL", name);
}

static tether_status not_supported(struct call *call, const char *what)
{
    return tether_error_set(&call->cause, TETHER_ENOTSUP, "this kind of store has no %s", what);
}

/* ---- Calls that each store has -------------------------------------------------------------- */

tether_status tether_store_set(tether_store *store,
                               const char *key,
                               tether_bytes value,
                               int timeout_ms,
                               tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "set", store, &key, 1, timeout_ms);
    if (st == TETHER_OK)
        st = check_value(value, &call.cause);
    if (st == TETHER_OK)
        st = store->ops.set(store->impl, key, value, call.timeout_ms, &call.cause);
    return call_end(&call, st, reterr);
}

tether_status tether_store_get(tether_store *store,
                               const char *key,
                               int timeout_ms,
                               tether_buf *ret_value,
                               tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "get", store, &key, 1, timeout_ms);
    if (st == TETHER_OK && !ret_value)
        st = null_output(&call, "ret_value");
    if (st == TETHER_OK)
        st = store->ops.get(store->impl, key, call.timeout_ms, ret_value, &call.cause);
    return call_end(&call, st, reterr);
}

tether_status tether_store_add(tether_store *store,
                               const char *key,
                               int64_t delta,
                               int timeout_ms,
                               int64_t *ret_sum,
                               tether_error *reterr)
{
    int64_t unwanted;
    struct call call;
    tether_status st = call_begin(&call, "add", store, &key, 1, timeout_ms);
    if (st == TETHER_OK)
        st = store->ops.add(store->impl, key, delta, call.timeout_ms, ret_sum ? ret_sum : &unwanted,
                            &call.cause);
    return call_end(&call, st, reterr);
}

tether_status tether_store_compare_set(tether_store *store,
                                       const char *key,
                                       tether_bytes expected,
                                       tether_bytes desired,
                                       int timeout_ms,
                                       bool *ret_swapped,
                                       tether_buf *ret_value,
                                       tether_error *reterr)
{
    bool unwanted_swapped;
    tether_buf unwanted_value = TETHER_BUF_INIT;
    struct call call;
    tether_status st = call_begin(&call, "compare_set", store, &key, 1, timeout_ms);
    if (st == TETHER_OK)
        st = check_value(expected, &call.cause);
    if (st == TETHER_OK)
        st = check_value(desired, &call.cause);
    if (st == TETHER_OK)
        st = store->ops.compare_set(store->impl, key, expected, desired, call.timeout_ms,
                                    ret_swapped ? ret_swapped : &unwanted_swapped,
                                    ret_value ? ret_value : &unwanted_value, &call.cause);
    tether_buf_fini(&unwanted_value);
    return call_end(&call, st, reterr);
}

tether_status tether_store_check(tether_store *store,
                                 const char *const *keys,
                                 size_t n,
                                 int timeout_ms,
                                 bool *ret_ready,
                                 tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "check", store, keys, n, timeout_ms);
    if (st == TETHER_OK && !ret_ready)
        st = null_output(&call, "ret_ready");
    if (st == TETHER_OK && n == 0)
        *ret_ready = true;
    else if (st == TETHER_OK)
        st = store->ops.check(store->impl, keys, n, call.timeout_ms, ret_ready, &call.cause);
    return call_end(&call, st, reterr);
}

tether_status tether_store_wait(tether_store *store,
                                const char *const *keys,
                                size_t n,
                                int timeout_ms,
                                tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "wait for", store, keys, n, timeout_ms);
    if (st == TETHER_OK && n > 0)
        st = store->ops.wait(store->impl, keys, n, call.timeout_ms, &call.cause);
    return call_end(&call, st, reterr);
}

tether_status tether_store_delete(tether_store *store,
                                  const char *key,
                                  int timeout_ms,
                                  bool *ret_deleted,
                                  tether_error *reterr)
{
    bool unwanted;
    struct call call;
    tether_status st = call_begin(&call, "delete", store, &key, 1, timeout_ms);
    if (st == TETHER_OK)
        st = store->ops.del(store->impl, key, call.timeout_ms,
                            ret_deleted ? ret_deleted : &unwanted, &call.cause);
    return call_end(&call, st, reterr);
}

/* ---- Calls that may be missing: emulated ---------------------------------------------------- */

tether_status tether_store_try_get(tether_store *store,
                                   const char *key,
                                   int timeout_ms,
                                   tether_buf *ret_value,
                                   tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "try_get", store, &key, 1, timeout_ms);
    if (st == TETHER_OK && !ret_value)
        st = null_output(&call, "ret_value");
    if (st == TETHER_OK)
        st =
            store->ops.try_get
                ? store->ops.try_get(store->impl, key, call.timeout_ms, ret_value, &call.cause)
                : tether__store_try_get_fallback(store, key, call.deadline, ret_value, &call.cause);
    return call_end(&call, st, reterr);
}

tether_status tether_store_append(tether_store *store,
                                  const char *key,
                                  tether_bytes value,
                                  int timeout_ms,
                                  tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "append", store, &key, 1, timeout_ms);
    if (st == TETHER_OK)
        st = check_value(value, &call.cause);
    if (st == TETHER_OK)
        st = store->ops.append
                 ? store->ops.append(store->impl, key, value, call.timeout_ms, &call.cause)
                 : tether__store_append_fallback(store, key, value, call.deadline, &call.cause);
    return call_end(&call, st, reterr);
}

tether_status tether_store_multi_get(tether_store *store,
                                     const char *const *keys,
                                     size_t n,
                                     int timeout_ms,
                                     tether_buf *ret_values,
                                     tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "multi_get", store, keys, n, timeout_ms);
    if (st == TETHER_OK && n && !ret_values)
        st = null_output(&call, "ret_values");
    if (st == TETHER_OK && n)
        st = store->ops.multi_get ? store->ops.multi_get(store->impl, keys, n, call.timeout_ms,
                                                         ret_values, &call.cause)
                                  : tether__store_multi_get_fallback(store, keys, n, call.deadline,
                                                                     ret_values, &call.cause);
    return call_end(&call, st, reterr);
}

tether_status tether_store_multi_set(tether_store *store,
                                     const char *const *keys,
                                     const tether_bytes *values,
                                     size_t n,
                                     int timeout_ms,
                                     tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "multi_set", store, keys, n, timeout_ms);
    if (st == TETHER_OK && n && !values)
        st = tether_error_set(&call.cause, TETHER_EINVAL, "the array of values is NULL");
    for (size_t i = 0; st == TETHER_OK && i < n; i++)
        st = check_value(values[i], &call.cause);
    if (st == TETHER_OK && n)
        st = store->ops.multi_set
                 ? store->ops.multi_set(store->impl, keys, values, n, call.timeout_ms, &call.cause)
                 : tether__store_multi_set_fallback(store, keys, values, n, call.deadline,
                                                    &call.cause);
    return call_end(&call, st, reterr);
}

tether_status tether_store_barrier(tether_store *store,
                                   const char *key,
                                   int64_t world_size,
                                   int timeout_ms,
                                   tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "barrier", store, &key, 1, timeout_ms);
    if (st == TETHER_OK && world_size < 1)
        st = tether_error_set(&call.cause, TETHER_EINVAL,
                              "a barrier of %" PRId64 " callers: there must be one at least",
                              world_size);
    bool emulate = st == TETHER_OK && !store->ops.barrier;
    if (st == TETHER_OK && !emulate) {
        st = store->ops.barrier(store->impl, key, world_size, call.timeout_ms, &call.cause);
        emulate = st == TETHER_ENOTSUP; /* the server behind the store lacks it */
    }
    if (emulate)
        st = tether__store_barrier_fallback(store, key, world_size, call.deadline, &call.cause);
    return call_end(&call, st, reterr);
}

/* ---- Calls that may be missing: no emulation ------------------------------------------------ */

tether_status tether_store_num_keys(tether_store *store,
                                    int timeout_ms,
                                    int64_t *ret_count,
                                    tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "num_keys", store, NULL, 0, timeout_ms);
    if (st == TETHER_OK && !ret_count)
        st = null_output(&call, "ret_count");
    if (st == TETHER_OK)
        st = store->ops.num_keys
                 ? store->ops.num_keys(store->impl, call.timeout_ms, ret_count, &call.cause)
                 : not_supported(&call, "num_keys");
    return call_end(&call, st, reterr);
}

tether_status tether_store_list_keys(tether_store *store,
                                     int timeout_ms,
                                     tether_store_keys *ret_keys,
                                     tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "list_keys", store, NULL, 0, timeout_ms);
    if (st == TETHER_OK && !ret_keys)
        st = null_output(&call, "ret_keys");
    if (st == TETHER_OK)
        st = store->ops.list_keys
                 ? store->ops.list_keys(store->impl, call.timeout_ms, ret_keys, &call.cause)
                 : not_supported(&call, "list_keys");
    return call_end(&call, st, reterr);
}

tether_status tether_store_queue_push(tether_store *store,
                                      const char *key,
                                      tether_bytes value,
                                      int timeout_ms,
                                      tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "queue_push", store, &key, 1, timeout_ms);
    if (st == TETHER_OK)
        st = check_value(value, &call.cause);
    if (st == TETHER_OK)
        st = store->ops.queue_push
                 ? store->ops.queue_push(store->impl, key, value, call.timeout_ms, &call.cause)
                 : not_supported(&call, "queues");
    return call_end(&call, st, reterr);
}

tether_status tether_store_queue_pop(tether_store *store,
                                     const char *key,
                                     int timeout_ms,
                                     tether_buf *ret_value,
                                     tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "queue_pop", store, &key, 1, timeout_ms);
    if (st == TETHER_OK && !ret_value)
        st = null_output(&call, "ret_value");
    if (st == TETHER_OK)
        st = store->ops.queue_pop
                 ? store->ops.queue_pop(store->impl, key, call.timeout_ms, ret_value, &call.cause)
                 : not_supported(&call, "queues");
    if (st == TETHER_ENOTFOUND && call.cause.message[0] == '\0')
        tether_error_set(&call.cause, st, "queue is empty");
    return call_end(&call, st, reterr);
}

tether_status tether_store_queue_len(tether_store *store,
                                     const char *key,
                                     int timeout_ms,
                                     int64_t *ret_len,
                                     tether_error *reterr)
{
    struct call call;
    tether_status st = call_begin(&call, "queue_len", store, &key, 1, timeout_ms);
    if (st == TETHER_OK && !ret_len)
        st = null_output(&call, "ret_len");
    if (st == TETHER_OK)
        st = store->ops.queue_len
                 ? store->ops.queue_len(store->impl, key, call.timeout_ms, ret_len, &call.cause)
                 : not_supported(&call, "queues");
    return call_end(&call, st, reterr);
}
