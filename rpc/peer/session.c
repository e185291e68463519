/* The session object. See session.h. */
#include "rpc/peer/session.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "rpc/agent/internal.h"
#include "rpc/peer/peer.h"

static void init_stream(struct tether__session *session, struct tether__stream *stream)
{
    stream->session = session;
    stream->peer = session->peer;
    stream->ack_due = stream->sent_due = TETHER__NEVER;
    tether__lane_init(&stream->lane, &session->peer->agent->lane_limits);
}

struct tether__session *tether__session_new(struct tether__peer *peer)
{
    struct tether__session *session = tether__calloc(1, sizeof *session);
    if (!session)
        return NULL;
    session->peer = peer;
    atomic_init(&session->refs, 1);
    session->first_free = UINT32_MAX;
    tether__outbox_init(&session->outbox);
    tether__call_dues_init(&session->dues);
    init_stream(session, &session->out);
    init_stream(session, &session->in);
    tether__map_init(&session->incoming, &tether__map_u64);
    return session;
}

struct tether__session *tether__session_retain(struct tether__session *session)
{
    atomic_fetch_add_explicit(&session->refs, 1, memory_order_relaxed);
    tether__peer_retain(session->peer);
    return session;
}

static void destroy(struct tether__session *session)
{
    tether__lane_fini(&session->out.lane);
    tether__lane_fini(&session->in.lane);
    tether__map_fini(&session->incoming);
    tether__free(session->out.handshake);
    tether__free(session->slots);
    tether__free(session);
}

void tether__session_drop(struct tether__session *session)
{
    if (session && atomic_fetch_sub_explicit(&session->refs, 1, memory_order_acq_rel) == 1)
        destroy(session);
}

void tether__session_release(struct tether__session *session)
{
    struct tether__peer *peer = session->peer;
    tether__session_drop(session);
    tether__peer_release(peer);
}

bool tether__session_make_spare_locked(struct tether__peer *peer)
{
    if (!peer->spare)
        peer->spare = tether__session_new(peer);
    return peer->spare != NULL;
}

bool tether__session_may_begin_locked(struct tether__peer *peer, tether_error *ret_why)
{
    if (tether__session_make_spare_locked(peer))
        return true;
    tether_error_set(ret_why, TETHER_ENOMEM, "no memory for a session with '%s'", peer->name);
    return false;
}

struct tether__session *tether__session_replace_locked(struct tether__peer *peer)
{
    struct tether__session *ended = NULL;
    uint64_t number = peer->session->number + 1;
    if (peer->spare) {
        ended = peer->session;
        atomic_store(&ended->ended, true);
        peer->session = peer->spare;
        peer->spare = NULL;
    }
    peer->session->number = number;
    atomic_store(&peer->session_number, number);
    return ended;
}
