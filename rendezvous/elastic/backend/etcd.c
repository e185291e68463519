/* The backend on etcd.
 *
 * Lock rule: `mu` is a leaf lock that guards the leases. It is not held during requests to etcd.
 */
#include "rendezvous/elastic/backend/etcd.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/list.h"
#include "rendezvous/store/etcd/client/client.h"

/* A node of this process and the lease of its heartbeat key. */
struct lease {
    struct tether__list node;
    int64_t id;
    char name[];
};

struct etcd_backend {
    /* immutable */
    struct tether__etcd *etcd;
    char *state_key;
    char *beat_prefix, *beat_end; /* the range of the keys of all heartbeats */
    /* under mu */
    struct tether__list leases;
    pthread_mutex_t mu;
};

static int64_t deadline_of(int timeout_ms)
{
    return tether__deadline_in(&tether__clock_system, timeout_ms);
}

/* ---- The state ------------------------------------------------------------------------------ */

static tether_status hand_out(struct tether__etcd_value *value,
                              tether_buf *ret_state,
                              tether_buf *ret_token,
                              tether_error *reterr)
{
    if (value->mod_revision == 0) {
        tether_buf_fini(ret_state);
        tether_buf_fini(ret_token);
        return TETHER_OK;
    }
    tether_bytes token = tether_bytes_of(&value->mod_revision, sizeof value->mod_revision);
    if (tether_buf_assign(ret_token, token) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a rendezvous state");
    tether_buf_fini(ret_state);
    *ret_state = value->bytes;
    value->bytes = TETHER_BUF_INIT;
    return TETHER_OK;
}

static tether_status get_state(void *impl,
                               int timeout_ms,
                               tether_buf *ret_state,
                               tether_buf *ret_token,
                               tether_error *reterr)
{
    struct etcd_backend *backend = impl;
    struct tether__etcd_value value = TETHER__ETCD_VALUE_INIT;
    tether_status st = tether__etcd_get(backend->etcd, tether_bytes_str(backend->state_key),
                                        deadline_of(timeout_ms), &value, NULL, reterr);
    if (st == TETHER_OK && value.mod_revision == 0)
        st = TETHER_ENOTFOUND;
    if (st == TETHER_OK)
        st = hand_out(&value, ret_state, ret_token, reterr);
    tether_buf_fini(&value.bytes);
    return st;
}

static tether_status set_state(void *impl,
                               tether_bytes state,
                               tether_bytes token,
                               int timeout_ms,
                               bool *ret_has_set,
                               tether_buf *ret_state,
                               tether_buf *ret_token,
                               tether_error *reterr)
{
    struct etcd_backend *backend = impl;
    struct tether__etcd_value current = TETHER__ETCD_VALUE_INIT;
    if (token.len == sizeof current.mod_revision)
        memcpy(&current.mod_revision, token.data, token.len);
    else if (token.len != 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a token of %zu bytes does not come from the etcd backend",
                                token.len);
    tether_status st = tether__etcd_compare_put(backend->etcd, tether_bytes_str(backend->state_key),
                                                state, (tether_bytes){0}, deadline_of(timeout_ms),
                                                &current, ret_has_set, reterr);
    if (st == TETHER_OK)
        st = hand_out(&current, ret_state, ret_token, reterr);
    tether_buf_fini(&current.bytes);
    return st;
}

/* ---- Heartbeats ----------------------------------------------------------------------------- */

static struct lease *find_lease_locked(struct etcd_backend *backend, const char *name)
{
    TETHER__LIST_FOR_EACH(it, &backend->leases) {
        struct lease *lease = tether__list_entry(it, struct lease, node);
        if (strcmp(lease->name, name) == 0)
            return lease;
    }
    return NULL;
}

static int64_t lease_of(struct etcd_backend *backend, const char *name)
{
    pthread_mutex_lock(&backend->mu);
    const struct lease *lease = find_lease_locked(backend, name);
    int64_t id = lease ? lease->id : 0;
    pthread_mutex_unlock(&backend->mu);
    return id;
}

/* Remembers the lease of a node. Only one thread at a time sends heartbeats of a node. */
static tether_status keep_lease(struct etcd_backend *backend, const char *name, int64_t id)
{
    pthread_mutex_lock(&backend->mu);
    struct lease *lease = find_lease_locked(backend, name);
    if (!lease) {
        lease = tether__calloc(1, sizeof *lease + strlen(name) + 1);
        if (lease) {
            strcpy(lease->name, name);
            tether__list_push_back(&backend->leases, &lease->node);
        }
    }
    if (lease)
        lease->id = id;
    pthread_mutex_unlock(&backend->mu);
    return lease ? TETHER_OK : TETHER_ENOMEM;
}

/* Keeps the lease of the node alive for `ttl_ms` from now; makes a new one if it has expired. */
static tether_status renew_lease(struct etcd_backend *backend,
                                 const char *name,
                                 int64_t ttl_ms,
                                 int64_t deadline,
                                 int64_t *ret_id,
                                 tether_error *reterr)
{
    int64_t id = lease_of(backend, name);
    tether_status st = TETHER_ENOTFOUND;
    if (id != 0)
        st = tether__etcd_lease_keepalive(backend->etcd, id, deadline, reterr);
    if (st == TETHER_ENOTFOUND) {
        /* etcd counts in seconds. Grants twice the time, so that observers decide first that a
         * node is dead. */
        st = tether__etcd_lease_grant(backend->etcd, 2 * (ttl_ms + 999) / 1000, deadline, &id,
                                      reterr);
        if (st == TETHER_OK && keep_lease(backend, name, id) != TETHER_OK)
            st = tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a heartbeat");
    }
    if (st == TETHER_OK)
        *ret_id = id;
    return st;
}

static tether_status beat(void *impl,
                          const char *node,
                          uint64_t count,
                          int64_t ttl_ms,
                          int timeout_ms,
                          tether_error *reterr)
{
    struct etcd_backend *backend = impl;
    int64_t deadline = deadline_of(timeout_ms), id;
    tether_status st = renew_lease(backend, node, ttl_ms, deadline, &id, reterr);
    if (st != TETHER_OK)
        return st;
    char value[24];
    snprintf(value, sizeof value, "%" PRIu64, count);
    char *key = tether__asprintf("%s%s", backend->beat_prefix, node);
    if (!key)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a heartbeat");
    st = tether__etcd_put(backend->etcd, tether_bytes_str(key), tether_bytes_str(value), id,
                          deadline, reterr);
    tether__free(key);
    return st;
}

/* Finds the heartbeat `name` in the answer of etcd, which is sorted by key. */
static const Mvccpb__KeyValue *find(const Etcdserverpb__RangeResponse *all,
                                    size_t prefix,
                                    tether_bytes name)
{
    size_t low = 0, high = all->n_kvs;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const ProtobufCBinaryData *key = &all->kvs[middle]->key;
        size_t len = key->len - prefix;
        int order = memcmp(key->data + prefix, name.data, len < name.len ? len : name.len);
        if (order == 0)
            order = (len > name.len) - (len < name.len);
        if (order == 0)
            return all->kvs[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static uint64_t parse(const ProtobufCBinaryData *value)
{
    char text[24];
    size_t len = value->len < sizeof text ? value->len : sizeof text - 1;
    memcpy(text, value->data, len);
    text[len] = '\0';
    return strtoull(text, NULL, 10);
}

/* Reads all heartbeats in one request. */
static tether_status read_beats(void *impl,
                                const char *const *nodes,
                                size_t n,
                                int timeout_ms,
                                uint64_t *ret_counts,
                                tether_error *reterr)
{
    struct etcd_backend *backend = impl;
    struct tether__etcd_op range = {
        .kind = TETHER__ETCD_RANGE,
        .key = tether_bytes_str(backend->beat_prefix),
        .end = tether_bytes_str(backend->beat_end),
    };
    Etcdserverpb__TxnResponse *reply = NULL;
    tether_status st =
        tether__etcd_read(backend->etcd, &range, 1, deadline_of(timeout_ms), &reply, reterr);
    if (st != TETHER_OK)
        return st;
    const Etcdserverpb__RangeResponse *all = reply->responses[0]->response_range;
    size_t prefix = strlen(backend->beat_prefix);
    for (size_t i = 0; i < n; i++) {
        const Mvccpb__KeyValue *found = find(all, prefix, tether_bytes_str(nodes[i]));
        ret_counts[i] = found ? parse(&found->value) : 0;
    }
    tether__pb_free(reply);
    return TETHER_OK;
}

/* ---- New and destroy ------------------------------------------------------------------------ */

static void destroy(void *impl)
{
    struct etcd_backend *backend = impl;
    TETHER__LIST_FOR_EACH(it, &backend->leases) {
        /* The lease is not revoked. So other nodes see heartbeats stop as after a crash, unless
         * the node has left the group. */
        tether__list_remove(it);
        tether__free(tether__list_entry(it, struct lease, node));
    }
    tether__etcd_free(backend->etcd);
    pthread_mutex_destroy(&backend->mu);
    tether__free(backend->beat_end);
    tether__free(backend->beat_prefix);
    tether__free(backend->state_key);
    tether__free(backend);
}

tether_status tether_rdzv_backend_etcd_new(const struct tether_store_etcd_opts *opts,
                                           const char *run_id,
                                           tether_rdzv_backend **ret_backend,
                                           tether_error *reterr)
{
    static const struct tether_rdzv_backend_ops ops = {
        .size = sizeof ops,
        .get_state = get_state,
        .set_state = set_state,
        .destroy = destroy,
        .beat = beat,
        .read_beats = read_beats,
    };
    if (!opts || opts->size != sizeof *opts)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the options of an etcd backend have to be made with "
                                "TETHER_STORE_ETCD_OPTS");
    struct etcd_backend *backend = tether__calloc(1, sizeof *backend);
    if (!backend)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for an etcd backend");
    tether__list_init(&backend->leases);
    pthread_mutex_init(&backend->mu, NULL);
    int timeout_ms = opts->timeout_ms ? opts->timeout_ms : TETHER_STORE_DEFAULT_TIMEOUT_MS;
    tether_status st = tether__etcd_new(opts, deadline_of(timeout_ms), &backend->etcd, reterr);
    if (st != TETHER_OK) {
        tether_error_wrap(reterr, st, "etcd backend");
        goto undo_backend;
    }
    const char *prefix = tether__etcd_prefix(backend->etcd);
    backend->state_key = tether__asprintf("%srendezvous/%s/state", prefix, run_id);
    backend->beat_prefix = tether__asprintf("%srendezvous/%s/beat/", prefix, run_id);
    /* the end of the range: '0' is the character after '/' */
    backend->beat_end = tether__asprintf("%srendezvous/%s/beat0", prefix, run_id);
    if (!backend->state_key || !backend->beat_prefix || !backend->beat_end) {
        st = tether_error_set(reterr, TETHER_ENOMEM, "out of memory for an etcd backend");
        goto undo_backend;
    }
    st = tether_rdzv_backend_new(&ops, backend, "etcd", ret_backend, reterr);
    if (st == TETHER_OK)
        return TETHER_OK;

undo_backend:
    destroy(backend);
    return st;
}
