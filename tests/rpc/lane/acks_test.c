/* The lane: acknowledgements, and messages that it refuses. */
#include "protos/rpc.pb-c.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lane/fixture.h"

#define CALL TETHER__FRAME_CALL
#define REPLY TETHER__FRAME_REPLY
#define KIB ((size_t)1024)

/* ---- Acknowledgements ---- */

static void ack_is_sent_with_the_next_message(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    test_send(&a, CALL, "question", 0, 0);
    struct test_buffer *batch = test_pull(&a, false);
    test_receive(&b, batch, TETHER_OK);
    test_buffer_release(batch);
    assert_true(tether__lane_owes_ack(&b.lane));
    assert_null(test_pull(&b, false)); /* one ack alone does not cause a message */
    test_send(&b, REPLY, "answer", 0, 0);
    batch = test_pull(&b, false);
    assert_false(tether__lane_owes_ack(&b.lane));
    test_receive(&a, batch, TETHER_OK);
    test_buffer_release(batch);
    assert_int_equal(a.lane.acked, 1);
    assert_int_equal(a.lane.unacked_bytes, 0);
    test_pair_fini(&a, &b);
}

static void ack_is_sent_alone_after_many_frames_or_bytes(void **state)
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

static void ack_is_sent_before_resent_frames(void **state)
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
    test_assert_got(&b, 1, CALL, "3", 0); /* it overtook pieces of 2 */
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, test_start, test_leaves_nothing)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ack_is_sent_with_the_next_message),
        TEST(ack_is_sent_alone_after_many_frames_or_bytes),
        TEST(ack_is_sent_before_resent_frames),
        TEST(lane_acknowledges_a_message_when_the_other_end_has_applied_it),
        TEST(lane_refuses_messages_when_it_is_closed),
        TEST(lane_rejects_a_frame_without_number_when_it_is_no_handshake_or_ping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
