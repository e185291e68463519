/* Shared by the files of the lane: segments, and messages that go out in pieces.
 *
 * A *segment* is one Batch to be sent: frames in a buffer, and perhaps one large payload behind
 * them, which is not copied into it. It is open for more frames until pull() has given it out;
 * from then on its bytes don't change, since the transport may be reading them.
 *
 * Counting: the lane has one reference to a segment, the transport one for each slice that it was
 * given. The lane drops its own by recycling the segment; a spare one that the transport still
 * holds is passed over until it releases it. The last reference that is dropped frees the memory,
 * so a transport may outlive the lane.
 */
#ifndef TETHER_RPC_LANE_INTERNAL_H
#define TETHER_RPC_LANE_INTERNAL_H

#include <stdatomic.h>

#include "rpc/lane/lane.h"

/* Field numbers in the messages Batch, Frame and Blob (protos/rpc.proto). */
enum { BATCH_ACK = 1, BATCH_FRAME = 2 };
enum { FRAME_SEQ = 1, FRAME_PAYLOAD_BLOB = 14, FRAME_PAYLOAD = 15 };
enum { BLOB_NUMBER = 1, BLOB_TOTAL = 2, BLOB_ABANDON = 3 };

/* Bytes kept free in front of the frames of a segment. The ack is written there when the segment
 * is first sent. */
#define SEGMENT_HEADROOM 16

struct tether__segment {
    struct tether__slice_owner owner; /* owner of the slices that the transport gets */
    atomic_uint refs;
    /* the bulk whose memory this segment is part of; NULL: it has its own memory */
    struct tether__bulk *bulk;
    /* fields from here on are guarded by the owner of the lane */
    struct tether__list node;
    uint8_t *data; /* the headroom of SEGMENT_HEADROOM bytes, then frames up to `len` */
    size_t len, cap;
    struct tether__slice tail; /* the payload of the last frame, if it was not copied (retained) */
    /* number of the last frame in the segment; 0: its frames are unnumbered */
    uint64_t last_seq;
    size_t cost; /* how many bytes the segment adds to the lane's `unacked_bytes` */
};

/* One message that is sent in pieces. All its memory is allocated at once, so that nothing can fail
 * once send() has accepted it: a segment for each piece, one for the message itself, and their
 * bytes. */
struct tether__bulk {
    struct tether__list node;
    /* one count of the lane while it makes pieces, and one for each segment in use */
    atomic_uint refs;
    uint64_t number; /* number of the blob; 0 until the first piece is made */
    uint32_t kind;
    tether_bytes header;
    struct tether__slice payload; /* retained until the last piece is made */
    size_t offset;                /* how many bytes of the payload have been put into pieces */
    /* names the message for tether__lane_cancel(); 0: it cannot be cancelled */
    uint64_t tag;
    /* the part of the message's cost that is not in the `cost` of a segment yet */
    size_t cost_left;
    size_t n_made;
    struct tether__segment segments[]; /* the segments of all pieces, then that of the message */
};

/* Initialises an empty segment with one reference. */
void tether__segment_init(struct tether__segment *segment, struct tether__bulk *bulk);

/* Returns a segment with room for `need` bytes, from the spare ones or new; NULL when there is no
 * memory. */
struct tether__segment *tether__segment_take(struct tether__lane *lane, size_t need);

/* Makes room for `need` more bytes in the segment. False when there is no memory. */
bool tether__segment_reserve(struct tether__segment *segment, size_t need);

/* Drops the lane's reference to a segment that it no longer needs; keeps the segment as a spare
 * one if possible. */
void tether__segment_recycle(struct tether__lane *lane, struct tether__segment *segment);
void tether__segment_drop_spare(struct tether__lane *lane);

/* Appends `segment`, numbered and complete, to the queue. */
void tether__segment_queue(struct tether__lane *lane, struct tether__segment *segment);

/* Returns a slice of the frames and of `front` bytes of the headroom before them; retained for the
 * caller. */
struct tether__slice tether__segment_slice(struct tether__segment *segment, size_t front);

/* Returns how much a message in pieces adds to `unacked_bytes`. Only for lengths within
 * max_message_bytes. */
size_t tether__bulk_cost(const struct tether__lane_limits *limits,
                         size_t header_len,
                         size_t payload_len);

/* Makes a bulk for a message in pieces, not queued yet; retains `payload`. NULL when there is no
 * memory. */
struct tether__bulk *tether__bulk_new(const struct tether__lane_limits *limits,
                                      uint32_t kind,
                                      tether_bytes header,
                                      struct tether__slice payload,
                                      uint64_t tag);
void tether__bulk_unref(struct tether__bulk *bulk);

/* Queues the next piece of a message that is sent in pieces, unless a piece is waiting to be
 * written already. */
void tether__bulk_queue_piece(struct tether__lane *lane);

/* Drops the messages whose last piece is not queued yet. */
void tether__bulk_drop_all(struct tether__lane *lane);

/* One frame to be written. `payload_len` counts payload bytes that the caller appends after it. */
struct tether__frame {
    uint64_t seq;
    uint32_t kind;
    tether_bytes header;
    uint64_t payload_blob;
    size_t payload_len;
    size_t size; /* number of bytes of the frame's fields, set by tether__frame_measure() */
};

/* Sets `size`, and returns the frame's size in a batch without the payload. */
size_t tether__frame_measure(struct tether__frame *frame);

/* Writes a measured frame into the segment, which must have room for it. */
void tether__frame_put(struct tether__segment *segment, const struct tether__frame *frame);

/* Handles the other end's acknowledgement of all frames up to `seq`, which must have been sent:
 * frees their segments. */
void tether__lane_apply_ack(struct tether__lane *lane, uint64_t seq);

/* Drops payloads of which not all pieces have arrived. */
void tether__lane_drop_blobs(struct tether__lane *lane);

static inline struct tether__segment *tether__segment_of(struct tether__list *node)
{
    return tether__list_entry(node, struct tether__segment, node);
}

#endif
