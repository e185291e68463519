/* The lock of a peer, and the work that follows an unlock. See after.h. */
#include "rpc/peer/after.h"

#include "base/clock.h"
#include "base/threads/call_gate.h"
#include "base/threads/life.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/future.h"
#include "rpc/peer/calls/dues.h"
#include "rpc/peer/calls/progress.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/table.h"
#include "rpc/refs.h"
#include "rpc/value.h"

static void run(struct tether__work *work);

/* Empties the chain; returns its first call. */
static struct tether__call *take(struct tether__ended_calls *calls)
{
    struct tether__call *first = calls->first;
    calls->first = NULL;
    calls->end = &calls->first;
    return first;
}

void tether__after_init(struct tether__after *after)
{
    *after = (struct tether__after){.due = TETHER__NEVER, .work.run = run};
    tether__outbox_items_init(&after->untold);
    take(&after->answered);
    take(&after->expired.calls);
}

static void finish_answered(struct tether__work *work)
{
    tether_future *future = tether__container_of(work, tether_future, work);
    struct tether__call *call = tether__container_of(future, struct tether__call, future);
    tether_value *value = call->answer;
    tether__call_finish(call, TETHER_OK, NULL, value);
    tether_value_release(value);
}

void tether__peer_unlock_and_run(struct tether__peer *peer)
{
    struct tether__after *after = &peer->after;
    tether_agent *agent = peer->agent;
    int64_t due = after->due;
    struct tether__call *answered = take(&after->answered);
    bool queue = !after->is_queued &&
                 (after->fenced || after->expired.calls.first || (after->goes_on && after->ended));
    after->any = after->goes_on = false;
    after->due = TETHER__NEVER;
    if (queue) {
        after->is_queued = true;
        tether__peer_retain(peer);
        tether__life_retain(&agent->life);
    }
    pthread_mutex_unlock(&peer->mu);
    if (due != TETHER__NEVER)
        tether__peer_schedule(peer, due);
    for (struct tether__call *call = answered, *next; call; call = next) {
        next = call->next_ended;
        call->future.work.run = finish_answered;
        tether__work_run(&call->future.work);
    }
    if (queue)
        tether__work_run(&after->work);
}

/* Fails a call. If the session was lost and the call was about an object of the peer, the status is
 * TETHER_EOWNERDIED, as for references to that object. */
static void fail_call(const tether_error *why, bool with_session, struct tether__call *call)
{
    tether_error error;
    tether_status status = why->code;
    tether__call_explain_end(call, status, why, &error);
    bool is_loss = status == TETHER_EUNAVAILABLE || status == TETHER_EFENCED;
    if (with_session && is_loss && call->about_object)
        status = tether_error_set(&error, TETHER_EOWNERDIED,
                                  "the owner of the object is lost (make it anew elsewhere): %s",
                                  why->message);
    call->future.unanswered = true;
    tether__call_finish(call, status, &error, NULL);
}

static void fail_expired(const struct tether__failed_calls *expired)
{
    for (struct tether__call *call = expired->calls.first, *next; call; call = next) {
        next = call->next_ended;
        fail_call(&expired->error, false, call);
    }
}

/* Fails up to `n` calls of an ended session and returns how many. No lock is needed: no other
 * thread can reach the session's calls. */
static uint32_t fail_some(struct tether__session *session, const tether_error *why, uint32_t n)
{
    uint32_t done = 0;
    for (; session->n_calls && done < n; session->next_failed++) {
        struct tether__call *call = session->slots[session->next_failed].call;
        if (!call)
            continue;
        session->n_calls--;
        done++;
        tether__call_note_ended(call, session);
        fail_call(why, true, call);
    }
    return done;
}

/* Fails up to TETHER__CALLS_AT_ONCE calls of a list of ended sessions. TAKES the sessions; returns
 * those that have calls left. */
static struct tether__session *fail_slice(struct tether__session *sessions, const tether_error *why)
{
    uint32_t n = TETHER__CALLS_AT_ONCE;
    while (sessions) {
        struct tether__session *session = sessions;
        n -= fail_some(session, why, n);
        if (session->n_calls)
            return session;
        sessions = session->next;
        tether__session_drop(session);
    }
    return NULL;
}

/* Gives the sessions back to peer->after, for the peer's timers. False: there are none, or the
 * agent is stopping, so that the timers may not run again and the caller must fail all calls
 * itself. */
static bool leave_to_timers(struct tether__peer *peer, struct tether__session *sessions)
{
    struct tether__session *last = sessions;
    while (last && last->next)
        last = last->next;
    tether__peer_lock(peer);
    bool leaves = sessions && !tether__agent_is_parting(peer->agent);
    if (leaves) {
        last->next = peer->after.ended;
        peer->after.ended = sessions;
        tether__peer_wake_at_locked(peer, 0);
    }
    tether__peer_unlock(peer);
    return leaves;
}

/* Runs the queued work. References break before calls fail: a caller that learns from a failed call
 * that the peer is gone finds its references broken. Once the gate `visits` is closed, the
 * reference layer is being detached and breaks all references itself. */
static void run(struct tether__work *work)
{
    struct tether__peer *peer = tether__container_of(work, struct tether__peer, after.work);
    tether_agent *agent = peer->agent;
    struct tether__after *after = &peer->after;
    bool visits = agent->ext && tether__call_gate_enter(&agent->visits);
    pthread_mutex_lock(&peer->mu);
    bool fenced = after->fenced;
    struct tether__outbox_items untold;
    tether__outbox_items_init(&untold);
    uint64_t number = after->ended_number;
    tether_error why = after->why;
    struct tether__session *ended = after->ended;
    struct tether__failed_calls expired = after->expired;
    after->fenced = after->is_queued = false;
    after->ended = NULL;
    if (visits)
        tether__outbox_items_append(&untold, &after->untold);
    take(&after->expired.calls);
    pthread_mutex_unlock(&peer->mu);
    if (visits && fenced)
        tether__ext_ops->session_ended(agent->ext, peer, number, &untold, &why);
    if (visits)
        tether__call_gate_leave(&agent->visits);
    fail_expired(&expired);
    do
        ended = fail_slice(ended, &why);
    while (ended && !leave_to_timers(peer, ended));
    tether__peer_release(peer);
    tether__life_release(&agent->life);
}

void tether__peer_wake_at_locked(struct tether__peer *peer, int64_t due)
{
    if (due < peer->after.due)
        peer->after.due = due;
    peer->after.any = true;
}

void tether__peer_ended_locked(struct tether__peer *peer,
                               struct tether__session *ended,
                               uint64_t number,
                               const tether_error *error)
{
    struct tether__after *after = &peer->after;
    after->fenced = after->any = true;
    after->ended_number = number;
    after->why = *error;
    if (ended) {
        ended->next = after->ended;
        after->ended = ended;
    }
}

int64_t tether__peer_go_on_locked(struct tether__peer *peer, int64_t now)
{
    if (!peer->after.ended)
        return TETHER__NEVER;
    peer->after.goes_on = peer->after.any = true;
    return now;
}

void tether__peer_end_call_locked(struct tether__peer *peer,
                                  struct tether__ended_calls *calls,
                                  struct tether__call *call)
{
    call->next_ended = NULL;
    *calls->end = call;
    calls->end = &call->next_ended;
    peer->after.any = true;
}
