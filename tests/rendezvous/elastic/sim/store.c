/* A store in virtual time: a hash store with latency, on which fibers wait.
 */
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/map.h"
#include "tests/lib/own_store.h"
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
                return tether_error_set(reterr, TETHER_ESHUTDOWN, "this node is dead");
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

static bool is_of_many(const struct tether__store_op *op)
{
    return op->kind == TETHER__STORE_CHECK || op->kind == TETHER__STORE_WAIT ||
           op->kind == TETHER__STORE_MULTI_GET || op->kind == TETHER__STORE_MULTI_SET;
}

static size_t request_size(const struct tether__store_op *op)
{
    size_t bytes = is_of_many(op) ? INT : 0;
    for (size_t i = 0; i < op->n; i++)
        bytes += INT + strlen(op->keys[i]) + (op->values ? INT + op->values[i].len : 0);
    if (op->kind == TETHER__STORE_ADD)
        bytes += INT;
    if (op->kind == TETHER__STORE_COMPARE_SET)
        bytes += INT + op->expected.len;
    return bytes;
}

static size_t answer_size(const struct tether__store_op *op, tether_status st)
{
    size_t bytes = 0;
    switch (op->kind) {
        case TETHER__STORE_SET:
        case TETHER__STORE_CHECK:
        case TETHER__STORE_MULTI_SET:
            return 1;
        case TETHER__STORE_WAIT: /* after a timeout the client sends a cancel */
            return st == TETHER_OK ? 1 : 2;
        case TETHER__STORE_ADD:
        case TETHER__STORE_DELETE:
            return INT;
        case TETHER__STORE_MULTI_GET:
            for (size_t i = 0; i < op->n && st == TETHER_OK; i++)
                bytes += INT + op->results[i].len;
            return bytes;
        default:
            return INT + (st == TETHER_OK ? op->results->len : 0);
    }
}

static tether_status run(void *userdata, struct tether__store_op *op)
{
    struct sim_store *s = userdata;
    bool waits = op->kind == TETHER__STORE_GET || op->kind == TETHER__STORE_WAIT ||
                 op->kind == TETHER__STORE_MULTI_GET;
    if (!request(s, op->n, request_size(op)))
        return tether_error_set(&op->cause, TETHER_ESHUTDOWN, "this node is dead");
    tether_status st = waits ? await(s, op->keys, op->n, op->timeout_ms, &op->cause) : TETHER_OK;
    if (st == TETHER_OK && op->kind != TETHER__STORE_WAIT) {
        op->timeout_ms = 0;
        st = tether__store_run(s->data, op);
    }
    bool changes = op->values || op->kind == TETHER__STORE_ADD;
    if (op->kind == TETHER__STORE_COMPARE_SET)
        changes = st == TETHER_OK && op->yes;
    for (size_t i = 0; changes && i < op->n; i++)
        wake_waiters(s, op->keys[i]);
    answer(s, answer_size(op, st));
    return st;
}

/* ---- Life ----------------------------------------------------------------------------------- */

struct sim_store *sim_store_new(struct sim *sim, int64_t latency_ns)
{
    const uint32_t extra = TETHER__STORE_BIT(TETHER__STORE_TRY_GET) |
                           TETHER__STORE_BIT(TETHER__STORE_MULTI_GET) |
                           TETHER__STORE_BIT(TETHER__STORE_MULTI_SET);
    struct sim_store *s = calloc(1, sizeof *s);
    if (!s || tether_store_hash_new(&s->data, NULL) != TETHER_OK ||
        tether_test_store_new(run, s, extra, &s->store) != TETHER_OK ||
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
