/* The handler: life cycle, and the calls that look or close. next() is in next.c, the keep-alive
 * thread in keep_alive.c.
 */
#include "rendezvous/dynamic/handler.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/dynamic/handler_internal.h"

#define CACHE_NS TETHER__NS_PER_S
#define GOODBYE_NS TETHER__NS_PER_S /* for a node that goes to say so, beyond its deadline */

/* ---- Running ops ------------------------------------------------------------------------------
 */

struct step {
    tether_rdzv *rdzv;
    const char *name;
};

static void on_step(void *userdata,
                    const struct tether__rdzv_context *context,
                    enum tether__rdzv_action action,
                    int64_t deadline)
{
    struct step *step = userdata;
    tether_rdzv *rdzv = step->rdzv;
    rdzv->looked = true;
    rdzv->looked_at = context->now;
    if (action == TETHER__RDZV_FINISH)
        return;
    tether__rdzv_event_locked(rdzv, TETHER_RDZV_RUNNING, step->name, deadline, TETHER_OK, "%s %s",
                              rdzv->node_text, tether__rdzv_action_text(action));
}

tether_status tether__rdzv_run(tether_rdzv *rdzv,
                               const char *name,
                               tether__rdzv_op *op,
                               int64_t deadline,
                               bool cancelable,
                               tether_error *reterr)
{
    struct step step = {rdzv, name};
    struct tether__rdzv_executor executor = {
        .self = &rdzv->self,
        .holder = rdzv->holder,
        .settings = &rdzv->settings,
        .env = rdzv->env,
        .mu = &rdzv->mu,
        .cancel = cancelable ? &rdzv->canceled : NULL,
        .on_step = on_step,
        .userdata = &step,
    };
    return tether__rdzv_execute(&executor, op, deadline, reterr);
}

/* Brings the holder in step, unless it was a moment ago. */
static tether_status look_locked(tether_rdzv *rdzv, tether_error *reterr)
{
    int64_t now = tether__rdzv_now(rdzv->env);
    if (rdzv->looked && now - rdzv->looked_at < CACHE_NS)
        return TETHER_OK;
    enum tether__rdzv_sync sync;
    tether_status st = rdzv->holder->ops->sync(
        rdzv->holder, now + rdzv->settings.timeouts.close_ms * TETHER__NS_PER_MS, &sync, reterr);
    if (st != TETHER_OK)
        return st;
    rdzv->looked = true;
    rdzv->looked_at = tether__rdzv_now(rdzv->env);
    return TETHER_OK;
}

/* A node that is in no round must not lead: no thread of its would do it. */
static void withdraw(tether_rdzv *rdzv, int64_t deadline)
{
    int64_t soonest = tether__rdzv_now(rdzv->env) + GOODBYE_NS;
    pthread_mutex_lock(&rdzv->mu);
    if (rdzv->has_member)
        tether__rdzv_member_holder_withdraw(&rdzv->member, deadline > soonest ? deadline : soonest);
    rdzv->joined = rdzv->looked = false;
    pthread_mutex_unlock(&rdzv->mu);
}

/* ---- Looking and closing ----------------------------------------------------------------------
 */

tether_status tether_rdzv_members(tether_rdzv *rdzv,
                                  struct tether_rdzv_members *ret_members,
                                  tether_error *reterr)
{
    tether_error err;
    pthread_mutex_lock(&rdzv->mu);
    tether_status st = look_locked(rdzv, &err);
    if (st == TETHER_OK)
        tether__rdzv_members_locked(rdzv, ret_members);
    pthread_mutex_unlock(&rdzv->mu);
    return st == TETHER_OK ? st : tether__rdzv_failed(rdzv, "members", st, &err, reterr);
}

tether_status tether_rdzv_num_nodes_waiting(tether_rdzv *rdzv, int *ret_count, tether_error *reterr)
{
    tether_error err;
    pthread_mutex_lock(&rdzv->mu);
    tether_status st = look_locked(rdzv, &err);
    if (st == TETHER_OK)
        *ret_count = (int)tether__rdzv_num_waiting(rdzv->holder->ops->state(rdzv->holder));
    pthread_mutex_unlock(&rdzv->mu);
    return st == TETHER_OK ? st : tether__rdzv_failed(rdzv, "num_nodes_waiting", st, &err, reterr);
}

tether_status tether_rdzv_is_closed(tether_rdzv *rdzv, bool *ret_closed, tether_error *reterr)
{
    tether_error err;
    pthread_mutex_lock(&rdzv->mu);
    tether_status st = look_locked(rdzv, &err);
    if (st == TETHER_OK)
        *ret_closed = rdzv->holder->ops->state(rdzv->holder)->closed;
    pthread_mutex_unlock(&rdzv->mu);
    return st == TETHER_OK ? st : tether__rdzv_failed(rdzv, "is_closed", st, &err, reterr);
}

static int64_t close_deadline(const tether_rdzv *rdzv)
{
    return tether__rdzv_now(rdzv->env) + rdzv->settings.timeouts.close_ms * TETHER__NS_PER_MS;
}

static bool idle(tether_rdzv *rdzv)
{
    pthread_mutex_lock(&rdzv->mu);
    bool result = !rdzv->joined && !rdzv->joining;
    pthread_mutex_unlock(&rdzv->mu);
    return result;
}

tether_status tether_rdzv_set_closed(tether_rdzv *rdzv, tether_error *reterr)
{
    tether_error err;
    int64_t deadline = close_deadline(rdzv);
    tether_status st =
        tether__rdzv_run(rdzv, "set_closed", tether__rdzv_close_op, deadline, false, &err);
    if (idle(rdzv))
        withdraw(rdzv, deadline);
    if (st != TETHER_OK)
        return tether__rdzv_failed(rdzv, "set_closed", st, &err, reterr);
    pthread_mutex_lock(&rdzv->mu);
    tether__rdzv_event_locked(rdzv, TETHER_RDZV_SUCCEEDED, "set_closed", deadline, TETHER_OK,
                              "%s has closed the rendezvous", rdzv->node_text);
    pthread_mutex_unlock(&rdzv->mu);
    return TETHER_OK;
}

tether_status tether_rdzv_leave(tether_rdzv *rdzv, tether_error *reterr)
{
    tether_error err;
    int64_t deadline = close_deadline(rdzv);
    tether__rdzv_stop_heartbeats(rdzv);
    tether_status st = tether__rdzv_run(rdzv, "leave", tether__rdzv_exit_op, deadline, false, &err);
    withdraw(rdzv, deadline);
    if (st != TETHER_OK)
        return tether__rdzv_failed(rdzv, "leave", st, &err, reterr);
    pthread_mutex_lock(&rdzv->mu);
    rdzv->server = tether_store_release(rdzv->server);
    tether__rdzv_event_locked(rdzv, TETHER_RDZV_SUCCEEDED, "leave", deadline, TETHER_OK,
                              "%s has left", rdzv->node_text);
    pthread_mutex_unlock(&rdzv->mu);
    return TETHER_OK;
}

tether_status tether_rdzv_shutdown(tether_rdzv *rdzv, tether_error *reterr)
{
    int64_t deadline = close_deadline(rdzv);
    tether__rdzv_stop_heartbeats(rdzv);
    tether_status st = tether_rdzv_set_closed(rdzv, reterr);
    withdraw(rdzv, deadline);
    pthread_mutex_lock(&rdzv->mu);
    rdzv->server = tether_store_release(rdzv->server);
    pthread_mutex_unlock(&rdzv->mu);
    return st;
}

void tether_rdzv_cancel(tether_rdzv *rdzv)
{
    atomic_store(&rdzv->canceled, true);
}

/* ---- What it was made with --------------------------------------------------------------------
 */

const char *tether_rdzv_get_backend(const tether_rdzv *rdzv)
{
    return rdzv->backend_name;
}

const char *tether_rdzv_get_run_id(const tether_rdzv *rdzv)
{
    return rdzv->settings.run_id;
}

const char *tether_rdzv_get_node(const tether_rdzv *rdzv)
{
    return rdzv->node_text;
}

const struct tether_rdzv_settings *tether_rdzv_get_settings(const tether_rdzv *rdzv)
{
    return &rdzv->settings;
}

bool tether_rdzv_use_agent_store(const tether_rdzv *rdzv)
{
    return rdzv->share;
}

/* ---- Life -------------------------------------------------------------------------------------
 */

static void init_locks(tether_rdzv *rdzv)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&rdzv->stop_cond, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&rdzv->mu, NULL);
    pthread_mutex_init(&rdzv->lifecycle, NULL);
    pthread_mutex_init(&rdzv->stop_mu, NULL);
}

static void destroy(tether_rdzv *rdzv)
{
    if (rdzv->has_member)
        tether__rdzv_member_holder_fini(&rdzv->member);
    tether_rdzv_backend_release(rdzv->backend);
    tether_store_release(rdzv->notes);
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
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a rendezvous handler");
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
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a rendezvous handler");
    }
    tether__rdzv_node_format(&rdzv->self.node, rdzv->node_text);
    *ret_rdzv = rdzv;
    return TETHER_OK;
}

/* Makes the member that the handler's holder is. */
static tether_status add_member(tether_rdzv *rdzv,
                                tether_rdzv_backend *backend,
                                tether_error *reterr)
{
    char *prefix = tether__asprintf("tether.rendezvous.%s", rdzv->settings.run_id);
    if (!prefix)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a rendezvous handler");
    tether_status st = tether_store_prefix_new(prefix, rdzv->store, &rdzv->notes, reterr);
    tether__free(prefix);
    if (st == TETHER_OK)
        st = tether__rdzv_member_holder_init(&rdzv->member, &rdzv->self, &rdzv->settings,
                                             rdzv->notes, backend, rdzv->env, reterr);
    if (st != TETHER_OK)
        return st;
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

/* There is no handler yet that could tell of it. */
static void tell_of_failure(const struct tether_rdzv_settings *settings,
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
        tell_of_failure(settings, st, err.message);
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
