/* Decides when a stream writes its queued frames.
 *
 * A stream writes while it is up, one message at a time: frames that are queued while the transport
 * writes leave with its next message. A frame that is queued on an idle stream is
 *
 * - written now, as a rule;
 * - deferred until the end of the batch, if this thread handles a received batch (its *flush
 *   scope*): all frames that the batch leads to leave together. Frames that other threads queue on
 *   the same stream do not wait for that: an inline function may hold the receiving thread for
 *   long;
 * - deferred until this thread polls or waits, if it may do so, threads of the program poll, and
 *   calls are in flight: flush_soon(). After 2 ms the background thread writes them.
 *
 * The transport says sent() on the thread that polls. While that thread is in an inline function,
 * threads that queue a reply, and the timers, ask the transport themselves: take_sent().
 *
 * Streams with deferred frames are in a lock-free list, agent->deferred. Lock rule: everything else
 * is under peer->mu.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/threads/state.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/future/poller.h"
#include "rpc/future/thread_context.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/after.h"
#include "rpc/peer/outbox.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/transport/transport.h"

/* Once this many calls are deferred they are written without waiting for more. The peer can run
 * them while this worker makes the next ones, and the cost of one more message is small beside that
 * of 32 calls. */
#define MAX_DEFERRED 32

/* How long frames wait for the thread that polls before this side asks whether a write is finished.
 * The pause doubles while a peer reads nothing. */
#define FIRST_PAUSE_NS (2 * TETHER__NS_PER_MS)
#define LAST_PAUSE_NS (64 * TETHER__NS_PER_MS)

static bool may_write(const struct tether__stream *stream)
{
    return stream->conn && stream->up && !stream->sending &&
           stream->stated_version == stream->peer->pairing.version;
}

/* Writes one message, if any frame or acknowledgement waits. Returns whether more are waiting. */
static bool write_one_locked(struct tether__stream *stream, bool ack_now)
{
    struct tether__lane_out out;
    if (stream == &stream->session->out)
        tether__outbox_fill_locked(stream->session);
    if (!tether__lane_pull(&stream->lane, ack_now, &out))
        return false;
    stream->n_deferred = 0;
    stream->ack_due = TETHER__NEVER;
    stream->sent_pause_ns = FIRST_PAUSE_NS;
    stream->peer->metrics.messages_sent++;
    for (size_t i = 0; i < out.n_pieces; i++)
        stream->peer->metrics.bytes_sent += out.pieces[i].len;
    stream->sending = !stream->conn->transport->ops->send(stream->conn, out.pieces, out.n_pieces);
    return tether__lane_has_more(&stream->lane) || tether__lane_owes_ack(&stream->lane);
}

/* Whether replies wait until the transport has finished a write. False for requests: the threads
 * that poll their stream run no inline functions, so sent() arrives there without delay. */
static bool replies_wait(const struct tether__stream *stream)
{
    return stream->sending && stream->conn && stream->conn->transport->ops->take_sent &&
           !tether__stream_is_out(stream) && tether__lane_has_more(&stream->lane);
}

/* Makes the timers ask the transport, too, whether the write has ended. The polling thread may be
 * in a long inline function, so its sent() may come late. */
static void ask_later_locked(struct tether__stream *stream)
{
    if (stream->sent_due != TETHER__NEVER)
        return;
    if (stream->sent_pause_ns < FIRST_PAUSE_NS)
        stream->sent_pause_ns = FIRST_PAUSE_NS;
    stream->sent_due = tether__stream_now(stream) + stream->sent_pause_ns;
    tether__peer_wake_at_locked(stream->peer, stream->sent_due);
}

void tether__stream_flush_locked(struct tether__stream *stream, bool ack_now)
{
    while (may_write(stream) && write_one_locked(stream, ack_now))
        ack_now = false;
    if (replies_wait(stream))
        ask_later_locked(stream);
}

static void take_sent_locked(struct tether__stream *stream)
{
    struct tether__conn *conn = stream->conn;
    if (!replies_wait(stream) || !conn->transport->ops->take_sent(conn))
        return;
    stream->sending = false; /* the transport will not call sent() for this write */
    tether__stream_say_state_locked(stream);
}

void tether__stream_ask_sent_locked(struct tether__stream *stream)
{
    stream->sent_due = TETHER__NEVER;
    if (!replies_wait(stream))
        return;
    stream->sent_pause_ns *= 2;
    if (stream->sent_pause_ns > LAST_PAUSE_NS)
        stream->sent_pause_ns = LAST_PAUSE_NS;
    take_sent_locked(stream);
    tether__stream_flush_locked(stream, false);
}

bool tether__agent_has_deferred(const void *userdata)
{
    const tether_agent *agent = userdata;
    return atomic_load(&agent->deferred) != NULL;
}

/* Empties the list. Returns its streams in the order in which they were deferred: if this worker
 * makes an object and passes it on, the owner learns of the object before the third worker asks for
 * it. The caller owns the links of each stream until it clears `is_deferred`. */
static struct tether__stream *take_deferred(tether_agent *agent)
{
    struct tether__stream *stack = atomic_exchange(&agent->deferred, NULL), *queue = NULL;
    while (stack) {
        struct tether__stream *stream = stack;
        stack = stream->next_deferred;
        stream->next_deferred = queue;
        queue = stream;
    }
    return queue;
}

void tether__agent_flush(void *userdata)
{
    tether_agent *agent = userdata;
    if (!tether__agent_has_deferred(agent))
        return;
    struct tether__stream *next = take_deferred(agent);
    while (next) {
        struct tether__stream *stream = next;
        tether__peer_lock(stream->peer);
        /* read before `is_deferred` is cleared: then another thread may defer the stream */
        next = stream->next_deferred;
        stream->is_deferred = false;
        tether__stream_flush_locked(stream, false);
        tether__peer_unlock(stream->peer);
        tether__session_release(stream->session);
    }
}

void tether__agent_forget_deferred(tether_agent *agent)
{
    struct tether__stream *next = take_deferred(agent);
    while (next) {
        struct tether__stream *stream = next;
        next = stream->next_deferred;
        tether__session_release(stream->session);
    }
}

/* Adds the stream to agent->deferred, which holds a count of its session. */
static void defer_locked(struct tether__stream *stream)
{
    _Atomic(struct tether__stream *) *top = &stream->peer->agent->deferred;
    if (stream->is_deferred)
        return;
    stream->is_deferred = true;
    tether__session_retain(stream->session);
    stream->next_deferred = atomic_load(top);
    while (!atomic_compare_exchange_weak(top, &stream->next_deferred, stream)) {
    }
}

/* Whether this thread polls for replies, or may block and then polls. A server thread in an inline
 * function does neither: its deferred frames would wait for the background thread. */
static bool polls_or_may_wait(const tether_agent *agent)
{
    const struct tether__poller *polling = tether__current.polling;
    return !tether__thread_state.must_not_block || polling == &agent->local.poller ||
           polling == &agent->network.poller;
}

/* Writes now, unless this thread has a flush scope: then the frames that it queues are written
 * once, after the whole batch. The stream on which the batch arrived is not deferred, since
 * tether__stream_receive_locked() flushes it. Callbacks of replies may run after that, so for them
 * it is. */
static void flush_in_time_locked(struct tether__stream *stream)
{
    const struct tether__stream *receiving = tether__current.receiving;
    if (!receiving || receiving->peer->agent != stream->peer->agent) {
        if (stream->sending)
            take_sent_locked(stream);
        tether__stream_flush_locked(stream, false);
    } else if (receiving != stream || !stream->receiving) {
        defer_locked(stream);
        tether__current.has_deferred = true;
    }
}

/* Defers frames, so that the calls of a thread that makes many of them and then waits leave in one
 * write: one write per call would cost more than the rest of the call. Frames are deferred only
 * while threads of the program poll. There must also be other calls in flight that such a thread
 * may be waiting for, or no thread may wait for this one: the object of a remote() is first used in
 * a later message to the same peer.
 *
 * `threads_lead` is read again once the stream is in the list. When the background thread takes
 * over polling, it first clears `threads_lead` and then looks into the list, so it may have looked
 * just before this stream was added.
 */
void tether__stream_flush_soon_locked(struct tether__stream *stream, bool nobody_waits)
{
    struct tether__peer *peer = stream->peer;
    struct tether__poller *poller = tether__peer_poller(peer);
    _Atomic bool *threads_lead = &poller->threads_lead;
    bool wait = (peer->session->n_calls > 1 || nobody_waits) &&
                ++stream->n_deferred < MAX_DEFERRED && polls_or_may_wait(peer->agent) &&
                atomic_load_explicit(threads_lead, memory_order_relaxed);
    if (wait) {
        defer_locked(stream);
        wait = atomic_load(threads_lead);
        tether__poller_frames_deferred(poller);
    }
    if (!wait)
        flush_in_time_locked(stream);
}

/* Leaves deferred frames to the polling thread, which writes them before it blocks. */
void tether__stream_flush_polled_locked(struct tether__stream *stream)
{
    if (!stream->is_deferred)
        tether__stream_flush_locked(stream, false);
}

tether_status tether__stream_send_locked(struct tether__stream *stream,
                                         uint32_t kind,
                                         tether_bytes header,
                                         struct tether__slice payload,
                                         uint64_t tag)
{
    tether_status st = tether__lane_send(&stream->lane, kind, header, payload, tag);
    if (st == TETHER_OK)
        flush_in_time_locked(stream);
    return st;
}

bool tether__stream_cancel_locked(struct tether__stream *stream, uint32_t kind, uint64_t tag)
{
    bool cancelled = tether__lane_cancel(&stream->lane, kind, tag);
    if (cancelled) /* tells the peer to free the pieces that it has received */
        tether__stream_flush_locked(stream, false);
    return cancelled;
}

void tether__flush_what_was_left(tether_agent *agent)
{
    if (!tether__current.has_deferred)
        return;
    tether__current.has_deferred = false;
    tether__agent_flush(agent);
}
