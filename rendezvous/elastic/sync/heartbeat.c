/* Heartbeats in the backend or in the store. */
#include "rendezvous/elastic/sync/heartbeat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/elastic/backend/internal.h"

#define KEY_SIZE (TETHER__RDZV_NODE_TEXT + 8)
#define BATCH 1024         /* at most so many keys in one request */
#define BATCH_READ_MS 1000 /* timeout of a batch; after it the keys are read one by one */

static const char *beat_key(const char *node, char key[KEY_SIZE])
{
    snprintf(key, KEY_SIZE, "beat/%s", node);
    return key;
}

tether_status tether__rdzv_heartbeat_send(const struct tether__rdzv_heartbeats *heartbeats,
                                          const struct tether__rdzv_node *node,
                                          uint64_t count,
                                          int timeout_ms,
                                          tether_error *reterr)
{
    char text[TETHER__RDZV_NODE_TEXT], key[KEY_SIZE], value[24];
    const tether_rdzv_backend *backend = heartbeats->backend;
    tether__rdzv_node_format(node, text);
    if (backend->ops.beat)
        return backend->ops.beat(backend->impl, text, count, heartbeats->ttl_ms, timeout_ms,
                                 reterr);
    snprintf(value, sizeof value, "%" PRIu64, count);
    return tether_store_set(heartbeats->store, beat_key(text, key), tether_bytes_str(value),
                            timeout_ms, reterr);
}

static uint64_t parse(const tether_buf *value)
{
    return value->len ? strtoull(value->data, NULL, 10) : 0;
}

/* Reads key by key, for the rare case that some do not exist. */
static tether_status read_singly(tether_store *store,
                                 const char *const *keys,
                                 size_t n,
                                 int timeout_ms,
                                 uint64_t *ret_counts,
                                 tether_error *reterr)
{
    tether_status st = TETHER_OK;
    for (size_t i = 0; i < n && st == TETHER_OK; i++) {
        tether_buf value = TETHER_BUF_INIT;
        st = tether_store_try_get(store, keys[i], timeout_ms, &value, reterr);
        if (st == TETHER_OK || st == TETHER_ENOTFOUND) {
            ret_counts[i] = parse(&value);
            st = TETHER_OK;
        }
        tether_buf_fini(&value);
    }
    return st;
}

static tether_status read_batch(tether_store *store,
                                const char *const *keys,
                                size_t n,
                                int timeout_ms,
                                uint64_t *ret_counts,
                                tether_error *reterr)
{
    tether_buf *values = tether__calloc(n, sizeof *values);
    if (!values)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for %zu heartbeats", n);
    int batch_ms = timeout_ms < 0 || timeout_ms > BATCH_READ_MS ? BATCH_READ_MS : timeout_ms;
    tether_status st = tether_store_multi_get(store, keys, n, batch_ms, values, reterr);
    for (size_t i = 0; i < n; i++) {
        if (st == TETHER_OK)
            ret_counts[i] = parse(&values[i]);
        tether_buf_fini(&values[i]);
    }
    tether__free(values);
    /* multi_get() waits for keys that do not exist, so after its timeout read the keys one by one.
     */
    if (st == TETHER_ETIMEOUT && (timeout_ms < 0 || batch_ms < timeout_ms))
        return read_singly(store, keys, n, timeout_ms, ret_counts, reterr);
    return st;
}

tether_status tether__rdzv_heartbeat_read(const struct tether__rdzv_heartbeats *heartbeats,
                                          const struct tether__rdzv_roster *roster,
                                          int timeout_ms,
                                          uint64_t *ret_counts,
                                          tether_error *reterr)
{
    const tether_rdzv_backend *backend = heartbeats->backend;
    bool own = backend->ops.read_beats != NULL;
    size_t batch = roster->n < BATCH ? roster->n : BATCH;
    if (batch == 0)
        return TETHER_OK;
    char(*texts)[KEY_SIZE] = tether__calloc(batch, sizeof *texts);
    const char **keys = tether__calloc(batch, sizeof *keys);
    tether_status st = TETHER_OK;
    if (!texts || !keys)
        st = tether_error_set(reterr, TETHER_ENOMEM, "out of memory for %zu heartbeats", batch);
    for (size_t at = 0; at < roster->n && st == TETHER_OK; at += batch) {
        size_t n = roster->n - at < batch ? roster->n - at : batch;
        for (size_t i = 0; i < n; i++) {
            char text[TETHER__RDZV_NODE_TEXT];
            tether__rdzv_node_format(&roster->members[at + i]->node, text);
            keys[i] = own ? strcpy(texts[i], text) : beat_key(text, texts[i]);
        }
        st = own ? backend->ops.read_beats(backend->impl, keys, n, timeout_ms, ret_counts + at,
                                           reterr)
                 : read_batch(heartbeats->store, keys, n, timeout_ms, ret_counts + at, reterr);
    }
    tether__free(keys);
    tether__free(texts);
    return st;
}

void tether__rdzv_heartbeat_delete(const struct tether__rdzv_heartbeats *heartbeats,
                                   const char *node,
                                   int timeout_ms)
{
    char key[KEY_SIZE];
    if (!heartbeats->backend->ops.beat)
        tether_store_delete(heartbeats->store, beat_key(node, key), timeout_ms, NULL, NULL);
}
