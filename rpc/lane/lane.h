/* The lane: one end of an ordered, exactly-once channel of messages that outlives its connections.
 *
 * No I/O, clock, thread or lock of its own: messages and received bytes go in, bytes to send and
 * messages to deliver come out. The peer that owns it guards it.
 *
 * Happy path, sending: send() numbers a message and packs it behind others into the open *segment*;
 * pull() gives the next segment to write, with the latest ack in front; when the transport has
 * taken it, pull() is called again, and what gathered meanwhile leaves together. A segment is kept
 * until the other end has acknowledged its last frame, then its buffer is used again. A large
 * payload is not copied: it is the tail of its segment, held by reference. One larger than
 * `fragment_bytes` goes in pieces (Blob frames) ahead of its message, one piece a pull, so that
 * small messages slip in between.
 *
 * Happy path, receiving: begin() takes one Batch; next() skips frames seen before, puts blobs
 * together and gives the messages in order; accept() notes what to acknowledge. The owner may drop
 * its lock between next() and accept().
 *
 * Order: messages arrive in the order in which they were sent, with one exception. One that goes in
 * pieces takes its place when its last piece is queued, so messages that were sent after it may
 * arrive before it.
 *
 * Reconnect: connected(received) says how far the other end got; everything behind it is sent
 * again. Fence: reset() forgets both directions and starts counting from 1 again.
 *
 * Failure modes: malformed bytes, a gap in the numbers, an ack of what was never sent, or an
 * exceeded limit makes next() return TETHER_ECORRUPT or TETHER_ETOOBIG: close the connection. The
 * state is the one before the bad frame. Beyond `max_unacked_bytes` send() returns TETHER_EBUSY
 * and queues nothing.
 *
 * Memory: the buffers of segments are used again, so that a steady flow allocates nothing. A
 * segment handed out by pull() is counted: it stays until it is acknowledged and the transport has
 * released it, which may happen on any thread, without the owner's lock, after fini() even.
 */
#ifndef TETHER_RPC_LANE_LANE_H
#define TETHER_RPC_LANE_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/status.h"
#include "rpc/wire/slice.h"
#include "rpc/wire/wire.h"

/* The field numbers of the bodies in Frame (protos/rpc.proto). The lane itself interprets only
 * BLOB. */
enum tether__frame_kind {
    TETHER__FRAME_STATE = 2,
    TETHER__FRAME_PING = 3,
    TETHER__FRAME_BLOB = 4,
    TETHER__FRAME_CALL = 5,
    TETHER__FRAME_REPLY = 6,
    TETHER__FRAME_CANCEL = 7,
    TETHER__FRAME_GOODBYE = 8,
    TETHER__FRAME_HELLO1 = 9,
    TETHER__FRAME_HELLO2 = 10,
    TETHER__FRAME_HELLO3 = 11,
    TETHER__FRAME_FORK_REQUEST = 16,
    TETHER__FRAME_CHILD_ACCEPT = 17,
    TETHER__FRAME_USER_DELETE = 18,
    TETHER__FRAME_FETCH = 19,
    TETHER__FRAME_ANNOUNCE = 20,
};

/* Limits of a lane; typical values are in brackets. Both ends must have the same max_message_bytes
 * (their hellos compare it). A batch is never longer than segment_bytes + fragment_bytes +
 * TETHER__BATCH_OVERHEAD. */
struct tether__lane_limits {
    /* a segment takes no more frames beyond this size; also the limit of a header (256 KiB) */
    size_t segment_bytes;
    size_t inline_bytes;   /* payloads up to this size are copied into the segment (4 KiB) */
    size_t fragment_bytes; /* larger payloads are sent in pieces of this size (256 KiB) */
    /* limit of header + payload in both directions, and of all open blobs together (256 MiB) */
    size_t max_message_bytes;
    size_t max_unacked_bytes; /* limit of bytes that are queued or unacknowledged (64 MiB) */
    size_t max_blobs;         /* how many blobs the other end may have open at once (64) */
};
extern const struct tether__lane_limits tether__lane_default_limits;

#define TETHER__BATCH_OVERHEAD 128

/* One message as it arrives. Everything LENDS; `payload` may be retained. */
struct tether__inbound {
    uint32_t kind;
    bool numbered; /* false: a hello or ping, which has no number */
    tether_bytes header;
    struct tether__slice payload;
};

/* A reader of one received batch. It belongs to the thread that reads. */
struct tether__lane_cursor {
    tether_status status;      /* why next() returned false; TETHER_OK: the batch is at its end */
    tether_error *reterr;      /* gets the message when `status` is an error; may be NULL */
    uint64_t breaks;           /* the lane's count of breaks when the batch arrived */
    uint64_t seq;              /* number of the last message from next(); 0: it has no number */
    size_t wire_bytes;         /* bytes of the last message from next() */
    struct tether__blob *blob; /* the blob with the payload of that message, until accept() or
                                  reject(); NULL: none */
    struct tether__wire_reader reader;
    struct tether__slice_owner *owner;
};

/* One transport message to write, made of up to two pieces. The slices are retained for
 * the caller, who releases them when written. */
struct tether__lane_out {
    struct tether__slice pieces[2];
    size_t n_pieces;
    uint8_t ack_storage[16]; /* piece 0 may point into this struct: copy it before the struct is
                                freed */
};

struct tether__lane {
    const struct tether__lane_limits *limits;
    bool connected;
    bool closed; /* set by fini(): no message is accepted any more */
    /* sending */
    uint64_t next_seq; /* number of the next message to be sent */
    /* highest frame number that pull() has given out on any connection */
    uint64_t sent;
    /* highest frame number that the other end has acknowledged */
    uint64_t acked;
    /* bytes that are queued or unacknowledged, retained payloads included */
    size_t unacked_bytes;
    /* segments that are not acknowledged, oldest first; the last may be open */
    struct tether__list segments;
    /* the first segment that was not written on this connection */
    struct tether__list *next_to_write;
    struct tether__segment
        *urgent; /* the segment of unnumbered frames, which is sent before the others; NULL: none */
    struct tether__list spare; /* segments for reuse; the transport may still hold some */
    size_t spare_bytes;
    /* sending in pieces */
    struct tether__list bulk_waiting; /* messages of which no piece is queued, oldest first */
    struct tether__list bulk_open;    /* messages that take turns, one piece each */
    size_t n_bulk_open, bulk_open_bytes;
    uint64_t next_blob;
    uint64_t last_piece; /* number of the frame with the last queued piece */
    /* receiving */
    uint64_t received; /* highest frame number that was given to the owner */
    /* number of the frame that next() has given and that is not accepted or rejected; 0: none */
    uint64_t delivering;
    /* counts calls of disconnected() and reset(): a cursor from before the last one is void */
    uint64_t breaks;
    uint64_t ack_sent; /* highest frame number that this end has acknowledged */
    size_t bytes_since_ack;
    struct tether__list blobs; /* payloads of which not all pieces have arrived */
    size_t n_blobs, blob_bytes;
};

/* `limits` (LENDS) must outlive the lane. */
void tether__lane_init(struct tether__lane *lane, const struct tether__lane_limits *limits);
/* resets the lane; from then on it accepts nothing */
void tether__lane_fini(struct tether__lane *lane);

/* Frees spare segments. Call it when the lane has been idle for a while. */
void tether__lane_trim(struct tether__lane *lane);

/* Queues a message: `header` is the packed body (copied), `payload` (retained when it is large,
 * else copied) follows it. `tag` names the message for cancel(); 0: it cannot be cancelled. A
 * message larger than max_unacked_bytes is taken when nothing else is queued or unacknowledged.
 *
 * TETHER_EBUSY, TETHER_ETOOBIG, TETHER_ENOMEM, TETHER_ESHUTDOWN (after fini() began): nothing
 * happened. */
tether_status tether__lane_send(struct tether__lane *lane,
                                uint32_t kind,
                                tether_bytes header,
                                struct tether__slice payload,
                                uint64_t tag);

/* Whether a message with a payload of this length is sent in pieces, so that later messages may
 * overtake it. */
static inline bool tether__lane_in_pieces(const struct tether__lane *lane, size_t payload_len)
{
    return payload_len > lane->limits->fragment_bytes;
}

/* Cancels the message of this kind and tag, if it goes in pieces and its last piece is not queued
 * yet: the pieces that are left do not cross the wire. True: the message will not arrive; flush the
 * lane, since the receiver may have to free the pieces that it has. False: the message has its
 * number already, never went in pieces, or was sent without a tag: it will arrive. */
bool tether__lane_cancel(struct tether__lane *lane, uint32_t kind, uint64_t tag);

/* Puts an unnumbered message (hello, ping) in front of everything else, on the present connection
 * only: disconnected() and reset() drop it. */
tether_status tether__lane_send_unnumbered(struct tether__lane *lane,
                                           uint32_t kind,
                                           tether_bytes header);

/* Whether frames wait for pull(). */
bool tether__lane_has_more(const struct tether__lane *lane);

/* Gives the next message to write; false when there is nothing. Call again when it is written.
 *
 * Every segment that is written for the first time begins with the latest acknowledgement. A
 * separate acknowledgement is returned when 64 frames or 256 KiB have arrived since the last
 * one, or when one is owed and `ack_now` is set. Until connected(), only unnumbered messages are
 * given. */
bool tether__lane_pull(struct tether__lane *lane, bool ack_now, struct tether__lane_out *ret_out);

/* Begins to read one received Batch (LENDS until the reader stops). */
static inline struct tether__lane_cursor tether__lane_begin(const struct tether__lane *lane,
                                                            struct tether__slice batch,
                                                            tether_error *reterr)
{
    return (struct tether__lane_cursor){
        .reterr = reterr,
        .breaks = lane->breaks,
        .reader = tether__wire_reader(batch.data, batch.len),
        .owner = batch.owner,
    };
}

/* Whether the lane was disconnected or reset since the batch came: the rest of the batch must be
 * ignored.
 */
static inline bool tether__lane_broke(const struct tether__lane *lane,
                                      const struct tether__lane_cursor *cursor)
{
    return lane->breaks != cursor->breaks;
}

/* Gives the next new message; call accept() or reject() for it before the next call. Takes the
 * acknowledgements and pieces in between. While not connected, numbered frames and
 * acknowledgements are ignored: they belong to a session that this end no longer has.
 *
 * False: see cursor->status. TETHER_OK: the batch is at its end. TETHER_ECANCELED: the lane broke.
 * TETHER_ECORRUPT, TETHER_ETOOBIG, TETHER_ENOMEM: close the connection. */
bool tether__lane_next(struct tether__lane *lane,
                       struct tether__lane_cursor *cursor,
                       struct tether__inbound *ret_message);

/* Ends the message that next() gave. accept(): the message is applied. reject(): there was no
 * memory for it; close the connection, and the message comes again on the next one. Between next()
 * and this call all other operations on the lane except fini() are allowed. */
void tether__lane_accept(struct tether__lane *lane, struct tether__lane_cursor *cursor);
void tether__lane_reject(struct tether__lane *lane, struct tether__lane_cursor *cursor);

/* The number of the last applied frame. A frame that is being delivered does not count, because the
 * owner may still reject it, and the peer must then send it again. */
static inline uint64_t tether__lane_applied(const struct tether__lane *lane)
{
    return lane->delivering ? lane->delivering - 1 : lane->received;
}

/* Whether frames were received and not acknowledged. If so, send an ack within some tens of
 * milliseconds. */
bool tether__lane_owes_ack(const struct tether__lane *lane);

/* A new connection is up in the same session; the other end has applied up to `received`, and
 * knows from our hello how far we have got. Another call on the same connection only acknowledges
 * frames.
 *
 * TETHER_ECORRUPT, nothing changed: `received` was never sent, or is less than was acknowledged
 * before. One end has lost its memory: fence. */
tether_status tether__lane_connected(struct tether__lane *lane, uint64_t received);
void tether__lane_disconnected(struct tether__lane *lane);

/* Ends the session: drops everything queued and half received, and starts counting from 1 again,
 * disconnected. */
void tether__lane_reset(struct tether__lane *lane);

#endif
