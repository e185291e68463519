/* Leaving without losing a call: when is nothing under way anywhere in the group?
 *
 * Happy path, in a static group: every worker waits until its own calls are answered and the
 * functions that it runs for others have returned, then comes to a barrier in the store. Once all
 * are there, each adds to a sum how many calls it has started since it came; when the sum is 0,
 * nothing can be under way, for a call is made only by a program that has not come yet or by a
 * function that somebody called. Otherwise they go another round.
 *
 * Failure modes: a worker that is dead does not come: whoever waits sees who is missing, asks for a
 * sign of life, and goes on without those that the lease says are gone. The deadline spans
 * everything; when it passes the error says what was waited for.
 *
 * A worker of a dynamic group waits for its own calls only, then says goodbye.
 */
#include <stdio.h>
#include <string.h>

#include "rpc/agent_internal.h"

/* How often a worker that waits looks whether those who are missing still live. */
#define LOOK_AROUND_MS 200

void tether__agent_tell_idle(tether_agent *agent)
{
    if (atomic_load(&agent->state) != TETHER__AGENT_STOPPING)
        return;
    pthread_mutex_lock(&agent->mu);
    tether_future *idle = agent->idle;
    agent->idle = NULL;
    pthread_mutex_unlock(&agent->mu);
    if (idle)
        tether_future_finish(idle, TETHER_OK, NULL, NULL);
    tether_future_release(idle);
}

static bool is_idle(tether_agent *agent)
{
    return atomic_load(&agent->active_calls) == 0 && atomic_load(&agent->running) == 0;
}

static tether_status wait_until_idle(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    while (!is_idle(agent) && tether__clock_now_ns(agent->clock) < deadline) {
        tether_future *idle = tether_future_new();
        if (!idle)
            return tether_error_set(reterr, TETHER_ENOMEM, "no memory to wait for calls to end");
        idle->progress = &agent->progress;
        pthread_mutex_lock(&agent->mu);
        tether_future *before = agent->idle;
        agent->idle = tether_future_retain(idle);
        pthread_mutex_unlock(&agent->mu);
        tether_future_release(before);
        if (!is_idle(agent)) /* who makes it so from here on finds the future */
            tether__future_await(idle, deadline);
        tether_future_release(idle);
    }
    pthread_mutex_lock(&agent->mu);
    tether_future *left = agent->idle;
    agent->idle = NULL;
    pthread_mutex_unlock(&agent->mu);
    tether_future_release(left);
    if (is_idle(agent))
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_ETIMEOUT,
                            "%llu calls to other workers and %llu functions for them were still "
                            "under way when shutdown_timeout_ms was over",
                            (unsigned long long)atomic_load(&agent->active_calls),
                            (unsigned long long)atomic_load(&agent->running));
}

/* Whether the worker of `rank` is gone. Not having heard of it, we ask, so that the lease runs. */
static bool is_dead(tether_agent *agent, int rank)
{
    struct tether__peer *peer = NULL;
    pthread_mutex_lock(&agent->mu);
    for (size_t i = 0; i < agent->n_peers && !peer; i++) {
        pthread_mutex_lock(&agent->peers[i]->mu);
        if (agent->peers[i]->record.name[0] && (int)agent->peers[i]->record.id == rank)
            peer = tether__peer_retain(agent->peers[i]);
        pthread_mutex_unlock(&agent->peers[i]->mu);
    }
    pthread_mutex_unlock(&agent->mu);
    if (!peer)
        return false;
    pthread_mutex_lock(&peer->mu);
    bool dead = peer->fenced;
    if (!dead)
        tether__peer_connect_locked(peer);
    int64_t due = peer->next_dial;
    pthread_mutex_unlock(&peer->mu);
    tether__progress_kick(&agent->progress, due);
    tether__peer_release(peer);
    return dead;
}

/* Looks who has not come to this barrier; the first of the living is named in `reterr`. */
static bool all_missing_are_dead(tether_agent *agent, const char *barrier, tether_error *reterr)
{
    bool all_dead = true;
    for (int rank = 0; rank < agent->world_size; rank++) {
        char key[96];
        bool here = false;
        snprintf(key, sizeof key, "%s/%d", barrier, rank);
        const char *keys[] = {key};
        if (tether_store_check(agent->directory.store, keys, 1, LOOK_AROUND_MS, &here, NULL) !=
                TETHER_OK ||
            here || is_dead(agent, rank))
            continue;
        if (all_dead)
            tether_error_set(reterr, TETHER_ETIMEOUT,
                             "rank %d had not come to shut down when shutdown_timeout_ms was over",
                             rank);
        all_dead = false;
    }
    return all_dead;
}

static tether_status barrier(tether_agent *agent,
                             const char *name,
                             int64_t deadline,
                             tether_error *reterr)
{
    tether_store *store = agent->directory.store;
    char here[96], go[96];
    int64_t arrived;
    snprintf(here, sizeof here, "%s/%d", name, agent->rank);
    snprintf(go, sizeof go, "%s/go", name);
    const char *wait_for[] = {go};
    int left = tether__deadline_left_ms(agent->clock, deadline);
    tether_status st = tether_store_set(store, here, tether_bytes_str("1"), left, reterr);
    if (st == TETHER_OK)
        st = tether_store_add(store, name, 1, left, &arrived, reterr);
    if (st == TETHER_OK && arrived >= agent->world_size)
        return tether_store_set(store, go, tether_bytes_str("1"), left, reterr);
    while (st == TETHER_OK) {
        tether_error why = {0}; /* to look around is no error: only what ends the wait is told */
        st = tether_store_wait(store, wait_for, 1, LOOK_AROUND_MS, &why);
        if (st == TETHER_ETIMEOUT && all_missing_are_dead(agent, name, &why))
            return tether_store_set(store, go, tether_bytes_str("1"),
                                    tether__deadline_left_ms(agent->clock, deadline), reterr);
        if (st == TETHER_OK)
            break;
        if (st == TETHER_ETIMEOUT && tether__clock_now_ns(agent->clock) < deadline)
            st = TETHER_OK;
        else if (reterr)
            *reterr = why;
    }
    return st;
}

tether_status tether__agent_drain(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    tether_status st = wait_until_idle(agent, deadline, reterr);
    for (int round = 0; st == TETHER_OK && agent->world_size > 1; round++) {
        char name[64], sum_key[64];
        int64_t sum;
        uint64_t before = atomic_load(&agent->started_calls);
        snprintf(name, sizeof name, "shutdown/%d/come", round);
        st = barrier(agent, name, deadline, reterr);
        if (st != TETHER_OK)
            break;
        int64_t since = (int64_t)(atomic_load(&agent->started_calls) - before) + !is_idle(agent);
        int left = tether__deadline_left_ms(agent->clock, deadline);
        snprintf(sum_key, sizeof sum_key, "shutdown/%d/sum", round);
        st = tether_store_add(agent->directory.store, sum_key, since, left, &sum, reterr);
        snprintf(name, sizeof name, "shutdown/%d/count", round);
        if (st == TETHER_OK)
            st = barrier(agent, name, deadline, reterr);
        if (st == TETHER_OK)
            st = tether_store_add(agent->directory.store, sum_key, 0, left, &sum, reterr);
        if (st == TETHER_OK && sum == 0)
            break;
        if (st == TETHER_OK)
            st = wait_until_idle(agent, deadline, reterr);
    }
    if (st == TETHER_OK && agent->ext)
        st = tether__ext_ops->drain(agent->ext, deadline, reterr);
    if (st == TETHER_OK && agent->world_size > 1) /* nobody leaves before all have given back */
        st = barrier(agent, "shutdown/refs", deadline, reterr);
    return st == TETHER_OK
               ? st
               : tether_error_wrap(reterr, st, "shutting down worker '%s' gracefully", agent->name);
}
