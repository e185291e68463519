/* Leaving without losing a call: finds out when no call is in flight anywhere in the group.
 *
 * Happy path, in a static group: the workers pass *barriers* in the store. A worker arrives at a
 * barrier once its own calls are answered and the functions that it runs for others have returned.
 * It stores the number of calls that it has started since it arrived at the previous barrier. If
 * all workers have arrived and none has started any call, then no call was in flight when the
 * previous barrier was complete, and none can have begun since: a call is made by a program that
 * has not begun to shut down, or by a function that another worker has called. Otherwise the
 * workers go on to another barrier. After the last one, references are released (the extension's
 * drain()), and all records are removed from the directory. Two final barriers keep each worker
 * until all are done. Rank 0, which may host the store, leaves last and removes the barriers from
 * the store.
 *
 * Time: a worker that shuts down serves until the whole group does, however long that takes. It
 * waits without limit for workers that are alive, for its own calls (they have limits of their
 * own), and for functions whose callers still wait. shutdown_timeout_ms limits each of its other
 * steps.
 *
 * Failure modes: if the store is gone, perhaps with rank 0, each worker finishes its own calls,
 * releases its references, leaves alone, and returns an error that says so. A dead worker does not
 * arrive, and the others go on without it (attendance.h). Two workers may disagree about which ones
 * are dead, so the first one to pass a barrier decides for all whether it was the last. If any
 * worker was not seen to leave, the barriers stay in the store, so that a worker that was wrongly
 * thought dead can still pass them.
 *
 * A worker of a dynamic group waits for its own calls, refuses new calls of others, waits for
 * functions that run, then sends a goodbye.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/threads/reaper.h"
#include "rpc/agent/internal.h"
#include "rpc/future/condition.h"
#include "rpc/future/poller.h"
#include "rpc/group/attendance.h"
#include "rpc/group/group.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/table.h"
#include "rpc/serve/incoming.h"

/* The two final barriers. The barriers before them are numbered. */
#define LEAVE "shutdown/leave"
#define LEFT "shutdown/left"

/* The time for peers to receive the goodbye. */
#define GOODBYE_MS 500

/* ---- This worker alone ---- */

static bool has_no_calls(tether_agent *agent)
{
    return atomic_load(&agent->active_calls) == 0;
}

static bool is_idle(tether_agent *agent)
{
    return has_no_calls(agent) && atomic_load(&agent->running) == 0;
}

/* A condition that the thread in shutdown() waits for. */
struct goal {
    tether_agent *agent;
    bool (*reached)(tether_agent *agent);
    bool was_reached;
};

static bool is_reached_or_cut_short(void *userdata)
{
    struct goal *goal = userdata;
    goal->was_reached = goal->reached(goal->agent);
    return goal->was_reached || atomic_load(&goal->agent->cut_short);
}

/* Waits until `reached` holds. True: it held at some moment, and may not hold any more. False: it
 * did not by the deadline, or the shutdown was cut short. */
static bool wait_until(tether_agent *agent, bool (*reached)(tether_agent *agent), int64_t deadline)
{
    struct goal goal = {agent, reached, false};
    tether__condition_wait(&agent->idle, agent->timers, is_reached_or_cut_short, &goal, deadline);
    return goal.was_reached;
}

/* How often to check whether messages of the reference layer were acknowledged. */
#define LOOK_MS 2
/* How long a worker that leaves a dynamic group waits until those messages are acknowledged. */
#define TOLD_MS 1000

/* Whether a message for another worker waits in an outbox, or was not acknowledged yet. */
static bool is_under_way(tether_agent *agent)
{
    struct tether__peer *peer;
    bool under_way = false;
    for (uint64_t at = 0; (peer = tether__agent_next_peer(agent, &at));) {
        tether__peer_lock(peer);
        const struct tether__session *session = peer->session;
        under_way |= !peer->is_self && (!tether__outbox_is_empty(&session->outbox) ||
                                        session->out.lane.unacked_bytes > 0);
        tether__peer_unlock(peer);
        tether__peer_release(peer);
    }
    return under_way;
}

/* Whether all messages are acknowledged, and no destructor that another worker has caused remains
 * to run. Either may release further references. */
static bool is_delivered(tether_agent *agent)
{
    return !is_under_way(agent) && tether__reaper_is_idle(&agent->reaper);
}

/* Waits until is_delivered() returns true or the deadline has passed. */
static void wait_until_delivered(tether_agent *agent, int64_t deadline)
{
    while (agent->ext && !is_delivered(agent) && tether__clock_now_ns(agent->clock) < deadline)
        tether__poller_pause(agent->timers, tether__deadline_in(agent->clock, LOOK_MS));
}

/* How many calls this worker has started and items it has posted, ever. */
static uint64_t count_started(tether_agent *agent)
{
    return atomic_load(&agent->started_calls) + atomic_load(&agent->n_posted);
}

static tether_status not_idle(tether_agent *agent, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ETIMEOUT,
                            "%llu calls to other workers and %llu functions for them were still "
                            "under way when shutdown_timeout_ms was over",
                            (unsigned long long)atomic_load(&agent->active_calls),
                            (unsigned long long)atomic_load(&agent->running));
}

static tether_status wait_until_idle(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    do {
        /* is_idle() reads its two counts one after the other, so a call may begin in between */
        uint64_t started = atomic_load(&agent->started_calls);
        if (wait_until(agent, is_idle, deadline) && atomic_load(&agent->started_calls) == started) {
            int64_t limit = tether__deadline_in(agent->clock, TOLD_MS);
            wait_until_delivered(agent, limit < deadline ? limit : deadline);
            return TETHER_OK;
        }
        if (atomic_load(&agent->cut_short))
            return tether_error_set(reterr, TETHER_ESHUTDOWN, TETHER__CUT_SHORT);
    } while (tether__clock_now_ns(agent->clock) < deadline);
    return not_idle(agent, reterr);
}

/* ---- All workers of a static group ---- */

/* Returns the deadline of a step of this worker's own that begins now. */
static int64_t step_deadline(tether_agent *agent)
{
    return tether__deadline_in(agent->clock, agent->opts.shutdown_timeout_ms);
}

static bool is_awaited_locked(struct tether__peer *peer, int64_t now)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (uint64_t *id; (id = tether__map_next(&peer->session->incoming, &it));) {
        struct tether__incoming *incoming = tether__container_of(id, struct tether__incoming, id);
        if (!atomic_load(&incoming->cancelled) && incoming->deadline > now)
            return true;
    }
    return false;
}

/* Whether a live worker still waits for a function that runs here, or this worker for an answer. */
static bool is_needed(tether_agent *agent)
{
    struct tether__peer *peer;
    int64_t now = tether__clock_now_ns(agent->clock);
    bool needed = !has_no_calls(agent);
    for (uint64_t at = 0; !needed && (peer = tether__agent_next_peer(agent, &at));) {
        tether__peer_lock(peer);
        needed = is_awaited_locked(peer, now);
        tether__peer_unlock(peer);
        tether__peer_release(peer);
    }
    return needed;
}

/* Waits without limit while others need this worker. `*ret_started` is the total of calls and
 * releases of references that this worker had started at a moment when none was in flight: the
 * total is read before and after that moment. */
static tether_status serve_until_idle(tether_agent *agent,
                                      uint64_t *ret_started,
                                      tether_error *reterr)
{
    for (;;) {
        uint64_t started = count_started(agent);
        bool idle = wait_until(agent, is_idle, step_deadline(agent));
        if (idle)
            wait_until_delivered(agent, step_deadline(agent));
        if (idle && is_idle(agent) && count_started(agent) == started) {
            *ret_started = started;
            return TETHER_OK;
        }
        if (atomic_load(&agent->replaced))
            return tether_error_set(reterr, TETHER_EFENCED, TETHER__REPLACED);
        if (atomic_load(&agent->cut_short))
            return tether_error_set(reterr, TETHER_ESHUTDOWN, TETHER__CUT_SHORT);
        if (!idle && !is_needed(agent))
            return not_idle(agent, reterr);
    }
}

/* Returns the number of this generation of the group: the latest known start of rank 0. */
static uint64_t generation(tether_agent *agent)
{
    struct tether__peer *peer;
    uint64_t number = agent->rank == 0 ? agent->self.incarnation : 0;
    for (uint64_t at = 0; agent->rank != 0 && (peer = tether__agent_next_peer(agent, &at));) {
        tether__peer_lock(peer);
        if (peer->dialer.record.name[0] && peer->dialer.record.id == 0)
            number = tether__peer_start_locked(peer);
        tether__peer_unlock(peer);
        tether__peer_release(peer);
    }
    return number;
}

typedef char barrier_name[64];

static void name_barrier(barrier_name ret_name, int barrier)
{
    snprintf(ret_name, sizeof(barrier_name), "shutdown/%d", barrier);
}

static void name_verdict(tether_agent *agent, char ret_key[TETHER__BARRIER_KEY], int barrier)
{
    snprintf(ret_key, TETHER__BARRIER_KEY, "shutdown/%d/verdict.%llu", barrier,
             (unsigned long long)generation(agent));
}

/* Decides whether this barrier was the last. The first worker to get here stores its verdict, which
 * holds for all. */
static tether_status decide(tether_agent *agent,
                            int barrier,
                            bool all_quiet,
                            bool *ret_last,
                            tether_error *reterr)
{
    char key[TETHER__BARRIER_KEY];
    tether_buf verdict = TETHER_BUF_INIT;
    name_verdict(agent, key, barrier);
    tether_status st =
        tether_store_compare_set(agent->directory.store, key, tether_bytes_of(NULL, 0),
                                 tether_bytes_str(all_quiet ? "last" : "more"),
                                 agent->opts.shutdown_timeout_ms, NULL, &verdict, reterr);
    if (st == TETHER_OK)
        *ret_last = tether_bytes_equal(tether_buf_bytes(&verdict), tether_bytes_str("last"));
    tether_buf_fini(&verdict);
    return st;
}

/* Passes barriers until no call is in flight in the group. `*ret_barriers` is their number. */
static tether_status wait_until_all_are_idle(tether_agent *agent,
                                             int *ret_barriers,
                                             tether_error *reterr)
{
    uint64_t before = 0;
    bool last = false;
    tether_status st = TETHER_OK;
    int i = 0;
    for (; st == TETHER_OK && !last; i++) {
        barrier_name name;
        int64_t sum = 1;
        uint64_t started = 0;
        st = serve_until_idle(agent, &started, reterr);
        name_barrier(name, i);
        if (st == TETHER_OK)
            st = tether__barrier_pass(agent, name, (int64_t)(started - before), &sum, reterr);
        before = started;
        if (st == TETHER_OK && i > 0) /* the first barrier has no previous one to compare with */
            st = decide(agent, i, sum == 0, &last, reterr);
    }
    *ret_barriers = i;
    return st;
}

/* Removes all barriers from the store. Safe, because all workers have passed them, and a later
 * start of the group uses other keys. */
static void forget_barriers(tether_agent *agent,
                            struct tether__attendance *attendance,
                            int barriers,
                            int64_t deadline)
{
    tether_status st = TETHER_OK;
    for (int i = 0; st == TETHER_OK && i < barriers; i++) {
        barrier_name name;
        char verdict[TETHER__BARRIER_KEY];
        name_barrier(name, i);
        name_verdict(agent, verdict, i);
        st = tether__barrier_forget(agent, name, attendance, deadline);
        if (st == TETHER_OK)
            st = tether__barrier_forget_key(agent, verdict, deadline);
    }
    if (st == TETHER_OK)
        st = tether__barrier_forget(agent, LEAVE, attendance, deadline);
    if (st == TETHER_OK)
        tether__barrier_forget(agent, LEFT, attendance, deadline);
}

/* Leaves the directory and passes the two final barriers. Rank 0 waits at LEFT until the others
 * need the store no more; the others only arrive there, so none of them asks a store that may be
 * gone. */
static tether_status leave_together(tether_agent *agent, int barriers, tether_error *reterr)
{
    struct tether__attendance attendance = {0};
    if (agent->rank == 0 && tether__attendance_init(&attendance, agent) == TETHER_OK)
        tether__attendance_update(&attendance, agent); /* before any other worker can have left */
    bool all_live = attendance.n == (size_t)agent->world_size - 1;
    tether__agent_leave(agent, true, agent->opts.shutdown_timeout_ms);
    tether_status st = tether__barrier_pass(agent, LEAVE, 0, NULL, reterr);
    if (st == TETHER_OK && agent->rank != 0)
        return tether__barrier_arrive(agent, LEFT, 0, reterr);
    if (st == TETHER_OK) { /* errors are ignored below: this worker itself is done */
        int64_t deadline = step_deadline(agent);
        tether__barrier_await(agent, LEFT, deadline, NULL, NULL);
        if (all_live && tether__barrier_has_all(agent, LEFT, &attendance, deadline))
            forget_barriers(agent, &attendance, barriers, deadline);
    }
    tether__attendance_fini(&attendance);
    return st;
}

/* Whether rank 0, which usually hosts the store, has ended. */
static bool first_rank_is_gone(tether_agent *agent)
{
    struct tether__peer *peer;
    bool gone = false;
    for (uint64_t at = 0; !gone && (peer = tether__agent_next_peer(agent, &at));) {
        tether__peer_lock(peer);
        gone = !peer->is_self && peer->fenced && peer->dialer.record.name[0] &&
               peer->dialer.record.id == 0;
        tether__peer_unlock(peer);
        tether__peer_release(peer);
    }
    return gone;
}

/* The store is unreachable, so the workers cannot wait for each other any more. This worker
 * finishes its own calls, as in a dynamic group, and reports what it could not finish. */
static tether_status leave_alone(tether_agent *agent, tether_error *reterr)
{
    tether_error why = *reterr;
    int64_t now = tether__clock_now_ns(agent->clock), deadline = step_deadline(agent);
    wait_until(agent, has_no_calls, now + (deadline - now) / 2);
    atomic_store(&agent->leaving, true);
    tether_status st = wait_until_idle(agent, deadline, reterr);
    if (st == TETHER_OK && agent->ext)
        st = tether__ext_ops->drain(agent->ext, deadline, reterr);
    if (st != TETHER_OK)
        return st;
    char detail[96];
    tether__text_fit(detail, sizeof detail, tether_bytes_str(why.message));
    return tether_error_set(reterr, TETHER_EUNAVAILABLE,
                            "%s: this worker has finished its calls and left alone (%s)",
                            first_rank_is_gone(agent) ? "rank 0 is gone, and the store with it"
                                                      : "the store does not answer",
                            detail);
}

tether_status tether__agent_drain(tether_agent *agent, int64_t deadline, tether_error *reterr)
{
    bool together = agent->world_size > 1;
    int barriers = 0;
    tether_status st;
    /* the other workers use the later start of this worker now */
    if (atomic_load(&agent->replaced)) {
        st = tether_error_set(reterr, TETHER_EFENCED, TETHER__REPLACED);
    } else if (together) {
        st = wait_until_all_are_idle(agent, &barriers, reterr);
        if (st == TETHER_EUNAVAILABLE)
            st = leave_alone(agent, reterr);
        deadline = step_deadline(agent);
    } else {
        int64_t now = tether__clock_now_ns(agent->clock);
        /* Still serve others, because they may have to call this worker to answer its calls. Only
         * for half of the time, because they may never stop calling. */
        wait_until(agent, has_no_calls, now + (deadline - now) / 2);
        atomic_store(&agent->leaving, true);
        st = wait_until_idle(agent, deadline, reterr);
    }
    if (st == TETHER_OK && agent->ext)
        st = tether__ext_ops->drain(agent->ext, deadline, reterr);
    if (st == TETHER_OK && together)
        st = leave_together(agent, barriers, reterr);
    return st == TETHER_OK
               ? st
               : tether_error_wrap(reterr, st, "shutting down worker '%s' gracefully", agent->name);
}

/* ---- Goodbye ---- */

/* A goodbye that the peer has not acknowledged yet. */
struct farewell {
    struct tether__stream *stream; /* part of its session, which is retained */
    uint64_t seq;
};

/* Returns the stream for the goodbye: the one with the replies, if some are not acknowledged yet.
 * On the other stream the goodbye might overtake them. */
static struct tether__stream *farewell_stream(struct tether__peer *peer)
{
    bool owes_replies = peer->session->in.up && peer->session->in.lane.unacked_bytes > 0;
    return peer->session->out.up && !owes_replies ? &peer->session->out : &peer->session->in;
}

/* Sends a goodbye. False: none was sent, so there is no acknowledgement to wait for. */
static bool bid_farewell(struct tether__peer *peer, struct farewell *ret_farewell)
{
    tether__peer_lock(peer);
    struct tether__stream *stream = farewell_stream(peer);
    tether__dialer_stop(
        &peer->dialer); /* the peer closes the stream when it gets the goodbye: do not redial */
    bool sent = stream->up &&
                tether__stream_send_locked(stream, TETHER__FRAME_GOODBYE, tether_bytes_of(NULL, 0),
                                           TETHER__SLICE_EMPTY, 0) == TETHER_OK;
    *ret_farewell = (struct farewell){stream, stream->lane.next_seq - 1};
    if (sent)
        tether__session_retain(stream->session);
    tether__peer_unlock(peer);
    return sent;
}

/* Whether the peer has acknowledged the goodbye, or never will: its stream has closed. */
static bool is_over(const struct farewell *farewell)
{
    struct tether__stream *stream = farewell->stream;
    struct tether__peer *peer = stream->peer;
    tether__peer_lock(peer);
    bool over = !stream->up || stream->lane.acked >= farewell->seq;
    tether__peer_unlock(peer);
    return over;
}

/* Drops the goodbyes that are over; returns how many are left. */
static size_t drop_heard(struct farewell *farewells, size_t n)
{
    size_t left = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_over(&farewells[i]))
            tether__session_release(farewells[i].stream->session);
        else
            farewells[left++] = farewells[i];
    }
    return left;
}

/* Polls for the acknowledgements, or has another thread do so; returns how many are missing. */
static size_t wait_for_farewells(tether_agent *agent, struct farewell *farewells, size_t n)
{
    int64_t deadline = tether__deadline_in(agent->clock, GOODBYE_MS);
    while ((n = drop_heard(farewells, n)) > 0 && tether__clock_now_ns(agent->clock) < deadline)
        tether__poller_pause(agent->timers, tether__deadline_in(agent->clock, 1));
    return n;
}

void tether__agent_say_goodbye(tether_agent *agent)
{
    struct tether__peer *peer;
    size_t n_sent = 0;
    pthread_mutex_lock(&agent->mu);
    size_t n = agent->n_peers;
    pthread_mutex_unlock(&agent->mu);
    size_t i = 0;
    struct farewell *farewells = tether__calloc(n ? n : 1, sizeof *farewells);
    for (uint64_t at = 0; farewells && i < n && (peer = tether__agent_next_peer(agent, &at)); i++) {
        if (bid_farewell(peer, &farewells[n_sent]))
            n_sent++;
        tether__peer_release(peer);
    }
    n_sent = wait_for_farewells(agent, farewells, n_sent);
    while (n_sent)
        tether__session_release(farewells[--n_sent].stream->session);
    tether__free(farewells);
    tether__agent_end_sessions(agent, "this worker is shutting down");
}
