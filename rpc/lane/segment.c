/* Segments: their memory, and how frames are written into them. See lane/internal.h. */
#include "rpc/lane/internal.h"

#include "base/alloc.h"
#include "rpc/wire/wire.h"

/* Size of the first buffer. Sizes are doubled, so 1040 leads to 260 KiB, which holds a full
 * segment of 256 KiB. */
#define MIN_SEGMENT_BYTES 1040

static void segment_retain(struct tether__slice_owner *owner)
{
    struct tether__segment *segment = tether__container_of(owner, struct tether__segment, owner);
    atomic_fetch_add_explicit(&segment->refs, 1, memory_order_relaxed);
}

/* Runs on any thread, perhaps after the lane was freed, so it must not access the lane. */
static void segment_release(struct tether__slice_owner *owner)
{
    struct tether__segment *segment = tether__container_of(owner, struct tether__segment, owner);
    if (atomic_fetch_sub_explicit(&segment->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (segment->bulk) {
        tether__bulk_unref(segment->bulk);
        return;
    }
    tether__free(segment->data);
    tether__free(segment);
}

void tether__segment_init(struct tether__segment *segment, struct tether__bulk *bulk)
{
    *segment = (struct tether__segment){
        .owner = {segment_retain, segment_release, 0},
        .refs = 1,
        .bulk = bulk,
        .len = SEGMENT_HEADROOM,
    };
    tether__list_init(&segment->node);
}

bool tether__segment_reserve(struct tether__segment *segment, size_t need)
{
    need += segment->len;
    if (need <= segment->cap)
        return true;
    size_t cap = segment->cap ? segment->cap : MIN_SEGMENT_BYTES;
    while (cap < need)
        cap *= 2;
    uint8_t *data = tether__realloc(segment->data, cap);
    if (!data)
        return false;
    segment->data = data;
    segment->cap = cap;
    return true;
}

static size_t spare_cost(const struct tether__segment *segment)
{
    return sizeof *segment + segment->cap;
}

static void unlink_spare(struct tether__lane *lane, struct tether__segment *segment)
{
    tether__list_remove(&segment->node);
    lane->spare_bytes -= spare_cost(segment);
}

/* Takes a spare segment that the transport no longer holds. The one used last comes first, because
 * it is still in the cache. The acquire load pairs with the transport's release, so the transport
 * has read the old bytes before new ones are written. */
static struct tether__segment *take_spare(struct tether__lane *lane)
{
    TETHER__LIST_FOR_EACH(it, &lane->spare) {
        struct tether__segment *segment = tether__segment_of(it);
        if (atomic_load_explicit(&segment->refs, memory_order_acquire) == 1) {
            unlink_spare(lane, segment);
            return segment;
        }
    }
    return NULL;
}

struct tether__segment *tether__segment_take(struct tether__lane *lane, size_t need)
{
    struct tether__segment *segment = take_spare(lane);
    if (!segment) {
        segment = tether__malloc(sizeof *segment);
        if (!segment)
            return NULL;
        tether__segment_init(segment, NULL);
    }
    if (!tether__segment_reserve(segment, need)) {
        tether__segment_recycle(lane, segment);
        return NULL;
    }
    return segment;
}

void tether__segment_recycle(struct tether__lane *lane, struct tether__segment *segment)
{
    tether__slice_release(segment->tail);
    segment->tail = TETHER__SLICE_EMPTY;
    if (segment->bulk ||
        lane->spare_bytes + spare_cost(segment) > 4 * lane->limits->segment_bytes) {
        segment_release(&segment->owner);
        return;
    }
    segment->len = SEGMENT_HEADROOM;
    segment->last_seq = 0;
    segment->cost = 0;
    lane->spare_bytes += spare_cost(segment);
    tether__list_push_front(&lane->spare, &segment->node);
}

void tether__segment_drop_spare(struct tether__lane *lane)
{
    TETHER__LIST_FOR_EACH(it, &lane->spare) {
        struct tether__segment *segment = tether__segment_of(it);
        unlink_spare(lane, segment);
        segment_release(&segment->owner);
    }
}

void tether__segment_queue(struct tether__lane *lane, struct tether__segment *segment)
{
    tether__list_push_back(&lane->segments, &segment->node);
    if (lane->next_to_write == &lane->segments)
        lane->next_to_write = &segment->node;
}

struct tether__slice tether__segment_slice(struct tether__segment *segment, size_t front)
{
    size_t start = SEGMENT_HEADROOM - front;
    return tether__slice_retain((struct tether__slice){
        .data = segment->data + start,
        .len = segment->len - start,
        .owner = &segment->owner,
    });
}

/* ---- Frames ---- */

size_t tether__frame_measure(struct tether__frame *frame)
{
    size_t size = tether__bytes_field_size(frame->kind, frame->header.len);
    if (frame->seq)
        size += tether__varint_field_size(FRAME_SEQ, frame->seq);
    if (frame->payload_blob)
        size += tether__varint_field_size(FRAME_PAYLOAD_BLOB, frame->payload_blob);
    if (frame->payload_len)
        size += tether__bytes_field_size(FRAME_PAYLOAD, frame->payload_len);
    frame->size = size;
    return tether__bytes_field_size(BATCH_FRAME, size) - frame->payload_len;
}

void tether__frame_put(struct tether__segment *segment, const struct tether__frame *frame)
{
    struct tether__wire_writer writer =
        tether__wire_writer(segment->data + segment->len, segment->cap - segment->len);
    tether__wire_put_bytes_head(&writer, BATCH_FRAME, frame->size);
    if (frame->seq)
        tether__wire_put_varint_field(&writer, FRAME_SEQ, frame->seq);
    tether__wire_put_bytes_field(&writer, frame->kind, frame->header.data, frame->header.len);
    if (frame->payload_blob)
        tether__wire_put_varint_field(&writer, FRAME_PAYLOAD_BLOB, frame->payload_blob);
    if (frame->payload_len)
        tether__wire_put_bytes_head(&writer, FRAME_PAYLOAD, frame->payload_len);
    segment->len = (size_t)(writer.at - segment->data);
    if (frame->seq)
        segment->last_seq = frame->seq;
}
