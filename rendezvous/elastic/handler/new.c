/* Makes and frees a handler. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/threads/cond.h"
#include "rendezvous/elastic/handler/internal.h"

static void init_locks(tether_rdzv *rdzv)
{
    tether__cond_init(&rdzv->stop_cond);
    pthread_mutex_init(&rdzv->mu, NULL);
    pthread_mutex_init(&rdzv->lifecycle, NULL);
    pthread_mutex_init(&rdzv->stop_mu, NULL);
}

static void destroy(tether_rdzv *rdzv)
{
    if (rdzv->has_member)
        tether__rdzv_member_holder_fini(&rdzv->member);
    tether_rdzv_backend_release(rdzv->backend);
    tether_store_release(rdzv->run_store);
    tether_store_release(rdzv->server);
    tether_store_release(rdzv->store);
    pthread_mutex_destroy(&rdzv->stop_mu);
    pthread_mutex_destroy(&rdzv->lifecycle);
    pthread_mutex_destroy(&rdzv->mu);
    pthread_cond_destroy(&rdzv->stop_cond);
    tether__free((char *)rdzv->self.node.addr);
    tether__free((char *)rdzv->settings.run_id);
    tether__free((char *)rdzv->settings.local_addr);
    tether__free(rdzv->backend_name);
    tether__free(rdzv);
}

tether_rdzv *tether_rdzv_retain(tether_rdzv *rdzv)
{
    atomic_fetch_add_explicit(&rdzv->refs, 1, memory_order_relaxed);
    return rdzv;
}

tether_rdzv *tether_rdzv_release(tether_rdzv *rdzv)
{
    if (rdzv && atomic_fetch_sub_explicit(&rdzv->refs, 1, memory_order_acq_rel) == 1) {
        tether__rdzv_stop_heartbeats(rdzv);
        destroy(rdzv);
    }
    return NULL;
}

static bool share_is_disabled(const struct tether_rdzv_settings *settings)
{
    const char *disabled = getenv("TETHER_DISABLE_SHARED_STORE");
    return settings->own_store || (disabled && strcmp(disabled, "1") == 0);
}

tether_status tether__rdzv_new_with(const struct tether_rdzv_settings *settings,
                                    const struct tether__rdzv_node *node,
                                    const char *backend_name,
                                    tether_store *store,
                                    struct tether__rdzv_holder *holder,
                                    const struct tether__rdzv_env *env,
                                    const struct tether__rdzv_bootstrap_ops *bootstrap,
                                    tether_rdzv **ret_rdzv,
                                    tether_error *reterr)
{
    tether_status st = tether_rdzv_settings_check(settings, reterr);
    if (st != TETHER_OK)
        return st;
    tether_rdzv *rdzv = tether__calloc(1, sizeof *rdzv);
    if (!rdzv)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a rendezvous handler");
    init_locks(rdzv);
    atomic_init(&rdzv->refs, 1);
    rdzv->settings = *settings;
    rdzv->settings.run_id = tether__strdup(settings->run_id);
    rdzv->settings.local_addr = tether__strdup(node->addr);
    rdzv->backend_name = tether__strdup(backend_name);
    rdzv->self = (struct tether__rdzv_self){*node, settings->rank_hint, -1, 0};
    rdzv->self.node.addr = tether__strdup(node->addr);
    rdzv->store = tether_store_retain(store);
    rdzv->holder = holder;
    rdzv->env = env;
    rdzv->bootstrap = bootstrap;
    rdzv->share = !share_is_disabled(settings);
    rdzv->rank = -1;
    if (!rdzv->settings.run_id || !rdzv->settings.local_addr || !rdzv->backend_name ||
        !rdzv->self.node.addr) {
        destroy(rdzv);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a rendezvous handler");
    }
    tether__rdzv_node_format(&rdzv->self.node, rdzv->node_text);
    *ret_rdzv = rdzv;
    return TETHER_OK;
}

/* Makes the member that serves as the handler's holder. */
static tether_status add_member(tether_rdzv *rdzv,
                                tether_rdzv_backend *backend,
                                tether_error *reterr)
{
    char *prefix = tether__asprintf("tether.rendezvous.%s", rdzv->settings.run_id);
    if (!prefix)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a rendezvous handler");
    tether_status st = tether_store_prefix_new(prefix, rdzv->store, &rdzv->run_store, reterr);
    tether__free(prefix);
    if (st != TETHER_OK)
        return st;
    tether__rdzv_member_holder_init(&rdzv->member, &rdzv->self, &rdzv->settings, rdzv->run_store,
                                    backend, rdzv->env);
    rdzv->backend = tether_rdzv_backend_retain(backend);
    rdzv->has_member = true;
    rdzv->holder = &rdzv->member.base;
    return TETHER_OK;
}

static tether_status new_on_backend(const struct tether_rdzv_settings *settings,
                                    tether_store *store,
                                    tether_rdzv_backend *backend,
                                    const struct tether__rdzv_env *env,
                                    const struct tether__rdzv_bootstrap_ops *bootstrap,
                                    tether_rdzv **ret_rdzv,
                                    tether_error *reterr)
{
    static struct tether__rdzv_node_generator generator;
    struct tether__rdzv_node node;
    tether_status st = tether__rdzv_node_generate(&generator, settings->local_addr, &node, reterr);
    if (st != TETHER_OK)
        return st;
    tether_rdzv *rdzv = NULL;
    st = tether__rdzv_new_with(settings, &node, tether_rdzv_backend_name(backend), store, NULL, env,
                               bootstrap, &rdzv, reterr);
    tether__free((char *)node.addr);
    if (st == TETHER_OK)
        st = add_member(rdzv, backend, reterr);
    if (st != TETHER_OK) {
        tether_rdzv_release(rdzv);
        return st;
    }
    *ret_rdzv = rdzv;
    return TETHER_OK;
}

/* Reports a failure of tether_rdzv_new() to the event hook; there is no handler yet. */
static void report_failure(const struct tether_rdzv_settings *settings,
                           tether_status status,
                           const char *message)
{
    if (settings->size != sizeof *settings || !settings->on_event)
        return;
    struct tether_rdzv_event event = {
        .kind = TETHER_RDZV_FAILED,
        .name = "new",
        .message = message,
        .status = status,
        .run_id = settings->run_id ? settings->run_id : "",
        .node = "",
        .rank = -1,
        .min_nodes = settings->min_nodes,
        .max_nodes = settings->max_nodes,
        .last_call_left_ms = -1,
        .deadline_left_ms = -1,
    };
    settings->on_event(settings->on_event_userdata, &event);
}

tether_status tether__rdzv_new_in(const struct tether_rdzv_settings *settings,
                                  tether_store *store,
                                  tether_rdzv_backend *backend,
                                  const struct tether__rdzv_env *env,
                                  const struct tether__rdzv_bootstrap_ops *bootstrap,
                                  tether_rdzv **ret_rdzv,
                                  tether_error *reterr)
{
    tether_error err;
    tether_rdzv_backend *own = NULL;
    tether_status st = tether_rdzv_settings_check(settings, &err);
    if (st == TETHER_OK && !backend)
        st = tether_rdzv_backend_store_new(store, settings->run_id, &own, &err);
    if (st == TETHER_OK)
        st = new_on_backend(settings, store, backend ? backend : own, env, bootstrap, ret_rdzv,
                            &err);
    tether_rdzv_backend_release(own);
    if (st != TETHER_OK) {
        report_failure(settings, st, err.message);
        if (reterr)
            *reterr = err;
        return st;
    }
    tether_rdzv *rdzv = *ret_rdzv;
    pthread_mutex_lock(&rdzv->mu);
    tether__rdzv_event_locked(rdzv, TETHER_RDZV_INIT, "new", TETHER__NEVER, TETHER_OK,
                              "%s meets others at rendezvous '%s' on %s", rdzv->node_text,
                              settings->run_id, tether_store_describe(store));
    pthread_mutex_unlock(&rdzv->mu);
    return TETHER_OK;
}

tether_status tether_rdzv_new(const struct tether_rdzv_settings *settings,
                              tether_store *store,
                              tether_rdzv_backend *backend,
                              tether_rdzv **ret_rdzv,
                              tether_error *reterr)
{
    return tether__rdzv_new_in(settings, store, backend, &tether__rdzv_env_system,
                               &tether__rdzv_bootstrap_tcp, ret_rdzv, reterr);
}
