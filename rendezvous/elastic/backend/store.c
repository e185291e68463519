/* The backend on a tether_store: the state is the value of one key, and stands for itself as its
 * token.
 *
 * A store's compare_set takes an absent key for an empty value, so an empty token creates the key.
 * If the key was deleted meanwhile, `swapped` is false and a read finds no value: the caller
 * starts anew.
 */
#include "base/alloc.h"
#include "rendezvous/elastic/backend/backend.h"

struct store_backend {
    tether_store *store;
    char *key;
};

static tether_status get_state(void *impl,
                               int timeout_ms,
                               tether_buf *ret_state,
                               tether_buf *ret_token,
                               tether_error *reterr)
{
    struct store_backend *backend = impl;
    tether_status st =
        tether_store_try_get(backend->store, backend->key, timeout_ms, ret_state, reterr);
    if (st != TETHER_OK)
        return st;
    if (tether_buf_assign(ret_token, tether_buf_bytes(ret_state)) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a rendezvous state");
    return TETHER_OK;
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
    struct store_backend *backend = impl;
    bool swapped = false;
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_compare_set(backend->store, backend->key, token, state,
                                                timeout_ms, &swapped, &value, reterr);
    if (st != TETHER_OK)
        goto undo_value;
    /* compare_set() of an absent key returns the expected value; read the real one. */
    if (!swapped && tether_bytes_equal(tether_buf_bytes(&value), token)) {
        st = tether_store_try_get(backend->store, backend->key, timeout_ms, &value, reterr);
        if (st == TETHER_ENOTFOUND) {
            tether_buf_fini(&value);
            *ret_has_set = false;
            tether_buf_fini(ret_state);
            tether_buf_fini(ret_token);
            return TETHER_OK;
        }
        if (st != TETHER_OK)
            goto undo_value;
    }
    if (tether_buf_assign(ret_token, tether_buf_bytes(&value)) != TETHER_OK) {
        st = tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a rendezvous state");
        goto undo_value;
    }
    tether_buf_fini(ret_state);
    *ret_state = value;
    *ret_has_set = swapped;
    return TETHER_OK;

undo_value:
    tether_buf_fini(&value);
    return st;
}

static void destroy(void *impl)
{
    struct store_backend *backend = impl;
    tether_store_release(backend->store);
    tether__free(backend->key);
    tether__free(backend);
}

tether_status tether_rdzv_backend_store_new(tether_store *store,
                                            const char *run_id,
                                            tether_rdzv_backend **ret_backend,
                                            tether_error *reterr)
{
    static const struct tether_rdzv_backend_ops ops = {
        .size = sizeof ops,
        .get_state = get_state,
        .set_state = set_state,
        .destroy = destroy,
    };
    struct store_backend *backend = tether__calloc(1, sizeof *backend);
    if (backend)
        backend->key = tether__asprintf("tether.rendezvous.%s", run_id);
    if (!backend || !backend->key) {
        tether__free(backend);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a rendezvous backend");
    }
    backend->store = tether_store_retain(store);
    tether_status st = tether_rdzv_backend_new(&ops, backend, "store", ret_backend, reterr);
    if (st != TETHER_OK)
        destroy(backend);
    return st;
}
