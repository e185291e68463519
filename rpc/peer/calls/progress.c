/* How far a call has come: asking the peer, answering its question, and wording errors. See
 * progress.h. */
#include "rpc/peer/calls/progress.h"

#include "base/clock.h"
#include "rpc/agent/internal.h"
#include "rpc/future/internal.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/serve/serve.h"
#include "rpc/wire/packed.h"

/* How long before the deadline the peer is asked: long enough for an answer from another continent,
 * and short enough for the answer to be recent. */
#define ASK_BEFORE_NS (250 * TETHER__NS_PER_MS)

/* Waits for a call that are shorter than this count as polls, and do not ask the peer. */
#define ASK_IN_WAITS_FROM_NS (20 * TETHER__NS_PER_MS)

int64_t tether__call_ask_at(int64_t started, int64_t deadline)
{
    if (deadline == TETHER__NEVER)
        return TETHER__NEVER;
    int64_t before = (deadline - started) / 8;
    return deadline - (before < ASK_BEFORE_NS ? before : ASK_BEFORE_NS);
}

/* ---- Asking ---- */

/* Sends a ping. If it is lost, the error of the call only has less detail. */
static void send_ping_locked(struct tether__stream *stream, const Tether__Ping *ping)
{
    struct tether__packed packed;
    if (tether__pack(&packed, &ping->base) != TETHER_OK)
        return;
    tether__lane_send_unnumbered(&stream->lane, TETHER__FRAME_PING, packed.bytes);
    tether__packed_fini(&packed);
}

static void ask_locked(struct tether__peer *peer, uint64_t *ids, size_t n)
{
    Tether__Ping ping = TETHER__PING__INIT;
    ping.call = ids;
    ping.n_call = n;
    if (!n)
        return;
    send_ping_locked(&peer->session->out, &ping);
    tether__stream_flush_locked(&peer->session->out, false);
}

/* Whether the peer can be asked about the call; notes the time if so. The call must have been sent
 * on the present connection. Requests of the reference layer cannot be asked about: the peer does
 * not list them. */
static bool may_ask_locked(struct tether__call *call)
{
    const struct tether__stream *out = &call->peer->session->out;
    bool may = !call->is_request && out->up && call->seq &&
               (call->seq <= out->lane.sent || call->seq == TETHER__SEQ_OF_PIECES);
    if (may)
        call->asked_at = tether__clock_now_ns(call->agent->clock);
    return may;
}

/* Marks that `ask_at` has passed. Returns whether the peer should be asked now; true at most once
 * for a call. */
static bool begin_to_ask_locked(struct tether__call *call)
{
    if (call->is_due)
        return false;
    call->is_due = true;
    return may_ask_locked(call);
}

void tether__call_ask(struct tether__call *call)
{
    struct tether__peer *peer = call->peer;
    tether__peer_lock(peer);
    if (tether__call_look_up_locked(peer, call->id) == call && begin_to_ask_locked(call))
        ask_locked(peer, &call->id, 1);
    tether__peer_unlock(peer);
}

/* Asks the peer shortly before a wait times out that ends before the call does. Of many short waits
 * in a row only one in 250 ms asks. */
static void ask_meanwhile(struct tether__call *call)
{
    struct tether__peer *peer = call->peer;
    int64_t now = tether__clock_now_ns(call->agent->clock);
    tether__peer_lock(peer);
    if (tether__call_look_up_locked(peer, call->id) == call &&
        (!call->asked_at || now - call->asked_at >= ASK_BEFORE_NS) && may_ask_locked(call))
        ask_locked(peer, &call->id, 1);
    tether__peer_unlock(peer);
}

bool tether__call_future_await(tether_future *future, int64_t deadline)
{
    struct tether__call *call = tether__container_of(future, struct tether__call, future);
    int64_t now = tether__clock_now_ns(call->agent->clock);
    if (deadline < call->ask_at && deadline - now >= ASK_IN_WAITS_FROM_NS) {
        if (tether__future_await(future, tether__call_ask_at(now, deadline)))
            return true;
        ask_meanwhile(call);
    }
    return tether__future_await(future, deadline);
}

void tether__call_ask_later_locked(struct tether__asked *asked, struct tether__call *call)
{
    if (begin_to_ask_locked(call))
        asked->ids[asked->n++] = call->id;
}

void tether__calls_ask_locked(struct tether__peer *peer, struct tether__asked *asked)
{
    ask_locked(peer, asked->ids, asked->n);
}

/* ---- Answering ---- */

static void answer_locked(struct tether__stream *stream, const Tether__Ping *question)
{
    uint32_t states[TETHER__MAX_ASKED];
    Tether__Ping answer = TETHER__PING__INIT;
    answer.answer = true;
    answer.n_call = question->n_call < TETHER__MAX_ASKED ? question->n_call : TETHER__MAX_ASKED;
    answer.n_state = answer.n_call;
    answer.call = question->call;
    answer.state = states;
    for (size_t i = 0; i < answer.n_call; i++)
        states[i] = tether__incoming_state_locked(stream->session, question->call[i]);
    send_ping_locked(stream, &answer);
}

void tether__call_on_ping_locked(struct tether__stream *stream, const Tether__Ping *ping)
{
    struct tether__peer *peer = stream->peer;
    if (!ping->answer) {
        answer_locked(stream, ping);
        return;
    }
    for (size_t i = 0; i < ping->n_call && i < ping->n_state && i < TETHER__MAX_ASKED; i++) {
        struct tether__call *call = tether__call_look_up_locked(peer, ping->call[i]);
        if (!call || !call->asked_at || ping->state[i] >= TETHER__N_CALL_STATES)
            continue;
        call->state = ping->state[i];
        call->reported_at = tether__clock_now_ns(peer->agent->clock);
    }
}

/* ---- Explaining ---- */

static const char *progress_here_locked(const struct tether__call *call)
{
    return tether__incoming_state_locked(call->peer->session, call->id) == TETHER__CALL_RUNS
               ? "has not returned"
               : "has not begun";
}

/* Words the state that the peer has reported. NULL: it has reported none, or one that says nothing
 * new. */
static const char *progress_reported(const struct tether__call *call, bool has_arrived)
{
    if (!call->reported_at)
        return NULL;
    switch (call->state) {
        case TETHER__CALL_WAITS:
            return "waited for references or its object there";
        case TETHER__CALL_QUEUED:
            return "waited for a thread there";
        case TETHER__CALL_RUNS:
            return "was running there";
        default:
            return has_arrived ? "was answered there" : NULL;
    }
}

static const char *progress_sent(const struct tether__call *call, struct tether__sent out)
{
    if (!call->seq)
        return out.up ? "connected" : "no connection";
    if (call->seq == TETHER__SEQ_OF_PIECES)
        return "sent in pieces, arrival not confirmed";
    if (call->seq <= out.acked)
        return call->asked_at && out.up ? "arrived there, no word whether it runs"
                                        : "arrived there";
    if (call->seq <= out.sent)
        return "sent, arrival not confirmed";
    return out.up ? "not sent yet" : "not sent, no connection";
}

struct tether__sent tether__sent_locked(const struct tether__stream *out)
{
    return (struct tether__sent){out->lane.sent, out->lane.acked, out->up};
}

static void note_progress(struct tether__call *call, struct tether__sent out)
{
    call->progress = progress_reported(call, call->seq && call->seq <= out.acked);
    if (call->progress)
        return;
    call->reported_at = 0;
    call->progress = progress_sent(call, out);
}

void tether__call_note_progress_locked(struct tether__call *call)
{
    if (call->peer->is_self)
        call->progress = progress_here_locked(call);
    else
        note_progress(call, tether__sent_locked(&call->peer->session->out));
}

void tether__call_note_ended(struct tether__call *call, const struct tether__session *ended)
{
    if (!call->peer->is_self) /* a call to this worker itself: noted when the session ended */
        note_progress(call, ended->sent);
}

static long long ms_since(const struct tether__call *call, int64_t then)
{
    return (long long)((tether__clock_now_ns(call->agent->clock) - then) / TETHER__NS_PER_MS);
}

void tether__call_explain_end(const struct tether__call *call,
                              tether_status status,
                              const tether_error *cause,
                              tether_error *ret_error)
{
    char when[32] = "";
    long long ms = ms_since(call, call->started);
    if (call->reported_at)
        snprintf(when, sizeof when, " %lld ms ago", ms_since(call, call->reported_at));
    if (status == TETHER_ETIMEOUT)
        tether_error_set(
            ret_error, status, "calling '%.60s' on worker '%s' timed out after %lld ms (%s%s): %s",
            call->function, call->peer->name, ms, call->progress, when, cause->message);
    else if (status == TETHER_EUNAVAILABLE)
        tether_error_set(ret_error, status, "calling '%.60s' failed after %lld ms (%s%s): %s",
                         call->function, ms, call->progress, when, cause->message);
    else
        *ret_error = *cause;
}

void tether__call_explain_wait(tether_future *future, int timeout_ms, tether_error *ret_error)
{
    struct tether__call *call = tether__container_of(future, struct tether__call, future);
    struct tether__peer *peer = call->peer;
    char when[32] = "";
    const char *progress = "just answered or failed";
    tether__peer_lock(peer);
    if (tether__call_look_up_locked(peer, call->id) == call) {
        tether__call_note_progress_locked(call);
        progress = call->progress;
        if (call->reported_at)
            snprintf(when, sizeof when, " %lld ms ago", ms_since(call, call->reported_at));
    }
    tether__peer_unlock(peer);
    tether_error_set(ret_error, TETHER_ETIMEOUT,
                     "waiting for '%.60s' on worker '%s' timed out after %d ms (%s%s), %lld ms "
                     "after the call began: the call goes on, wait again or cancel it",
                     call->function, peer->name, timeout_ms, progress, when,
                     ms_since(call, call->started));
}
