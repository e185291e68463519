/* The prefix store: each call goes to the store below with "prefix/" before its keys.
 *
 * The public calls of the store below do the work, so what it lacks is emulated or refused there,
 * and its errors, which name the whole key, pass through. num_keys and the time-out are its own.
 *
 * No locks: everything is immutable.
 */
#include <stdio.h>

#include "base/alloc.h"
#include "rendezvous/store_internal.h"

struct prefix {
    /* immutable */
    tether_store *inner;
    size_t len;
    char text[]; /* "prefix/" */
};

/* A prefixed key: in `small` when it fits. */
struct full_key {
    char *text;
    char small[248];
};

static tether_status full_key_init(struct full_key *full,
                                   const struct prefix *prefix,
                                   const char *key,
                                   tether_error *reterr)
{
    size_t size = prefix->len + strlen(key) + 1;
    full->text = size <= sizeof full->small ? full->small : tether__malloc(size);
    if (!full->text)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a key of %zu bytes", size);
    memcpy(full->text, prefix->text, prefix->len);
    memcpy(full->text + prefix->len, key, size - prefix->len);
    return TETHER_OK;
}

static void full_key_fini(struct full_key *full)
{
    if (full->text != full->small)
        tether__free(full->text);
}

/* Runs `call`, which uses `full.text` and `inner`, with `key` prefixed. */
#define WITH_FULL_KEY(call)                                           \
    do {                                                              \
        const struct prefix *prefix = impl;                           \
        tether_store *inner = prefix->inner;                          \
        struct full_key full;                                         \
        tether_status st = full_key_init(&full, prefix, key, reterr); \
        if (st == TETHER_OK) {                                        \
            st = (call);                                              \
            full_key_fini(&full);                                     \
        }                                                             \
        return st;                                                    \
    } while (0)

/* The prefixed `keys` in one block, which starts with the array. NULL: no memory. */
static const char **full_keys_new(const struct prefix *prefix,
                                  const char *const *keys,
                                  size_t n,
                                  tether_error *reterr)
{
    size_t size = n * sizeof(char *);
    for (size_t i = 0; i < n; i++)
        size += prefix->len + strlen(keys[i]) + 1;
    const char **full = tether__malloc(size);
    if (!full) {
        tether_error_set(reterr, TETHER_ENOMEM, "no memory for %zu keys", n);
        return NULL;
    }
    char *at = (char *)(full + n);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(keys[i]) + 1;
        full[i] = at;
        memcpy(at, prefix->text, prefix->len);
        memcpy(at + prefix->len, keys[i], len);
        at += prefix->len + len;
    }
    return full;
}

/* Runs `call`, which uses `full` and `inner`, with all `keys` prefixed. */
#define WITH_FULL_KEYS(call)                                        \
    do {                                                            \
        const struct prefix *prefix = impl;                         \
        tether_store *inner = prefix->inner;                        \
        const char **full = full_keys_new(prefix, keys, n, reterr); \
        tether_status st = full ? (call) : TETHER_ENOMEM;           \
        tether__free(full);                                         \
        return st;                                                  \
    } while (0)

static tether_status prefix_set(void *impl,
                                const char *key,
                                tether_bytes value,
                                int timeout_ms,
                                tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_set(inner, full.text, value, timeout_ms, reterr));
}

static tether_status prefix_get(void *impl,
                                const char *key,
                                int timeout_ms,
                                tether_buf *ret_value,
                                tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_get(inner, full.text, timeout_ms, ret_value, reterr));
}

static tether_status prefix_try_get(void *impl,
                                    const char *key,
                                    int timeout_ms,
                                    tether_buf *ret_value,
                                    tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_try_get(inner, full.text, timeout_ms, ret_value, reterr));
}

static tether_status prefix_add(void *impl,
                                const char *key,
                                int64_t delta,
                                int timeout_ms,
                                int64_t *ret_sum,
                                tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_add(inner, full.text, delta, timeout_ms, ret_sum, reterr));
}

static tether_status prefix_compare_set(void *impl,
                                        const char *key,
                                        tether_bytes expected,
                                        tether_bytes desired,
                                        int timeout_ms,
                                        bool *ret_swapped,
                                        tether_buf *ret_value,
                                        tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_compare_set(inner, full.text, expected, desired, timeout_ms,
                                           ret_swapped, ret_value, reterr));
}

static tether_status prefix_check(void *impl,
                                  const char *const *keys,
                                  size_t n,
                                  int timeout_ms,
                                  bool *ret_ready,
                                  tether_error *reterr)
{
    WITH_FULL_KEYS(tether_store_check(inner, full, n, timeout_ms, ret_ready, reterr));
}

static tether_status prefix_wait(void *impl,
                                 const char *const *keys,
                                 size_t n,
                                 int timeout_ms,
                                 tether_error *reterr)
{
    WITH_FULL_KEYS(tether_store_wait(inner, full, n, timeout_ms, reterr));
}

static tether_status prefix_del(void *impl,
                                const char *key,
                                int timeout_ms,
                                bool *ret_deleted,
                                tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_delete(inner, full.text, timeout_ms, ret_deleted, reterr));
}

static tether_status prefix_num_keys(void *impl,
                                     int timeout_ms,
                                     int64_t *ret_count,
                                     tether_error *reterr)
{
    const struct prefix *prefix = impl;
    return tether_store_num_keys(prefix->inner, timeout_ms, ret_count, reterr);
}

static tether_status prefix_append(void *impl,
                                   const char *key,
                                   tether_bytes value,
                                   int timeout_ms,
                                   tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_append(inner, full.text, value, timeout_ms, reterr));
}

static tether_status prefix_multi_get(void *impl,
                                      const char *const *keys,
                                      size_t n,
                                      int timeout_ms,
                                      tether_buf *ret_values,
                                      tether_error *reterr)
{
    WITH_FULL_KEYS(tether_store_multi_get(inner, full, n, timeout_ms, ret_values, reterr));
}

static tether_status prefix_multi_set(void *impl,
                                      const char *const *keys,
                                      const tether_bytes *values,
                                      size_t n,
                                      int timeout_ms,
                                      tether_error *reterr)
{
    WITH_FULL_KEYS(tether_store_multi_set(inner, full, values, n, timeout_ms, reterr));
}

/* Those under "prefix/", without it. */
static tether_status prefix_list_keys(void *impl,
                                      int timeout_ms,
                                      tether_store_keys *ret_keys,
                                      tether_error *reterr)
{
    const struct prefix *prefix = impl;
    tether_store_keys all;
    tether_status st = tether_store_list_keys(prefix->inner, timeout_ms, &all, reterr);
    if (st != TETHER_OK)
        return st;
    size_t kept = 0;
    for (size_t i = 0; i < all.count; i++) {
        tether_buf key = all.keys[i];
        if (key.len > prefix->len && memcmp(key.data, prefix->text, prefix->len) == 0) {
            key.len -= prefix->len;
            memmove(key.data, key.data + prefix->len, key.len + 1);
            all.keys[kept++] = key;
        } else {
            tether_buf_fini(&key);
        }
    }
    *ret_keys = (tether_store_keys){all.keys, kept};
    return TETHER_OK;
}

static tether_status prefix_queue_push(void *impl,
                                       const char *key,
                                       tether_bytes value,
                                       int timeout_ms,
                                       tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_queue_push(inner, full.text, value, timeout_ms, reterr));
}

static tether_status prefix_queue_pop(void *impl,
                                      const char *key,
                                      int timeout_ms,
                                      tether_buf *ret_value,
                                      tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_queue_pop(inner, full.text, timeout_ms, ret_value, reterr));
}

static tether_status prefix_queue_len(void *impl,
                                      const char *key,
                                      int timeout_ms,
                                      int64_t *ret_len,
                                      tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_queue_len(inner, full.text, timeout_ms, ret_len, reterr));
}

static tether_status prefix_barrier(void *impl,
                                    const char *key,
                                    int64_t world_size,
                                    int timeout_ms,
                                    tether_error *reterr)
{
    WITH_FULL_KEY(tether_store_barrier(inner, full.text, world_size, timeout_ms, reterr));
}

static void prefix_destroy(void *impl)
{
    struct prefix *prefix = impl;
    tether_store_release(prefix->inner);
    tether__free(prefix);
}

static const struct tether_store_ops prefix_ops = {
    .size = sizeof(struct tether_store_ops),
    .set = prefix_set,
    .get = prefix_get,
    .add = prefix_add,
    .compare_set = prefix_compare_set,
    .check = prefix_check,
    .wait = prefix_wait,
    .del = prefix_del,
    .destroy = prefix_destroy,
    .try_get = prefix_try_get,
    .num_keys = prefix_num_keys,
    .append = prefix_append,
    .multi_get = prefix_multi_get,
    .multi_set = prefix_multi_set,
    .list_keys = prefix_list_keys,
    .queue_push = prefix_queue_push,
    .queue_pop = prefix_queue_pop,
    .queue_len = prefix_queue_len,
    .barrier = prefix_barrier,
};

tether_status tether_store_prefix_new(const char *text,
                                      tether_store *inner,
                                      tether_store **ret_store,
                                      tether_error *reterr)
{
    if (!text || !inner)
        return tether_error_set(reterr, TETHER_EINVAL, "a prefix store needs a %s",
                                text ? "store below it" : "prefix");
    size_t len = strlen(text) + 1;
    if (len >= TETHER_STORE_MAX_KEY)
        return tether_error_set(reterr, TETHER_ETOOBIG,
                                "a prefix of %zu bytes leaves no room for "
                                "keys: these are %d bytes at the most",
                                len - 1, TETHER_STORE_MAX_KEY);
    struct prefix *prefix = tether__malloc(sizeof *prefix + len + 1);
    char *description =
        tether__asprintf("prefix '%.64s' on %s", text, tether_store_describe(inner));
    tether_status st = TETHER_ENOMEM;
    tether_store *store;
    if (!prefix || !description) {
        tether_error_set(reterr, st, "no memory for a prefix store");
        goto undo_memory;
    }
    snprintf(prefix->text, len + 1, "%s/", text);
    prefix->len = len;
    prefix->inner = inner;
    st = tether_store_new(&prefix_ops, prefix, description, &store, reterr);
    if (st != TETHER_OK)
        goto undo_memory;
    store->inner = tether_store_retain(inner);
    tether__free(description);
    *ret_store = store;
    return TETHER_OK;

undo_memory:
    tether__free(description);
    tether__free(prefix);
    return st;
}
