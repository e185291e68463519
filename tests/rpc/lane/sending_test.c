/* The lane: the order in which messages leave, and long messages in pieces. sim_test.c tests how
 * the rules of the lane act together, bytes_test.c its bytes, and memory_test.c its memory. */
#include <string.h>

#include "protos/rpc.pb-c.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lane/fixture.h"

#define CALL TETHER__FRAME_CALL
#define KIB ((size_t)1024)

/* ---- Sending ---- */

static void messages_are_batched_and_arrive_in_order(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &tether__lane_default_limits);
    assert_int_equal(test_send(&a, CALL, "one", 0, 0), TETHER_OK);
    assert_int_equal(test_send(&a, TETHER__FRAME_FETCH, "two", 10, 0), TETHER_OK);
    assert_int_equal(test_send(&a, 1234567, "", 0, 0), TETHER_OK);
    assert_int_equal(test_carry(&a, &b), 2); /* the batch, and the ack that was asked for */
    assert_int_equal(b.n_got, 3);
    test_assert_got(&b, 0, CALL, "one", 0);
    test_assert_got(&b, 1, TETHER__FRAME_FETCH, "two", 10);
    test_assert_got(&b, 2, 1234567, "", 0);
    assert_true(b.got[0].numbered);
    assert_int_equal(a.lane.unacked_bytes, 0);
    test_pair_fini(&a, &b);
}

static void segment_accepts_messages_until_it_is_pulled(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &tether__lane_default_limits);
    test_send(&a, CALL, "one", 0, 0);
    struct test_buffer *first = test_pull(&a, false);
    test_send(&a, CALL, "two", 0, 0);
    test_send(&a, CALL, "three", 0, 0);
    struct test_buffer *second = test_pull(&a, false);
    assert_null(test_pull(&a, false));
    test_receive(&b, first, TETHER_OK);
    assert_int_equal(b.n_got, 1);
    test_receive(&b, second, TETHER_OK);
    assert_int_equal(b.n_got, 3);
    test_buffer_release(first);
    test_buffer_release(second);
    test_pair_fini(&a, &b);
}

static void segments_are_capped(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    for (int i = 0; i < 50; i++)
        assert_int_equal(test_send(&a, CALL, "0123456789", 10, 0), TETHER_OK);
    for (struct test_buffer *batch; (batch = test_pull(&a, false));) {
        assert_in_range(batch->len, 1, test_small_limits.segment_bytes);
        test_receive(&b, batch, TETHER_OK);
        test_buffer_release(batch);
    }
    assert_int_equal(b.n_got, 50);
    test_pair_fini(&a, &b);
}

static void large_payload_is_not_copied(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &tether__lane_default_limits);
    struct test_buffer *payload = test_buffer_new(100 * KIB);
    memset(payload->data, 'x', payload->len);
    assert_int_equal(
        tether__lane_send(&a.lane, CALL, tether_bytes_str("big"), test_buffer_slice(payload), 0),
        TETHER_OK);
    assert_int_equal(payload->refs, 2);
    test_send(&a, CALL, "next", 0, 0);

    struct tether__lane_out out;
    assert_true(tether__lane_pull(&a.lane, false, &out));
    assert_int_equal(out.n_pieces, 2);
    assert_ptr_equal(out.pieces[1].data, payload->data);
    assert_int_equal(payload->refs, 3);
    tether__slice_release(out.pieces[0]);
    tether__slice_release(out.pieces[1]);

    /* Sent again whole, and released when it is acknowledged. */
    tether__lane_disconnected(&a.lane);
    assert_int_equal(tether__lane_connected(&a.lane, 0), TETHER_OK);
    test_carry(&a, &b);
    assert_int_equal(payload->refs, 1);
    assert_int_equal(b.n_got, 2);
    assert_int_equal(b.got[0].payload_len, 100 * KIB);
    assert_memory_equal(b.got[0].payload, payload->data, payload->len);
    test_assert_got(&b, 1, CALL, "next", 0);
    test_buffer_release(payload);
    test_pair_fini(&a, &b);
}

static tether_status keep_payload(struct test_end *end, const struct tether__inbound *message)
{
    struct tether__slice *retained = end->hook_data;
    *retained = tether__slice_retain(message->payload);
    return TETHER_OK;
}

static void payload_may_be_retained_after_delivery(void **state)
{
    (void)state;
    static const size_t sizes[] = {10, 90, 900}; /* copied, behind the segment, in pieces */
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        struct test_end a, b;
        struct tether__slice retained = TETHER__SLICE_EMPTY;
        test_pair_init(&a, &b, &test_small_limits);
        b.hook = keep_payload;
        b.hook_data = &retained;
        assert_int_equal(test_send(&a, CALL, "k", sizes[i], 0), TETHER_OK);
        test_carry(&a, &b);
        test_pair_fini(&a, &b);
        assert_int_equal(retained.len, sizes[i]);
        assert_int_equal(retained.data[sizes[i] - 1], (uint8_t)('k' + (sizes[i] - 1) % 251));
        tether__slice_release(retained);
    }
}

static void limits_are_checked_before_a_message_is_queued(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    assert_int_equal(test_send(&a, CALL, "h", 1000, 0), TETHER_ETOOBIG);
    char header[300];
    memset(header, 'x', sizeof header);
    assert_int_equal(
        tether__lane_send(&a.lane, CALL, tether_bytes_of(header, 257), TETHER__SLICE_EMPTY, 0),
        TETHER_ETOOBIG);
    assert_int_equal(
        tether__lane_send_unnumbered(&a.lane, TETHER__FRAME_STATE, tether_bytes_of(header, 257)),
        TETHER_ETOOBIG);
    static const uint32_t not_bodies[] = {0, 1, 14, 15};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(not_bodies); i++)
        assert_int_equal(test_send(&a, not_bodies[i], "h", 0, 0), TETHER_EINVAL);
    assert_int_equal(a.lane.unacked_bytes, 0);
    assert_int_equal(a.lane.next_seq, 1);

    while (test_send(&a, CALL, "h", 400, 0) == TETHER_OK)
        ;
    size_t full = a.lane.unacked_bytes;
    assert_in_range(full, 1400, 2000);
    assert_int_equal(test_send(&a, CALL, "h", 400, 0), TETHER_EBUSY);
    assert_int_equal(a.lane.unacked_bytes, full);
    assert_int_equal(test_buffers_live(), 2); /* the refused message is not held */
    assert_int_equal(
        tether__lane_send_unnumbered(&a.lane, TETHER__FRAME_PING, tether_bytes_str("")),
        TETHER_OK); /* does not count */
    tether__lane_reset(&a.lane);
    test_pair_fini(&a, &b);
}

static void message_larger_than_the_window_is_sent_alone(void **state)
{
    (void)state;
    struct tether__lane_limits limits = test_small_limits;
    limits.max_unacked_bytes = 500;
    struct test_end a, b;
    test_pair_init(&a, &b, &limits);
    test_send(&a, CALL, "small", 0, 0);
    assert_int_equal(test_send(&a, CALL, "large", 900, 0), TETHER_EBUSY);
    test_carry(&a, &b);
    assert_int_equal(test_send(&a, CALL, "large", 900, 0), TETHER_OK);
    assert_int_equal(test_send(&a, CALL, "small", 0, 0), TETHER_EBUSY);
    test_carry(&a, &b);
    test_assert_got(&b, 1, CALL, "large", 900);
    assert_int_equal(a.lane.unacked_bytes, 0);
    test_pair_fini(&a, &b);
}

/* ---- Pieces ---- */

static void small_messages_are_sent_between_pieces_of_large_ones(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    assert_int_equal(test_send(&a, CALL, "large", 900, 0), TETHER_OK);
    size_t largest = 0, n_large = 0, before = 0;
    for (int round = 0; n_large == 0; round++) {
        assert_in_range(round, 0, 20);
        test_send(&a, CALL, "small", 0, 0);
        for (int i = 0; i < 2; i++) { /* the call, and a piece of the large message behind it */
            struct test_buffer *batch = test_pull(&a, false);
            if (!batch)
                break;
            largest = batch->len > largest ? batch->len : largest;
            test_receive(&b, batch, TETHER_OK);
            test_buffer_release(batch);
        }
        for (; before < b.n_got; before++)
            n_large += b.got[before].payload_len == 900;
    }
    assert_in_range(before, 8, 12);
    assert_in_range(largest, 100, 100 + TETHER__BATCH_OVERHEAD);
    test_pair_fini(&a, &b);
}

static void large_messages_share_the_stream_in_turns(void **state)
{
    (void)state;
    struct tether__lane_limits limits = test_small_limits;
    limits.max_message_bytes = 10000;
    limits.max_unacked_bytes = 20000;
    struct test_end a, b;
    test_pair_init(&a, &b, &limits);
    assert_int_equal(test_send(&a, CALL, "first", 2000, 0), TETHER_OK);
    assert_int_equal(test_send(&a, CALL, "second", 300, 0), TETHER_OK);
    assert_int_equal(test_send(&a, CALL, "third", 300, 0), TETHER_OK);
    for (struct test_buffer *batch; (batch = test_pull(&a, false));) {
        test_receive(&b, batch, TETHER_OK);
        assert_in_range(b.lane.n_blobs, 0, limits.max_blobs);
        test_buffer_release(batch);
    }
    assert_int_equal(b.n_got, 3);
    test_assert_got(&b, 0, CALL, "second", 300);
    test_assert_got(&b, 1, CALL, "third", 300);
    test_assert_got(&b, 2, CALL, "first", 2000);
    test_pair_fini(&a, &b);
}

static void unfinished_blobs_are_bounded_by_the_message_limit(void **state)
{
    (void)state;
    struct tether__lane_limits limits = test_small_limits;
    limits.max_unacked_bytes = 4000;
    struct test_end a, b;
    test_pair_init(&a, &b, &limits);
    test_send(&a, CALL, "first", 700, 0);
    test_send(&a, CALL, "second", 700, 0); /* together they are more than max_message_bytes */
    test_carry(&a, &b);
    test_assert_got(&b, 0, CALL, "first", 700);
    test_assert_got(&b, 1, CALL, "second", 700);
    test_pair_fini(&a, &b);
}

/* The pulls give piece 1 of both, piece 2 of both, the other message, and pieces 3 to 5: the eighth
 * queues the message behind its last piece, the ninth gives it. */
static void lane_cancels_a_message_when_its_last_piece_is_not_queued(void **state)
{
    (void)state;
    for (int pulls = 0; pulls < 10; pulls++) {
        struct test_end a, b;
        test_pair_init(&a, &b, &test_small_limits);
        test_send(&a, CALL, "cancelled", 450, 7);
        test_send(&a, CALL, "other", 200, 8);
        for (int i = 0; i < pulls; i++) {
            struct test_buffer *batch = test_pull(&a, false);
            test_receive(&b, batch, TETHER_OK);
            test_buffer_release(batch);
        }
        assert_false(tether__lane_cancel(&a.lane, CALL, 0));
        assert_false(tether__lane_cancel(&a.lane, CALL, 9));
        assert_false(tether__lane_cancel(&a.lane, TETHER__FRAME_REPLY, 7));
        bool queued = !tether__lane_cancel(&a.lane, CALL, 7);
        assert_int_equal(queued, pulls >= 8);
        assert_false(tether__lane_cancel(&a.lane, CALL, 7));
        test_carry(&a, &b);
        assert_int_equal(b.n_got, queued ? 2 : 1);
        assert_int_equal(a.lane.unacked_bytes, 0);
        assert_int_equal(a.lane.n_bulk_open, 0);
        assert_int_equal(a.lane.bulk_open_bytes, 0);
        assert_int_equal(b.lane.n_blobs, 0);
        test_send(&a, CALL, "next", 450, 0);
        test_carry(&a, &b);
        test_assert_got(&b, b.n_got - 1, CALL, "next", 450);
        test_pair_fini(&a, &b);
    }
}

static void lane_does_not_cancel_a_message_when_it_has_no_tag_or_no_pieces(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    test_send(&a, CALL, "whole", 10, 7);
    test_send(&a, CALL, "untagged", 450, 0);
    assert_false(tether__lane_cancel(&a.lane, CALL, 7));
    assert_false(tether__lane_cancel(&a.lane, CALL, 0));
    test_carry(&a, &b);
    assert_int_equal(b.n_got, 2);
    test_pair_fini(&a, &b);
}

static void pieces_survive_a_reconnect(void **state)
{
    (void)state;
    /* Cut after every number of batches, with every number of them lost. */
    for (int cut = 0; cut < 12; cut++) {
        for (int lost = 0; lost <= cut; lost++) {
            struct test_end a, b;
            test_pair_init(&a, &b, &test_small_limits);
            test_send(&a, CALL, "before", 0, 0);
            test_send(&a, CALL, "large", 950, 7);
            for (int i = 0; i < cut; i++) {
                struct test_buffer *batch = test_pull(&a, false);
                if (!batch)
                    break;
                if (i < cut - lost)
                    test_receive(&b, batch, TETHER_OK);
                test_buffer_release(batch);
            }
            tether__lane_disconnected(&a.lane);
            tether__lane_disconnected(&b.lane);
            assert_int_equal(tether__lane_connected(&a.lane, b.lane.received), TETHER_OK);
            assert_int_equal(tether__lane_connected(&b.lane, a.lane.received), TETHER_OK);
            test_carry(&a, &b);
            assert_int_equal(b.n_got, 2);
            test_assert_got(&b, 1, CALL, "large", 950);
            assert_int_equal(a.lane.acked, a.lane.next_seq - 1);
            assert_int_equal(a.lane.unacked_bytes, 0);
            test_pair_fini(&a, &b);
        }
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, test_start, test_leaves_nothing)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(messages_are_batched_and_arrive_in_order),
        TEST(segment_accepts_messages_until_it_is_pulled),
        TEST(segments_are_capped),
        TEST(large_payload_is_not_copied),
        TEST(payload_may_be_retained_after_delivery),
        TEST(limits_are_checked_before_a_message_is_queued),
        TEST(message_larger_than_the_window_is_sent_alone),
        TEST(small_messages_are_sent_between_pieces_of_large_ones),
        TEST(large_messages_share_the_stream_in_turns),
        TEST(unfinished_blobs_are_bounded_by_the_message_limit),
        TEST(lane_cancels_a_message_when_its_last_piece_is_not_queued),
        TEST(lane_does_not_cancel_a_message_when_it_has_no_tag_or_no_pieces),
        TEST(pieces_survive_a_reconnect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
