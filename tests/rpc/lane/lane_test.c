/* The lane, rule by rule. What happens when rules meet is sim_test's, what the bytes look like
 * bytes_test's, and where its memory goes memory_test's. */
#include <stdlib.h>
#include <string.h>

#include "protos/rpc.pb-c.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lane/fixture.h"

#define CALL TETHER__FRAME_CALL
#define REPLY TETHER__FRAME_REPLY
#define KIB ((size_t)1024)

/* ---- Sending ---- */

static void messages_leave_together_and_arrive_in_order(void **state)
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

static void a_segment_takes_more_until_it_is_pulled(void **state)
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

static void a_large_payload_is_not_copied(void **state)
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

    /* Sent again whole, and let go of when it is acknowledged. */
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
    struct tether__slice *kept = end->hook_data;
    *kept = tether__slice_retain(message->payload);
    return TETHER_OK;
}

static void a_payload_may_be_kept_after_delivery(void **state)
{
    (void)state;
    static const size_t sizes[] = {10, 90, 900}; /* copied, behind the segment, in pieces */
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        struct test_end a, b;
        struct tether__slice kept = TETHER__SLICE_EMPTY;
        test_pair_init(&a, &b, &test_small_limits);
        b.hook = keep_payload;
        b.hook_data = &kept;
        assert_int_equal(test_send(&a, CALL, "k", sizes[i], 0), TETHER_OK);
        test_carry(&a, &b);
        test_pair_fini(&a, &b);
        assert_int_equal(kept.len, sizes[i]);
        assert_int_equal(kept.data[sizes[i] - 1], (uint8_t)('k' + (sizes[i] - 1) % 251));
        tether__slice_release(kept);
    }
}

static void limits_are_checked_before_anything_is_taken(void **state)
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
    assert_int_equal(test_buffers_live(), 2); /* what was refused is not held */
    assert_int_equal(
        tether__lane_send_unnumbered(&a.lane, TETHER__FRAME_PING, tether_bytes_str("")),
        TETHER_OK); /* does not count */
    tether__lane_reset(&a.lane);
    test_pair_fini(&a, &b);
}

static void a_message_beyond_the_window_goes_alone(void **state)
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

static void small_messages_slip_in_between_pieces(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    assert_int_equal(test_send(&a, CALL, "large", 900, 0), TETHER_OK);
    size_t largest = 0, n_large = 0, before = 0;
    for (int round = 0; n_large == 0; round++) {
        assert_in_range(round, 0, 20);
        test_send(&a, CALL, "small", 0, 0);
        for (int i = 0; i < 2; i++) { /* what was sent, and a piece behind it */
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

static void bulk_messages_take_turns(void **state)
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

static void open_blobs_stay_within_a_message(void **state)
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

/* ---- Acknowledgements ---- */

static void an_ack_rides_on_what_goes_back(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    test_send(&a, CALL, "question", 0, 0);
    struct test_buffer *batch = test_pull(&a, false);
    test_receive(&b, batch, TETHER_OK);
    test_buffer_release(batch);
    assert_true(tether__lane_owes_ack(&b.lane));
    assert_null(test_pull(&b, false)); /* not worth a message of its own */
    test_send(&b, REPLY, "answer", 0, 0);
    batch = test_pull(&b, false);
    assert_false(tether__lane_owes_ack(&b.lane));
    test_receive(&a, batch, TETHER_OK);
    test_buffer_release(batch);
    assert_int_equal(a.lane.acked, 1);
    assert_int_equal(a.lane.unacked_bytes, 0);
    test_pair_fini(&a, &b);
}

static void an_ack_goes_alone_after_many_frames_or_bytes(void **state)
{
    (void)state;
    static const struct {
        size_t messages, payload;
        bool due;
    } rows[] = {{63, 0, false}, {64, 0, true}, {1, 255 * KIB, false}, {2, 200 * KIB, true}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct test_end a, b;
        test_pair_init(&a, &b, &tether__lane_default_limits);
        for (size_t n = 0; n < rows[i].messages; n++)
            assert_int_equal(test_send(&a, CALL, "m", rows[i].payload, 0), TETHER_OK);
        for (struct test_buffer *batch; (batch = test_pull(&a, false));) {
            test_receive(&b, batch, TETHER_OK);
            test_buffer_release(batch);
        }
        struct test_buffer *ack = test_pull(&b, false);
        assert_int_equal(ack != NULL, rows[i].due);
        if (!ack)
            ack = test_pull(&b, true);
        assert_in_range(ack->len, 2, 16);
        test_receive(&a, ack, TETHER_OK);
        test_buffer_release(ack);
        assert_int_equal(a.lane.unacked_bytes, 0);
        assert_null(test_pull(&b, true));
        test_pair_fini(&a, &b);
    }
}

static void an_ack_passes_what_is_sent_again(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    test_send(&a, CALL, "lost", 0, 0);
    test_buffer_release(test_pull(&a, false));
    tether__lane_disconnected(&a.lane);
    tether__lane_connected(&a.lane, 0);
    test_send(&b, CALL, "question", 0, 0);
    struct test_buffer *batch = test_pull(&b, false);
    test_receive(&a, batch, TETHER_OK);
    test_buffer_release(batch);
    batch = test_pull(&a, true);
    test_receive(&b, batch, TETHER_OK);
    test_buffer_release(batch);
    assert_int_equal(b.lane.acked, 1);
    assert_int_equal(b.n_got, 0);
    test_carry(&a, &b);
    test_assert_got(&b, 0, CALL, "lost", 0);
    test_pair_fini(&a, &b);
}

static void lane_acknowledges_a_message_when_the_other_end_has_applied_it(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    test_send(&a, CALL, "1", 0, 0);
    test_send(&a, CALL, "2", 250, 0);
    test_send(&a, CALL, "3", 0, 0);
    assert_int_equal(a.lane.acked, 0);
    test_carry(&a, &b);
    assert_int_equal(b.n_got, 3);
    test_assert_got(&b, 1, CALL, "3", 0); /* it went past the pieces */
    assert_int_equal(a.lane.acked, a.lane.next_seq - 1);
    assert_int_equal(a.lane.acked, b.lane.received);

    test_send(&a, CALL, "4", 0, 0);
    test_send(&a, CALL, "5", 250, 5);
    tether__lane_reset(&a.lane);
    assert_int_equal(a.lane.acked, 0);
    assert_int_equal(a.lane.unacked_bytes, 0);
    assert_false(tether__lane_cancel(&a.lane, CALL, 5));
    test_pair_fini(&a, &b);
}

static void lane_refuses_messages_when_it_is_closed(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    test_end_fini(&a);
    assert_int_equal(test_send(&a, CALL, "late", 300, 7), TETHER_ESHUTDOWN);
    assert_int_equal(test_send(&a, CALL, "late", 0, 0), TETHER_ESHUTDOWN);
    test_end_fini(&b);
}

/* ---- Connections and sessions ---- */

/* A call without a number could be applied twice, or before those that it follows. */
static void lane_rejects_a_frame_without_number_when_it_is_no_handshake_or_ping(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {TETHER__FRAME_CALL,        TETHER__FRAME_REPLY,
                                     TETHER__FRAME_CANCEL,      TETHER__FRAME_GOODBYE,
                                     TETHER__FRAME_USER_DELETE, 99};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(kinds); i++) {
        struct test_end a, b;
        test_pair_init(&a, &b, &test_small_limits);
        assert_int_equal(tether__lane_send_unnumbered(&a.lane, kinds[i], tether_bytes_str("x")),
                         TETHER_OK);
        struct test_buffer *batch = test_pull(&a, true);
        test_receive(&b, batch, TETHER_ECORRUPT);
        test_buffer_release(batch);
        assert_int_equal(b.n_got, 0);
        test_pair_fini(&a, &b);
    }
}

static void only_unnumbered_messages_go_before_the_connection_is_up(void **state)
{
    (void)state;
    struct test_end a, b;
    test_end_init(&a, &test_small_limits);
    test_end_init(&b, &test_small_limits);
    test_send(&a, CALL, "call", 0, 0);
    assert_null(test_pull(&a, true));
    tether__lane_send_unnumbered(&a.lane, TETHER__FRAME_STATE, tether_bytes_str("lost"));
    tether__lane_disconnected(&a.lane);
    assert_null(test_pull(&a, true));
    tether__lane_send_unnumbered(&a.lane, TETHER__FRAME_STATE, tether_bytes_str("hello"));
    struct test_buffer *hello = test_pull(&a, true);
    assert_null(test_pull(&a, true));
    test_receive(&b, hello, TETHER_OK);
    test_buffer_release(hello);
    assert_int_equal(b.n_got, 1);
    test_assert_got(&b, 0, TETHER__FRAME_STATE, "hello", 0);
    assert_false(b.got[0].numbered);

    /* b is not up yet: what is numbered is passed over, and comes again. */
    tether__lane_connected(&a.lane, 0);
    struct test_buffer *early = test_pull(&a, false);
    test_receive(&b, early, TETHER_OK);
    test_buffer_release(early);
    assert_int_equal(b.n_got, 1);
    tether__lane_connected(&b.lane, 0);
    tether__lane_disconnected(&a.lane);
    tether__lane_connected(&a.lane, 0);
    test_carry(&a, &b);
    test_assert_got(&b, 1, CALL, "call", 0);
    test_pair_fini(&a, &b);
}

static tether_status connect_on_hello(struct test_end *end, const struct tether__inbound *message)
{
    return message->kind == TETHER__FRAME_STATE ? tether__lane_connected(&end->lane, 0) : TETHER_OK;
}

static void a_hello_may_connect_within_its_batch(void **state)
{
    (void)state;
    Tether__State hello = TETHER__STATE__INIT;
    Tether__Goodbye goodbye = TETHER__GOODBYE__INIT;
    Tether__Frame frames[3] = {TETHER__FRAME__INIT, TETHER__FRAME__INIT, TETHER__FRAME__INIT};
    frames[0].seq = 77; /* of the old session */
    frames[0].body_case = TETHER__FRAME__BODY_GOODBYE, frames[0].goodbye = &goodbye;
    frames[1].body_case = TETHER__FRAME__BODY_STATE, frames[1].state = &hello;
    frames[2].seq = 1;
    frames[2].body_case = TETHER__FRAME__BODY_GOODBYE, frames[2].goodbye = &goodbye;
    Tether__Frame *list[] = {&frames[0], &frames[1], &frames[2]};
    Tether__Batch batch = TETHER__BATCH__INIT;
    batch.ack = 9; /* of the old session too */
    batch.n_frame = 3, batch.frame = list;
    struct test_buffer *bytes = test_buffer_new(tether__batch__get_packed_size(&batch));
    tether__batch__pack(&batch, bytes->data);

    struct test_end b;
    test_end_init(&b, &test_small_limits);
    b.hook = connect_on_hello;
    test_receive(&b, bytes, TETHER_OK);
    assert_int_equal(b.n_got, 2);
    assert_int_equal(b.got[0].kind, TETHER__FRAME_STATE);
    assert_int_equal(b.got[1].kind, TETHER__FRAME_GOODBYE);
    assert_int_equal(b.lane.received, 1);
    test_buffer_release(bytes);
    test_end_fini(&b);
}

static void a_reconnect_sends_what_was_not_applied(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    char text[] = "0";
    for (int i = 0; i < 9; i++, text[0]++)
        test_send(&a, CALL, text, 70, 0);
    /* b takes the first five, and no ack of them arrives. */
    for (int i = 0; i < 5; i++) {
        struct test_buffer *batch = test_pull(&a, false);
        test_receive(&b, batch, TETHER_OK);
        test_buffer_release(batch);
    }
    tether__lane_disconnected(&a.lane);
    tether__lane_disconnected(&b.lane);
    assert_int_equal(tether__lane_connected(&a.lane, 5), TETHER_OK);
    assert_int_equal(tether__lane_connected(&b.lane, 0), TETHER_OK);
    test_carry(&a, &b);
    assert_int_equal(b.n_got, 9);
    for (text[0] = '0'; text[0] < '9'; text[0]++)
        test_assert_got(&b, (size_t)(text[0] - '0'), CALL, text, 70);

    /* A second "connected" on the same connection is an ack and no more. */
    test_send(&a, CALL, "x", 0, 0);
    test_buffer_release(test_pull(&a, false));
    assert_int_equal(tether__lane_connected(&a.lane, 9), TETHER_OK);
    assert_null(test_pull(&a, false));
    test_pair_fini(&a, &b);
}

static void lost_memory_is_found_out(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    test_send(&a, CALL, "1", 0, 0);
    test_carry(&a, &b);
    test_send(&a, CALL, "2", 0, 0);
    tether__lane_disconnected(&a.lane);
    assert_int_equal(tether__lane_connected(&a.lane, 2), TETHER_ECORRUPT); /* queued, not sent */
    assert_int_equal(tether__lane_connected(&a.lane, 0), TETHER_ECORRUPT); /* 1 was acknowledged */
    assert_false(a.lane.connected);
    assert_int_equal(tether__lane_connected(&a.lane, 1), TETHER_OK);
    test_carry(&a, &b);
    assert_int_equal(b.n_got, 2);
    test_pair_fini(&a, &b);
}

static void a_reset_starts_from_one_again(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    test_send(&a, CALL, "lost", 300, 0);
    test_buffer_release(test_pull(&a, false));
    struct test_buffer *half = test_pull(&a, false);
    test_receive(&a, half, TETHER_ECORRUPT); /* out of order there: nothing changes */
    test_buffer_release(half);
    test_send(&b, CALL, "lost too", 0, 0);
    tether__lane_reset(&a.lane);
    tether__lane_reset(&b.lane);
    assert_int_equal(a.lane.unacked_bytes, 0);
    assert_false(a.lane.connected);
    assert_int_equal(tether__lane_connected(&a.lane, 0), TETHER_OK);
    assert_int_equal(tether__lane_connected(&b.lane, 0), TETHER_OK);
    test_send(&a, CALL, "new", 300, 0);
    test_carry(&a, &b);
    assert_int_equal(b.n_got, 1);
    assert_int_equal(a.n_got, 0);
    test_assert_got(&b, 0, CALL, "new", 300);
    test_pair_fini(&a, &b);
}

/* ---- Between two messages ---- */

static tether_status reply_inline(struct test_end *end, const struct tether__inbound *message)
{
    if (message->kind != CALL)
        return TETHER_OK;
    assert_int_equal(test_send(end, REPLY, "reply", 150, 0), TETHER_OK);
    return test_send(end, REPLY, "reply", 50, 0);
}

static void lane_takes_a_message_when_it_is_read(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    b.hook = reply_inline;
    for (int i = 0; i < 4; i++)
        test_send(&a, CALL, "call", 0, 0);
    test_carry(&a, &b);
    assert_int_equal(b.n_got, 4);
    assert_int_equal(a.n_got, 8);
    test_pair_fini(&a, &b);
}

/* The second message breaks the lane: the third must not be given, and may come again. */
static void batch_ends_when_the_lane_breaks(void **state)
{
    (void)state;
    for (int resets = 0; resets < 2; resets++) {
        struct test_end a, b;
        test_pair_init(&a, &b, &test_small_limits);
        test_send(&a, CALL, "small", 0, 0);
        test_send(&a, CALL, "large", 450, 0);
        for (struct test_buffer *batch; (batch = test_pull(&a, false));) {
            struct tether__lane_cursor cursor =
                tether__lane_begin(&b.lane, test_buffer_slice(batch), NULL);
            struct tether__inbound message;
            bool broke = false;
            while (tether__lane_next(&b.lane, &cursor, &message)) {
                uint64_t before = tether__lane_applied(&b.lane);
                broke = message.payload.len == 450;
                if (broke && resets)
                    tether__lane_reset(&b.lane);
                else if (broke)
                    tether__lane_disconnected(&b.lane);
                tether__lane_accept(&b.lane, &cursor);
                assert_int_equal(b.lane.received, broke && resets ? 0 : before + 1);
                assert_int_equal(tether__lane_applied(&b.lane), b.lane.received);
            }
            assert_int_equal(cursor.status, broke ? TETHER_ECANCELED : TETHER_OK);
            test_buffer_release(batch);
        }
        assert_int_equal(b.lane.n_blobs, 0);
        test_pair_fini(&a, &b);
    }
}

/* A message that there is no memory for comes again, also when the connection has closed. */
static void lane_gives_a_message_again_when_it_is_rejected(void **state)
{
    (void)state;
    for (int disconnects = 0; disconnects < 2; disconnects++) {
        struct test_end a, b;
        test_pair_init(&a, &b, &test_small_limits);
        test_send(&a, CALL, "large", 450, 0);
        for (struct test_buffer *batch; (batch = test_pull(&a, false));) {
            struct tether__lane_cursor cursor =
                tether__lane_begin(&b.lane, test_buffer_slice(batch), NULL);
            struct tether__inbound message;
            if (tether__lane_next(&b.lane, &cursor, &message)) {
                if (disconnects)
                    tether__lane_disconnected(&b.lane);
                tether__lane_reject(&b.lane, &cursor);
            }
            test_buffer_release(batch);
        }
        assert_int_equal(b.lane.n_blobs, 1);
        tether__lane_disconnected(&a.lane);
        tether__lane_disconnected(&b.lane);
        assert_int_equal(tether__lane_connected(&a.lane, tether__lane_applied(&b.lane)), TETHER_OK);
        assert_int_equal(tether__lane_connected(&b.lane, 0), TETHER_OK);
        test_carry(&a, &b);
        assert_int_equal(b.n_got, 1);
        test_assert_got(&b, 0, CALL, "large", 450);
        test_pair_fini(&a, &b);
    }
}

static tether_status refuse_second(struct test_end *end, const struct tether__inbound *message)
{
    (void)message;
    return end->n_got == 2 ? TETHER_EPERM : TETHER_OK;
}

static void lane_counts_a_message_as_applied_when_the_reader_stops(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    b.hook = refuse_second;
    for (int i = 0; i < 3; i++)
        test_send(&a, CALL, "call", 0, 0);
    struct test_buffer *batch = test_pull(&a, false);
    test_receive(&b, batch, TETHER_EPERM);
    assert_int_equal(b.lane.received, 2); /* the refused one counts as applied */
    test_receive(&b, batch, TETHER_OK);
    assert_int_equal(b.n_got, 3);
    test_buffer_release(batch);
    test_pair_fini(&a, &b);
}

/* Another thread writes while the second message is being delivered. */
static tether_status pull_and_refuse_second(struct test_end *end,
                                            const struct tether__inbound *message)
{
    (void)message;
    if (end->n_got != 2)
        return TETHER_OK;
    struct test_buffer **pulled = end->hook_data;
    *pulled = test_pull(end, true);
    return TETHER_ENOMEM;
}

static void ack_leaves_out_frame_that_is_still_being_delivered(void **state)
{
    (void)state;
    struct test_end a, b;
    struct test_buffer *ack = NULL;
    test_pair_init(&a, &b, &test_small_limits);
    b.hook = pull_and_refuse_second;
    b.hook_data = &ack;
    for (int i = 0; i < 3; i++)
        test_send(&a, CALL, "call", 0, 0);
    struct test_buffer *batch = test_pull(&a, false);
    test_receive(&b, batch, TETHER_ENOMEM);
    test_buffer_release(batch);
    assert_non_null(ack);
    test_receive(&a, ack, TETHER_OK);
    test_buffer_release(ack);
    assert_int_equal(a.lane.acked, 1);

    /* The refused frame and the one behind it come again with the next connection. */
    b.hook = NULL;
    tether__lane_disconnected(&a.lane);
    tether__lane_disconnected(&b.lane);
    assert_int_equal(tether__lane_connected(&a.lane, tether__lane_applied(&b.lane)), TETHER_OK);
    assert_int_equal(tether__lane_connected(&b.lane, tether__lane_applied(&a.lane)), TETHER_OK);
    test_carry(&a, &b);
    assert_int_equal(b.n_got, 4); /* the second twice */
    assert_int_equal(b.lane.received, 3);
    test_pair_fini(&a, &b);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, test_start, test_leaves_nothing)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(messages_leave_together_and_arrive_in_order),
        TEST(a_segment_takes_more_until_it_is_pulled),
        TEST(segments_are_capped),
        TEST(a_large_payload_is_not_copied),
        TEST(a_payload_may_be_kept_after_delivery),
        TEST(limits_are_checked_before_anything_is_taken),
        TEST(a_message_beyond_the_window_goes_alone),
        TEST(small_messages_slip_in_between_pieces),
        TEST(bulk_messages_take_turns),
        TEST(open_blobs_stay_within_a_message),
        TEST(lane_cancels_a_message_when_its_last_piece_is_not_queued),
        TEST(lane_does_not_cancel_a_message_when_it_has_no_tag_or_no_pieces),
        TEST(pieces_survive_a_reconnect),
        TEST(an_ack_rides_on_what_goes_back),
        TEST(an_ack_goes_alone_after_many_frames_or_bytes),
        TEST(an_ack_passes_what_is_sent_again),
        TEST(lane_acknowledges_a_message_when_the_other_end_has_applied_it),
        TEST(lane_refuses_messages_when_it_is_closed),
        TEST(lane_rejects_a_frame_without_number_when_it_is_no_handshake_or_ping),
        TEST(only_unnumbered_messages_go_before_the_connection_is_up),
        TEST(a_hello_may_connect_within_its_batch),
        TEST(a_reconnect_sends_what_was_not_applied),
        TEST(lost_memory_is_found_out),
        TEST(a_reset_starts_from_one_again),
        TEST(lane_takes_a_message_when_it_is_read),
        TEST(batch_ends_when_the_lane_breaks),
        TEST(lane_gives_a_message_again_when_it_is_rejected),
        TEST(lane_counts_a_message_as_applied_when_the_reader_stops),
        TEST(ack_leaves_out_frame_that_is_still_being_delivered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
