/* A store of your own: it records every change and passes it on to the store below. So you can see
 * how a group of workers uses its store.
 *
 *     custom_store
 *
 * Look at journal_ops: a store is eight functions. The library emulates the other operations
 * (append, multi_set, barriers ...) with them, as the printed journal shows, and adds the context
 * to errors.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/store.h"

struct journal {
    tether_store *below;
    FILE *out; /* stdio locks it: several threads may write */
};

/* ---- Operations that are only passed on -------------------------------------------------------
 */

static tether_status journal_get(void *impl,
                                 const char *key,
                                 int timeout_ms,
                                 tether_buf *ret_value,
                                 tether_error *reterr)
{
    struct journal *journal = impl;
    return tether_store_get(journal->below, key, timeout_ms, ret_value, reterr);
}

static tether_status journal_check(void *impl,
                                   const char *const *keys,
                                   size_t n,
                                   int timeout_ms,
                                   bool *ret_ready,
                                   tether_error *reterr)
{
    struct journal *journal = impl;
    return tether_store_check(journal->below, keys, n, timeout_ms, ret_ready, reterr);
}

static tether_status journal_wait(void *impl,
                                  const char *const *keys,
                                  size_t n,
                                  int timeout_ms,
                                  tether_error *reterr)
{
    struct journal *journal = impl;
    return tether_store_wait(journal->below, keys, n, timeout_ms, reterr);
}

/* ---- What changes something ------------------------------------------------------------------ */

static tether_status journal_set(void *impl,
                                 const char *key,
                                 tether_bytes value,
                                 int timeout_ms,
                                 tether_error *reterr)
{
    struct journal *journal = impl;
    tether_status st = tether_store_set(journal->below, key, value, timeout_ms, reterr);
    if (st == TETHER_OK)
        fprintf(journal->out, "set %s = %.*s\n", key, (int)value.len, (const char *)value.data);
    return st;
}

static tether_status journal_add(void *impl,
                                 const char *key,
                                 int64_t delta,
                                 int timeout_ms,
                                 int64_t *ret_sum,
                                 tether_error *reterr)
{
    struct journal *journal = impl;
    tether_status st = tether_store_add(journal->below, key, delta, timeout_ms, ret_sum, reterr);
    if (st == TETHER_OK)
        fprintf(journal->out, "add %s + %" PRId64 " = %" PRId64 "\n", key, delta, *ret_sum);
    return st;
}

static tether_status journal_compare_set(void *impl,
                                         const char *key,
                                         tether_bytes expected,
                                         tether_bytes desired,
                                         int timeout_ms,
                                         bool *ret_swapped,
                                         tether_buf *ret_value,
                                         tether_error *reterr)
{
    struct journal *journal = impl;
    tether_status st = tether_store_compare_set(journal->below, key, expected, desired, timeout_ms,
                                                ret_swapped, ret_value, reterr);
    if (st == TETHER_OK)
        fprintf(journal->out, "compare_set %s: '%.*s' -> '%.*s': %s\n", key, (int)expected.len,
                (const char *)expected.data, (int)desired.len, (const char *)desired.data,
                *ret_swapped ? "done" : "it is something else");
    return st;
}

static tether_status journal_del(void *impl,
                                 const char *key,
                                 int timeout_ms,
                                 bool *ret_deleted,
                                 tether_error *reterr)
{
    struct journal *journal = impl;
    tether_status st = tether_store_delete(journal->below, key, timeout_ms, ret_deleted, reterr);
    if (st == TETHER_OK)
        fprintf(journal->out, "delete %s%s\n", key, *ret_deleted ? "" : ": was not there");
    return st;
}

static void journal_destroy(void *impl)
{
    struct journal *journal = impl;
    tether_store_release(journal->below);
    free(journal);
}

static const struct tether_store_ops journal_ops = {
    .size = sizeof journal_ops,
    .set = journal_set,
    .get = journal_get,
    .add = journal_add,
    .compare_set = journal_compare_set,
    .check = journal_check,
    .wait = journal_wait,
    .del = journal_del,
    .destroy = journal_destroy,
};

/* Makes a store that records operations and passes them on to `below`, which it retains. */
static tether_status journal_new(tether_store *below,
                                 FILE *out,
                                 tether_store **ret_store,
                                 tether_error *reterr)
{
    struct journal *journal = malloc(sizeof *journal);
    if (!journal)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a journal");
    *journal = (struct journal){below, out};
    tether_status st = tether_store_new(&journal_ops, journal, "journal", ret_store, reterr);
    if (st == TETHER_OK)
        tether_store_retain(below);
    else
        free(journal);
    return st;
}

int main(void)
{
    tether_error err = {0};
    tether_store *below = NULL, *store = NULL;
    tether_buf value = TETHER_BUF_INIT;

    if (tether_store_hash_new(&below, &err) || journal_new(below, stdout, &store, &err) ||
        tether_store_set(store, "greeting", tether_bytes_str("hello"), 0, &err) ||
        tether_store_append(store, "greeting", tether_bytes_str(", world"), 0, &err) ||
        tether_store_get(store, "greeting", 0, &value, &err))
        goto out;
    printf("  so the greeting is '%s'\n", value.data);

    if (tether_store_barrier(store, "everybody", 1, 0, &err) ||
        tether_store_delete(store, "greeting", 0, NULL, &err))
        goto out;
    if (tether_store_get(store, "greeting", 20, &value, &err) == TETHER_ETIMEOUT) {
        printf("  and now: %s\n", err.message);
        err = (tether_error){0};
    }
out:
    tether_buf_fini(&value);
    tether_store_release(store);
    tether_store_release(below);
    if (err.code)
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    return err.code != TETHER_OK;
}
