/* Connects, disconnects and resets a lane, and frees acknowledged segments. See lane.h;
 * lane/send.c, lane/bulk.c and lane/receive.c send and receive. */
#include "rpc/lane/lane.h"

#include "rpc/lane/internal.h"

const struct tether__lane_limits tether__lane_default_limits = {
    .segment_bytes = 256u << 10,
    .inline_bytes = 4u << 10,
    .fragment_bytes = 256u << 10,
    .max_message_bytes = 256u << 20,
    .max_unacked_bytes = 64u << 20,
    .max_blobs = 64,
};

void tether__lane_init(struct tether__lane *lane, const struct tether__lane_limits *limits)
{
    *lane = (struct tether__lane){.limits = limits, .next_seq = 1, .next_blob = 1};
    tether__list_init(&lane->segments);
    lane->next_to_write = &lane->segments;
    tether__list_init(&lane->spare);
    tether__list_init(&lane->bulk_waiting);
    tether__list_init(&lane->bulk_open);
    tether__list_init(&lane->blobs);
}

void tether__lane_fini(struct tether__lane *lane)
{
    lane->closed = true;
    tether__lane_reset(lane);
    tether__segment_drop_spare(lane);
}

void tether__lane_trim(struct tether__lane *lane)
{
    tether__segment_drop_spare(lane);
}

static void drop_urgent(struct tether__lane *lane)
{
    if (lane->urgent)
        tether__segment_recycle(lane, lane->urgent);
    lane->urgent = NULL;
}

static void drop_segment(struct tether__lane *lane, struct tether__segment *segment)
{
    if (lane->next_to_write == &segment->node)
        lane->next_to_write = segment->node.next;
    tether__list_remove(&segment->node);
    lane->unacked_bytes -= segment->cost;
    tether__segment_recycle(lane, segment);
}

void tether__lane_apply_ack(struct tether__lane *lane, uint64_t seq)
{
    if (seq <= lane->acked)
        return;
    lane->acked = seq;
    while (!tether__list_empty(&lane->segments)) {
        struct tether__segment *oldest = tether__segment_of(lane->segments.next);
        if (oldest->last_seq > seq)
            break;
        drop_segment(lane, oldest);
    }
}

tether_status tether__lane_connected(struct tether__lane *lane, uint64_t received)
{
    if (received < lane->acked || received > lane->sent)
        return TETHER_ECORRUPT;
    if (!lane->connected) {
        lane->connected = true;
        lane->next_to_write = lane->segments.next;
        /* our hello on this connection contains this number */
        lane->ack_sent = tether__lane_applied(lane);
        lane->bytes_since_ack = 0;
    }
    tether__lane_apply_ack(lane, received);
    return TETHER_OK;
}

void tether__lane_disconnected(struct tether__lane *lane)
{
    lane->connected = false;
    lane->breaks++;
    drop_urgent(lane);
}

void tether__lane_reset(struct tether__lane *lane)
{
    tether__bulk_drop_all(lane);
    tether__lane_disconnected(lane);
    tether__lane_drop_blobs(lane);
    while (!tether__list_empty(&lane->segments))
        drop_segment(lane, tether__segment_of(lane->segments.next));

    lane->next_seq = lane->next_blob = 1;
    lane->sent = lane->acked = lane->last_piece = 0;
    lane->unacked_bytes = 0;
    lane->received = lane->delivering = lane->ack_sent = 0;
    lane->bytes_since_ack = 0;
}
