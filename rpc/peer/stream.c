/* One stream with a peer: its connections. flush.c writes, receive.c reads, state.c agrees with the
 * peer on the session.
 *
 * Happy path, out: dial → opened → handshake → up. Happy path, in: accept.c has done the handshake
 * → the state in Hello3 → we say ours → up.
 *
 * Failure modes: a conn that closes leaves the lane as it is, to be resumed by the next one. A conn
 * that is no longer its stream's (replaced, fenced) is ignored until it has closed. One that
 * follows a conn of the other transport, whose thread is still at a message, has to come again:
 * messages of a stream are handled one at a time, in order.
 *
 * Lock rule: peer->mu is held throughout, except while receive.c handles a message.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/future/thread_context.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/handshake.h"
#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/after.h"
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/transport/transport.h"
#include "rpc/wire/packed.h"
#include "rpc/wire/slice.h"
#include "rpc/wire/wire.h"

static const struct tether__conn_events stream_events;

int64_t tether__stream_now(const struct tether__stream *stream)
{
    return tether__clock_now_ns(stream->peer->agent->clock);
}

void tether__stream_close_locked(struct tether__stream *stream, bool polite)
{
    struct tether__conn *conn = stream->conn;
    if (!conn)
        return;
    stream->conn = NULL;
    stream->up = stream->sending = false;
    stream->ack_due = TETHER__NEVER;
    stream->handshake = tether__free(stream->handshake);
    tether__lane_disconnected(&stream->lane);
    if (tether__stream_is_out(stream))
        tether__dialer_closed(&stream->peer->dialer);
    conn->transport->ops->close(conn, polite);
}

void tether__stream_drop_locked(struct tether__stream *stream)
{
    tether__stream_close_locked(stream, false);
}

void tether__stream_part_locked(struct tether__stream *stream)
{
    if (stream->up &&
        tether__lane_send(&stream->lane, TETHER__FRAME_GOODBYE, tether_bytes_of(NULL, 0),
                          TETHER__SLICE_EMPTY, 0) == TETHER_OK)
        tether__stream_flush_locked(stream, false);
    tether__stream_close_locked(stream, true);
}

/* The conn is of no use any more, but the peer may still be reachable through another one. */
void tether__stream_redial_locked(struct tether__stream *stream)
{
    tether__stream_drop_locked(stream);
    if (tether__stream_is_out(stream))
        tether__peer_connect_locked(stream->peer);
}

bool tether__stream_is_out(const struct tether__stream *stream)
{
    return stream == &stream->session->out;
}

static void adopt_conn_locked(struct tether__stream *stream, struct tether__conn *conn)
{
    tether__stream_drop_locked(stream);
    tether__session_retain(stream->session); /* on_closed() gives this count back */
    stream->conn = conn;
    /* so that the timers limit the time for the handshake */
    tether__peer_wake_at_locked(stream->peer, 0);
    stream->up = stream->sending = stream->proved = false;
    stream->peer_incarnation = 0;
    stream->stated_version = 0;
    stream->heard_at = stream->pinged_at = tether__stream_now(stream);
}

void tether__stream_dial_locked(struct tether__stream *stream,
                                struct tether__route *route,
                                const char *address)
{
    struct tether__transport *transport = route->transport;
    if (!tether__session_make_spare_locked(stream->peer))
        return;
    tether__peer_retain(stream->peer);
    struct tether__conn *conn = transport->ops->dial(transport, address, &stream_events, stream);
    if (conn) {
        adopt_conn_locked(stream, conn);
        stream->peer->n_dials++;
    }
    tether__peer_release(stream->peer);
}

struct tether__stream *tether__stream_move_locked(struct tether__stream *stream)
{
    struct tether__session *present = stream->peer->session;
    struct tether__stream *to = tether__stream_is_out(stream) ? &present->out : &present->in;
    struct tether__conn *conn = stream->conn;
    if (!tether__session_make_spare_locked(stream->peer)) {
        tether__stream_drop_locked(stream);
        return NULL;
    }
    if (stream->up && tether__stream_is_out(stream))
        tether__dialer_down(&stream->peer->dialer);
    stream->conn = NULL;
    stream->up = false;
    tether__session_retain(present);
    to->conn = conn;
    to->sending = stream->sending;
    to->proved = stream->proved;
    to->peer_incarnation = stream->peer_incarnation;
    to->stated_version = stream->stated_version;
    to->heard_at = stream->heard_at;
    to->pinged_at = stream->pinged_at;
    conn->userdata = to; /* safe: only the thread that handles this message reads it */
    if (tether__current.receiving == stream)
        tether__current.receiving = to;
    tether__session_release(stream->session); /* not the last count: peer->after holds one */
    return to;
}

bool tether__stream_is_free_locked(const struct tether__stream *stream, tether_error *ret_why)
{
    if (stream->receiving)
        tether_error_set(ret_why, TETHER_EUNAVAILABLE,
                         "worker '%s' reconnected while a message from its previous connection is "
                         "still being handled: it dials again",
                         stream->peer->name);
    return !stream->receiving;
}

/* Whether the certificate is that of the peer. With mutual TLS the transport only checks that our
 * CA has signed it; which worker listens at the address is shown by the names in it. */
static bool is_of_peer(const struct tether__peer *peer, const char *const *cert_names)
{
    if (!tether__has_mutual_tls(peer->agent))
        return true;
    for (; cert_names && *cert_names; cert_names++)
        if (strcmp(*cert_names, peer->name) == 0)
            return true;
    return false;
}

static void on_opened(struct tether__conn *conn, const char *const *cert_names)
{
    struct tether__stream *stream = conn->userdata;
    struct tether__peer *peer = stream->peer;
    tether__peer_lock(peer);
    if (stream->conn == conn && is_of_peer(peer, cert_names)) {
        stream->proved = conn->transport->vouches || tether__has_mutual_tls(peer->agent);
        stream->heard_at = tether__stream_now(stream);
        tether__stream_begin_handshake_locked(stream);
    } else if (stream->conn == conn) {
        tether_error why;
        tether_error_set(&why, TETHER_EPERM,
                         "it has a certificate of another name: put its own into subjectAltName");
        tether__stream_rejected_locked(stream, &(struct tether__state_result){.refused = true},
                                       &why);
    }
    tether__peer_unlock(peer);
}

/* Handles a message on a stream that is not up yet: a part of the handshake, or a state. */
static void first_message_locked(struct tether__stream *stream, struct tether__slice message)
{
    const Tether__Frame *frame = NULL;
    tether_error why = {0};
    TETHER__ARENA(arena, 1024);
    tether_status st = tether__handshake_read(message, &arena, &frame, &why);
    if (st == TETHER_OK && stream->handshake && frame->body_case == TETHER__FRAME__BODY_HELLO2)
        tether__stream_on_hello2_locked(stream, frame->hello2);
    else if (st == TETHER_OK && !stream->handshake &&
             frame->body_case == TETHER__FRAME__BODY_STATE &&
             tether__stream_is_free_locked(stream, &why))
        tether__stream_on_state_locked(stream, frame->state);
    else
        tether__stream_redial_locked(stream);
    tether__arena_fini(&arena);
}

static void on_message(struct tether__conn *conn, struct tether__slice message)
{
    struct tether__stream *stream = conn->userdata;
    struct tether__peer *peer = stream->peer;
    struct tether__stream *outer = tether__current.receiving;
    tether__current.receiving = stream;
    tether__peer_lock(peer);
    size_t unacked = stream->lane.unacked_bytes;
    if (stream->conn == conn && stream->up) {
        tether__stream_receive_locked(stream, message);
    } else if (stream->conn == conn) {
        first_message_locked(stream, message);
    }
    if (stream->lane.unacked_bytes < unacked)
        tether__condition_notify(&peer->room);
    tether__peer_unlock(peer);
    tether__current.receiving = outer;
    tether__flush_what_was_left(peer->agent);
}

static void on_sent(struct tether__conn *conn)
{
    struct tether__stream *stream = conn->userdata;
    tether__peer_lock(stream->peer);
    if (stream->conn == conn) {
        stream->sending = false;
        tether__stream_say_state_locked(stream);
        tether__stream_flush_polled_locked(stream);
    }
    tether__peer_unlock(stream->peer);
}

/* Resets a stream after its conn has closed. */
static void ended_locked(struct tether__stream *stream, tether_status status, const char *why)
{
    struct tether__peer *peer = stream->peer;
    bool local = stream->conn->transport == peer->agent->local.transport;
    bool may_be_here = local || !tether__dialer_knows(&peer->dialer, 0) ||
                       tether__peer_is_at_own_address_locked(peer);
    bool broke = may_be_here && stream->up && status == TETHER_EUNAVAILABLE;
    if (tether__stream_is_out(stream))
        tether__dialer_broke(&peer->dialer);
    stream->conn = NULL;
    stream->up = stream->sending = false;
    stream->ack_due = TETHER__NEVER;
    stream->handshake = tether__free(stream->handshake);
    tether__lane_disconnected(&stream->lane);
    if (status != TETHER_OK)
        tether__dialer_explain(&peer->dialer, why);
    /* this worker has said goodbye, so no later conn resumes the lane */
    if (peer->dialer.state == TETHER__DIALER_STOPPED)
        tether__lane_reset(&stream->lane);
    if (tether__stream_is_out(stream) || broke)
        tether__peer_connect_locked(peer);
}

/* Whether the conn was closed because one end refuses the other, so that dialling the same address
 * again would fail, too. */
static bool is_refusal(const struct tether__stream *stream, tether_status status)
{
    return tether__stream_is_out(stream) && !stream->up &&
           stream->peer->dialer.state != TETHER__DIALER_STOPPED &&
           (status == TETHER_EPERM || status == TETHER_EAUTH);
}

static void on_closed(struct tether__conn *conn, tether_status status, const char *why)
{
    struct tether__stream *stream = conn->userdata;
    struct tether__session *session = stream->session;
    struct tether__peer *peer = stream->peer;
    tether__peer_lock(peer);
    if (stream->conn == conn && is_refusal(stream, status)) {
        tether_error refusal;
        tether_error_set(&refusal, status, "%s", why);
        tether__stream_rejected_locked(stream, &(struct tether__state_result){.refused = true},
                                       &refusal);
    } else if (stream->conn == conn) {
        bool local = conn->transport == peer->agent->local.transport;
        ended_locked(stream, status, why);
        if (status == TETHER_ENOTFOUND && tether__stream_is_out(stream) &&
            (local || tether__peer_is_at_own_address_locked(peer)))
            tether__peer_refused_locked(peer,
                                        "its process has ended, its socket refused a connection");
    }
    tether__peer_unlock(peer);
    conn->transport->ops->conn_release(conn);
    tether__session_release(session);
}

static const struct tether__conn_events stream_events = {on_opened, on_message, on_sent, on_closed};

void tether__stream_accept_locked(struct tether__stream *stream,
                                  struct tether__conn *conn,
                                  bool sending,
                                  bool proved,
                                  const Tether__State *state)
{
    conn->events = &stream_events;
    conn->userdata = stream;
    adopt_conn_locked(stream, conn);
    stream->sending = sending;
    stream->proved = proved;
    stream->peer_incarnation = state->from_incarnation;
    tether__stream_on_state_locked(stream, state);
}
