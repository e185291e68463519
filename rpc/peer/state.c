/* Handshake and state of a stream: how both ends agree on a session, or refuse each other.
 *
 * The dialler sends Hello1, gets Hello2, sends Hello3 with its state, and gets the state of the
 * peer. At the other end accept.c does the handshake and takes the state. When both states name the
 * same numbers, the lane goes on from where the peer says it is (pairing.h judges the states).
 *
 * Failure modes: a refusal ends this conn and nothing else, unless the peer has proved who it is,
 * or there is no session to lose. Lock rule: peer->mu is held throughout.
 */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/text.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent/internal.h"
#include "rpc/handshake/handshake.h"
#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/admission/starts.h"
#include "rpc/peer/after.h"
#include "rpc/peer/connect/outage.h"
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/transport/transport.h"
#include "rpc/wire/packed.h"
#include "rpc/wire/slice.h"

/* Sends one frame alone in its batch, outside of the lane's numbering. False: no memory; the peer
 * will be dialled again. */
static bool send_alone_locked(struct tether__stream *stream, Tether__Frame *frame)
{
    struct tether__packed packed;
    if (tether__handshake_pack(frame, &packed) != TETHER_OK) {
        tether__stream_redial_locked(stream);
        return false;
    }
    struct tether__slice piece = {packed.bytes.data, packed.bytes.len, NULL};
    stream->sending = !stream->conn->transport->ops->send(stream->conn, &piece, 1);
    tether__packed_fini(&packed);
    return true;
}

/* Sends Hello1, the dialler's first message. */
void tether__stream_begin_handshake_locked(struct tether__stream *stream)
{
    struct tether__peer *peer = stream->peer;
    const struct tether__self *self = &peer->agent->self;
    uint8_t nonce[TETHER__NONCE_SIZE];
    stream->handshake = tether__malloc(sizeof *stream->handshake);
    if (!stream->handshake) {
        tether__stream_redial_locked(stream);
        return;
    }
    if (self->token)
        arc4random_buf(nonce, sizeof nonce);
    tether__handshake_init(stream->handshake, self, true, peer->name, self->token ? nonce : NULL);
    Tether__Hello1 hello = tether__handshake_begin(stream->handshake);
    Tether__Frame frame = TETHER__FRAME__INIT;
    frame.body_case = TETHER__FRAME__BODY_HELLO1;
    frame.hello1 = &hello;
    send_alone_locked(stream, &frame);
}

/* Sends a state: inside Hello3 if the handshake is under way, else in a frame of its own. */
static bool send_state_locked(struct tether__stream *stream, Tether__State *state)
{
    Tether__Frame frame = TETHER__FRAME__INIT;
    Tether__Hello3 hello;
    frame.body_case = TETHER__FRAME__BODY_STATE;
    frame.state = state;
    if (stream->handshake) {
        hello = tether__handshake_finish(stream->handshake, state);
        frame.body_case = TETHER__FRAME__BODY_HELLO3;
        frame.hello3 = &hello;
    }
    if (!send_alone_locked(stream, &frame))
        return false;
    stream->handshake = tether__free(stream->handshake);
    return true;
}

/* Sends the state, unless the last one on this conn had the same numbers. The state leaves before
 * all queued frames. While a send is under way it waits: on_sent() calls this again. */
void tether__stream_say_state_locked(struct tether__stream *stream)
{
    uint64_t version = stream->peer->pairing.version;
    bool is_pending = stream->handshake && stream->handshake->phase != TETHER__HANDSHAKE_DONE;
    if (stream->stated_version == version || stream->sending || is_pending)
        return;
    uint64_t dial = tether__stream_is_out(stream) ? stream->peer->n_dials : 0;
    Tether__State state =
        tether__pairing_state(&stream->peer->pairing, dial, tether__lane_applied(&stream->lane));
    if (send_state_locked(stream, &state))
        stream->stated_version = version;
}

/* Resumes the lane, since both ends have named the same session. False: the frame numbers of the
 * two ends do not fit together. */
static bool resume_locked(struct tether__stream *stream, uint64_t received)
{
    struct tether__peer *peer = stream->peer;
    if (tether__lane_connected(&stream->lane, received) != TETHER_OK)
        return false;
    stream->up = true;
    stream->session->met = true;
    tether__peer_end_naming_locked(peer);
    if (tether__stream_is_out(stream))
        tether__dialer_up(&peer->dialer);
    tether__dialer_met(&peer->dialer);
    peer->metrics.connects++;
    atomic_store(&peer->incarnation, peer->pairing.peer_incarnation);
    atomic_store(&peer->id, peer->pairing.peer_id);
    peer->fenced = false;
    tether__outage_end(&peer->outage);
    stream->heard_at = tether__stream_now(stream);
    tether__pairing_heard(&peer->pairing, stream->heard_at);
    tether__peer_wake_at_locked(peer, 0); /* so that the timers watch the lease, which has begun */
    tether__log(TETHER_LOG_DEBUG, "rpc", "%s: %s stream with '%s' is up", peer->agent->name,
                tether__stream_is_out(stream) ? "outgoing" : "incoming", peer->name);
    return true;
}

/* Whether a refusal is about the present starts of both workers. It is not when an earlier start of
 * the peer answered, or when a later dial has replaced this stream. */
static bool concerns_peer(const struct tether__state_result *result, tether_status code)
{
    return result->replaced || (code != TETHER_EFENCED && code != TETHER_ECANCELED);
}

/* Closes a stream after one end has refused the other.
 *
 * A refusal (TETHER_EPERM, TETHER_EAUTH) that comes a second time, after the directory was asked
 * again, ends the session: calls fail at once instead of waiting for the lease. This counts only if
 * the other end has proved that it is the peer, or if no stream was up in the session, so that no
 * session with a live peer can be lost. Otherwise a process on the port of a dead worker could end
 * that worker's session. As it is, such a process can only make calls to the dead worker fail
 * earlier, with another error than TETHER_EUNAVAILABLE.
 */
void tether__stream_rejected_locked(struct tether__stream *stream,
                                    const struct tether__state_result *result,
                                    const tether_error *why)
{
    struct tether__peer *peer = stream->peer;
    bool counts = stream->proved || !peer->session->met;
    bool again = result->refused && counts && peer->dialer.refusal.code == why->code;
    tether__dialer_explain(&peer->dialer, why->message);
    if (concerns_peer(result, why->code))
        peer->dialer.refusal = *why;
    if (result->replaced)
        tether__agent_on_replaced(peer->agent);
    if (tether__stream_is_out(stream) && (again || (result->replaced && stream->proved))) {
        tether__peer_give_up_locked(peer, why->code, "");
        peer->dialer.refusal.code = TETHER_OK;
    } else {
        if (tether__stream_is_out(stream))
            peer->dialer.record_is_old = true;
        tether__stream_redial_locked(stream);
    }
}

/* Tells a stale start of the peer, which is at the other end, that a later start has replaced it.
 */
static void tell_stale_locked(struct tether__stream *stream, uint64_t known)
{
    Tether__State refusal = TETHER__STATE__INIT;
    refusal.from_incarnation = stream->peer->agent->self.incarnation;
    refusal.to_incarnation = known;
    refusal.refused = TETHER_EFENCED;
    refusal.reason = (char *)"a later start of this worker has replaced it";
    tether__dialer_doubt(&stream->peer->dialer, "an earlier start of it answers at its address");
    if (!stream->sending && send_state_locked(stream, &refusal))
        tether__stream_close_locked(stream, true);
    else
        tether__stream_drop_locked(stream);
    tether__peer_connect_locked(stream->peer);
}

/* Logs a refused stream. The peer can cause refusals as often as it likes, so the log has a limit.
 */
static void log_refusal_locked(struct tether__stream *stream, const char *why)
{
    struct tether__peer *peer = stream->peer;
    unsigned left_out;
    if (tether__log_limit_passes(&peer->rejections, tether__stream_now(stream), &left_out))
        tether__log(TETHER_LOG_WARN, "rpc",
                    "%s: refused a stream with '%s': %s (and %u more since this was last logged)",
                    peer->agent->name, peer->name, why, left_out);
}

/* Closes the stream and asks the directory before the next dial, because another start of the peer
 * may listen at the address. */
static void look_up_again_locked(struct tether__stream *stream, const char *why)
{
    tether__dialer_doubt(&stream->peer->dialer, why);
    tether__stream_redial_locked(stream);
}

/* Handles Hello2, the listener's answer. Afterwards each end knows the name that the other end
 * claims, and whether it is proved. */
void tether__stream_on_hello2_locked(struct tether__stream *stream, const Tether__Hello2 *hello)
{
    struct tether__peer *peer = stream->peer;
    struct tether__handshake *handshake = stream->handshake;
    tether_error why = {0};
    tether_status st = tether__handshake_on_hello2(handshake, hello, &why);
    stream->proved |= handshake->proved;
    if (st != TETHER_OK) {
        log_refusal_locked(stream, why.message);
        tether__stream_rejected_locked(
            stream,
            &(struct tether__state_result){.verdict = TETHER__STATE_REJECT,
                                           .refused = st == TETHER_EPERM || st == TETHER_EAUTH},
            &why);
        return;
    }
    uint64_t known = tether__peer_known_start_locked(peer);
    switch (tether__handshake_belief(stream->proved, handshake->peer_incarnation, known)) {
        case TETHER__BELIEVED:
            if (tether__start_take_locked(peer, handshake->peer_incarnation, &why) != TETHER_OK) {
                look_up_again_locked(stream, why.message);
                break;
            }
            stream->peer_incarnation = handshake->peer_incarnation;
            tether__stream_say_state_locked(stream);
            break;
        case TETHER__UNCONFIRMED:
            look_up_again_locked(stream,
                                 "another start of it than the directory's answers at its address");
            break;
        case TETHER__STALE:
            tell_stale_locked(stream, known);
            break;
    }
}

/* Handles a state that the peer has sent: it brings the stream up, refuses it, or ends the session.
 */
void tether__stream_on_state_locked(struct tether__stream *stream, const Tether__State *state)
{
    struct tether__peer *peer = stream->peer;
    tether_error why = {0};
    if (!state->refused && state->from_incarnation != stream->peer_incarnation) {
        log_refusal_locked(stream, "the worker speaks for another start than its own");
        tether__stream_redial_locked(stream);
        return;
    }
    struct tether__state_result result = tether__pairing_on_state(&peer->pairing, state, &why);
    atomic_store(&peer->fences, tether__pairing_fences(&peer->pairing));
    if (result.verdict == TETHER__STATE_REJECT) {
        log_refusal_locked(stream, why.message);
        if (tether__stream_is_out(stream))
            peer->n_dials = tether__pairing_next_dial(peer->n_dials, state);
        tether__stream_rejected_locked(stream, &result, &why);
        return;
    }
    bool ended = false;
    bool goes_on = result.verdict == TETHER__STATE_FENCED && tether__peer_is_unbound_locked(peer);
    if (tether__state_fences(result.verdict) && !goes_on) {
        struct tether__conn *conn = stream->conn;
        bool restarted = result.verdict == TETHER__STATE_FENCED;
        ended = true;
        stream->conn = NULL; /* keep the conn open: it goes on in the new session */
        tether__peer_end_session_locked(
            peer, restarted ? TETHER_EUNAVAILABLE : TETHER_EFENCED,
            restarted ? "it was restarted" : "it had given this worker up");
        stream->conn = conn;
        bool is_out = tether__stream_is_out(stream);
        stream = tether__stream_move_locked(stream);
        if (!stream) {
            if (is_out)
                tether__peer_connect_locked(peer);
            return;
        }
    }
    if (result.up && !resume_locked(stream, result.received)) {
        if (ended) { /* this state has ended one session already; do not end the next one, too */
            tether__stream_redial_locked(stream);
            return;
        }
        /* one end no longer has frames that the other end counts on */
        tether__pairing_fence(&peer->pairing);
        tether__peer_end_session_locked(peer, TETHER_EUNAVAILABLE, "it does not remember us");
        return;
    }
    if (!result.up) {
        stream->up = false;
        if (tether__stream_is_out(stream))
            tether__dialer_down(&peer->dialer);
        tether__lane_disconnected(&stream->lane);
    }
    tether__stream_say_state_locked(stream);
    tether__stream_flush_locked(stream, false);
}
