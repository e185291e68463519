/* The lane: delivery stops between two messages, and goes on with the next one. */
#include "protos/rpc.pb-c.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lane/fixture.h"

#define CALL TETHER__FRAME_CALL
#define REPLY TETHER__FRAME_REPLY

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
        TEST(lane_takes_a_message_when_it_is_read),
        TEST(batch_ends_when_the_lane_breaks),
        TEST(lane_gives_a_message_again_when_it_is_rejected),
        TEST(lane_counts_a_message_as_applied_when_the_reader_stops),
        TEST(ack_leaves_out_frame_that_is_still_being_delivered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
