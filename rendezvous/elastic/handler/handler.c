/* The handler: runs ops, and has the calls that show the group, close it or leave it. new.c makes
 * and frees it, next.c has next(), keep_alive.c the keep-alive thread.
 */
#include "rendezvous/elastic/handler/handler.h"

#include "rendezvous/elastic/handler/internal.h"

#define CACHE_NS TETHER__NS_PER_S
#define LEAVE_NS TETHER__NS_PER_S /* time for a node to leave, even after its deadline */

/* ---- Running ops ---------------------------------------------------------------------------- */

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
    rdzv->synced = true;
    rdzv->synced_at = context->now;
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

static int64_t close_deadline(const tether_rdzv *rdzv)
{
    return tether__rdzv_now(rdzv->env) + rdzv->settings.timeouts.close_ms * TETHER__NS_PER_MS;
}

/* Syncs the holder, unless the last sync is younger than a second. */
static tether_status refresh_locked(tether_rdzv *rdzv, tether_error *reterr)
{
    if (rdzv->synced && tether__rdzv_now(rdzv->env) - rdzv->synced_at < CACHE_NS)
        return TETHER_OK;
    enum tether__rdzv_sync sync;
    tether_status st = rdzv->holder->ops->sync(rdzv->holder, close_deadline(rdzv), &sync, reterr);
    if (st != TETHER_OK)
        return st;
    rdzv->synced = true;
    rdzv->synced_at = tether__rdzv_now(rdzv->env);
    return TETHER_OK;
}

/* Leaves the lists and the leadership. A node outside of a round has no keep-alive thread, so it
 * can't lead. */
static void withdraw(tether_rdzv *rdzv, int64_t deadline)
{
    int64_t soonest = tether__rdzv_now(rdzv->env) + LEAVE_NS;
    pthread_mutex_lock(&rdzv->mu);
    if (rdzv->has_member)
        tether__rdzv_member_holder_withdraw(&rdzv->member, deadline > soonest ? deadline : soonest);
    rdzv->joined = rdzv->synced = false;
    pthread_mutex_unlock(&rdzv->mu);
}

/* ---- Looking and closing -------------------------------------------------------------------- */

static tether_status look(tether_rdzv *rdzv,
                          const char *name,
                          struct tether_rdzv_members *ret_members,
                          tether_error *reterr)
{
    tether_error err;
    pthread_mutex_lock(&rdzv->mu);
    tether_status st = refresh_locked(rdzv, &err);
    if (st == TETHER_OK)
        tether__rdzv_members_locked(rdzv, ret_members);
    pthread_mutex_unlock(&rdzv->mu);
    return st == TETHER_OK ? st : tether__rdzv_failed(rdzv, name, st, &err, reterr);
}

tether_status tether_rdzv_members(tether_rdzv *rdzv,
                                  struct tether_rdzv_members *ret_members,
                                  tether_error *reterr)
{
    return look(rdzv, "members", ret_members, reterr);
}

tether_status tether_rdzv_num_nodes_waiting(tether_rdzv *rdzv, int *ret_count, tether_error *reterr)
{
    struct tether_rdzv_members members;
    tether_status st = look(rdzv, "num_nodes_waiting", &members, reterr);
    if (st == TETHER_OK)
        *ret_count = members.waiting;
    return st;
}

tether_status tether_rdzv_is_closed(tether_rdzv *rdzv, bool *ret_closed, tether_error *reterr)
{
    struct tether_rdzv_members members;
    tether_status st = look(rdzv, "is_closed", &members, reterr);
    if (st == TETHER_OK)
        *ret_closed = members.closed;
    return st;
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

/* ---- Accessors ------------------------------------------------------------------------------ */

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
