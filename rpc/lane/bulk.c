/* Messages too large for one frame: their payload goes ahead in pieces, as numbered Blob frames,
 * then comes the message itself, which names the blob.
 *
 * Happy path: send() makes a bulk, with all the memory it will need, and lets it wait. A few bulks
 * are open at a time and take turns, one piece each; a piece is queued when the one before it has
 * been written, so a small message never waits for more than one piece. With the last piece the
 * message is queued too, gets its number, and the bulk has nothing more to do; it is freed with the
 * last of its segments. If the message is cancelled in between, a last piece reports that.
 *
 * The receiver's bounds are kept here: no more open at once than MAX_OPEN, nor than
 * max_message_bytes in all.
 */
#include "base/alloc.h"
#include "rpc/lane/internal.h"
#include "rpc/wire/wire.h"

/* How many messages send their pieces in turns. With more of them short messages would end sooner
 * beside long ones, but all messages would end later. */
#define MAX_OPEN 4

/* Bytes of a Blob frame besides the piece: the two numbers in its body, then frame and batch
 * around it. */
#define BLOB_BYTES 24
#define PIECE_BYTES (SEGMENT_HEADROOM + BLOB_BYTES + 40)

/* Bytes around the header of a message: batch tag and length, sequence number, body tag and
 * length, number of the blob. */
#define MESSAGE_BYTES (SEGMENT_HEADROOM + 64)

static size_t count_pieces(const struct tether__lane_limits *limits, size_t payload_len)
{
    size_t n = payload_len / limits->fragment_bytes;
    return payload_len % limits->fragment_bytes ? n + 1 : n;
}

size_t tether__bulk_cost(const struct tether__lane_limits *limits,
                         size_t header_len,
                         size_t payload_len)
{
    return header_len + payload_len + count_pieces(limits, payload_len) * PIECE_BYTES;
}

struct tether__bulk *tether__bulk_new(const struct tether__lane_limits *limits,
                                      uint32_t kind,
                                      tether_bytes header,
                                      struct tether__slice payload,
                                      uint64_t tag)
{
    size_t n_pieces = count_pieces(limits, payload.len);
    size_t n = n_pieces + 1, segments_bytes, pieces_bytes, size = sizeof(struct tether__bulk);
    if (__builtin_mul_overflow(n, sizeof(struct tether__segment), &segments_bytes) ||
        __builtin_mul_overflow(n_pieces, (size_t)PIECE_BYTES, &pieces_bytes) ||
        __builtin_add_overflow(size, segments_bytes, &size) ||
        __builtin_add_overflow(size, pieces_bytes, &size) ||
        __builtin_add_overflow(size, 2 * header.len + MESSAGE_BYTES, &size))
        return NULL;
    struct tether__bulk *bulk = tether__malloc(size);
    if (!bulk)
        return NULL;

    uint8_t *bytes = (uint8_t *)&bulk->segments[n];
    for (size_t i = 0; i < n; i++) {
        struct tether__segment *segment = &bulk->segments[i];
        tether__segment_init(segment, bulk);
        segment->data = bytes;
        segment->cap = i < n_pieces ? PIECE_BYTES : MESSAGE_BYTES + header.len;
        bytes += segment->cap;
    }
    if (header.len)
        memcpy(bytes, header.data, header.len);
    tether__list_init(&bulk->node);
    bulk->refs = 1;
    bulk->number = 0;
    bulk->kind = kind;
    bulk->header = tether_bytes_of(bytes, header.len);
    bulk->payload = tether__slice_retain(payload);
    bulk->offset = 0;
    bulk->tag = tag;
    bulk->cost_left = tether__bulk_cost(limits, header.len, payload.len);
    bulk->n_made = 0;
    return bulk;
}

/* Drops one count; the last one frees the bulk. Any thread, because the transport may hold the
 * last segment. */
void tether__bulk_unref(struct tether__bulk *bulk)
{
    if (atomic_fetch_sub_explicit(&bulk->refs, 1, memory_order_acq_rel) == 1)
        tether__free(bulk);
}

/* Drops the count that the lane held while pieces were to be made: no more are made. */
static void finish(struct tether__bulk *bulk)
{
    tether__list_remove(&bulk->node);
    tether__slice_release(bulk->payload);
    tether__bulk_unref(bulk);
}

static void open_more(struct tether__lane *lane)
{
    size_t max_open = lane->limits->max_blobs < MAX_OPEN ? lane->limits->max_blobs : MAX_OPEN;
    while (!tether__list_empty(&lane->bulk_waiting)) {
        struct tether__bulk *bulk =
            tether__list_entry(lane->bulk_waiting.next, struct tether__bulk, node);
        if (lane->n_bulk_open &&
            (lane->n_bulk_open >= max_open ||
             bulk->payload.len > lane->limits->max_message_bytes - lane->bulk_open_bytes))
            return;
        tether__list_remove(&bulk->node);
        tether__list_push_back(&lane->bulk_open, &bulk->node);
        bulk->number = lane->next_blob++;
        lane->n_bulk_open++;
        lane->bulk_open_bytes += bulk->payload.len;
    }
}

/* Numbers the frame, puts it into the next of the bulk's own segments, and queues that. */
static void queue_frame(struct tether__lane *lane,
                        struct tether__bulk *bulk,
                        struct tether__frame frame,
                        struct tether__slice tail,
                        size_t cost)
{
    struct tether__segment *segment = &bulk->segments[bulk->n_made++];
    atomic_fetch_add_explicit(&bulk->refs, 1, memory_order_relaxed);
    frame.seq = lane->next_seq++;
    tether__frame_measure(&frame);
    tether__frame_put(segment, &frame);
    segment->tail = tether__slice_retain(tail);
    segment->cost = cost;
    bulk->cost_left -= cost;
    tether__segment_queue(lane, segment);
}

static void queue_piece(struct tether__lane *lane, struct tether__bulk *bulk)
{
    size_t left = bulk->payload.len - bulk->offset;
    size_t len = left < lane->limits->fragment_bytes ? left : lane->limits->fragment_bytes;
    uint8_t body[BLOB_BYTES];
    struct tether__wire_writer writer = tether__wire_writer(body, sizeof body);
    tether__wire_put_varint_field(&writer, BLOB_NUMBER, bulk->number);
    if (bulk->offset == 0)
        tether__wire_put_varint_field(&writer, BLOB_TOTAL, bulk->payload.len);
    struct tether__frame frame = {
        .kind = TETHER__FRAME_BLOB,
        .header = tether_bytes_of(body, (size_t)(writer.at - body)),
        .payload_len = len,
    };
    lane->last_piece = lane->next_seq;
    queue_frame(lane, bulk, frame, tether__slice_sub(bulk->payload, bulk->offset, len),
                len + PIECE_BYTES);
    bulk->offset += len;
}

/* Call it when the last frame about this blob is queued. */
static void close_blob(struct tether__lane *lane, struct tether__bulk *bulk)
{
    lane->n_bulk_open--;
    lane->bulk_open_bytes -= bulk->payload.len;
}

static void queue_message(struct tether__lane *lane, struct tether__bulk *bulk)
{
    struct tether__frame frame = {
        .kind = bulk->kind,
        .header = bulk->header,
        .payload_blob = bulk->number,
    };
    queue_frame(lane, bulk, frame, TETHER__SLICE_EMPTY, bulk->cost_left);
    close_blob(lane, bulk);
    finish(bulk);
}

static void queue_abandon(struct tether__lane *lane, struct tether__bulk *bulk)
{
    uint8_t body[BLOB_BYTES];
    struct tether__wire_writer writer = tether__wire_writer(body, sizeof body);
    tether__wire_put_varint_field(&writer, BLOB_NUMBER, bulk->number);
    tether__wire_put_varint_field(&writer, BLOB_ABANDON, 1);
    struct tether__frame frame = {
        .kind = TETHER__FRAME_BLOB,
        .header = tether_bytes_of(body, (size_t)(writer.at - body)),
    };
    queue_frame(lane, bulk, frame, TETHER__SLICE_EMPTY, PIECE_BYTES);
    close_blob(lane, bulk);
}

/* Whether a piece is still unwritten: segments are written in order, so that is so if the first
 * unwritten one is not later than it. */
static bool piece_is_waiting(const struct tether__lane *lane)
{
    return lane->next_to_write != &lane->segments &&
           tether__segment_of(lane->next_to_write)->last_seq <= lane->last_piece;
}

void tether__bulk_queue_piece(struct tether__lane *lane)
{
    if (piece_is_waiting(lane))
        return;
    open_more(lane);
    struct tether__list *node = tether__list_pop_front(&lane->bulk_open);
    if (!node)
        return;
    struct tether__bulk *bulk = tether__list_entry(node, struct tether__bulk, node);
    tether__list_push_back(&lane->bulk_open, node);
    queue_piece(lane, bulk);
    if (bulk->offset == bulk->payload.len)
        queue_message(lane, bulk);
}

static struct tether__bulk *find(struct tether__list *list, uint32_t kind, uint64_t tag)
{
    TETHER__LIST_FOR_EACH(it, list) {
        struct tether__bulk *bulk = tether__list_entry(it, struct tether__bulk, node);
        if (bulk->kind == kind && bulk->tag == tag)
            return bulk;
    }
    return NULL;
}

bool tether__lane_cancel(struct tether__lane *lane, uint32_t kind, uint64_t tag)
{
    if (!tag)
        return false;
    struct tether__bulk *bulk = find(&lane->bulk_waiting, kind, tag);
    if (!bulk) {
        bulk = find(&lane->bulk_open, kind, tag);
        if (!bulk)
            return false;
        if (bulk->offset) /* otherwise no piece was sent, so the receiver has nothing to drop */
            queue_abandon(lane, bulk);
        else
            close_blob(lane, bulk);
    }
    lane->unacked_bytes -= bulk->cost_left;
    finish(bulk);
    return true;
}

void tether__bulk_drop_all(struct tether__lane *lane)
{
    tether__list_splice(&lane->bulk_open, &lane->bulk_waiting);
    TETHER__LIST_FOR_EACH(it, &lane->bulk_open)
        finish(tether__list_entry(it, struct tether__bulk, node));
    lane->n_bulk_open = lane->bulk_open_bytes = 0;
}
