/* The prefix store: each operation runs on the store below with "prefix/" before its keys.
 *
 * The store below names the whole key in its errors, so they pass through. num_keys counts the keys
 * of the store below, whose timeout applies, too.
 *
 * No locks: everything is immutable.
 */
#include <stdio.h>

#include "base/alloc.h"
#include "rendezvous/store/op.h"

struct prefix {
    /* immutable */
    tether_store *inner;
    size_t len;
    char text[]; /* the prefix and its slash */
};

/* The prefixed `keys` in one block, which starts with the array; in `small` when it fits. NULL: out
 * of memory. */
static const char **prefixed_keys(const struct prefix *prefix,
                                  const char *const *keys,
                                  size_t n,
                                  void *small,
                                  size_t small_size)
{
    size_t size = n * sizeof(char *);
    for (size_t i = 0; i < n; i++)
        size += prefix->len + strlen(keys[i]) + 1;
    const char **full = size <= small_size ? small : tether__malloc(size);
    if (!full)
        return NULL;
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

/* Keeps the keys under "prefix/", without the prefix. */
static void strip_keys(const struct prefix *prefix, tether_store_keys *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->count; i++) {
        tether_buf key = list->keys[i];
        if (key.len > prefix->len && memcmp(key.data, prefix->text, prefix->len) == 0) {
            key.len -= prefix->len;
            memmove(key.data, key.data + prefix->len, key.len + 1);
            list->keys[n++] = key;
        } else {
            tether_buf_fini(&key);
        }
    }
    list->count = n;
}

static tether_status prefix_run(void *impl, struct tether__store_op *op)
{
    const struct prefix *prefix = impl;
    const char *small[32];
    const char *const *keys = op->keys;
    const char **full = prefixed_keys(prefix, keys, op->n, small, sizeof small);
    if (!full)
        return tether_error_set(&op->cause, TETHER_ENOMEM, "out of memory for %zu keys", op->n);
    op->keys = full;
    tether_status st = tether__store_run(prefix->inner, op);
    op->keys = keys;
    if (full != small)
        tether__free(full);
    if (st == TETHER_OK && op->kind == TETHER__STORE_LIST_KEYS)
        strip_keys(prefix, op->list);
    return st;
}

static void prefix_destroy(void *impl)
{
    struct prefix *prefix = impl;
    tether_store_release(prefix->inner);
    tether__free(prefix);
}

/* Lacks nothing: the store below emulates or refuses what it lacks. */
static const struct tether__store_kind prefix_kind = {prefix_run, prefix_destroy, NULL};

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
        tether_error_set(reterr, st, "out of memory for a prefix store");
        goto undo_memory;
    }
    snprintf(prefix->text, len + 1, "%s/", text);
    prefix->len = len;
    prefix->inner = inner;
    st = tether__store_new(&prefix_kind, prefix, description, &store, reterr);
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
