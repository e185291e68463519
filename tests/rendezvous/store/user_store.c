/* The user's store. Plain C: it doesn't know the library's allocator or clock. */
#include "tests/rendezvous/store/user_store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct user_pair *find(struct user_store *user, const char *key)
{
    for (size_t i = 0; i < user->n; i++)
        if (!strcmp(user->pairs[i].key, key))
            return &user->pairs[i];
    return NULL;
}

static tether_status put(struct user_store *user, const char *key, tether_bytes value)
{
    struct user_pair *pair = find(user, key);
    if (!pair) {
        if (user->n == sizeof user->pairs / sizeof user->pairs[0])
            return TETHER_ENOMEM;
        pair = &user->pairs[user->n];
        *pair = (struct user_pair){.key = strdup(key)};
        if (tether_buf_assign(&pair->value, value) != TETHER_OK) {
            free(pair->key);
            return TETHER_ENOMEM;
        }
        user->n++;
        pthread_cond_broadcast(&user->changed);
        return TETHER_OK;
    }
    return tether_buf_assign(&pair->value, value);
}

static bool take_out(struct user_store *user, const char *key)
{
    struct user_pair *pair = find(user, key);
    if (!pair)
        return false;
    free(pair->key);
    tether_buf_fini(&pair->value);
    *pair = user->pairs[--user->n];
    return true;
}

void user_store_put(struct user_store *user, const char *key, const char *value)
{
    if (value)
        put(user, key, tether_bytes_str(value));
    else
        take_out(user, key);
}

static bool all_present(struct user_store *user, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!find(user, keys[i]))
            return false;
    return true;
}

static tether_status wait_locked(struct user_store *user,
                                 const char *const *keys,
                                 size_t n,
                                 int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + (timeout_ms % 1000) * INT64_C(1000000);
    until.tv_sec += timeout_ms / 1000 + ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    int rc = 0;
    while (!all_present(user, keys, n)) {
        if (timeout_ms == 0 || rc == ETIMEDOUT)
            return TETHER_ETIMEOUT;
        rc = timeout_ms < 0 ? pthread_cond_wait(&user->changed, &user->mu)
                            : pthread_cond_timedwait(&user->changed, &user->mu, &until);
    }
    return TETHER_OK;
}

static tether_status user_set(void *impl,
                              const char *key,
                              tether_bytes value,
                              int timeout_ms,
                              tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct user_store *user = impl;
    pthread_mutex_lock(&user->mu);
    tether_status st = put(user, key, value);
    pthread_mutex_unlock(&user->mu);
    return st;
}

static tether_status user_get(void *impl,
                              const char *key,
                              int timeout_ms,
                              tether_buf *ret_value,
                              tether_error *reterr)
{
    (void)reterr;
    struct user_store *user = impl;
    pthread_mutex_lock(&user->mu);
    tether_status st = wait_locked(user, &key, 1, timeout_ms);
    if (st == TETHER_OK)
        st = tether_buf_assign(ret_value, tether_buf_bytes(&find(user, key)->value));
    pthread_mutex_unlock(&user->mu);
    return st;
}

static tether_status user_add(void *impl,
                              const char *key,
                              int64_t delta,
                              int timeout_ms,
                              int64_t *ret_sum,
                              tether_error *reterr)
{
    (void)timeout_ms;
    struct user_store *user = impl;
    pthread_mutex_lock(&user->mu);
    tether_status st = TETHER_OK;
    struct user_pair *pair = find(user, key);
    char *end, text[32];
    int64_t sum = 0;
    errno = 0;
    if (pair) {
        sum = strtoll(pair->value.data, &end, 10);
        const char *digits = pair->value.data + (pair->value.data[0] == '-');
        if (*end || *digits < '0' || *digits > '9' || errno)
            st = tether_error_set(reterr, TETHER_EINVAL, "not a number");
    }
    if (st == TETHER_OK && __builtin_add_overflow(sum, delta, &sum))
        st = tether_error_set(reterr, TETHER_EINVAL, "the sum is too large");
    if (st == TETHER_OK) {
        snprintf(text, sizeof text, "%" PRId64, sum);
        st = put(user, key, tether_bytes_str(text));
    }
    if (st == TETHER_OK)
        *ret_sum = sum;
    pthread_mutex_unlock(&user->mu);
    return st;
}

static tether_status user_compare_set(void *impl,
                                      const char *key,
                                      tether_bytes expected,
                                      tether_bytes desired,
                                      int timeout_ms,
                                      bool *ret_swapped,
                                      tether_buf *ret_value,
                                      tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct user_store *user = impl;
    pthread_mutex_lock(&user->mu);
    if (user->before_swap)
        user->before_swap(user, key);
    struct user_pair *pair = find(user, key);
    tether_bytes present = pair ? tether_buf_bytes(&pair->value) : tether_bytes_str("");
    bool swapped = tether_bytes_equal(present, expected);
    tether_status st = tether_buf_assign(ret_value, swapped ? desired : pair ? present : expected);
    if (st == TETHER_OK && swapped)
        st = put(user, key, desired);
    if (st == TETHER_OK)
        *ret_swapped = swapped;
    pthread_mutex_unlock(&user->mu);
    return st;
}

static tether_status user_check(void *impl,
                                const char *const *keys,
                                size_t n,
                                int timeout_ms,
                                bool *ret_ready,
                                tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct user_store *user = impl;
    pthread_mutex_lock(&user->mu);
    *ret_ready = all_present(user, keys, n);
    pthread_mutex_unlock(&user->mu);
    return TETHER_OK;
}

static tether_status user_wait(void *impl,
                               const char *const *keys,
                               size_t n,
                               int timeout_ms,
                               tether_error *reterr)
{
    (void)reterr;
    struct user_store *user = impl;
    pthread_mutex_lock(&user->mu);
    tether_status st = wait_locked(user, keys, n, timeout_ms);
    pthread_mutex_unlock(&user->mu);
    return st;
}

static tether_status user_del(void *impl,
                              const char *key,
                              int timeout_ms,
                              bool *ret_deleted,
                              tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct user_store *user = impl;
    pthread_mutex_lock(&user->mu);
    *ret_deleted = take_out(user, key);
    pthread_mutex_unlock(&user->mu);
    return TETHER_OK;
}

static void user_destroy(void *impl)
{
    struct user_store *user = impl;
    while (user->n > 0)
        take_out(user, user->pairs[0].key);
    pthread_cond_destroy(&user->changed);
    pthread_mutex_destroy(&user->mu);
    free(user);
}

const struct tether_store_ops user_store_ops = {
    .size = sizeof(struct tether_store_ops),
    .set = user_set,
    .get = user_get,
    .add = user_add,
    .compare_set = user_compare_set,
    .check = user_check,
    .wait = user_wait,
    .del = user_del,
    .destroy = user_destroy,
};

tether_store *user_store_new(struct user_store **ret_user)
{
    tether_store *store = NULL;
    struct user_store *user = calloc(1, sizeof *user);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&user->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&user->mu, NULL);
    if (tether_store_new(&user_store_ops, user, "user's store", &store, NULL) != TETHER_OK)
        user_destroy(user);
    else if (ret_user)
        *ret_user = user;
    return store;
}
