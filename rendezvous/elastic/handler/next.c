/* next(): leaves the old round, joins the new one, and agrees on the address of its workers' store.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/elastic/handler/internal.h"

/* the limit of a random delay that spreads nodes which start together */
#define FIRST_SKEW_NS (300 * TETHER__NS_PER_MS)
#define FIND_MS 1000 /* how often a node checks that rank 0 is still alive while it waits */

void tether_rdzv_info_fini(struct tether_rdzv_info *info)
{
    if (info)
        info->store = tether_store_release(info->store);
}

static tether_status begin(tether_rdzv *rdzv, tether_error *reterr)
{
    pthread_mutex_lock(&rdzv->mu);
    bool busy = rdzv->joining;
    if (!busy && rdzv->joined)
        rdzv->self.past = rdzv->round + 1;
    if (!busy)
        rdzv->joined = false;
    rdzv->joining = true;
    pthread_mutex_unlock(&rdzv->mu);
    if (busy)
        return tether_error_set(reterr, TETHER_EBUSY,
                                "another thread is waiting for the next round of '%s' already",
                                rdzv->settings.run_id);
    atomic_store(&rdzv->canceled, false);
    return TETHER_OK;
}

/* Joins a round; gives its number, rank and size in `ret_info`. */
static tether_status join(tether_rdzv *rdzv,
                          int64_t deadline,
                          struct tether_rdzv_info *ret_info,
                          tether_error *reterr)
{
    tether_status st = tether__rdzv_run(rdzv, "next", tether__rdzv_exit_op, deadline, true, reterr);
    if (st == TETHER_OK)
        st = tether__rdzv_run(rdzv, "next", tether__rdzv_join_op, deadline, true, reterr);
    if (st != TETHER_OK)
        return st;
    pthread_mutex_lock(&rdzv->mu);
    const struct tether__rdzv_state *state = rdzv->holder->ops->state(rdzv->holder);
    const struct tether__rdzv_member *self =
        tether__rdzv_roster_find(&state->participants, &rdzv->self.node);
    if (self) {
        rdzv->joined = true;
        rdzv->round = state->round;
        rdzv->rank = self->rank;
        rdzv->world_size = state->world_size;
        rdzv->self.previous = self->rank;
        memset(&rdzv->reported, 0, sizeof rdzv->reported);
        *ret_info = (struct tether_rdzv_info){
            .round = state->round, .rank = self->rank, .world_size = state->world_size};
    }
    pthread_mutex_unlock(&rdzv->mu);
    if (!self)
        return tether_error_set(
            reterr, TETHER_EINTERNAL,
            "next() joined a round that has no rank for this node: please report it");
    return TETHER_OK;
}

static tether_status open_round_store(tether_rdzv *rdzv,
                                      struct tether_rdzv_info *info,
                                      tether_error *reterr)
{
    char *prefix =
        tether__asprintf("tether.rendezvous.%s.%" PRIu64, rdzv->settings.run_id, info->round);
    if (!prefix)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for the store of a round");
    tether_status st = tether_store_prefix_new(prefix, rdzv->store, &info->store, reterr);
    tether__free(prefix);
    return st;
}

/* Whether the round has lost a node since it became complete. */
static tether_status has_changed(tether_rdzv *rdzv, bool *ret_changed, tether_error *reterr)
{
    struct tether_rdzv_members members;
    tether_status st = tether_rdzv_members(rdzv, &members, reterr);
    if (st == TETHER_OK)
        *ret_changed = members.changed && (members.round != rdzv->round || members.closed ||
                                           members.participants < members.world_size);
    return st;
}

/* Replaces the server that this node runs for the workers; TAKES `server` (NULL: none). Locks mu,
 * because another thread may call shutdown() meanwhile.
 */
static void replace_server(tether_rdzv *rdzv, tether_store *server)
{
    pthread_mutex_lock(&rdzv->mu);
    tether_store *old = rdzv->server;
    rdzv->server = server;
    pthread_mutex_unlock(&rdzv->mu);
    tether_store_release(old);
}

/* Agrees with the other nodes on the address where the workers meet. `*ret_again`: rank 0 has left
 * before it published the address, so the node has to join another round. */
static tether_status agree_on_address(tether_rdzv *rdzv,
                                      int64_t deadline,
                                      struct tether_rdzv_info *info,
                                      bool *ret_again,
                                      tether_error *reterr)
{
    int timeout_ms = tether__rdzv_io_ms(rdzv->env, deadline);
    *ret_again = false;
    replace_server(rdzv, NULL); /* stops the server of the previous round */
    if (info->rank == 0) {
        tether_store *server = NULL;
        tether_status st = tether__rdzv_bootstrap_publish(
            rdzv->bootstrap, rdzv->store, rdzv->self.node.addr, rdzv->share,
            rdzv->settings.insecure, timeout_ms, &server, info, reterr);
        replace_server(rdzv, server);
        return st;
    }
    for (;;) {
        int left_ms = tether__deadline_left_ms(rdzv->env->clock, deadline);
        bool last = left_ms <= FIND_MS;
        tether_status st = tether__rdzv_bootstrap_find(rdzv->bootstrap, rdzv->store, rdzv->share,
                                                       last ? left_ms : FIND_MS, info, reterr);
        if (st != TETHER_ETIMEOUT || last)
            return st;
        if (atomic_load(&rdzv->canceled))
            return tether_error_set(reterr, TETHER_ECANCELED,
                                    "joining the rendezvous '%s' was canceled",
                                    rdzv->settings.run_id);
        st = has_changed(rdzv, ret_again, reterr);
        if (st != TETHER_OK || *ret_again)
            return st;
    }
}

static tether_status take_part(tether_rdzv *rdzv,
                               struct tether_rdzv_info *ret_info,
                               tether_error *reterr)
{
    int64_t deadline =
        tether__rdzv_now(rdzv->env) + rdzv->settings.timeouts.join_ms * TETHER__NS_PER_MS;
    for (;;) {
        bool again = false;
        struct tether_rdzv_info info;
        tether_status st = join(rdzv, deadline, &info, reterr);
        if (st != TETHER_OK)
            return st;
        st = tether__rdzv_start_heartbeats(rdzv, reterr);
        if (st == TETHER_OK)
            st = open_round_store(rdzv, &info, reterr);
        if (st == TETHER_OK)
            st = agree_on_address(rdzv, deadline, &info, &again, reterr);
        if (st == TETHER_OK && !again) {
            *ret_info = info;
            return TETHER_OK;
        }
        tether__rdzv_stop_heartbeats(rdzv);
        tether_rdzv_info_fini(&info);
        if (st != TETHER_OK)
            return st;
    }
}

tether_status tether_rdzv_next(tether_rdzv *rdzv,
                               struct tether_rdzv_info *ret_info,
                               tether_error *reterr)
{
    tether_error err;
    tether_status st = begin(rdzv, reterr);
    if (st != TETHER_OK)
        return st;
    tether__rdzv_stop_heartbeats(rdzv);
    pthread_mutex_lock(&rdzv->mu);
    bool first = rdzv->holder->ops->state(rdzv->holder)->round == 0;
    tether__rdzv_event_locked(rdzv, TETHER_RDZV_INIT, "next", TETHER__NEVER, TETHER_OK,
                              "%s attempts to join the next round", rdzv->node_text);
    pthread_mutex_unlock(&rdzv->mu);
    if (first && rdzv->settings.max_nodes > 1)
        tether__rdzv_delay_random(rdzv->env, FIRST_SKEW_NS);

    st = take_part(rdzv, ret_info, &err);
    pthread_mutex_lock(&rdzv->mu);
    rdzv->joining = false;
    if (st == TETHER_OK) {
        tether__rdzv_event_locked(rdzv, TETHER_RDZV_SUCCEEDED, "next", TETHER__NEVER, TETHER_OK,
                                  "%s has joined round %" PRIu64 " as rank %d of %d",
                                  rdzv->node_text, ret_info->round, ret_info->rank,
                                  ret_info->world_size);
    } else {
        rdzv->joined = rdzv->synced = false;
        rdzv->server = tether_store_release(rdzv->server);
        if (rdzv->has_member)
            tether__rdzv_member_holder_withdraw(&rdzv->member,
                                                tether__rdzv_now(rdzv->env) + TETHER__NS_PER_S);
    }
    pthread_mutex_unlock(&rdzv->mu);
    return st == TETHER_OK ? st : tether__rdzv_failed(rdzv, "next", st, &err, reterr);
}
