/* The hash store: the key-value core (kv.h) behind a mutex, for the threads of one process.
 *
 * A call that has to wait puts a waiter on its own stack into the core and sleeps on a condition of
 * its own. The call of another thread that completes it fills in the values, under the mutex, so
 * that a delete right behind it takes nothing away; then wakes it, and nobody else.
 *
 * Lock rule: `mu` is a leaf; held for each operation, never while sleeping.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/cond.h"
#include "rendezvous/kv.h"
#include "rendezvous/store_internal.h"

struct hash {
    pthread_mutex_t mu;
    /* under mu */
    struct tether__kv kv;
};

/* A sleeping call. All under mu. */
struct sleeper {
    struct tether__kv_waiter waiter;
    struct hash *hash;
    pthread_cond_t wake; /* while asleep */
    bool asleep, done;
    tether_status status; /* once done */
    const tether_bytes *keys;
    size_t n;
    tether_buf *values; /* one for each key to be filled in, or for what is popped; or NULL */
};

static void on_ready(struct tether__kv_waiter *waiter, tether_buf *popped)
{
    struct sleeper *sleeper = tether__container_of(waiter, struct sleeper, waiter);
    if (popped) {
        tether_buf_fini(sleeper->values);
        *sleeper->values = *popped;
        *popped = TETHER_BUF_INIT;
    } else if (sleeper->values) {
        for (size_t i = 0; i < sleeper->n && sleeper->status == TETHER_OK; i++) {
            tether_bytes value;
            if (tether__kv_get(&sleeper->hash->kv, sleeper->keys[i], &value))
                sleeper->status = tether_buf_assign(&sleeper->values[i], value);
        }
    }
    sleeper->done = true;
    if (sleeper->asleep)
        pthread_cond_signal(&sleeper->wake);
}

/* Sleeps until the wait that was just started, with status `started`, is over. */
static tether_status sleep_locked(struct sleeper *sleeper, tether_status started, int timeout_ms)
{
    struct hash *hash = sleeper->hash;
    if (started != TETHER_OK)
        return started;
    if (!sleeper->done && timeout_ms != 0) {
        int64_t deadline = tether__deadline_in(&tether__clock_system, timeout_ms);
        tether__cond_init(&sleeper->wake);
        sleeper->asleep = true;
        while (!sleeper->done && tether__cond_wait(&sleeper->wake, &hash->mu, deadline)) {
        }
        pthread_cond_destroy(&sleeper->wake);
    }
    if (sleeper->done)
        return sleeper->status;
    tether__kv_cancel(&hash->kv, &sleeper->waiter);
    return TETHER_ETIMEOUT;
}

/* Waits for the values of all keys and copies them to `values`, of which some may have changed on
 * error; or, where that is NULL, just until all are present. */
static tether_status wait_for(struct hash *hash,
                              const tether_bytes *keys,
                              size_t n,
                              int timeout_ms,
                              tether_buf *values)
{
    struct sleeper sleeper = {.hash = hash, .keys = keys, .n = n, .values = values};
    pthread_mutex_lock(&hash->mu);
    tether_status st = (values ? tether__kv_wait_values : tether__kv_wait)(
        &hash->kv, &sleeper.waiter, keys, n, on_ready);
    st = sleep_locked(&sleeper, st, timeout_ms);
    pthread_mutex_unlock(&hash->mu);
    return st;
}

static tether_bytes *bytes_of_keys(const char *const *keys, size_t n)
{
    tether_bytes *bytes = tether__calloc(n, sizeof *bytes);
    for (size_t i = 0; bytes && i < n; i++)
        bytes[i] = tether_bytes_str(keys[i]);
    return bytes;
}

static tether_status not_a_number(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EINVAL,
                            "the value is not a whole number, or the sum is beyond 64 bits: "
                            "count in another key");
}

/* ---- The functions of the store ------------------------------------------------------------- */

static tether_status hash_set(void *impl,
                              const char *key,
                              tether_bytes value,
                              int timeout_ms,
                              tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    pthread_mutex_lock(&hash->mu);
    tether_status st = tether__kv_set(&hash->kv, tether_bytes_str(key), value);
    pthread_mutex_unlock(&hash->mu);
    return st;
}

static tether_status hash_get(void *impl,
                              const char *key,
                              int timeout_ms,
                              tether_buf *ret_value,
                              tether_error *reterr)
{
    (void)reterr;
    tether_bytes bytes = tether_bytes_str(key);
    return wait_for(impl, &bytes, 1, timeout_ms, ret_value);
}

static tether_status hash_try_get(void *impl,
                                  const char *key,
                                  int timeout_ms,
                                  tether_buf *ret_value,
                                  tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    tether_bytes value;
    pthread_mutex_lock(&hash->mu);
    tether_status st = tether__kv_get(&hash->kv, tether_bytes_str(key), &value)
                           ? tether_buf_assign(ret_value, value)
                           : TETHER_ENOTFOUND;
    pthread_mutex_unlock(&hash->mu);
    return st;
}

static tether_status hash_add(void *impl,
                              const char *key,
                              int64_t delta,
                              int timeout_ms,
                              int64_t *ret_sum,
                              tether_error *reterr)
{
    (void)timeout_ms;
    struct hash *hash = impl;
    pthread_mutex_lock(&hash->mu);
    tether_status st = tether__kv_add(&hash->kv, tether_bytes_str(key), delta, ret_sum);
    pthread_mutex_unlock(&hash->mu);
    return st == TETHER_EINVAL ? not_a_number(reterr) : st;
}

static tether_status hash_compare_set(void *impl,
                                      const char *key,
                                      tether_bytes expected,
                                      tether_bytes desired,
                                      int timeout_ms,
                                      bool *ret_swapped,
                                      tether_buf *ret_value,
                                      tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    bool swapped = false;
    tether_bytes value;
    /* Room first: once it has swapped there is no way back. */
    tether_status st = tether_buf_reserve(ret_value, desired.len);
    if (st != TETHER_OK)
        return st;
    pthread_mutex_lock(&hash->mu);
    st = tether__kv_compare_set(&hash->kv, tether_bytes_str(key), expected, desired, &swapped,
                                &value);
    if (st == TETHER_OK)
        st = tether_buf_assign(ret_value, value);
    pthread_mutex_unlock(&hash->mu);
    if (st == TETHER_OK)
        *ret_swapped = swapped;
    return st;
}

static tether_status hash_check(void *impl,
                                const char *const *keys,
                                size_t n,
                                int timeout_ms,
                                bool *ret_ready,
                                tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    bool ready = true;
    pthread_mutex_lock(&hash->mu);
    for (size_t i = 0; ready && i < n; i++)
        ready = tether__kv_present(&hash->kv, tether_bytes_str(keys[i]));
    pthread_mutex_unlock(&hash->mu);
    *ret_ready = ready;
    return TETHER_OK;
}

static tether_status hash_wait(void *impl,
                               const char *const *keys,
                               size_t n,
                               int timeout_ms,
                               tether_error *reterr)
{
    (void)reterr;
    tether_bytes *bytes = bytes_of_keys(keys, n);
    if (!bytes)
        return TETHER_ENOMEM;
    tether_status st = wait_for(impl, bytes, n, timeout_ms, NULL);
    tether__free(bytes);
    return st;
}

static tether_status hash_del(void *impl,
                              const char *key,
                              int timeout_ms,
                              bool *ret_deleted,
                              tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    pthread_mutex_lock(&hash->mu);
    *ret_deleted = tether__kv_delete(&hash->kv, tether_bytes_str(key));
    pthread_mutex_unlock(&hash->mu);
    return TETHER_OK;
}

static tether_status hash_num_keys(void *impl,
                                   int timeout_ms,
                                   int64_t *ret_count,
                                   tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    pthread_mutex_lock(&hash->mu);
    *ret_count = (int64_t)tether__kv_count(&hash->kv);
    pthread_mutex_unlock(&hash->mu);
    return TETHER_OK;
}

static tether_status hash_append(void *impl,
                                 const char *key,
                                 tether_bytes value,
                                 int timeout_ms,
                                 tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    pthread_mutex_lock(&hash->mu);
    tether_status st = tether__kv_append(&hash->kv, tether_bytes_str(key), value);
    pthread_mutex_unlock(&hash->mu);
    return st;
}

static tether_status hash_multi_get(void *impl,
                                    const char *const *keys,
                                    size_t n,
                                    int timeout_ms,
                                    tether_buf *ret_values,
                                    tether_error *reterr)
{
    (void)reterr;
    tether_bytes *bytes = bytes_of_keys(keys, n);
    tether_buf *values = tether__calloc(n, sizeof *values);
    tether_status st =
        bytes && values ? wait_for(impl, bytes, n, timeout_ms, values) : TETHER_ENOMEM;
    tether__store_hand_out(values, n, st, ret_values);
    tether__free(bytes);
    return st;
}

static tether_status hash_multi_set(void *impl,
                                    const char *const *keys,
                                    const tether_bytes *values,
                                    size_t n,
                                    int timeout_ms,
                                    tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    tether_bytes *bytes = bytes_of_keys(keys, n);
    if (!bytes)
        return TETHER_ENOMEM;
    pthread_mutex_lock(&hash->mu);
    tether_status st = tether__kv_multi_set(&hash->kv, bytes, values, n);
    pthread_mutex_unlock(&hash->mu);
    tether__free(bytes);
    return st;
}

static tether_status hash_list_keys(void *impl,
                                    int timeout_ms,
                                    tether_store_keys *ret_keys,
                                    tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    pthread_mutex_lock(&hash->mu);
    tether_status st = tether__kv_keys(&hash->kv, &ret_keys->keys, &ret_keys->count);
    pthread_mutex_unlock(&hash->mu);
    return st;
}

static tether_status hash_queue_push(void *impl,
                                     const char *key,
                                     tether_bytes value,
                                     int timeout_ms,
                                     tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    pthread_mutex_lock(&hash->mu);
    tether_status st = tether__kv_queue_push(&hash->kv, tether_bytes_str(key), value);
    pthread_mutex_unlock(&hash->mu);
    return st;
}

static tether_status hash_queue_pop(void *impl,
                                    const char *key,
                                    int timeout_ms,
                                    tether_buf *ret_value,
                                    tether_error *reterr)
{
    (void)reterr;
    struct hash *hash = impl;
    tether_bytes bytes = tether_bytes_str(key);
    struct sleeper sleeper = {.hash = hash, .values = ret_value};
    pthread_mutex_lock(&hash->mu);
    tether_status st = tether__kv_wait_pop(&hash->kv, &sleeper.waiter, bytes, on_ready);
    st = sleep_locked(&sleeper, st, timeout_ms);
    pthread_mutex_unlock(&hash->mu);
    return st == TETHER_ETIMEOUT && timeout_ms == 0 ? TETHER_ENOTFOUND : st;
}

static tether_status hash_queue_len(void *impl,
                                    const char *key,
                                    int timeout_ms,
                                    int64_t *ret_len,
                                    tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct hash *hash = impl;
    pthread_mutex_lock(&hash->mu);
    *ret_len = (int64_t)tether__kv_queue_len(&hash->kv, tether_bytes_str(key));
    pthread_mutex_unlock(&hash->mu);
    return TETHER_OK;
}

static tether_status hash_barrier(void *impl,
                                  const char *key,
                                  int64_t world_size,
                                  int timeout_ms,
                                  tether_error *reterr)
{
    struct hash *hash = impl;
    tether_bytes bytes = tether_bytes_str(key);
    struct sleeper sleeper = {.hash = hash};
    pthread_mutex_lock(&hash->mu);
    tether_status st =
        tether__kv_wait_barrier(&hash->kv, &sleeper.waiter, bytes, world_size, on_ready);
    st = sleep_locked(&sleeper, st, timeout_ms);
    pthread_mutex_unlock(&hash->mu);
    return st == TETHER_EINVAL ? not_a_number(reterr) : st;
}

static void hash_destroy(void *impl)
{
    struct hash *hash = impl;
    tether__kv_fini(&hash->kv);
    pthread_mutex_destroy(&hash->mu);
    tether__free(hash);
}

static const struct tether_store_ops hash_ops = {
    .size = sizeof(struct tether_store_ops),
    .set = hash_set,
    .get = hash_get,
    .add = hash_add,
    .compare_set = hash_compare_set,
    .check = hash_check,
    .wait = hash_wait,
    .del = hash_del,
    .destroy = hash_destroy,
    .try_get = hash_try_get,
    .num_keys = hash_num_keys,
    .append = hash_append,
    .multi_get = hash_multi_get,
    .multi_set = hash_multi_set,
    .list_keys = hash_list_keys,
    .queue_push = hash_queue_push,
    .queue_pop = hash_queue_pop,
    .queue_len = hash_queue_len,
    .barrier = hash_barrier,
};

tether_status tether_store_hash_new(tether_store **ret_store, tether_error *reterr)
{
    struct hash *hash = tether__calloc(1, sizeof *hash);
    if (!hash || tether__kv_init(&hash->kv, SIZE_MAX - 1) != TETHER_OK)
        goto undo_hash;
    pthread_mutex_init(&hash->mu, NULL);
    tether_status st = tether_store_new(&hash_ops, hash, "hash store", ret_store, reterr);
    if (st != TETHER_OK)
        hash_destroy(hash);
    return st;

undo_hash:
    tether__free(hash);
    return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a hash store");
}
