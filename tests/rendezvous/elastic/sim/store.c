/* A store in virtual time: a hash store with latency, on which fibers wait.
 */
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/map.h"
#include "tests/rendezvous/elastic/sim/sim.h"

#define INT 8 /* bytes of a number on the wire */

struct sim_store {
    struct sim *sim;
    tether_store *store;      /* the store for the nodes */
    tether_store *data;       /* the hash store with the data */
    struct tether__map waits; /* of struct wait_key */
    struct sim_traffic traffic;
    int64_t latency_ns, frozen_until;
};

/* The fibers that wait for a key. */
struct wait_key {
    tether_bytes key; /* first: the map finds the object by it */
    struct tether__list waiters;
    char text[];
};

struct waiter {
    struct tether__list node;
    struct sim_fiber *fiber;
};

/* ---- Time and traffic ----------------------------------------------------------------------- */

static void travel(struct sim_store *s)
{
    sim_sleep(s->sim,
              s->latency_ns / 2 + (int64_t)(sim_random(s->sim) % (uint64_t)(s->latency_ns + 1)));
}

/* A request of `bytes` that names `keys` arrives; false when it does not, since its node is dead.
 */
static bool request(struct sim_store *s, size_t keys, size_t bytes)
{
    if (sim_dead(sim_self(s->sim)))
        return false;
    s->traffic.requests++;
    s->traffic.keys += keys;
    s->traffic.bytes += 1 + bytes;
    if (bytes > s->traffic.largest)
        s->traffic.largest = bytes;
    travel(s);
    while (s->frozen_until > sim_now(s->sim) && !sim_dead(sim_self(s->sim)))
        sim_sleep(s->sim, s->frozen_until - sim_now(s->sim));
    return !sim_dead(sim_self(s->sim));
}

static tether_status refuse(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ESHUTDOWN, "this node is dead");
}

static void answer(struct sim_store *s, size_t bytes)
{
    s->traffic.bytes += bytes;
    if (bytes > s->traffic.largest)
        s->traffic.largest = bytes;
    travel(s);
}

/* ---- Waiting -------------------------------------------------------------------------------- */

static void wake_waiters(struct sim_store *s, const char *key)
{
    tether_bytes bytes = tether_bytes_str(key);
    void *found = tether__map_get(&s->waits, &bytes);
    if (!found)
        return;
    struct wait_key *wait = tether__container_of(found, struct wait_key, key);
    while (!tether__list_empty(&wait->waiters)) {
        struct tether__list *first = tether__list_pop_front(&wait->waiters);
        sim_wake(s->sim, tether__list_entry(first, struct waiter, node)->fiber);
    }
    tether__map_del(&s->waits, &bytes);
    free(wait);
}

static struct wait_key *wait_key_of(struct sim_store *s, const char *key)
{
    tether_bytes bytes = tether_bytes_str(key);
    void *found = tether__map_get(&s->waits, &bytes);
    if (found)
        return tether__container_of(found, struct wait_key, key);
    struct wait_key *wait = calloc(1, sizeof *wait + bytes.len + 1);
    if (!wait)
        abort();
    strcpy(wait->text, key);
    wait->key = tether_bytes_of(wait->text, bytes.len);
    tether__list_init(&wait->waiters);
    if (tether__map_put(&s->waits, &wait->key) != TETHER_OK)
        abort();
    return wait;
}

static bool exists(struct sim_store *s, const char *key)
{
    bool ready = false;
    return tether_store_check(s->data, &key, 1, 0, &ready, NULL) == TETHER_OK && ready;
}

/* Waits for one key after the other. */
static tether_status await(struct sim_store *s,
                           const char *const *keys,
                           size_t n,
                           int timeout_ms,
                           tether_error *reterr)
{
    int64_t deadline =
        timeout_ms < 0 ? INT64_MAX : sim_now(s->sim) + timeout_ms * TETHER__NS_PER_MS;
    for (size_t i = 0; i < n; i++) {
        while (!exists(s, keys[i])) {
            int64_t left = deadline == INT64_MAX ? INT64_MAX : deadline - sim_now(s->sim);
            if (sim_dead(sim_self(s->sim)))
                return refuse(reterr);
            if (left <= 0)
                return tether_error_set(reterr, TETHER_ETIMEOUT, "no key '%s'", keys[i]);
            struct waiter waiter = {.fiber = sim_self(s->sim)};
            tether__list_push_back(&wait_key_of(s, keys[i])->waiters, &waiter.node);
            if (!sim_wait_for_wake(s->sim, left))
                tether__list_remove(&waiter.node);
        }
    }
    return TETHER_OK;
}

/* ---- The calls ------------------------------------------------------------------------------ */

static tether_status sim_set(void *impl,
                             const char *key,
                             tether_bytes value,
                             int timeout_ms,
                             tether_error *reterr)
{
    struct sim_store *s = impl;
    (void)timeout_ms;
    if (!request(s, 1, INT + strlen(key) + INT + value.len))
        return refuse(reterr);
    tether_status st = tether_store_set(s->data, key, value, 0, reterr);
    wake_waiters(s, key);
    answer(s, 1);
    return st;
}

static tether_status sim_try_get(void *impl,
                                 const char *key,
                                 int timeout_ms,
                                 tether_buf *ret_value,
                                 tether_error *reterr)
{
    struct sim_store *s = impl;
    (void)timeout_ms;
    if (!request(s, 1, INT + strlen(key)))
        return refuse(reterr);
    tether_status st = tether_store_try_get(s->data, key, 0, ret_value, reterr);
    answer(s, INT + (st == TETHER_OK ? ret_value->len : 0));
    return st;
}

static tether_status sim_get(void *impl,
                             const char *key,
                             int timeout_ms,
                             tether_buf *ret_value,
                             tether_error *reterr)
{
    struct sim_store *s = impl;
    if (!request(s, 1, INT + strlen(key)))
        return refuse(reterr);
    tether_status st = await(s, &key, 1, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = tether_store_try_get(s->data, key, 0, ret_value, reterr);
    answer(s, INT + (st == TETHER_OK ? ret_value->len : 0));
    return st;
}

static tether_status sim_add(void *impl,
                             const char *key,
                             int64_t delta,
                             int timeout_ms,
                             int64_t *ret_sum,
                             tether_error *reterr)
{
    struct sim_store *s = impl;
    (void)timeout_ms;
    if (!request(s, 1, INT + strlen(key) + INT))
        return refuse(reterr);
    tether_status st = tether_store_add(s->data, key, delta, 0, ret_sum, reterr);
    wake_waiters(s, key);
    answer(s, INT);
    return st;
}

static tether_status sim_compare_set(void *impl,
                                     const char *key,
                                     tether_bytes expected,
                                     tether_bytes desired,
                                     int timeout_ms,
                                     bool *ret_swapped,
                                     tether_buf *ret_value,
                                     tether_error *reterr)
{
    struct sim_store *s = impl;
    (void)timeout_ms;
    if (!request(s, 1, INT + strlen(key) + INT + expected.len + INT + desired.len))
        return refuse(reterr);
    tether_status st = tether_store_compare_set(s->data, key, expected, desired, 0, ret_swapped,
                                                ret_value, reterr);
    if (st == TETHER_OK && *ret_swapped)
        wake_waiters(s, key);
    answer(s, INT + (st == TETHER_OK ? ret_value->len : 0));
    return st;
}

static tether_status sim_check(void *impl,
                               const char *const *keys,
                               size_t n,
                               int timeout_ms,
                               bool *ret_ready,
                               tether_error *reterr)
{
    struct sim_store *s = impl;
    (void)timeout_ms;
    size_t bytes = INT;
    for (size_t i = 0; i < n; i++)
        bytes += INT + strlen(keys[i]);
    if (!request(s, n, bytes))
        return refuse(reterr);
    tether_status st = tether_store_check(s->data, keys, n, 0, ret_ready, reterr);
    answer(s, 1);
    return st;
}

static tether_status sim_wait(void *impl,
                              const char *const *keys,
                              size_t n,
                              int timeout_ms,
                              tether_error *reterr)
{
    struct sim_store *s = impl;
    size_t bytes = INT;
    for (size_t i = 0; i < n; i++)
        bytes += INT + strlen(keys[i]);
    if (!request(s, n, bytes))
        return refuse(reterr);
    tether_status st = await(s, keys, n, timeout_ms, reterr);
    /* After a timeout the client sends a cancel: one more byte in each direction. */
    answer(s, st == TETHER_OK ? 1 : 2);
    return st;
}

static tether_status sim_del(void *impl,
                             const char *key,
                             int timeout_ms,
                             bool *ret_deleted,
                             tether_error *reterr)
{
    struct sim_store *s = impl;
    (void)timeout_ms;
    if (!request(s, 1, INT + strlen(key)))
        return refuse(reterr);
    tether_status st = tether_store_delete(s->data, key, 0, ret_deleted, reterr);
    answer(s, INT);
    return st;
}

static tether_status sim_multi_get(void *impl,
                                   const char *const *keys,
                                   size_t n,
                                   int timeout_ms,
                                   tether_buf *ret_values,
                                   tether_error *reterr)
{
    struct sim_store *s = impl;
    size_t bytes = INT;
    for (size_t i = 0; i < n; i++)
        bytes += INT + strlen(keys[i]);
    if (!request(s, n, bytes))
        return refuse(reterr);
    tether_status st = await(s, keys, n, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = tether_store_multi_get(s->data, keys, n, 0, ret_values, reterr);
    bytes = 0;
    for (size_t i = 0; i < n && st == TETHER_OK; i++)
        bytes += INT + ret_values[i].len;
    answer(s, bytes);
    return st;
}

static tether_status sim_multi_set(void *impl,
                                   const char *const *keys,
                                   const tether_bytes *values,
                                   size_t n,
                                   int timeout_ms,
                                   tether_error *reterr)
{
    struct sim_store *s = impl;
    (void)timeout_ms;
    size_t bytes = INT;
    for (size_t i = 0; i < n; i++)
        bytes += INT + strlen(keys[i]) + INT + values[i].len;
    if (!request(s, n, bytes))
        return refuse(reterr);
    tether_status st = tether_store_multi_set(s->data, keys, values, n, 0, reterr);
    for (size_t i = 0; i < n; i++)
        wake_waiters(s, keys[i]);
    answer(s, 1);
    return st;
}

static void sim_destroy(void *impl)
{
    (void)impl;
}

/* ---- Life ----------------------------------------------------------------------------------- */

struct sim_store *sim_store_new(struct sim *sim, int64_t latency_ns)
{
    static const struct tether_store_ops ops = {
        .size = sizeof ops,
        .set = sim_set,
        .get = sim_get,
        .add = sim_add,
        .compare_set = sim_compare_set,
        .check = sim_check,
        .wait = sim_wait,
        .del = sim_del,
        .destroy = sim_destroy,
        .try_get = sim_try_get,
        .multi_get = sim_multi_get,
        .multi_set = sim_multi_set,
    };
    struct sim_store *s = calloc(1, sizeof *s);
    if (!s || tether_store_hash_new(&s->data, NULL) != TETHER_OK ||
        tether_store_new(&ops, s, "store in virtual time", &s->store, NULL) != TETHER_OK ||
        tether__map_init(&s->waits, &tether__map_bytes) != TETHER_OK)
        abort();
    s->sim = sim;
    s->latency_ns = latency_ns;
    return s;
}

void sim_store_free(struct sim_store *s)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (void *key; (key = tether__map_next(&s->waits, &it));) {
        tether__map_del(&s->waits, key);
        free(tether__container_of(key, struct wait_key, key));
    }
    tether__map_fini(&s->waits);
    tether_store_release(s->store);
    tether_store_release(s->data);
    free(s);
}

tether_store *sim_store_of(struct sim_store *s)
{
    return s->store;
}

struct sim_traffic sim_store_traffic(const struct sim_store *s)
{
    return s->traffic;
}

tether_status sim_store_keys(const struct sim_store *s, tether_store_keys *ret_keys)
{
    return tether_store_list_keys(s->data, 0, ret_keys, NULL);
}

void sim_store_freeze(struct sim_store *s, int64_t until)
{
    s->frozen_until = until;
}
