/* A stream: one connection at a time to a peer, and the lane that outlives it.
 *
 * Every function runs under peer->mu, unless it says otherwise. See stream.c, flush.c, receive.c
 * and state.c for the rules.
 */
#ifndef TETHER_RPC_PEER_STREAM_H
#define TETHER_RPC_PEER_STREAM_H

#include "base/status.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent.h"
#include "rpc/lane/lane.h"

struct tether__route;
struct tether__conn;
struct tether__handshake;
struct tether__peer;
struct tether__session;
struct tether__state_result;

/* One stream of a session: this worker dials `out`, the peer dials `in`. All fields are under
 * peer->mu. */
struct tether__stream {
    struct tether__session *session; /* immutable */
    struct tether__peer *peer;       /* peer of `session` */
    struct tether__lane lane;
    struct tether__conn *conn; /* NULL: none */
    /* both ends have sent states with the same session numbers on this conn */
    bool up;
    bool sending; /* a send is under way: the transport has not called sent() yet */
    /* version of the pairing in the last state that was sent on this conn; 0: none sent */
    uint64_t stated_version;
    /* handshake that is under way on a conn that this worker dialled; else NULL */
    struct tether__handshake *handshake;
    bool proved;               /* the other end of this conn has proved that it is the peer */
    uint64_t peer_incarnation; /* start of the peer at the other end; 0: not known yet */
    uint32_t n_deferred;       /* calls since the last write whose frames were to be deferred */
    bool is_deferred;          /* the stream is in the list agent->deferred, linked by: */
    struct tether__stream *next_deferred;
    bool receiving;  /* a thread handles a batch that arrived on this stream */
    int64_t ack_due; /* when an acknowledgement must be sent; TETHER__NEVER: none is owed */
    /* when to ask the transport whether the write has ended; TETHER__NEVER: do not ask */
    int64_t sent_due;
    int64_t sent_pause_ns; /* pause until the transport is asked again */
    /* when the last message arrived on this conn; at first, when the conn was made */
    int64_t heard_at;
    int64_t pinged_at;
};

/* ---- stream.c ---- */
int64_t tether__stream_now(const struct tether__stream *stream);

void tether__stream_dial_locked(struct tether__stream *stream,
                                struct tether__route *route,
                                const char *address);

/* Closes the conn, if any. Its closed() event follows, and gives its memory and its count of the
 * session back. `polite`: the message that is being sent is finished first. drop() closes at once.
 * redial() closes at once and, if this worker dialled the conn, dials again. */
void tether__stream_close_locked(struct tether__stream *stream, bool polite);
void tether__stream_drop_locked(struct tether__stream *stream);
void tether__stream_redial_locked(struct tether__stream *stream);

/* Sends a goodbye, if the stream is up, and closes the conn after it. */
void tether__stream_part_locked(struct tether__stream *stream);

/* Moves the conn of a stream of an ended session, and all that is known about its other end, to the
 * same stream of the present session. Returns that stream; NULL: there is no memory for a spare
 * session, and the conn was closed. */
struct tether__stream *tether__stream_move_locked(struct tether__stream *stream);

/* Whether this worker dials the stream's connections. */
bool tether__stream_is_out(const struct tether__stream *stream);

/* Whether a new conn may carry the stream. False: a thread of the other transport still handles a
 * message of the previous conn, and no message of a new conn may overtake that one. The dialler
 * must try later. */
bool tether__stream_is_free_locked(const struct tether__stream *stream, tether_error *ret_why);

/* Gives the stream a conn that the peer dialled, and answers `state`. `sending`: a send on the conn
 * is still under way; `proved`: the other end has proved that it is the peer. */
void tether__stream_accept_locked(struct tether__stream *stream,
                                  struct tether__conn *conn,
                                  bool sending,
                                  bool proved,
                                  const Tether__State *state);

/* ---- flush.c ---- */
void tether__stream_flush_locked(struct tether__stream *stream, bool ack_now);

/* Asks the transport whether its last write has ended; if so, writes the frames that wait. */
void tether__stream_ask_sent_locked(struct tether__stream *stream);

/* Leaves the queued frames to the next poll, if a thread is sure to poll soon; otherwise flushes.
 * `nobody_waits`: no thread waits for the answer to the last frame. */
void tether__stream_flush_soon_locked(struct tether__stream *stream, bool nobody_waits);

/* Flushes, unless the stream's frames are deferred: the polling thread writes those before it
 * blocks. */
void tether__stream_flush_polled_locked(struct tether__stream *stream);

/* flush() writes the deferred frames of all streams; has_deferred() tells whether there are any.
 * Both are called without a lock. */
void tether__agent_flush(void *agent);
bool tether__agent_has_deferred(const void *agent);
void tether__agent_forget_deferred(tether_agent *agent); /* when the agent's memory is freed */

/* Writes the frames that this thread has deferred in its flush scope, which has ended. No lock
 * held. */
void tether__flush_what_was_left(tether_agent *agent);

/* Queues a frame and flushes. `tag`: see tether__lane_send(). */
tether_status tether__stream_send_locked(struct tether__stream *stream,
                                         uint32_t kind,
                                         tether_bytes header,
                                         struct tether__slice payload,
                                         uint64_t tag);

/* Cancels a message that is being sent in pieces (tether__lane_cancel()), and flushes. */
bool tether__stream_cancel_locked(struct tether__stream *stream, uint32_t kind, uint64_t tag);

/* ---- state.c ---- */

/* Sends Hello1 on a conn that this worker dialled. */
void tether__stream_begin_handshake_locked(struct tether__stream *stream);

/* Sends this worker's state, unless the last state on this conn had the same numbers or a send is
 * under way. */
void tether__stream_say_state_locked(struct tether__stream *stream);

void tether__stream_on_hello2_locked(struct tether__stream *stream, const Tether__Hello2 *hello);
void tether__stream_on_state_locked(struct tether__stream *stream, const Tether__State *state);

/* Closes a stream after one end has refused the other. Ends the session, too, if dialling again
 * would not help. */
void tether__stream_rejected_locked(struct tether__stream *stream,
                                    const struct tether__state_result *result,
                                    const tether_error *why);

/* ---- receive.c ---- */

/* Handles one batch that arrived on a stream that is up. Releases peer->mu while it handles a
 * message. */
void tether__stream_receive_locked(struct tether__stream *stream, struct tether__slice batch);

#endif
