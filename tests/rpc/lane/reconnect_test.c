/* The lane: frames at the beginning of a connection or a session. */
#include "protos/rpc.pb-c.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lane/fixture.h"

#define CALL TETHER__FRAME_CALL

static void numbered_messages_wait_until_the_connection_is_up(void **state)
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

    /* b is not up yet: it skips numbered frames, and a sends them again. */
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

static void frames_behind_a_hello_in_its_batch_are_accepted(void **state)
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

static void reconnect_resends_unacknowledged_frames(void **state)
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

static void reconnect_fails_when_peer_names_an_impossible_position(void **state)
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

static void reset_restarts_frame_numbers_at_one(void **state)
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, test_start, test_leaves_nothing)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbered_messages_wait_until_the_connection_is_up),
        TEST(frames_behind_a_hello_in_its_batch_are_accepted),
        TEST(reconnect_resends_unacknowledged_frames),
        TEST(reconnect_fails_when_peer_names_an_impossible_position),
        TEST(reset_restarts_frame_numbers_at_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
