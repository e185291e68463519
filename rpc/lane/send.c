/* The sending half of the lane: messages into segments, segments out to the transport. */
#include "rpc/lane/internal.h"
#include "rpc/wire/wire.h"

/* An ack is sent on its own after this many frames or bytes since the last ack. Fewer wait for the
 * next outgoing segment or for the owner's timer. The limit is small enough to keep the sender's
 * window open, and large enough that a one-way flow costs one small message back per segment. */
#define ACK_FRAMES 64
#define ACK_BYTES (256u << 10)

static bool has_room(const struct tether__lane *lane, size_t cost)
{
    size_t max = lane->limits->max_unacked_bytes;
    return lane->unacked_bytes == 0 ||
           (lane->unacked_bytes <= max && cost <= max - lane->unacked_bytes);
}

/* Returns the last segment if it can take `need` more bytes: it was never sent, and no payload
 * follows its frames. */
static struct tether__segment *open_segment(struct tether__lane *lane, size_t need)
{
    if (tether__list_empty(&lane->segments))
        return NULL;
    struct tether__segment *last = tether__segment_of(lane->segments.prev);
    if (last->last_seq <= lane->sent || last->tail.len || last->bulk ||
        last->len - SEGMENT_HEADROOM + need > lane->limits->segment_bytes)
        return NULL;
    return last;
}

static tether_status send_bulk(struct tether__lane *lane,
                               uint32_t kind,
                               tether_bytes header,
                               struct tether__slice payload,
                               uint64_t tag)
{
    if (!has_room(lane, tether__bulk_cost(lane->limits, header.len, payload.len)))
        return TETHER_EBUSY;
    struct tether__bulk *bulk = tether__bulk_new(lane->limits, kind, header, payload, tag);
    if (!bulk)
        return TETHER_ENOMEM;
    lane->unacked_bytes += bulk->cost_left;
    tether__list_push_back(&lane->bulk_waiting, &bulk->node);
    return TETHER_OK;
}

static bool is_body(uint32_t kind)
{
    return kind > FRAME_SEQ && kind != FRAME_PAYLOAD_BLOB && kind != FRAME_PAYLOAD;
}

tether_status tether__lane_send(struct tether__lane *lane,
                                uint32_t kind,
                                tether_bytes header,
                                struct tether__slice payload,
                                uint64_t tag)
{
    const struct tether__lane_limits *limits = lane->limits;
    if (lane->closed)
        return TETHER_ESHUTDOWN;
    if (!is_body(kind))
        return TETHER_EINVAL;
    if (header.len > limits->segment_bytes || header.len > limits->max_message_bytes ||
        payload.len > limits->max_message_bytes - header.len)
        return TETHER_ETOOBIG;
    if (payload.len > limits->fragment_bytes)
        return send_bulk(lane, kind, header, payload, tag);

    struct tether__frame frame = {
        .seq = lane->next_seq,
        .kind = kind,
        .header = header,
        .payload_len = payload.len,
    };
    size_t head = tether__frame_measure(&frame), cost = head + payload.len;
    if (!has_room(lane, cost))
        return TETHER_EBUSY;

    bool copied = payload.len <= limits->inline_bytes;
    size_t need = copied ? cost : head;
    struct tether__segment *segment = open_segment(lane, need);
    if (segment) {
        if (!tether__segment_reserve(segment, need))
            return TETHER_ENOMEM;
    } else {
        segment = tether__segment_take(lane, need);
        if (!segment)
            return TETHER_ENOMEM;
        tether__segment_queue(lane, segment);
    }

    tether__frame_put(segment, &frame);
    if (!copied) {
        segment->tail = tether__slice_retain(payload);
    } else if (payload.len) {
        memcpy(segment->data + segment->len, payload.data, payload.len);
        segment->len += payload.len;
    }
    segment->cost += cost;
    lane->unacked_bytes += cost;
    lane->next_seq++;
    return TETHER_OK;
}

tether_status tether__lane_send_unnumbered(struct tether__lane *lane,
                                           uint32_t kind,
                                           tether_bytes header)
{
    if (lane->closed)
        return TETHER_ESHUTDOWN;
    if (!is_body(kind))
        return TETHER_EINVAL;
    if (header.len > lane->limits->segment_bytes)
        return TETHER_ETOOBIG;
    struct tether__frame frame = {.kind = kind, .header = header};
    size_t need = tether__frame_measure(&frame);
    if (lane->urgent && lane->urgent->len + need > lane->limits->segment_bytes)
        return TETHER_EBUSY; /* the urgent segment is full, because nothing is being written */
    if (!lane->urgent)
        lane->urgent = tether__segment_take(lane, need);
    if (!lane->urgent || !tether__segment_reserve(lane->urgent, need))
        return TETHER_ENOMEM;
    tether__frame_put(lane->urgent, &frame);
    return TETHER_OK;
}

bool tether__lane_owes_ack(const struct tether__lane *lane)
{
    return lane->connected && tether__lane_applied(lane) > lane->ack_sent;
}

static bool ack_is_due(const struct tether__lane *lane, bool ack_now)
{
    return tether__lane_owes_ack(lane) &&
           (ack_now || lane->bytes_since_ack >= ACK_BYTES ||
            tether__lane_applied(lane) - lane->ack_sent >= ACK_FRAMES);
}

/* Writes an ack, if one is owed, so that it ends at `end`; returns its length. */
static size_t put_ack(struct tether__lane *lane, uint8_t *end)
{
    uint64_t applied = tether__lane_applied(lane);
    size_t len = tether__varint_field_size(BATCH_ACK, applied);
    struct tether__wire_writer writer = tether__wire_writer(end - len, len);
    tether__wire_put_varint_field(&writer, BATCH_ACK, applied);
    lane->ack_sent = applied;
    lane->bytes_since_ack = 0;
    return len;
}

static bool give_urgent(struct tether__lane *lane, struct tether__lane_out *out)
{
    struct tether__segment *segment = lane->urgent;
    lane->urgent = NULL;
    out->pieces[0] = tether__segment_slice(segment, 0);
    out->n_pieces = 1;
    tether__segment_recycle(lane, segment);
    return true;
}

static bool give_ack(struct tether__lane *lane, struct tether__lane_out *out)
{
    uint8_t *end = out->ack_storage + sizeof out->ack_storage;
    size_t len = put_ack(lane, end);
    out->pieces[0] = (struct tether__slice){end - len, len, NULL};
    out->n_pieces = 1;
    return true;
}

static bool has_bulk(const struct tether__lane *lane)
{
    return !tether__list_empty(&lane->bulk_open) || !tether__list_empty(&lane->bulk_waiting);
}

bool tether__lane_has_more(const struct tether__lane *lane)
{
    return lane->urgent || lane->next_to_write != &lane->segments || has_bulk(lane);
}

bool tether__lane_pull(struct tether__lane *lane, bool ack_now, struct tether__lane_out *ret_out)
{
    if (lane->urgent)
        return give_urgent(lane, ret_out);
    if (!lane->connected)
        return false;
    if (has_bulk(lane))
        tether__bulk_queue_piece(lane);
    if (lane->next_to_write == &lane->segments)
        return ack_is_due(lane, ack_now) && give_ack(lane, ret_out);

    struct tether__segment *segment = tether__segment_of(lane->next_to_write);
    size_t front = 0;
    if (segment->last_seq > lane->sent) {
        /* The transport does not have it yet, so writing into its headroom is safe. */
        if (tether__lane_owes_ack(lane))
            front = put_ack(lane, segment->data + SEGMENT_HEADROOM);
        lane->sent = segment->last_seq;
    } else if (ack_is_due(lane, ack_now)) {
        return give_ack(lane, ret_out);
    }
    lane->next_to_write = lane->next_to_write->next;
    ret_out->pieces[0] = tether__segment_slice(segment, front);
    ret_out->n_pieces = 1;
    if (segment->tail.len)
        ret_out->pieces[ret_out->n_pieces++] = tether__slice_retain(segment->tail);
    return true;
}
