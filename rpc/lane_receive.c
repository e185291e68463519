/* The receiving half of the lane: batches in, messages out, each once and in order.
 *
 * Happy path: receive() walks the fields of a batch; a frame is first read whole, then judged by
 * its number, then applied. So a bad frame has changed nothing when it is found out, and the
 * callback may do what it likes to the lane: between two frames only the position in the batch is
 * remembered.
 *
 * Blobs: the first piece tells the size, the memory for it is taken at once, within the limits, and
 * each piece is copied to its place. The message that names the blob takes it away.
 */
#include <inttypes.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "rpc/lane_internal.h"
#include "rpc/wire.h"

struct blob {
    struct tether__slice_owner owner;
    atomic_uint refs;
    struct tether__list node;
    uint64_t number;
    size_t total, filled;
    uint8_t data[];
};

/* One frame as read, not yet judged. */
struct frame {
    uint64_t seq;
    uint32_t kind; /* 0: has no body */
    tether_bytes header;
    uint64_t payload_blob;
    struct tether__slice payload;
    size_t wire_bytes;
};

static void blob_retain(struct tether__slice_owner *owner)
{
    struct blob *blob = tether__container_of(owner, struct blob, owner);
    atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
}

static void blob_release(struct tether__slice_owner *owner)
{
    struct blob *blob = tether__container_of(owner, struct blob, owner);
    if (atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) == 1)
        tether__free(blob);
}

static struct blob *find_blob(struct tether__lane *lane, uint64_t number)
{
    TETHER__LIST_FOR_EACH(it, &lane->blobs) {
        struct blob *blob = tether__list_entry(it, struct blob, node);
        if (blob->number == number)
            return blob;
    }
    return NULL;
}

static void link_blob(struct tether__lane *lane, struct blob *blob)
{
    tether__list_push_back(&lane->blobs, &blob->node);
    lane->n_blobs++;
    lane->blob_bytes += blob->total;
}

/* The lane's reference becomes the caller's. */
static void unlink_blob(struct tether__lane *lane, struct blob *blob)
{
    tether__list_remove(&blob->node);
    lane->n_blobs--;
    lane->blob_bytes -= blob->total;
}

void tether__lane_drop_blobs(struct tether__lane *lane)
{
    TETHER__LIST_FOR_EACH(it, &lane->blobs) {
        struct blob *blob = tether__list_entry(it, struct blob, node);
        unlink_blob(lane, blob);
        blob_release(&blob->owner);
    }
}

static tether_status open_blob(struct tether__lane *lane,
                               uint64_t number,
                               uint64_t total,
                               struct blob **ret_blob,
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
    struct blob *blob = tether__malloc(sizeof *blob + (size_t)total);
    if (!blob)
        return tether_error_set(reterr, TETHER_ENOMEM,
                                "no memory for a payload of %" PRIu64 " bytes", total);
    *blob = (struct blob){
        .owner = {blob_retain, blob_release},
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

/* What a Blob body says. False when it is malformed. */
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
    struct blob *blob = find_blob(lane, number);
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
                if (field.type != TETHER__WIRE_BYTES)
                    break; /* of a later version */
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

static tether_status take_message(struct tether__lane *lane,
                                  const struct frame *frame,
                                  tether__lane_deliver *deliver,
                                  void *userdata,
                                  tether_error *reterr)
{
    struct tether__inbound message = {
        .kind = frame->kind,
        .numbered = frame->seq != 0,
        .header = frame->header,
        .payload = frame->payload,
    };
    struct blob *blob = NULL;
    if (frame->payload_blob) {
        blob = find_blob(lane, frame->payload_blob);
        if (!blob || blob->filled < blob->total)
            return corrupt(reterr, frame, "names a blob that is not complete");
        message.payload = (struct tether__slice){blob->data, blob->total, &blob->owner};
    }
    size_t max = lane->limits->max_message_bytes;
    if (message.header.len > max || message.payload.len > max - message.header.len)
        return tether_error_set(reterr, TETHER_ETOOBIG,
                                "a message of %zu bytes is beyond max_message_bytes (%zu)",
                                message.header.len + message.payload.len, max);
    if (blob)
        unlink_blob(lane, blob);
    if (frame->seq)
        lane->received = lane->delivering = frame->seq;
    tether_status st = deliver(userdata, &message);
    bool same_session = frame->seq && lane->delivering == frame->seq;
    bool refused = same_session && st == TETHER_ENOMEM;
    if (same_session)
        lane->delivering = 0;
    if (refused)
        lane->received--;
    else if (same_session)
        lane->bytes_since_ack += frame->wire_bytes;
    if (refused && blob)
        link_blob(lane, blob);
    else if (blob)
        blob_release(&blob->owner);
    return st;
}

static bool may_be_unnumbered(uint32_t kind)
{
    return kind == TETHER__FRAME_STATE || kind == TETHER__FRAME_PING ||
           (kind >= TETHER__FRAME_HELLO1 && kind <= TETHER__FRAME_HELLO3);
}

static tether_status take_frame(struct tether__lane *lane,
                                struct tether__slice bytes,
                                tether__lane_deliver *deliver,
                                void *userdata,
                                tether_error *reterr)
{
    struct frame frame;
    tether_status st = read_frame(bytes, &frame, reterr);
    if (st != TETHER_OK)
        return st;
    if (frame.seq == 0) {
        /* Those may come at any time, and twice; all else is applied once, in order. */
        if (!may_be_unnumbered(frame.kind) || frame.payload_blob)
            return corrupt(reterr, &frame, "only handshakes and pings come without a number");
        return take_message(lane, &frame, deliver, userdata, reterr);
    }
    if (!lane->connected || frame.seq <= lane->received)
        return TETHER_OK; /* of another session, or seen before */
    if (frame.seq != lane->received + 1)
        return tether_error_set(reterr, TETHER_ECORRUPT, "frame %" PRIu64 " follows frame %" PRIu64,
                                frame.seq, lane->received);
    if (frame.kind != TETHER__FRAME_BLOB)
        return take_message(lane, &frame, deliver, userdata, reterr);
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

tether_status tether__lane_receive(struct tether__lane *lane,
                                   struct tether__slice batch,
                                   tether__lane_deliver *deliver,
                                   void *userdata,
                                   tether_error *reterr)
{
    struct tether__wire_reader reader = tether__wire_reader(batch.data, batch.len);
    struct tether__wire_field field;
    enum tether__wire_read read;
    while ((read = tether__wire_next(&reader, &field)) == TETHER__WIRE_FIELD) {
        tether_status st = TETHER_OK;
        if (field.number == BATCH_ACK && field.type == TETHER__WIRE_VARINT)
            st = take_ack(lane, field.value, reterr);
        else if (field.number == BATCH_FRAME && field.type == TETHER__WIRE_BYTES)
            st = take_frame(lane, (struct tether__slice){field.data, field.len, batch.owner},
                            deliver, userdata, reterr);
        else if (field.number <= BATCH_FRAME)
            st = tether_error_set(reterr, TETHER_ECORRUPT, "field %u of a batch has wire type %u",
                                  (unsigned)field.number, (unsigned)field.type);
        if (st != TETHER_OK)
            return st;
    }
    return read == TETHER__WIRE_END
               ? TETHER_OK
               : tether_error_set(reterr, TETHER_ECORRUPT, "a batch of %zu bytes is malformed",
                                  batch.len);
}
