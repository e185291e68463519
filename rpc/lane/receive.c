/* The receiving half of the lane: batches in, messages out, each once and in order.
 *
 * Happy path: next() walks the fields of a batch; a frame is first read whole, then judged by its
 * number, then applied or given out. So a bad frame is detected before it has changed anything,
 * and the owner may do what it likes to the lane between two calls: the cursor has the position in
 * the batch and the message that was given last.
 *
 * Blobs: the first piece tells the size, the memory for it is taken at once, within the limits, and
 * each piece is copied to its place. The message that names the blob takes it away.
 */
#include <inttypes.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "rpc/lane/internal.h"
#include "rpc/wire/wire.h"

struct tether__blob {
    struct tether__slice_owner owner;
    atomic_uint refs;
    struct tether__list node;
    uint64_t number;
    size_t total, filled;
    uint8_t data[];
};

/* One frame, parsed but not checked. */
struct frame {
    uint64_t seq;
    uint32_t kind; /* field number of the body; 0: the frame has no body */
    tether_bytes header;
    uint64_t payload_blob;
    struct tether__slice payload;
    size_t wire_bytes;
};

static void blob_retain(struct tether__slice_owner *owner)
{
    struct tether__blob *blob = tether__container_of(owner, struct tether__blob, owner);
    atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
}

static void blob_release(struct tether__slice_owner *owner)
{
    struct tether__blob *blob = tether__container_of(owner, struct tether__blob, owner);
    if (atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) == 1)
        tether__free(blob);
}

static struct tether__blob *find_blob(struct tether__lane *lane, uint64_t number)
{
    TETHER__LIST_FOR_EACH(it, &lane->blobs) {
        struct tether__blob *blob = tether__list_entry(it, struct tether__blob, node);
        if (blob->number == number)
            return blob;
    }
    return NULL;
}

static void link_blob(struct tether__lane *lane, struct tether__blob *blob)
{
    tether__list_push_back(&lane->blobs, &blob->node);
    lane->n_blobs++;
    lane->blob_bytes += blob->total;
}

/* Takes a blob out of the lane. The lane's reference becomes the caller's. */
static void unlink_blob(struct tether__lane *lane, struct tether__blob *blob)
{
    tether__list_remove(&blob->node);
    lane->n_blobs--;
    lane->blob_bytes -= blob->total;
}

void tether__lane_drop_blobs(struct tether__lane *lane)
{
    TETHER__LIST_FOR_EACH(it, &lane->blobs) {
        struct tether__blob *blob = tether__list_entry(it, struct tether__blob, node);
        unlink_blob(lane, blob);
        blob_release(&blob->owner);
    }
}

static tether_status open_blob(struct tether__lane *lane,
                               uint64_t number,
                               uint64_t total,
                               struct tether__blob **ret_blob,
                               tether_error *reterr)
{
    const struct tether__lane_limits *limits = lane->limits;
    if (lane->n_blobs >= limits->max_blobs)
        return tether_error_set(reterr, TETHER_ETOOBIG,
                                "the peer opened more than %zu blobs at once", limits->max_blobs);
    if (total > limits->max_message_bytes - lane->blob_bytes)
        return tether_error_set(reterr, TETHER_ETOOBIG,
                                "a blob of %" PRIu64
                                " bytes, with %zu open already, is beyond max_message_bytes (%zu)",
                                total, lane->blob_bytes, limits->max_message_bytes);
    struct tether__blob *blob = tether__malloc(sizeof *blob + (size_t)total);
    if (!blob)
        return tether_error_set(reterr, TETHER_ENOMEM,
                                "no memory for a payload of %" PRIu64 " bytes", total);
    *blob = (struct tether__blob){
        .owner = {blob_retain, blob_release, (size_t)total},
        .refs = 1,
        .number = number,
        .total = (size_t)total,
    };
    link_blob(lane, blob);
    *ret_blob = blob;
    return TETHER_OK;
}

static tether_status corrupt(tether_error *reterr, const struct frame *frame, const char *what)
{
    return tether_error_set(reterr, TETHER_ECORRUPT, "frame %" PRIu64 " of kind %u: %s", frame->seq,
                            (unsigned)frame->kind, what);
}

/* Reads the body of a Blob frame. False when it is malformed. */
static bool read_piece(tether_bytes body,
                       uint64_t *ret_number,
                       uint64_t *ret_total,
                       bool *ret_abandon)
{
    *ret_number = *ret_total = 0;
    *ret_abandon = false;
    struct tether__wire_reader reader = tether__wire_reader(body.data, body.len);
    struct tether__wire_field field;
    enum tether__wire_read read;
    while ((read = tether__wire_next(&reader, &field)) == TETHER__WIRE_FIELD) {
        if (field.number > BLOB_ABANDON)
            continue;
        if (field.type != TETHER__WIRE_VARINT)
            return false;
        if (field.number == BLOB_NUMBER)
            *ret_number = field.value;
        else if (field.number == BLOB_TOTAL)
            *ret_total = field.value;
        else
            *ret_abandon = field.value != 0;
    }
    return read == TETHER__WIRE_END && *ret_number != 0;
}

static tether_status take_piece(struct tether__lane *lane,
                                const struct frame *frame,
                                tether_error *reterr)
{
    uint64_t number, total;
    bool abandon;
    if (frame->payload_blob || !read_piece(frame->header, &number, &total, &abandon))
        return corrupt(reterr, frame, "the blob's header is malformed");
    struct tether__blob *blob = find_blob(lane, number);
    if (abandon) {
        if (!blob || frame->payload.len)
            return corrupt(reterr, frame, "abandons a blob that is not open, or with bytes");
        unlink_blob(lane, blob);
        blob_release(&blob->owner);
        return TETHER_OK;
    }
    if ((total != 0) == (blob != NULL))
        return corrupt(reterr, frame, "a first piece of an open blob, or a later one of no blob");
    size_t room = blob ? blob->total - blob->filled : (size_t)total;
    if (frame->payload.len == 0 || frame->payload.len > room)
        return corrupt(reterr, frame, "the piece is empty or longer than what its blob lacks");
    if (!blob) {
        tether_status st = open_blob(lane, number, total, &blob, reterr);
        if (st != TETHER_OK)
            return st;
    }
    memcpy(blob->data + blob->filled, frame->payload.data, frame->payload.len);
    blob->filled += frame->payload.len;
    return TETHER_OK;
}

static tether_status read_frame(struct tether__slice bytes,
                                struct frame *frame,
                                tether_error *reterr)
{
    *frame = (struct frame){.wire_bytes = bytes.len};
    bool has_payload = false;
    struct tether__wire_reader reader = tether__wire_reader(bytes.data, bytes.len);
    struct tether__wire_field field;
    enum tether__wire_read read;
    while ((read = tether__wire_next(&reader, &field)) == TETHER__WIRE_FIELD) {
        switch (field.number) {
            case FRAME_SEQ:
            case FRAME_PAYLOAD_BLOB:
                if (field.type != TETHER__WIRE_VARINT)
                    return corrupt(reterr, frame, "a number has the wrong wire type");
                *(field.number == FRAME_SEQ ? &frame->seq : &frame->payload_blob) = field.value;
                break;
            case FRAME_PAYLOAD:
                if (field.type != TETHER__WIRE_BYTES || has_payload)
                    return corrupt(reterr, frame, "two payloads, or one of the wrong wire type");
                has_payload = true;
                frame->payload = (struct tether__slice){field.data, field.len, bytes.owner};
                break;
            default:
                /* skip a field of a later version */
                if (field.type != TETHER__WIRE_BYTES)
                    break;
                if (frame->kind)
                    return corrupt(reterr, frame, "two bodies");
                frame->kind = field.number;
                frame->header = tether_bytes_of(field.data, field.len);
        }
    }
    if (read != TETHER__WIRE_END)
        return corrupt(reterr, frame, "malformed protobuf");
    if (!frame->kind)
        return corrupt(reterr, frame, "no body");
    if (frame->payload_blob && has_payload)
        return corrupt(reterr, frame, "a payload and a blob");
    return TETHER_OK;
}

/* Fills in the message of this frame for the caller; from here on it counts as being delivered. */
static tether_status give_message(struct tether__lane *lane,
                                  const struct frame *frame,
                                  struct tether__lane_cursor *cursor,
                                  struct tether__inbound *ret_message)
{
    struct tether__slice payload = frame->payload;
    struct tether__blob *blob = NULL;
    if (frame->payload_blob) {
        blob = find_blob(lane, frame->payload_blob);
        if (!blob || blob->filled < blob->total)
            return corrupt(cursor->reterr, frame, "names a blob that is not complete");
        payload = (struct tether__slice){blob->data, blob->total, &blob->owner};
    }
    size_t max = lane->limits->max_message_bytes;
    if (frame->header.len > max || payload.len > max - frame->header.len)
        return tether_error_set(cursor->reterr, TETHER_ETOOBIG,
                                "a message of %zu bytes is beyond max_message_bytes (%zu)",
                                frame->header.len + payload.len, max);
    *ret_message = (struct tether__inbound){
        .kind = frame->kind,
        .numbered = frame->seq != 0,
        .header = frame->header,
        .payload = payload,
    };
    if (blob)
        unlink_blob(lane, blob);
    if (frame->seq)
        lane->received = lane->delivering = frame->seq;
    cursor->seq = frame->seq;
    cursor->wire_bytes = frame->wire_bytes;
    cursor->blob = blob;
    return TETHER_OK;
}

/* Ends the delivery. Returns false if a reset came after the message was given: then there is
 * nothing to accept or reject. */
static bool end_delivery(struct tether__lane *lane, const struct tether__lane_cursor *cursor)
{
    if (!cursor->seq || lane->delivering != cursor->seq)
        return false;
    lane->delivering = 0;
    return true;
}

static void release_blob(struct tether__lane_cursor *cursor)
{
    if (cursor->blob)
        blob_release(&cursor->blob->owner);
    cursor->blob = NULL;
}

void tether__lane_accept(struct tether__lane *lane, struct tether__lane_cursor *cursor)
{
    if (end_delivery(lane, cursor))
        lane->bytes_since_ack += cursor->wire_bytes;
    release_blob(cursor);
}

void tether__lane_reject(struct tether__lane *lane, struct tether__lane_cursor *cursor)
{
    if (end_delivery(lane, cursor)) {
        lane->received--;
        if (cursor->blob)
            link_blob(lane, cursor->blob);
        cursor->blob = NULL;
    }
    release_blob(cursor);
}

static bool may_be_unnumbered(uint32_t kind)
{
    return kind == TETHER__FRAME_STATE || kind == TETHER__FRAME_PING ||
           (kind >= TETHER__FRAME_HELLO1 && kind <= TETHER__FRAME_HELLO3);
}

/* Applies one frame, or gives its message to the caller and sets `*ret_given`. */
static tether_status take_frame(struct tether__lane *lane,
                                struct tether__slice bytes,
                                struct tether__lane_cursor *cursor,
                                struct tether__inbound *ret_message,
                                bool *ret_given)
{
    struct frame frame;
    tether_error *reterr = cursor->reterr;
    tether_status st = read_frame(bytes, &frame, reterr);
    if (st != TETHER_OK)
        return st;
    if (frame.seq == 0) {
        /* Unnumbered frames may come at any time, also twice. All other frames are applied once,
         * in order. */
        if (!may_be_unnumbered(frame.kind) || frame.payload_blob)
            return corrupt(reterr, &frame, "only handshakes and pings come without a number");
        *ret_given = true;
        return give_message(lane, &frame, cursor, ret_message);
    }
    /* skip a frame of another session, or a duplicate */
    if (!lane->connected || frame.seq <= lane->received)
        return TETHER_OK;
    if (frame.seq != lane->received + 1)
        return tether_error_set(reterr, TETHER_ECORRUPT, "frame %" PRIu64 " follows frame %" PRIu64,
                                frame.seq, lane->received);
    if (frame.kind != TETHER__FRAME_BLOB) {
        *ret_given = true;
        return give_message(lane, &frame, cursor, ret_message);
    }
    st = take_piece(lane, &frame, reterr);
    if (st == TETHER_OK) {
        lane->received = frame.seq;
        lane->bytes_since_ack += frame.wire_bytes;
    }
    return st;
}

static tether_status take_ack(struct tether__lane *lane, uint64_t ack, tether_error *reterr)
{
    if (!lane->connected)
        return TETHER_OK;
    if (ack > lane->sent)
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "frame %" PRIu64 " was acknowledged, but only %" PRIu64
                                " have been sent",
                                ack, lane->sent);
    tether__lane_apply_ack(lane, ack);
    return TETHER_OK;
}

bool tether__lane_next(struct tether__lane *lane,
                       struct tether__lane_cursor *cursor,
                       struct tether__inbound *ret_message)
{
    struct tether__wire_field field;
    enum tether__wire_read read = TETHER__WIRE_END;
    tether_status st = tether__lane_broke(lane, cursor) ? TETHER_ECANCELED : TETHER_OK;
    bool given = false;
    while (st == TETHER_OK &&
           (read = tether__wire_next(&cursor->reader, &field)) == TETHER__WIRE_FIELD) {
        if (field.number == BATCH_FRAME && field.type == TETHER__WIRE_BYTES)
            st = take_frame(lane, (struct tether__slice){field.data, field.len, cursor->owner},
                            cursor, ret_message, &given);
        else if (field.number == BATCH_ACK && field.type == TETHER__WIRE_VARINT)
            st = take_ack(lane, field.value, cursor->reterr);
        else if (field.number <= BATCH_FRAME)
            st = tether_error_set(cursor->reterr, TETHER_ECORRUPT,
                                  "field %u of a batch has wire type %u", (unsigned)field.number,
                                  (unsigned)field.type);
        if (given && st == TETHER_OK)
            return true;
    }
    if (read == TETHER__WIRE_MALFORMED)
        st = tether_error_set(cursor->reterr, TETHER_ECORRUPT, "a batch is malformed");
    cursor->status = st;
    return false;
}
