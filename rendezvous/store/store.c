/* The store object and the public calls on it. A call fills a `struct tether__store_op` (op.h) and
 * runs it.
 *
 * No locks: the reference count and the default timeout are atomic, everything else is immutable.
 */
#include "rendezvous/store.h"

#include "rendezvous/store/op.h"

/* ---- The object ----------------------------------------------------------------------------- */

tether_status tether__store_new(const struct tether__store_kind *kind,
                                void *impl,
                                const char *description,
                                tether_store **ret_store,
                                tether_error *reterr)
{
    tether_store *store = tether__calloc(1, sizeof *store);
    char *copy = tether__strdup(description);
    if (!store || !copy) {
        tether__free(copy);
        tether__free(store);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a %s", description);
    }
    store->kind = kind;
    store->impl = impl;
    store->description = copy;
    store->lacks = kind->lacks ? kind->lacks(impl) : 0;
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
        store->kind->destroy(store->impl);
        tether__free(store->description);
        tether__free(store);
    }
    return NULL;
}

void *tether__store_impl(const tether_store *store, const struct tether__store_kind *kind)
{
    return store && store->kind == kind ? store->impl : NULL;
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
    return !(store->lacks &
             (TETHER__STORE_BIT(TETHER__STORE_APPEND) | TETHER__STORE_BIT(TETHER__STORE_MULTI_GET) |
              TETHER__STORE_BIT(TETHER__STORE_MULTI_SET)));
}

tether_status tether_store_set_timeout(tether_store *store, int timeout_ms, tether_error *reterr)
{
    if (timeout_ms < -1)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "%d ms is not a timeout for %s: use -1 to wait for ever",
                                timeout_ms, store->description);
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

/* ---- Calls ---------------------------------------------------------------------------------- */

static tether_status run(tether_store *store, struct tether__store_op *op, tether_error *reterr)
{
    tether_status st = tether__store_run(store, op);
    if (st != TETHER_OK && reterr)
        *reterr = op->cause;
    return st;
}

/* Like run(), and gives the operation's `count` to the caller. */
static tether_status run_count(tether_store *store,
                               struct tether__store_op *op,
                               int64_t *ret_count,
                               tether_error *reterr)
{
    tether_status st = run(store, op, reterr);
    if (st == TETHER_OK && ret_count)
        *ret_count = op->count;
    return st;
}

/* Like run(), and gives the operation's `yes` to the caller. */
static tether_status run_yes(tether_store *store,
                             struct tether__store_op *op,
                             bool *ret_yes,
                             tether_error *reterr)
{
    tether_status st = run(store, op, reterr);
    if (st == TETHER_OK && ret_yes)
        *ret_yes = op->yes;
    return st;
}

#define OP(kind_, ...)           \
    (&(struct tether__store_op){ \
        .kind = TETHER__STORE_##kind_, .timeout_ms = timeout_ms, __VA_ARGS__})
#define ONE_KEY .keys = &key, .n = 1

/* Initialises `null_argument`: the name of an output argument that must not be NULL but is. */
#define REQUIRED(argument) .null_argument = (argument) ? NULL : #argument

tether_status tether_store_set(tether_store *store,
                               const char *key,
                               tether_bytes value,
                               int timeout_ms,
                               tether_error *reterr)
{
    return run(store, OP(SET, ONE_KEY, .values = &value), reterr);
}

tether_status tether_store_get(tether_store *store,
                               const char *key,
                               int timeout_ms,
                               tether_buf *ret_value,
                               tether_error *reterr)
{
    return run(store, OP(GET, ONE_KEY, .results = ret_value, REQUIRED(ret_value)), reterr);
}

tether_status tether_store_try_get(tether_store *store,
                                   const char *key,
                                   int timeout_ms,
                                   tether_buf *ret_value,
                                   tether_error *reterr)
{
    return run(store, OP(TRY_GET, ONE_KEY, .results = ret_value, REQUIRED(ret_value)), reterr);
}

tether_status tether_store_add(tether_store *store,
                               const char *key,
                               int64_t delta,
                               int timeout_ms,
                               int64_t *ret_sum,
                               tether_error *reterr)
{
    return run_count(store, OP(ADD, ONE_KEY, .number = delta), ret_sum, reterr);
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
    tether_buf unwanted = TETHER_BUF_INIT;
    tether_status st = run_yes(store,
                               OP(COMPARE_SET, ONE_KEY, .values = &desired, .expected = expected,
                                  .results = ret_value ? ret_value : &unwanted),
                               ret_swapped, reterr);
    tether_buf_fini(&unwanted);
    return st;
}

tether_status tether_store_check(tether_store *store,
                                 const char *const *keys,
                                 size_t n,
                                 int timeout_ms,
                                 bool *ret_ready,
                                 tether_error *reterr)
{
    return run_yes(store, OP(CHECK, .keys = keys, .n = n, REQUIRED(ret_ready)), ret_ready, reterr);
}

tether_status tether_store_wait(tether_store *store,
                                const char *const *keys,
                                size_t n,
                                int timeout_ms,
                                tether_error *reterr)
{
    return run(store, OP(WAIT, .keys = keys, .n = n), reterr);
}

tether_status tether_store_delete(tether_store *store,
                                  const char *key,
                                  int timeout_ms,
                                  bool *ret_deleted,
                                  tether_error *reterr)
{
    return run_yes(store, OP(DELETE, ONE_KEY), ret_deleted, reterr);
}

tether_status tether_store_num_keys(tether_store *store,
                                    int timeout_ms,
                                    int64_t *ret_count,
                                    tether_error *reterr)
{
    return run_count(store, OP(NUM_KEYS, REQUIRED(ret_count)), ret_count, reterr);
}

tether_status tether_store_append(tether_store *store,
                                  const char *key,
                                  tether_bytes value,
                                  int timeout_ms,
                                  tether_error *reterr)
{
    return run(store, OP(APPEND, ONE_KEY, .values = &value), reterr);
}

tether_status tether_store_multi_get(tether_store *store,
                                     const char *const *keys,
                                     size_t n,
                                     int timeout_ms,
                                     tether_buf *ret_values,
                                     tether_error *reterr)
{
    return run(store,
               OP(MULTI_GET, .keys = keys, .n = n, .results = ret_values,
                  .null_argument = n && !ret_values ? "ret_values" : NULL),
               reterr);
}

tether_status tether_store_multi_set(tether_store *store,
                                     const char *const *keys,
                                     const tether_bytes *values,
                                     size_t n,
                                     int timeout_ms,
                                     tether_error *reterr)
{
    return run(store,
               OP(MULTI_SET, .keys = keys, .n = n, .values = values,
                  .null_argument = n && !values ? "the array of values" : NULL),
               reterr);
}

tether_status tether_store_list_keys(tether_store *store,
                                     int timeout_ms,
                                     tether_store_keys *ret_keys,
                                     tether_error *reterr)
{
    return run(store, OP(LIST_KEYS, .list = ret_keys, REQUIRED(ret_keys)), reterr);
}

tether_status tether_store_queue_push(tether_store *store,
                                      const char *key,
                                      tether_bytes value,
                                      int timeout_ms,
                                      tether_error *reterr)
{
    return run(store, OP(QUEUE_PUSH, ONE_KEY, .values = &value), reterr);
}

tether_status tether_store_queue_pop(tether_store *store,
                                     const char *key,
                                     int timeout_ms,
                                     tether_buf *ret_value,
                                     tether_error *reterr)
{
    return run(store, OP(QUEUE_POP, ONE_KEY, .results = ret_value, REQUIRED(ret_value)), reterr);
}

tether_status tether_store_queue_len(tether_store *store,
                                     const char *key,
                                     int timeout_ms,
                                     int64_t *ret_len,
                                     tether_error *reterr)
{
    return run_count(store, OP(QUEUE_LEN, ONE_KEY, REQUIRED(ret_len)), ret_len, reterr);
}

tether_status tether_store_barrier(tether_store *store,
                                   const char *key,
                                   int64_t world_size,
                                   int timeout_ms,
                                   tether_error *reterr)
{
    return run(store, OP(BARRIER, ONE_KEY, .number = world_size), reterr);
}
