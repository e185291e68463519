/* The timers of one peer: its lease, its dials, pings, acknowledgements, retries and deadlines. */
#include <stdio.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/agent/internal.h"
#include "rpc/call/budget.h"
#include "rpc/call/retry.h"
#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/admission/starts.h"
#include "rpc/peer/after.h"
#include "rpc/peer/calls/dues.h"
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/timers.h"

/* counted from the dial; longer than a transport takes to give up connecting */
#define HANDSHAKE_WITHIN_MS 15000

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

tether_status tether__peer_may_send(const struct tether__peer *peer, uint32_t kind)
{
    const struct tether__agent_hooks *hooks = peer->agent->opts.hooks;
    return hooks && hooks->before_send ? hooks->before_send(hooks->userdata, peer->name, kind)
                                       : TETHER_OK;
}

static void ping_locked(struct tether__stream *stream)
{
    if (stream->up && tether__lane_send_unnumbered(&stream->lane, TETHER__FRAME_PING,
                                                   tether_bytes_of(NULL, 0)) == TETHER_OK)
        tether__stream_flush_locked(stream, false);
}

/* Pings a stream on which nothing has arrived for a third of the lease. After another third it
 * closes the conn and dials again: the network may have dropped that conn silently while the other
 * stream still works. Returns when to check again. */
static int64_t tick_silence_locked(struct tether__stream *stream, int64_t now)
{
    struct tether__peer *peer = stream->peer;
    int64_t third = (int64_t)peer->pairing.lease_ms * TETHER__NS_PER_MS / 3;
    int64_t longest = 2 * third;
    if (!stream->conn)
        return TETHER__NEVER;
    if (!stream->up && longest > HANDSHAKE_WITHIN_MS * TETHER__NS_PER_MS)
        longest = HANDSHAKE_WITHIN_MS * TETHER__NS_PER_MS;
    if (now - stream->heard_at >= longest) {
        char why[80];
        snprintf(why, sizeof why, "nothing came on its stream for %lld ms",
                 (long long)((now - stream->heard_at) / TETHER__NS_PER_MS));
        tether__dialer_explain(&peer->dialer, why);
        tether__stream_drop_locked(stream);
        if (tether__stream_is_out(stream))
            tether__peer_connect_locked(peer);
        return peer->dialer.due;
    }
    int64_t ping_at =
        (stream->heard_at > stream->pinged_at ? stream->heard_at : stream->pinged_at) + third;
    if (ping_at <= now) {
        tether__lane_trim(&stream->lane);
        ping_locked(stream);
        stream->pinged_at = now;
        ping_at = now + third;
    }
    return earlier(ping_at, stream->heard_at + longest);
}

static int64_t tick_stream_locked(struct tether__stream *stream, int64_t now)
{
    int64_t next = tick_silence_locked(stream, now);
    if (stream->sent_due <= now)
        tether__stream_ask_sent_locked(stream);
    next = earlier(next, stream->sent_due);
    if (stream->ack_due > now)
        return earlier(next, stream->ack_due);
    stream->ack_due = TETHER__NEVER;
    if (tether__lane_owes_ack(&stream->lane))
        tether__stream_flush_locked(stream, true);
    return next;
}

/* Ends the session with the peer, because a later start of this worker has taken its name. A
 * goodbye makes the peer release this worker's references now, not after another lease. */
static void leave_to_successor_locked(struct tether__peer *peer)
{
    bool has_session = peer->session->out.conn || peer->session->in.conn ||
                       peer->session->n_calls || peer->pairing.watching;
    if (peer->is_self || !has_session)
        return;
    tether__dialer_explain(&peer->dialer, "");
    tether__stream_part_locked(peer->session->out.up ? &peer->session->out : &peer->session->in);
    tether__peer_give_up_locked(peer, TETHER_EFENCED, TETHER__REPLACED);
}

int64_t tether__peer_tick(struct tether__peer *peer, int64_t now, bool *ret_idle_is_over)
{
    int64_t next = TETHER__NEVER, lease_next = TETHER__NEVER;
    tether__peer_lock(peer);
    /* compared below, so that at most one session ends in a tick */
    const struct tether__session *session = peer->session;
    if (peer->pairing.watching) {
        switch (tether__pairing_tick(&peer->pairing, now, &lease_next)) {
            case TETHER__LEASE_OVER:
                tether__peer_lost_locked(peer, now);
                lease_next = TETHER__NEVER;
                break;
            case TETHER__LEASE_PING: /* tick_stream_locked() pings each stream */
            case TETHER__LEASE_FINE:
                break;
        }
        next = earlier(next, lease_next);
    }
    if (atomic_load(&peer->agent->replaced) && peer->session == session)
        leave_to_successor_locked(peer);
    if (tether__start_was_lost_locked(peer) && peer->session == session)
        tether__peer_fence_locked(peer, "its start number is that of another worker");
    if (peer->dialer.due <= now)
        tether__peer_dial_due_locked(peer);
    if (peer->outage.give_up_at <= now && peer->session == session)
        tether__peer_attempt_failed_locked(peer);
    next = earlier(next, peer->outage.give_up_at);
    next = earlier(next, peer->dialer.due);
    next = earlier(next, tick_stream_locked(&peer->session->out, now));
    next = earlier(next, tick_stream_locked(&peer->session->in, now));
    if (peer->session->outbox.is_stuck && peer->session == session) {
        tether__dialer_explain(&peer->dialer, "");
        tether__peer_give_up_locked(peer, TETHER_EUNAVAILABLE,
                                    "what it must be told about references is beyond "
                                    "max_message_bytes");
    }
    next = earlier(next, tether__outbox_tick_locked(peer->session, now));
    if (peer->session->dues.next <= now)
        peer->session->dues.next = tether__calls_expire_locked(peer, now);
    next = earlier(next, peer->session->dues.next);
    next = earlier(next, tether__peer_go_on_locked(peer, now));
    int64_t idle_until = tether__peer_idle_until_locked(peer, now);
    /* not `next`, which may be earlier because calls of an ended session are left to fail */
    *ret_idle_is_over = idle_until <= now;
    next = earlier(next, idle_until);
    tether__peer_unlock(peer);
    return next;
}
