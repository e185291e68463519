/* Receiving on a stream that is up: the messages of each batch, in order.
 *
 * Plain replies are taken under the lock; every other message is handled without it, and the loop
 * in read_batch_locked() shows where the lock is released. lane->breaks tells whether the stream
 * was closed, or its session ended, meanwhile.
 *
 * Failure modes: a malformed batch closes the conn. So does a message for which there is no memory,
 * or no room in the reference layer because the peer reads too slowly: the peer sends that message
 * again on the next conn. A message that cannot be decoded ends the session.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/status_internal.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent/internal.h"
#include "rpc/call/call.h"
#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/after.h"
#include "rpc/peer/calls/progress.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/limits.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/refs.h"
#include "rpc/serve/serve.h"
#include "rpc/wire/outcome.h"
#include "rpc/wire/wire.h"

/* How long an acknowledgement may wait for a frame in whose batch it can leave. */
#define ACK_DELAY_NS (25 * TETHER__NS_PER_MS)

/* How much longer this worker waits before it redials a stream that it closed for lack of memory.
 */
#define NO_MEMORY_PAUSE_NS (20 * TETHER__NS_PER_MS)

/* How many replies are taken under one hold of the lock before their calls are finished. */
#define MAX_TAKEN 64

/* Whether the message is a request, which this worker answers with a reply. */
static bool asks(const struct tether__inbound *message)
{
    return message->kind == TETHER__FRAME_CALL || message->kind == TETHER__FRAME_FETCH ||
           message->kind == TETHER__FRAME_FORK_REQUEST;
}

/* Unlocks the peer and handles one message. NO_MEMORY: the peer must send the message again; any
 * other outcome: it is done. */
static enum tether__outcome handle_unlock(struct tether__stream *stream,
                                          const struct tether__inbound *message)
{
    struct tether__peer *peer = stream->peer;
    struct tether__session *session = stream->session;
    bool farewell = false;
    size_t unread = asks(message) ? stream->lane.unacked_bytes : 0;
    enum tether__outcome outcome = TETHER__DONE;
    if (message->kind == TETHER__FRAME_REPLY)
        outcome = tether__call_on_reply_unlock(peer, message);
    else
        tether__peer_unlock(peer);
    switch (message->kind) {
        case TETHER__FRAME_REPLY:
            break;
        case TETHER__FRAME_CALL:
            outcome = tether__dispatch_call(session, message, unread);
            break;
        case TETHER__FRAME_CANCEL:
            outcome = tether__dispatch_cancel(session, message);
            break;
        case TETHER__FRAME_GOODBYE:
            farewell = true;
            break;
        default: /* a newer peer may send kinds that this worker does not know */
            if (peer->agent->ext)
                outcome = tether__ext_ops->frame(peer->agent->ext, peer, session->number, message,
                                                 unread);
            break;
    }
    if (farewell)
        tether__session_fence(session, "it has left the group");
    if (unread > tether__most_unread_asking(peer->agent))
        tether__session_fence(session, "it sends requests and does not read the replies");
    if (outcome == TETHER__MALFORMED)
        tether__session_fence(session, "it sent a message that cannot be read");
    return outcome;
}

/* Whether the message is about the stream itself. All other kinds are for the layers above. */
static bool is_own_kind(uint32_t kind)
{
    return kind == TETHER__FRAME_STATE || kind == TETHER__FRAME_PING ||
           (kind >= TETHER__FRAME_HELLO1 && kind <= TETHER__FRAME_HELLO3);
}

static tether_status take_state_locked(struct tether__stream *stream, tether_bytes bytes)
{
    const void *state;
    TETHER__ARENA(arena, 512);
    tether_status st = tether__wire_unpack(&tether__state__descriptor, bytes, &arena, &state);
    if (st == TETHER_OK)
        tether__stream_on_state_locked(stream, state);
    tether__arena_fini(&arena);
    return st;
}

/* Handles a ping that asks about calls, or the answer to such a ping. */
static tether_status take_ping_locked(struct tether__stream *stream, tether_bytes bytes)
{
    const void *ping;
    TETHER__ARENA(arena, 512);
    tether_status st = tether__wire_unpack(&tether__ping__descriptor, bytes, &arena, &ping);
    if (st == TETHER_OK)
        tether__call_on_ping_locked(stream, ping);
    tether__arena_fini(&arena);
    return st;
}

static tether_status take_own_locked(struct tether__stream *stream,
                                     const struct tether__inbound *message)
{
    if (message->kind == TETHER__FRAME_STATE)
        return take_state_locked(stream, message->header);
    if (message->kind != TETHER__FRAME_PING)
        return TETHER_ECORRUPT; /* a Hello after the end of the handshake */
    if (message->header.len)
        return take_ping_locked(stream, message->header);
    static const uint8_t answer[] = {0x08, 0x01}; /* a packed Ping{answer: true} */
    /* the stream was idle for long enough that the peer pings: give spare memory back */
    tether__lane_trim(&stream->lane);
    tether__lane_send_unnumbered(&stream->lane, TETHER__FRAME_PING,
                                 tether_bytes_of(answer, sizeof answer));
    return TETHER_OK;
}

/* Handles the messages of one batch: plain replies under the lock, all others without it. Returns
 * TETHER_OK, TETHER_ECANCELED (the stream was closed or its session ended meanwhile), or the reason
 * why the conn must be closed. */
static tether_status read_batch_locked(struct tether__stream *stream,
                                       struct tether__slice batch,
                                       tether_error *reterr)
{
    struct tether__peer *peer = stream->peer;
    struct tether__lane *lane = &stream->lane;
    struct tether__lane_cursor cursor = tether__lane_begin(lane, batch, reterr);
    struct tether__inbound message;
    tether_status st = TETHER_OK;
    unsigned n_taken = 0;
    while (st == TETHER_OK && tether__lane_next(lane, &cursor, &message)) {
        if (is_own_kind(message.kind)) {
            st = take_own_locked(stream, &message);
            tether__lane_accept(lane, &cursor);
            continue;
        }
        if (message.kind == TETHER__FRAME_REPLY && tether__call_take_reply_locked(peer, &message)) {
            tether__lane_accept(lane, &cursor);
            if (++n_taken % MAX_TAKEN == 0) {
                /* the unlock finishes the calls of the replies taken so far */
                tether__peer_unlock(peer);
                tether__peer_lock(peer);
            }
            continue;
        }
        enum tether__outcome outcome = handle_unlock(stream, &message);
        tether__peer_lock(peer);
        if (outcome == TETHER__NO_MEMORY) {
            tether__lane_reject(lane, &cursor);
            st = TETHER_ENOMEM;
        } else {
            tether__lane_accept(lane, &cursor);
        }
    }
    if (tether__lane_broke(lane, &cursor))
        return TETHER_ECANCELED;
    return st != TETHER_OK ? st : cursor.status;
}

void tether__stream_receive_locked(struct tether__stream *stream, struct tether__slice batch)
{
    struct tether__peer *peer = stream->peer;
    tether_error why;
    tether__error_init(&why);
    peer->metrics.messages_received++;
    peer->metrics.bytes_received += batch.len;
    stream->heard_at = tether__stream_now(stream);
    tether__pairing_heard(&peer->pairing, stream->heard_at);
    stream->receiving = true;
    tether_status st = read_batch_locked(stream, batch, &why);
    stream->receiving = false;
    if (st == TETHER_ECANCELED) {
        tether__stream_flush_locked(stream, false);
        return;
    }
    if (st != TETHER_OK) {
        bool no_memory = st == TETHER_ENOMEM && !why.message[0];
        unsigned left_out;
        if (tether__log_limit_passes(&peer->closings, stream->heard_at, &left_out))
            tether__log(
                TETHER_LOG_WARN, "rpc",
                "%s: closing the stream with '%s': %s (and %u more since this was last logged)",
                peer->agent->name, peer->name,
                no_memory ? "no room for what came, it must come again" : why.message, left_out);
        tether__stream_redial_locked(stream);
        if (no_memory)
            tether__dialer_delay(&peer->dialer, NO_MEMORY_PAUSE_NS);
        return;
    }
    tether__stream_flush_polled_locked(stream);
    if (stream->ack_due == TETHER__NEVER && tether__lane_owes_ack(&stream->lane)) {
        stream->ack_due = stream->heard_at + ACK_DELAY_NS;
        tether__peer_wake_at_locked(peer, stream->ack_due);
    }
}
