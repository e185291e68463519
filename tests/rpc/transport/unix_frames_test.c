/* Messages out of bytes, however the bytes are cut. */
#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "rpc/transport/socket/frames.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

#define LIMIT 1000

/* "abc", an empty one, "x", 300 times 'y', and the end. */
static const uint8_t *stream(size_t *ret_len)
{
    static uint8_t bytes[400];
    static const struct {
        uint32_t len;
        char fill;
    } messages[] = {{3, 'a'}, {0, '-'}, {1, 'x'}, {300, 'y'}};
    uint8_t *at = bytes;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(messages); i++) {
        tether__frames_header(at, messages[i].len);
        memset(at + TETHER__UNIX_HEADER_BYTES, messages[i].fill, messages[i].len);
        at += TETHER__UNIX_HEADER_BYTES + messages[i].len;
    }
    tether__frames_header(at, TETHER__UNIX_END);
    *ret_len = (size_t)(at + TETHER__UNIX_HEADER_BYTES - bytes);
    return bytes;
}

/* The messages that were read: each as its length and its bytes, one behind the other. */
struct record {
    char text[1000];
    size_t len;
    enum tether__next last;
};

static void note(struct record *record, struct tether__slice message)
{
    record->len += (size_t)sprintf(record->text + record->len, "%zu:%.*s ", message.len,
                                   (int)message.len, (const char *)message.data);
}

static void feed(struct tether__frames *frames,
                 struct record *record,
                 const uint8_t *bytes,
                 size_t len)
{
    struct tether__slice input = {bytes, len, NULL}, message;
    while ((record->last = tether__frames_next(frames, &input, &message)) == TETHER__NEXT_MESSAGE)
        note(record, message);
    if (record->last == TETHER__NEXT_NONE)
        assert_int_equal(input.len, 0);
}

static struct record whole(void)
{
    struct record record = {.len = 0};
    struct tether__frames frames;
    size_t len;
    const uint8_t *bytes = stream(&len);
    tether__frames_init(&frames, LIMIT);
    feed(&frames, &record, bytes, len);
    tether__frames_fini(&frames);
    return record;
}

static void frames_are_read_from_one_piece(void **state)
{
    (void)state;
    struct record record = whole();
    assert_memory_equal(record.text, "3:aaa 0: 1:x 300:yyy", 20);
    assert_int_equal(record.last, TETHER__NEXT_END);
    assert_int_equal(tether_test_heap_live(), 0);
}

static void frames_are_read_when_bytes_are_split_anywhere(void **state)
{
    (void)state;
    struct record expected = whole();
    size_t len;
    const uint8_t *bytes = stream(&len);
    for (size_t i = 0; i <= len; i++) {
        for (size_t j = i; j <= len; j += 7) { /* two cuts, of which the second varies less */
            struct record record = {.len = 0};
            struct tether__frames frames;
            tether__frames_init(&frames, LIMIT);
            feed(&frames, &record, bytes, i);
            feed(&frames, &record, bytes + i, j - i);
            feed(&frames, &record, bytes + j, len - j);
            assert_string_equal(record.text, expected.text);
            assert_int_equal(record.last, TETHER__NEXT_END);
            tether__frames_fini(&frames);
        }
    }
    assert_int_equal(tether_test_heap_live(), 0);
}

/* Feeds the bytes like a reader that reads the rest of a message directly into its buffer. */
static void frames_are_read_directly_into_their_buffer(void **state)
{
    (void)state;
    struct record expected = whole();
    size_t len;
    const uint8_t *bytes = stream(&len);
    for (size_t step = 1; step < 40; step++) {
        struct record record = {.len = 0};
        struct tether__frames frames;
        tether__frames_init(&frames, LIMIT);
        for (size_t at = 0, n; at < len; at += n) {
            uint8_t *to;
            size_t room = tether__frames_room(&frames, &to);
            n = len - at < step ? len - at : step;
            size_t direct = n < room ? n : room;
            if (direct)
                memcpy(to, bytes + at, direct);
            tether__frames_filled(&frames, direct);
            feed(&frames, &record, bytes + at + direct, n - direct);
        }
        assert_string_equal(record.text, expected.text);
        tether__frames_fini(&frames);
    }
    assert_int_equal(tether_test_heap_live(), 0);
}

static void reader_frees_its_memory_when_bytes_end_anywhere(void **state)
{
    (void)state;
    size_t len;
    const uint8_t *bytes = stream(&len);
    for (size_t i = 0; i < len; i++) {
        struct record record = {.len = 0};
        struct tether__frames frames;
        tether__frames_init(&frames, LIMIT);
        feed(&frames, &record, bytes, i);
        assert_int_equal(record.last, TETHER__NEXT_NONE);
        assert_false(frames.ended);
        tether__frames_fini(&frames);
        assert_int_equal(tether_test_heap_live(), 0);
    }
}

static void reader_refuses_lengths_beyond_the_limit(void **state)
{
    (void)state;
    static const struct {
        uint32_t len;
        enum tether__next expected;
    } rows[] = {
        {LIMIT, TETHER__NEXT_NONE},
        {LIMIT + 1, TETHER__NEXT_TOO_BIG},
        {UINT32_MAX - 1, TETHER__NEXT_TOO_BIG},
        {UINT32_MAX, TETHER__NEXT_END},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct record record = {.len = 0};
        struct tether__frames frames;
        uint8_t header[TETHER__UNIX_HEADER_BYTES];
        long before = tether_test_heap_allocations();
        tether__frames_init(&frames, LIMIT);
        tether__frames_header(header, rows[i].len);
        feed(&frames, &record, header, sizeof header);
        assert_int_equal(record.last, rows[i].expected);
        if (rows[i].expected == TETHER__NEXT_TOO_BIG) {
            assert_int_equal(frames.announced, rows[i].len);
            assert_int_equal(tether_test_heap_allocations(), before);
        }
        tether__frames_fini(&frames);
    }
}

static void decoder_ignores_bytes_after_end_mark(void **state)
{
    (void)state;
    struct record record = {.len = 0};
    struct tether__frames frames;
    tether__frames_init(&frames, LIMIT);
    static const uint8_t bytes[] = "\xff\xff\xff\xff\1\0\0\0z";
    feed(&frames, &record, bytes, sizeof bytes - 1);
    feed(&frames, &record, bytes, sizeof bytes - 1);
    assert_int_equal(record.last, TETHER__NEXT_END);
    assert_int_equal(record.len, 0);
    tether__frames_fini(&frames);
}

static void reader_reports_failed_allocations(void **state)
{
    (void)state;
    struct record record = {.len = 0};
    struct tether__frames frames;
    tether__frames_init(&frames, LIMIT);
    tether_test_heap_fail_at(0);
    static const uint8_t bytes[] = "\5\0\0\0half";
    feed(&frames, &record, bytes, 8);
    assert_int_equal(record.last, TETHER__NEXT_NO_MEMORY);
    tether__frames_fini(&frames);
    tether_test_heap_fail_never();
    assert_int_equal(tether_test_heap_live(), 0);
}

/* A message that was retained outlives the next call and the frames. */
static void retained_message_outlives_its_reader(void **state)
{
    (void)state;
    struct tether__frames frames;
    tether__frames_init(&frames, LIMIT);
    struct tether__block *scratch = tether__block_new(16);
    assert_non_null(scratch);
    memcpy(scratch->data, "\1\0\0\0a\2\0\0\0b", 10);
    struct tether__slice input = {scratch->data, 10, &scratch->owner}, lent, retained;
    assert_int_equal(tether__frames_next(&frames, &input, &lent), TETHER__NEXT_MESSAGE);
    assert_true(tether__block_is_mine(scratch));
    retained = tether__slice_retain(lent);
    assert_false(tether__block_is_mine(scratch));
    assert_int_equal(tether__frames_next(&frames, &input, &lent), TETHER__NEXT_NONE);
    input = (struct tether__slice){(const uint8_t *)"c", 1, NULL};
    assert_int_equal(tether__frames_next(&frames, &input, &lent), TETHER__NEXT_MESSAGE);
    struct tether__slice second = tether__slice_retain(lent);
    assert_int_equal(tether__frames_next(&frames, &input, &lent), TETHER__NEXT_NONE);
    tether__frames_fini(&frames);
    tether__block_release(scratch);
    assert_memory_equal(retained.data, "a", 1);
    assert_memory_equal(second.data, "bc", 2);
    tether__slice_release(retained);
    tether__slice_release(second);
    assert_int_equal(tether_test_heap_live(), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(frames_are_read_from_one_piece),
    cmocka_unit_test(frames_are_read_when_bytes_are_split_anywhere),
    cmocka_unit_test(frames_are_read_directly_into_their_buffer),
    cmocka_unit_test(reader_frees_its_memory_when_bytes_end_anywhere),
    cmocka_unit_test(reader_refuses_lengths_beyond_the_limit),
    cmocka_unit_test(decoder_ignores_bytes_after_end_mark),
    cmocka_unit_test(reader_reports_failed_allocations),
    cmocka_unit_test(retained_message_outlives_its_reader),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
