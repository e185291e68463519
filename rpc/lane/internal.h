/* Shared by the files of the lane: segments, and messages that go out in pieces.
 *
 * A *segment* is one Batch to be sent: frames in a buffer, and perhaps one large payload behind
 * them, which is only referred to. It is open for more frames until pull() has given it out; from
 * then on its bytes don't change, since the transport may be reading them.
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

/* The fields of Batch, Frame and Blob (protos/rpc.proto). */
enum { BATCH_ACK = 1, BATCH_FRAME = 2 };
enum { FRAME_SEQ = 1, FRAME_PAYLOAD_BLOB = 14, FRAME_PAYLOAD = 15 };
enum { BLOB_NUMBER = 1, BLOB_TOTAL = 2, BLOB_ABANDON = 3 };

/* Headroom in front of the frames, filled with the ack when the segment is first written. */
#define SEGMENT_HEADROOM 16

struct tether__segment {
    struct tether__slice_owner owner; /* the owner of the slices that the transport gets */
    atomic_uint refs;
    struct tether__bulk *bulk; /* the owner of this segment's memory; NULL: it has its own */
    /* guarded by the owner of the lane */
    struct tether__list node;
    uint8_t *data; /* SEGMENT_HEADROOM bytes, then frames up to `len` */
    size_t len, cap;
    struct tether__slice tail; /* a payload that belongs to the last frame (retained) */
    uint64_t last_seq;         /* 0: unnumbered frames */
    size_t cost;               /* its share of the lane's unacked_bytes */
};

/* One message that is sent in pieces. All its memory is allocated at once, so that nothing can fail
 * once send() has accepted it: a segment for each piece, one for the message itself, and their
 * bytes. */
struct tether__bulk {
    struct tether__list node;
    atomic_uint refs; /* the lane's while pieces are to be made, and one per segment in use */
    uint64_t number;  /* of the blob; 0 until the first piece is made */
    uint32_t kind;
    tether_bytes header;
    struct tether__slice payload; /* retained until the last piece is made */
    size_t offset;                /* how much of it is in pieces */
    uint64_t tag;                 /* for cancel(); 0: none */
    size_t cost_left;             /* the part of `cost` that no segment accounts for yet */
    size_t n_made;
    struct tether__segment segments[]; /* pieces, then the message */
};

/* Makes an empty one, with one reference. */
void tether__segment_init(struct tether__segment *segment, struct tether__bulk *bulk);

/* A segment with room for `need` bytes, used or new; NULL when there is no memory. */
struct tether__segment *tether__segment_take(struct tether__lane *lane, size_t need);

/* Makes room for `need` more bytes. False when there is no memory. */
bool tether__segment_reserve(struct tether__segment *segment, size_t need);

/* The lane needs it no more. */
void tether__segment_recycle(struct tether__lane *lane, struct tether__segment *segment);
void tether__segment_drop_spare(struct tether__lane *lane);

/* Appends `segment`, numbered and complete, to the queue. */
void tether__segment_queue(struct tether__lane *lane, struct tether__segment *segment);

/* The frames, with `front` bytes of the headroom; retained for the caller. */
struct tether__slice tether__segment_slice(struct tether__segment *segment, size_t front);

/* The share of such a message in unacked_bytes. Only for lengths within max_message_bytes. */
size_t tether__bulk_cost(const struct tether__lane_limits *limits,
                         size_t header_len,
                         size_t payload_len);

/* A message in pieces, not yet queued anywhere; retains `payload`. NULL when there is no memory. */
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

/* One frame to be written. `payload_len` counts bytes that the caller appends to it. */
struct tether__frame {
    uint64_t seq;
    uint32_t kind;
    tether_bytes header;
    uint64_t payload_blob;
    size_t payload_len;
    size_t size; /* size of the frame's fields, set by measuring */
};

/* Measures the frame; returns its size in a batch, without the payload's bytes. */
size_t tether__frame_measure(struct tether__frame *frame);

/* Writes a frame that has been measured; there must be room. */
void tether__frame_put(struct tether__segment *segment, const struct tether__frame *frame);

/* The other end has applied everything up to `seq`, which was sent: frees those segments. */
void tether__lane_apply_ack(struct tether__lane *lane, uint64_t seq);

/* Drops payloads half received. */
void tether__lane_drop_blobs(struct tether__lane *lane);

static inline struct tether__segment *tether__segment_of(struct tether__list *node)
{
    return tether__list_entry(node, struct tether__segment, node);
}

#endif
