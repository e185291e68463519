/* Backends: reference counts, names, and calls of their functions. */
#include "rendezvous/elastic/backend/backend.h"

#include "base/alloc.h"
#include "rendezvous/elastic/backend/internal.h"

tether_status tether_rdzv_backend_new(const struct tether_rdzv_backend_ops *ops,
                                      void *impl,
                                      const char *name,
                                      tether_rdzv_backend **ret_backend,
                                      tether_error *reterr)
{
    if (!ops || ops->size != sizeof *ops || !name || !ops->get_state || !ops->set_state ||
        !ops->destroy)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a rendezvous backend needs a name, its size, get_state, set_state "
                                "and destroy");
    if (!ops->beat != !ops->read_beats)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the rendezvous backend '%s' must have both beat and read_beats, "
                                "or neither",
                                name);
    tether_rdzv_backend *backend = tether__calloc(1, sizeof *backend);
    if (backend)
        backend->name = tether__strdup(name);
    if (!backend || !backend->name) {
        tether__free(backend);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a rendezvous backend");
    }
    atomic_init(&backend->refs, 1);
    backend->ops = *ops;
    backend->impl = impl;
    *ret_backend = backend;
    return TETHER_OK;
}

tether_rdzv_backend *tether_rdzv_backend_retain(tether_rdzv_backend *backend)
{
    atomic_fetch_add_explicit(&backend->refs, 1, memory_order_relaxed);
    return backend;
}

tether_rdzv_backend *tether_rdzv_backend_release(tether_rdzv_backend *backend)
{
    if (backend && atomic_fetch_sub_explicit(&backend->refs, 1, memory_order_acq_rel) == 1) {
        backend->ops.destroy(backend->impl);
        tether__free(backend->name);
        tether__free(backend);
    }
    return NULL;
}

const char *tether_rdzv_backend_name(const tether_rdzv_backend *backend)
{
    return backend->name;
}

tether_status tether_rdzv_backend_get_state(tether_rdzv_backend *backend,
                                            int timeout_ms,
                                            tether_buf *ret_state,
                                            tether_buf *ret_token,
                                            tether_error *reterr)
{
    return backend->ops.get_state(backend->impl, timeout_ms, ret_state, ret_token, reterr);
}

tether_status tether_rdzv_backend_set_state(tether_rdzv_backend *backend,
                                            tether_bytes state,
                                            tether_bytes token,
                                            int timeout_ms,
                                            bool *ret_has_set,
                                            tether_buf *ret_state,
                                            tether_buf *ret_token,
                                            tether_error *reterr)
{
    return backend->ops.set_state(backend->impl, state, token, timeout_ms, ret_has_set, ret_state,
                                  ret_token, reterr);
}
