/* The hash store: the key-value core (kv.h) behind a mutex, for the threads of one process.
 *
 * A call that has to wait puts a waiter on its own stack into the core and sleeps on its own
 * condition variable. The call of another thread that completes the wait copies the values under
 * the mutex, so that a later delete takes nothing away, and wakes only this thread.
 *
 * Lock rule: `mu` is a leaf; held for each operation, never while sleeping.
 */
#include "base/alloc.h"
#include "base/threads/cond.h"
#include "rendezvous/store/kv/kv.h"
#include "rendezvous/store/op.h"

struct hash {
    pthread_mutex_t mu;
    /* fields under mu */
    struct tether__kv kv;
};

/* A sleeping call. All fields are under mu. */
struct sleeper {
    struct tether__kv_waiter waiter;
    struct hash *hash;
    pthread_cond_t wake; /* condition variable of the sleeping thread */
    bool asleep, done;
    tether_status status; /* result of the wait, valid once it is done */
    const tether_bytes *keys;
    size_t n;
    tether_buf *values; /* one for each key to be read, or one for the popped element; NULL: none */
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
static tether_status sleep_locked(struct sleeper *sleeper,
                                  tether_status started,
                                  const struct tether__store_op *op)
{
    struct hash *hash = sleeper->hash;
    if (started != TETHER_OK)
        return started;
    if (!sleeper->done && op->timeout_ms != 0) {
        tether__cond_init(&sleeper->wake);
        sleeper->asleep = true;
        while (!sleeper->done && tether__cond_wait(&sleeper->wake, &hash->mu, op->deadline)) {
        }
        pthread_cond_destroy(&sleeper->wake);
    }
    if (sleeper->done)
        return sleeper->status;
    tether__kv_cancel(&hash->kv, &sleeper->waiter);
    return TETHER_ETIMEOUT;
}

/* Waits until all keys are present or, with `values`, until all have values, and copies these. On
 * error some of `values` may have changed. */
static tether_status wait_locked(struct hash *hash,
                                 const struct tether__store_op *op,
                                 const tether_bytes *keys,
                                 tether_buf *values)
{
    struct sleeper sleeper = {.hash = hash, .keys = keys, .n = op->n, .values = values};
    tether_status st = tether__kv_wait(&hash->kv, &sleeper.waiter,
                                       values ? TETHER__KV_WANT_VALUE : TETHER__KV_WANT_ANY, keys,
                                       op->n, on_ready);
    return sleep_locked(&sleeper, st, op);
}

static tether_status compare_set_locked(struct hash *hash,
                                        tether_bytes key,
                                        struct tether__store_op *op)
{
    tether_bytes value;
    /* Reserve first: a swap cannot be undone. */
    tether_status st = tether_buf_reserve(op->results, op->values[0].len);
    if (st == TETHER_OK)
        st = tether__kv_compare_set(&hash->kv, key, op->expected, op->values[0], &op->yes, &value);
    return st == TETHER_OK ? tether_buf_assign(op->results, value) : st;
}

static tether_status multi_get_locked(struct hash *hash,
                                      const tether_bytes *keys,
                                      const struct tether__store_op *op)
{
    tether_buf *values = tether__calloc(op->n, sizeof *values);
    tether_status st = values ? wait_locked(hash, op, keys, values) : TETHER_ENOMEM;
    tether__store_hand_out(values, op->n, st, op->results);
    return st;
}

static tether_status run_locked(struct hash *hash,
                                const tether_bytes *keys,
                                struct tether__store_op *op)
{
    struct tether__kv *kv = &hash->kv;
    struct sleeper sleeper = {.hash = hash, .values = op->results};
    tether_status st;
    switch (op->kind) {
        case TETHER__STORE_SET:
            return tether__kv_set(kv, keys[0], op->values[0]);
        case TETHER__STORE_GET:
            return wait_locked(hash, op, keys, op->results);
        case TETHER__STORE_ADD:
            return tether__kv_add(kv, keys[0], op->number, &op->count);
        case TETHER__STORE_COMPARE_SET:
            return compare_set_locked(hash, keys[0], op);
        case TETHER__STORE_WAIT:
            return wait_locked(hash, op, keys, NULL);
        case TETHER__STORE_DELETE:
            op->yes = tether__kv_delete(kv, keys[0]);
            return TETHER_OK;
        case TETHER__STORE_APPEND:
            return tether__kv_append(kv, keys[0], op->values[0]);
        case TETHER__STORE_MULTI_GET:
            return multi_get_locked(hash, keys, op);
        case TETHER__STORE_MULTI_SET:
            return tether__kv_multi_set(kv, keys, op->values, op->n);
        case TETHER__STORE_QUEUE_PUSH:
            return tether__kv_queue_push(kv, keys[0], op->values[0]);
        case TETHER__STORE_QUEUE_POP:
            st = tether__kv_wait_pop(kv, &sleeper.waiter, keys[0], on_ready);
            st = sleep_locked(&sleeper, st, op);
            return st == TETHER_ETIMEOUT && op->timeout_ms == 0 ? TETHER_ENOTFOUND : st;
        case TETHER__STORE_BARRIER:
            st = tether__kv_wait_barrier(kv, &sleeper.waiter, keys[0], op->number, on_ready);
            return sleep_locked(&sleeper, st, op);
        default:
            return TETHER_ENOTSUP;
    }
}

static tether_status hash_run(void *impl, struct tether__store_op *op)
{
    struct hash *hash = impl;
    if (tether__store_op_looks(op->kind)) {
        pthread_mutex_lock(&hash->mu);
        tether_status st = tether__store_op_look(op, &hash->kv);
        pthread_mutex_unlock(&hash->mu);
        return st;
    }
    tether_bytes one, *keys = op->n > 1 ? tether__calloc(op->n, sizeof *keys) : &one;
    if (!keys)
        return TETHER_ENOMEM;
    for (size_t i = 0; i < op->n; i++)
        keys[i] = tether_bytes_str(op->keys[i]);
    pthread_mutex_lock(&hash->mu);
    tether_status st = run_locked(hash, keys, op);
    pthread_mutex_unlock(&hash->mu);
    if (keys != &one)
        tether__free(keys);
    return st == TETHER_EINVAL ? tether__store_op_not_a_number(op) : st;
}

static void hash_destroy(void *impl)
{
    struct hash *hash = impl;
    tether__kv_fini(&hash->kv);
    pthread_mutex_destroy(&hash->mu);
    tether__free(hash);
}

static const struct tether__store_kind hash_kind = {hash_run, hash_destroy, NULL};

tether_status tether_store_hash_new(tether_store **ret_store, tether_error *reterr)
{
    struct hash *hash = tether__calloc(1, sizeof *hash);
    if (!hash || tether__kv_init(&hash->kv, SIZE_MAX - 1) != TETHER_OK)
        goto undo_hash;
    pthread_mutex_init(&hash->mu, NULL);
    tether_status st = tether__store_new(&hash_kind, hash, "hash store", ret_store, reterr);
    if (st != TETHER_OK)
        hash_destroy(hash);
    return st;

undo_hash:
    tether__free(hash);
    return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a hash store");
}
