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

/* One stream of a session: the one that we dialled (out) or the one that the peer dialled (in). All
 * under peer->mu. */
struct tether__stream {
    struct tether__session *session; /* immutable */
    struct tether__peer *peer;       /* that of the session */
    struct tether__lane lane;
    struct tether__conn *conn; /* NULL: none */
    bool up;                   /* both have named the same numbers on this conn */
    bool sending;              /* the transport has not said sent() yet */
    uint64_t stated_version;   /* the pairing's version that our last state on this conn named; 0 */
    struct tether__handshake *handshake; /* on a conn that we dialled, until it is done; or NULL */
    bool proved;               /* the other end of this conn has shown that it is the peer */
    uint64_t peer_incarnation; /* of the start at the other end; 0: not known yet */
    uint32_t n_deferred;       /* calls that wait to be written with others */
    bool is_deferred;          /* among those of the agent, with the next of them: */
    struct tether__stream *next_deferred;
    bool receiving;   /* a thread handles a batch that came by this stream */
    int64_t ack_due;  /* TETHER__NEVER: none owed */
    int64_t sent_due; /* when to ask whether the transport has sent(); TETHER__NEVER: not at all */
    int64_t sent_pause_ns; /* between two times of asking */
    int64_t heard_at;      /* when something last came on this conn, or it was made */
    int64_t pinged_at;
};

/* ---- stream.c ---- */
int64_t tether__stream_now(const struct tether__stream *stream);

void tether__stream_dial_locked(struct tether__stream *stream,
                                struct tether__route *route,
                                const char *address);

/* Closes the conn, if any. Its closed() event still comes, and gives the memory and the session
 * back. `polite`: after what is being sent. drop(): not so. redial(): dials again, if we dialled.
 */
void tether__stream_close_locked(struct tether__stream *stream, bool polite);
void tether__stream_drop_locked(struct tether__stream *stream);
void tether__stream_redial_locked(struct tether__stream *stream);

/* Says goodbye, if the stream can take a message now, and closes the conn behind it. */
void tether__stream_part_locked(struct tether__stream *stream);

/* Moves a conn, and what is known of its other end, to the same stream of the present session,
 * which replaced that of `stream`. Returns that stream; NULL: no memory for a session in use, the
 * conn was closed. */
struct tether__stream *tether__stream_move_locked(struct tether__stream *stream);

/* Whether we dialled it. */
bool tether__stream_is_out(const struct tether__stream *stream);

/* False: another thread, of the other transport, still handles a message of the conn before.
 * Messages of a new conn must not overtake it, and it may have to come again. The dialler tries
 * later. */
bool tether__stream_is_free_locked(const struct tether__stream *stream, tether_error *ret_why);

/* Makes a conn that the peer dialled its stream, and answers its state. `sending`: the last send on
 * it is not out yet; `proved`: the peer has shown that it is who it says. */
void tether__stream_accept_locked(struct tether__stream *stream,
                                  struct tether__conn *conn,
                                  bool sending,
                                  bool proved,
                                  const Tether__State *state);

/* ---- flush.c ---- */
void tether__stream_flush_locked(struct tether__stream *stream, bool ack_now);

/* Leaves what is queued for the next poll, when one is sure to come soon; else flushes.
 * `nobody_waits`: for the answer to what was queued last. */
/* Asks the transport whether the next message may go, and writes what waits. */
void tether__stream_ask_sent_locked(struct tether__stream *stream);
void tether__stream_flush_soon_locked(struct tether__stream *stream, bool nobody_waits);

/* Flushes, unless the frames are deferred: the thread that polls comes to these before it blocks.
 */
void tether__stream_flush_polled_locked(struct tether__stream *stream);

/* Both without a lock: writes the deferred frames of all streams; whether there are any. */
void tether__agent_flush(void *agent);
bool tether__agent_has_deferred(const void *agent);
void tether__agent_forget_deferred(tether_agent *agent); /* when the agent's memory goes */

/* The flush scope of this thread has ended. No lock held. */
void tether__flush_what_was_left(tether_agent *agent);

/* Queues a frame and flushes. `tag`: see tether__lane_send(). */
tether_status tether__stream_send_locked(struct tether__stream *stream,
                                         uint32_t kind,
                                         tether_bytes header,
                                         struct tether__slice payload,
                                         uint64_t tag);

/* Cancels a message that goes in pieces, as tether__lane_cancel() does, and flushes. */
bool tether__stream_cancel_locked(struct tether__stream *stream, uint32_t kind, uint64_t tag);

/* ---- state.c ---- */

/* Sends Hello1 on a conn that we dialled. */
void tether__stream_begin_handshake_locked(struct tether__stream *stream);

/* Says our state, unless the last one on this conn named the same numbers, or a send is under way.
 */
void tether__stream_say_state_locked(struct tether__stream *stream);

void tether__stream_on_hello2_locked(struct tether__stream *stream, const Tether__Hello2 *hello);
void tether__stream_on_state_locked(struct tether__stream *stream, const Tether__State *state);

/* The peer does not want this stream, or we do not want the peer: closes it, and gives the peer up
 * when another dial is of no use. */
void tether__stream_rejected_locked(struct tether__stream *stream,
                                    const struct tether__state_result *result,
                                    const tether_error *why);

/* ---- receive.c ---- */

/* Handles one batch that came on a stream that is up. Releases the lock meanwhile. */
void tether__stream_receive_locked(struct tether__stream *stream, struct tether__slice batch);

#endif
