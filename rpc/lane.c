/* The life of a lane: connections come and go, acknowledgements let go of what was sent, a reset
 * starts over. See lane.h; lane_send.c, lane_bulk.c and lane_receive.c do the work in between. */
#include "rpc/lane.h"

#include "rpc/lane_internal.h"

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
    lane->unsent = &lane->segments;
    tether__list_init(&lane->spare);
    tether__list_init(&lane->watches);
    tether__list_init(&lane->bulk_waiting);
    tether__list_init(&lane->bulk_open);
    tether__list_init(&lane->blobs);
}

void tether__lane_fini(struct tether__lane *lane)
{
    lane->closed = true; /* before the watches run: they may try to send */
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
    if (lane->unsent == &segment->node)
        lane->unsent = segment->node.next;
    tether__list_remove(&segment->node);
    lane->unacked_bytes -= segment->cost;
    tether__segment_recycle(lane, segment);
}

/* A watch may do anything to the lane, so nothing is remembered from one to the next. */
static void run_watches(struct tether__lane *lane)
{
    while (!tether__list_empty(&lane->watches)) {
        struct tether__lane_watch *watch =
            tether__list_entry(lane->watches.next, struct tether__lane_watch, node);
        if (watch->seq > lane->acked)
            return;
        tether__list_remove(&watch->node);
        watch->done(watch, TETHER_OK);
    }
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
    run_watches(lane);
}

tether_status tether__lane_connected(struct tether__lane *lane, uint64_t received)
{
    if (received < lane->acked || received > lane->sent)
        return TETHER_ECORRUPT;
    if (!lane->connected) {
        lane->connected = true;
        lane->unsent = lane->segments.next;
        lane->ack_told = tether__lane_applied(lane); /* by our hello */
        lane->bytes_since_ack = 0;
    }
    tether__lane_apply_ack(lane, received);
    return TETHER_OK;
}

void tether__lane_disconnected(struct tether__lane *lane)
{
    lane->connected = false;
    drop_urgent(lane);
}

void tether__lane_reset(struct tether__lane *lane)
{
    struct tether__list watches = TETHER__LIST_INIT(watches);
    tether__list_splice(&watches, &lane->watches);
    tether__bulk_drop_all(lane, &watches);
    tether__lane_disconnected(lane);
    tether__lane_drop_blobs(lane);
    while (!tether__list_empty(&lane->segments))
        drop_segment(lane, tether__segment_of(lane->segments.next));

    lane->next_seq = lane->next_blob = 1;
    lane->sent = lane->acked = lane->last_piece = 0;
    lane->unacked_bytes = 0;
    lane->received = lane->delivering = lane->ack_told = 0;
    lane->bytes_since_ack = 0;

    /* Last, since they may send: what they send belongs to the new session. */
    for (struct tether__list *node; (node = tether__list_pop_front(&watches));) {
        struct tether__lane_watch *watch =
            tether__list_entry(node, struct tether__lane_watch, node);
        watch->done(watch, TETHER_EFENCED);
    }
}
