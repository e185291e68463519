/* The full state and its backend. */
#include "rendezvous/elastic/sync/backend_holder.h"

#include <string.h>

#include "base/alloc.h"
#include "rendezvous/elastic/rules/codec.h"

static struct tether__rdzv_backend_holder *self(struct tether__rdzv_holder *holder)
{
    return tether__container_of(holder, struct tether__rdzv_backend_holder, base);
}

static int64_t interval_ns(const struct tether__rdzv_backend_holder *holder)
{
    return holder->settings->keep_alive_interval_ms * TETHER__NS_PER_MS;
}

/* Returns the time between two reads of heartbeats: half an interval, so a heartbeat is noticed at
 * most that late. */
static int64_t period_ns(const struct tether__rdzv_backend_holder *holder)
{
    return interval_ns(holder) / 2;
}

int64_t tether__rdzv_backend_holder_listens_at(const struct tether__rdzv_backend_holder *holder)
{
    if (!holder->heartbeats || holder->state.last_heartbeats.n == 0)
        return TETHER__NEVER;
    return holder->listened ? holder->listened_at + period_ns(holder) : INT64_MIN;
}

static size_t sanitize(struct tether__rdzv_backend_holder *holder, int64_t now)
{
    int64_t lifetime = interval_ns(holder) * holder->settings->keep_alive_max_attempts;
    return tether__rdzv_state_sanitize(&holder->state, now - lifetime,
                                       (size_t)holder->settings->min_nodes);
}

/* Counts at most two periods of the time since the last read. If this process was suspended, every
 * node would otherwise look dead after the resume. */
static void forgive_gap(struct tether__rdzv_backend_holder *holder, int64_t now)
{
    int64_t gap = now - holder->listened_at - 2 * period_ns(holder);
    if (!holder->listened || gap <= 0)
        return;
    for (size_t i = 0; i < holder->state.last_heartbeats.n; i++) {
        struct tether__rdzv_member *heard = holder->state.last_heartbeats.members[i];
        heard->heard_at = heard->heard_at + gap < now ? heard->heard_at + gap : now;
    }
}

tether_status tether__rdzv_backend_holder_listen(struct tether__rdzv_backend_holder *holder,
                                                 int64_t deadline,
                                                 size_t *ret_dead,
                                                 tether_error *reterr)
{
    int64_t now = tether__rdzv_now(holder->env);
    *ret_dead = 0;
    if (!holder->heartbeats) {
        *ret_dead = sanitize(holder, now);
        return TETHER_OK;
    }
    if (now < tether__rdzv_backend_holder_listens_at(holder))
        return TETHER_OK;
    struct tether__rdzv_roster *heartbeats = &holder->state.last_heartbeats;
    uint64_t *counts = tether__calloc(heartbeats->n, sizeof *counts);
    if (!counts)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for %zu heartbeats",
                                heartbeats->n);
    tether_status st = tether__rdzv_heartbeat_read(
        holder->heartbeats, heartbeats, tether__rdzv_io_ms(holder->env, deadline), counts, reterr);
    if (st == TETHER_OK) {
        now = tether__rdzv_now(holder->env);
        forgive_gap(holder, now);
        for (size_t i = 0; i < heartbeats->n; i++) {
            if (heartbeats->members[i]->beat == counts[i])
                continue;
            heartbeats->members[i]->beat = counts[i];
            heartbeats->members[i]->heard_at = now;
        }
        holder->listened = true;
        holder->listened_at = now;
        *ret_dead = sanitize(holder, now);
    }
    tether__free(counts);
    return st;
}

/* Moves the heartbeats of the nodes in `list` from the old state. A node without one counts as
 * heard now. */
static tether_status keep_heartbeats(struct tether__rdzv_state *state,
                                     struct tether__rdzv_state *old,
                                     const struct tether__rdzv_roster *list,
                                     int64_t now)
{
    tether_status st = TETHER_OK;
    for (size_t i = 0; i < list->n && st == TETHER_OK; i++) {
        st = tether__rdzv_roster_move(&state->last_heartbeats, &old->last_heartbeats,
                                      &list->members[i]->node);
        if (st == TETHER_ENOTFOUND)
            st = tether__rdzv_state_heard(state, &list->members[i]->node, now);
    }
    return st;
}

/* Replaces the state by `bytes` from the backend; no bytes mean an empty state. */
static tether_status adopt(struct tether__rdzv_backend_holder *holder,
                           tether_bytes bytes,
                           tether_error *reterr)
{
    struct tether__rdzv_state state, *old = &holder->state;
    int64_t now = tether__rdzv_now(holder->env);
    tether__rdzv_state_init(&state);
    if (bytes.len > 0) {
        tether_status st = tether__rdzv_state_decode(bytes, now, &state, reterr);
        if (st != TETHER_OK)
            return st;
    }
    tether_status st = keep_heartbeats(&state, old, &state.participants, now);
    if (st == TETHER_OK)
        st = keep_heartbeats(&state, old, &state.wait_list, now);
    if (st == TETHER_OK)
        st = keep_heartbeats(&state, old, &state.redundancy_list, now);
    if (st != TETHER_OK) {
        /* Heartbeats that were moved are missing in `old` then; their nodes will count as heard
         * now. */
        tether__rdzv_state_fini(&state);
        return tether_error_set(reterr, st, "out of memory for the rendezvous state");
    }
    /* Do not restart a last call that is already running. */
    if (state.last_calls == old->last_calls && old->deadline < state.deadline)
        state.deadline = old->deadline;
    tether__rdzv_state_fini(old);
    *old = state;
    return TETHER_OK;
}

static tether_status write_state(struct tether__rdzv_backend_holder *holder,
                                 int timeout_ms,
                                 enum tether__rdzv_sync *ret_sync,
                                 tether_error *reterr)
{
    tether_buf state = TETHER_BUF_INIT, actual = TETHER_BUF_INIT, token = TETHER_BUF_INIT;
    bool has_set = false;
    tether_status st =
        tether__rdzv_state_encode(&holder->state, tether__rdzv_now(holder->env), &state, reterr);
    if (st == TETHER_OK)
        st = tether_rdzv_backend_set_state(holder->backend, tether_buf_bytes(&state),
                                           tether_buf_bytes(&holder->token), timeout_ms, &has_set,
                                           &actual, &token, reterr);
    tether_buf_fini(&state);
    if (st == TETHER_OK && !has_set)
        st = adopt(holder, tether_buf_bytes(&actual), reterr);
    tether_buf_fini(&actual);
    if (st != TETHER_OK) {
        tether_buf_fini(&token);
        return st;
    }
    tether_buf_fini(&holder->token);
    holder->token = token;
    *ret_sync = has_set ? TETHER__RDZV_WRITTEN : TETHER__RDZV_LOST;
    return TETHER_OK;
}

static tether_status read_state(struct tether__rdzv_backend_holder *holder,
                                int timeout_ms,
                                tether_error *reterr)
{
    tether_buf state = TETHER_BUF_INIT, token = TETHER_BUF_INIT;
    tether_status st =
        tether_rdzv_backend_get_state(holder->backend, timeout_ms, &state, &token, reterr);
    if (st == TETHER_ENOTFOUND)
        st = TETHER_OK;
    /* An equal token means that nothing has changed. */
    bool same = token.len > 0 &&
                tether_bytes_equal(tether_buf_bytes(&token), tether_buf_bytes(&holder->token));
    if (st == TETHER_OK && !same)
        st = adopt(holder, tether_buf_bytes(&state), reterr);
    tether_buf_fini(&state);
    if (st != TETHER_OK) {
        tether_buf_fini(&token);
        return st;
    }
    tether_buf_fini(&holder->token);
    holder->token = token;
    return TETHER_OK;
}

static bool cache_is_fresh(const struct tether__rdzv_backend_holder *holder)
{
    if (!holder->synced || holder->cache_ns == 0)
        return false;
    return holder->cache_ns == TETHER__NEVER ||
           tether__rdzv_now(holder->env) - holder->synced_at <= holder->cache_ns;
}

static tether_status sync(struct tether__rdzv_holder *base,
                          int64_t deadline,
                          enum tether__rdzv_sync *ret_sync,
                          tether_error *reterr)
{
    struct tether__rdzv_backend_holder *holder = self(base);
    int timeout_ms = tether__rdzv_io_ms(holder->env, deadline);
    enum tether__rdzv_sync result = TETHER__RDZV_CLEAN;
    tether_status st;
    if (holder->dirty) {
        st = write_state(holder, timeout_ms, &result, reterr);
    } else if (cache_is_fresh(holder)) {
        *ret_sync = TETHER__RDZV_CLEAN;
        return TETHER_OK;
    } else {
        st = read_state(holder, timeout_ms, reterr);
    }
    if (st != TETHER_OK)
        return tether_error_wrap(reterr, st, "rendezvous '%s'", holder->settings->run_id);
    holder->dirty = false;
    holder->synced = true;
    holder->synced_at = tether__rdzv_now(holder->env);
    *ret_sync = result;
    size_t dead;
    if (result == TETHER__RDZV_WRITTEN)
        return TETHER_OK;
    return tether__rdzv_backend_holder_listen(holder, deadline, &dead, reterr);
}

static struct tether__rdzv_state *state_of(struct tether__rdzv_holder *holder)
{
    return &self(holder)->state;
}

static void mark_dirty(struct tether__rdzv_holder *holder, enum tether__rdzv_action action)
{
    (void)action;
    self(holder)->dirty = true;
}

static void plan(struct tether__rdzv_holder *holder,
                 int64_t max_ns,
                 struct tether__rdzv_pause *ret_pause)
{
    (void)holder;
    *ret_pause = (struct tether__rdzv_pause){.max_ns = max_ns};
}

static tether_status pause_for(struct tether__rdzv_holder *holder,
                               const struct tether__rdzv_pause *pause,
                               tether_error *reterr)
{
    (void)reterr;
    tether__rdzv_delay(self(holder)->env, pause->max_ns);
    return TETHER_OK;
}

void tether__rdzv_backend_holder_init(struct tether__rdzv_backend_holder *holder,
                                      tether_rdzv_backend *backend,
                                      struct tether__rdzv_heartbeats *heartbeats,
                                      const struct tether_rdzv_settings *settings,
                                      const struct tether__rdzv_env *env,
                                      int64_t cache_ns)
{
    static const struct tether__rdzv_holder_ops ops = {
        .state = state_of,
        .sync = sync,
        .mark_dirty = mark_dirty,
        .plan = plan,
        .pause = pause_for,
    };
    memset(holder, 0, sizeof *holder);
    holder->base.ops = &ops;
    holder->backend = backend;
    holder->heartbeats = heartbeats;
    holder->settings = settings;
    holder->env = env;
    holder->cache_ns = cache_ns;
    tether__rdzv_state_init(&holder->state);
}

void tether__rdzv_backend_holder_fini(struct tether__rdzv_backend_holder *holder)
{
    tether__rdzv_state_fini(&holder->state);
    tether_buf_fini(&holder->token);
}
