/* The lane's memory: used again, bounded, held by the transport for as long as it likes, released
 * on any thread, and missing at any time. */
#include <pthread.h>
#include <stdlib.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/rpc/lane/fixture.h"

#define CALL TETHER__FRAME_CALL
#define REPLY TETHER__FRAME_REPLY
#define KIB ((size_t)1024)

static void transport_may_retain_frames_after_they_are_acknowledged(void **state)
{
    (void)state;
    static const size_t sizes[] = {10, 90, 300};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        struct test_end a, b;
        struct tether__lane_out held[16];
        size_t n = 0;
        test_pair_init(&a, &b, &test_small_limits);
        test_send(&a, CALL, "held", sizes[i], 0);
        for (; tether__lane_pull(&a.lane, false, &held[n]); n++)
            ;
        uint8_t before = held[0].pieces[0].data[2];
        /* Acknowledged, then others are sent: those must not use the bytes that are held. */
        assert_int_equal(tether__lane_connected(&a.lane, a.lane.sent), TETHER_OK);
        assert_int_equal(a.lane.unacked_bytes, 0);
        for (int m = 0; m < 3; m++) {
            test_send(&a, REPLY, "zzzz", sizes[i], 0);
            while (tether__lane_pull(&a.lane, false, &held[n]))
                n++;
        }
        assert_int_equal(held[0].pieces[0].data[2], before);
        test_pair_fini(&a, &b);
        for (size_t m = 0; m < n; m++)
            for (size_t piece = 0; piece < held[m].n_pieces; piece++)
                tether__slice_release(held[m].pieces[piece]);
    }
}

static void steady_flow_of_messages_allocates_nothing(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &tether__lane_default_limits);
    for (int round = 0; round < 100; round++) {
        if (round == 10)
            tether_test_heap_fail_from(0); /* any allocation would fail from here on */
        for (int i = 0; i < 200; i++)
            assert_int_equal(test_send(&a, CALL, "steady", i == 100 ? 50 * KIB : 64, 0), TETHER_OK);
        test_carry(&a, &b);
        test_end_forget(&b);
    }
    assert_false(tether_test_heap_fired());
    tether_test_heap_fail_never();
    test_pair_fini(&a, &b);
    tether_test_heap_fail_never();
}

static void cached_buffers_are_bounded(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &tether__lane_default_limits);
    for (int i = 0; i < 4000; i++)
        assert_int_equal(test_send(&a, CALL, "m", 4 * KIB, 0), TETHER_OK);
    test_carry(&a, &b);
    assert_in_range(a.lane.spare_bytes, 1, 4 * tether__lane_default_limits.segment_bytes);
    tether__lane_trim(&a.lane);
    assert_int_equal(a.lane.spare_bytes, 0);
    assert_int_equal(test_send(&a, CALL, "m", 4 * KIB, 0), TETHER_OK);
    test_carry(&a, &b);
    test_pair_fini(&a, &b);
}

static void *release_all(void *userdata)
{
    struct tether__lane_out *out = userdata;
    for (size_t i = 0; i < out->n_pieces; i++)
        tether__slice_release(out->pieces[i]);
    free(out);
    return NULL;
}

static void buffers_may_be_released_on_other_threads(void **state)
{
    (void)state;
    struct test_end a, b;
    test_pair_init(&a, &b, &test_small_limits);
    pthread_t threads[100];
    size_t n = 0;
    for (int i = 0; i < 10; i++) {
        test_send(&a, CALL, "m", 10, 0);
        test_send(&a, CALL, "m", 90, 0);
        test_send(&a, CALL, "m", 300, 0);
        for (;;) {
            struct tether__lane_out *out = malloc(sizeof *out);
            assert_non_null(out);
            if (!tether__lane_pull(&a.lane, false, out)) {
                free(out);
                break;
            }
            assert_int_equal(pthread_create(&threads[n++], NULL, release_all, out), 0);
        }
        assert_int_equal(tether__lane_connected(&a.lane, a.lane.sent), TETHER_OK);
    }
    test_pair_fini(&a, &b);
    for (size_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static tether_status send_and_carry(void *userdata)
{
    const struct tether__lane_limits *limits = userdata;
    static const size_t sizes[] = {0, 20, 90, 300, 5};
    struct test_end a, b;
    test_pair_init(&a, &b, limits);
    tether_status result = TETHER_OK;
    size_t queued = 0, numbers = 0;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        size_t unacked = a.lane.unacked_bytes;
        uint64_t next = a.lane.next_seq;
        tether_status st = test_send(&a, CALL, "m", sizes[i], i + 1);
        if (st != TETHER_OK) {
            assert_int_equal(st, TETHER_ENOMEM);
            assert_int_equal(a.lane.unacked_bytes, unacked);
            assert_int_equal(a.lane.next_seq, next);
            result = st;
            continue;
        }
        queued++;
        numbers += sizes[i] == 300 ? 4 : 1;
    }
    tether_status st =
        tether__lane_send_unnumbered(&a.lane, TETHER__FRAME_PING, tether_bytes_str("p"));
    if (st != TETHER_OK)
        result = st;

    /* The receiver may run out of memory too: then the connection ends, and it comes again. */
    for (struct test_buffer *batch; (batch = test_pull(&a, false));) {
        uint64_t received = b.lane.received;
        tether_error err = {0};
        struct tether__slice slice = test_buffer_slice(batch);
        st = test_read(&b.lane, slice, test_note, &b, &err);
        test_buffer_release(batch);
        if (st == TETHER_OK)
            continue;
        assert_int_equal(st, TETHER_ENOMEM);
        assert_int_equal(b.lane.received, received);
        result = st;
        break;
    }
    if (result == TETHER_OK) {
        assert_int_equal(b.n_got, queued + 1);
        assert_int_equal(b.lane.received, numbers);
        assert_int_equal(tether__lane_connected(&a.lane, numbers), TETHER_OK);
        assert_int_equal(a.lane.unacked_bytes, 0);
    }
    test_pair_fini(&a, &b);
    return result;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    tether_test_heap_fail_each(send_and_carry, (void *)(uintptr_t)&test_small_limits);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, test_start, test_leaves_nothing)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(transport_may_retain_frames_after_they_are_acknowledged),
        TEST(steady_flow_of_messages_allocates_nothing),
        TEST(cached_buffers_are_bounded),
        TEST(buffers_may_be_released_on_other_threads),
        TEST(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
