/* Two lanes over a bad network, many times, each time drawn from a seed.
 *
 * Both ends send small, large and very large messages, answer from within the delivery, and cancel
 * some of what they sent. In between the network delays, cuts streams (whole batches get lost, the
 * last one perhaps in the middle), brings old batches again after a reconnect, retains buffers,
 * allocations fail, and now and then the session is fenced.
 *
 * The checks: each message that is not cancelled arrives once, whole. Messages of one frame arrive
 * in the order in which they were sent. A frame is acknowledged only if its message arrived. When
 * the network heals, every message arrives, and no memory is held any more.
 *
 * `sim_test 1234` runs seed 1234 alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/rpc/lane/fixture.h"

enum { SEEDS = 4000, STEPS = 400, MAX_SENT = 2000, MAX_FLYING = 64, MAX_HELD = 64 };

/* One message, from send() to its end. */
struct sent {
    uint64_t seq;                      /* 0: it goes in pieces, or was not taken */
    size_t session;                    /* that it was sent in: so many fences before it */
    bool taken, tagged, arrived, lost; /* lost: its session was fenced before it arrived */
    bool cancelled;
    bool bulk;
    size_t payload_len;
};

struct side {
    struct tether__lane lane;
    struct sim *sim;
    struct sent *sent; /* MAX_SENT of them */
    size_t n_sent;
    long last_small; /* of the other's: the last that came in one frame, -1 for none */
    /* On their way to this side, and what has arrived here in this session. */
    struct test_buffer *flying[MAX_FLYING], *seen[MAX_FLYING];
    size_t n_flying, n_seen;
};

struct sim {
    struct side side[2];
    struct tether__lane_limits limits;
    uint64_t rng;
    bool up, healing;
    /* Slices that the transport has not released yet. */
    struct {
        struct tether__slice slice;
        unsigned long hash; /* its bytes must not change */
    } held[MAX_HELD];
    size_t n_held;
    size_t delivered, cuts, fences, replays, cancelled, no_memory;
};

static uint64_t draw(struct sim *sim, uint64_t below)
{
    sim->rng ^= sim->rng << 13;
    sim->rng ^= sim->rng >> 7;
    sim->rng ^= sim->rng << 17;
    return (sim->rng >> 11) % below;
}

/* TAKES a retain. */
static void hold(struct sim *sim, struct tether__slice slice)
{
    if (sim->n_held == MAX_HELD) {
        tether__slice_release(slice);
        return;
    }
    sim->held[sim->n_held].slice = slice;
    sim->held[sim->n_held++].hash = tether__hash(slice.data, slice.len, 0);
}

static void let_go(struct sim *sim, size_t keep)
{
    while (sim->n_held > keep) {
        size_t pick = draw(sim, sim->n_held);
        struct tether__slice slice = sim->held[pick].slice;
        assert_true(tether__hash(slice.data, slice.len, 0) == sim->held[pick].hash);
        tether__slice_release(slice);
        sim->held[pick] = sim->held[--sim->n_held];
    }
}

static struct side *other(struct side *side)
{
    return &side->sim->side[side == &side->sim->side[0]];
}

static uint8_t payload_byte(size_t id, size_t at)
{
    return (uint8_t)(id * 31 + at * 7 + at / 251);
}

/* The heap counts anew with each failure that is asked for, so we add up. */
static long live_before;

static long heap_live(void)
{
    return live_before + tether_test_heap_live();
}

static void fail_nth_allocation(int n) /* negative: none */
{
    live_before = heap_live();
    if (n < 0)
        tether_test_heap_fail_never();
    else
        tether_test_heap_fail_at(n);
}

/* ---- Sending ---- */

static void send_one(struct side *from)
{
    struct sim *sim = from->sim;
    if (from->n_sent == MAX_SENT)
        return;
    size_t id = from->n_sent++;
    struct sent *sent = &from->sent[id];
    static const size_t up_to[] = {1, 40, 150, 700};
    sent->payload_len = draw(sim, up_to[draw(sim, 4)]);
    sent->bulk = sent->payload_len > sim->limits.fragment_bytes;
    sent->tagged = draw(sim, 2);

    uint64_t header[3] = {id, sent->payload_len, 0x5a5a5a5a5a5a5a5a};
    size_t header_len = sizeof header - draw(sim, 8);
    struct test_buffer *payload = test_buffer_new(sent->payload_len);
    for (size_t i = 0; i < payload->len; i++)
        payload->data[i] = payload_byte(id, i);
    size_t unacked = from->lane.unacked_bytes;
    uint64_t next_seq = from->lane.next_seq;
    tether_status st =
        tether__lane_send(&from->lane, TETHER__FRAME_CALL, tether_bytes_of(header, header_len),
                          test_buffer_slice(payload), sent->tagged ? id + 1 : 0);
    test_buffer_release(payload);
    sent->taken = st == TETHER_OK;
    sent->session = sim->fences;
    sent->seq = sent->taken && !sent->bulk ? next_seq : 0;
    if (!sent->taken) {
        assert_true(st == TETHER_EBUSY || st == TETHER_ENOMEM);
        assert_int_equal(from->lane.unacked_bytes, unacked);
        assert_int_equal(from->lane.next_seq, next_seq);
    }
}

static void cancel_one(struct side *from)
{
    if (from->n_sent == 0)
        return;
    size_t id = draw(from->sim, from->n_sent);
    struct sent *sent = &from->sent[id];
    if (!sent->tagged || sent->cancelled)
        return;
    sent->cancelled = tether__lane_cancel(&from->lane, TETHER__FRAME_CALL, id + 1);
    assert_true(!sent->cancelled || (sent->bulk && sent->taken && !sent->arrived && !sent->lost));
    from->sim->cancelled += sent->cancelled;
}

/* ---- Receiving ---- */

static tether_status deliver(void *userdata, const struct tether__inbound *message)
{
    struct side *to = userdata, *from = other(to);
    struct sim *sim = to->sim;
    if (!message->numbered)
        return TETHER_OK; /* a ping */
    assert_int_equal(message->kind, TETHER__FRAME_CALL);
    assert_in_range(message->header.len, 17, 24);
    uint64_t header[2];
    memcpy(header, message->header.data, sizeof header);
    size_t id = (size_t)header[0];
    assert_in_range(id, 0, from->n_sent - 1);
    struct sent *sent = &from->sent[id];
    assert_true(sent->taken && !sent->arrived && !sent->lost && !sent->cancelled);
    sent->arrived = true;
    sim->delivered++;
    assert_int_equal(message->payload.len, sent->payload_len);
    for (size_t i = 0; i < message->payload.len; i++)
        assert_int_equal(message->payload.data[i], payload_byte(id, i));
    if (!sent->bulk) {
        assert_true((long)id > to->last_small);
        to->last_small = (long)id;
    }
    /* Keeps some of the payloads for a while, and answers some of the messages. */
    if (message->payload.len && draw(sim, 4) == 0)
        hold(sim, tether__slice_retain(message->payload));
    if (!sim->healing && draw(sim, 3) == 0)
        send_one(to);
    return draw(sim, 100) ? TETHER_OK : TETHER_ECANCELED;
}

/* ---- The network ---- */

static void forget(struct test_buffer **list, size_t *n)
{
    while (*n)
        test_buffer_release(list[--*n]);
}

static void cut(struct sim *sim)
{
    if (!sim->up)
        return;
    sim->up = false;
    sim->cuts++;
    for (int i = 0; i < 2; i++) {
        forget(sim->side[i].flying, &sim->side[i].n_flying);
        tether__lane_disconnected(&sim->side[i].lane);
    }
}

static void reconnect(struct sim *sim)
{
    if (sim->up)
        return;
    uint64_t received[2] = {sim->side[0].lane.received, sim->side[1].lane.received};
    for (int i = 0; i < 2; i++)
        assert_int_equal(tether__lane_connected(&sim->side[i].lane, received[!i]), TETHER_OK);
    sim->up = true;
}

static void fence(struct sim *sim)
{
    cut(sim);
    sim->fences++;
    for (int i = 0; i < 2; i++) {
        struct side *side = &sim->side[i];
        forget(side->seen, &side->n_seen);
        for (size_t id = 0; id < side->n_sent; id++)
            if (side->sent[id].taken && !side->sent[id].arrived && !side->sent[id].cancelled)
                side->sent[id].lost = true;
        tether__lane_reset(&side->lane);
    }
}

static bool pull(struct side *from)
{
    struct sim *sim = from->sim;
    struct side *to = other(from);
    struct tether__lane_out out;
    if (!sim->up || to->n_flying == MAX_FLYING ||
        !tether__lane_pull(&from->lane, draw(sim, 4) == 0 || sim->healing, &out))
        return false;
    size_t len = 0, at = 0;
    for (size_t i = 0; i < out.n_pieces; i++)
        len += out.pieces[i].len;
    assert_in_range(
        len, 1, sim->limits.segment_bytes + sim->limits.fragment_bytes + TETHER__BATCH_OVERHEAD);
    struct test_buffer *batch = test_buffer_new(len);
    for (size_t i = 0; i < out.n_pieces; at += out.pieces[i++].len) {
        memcpy(batch->data + at, out.pieces[i].data, out.pieces[i].len);
        if (out.pieces[i].owner && draw(sim, 3) == 0)
            hold(sim, out.pieces[i]);
        else
            tether__slice_release(out.pieces[i]);
    }
    to->flying[to->n_flying++] = batch;
    return true;
}

/* Asserts that each message that the lane counts as acknowledged has arrived. Lost messages belong
 * to earlier sessions. */
static void check_acked(const struct side *side)
{
    for (size_t id = side->n_sent; id-- > 0;) {
        const struct sent *sent = &side->sent[id];
        if (sent->session != side->sim->fences)
            break;
        assert_false(sent->lost);
        if (sent->seq && sent->seq <= side->lane.acked)
            assert_true(sent->arrived);
    }
}

/* Gives the lane the first `bytes` of the batch. Any error ends the stream. */
static void feed(struct side *to, struct test_buffer *batch, size_t bytes, bool seen_before)
{
    uint64_t received = to->lane.received;
    tether_error err = {0};
    tether_status st = test_read(&to->lane, tether__slice_sub(test_buffer_slice(batch), 0, bytes),
                                 deliver, to, &err);
    check_acked(to);
    if (seen_before) {
        assert_int_equal(st, TETHER_OK);
        assert_int_equal(to->lane.received, received);
    } else if (st == TETHER_ENOMEM) {
        to->sim->no_memory++;
    } else if (st == TETHER_ECORRUPT) {
        assert_true(bytes < batch->len);
    } else {
        assert_true(st == TETHER_OK || st == TETHER_ECANCELED);
    }
    if (st != TETHER_OK || bytes < batch->len)
        cut(to->sim);
}

static bool arrive(struct side *to)
{
    struct sim *sim = to->sim;
    if (to->n_flying == 0)
        return false;
    struct test_buffer *batch = to->flying[0];
    memmove(to->flying, to->flying + 1, --to->n_flying * sizeof *to->flying);
    bool whole = sim->healing || draw(sim, 40);
    feed(to, batch, whole ? batch->len : draw(sim, batch->len), false);
    if (whole && sim->up && to->n_seen < MAX_FLYING && draw(sim, 4) == 0)
        to->seen[to->n_seen++] = batch;
    else
        test_buffer_release(batch);
    return true;
}

/* ---- One seed ---- */

static void step(struct sim *sim)
{
    struct side *side = &sim->side[draw(sim, 2)];
    switch (draw(sim, 24)) {
        default:
            send_one(side);
            break;
        case 8 ... 13:
            pull(side);
            break;
        case 14 ... 19:
            arrive(side);
            break;
        case 20:
            if (draw(sim, 4) == 0)
                cut(sim);
            break;
        case 21:
            reconnect(sim);
            break;
        case 22:
            let_go(sim, draw(sim, MAX_HELD));
            cancel_one(side);
            if (sim->up)
                tether__lane_send_unnumbered(&side->lane, TETHER__FRAME_PING,
                                             tether_bytes_of(NULL, 0));
            break;
        case 23:
            if (side->n_seen && sim->up) {
                sim->replays++;
                struct test_buffer *old = side->seen[draw(sim, side->n_seen)];
                feed(side, old, old->len, true);
            } else if (draw(sim, 20) == 0) {
                fence(sim);
            }
            break;
    }
}

static void heal(struct sim *sim)
{
    fail_nth_allocation(-1);
    sim->healing = true;
    for (bool moved = true; moved;) {
        moved = !sim->up;
        reconnect(sim);
        for (int i = 0; i < 2; i++) {
            moved |= pull(&sim->side[i]);
            moved |= arrive(&sim->side[i]);
        }
    }
}

static void check(struct side *side)
{
    for (size_t id = 0; id < side->n_sent; id++) {
        const struct sent *sent = &side->sent[id];
        assert_int_equal(sent->taken, sent->arrived || sent->lost || sent->cancelled);
    }
    assert_int_equal(side->lane.unacked_bytes, 0);
    assert_true(tether__list_empty(&side->lane.segments));
    assert_int_equal(side->lane.acked, side->lane.next_seq - 1);
    assert_true(tether__list_empty(&side->lane.bulk_open));
    assert_true(tether__list_empty(&side->lane.bulk_waiting));
    assert_int_equal(side->lane.n_blobs, 0);
    assert_int_equal(side->lane.blob_bytes, 0);
    assert_false(tether__lane_owes_ack(&side->lane));
}

static void run(struct sim *sim, uint64_t seed)
{
    static struct sent sent[2][MAX_SENT];
    *sim = (struct sim){.rng = seed * 0x9e3779b97f4a7c15 + 1};
    memset(sent, 0, sizeof sent);
    sim->limits = (struct tether__lane_limits){
        .segment_bytes = 64 + draw(sim, 400),
        .inline_bytes = draw(sim, 60),
        .fragment_bytes = 60 + draw(sim, 100),
        .max_message_bytes = 1000 + draw(sim, 1000),
        .max_unacked_bytes = 600 + draw(sim, 5000),
        .max_blobs = 1 + draw(sim, 6),
    };
    for (int i = 0; i < 2; i++) {
        sim->side[i].sim = sim;
        sim->side[i].sent = sent[i];
        sim->side[i].last_small = -1;
        tether__lane_init(&sim->side[i].lane, &sim->limits);
    }
    for (int i = 0; i < STEPS; i++) {
        if (seed % 2 == 0 && draw(sim, 10) == 0)
            fail_nth_allocation((int)draw(sim, 5));
        step(sim);
    }
    heal(sim);
    check(&sim->side[0]);
    check(&sim->side[1]);
    for (int i = 0; i < 2; i++) {
        forget(sim->side[i].seen, &sim->side[i].n_seen);
        tether__lane_fini(&sim->side[i].lane);
    }
    let_go(sim, 0);
}

static uint64_t running_seed;
static uint64_t first_seed = 1, n_seeds = SEEDS;

static void every_message_arrives_once_on_a_faulty_network(void **state)
{
    (void)state;
    size_t delivered = 0, cuts = 0, fences = 0, replays = 0, cancelled = 0, no_memory = 0;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct sim sim;
        test_buffers_forget();
        running_seed = seed;
        run(&sim, seed);
        if (test_buffers_live() != 0)
            fail_msg("seed %lu leaves buffers", (unsigned long)seed);
        if (heap_live() != 0)
            fail_msg("seed %lu leaves memory", (unsigned long)seed);
        delivered += sim.delivered, cuts += sim.cuts, fences += sim.fences;
        replays += sim.replays, cancelled += sim.cancelled, no_memory += sim.no_memory;
    }
    print_message(
        "%lu seeds: %zu messages, %zu cancelled, %zu cuts, %zu fences, %zu replays, no memory %zu "
        "times\n",
        (unsigned long)n_seeds, delivered, cancelled, cuts, fences, replays, no_memory);
}

/* An assert that fails leaves the test at once, so this is what says where. */
static int tell_seed(void **state)
{
    (void)state;
    print_message("last seed: %lu\n", (unsigned long)running_seed);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        first_seed = strtoull(argv[1], NULL, 10);
        n_seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_message_arrives_once_on_a_faulty_network, tell_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
