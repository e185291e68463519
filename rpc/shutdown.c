/* Leaving without losing a call: when is nothing under way anywhere in the group?
 *
 * Happy path, in a static group: the workers come together in *waves*, in the store. A worker comes
 * to a wave once its own calls are answered and the functions that it runs for others have
 * returned, and says how many calls it has started since it came to the wave before. When all have
 * come, and none has started any, then nothing was under way when the wave before was complete, and
 * nothing can be since: a call is made by a program that has not come to shut down yet, or by a
 * function that somebody called. Otherwise they go on to another wave. Then
 * references are given back (ext), everybody is taken out of the directory, and one last wave lets
 * nobody leave before all are done. Rank 0, which may host the store, leaves last.
 *
 * Failure modes: a worker that is dead does not come: whoever waits sees who is missing, asks for a
 * sign of life, and goes on without those that the lease says are gone. Since two may differ in
 * that, whether to go on is decided by the first who gets so far, for all. The deadline spans
 * everything; when it passes the error says who was waited for.
 *
 * A worker comes as its present start, so a group that starts again on the same store meets nothing
 * of the time before. A worker of a dynamic group waits for its own calls, refuses new ones of
 * others, waits for those that run, then says goodbye.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "rpc/agent_internal.h"

/* How often a worker that waits looks whether those who are missing still live. */
#define LOOK_AROUND_MS 200

/* How long the peers get to hear that we leave. */
#define GOODBYE_MS 500

/* ---- This worker alone ---- */

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

static bool has_no_calls(tether_agent *agent)
{
    return atomic_load(&agent->active_calls) == 0;
}

static bool is_idle(tether_agent *agent)
{
    return has_no_calls(agent) && atomic_load(&agent->running) == 0;
}

static void set_idle(tether_agent *agent, tether_future *idle)
{
    pthread_mutex_lock(&agent->mu);
    tether_future *before = agent->idle;
    agent->idle = tether_future_retain(idle);
    pthread_mutex_unlock(&agent->mu);
    tether_future_release(before);
}

/* False: not by the deadline, or out of memory. */
static bool wait_until(tether_agent *agent, bool (*done)(tether_agent *agent), int64_t deadline)
{
    while (!done(agent) && tether__clock_now_ns(agent->clock) < deadline) {
        tether_future *idle = tether_future_new();
        if (!idle)
            return false;
        idle->progress = agent->timers;
        set_idle(agent, idle);
        if (!done(agent)) /* who makes it so from here on finds the future */
            tether__future_await(idle, deadline);
        set_idle(agent, NULL);
        tether_future_release(idle);
    }
    return done(agent);
}

/* `*ret_started` (may be NULL) is how many calls we had started, ever, by a moment when nothing was
 * under way: it is read before looking, and again after. */
static tether_status wait_until_idle(tether_agent *agent,
                                     int64_t deadline,
                                     uint64_t *ret_started,
                                     tether_error *reterr)
{
    uint64_t started;
    do {
        started = atomic_load(&agent->started_calls);
        if (wait_until(agent, is_idle, deadline) && atomic_load(&agent->started_calls) == started) {
            if (ret_started)
                *ret_started = started;
            return TETHER_OK;
        }
    } while (tether__clock_now_ns(agent->clock) < deadline);
    return tether_error_set(reterr, TETHER_ETIMEOUT,
                            "%llu calls to other workers and %llu functions for them were still "
                            "under way when shutdown_timeout_ms was over",
                            (unsigned long long)atomic_load(&agent->active_calls),
                            (unsigned long long)atomic_load(&agent->running));
}

/* ---- Waves ---- */

typedef char wave_key[96];

/* Who takes part in a wave besides us. */
struct wave {
    const char *name;
    wave_key *keys;
    const char **pointers; /* to the keys */
    int *ranks;
    size_t n;
};

static tether_status wave_init(struct wave *wave, const char *name, size_t max)
{
    *wave = (struct wave){.name = name};
    wave->keys = tether__calloc(max, sizeof *wave->keys);
    wave->pointers = tether__calloc(max, sizeof *wave->pointers);
    wave->ranks = tether__calloc(max, sizeof *wave->ranks);
    return wave->keys && wave->pointers && wave->ranks ? TETHER_OK : TETHER_ENOMEM;
}

static void wave_fini(struct wave *wave)
{
    tether__free(wave->keys);
    tether__free(wave->pointers);
    tether__free(wave->ranks);
}

static void name_key(wave_key key, const char *wave, int rank, uint64_t incarnation)
{
    snprintf(key, sizeof(wave_key), "%s/%d.%llu", wave, rank, (unsigned long long)incarnation);
}

/* The start of the peer that we know of. */
static uint64_t incarnation_locked(const struct tether__peer *peer)
{
    return peer->session.peer_incarnation > peer->record.incarnation
               ? peer->session.peer_incarnation
               : peer->record.incarnation;
}

/* Everybody but us and the dead, as we know them now. */
static void call_the_roll(tether_agent *agent, struct wave *wave)
{
    struct tether__peer *peer;
    wave->n = 0;
    for (size_t i = 0; (peer = tether__agent_peer_at(agent, i)); i++) {
        pthread_mutex_lock(&peer->mu);
        int rank = peer->record.name[0] ? (int)peer->record.id : -1;
        if (!peer->is_self && !peer->fenced && rank >= 0 && rank < agent->world_size &&
            wave->n < (size_t)agent->world_size) {
            name_key(wave->keys[wave->n], wave->name, rank, incarnation_locked(peer));
            wave->pointers[wave->n] = wave->keys[wave->n];
            wave->ranks[wave->n++] = rank;
        }
        pthread_mutex_unlock(&peer->mu);
        tether__peer_release(peer);
    }
}

/* Asks the worker of `rank` for a sign of life, so that its lease runs. */
static void ask_for_life(tether_agent *agent, int rank)
{
    struct tether__peer *peer;
    for (size_t i = 0; (peer = tether__agent_peer_at(agent, i)); i++) {
        pthread_mutex_lock(&peer->mu);
        if (peer->record.name[0] && (int)peer->record.id == rank)
            tether__peer_connect_locked(peer);
        int64_t due = peer->next_dial;
        pthread_mutex_unlock(&peer->mu);
        tether__agent_kick(agent, due);
        tether__peer_release(peer);
    }
}

/* Looks who has not come; -1: all have. */
static int look_around(tether_agent *agent, const struct wave *wave)
{
    int missing = -1;
    for (size_t i = 0; i < wave->n; i++) {
        bool here = false;
        if (tether_store_check(agent->directory.store, &wave->pointers[i], 1, LOOK_AROUND_MS, &here,
                               NULL) == TETHER_OK &&
            !here) {
            ask_for_life(agent, wave->ranks[i]);
            missing = missing < 0 ? wave->ranks[i] : missing;
        }
    }
    return missing;
}

static tether_status await_all(tether_agent *agent,
                               struct wave *wave,
                               int64_t deadline,
                               tether_error *reterr)
{
    for (;;) {
        tether_error why;
        call_the_roll(agent, wave);
        tether_status st = tether_store_wait(agent->directory.store, wave->pointers, wave->n,
                                             LOOK_AROUND_MS, &why);
        if (st == TETHER_OK)
            return TETHER_OK;
        if (st != TETHER_ETIMEOUT)
            return tether_error_set(reterr, st, "%s", why.message);
        int missing = look_around(agent, wave);
        if (tether__clock_now_ns(agent->clock) >= deadline)
            return tether_error_set(reterr, TETHER_ETIMEOUT,
                                    "rank %d had not come to shut down when shutdown_timeout_ms "
                                    "was over",
                                    missing);
    }
}

static int64_t sum_of(tether_agent *agent, const struct wave *wave, int left_ms)
{
    int64_t sum = 0;
    for (size_t i = 0; i < wave->n; i++) {
        tether_buf said = TETHER_BUF_INIT;
        if (tether_store_try_get(agent->directory.store, wave->keys[i], left_ms, &said, NULL) ==
                TETHER_OK &&
            said.data)
            sum += strtoll(said.data, NULL, 10);
        tether_buf_fini(&said);
    }
    return sum;
}

static tether_status come(tether_agent *agent,
                          const char *wave,
                          int64_t number,
                          int64_t deadline,
                          tether_error *reterr)
{
    wave_key key;
    char text[24];
    name_key(key, wave, agent->rank, agent->self.incarnation);
    snprintf(text, sizeof text, "%lld", (long long)number);
    return tether_store_set(agent->directory.store, key, tether_bytes_str(text),
                            tether__deadline_left_ms(agent->clock, deadline), reterr);
}

/* Says `number` and waits until all have said theirs; their sum is in `*ret_sum`. */
static tether_status meet_in_wave(tether_agent *agent,
                                  const char *name,
                                  int64_t number,
                                  int64_t deadline,
                                  int64_t *ret_sum,
                                  tether_error *reterr)
{
    struct wave wave;
    tether_status st = wave_init(&wave, name, (size_t)agent->world_size);
    if (st != TETHER_OK)
        tether_error_set(reterr, st, "no memory to wait for %d workers", agent->world_size);
    if (st == TETHER_OK)
        st = come(agent, name, number, deadline, reterr);
    if (st == TETHER_OK)
        st = await_all(agent, &wave, deadline, reterr);
    if (st == TETHER_OK && ret_sum)
        *ret_sum = number + sum_of(agent, &wave, tether__deadline_left_ms(agent->clock, deadline));
    wave_fini(&wave);
    return st;
}

/* What the group goes by: one start of rank 0, as we know it. */
static uint64_t generation(tether_agent *agent)
{
    struct tether__peer *peer;
    uint64_t number = agent->rank == 0 ? agent->self.incarnation : 0;
    for (size_t i = 0; agent->rank != 0 && (peer = tether__agent_peer_at(agent, i)); i++) {
        pthread_mutex_lock(&peer->mu);
        if (peer->record.name[0] && peer->record.id == 0)
            number = incarnation_locked(peer);
        pthread_mutex_unlock(&peer->mu);
        tether__peer_release(peer);
    }
    return number;
}

/* Whether this wave was the last: what the first of us to get here found is so for all. */
static tether_status decide(tether_agent *agent,
                            int wave,
                            bool all_quiet,
                            int64_t deadline,
                            bool *ret_last,
                            tether_error *reterr)
{
    char key[96];
    tether_buf verdict = TETHER_BUF_INIT;
    snprintf(key, sizeof key, "shutdown/%d/verdict.%llu", wave,
             (unsigned long long)generation(agent));
    tether_status st = tether_store_compare_set(
        agent->directory.store, key, tether_bytes_of(NULL, 0),
        tether_bytes_str(all_quiet ? "last" : "more"),
        tether__deadline_left_ms(agent->clock, deadline), NULL, &verdict, reterr);
    if (st == TETHER_OK)
        *ret_last = tether_bytes_equal(tether_buf_bytes(&verdict), tether_bytes_str("last"));
    tether_buf_fini(&verdict);
    return st;
}

static tether_status wait_until_all_are_idle(tether_agent *agent,
                                             int64_t deadline,
                                             tether_error *reterr)
{
    uint64_t before = 0;
    bool last = false;
    tether_status st = TETHER_OK;
    for (int i = 0; st == TETHER_OK && !last; i++) {
        char name[64];
        int64_t sum = 1;
        uint64_t started = 0;
        st = wait_until_idle(agent, deadline, &started, reterr);
        snprintf(name, sizeof name, "shutdown/%d", i);
        if (st == TETHER_OK)
            st = meet_in_wave(agent, name, (int64_t)(started - before), deadline, &sum, reterr);
        before = started;
        if (st == TETHER_OK && i > 0) /* the first wave has none before it */
            st = decide(agent, i, sum == 0, deadline, &last, reterr);
    }
    return st;
}

/* Everybody is done. From here on no store call of ours but the last may fail for want of a store.
 */
static tether_status leave_together(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    int left = tether__deadline_left_ms(agent->clock, deadline);
    tether__agent_leave(agent, true, left);
    tether_status st = meet_in_wave(agent, "shutdown/leave", 0, deadline, NULL, reterr);
    if (st == TETHER_OK && agent->rank != 0)
        return come(agent, "shutdown/left", 0, deadline, reterr);
    struct wave others;
    if (st == TETHER_OK &&
        wave_init(&others, "shutdown/left", (size_t)agent->world_size) == TETHER_OK)
        await_all(agent, &others, deadline, NULL); /* a courtesy: we are done */
    if (st == TETHER_OK)
        wave_fini(&others);
    return st;
}

tether_status tether__agent_drain(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    bool together = agent->world_size > 1;
    tether_status st;
    if (atomic_load(&agent->replaced)) { /* the others have gone on with our successor */
        st = tether_error_set(reterr, TETHER_EFENCED, TETHER__REPLACED);
    } else if (together) {
        st = wait_until_all_are_idle(agent, deadline, reterr);
    } else {
        int64_t now = tether__clock_now_ns(agent->clock);
        /* Others may need us to answer our calls; but not for ever, they may have more and more. */
        wait_until(agent, has_no_calls, now + (deadline - now) / 2);
        atomic_store(&agent->leaving, true);
        st = wait_until_idle(agent, deadline, NULL, reterr);
    }
    if (st == TETHER_OK && agent->ext)
        st = tether__ext_ops->drain(agent->ext, deadline, reterr);
    if (st == TETHER_OK && together)
        st = leave_together(agent, deadline, reterr);
    return st == TETHER_OK
               ? st
               : tether_error_wrap(reterr, st, "shutting down worker '%s' gracefully", agent->name);
}

/* ---- Goodbye ---- */

struct farewell {
    struct tether__lane_watch watch;
    _Atomic size_t *left;
};

static void farewell_heard(struct tether__lane_watch *watch, tether_status status)
{
    (void)status;
    struct farewell *farewell = tether__container_of(watch, struct farewell, watch);
    atomic_fetch_sub(farewell->left, 1);
}

static void bid_farewell(struct tether__peer *peer, struct farewell *farewell)
{
    pthread_mutex_lock(&peer->mu);
    struct tether__link *link = peer->out.up ? &peer->out : &peer->in;
    peer->left = true; /* it closes the stream on hearing us: no reason to dial it again */
    if (link->up) {
        atomic_fetch_add(farewell->left, 1);
        farewell->watch.done = farewell_heard;
        if (tether__link_send_locked(link, TETHER__FRAME_GOODBYE, tether_bytes_of(NULL, 0),
                                     TETHER__SLICE_EMPTY, &farewell->watch) != TETHER_OK)
            atomic_fetch_sub(farewell->left, 1);
    }
    pthread_mutex_unlock(&peer->mu);
}

/* Polls for the answers, or lets others do so. */
static void wait_for_farewells(tether_agent *agent, _Atomic size_t *left)
{
    tether_future *never = tether_future_new();
    int64_t deadline = tether__deadline_in(agent->clock, GOODBYE_MS);
    if (!never)
        return;
    never->progress = agent->timers;
    while (atomic_load(left) > 0 && tether__clock_now_ns(agent->clock) < deadline)
        tether__future_await(never, tether__deadline_in(agent->clock, 1));
    tether_future_release(never);
}

void tether__agent_say_goodbye(tether_agent *agent)
{
    struct tether__peer *peer;
    _Atomic size_t left = 0;
    pthread_mutex_lock(&agent->mu);
    size_t n = agent->n_peers;
    pthread_mutex_unlock(&agent->mu);
    struct farewell *farewells = tether__calloc(n ? n : 1, sizeof *farewells);
    for (size_t i = 0; farewells && i < n && (peer = tether__agent_peer_at(agent, i)); i++) {
        farewells[i].left = &left;
        bid_farewell(peer, &farewells[i]);
        tether__peer_release(peer);
    }
    wait_for_farewells(agent, &left);
    /* Ends the watches that are left, before their memory goes. */
    tether__agent_end_sessions(agent, "this worker is shutting down");
    tether__free(farewells);
}

void tether__agent_end_sessions(tether_agent *agent, const char *why)
{
    struct tether__peer *peer;
    for (size_t i = 0; (peer = tether__agent_peer_at(agent, i)); i++) {
        struct tether__aftermath aftermath;
        pthread_mutex_lock(&peer->mu);
        tether__peer_end_session_locked(peer, TETHER_ESHUTDOWN, why, &aftermath);
        pthread_mutex_unlock(&peer->mu);
        tether__aftermath_settle(&aftermath);
        tether__peer_release(peer);
    }
}
