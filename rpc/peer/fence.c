/* The end of a session: the peer gets a new session; the streams of the old one close, its calls
 * fail, and the reference layer is notified. Calls fail after the lock is released (after.h). */
#include "rpc/peer/fence.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/status.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/after.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/connect/outage.h"
#include "rpc/peer/outbox.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/table.h"
#include "rpc/serve/serve.h"

void tether__peer_end_session_with_locked(struct tether__peer *peer, const tether_error *error)
{
    struct tether__session *session = peer->session;
    struct tether__stream *streams[] = {&session->out, &session->in};
    uint64_t number = session->number;
    tether__calls_note_progress_locked(session);
    struct tether__session *ended = tether__session_replace_locked(peer);
    tether__peer_ended_locked(peer, ended, number, error);
    atomic_store(&peer->fences, tether__pairing_fences(&peer->pairing));
    peer->metrics.fences++;
    for (size_t i = 0; i < 2; i++) {
        if (streams[i]->heard_at > peer->heard_at)
            peer->heard_at = streams[i]->heard_at;
        tether__stream_drop_locked(streams[i]);
        tether__lane_reset(&streams[i]->lane);
    }
    tether__outbox_end_locked(session);
    session->met = session->bound = false;
    tether__dialer_session_ended(&peer->dialer);
    tether__condition_notify(&peer->room);
}

/* Words the error of the calls: with the last connection error of the peer, if there is one, since
 * it says more than `why`. */
static void explain_locked(const struct tether__peer *peer,
                           tether_status status,
                           const char *why,
                           tether_error *ret_error)
{
    tether_error_set(ret_error, status, "worker '%s' cannot be reached: %s", peer->name,
                     peer->dialer.last_error[0] ? peer->dialer.last_error : why);
}

void tether__peer_end_session_locked(struct tether__peer *peer,
                                     tether_status status,
                                     const char *why)
{
    tether_error error;
    explain_locked(peer, status, why, &error);
    tether__peer_end_session_with_locked(peer, &error);
}

void tether__peer_give_up_with_locked(struct tether__peer *peer,
                                      const tether_error *error,
                                      const char *why)
{
    unsigned left_out;
    bool is_logged = tether__log_limit_passes(&peer->fencings,
                                              tether__clock_now_ns(peer->agent->clock), &left_out);
    if (is_logged) /* the log is limited: a peer can cause fences as often as it likes */
        tether__log(TETHER_LOG_INFO, "rpc",
                    "%s: fencing '%s': %s (and %u more since this was last logged)",
                    peer->agent->name, peer->name, why, left_out);
    if (is_logged && peer->agent->world_size > 0 && tether__dialer_knows(&peer->dialer, 0) &&
        peer->dialer.record.id == 0)
        tether__log(TETHER_LOG_WARN, "rpc",
                    "%s: rank 0 ('%s') is gone; if it hosted the store, nobody can join any more, "
                    "and this worker can only leave alone",
                    peer->agent->name, peer->name);
    tether__pairing_fence(&peer->pairing);
    tether__peer_end_session_with_locked(peer, error);
    tether__outage_tried(&peer->outage, tether__clock_now_ns(peer->agent->clock));
    peer->pairing.watching = false;
    peer->fenced = true;
    /* so that the next call asks the directory for the peer */
    tether__dialer_doubt(&peer->dialer, "");
}

void tether__peer_give_up_locked(struct tether__peer *peer, tether_status status, const char *why)
{
    tether_error error;
    explain_locked(peer, status, why, &error);
    tether__peer_give_up_with_locked(peer, &error, why);
}

void tether__peer_fence_locked(struct tether__peer *peer, const char *why)
{
    /* clear the last connection error, so that `why` is shown */
    tether__dialer_explain(&peer->dialer, "");
    tether__peer_give_up_locked(peer, TETHER_EUNAVAILABLE, why);
}

void tether__session_fence(struct tether__session *session, const char *why)
{
    tether__peer_lock(session->peer);
    if (session == session->peer->session)
        tether__peer_fence_locked(session->peer, why);
    tether__peer_unlock(session->peer);
}

void tether__agent_end_sessions(tether_agent *agent, const char *why)
{
    struct tether__peer *peer;
    for (uint64_t at = 0; (peer = tether__agent_next_peer(agent, &at));) {
        tether__peer_lock(peer);
        tether__peer_end_session_locked(peer, TETHER_ESHUTDOWN, why);
        tether__peer_unlock(peer);
        tether__peer_release(peer);
    }
}
