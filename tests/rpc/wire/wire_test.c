/* Fields by hand, and messages in an arena. */
#include <stdlib.h>
#include <string.h>

#include "base/pb.h"
#include "protos/rpc.pb-c.h"
#include "rpc/wire/wire.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

static const uint64_t edges[] = {
    0,
    1,
    0x7f,
    0x80,
    0x3fff,
    0x4000,
    0x1fffff,
    0x200000,
    0xfffffff,
    0x10000000,
    0x7ffffffff,
    0x800000000,
    0x3ffffffffff,
    0x40000000000,
    0x1ffffffffffff,
    0x2000000000000,
    0xffffffffffffff,
    0x100000000000000,
    0x7fffffffffffffff,
    0x8000000000000000,
    UINT64_MAX,
};

static void numbers_are_read_as_written(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(edges); i++) {
        uint8_t bytes[16];
        struct tether__wire_writer writer = tether__wire_writer(bytes, sizeof bytes);
        tether__wire_put_varint_field(&writer, 14, edges[i]);
        assert_false(writer.overrun);
        size_t len = (size_t)(writer.at - bytes);
        assert_int_equal(len, tether__varint_field_size(14, edges[i]));

        struct tether__wire_reader reader = tether__wire_reader(bytes, len);
        struct tether__wire_field field;
        assert_int_equal(tether__wire_next(&reader, &field), TETHER__WIRE_FIELD);
        assert_int_equal(field.number, 14);
        assert_int_equal(field.type, TETHER__WIRE_VARINT);
        assert_true(field.value == edges[i]);
        assert_int_equal(tether__wire_next(&reader, &field), TETHER__WIRE_END);
        /* The same in front of other fields: then there is a shorter way through short numbers. */
        memset(bytes + len, 0xff, sizeof bytes - len);
        reader = tether__wire_reader(bytes, sizeof bytes);
        assert_int_equal(tether__wire_next(&reader, &field), TETHER__WIRE_FIELD);
        assert_true(field.value == edges[i]);
        assert_ptr_equal(reader.at, bytes + len);
        /* Cut anywhere it is malformed, and nothing is read beyond the end. */
        for (size_t cut = 1; cut < len; cut++) {
            uint8_t *exact = malloc(cut);
            assert_non_null(exact);
            memcpy(exact, bytes, cut);
            reader = tether__wire_reader(exact, cut);
            assert_int_equal(tether__wire_next(&reader, &field), TETHER__WIRE_MALFORMED);
            free(exact);
        }
        /* With too little room nothing is written beyond it. */
        for (size_t room = 0; room < len; room++) {
            memset(bytes, 0xee, sizeof bytes);
            writer = tether__wire_writer(bytes, room);
            tether__wire_put_varint_field(&writer, 14, edges[i]);
            assert_true(writer.overrun);
            for (size_t at = room; at < sizeof bytes; at++)
                assert_int_equal(bytes[at], 0xee);
        }
    }
}

static void bytes_are_read_as_written(void **state)
{
    (void)state;
    static const uint32_t numbers[] = {1, 15, 16, 2047, 2048, (1u << 29) - 1};
    char text[300];
    memset(text, 't', sizeof text);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(numbers); i++) {
        for (size_t len = 0; len < sizeof text; len += 127) {
            uint8_t out[320];
            struct tether__wire_writer writer = tether__wire_writer(out, sizeof out);
            tether__wire_put_bytes_field(&writer, numbers[i], text, len);
            size_t size = (size_t)(writer.at - out);
            assert_int_equal(size, tether__bytes_field_size(numbers[i], len));
            struct tether__wire_reader reader = tether__wire_reader(out, size);
            struct tether__wire_field field;
            assert_int_equal(tether__wire_next(&reader, &field), TETHER__WIRE_FIELD);
            assert_int_equal(field.number, numbers[i]);
            assert_int_equal(field.type, TETHER__WIRE_BYTES);
            assert_int_equal(field.len, len);
            assert_memory_equal(field.data, text, len);
            assert_int_equal(tether__wire_next(&reader, &field), TETHER__WIRE_END);

            reader = tether__wire_reader(out, size - 1);
            assert_int_equal(tether__wire_next(&reader, &field), TETHER__WIRE_MALFORMED);
            writer = tether__wire_writer(out, size - 1);
            tether__wire_put_bytes_field(&writer, numbers[i], text, len);
            assert_true(writer.overrun);
        }
    }
}

static void reader_tells_malformed_fields(void **state)
{
    (void)state;
#define ROW(bytes, result)              \
    {                                   \
        bytes, sizeof bytes - 1, result \
    }
    static const struct {
        const char *bytes;
        size_t len;
        enum tether__wire_read result;
    } rows[] = {
        ROW("", TETHER__WIRE_END),
        ROW("\x08\x80\x00", TETHER__WIRE_FIELD), /* longer than need be, as protobuf allows */
        ROW("\x09\x01\x02\x03\x04\x05\x06\x07\x08", TETHER__WIRE_FIELD),
        ROW("\x09\x01\x02\x03\x04\x05\x06\x07", TETHER__WIRE_MALFORMED),
        ROW("\x0d\x01\x02\x03\x04", TETHER__WIRE_FIELD),
        ROW("\x0d\x01\x02\x03", TETHER__WIRE_MALFORMED),
        ROW("\x00\x00", TETHER__WIRE_MALFORMED), /* field 0 */
        ROW("\x0b", TETHER__WIRE_MALFORMED),     /* groups, and types that don't exist */
        ROW("\x0c", TETHER__WIRE_MALFORMED),
        ROW("\x0e\x00", TETHER__WIRE_MALFORMED),
        ROW("\x0f\x00", TETHER__WIRE_MALFORMED),
        ROW("\xf8\xff\xff\xff\x0f\x01", TETHER__WIRE_FIELD),     /* field 2^29 - 1 */
        ROW("\x80\x80\x80\x80\x10\x01", TETHER__WIRE_MALFORMED), /* field 2^29 */
        ROW("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", TETHER__WIRE_FIELD),
        ROW("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", TETHER__WIRE_MALFORMED),
        ROW("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00", TETHER__WIRE_MALFORMED),
        ROW("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", TETHER__WIRE_MALFORMED),
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__wire_reader reader = tether__wire_reader(rows[i].bytes, rows[i].len);
        struct tether__wire_field field;
        assert_int_equal(tether__wire_next(&reader, &field), rows[i].result);
    }
    struct tether__wire_reader none = tether__wire_reader(NULL, 0);
    struct tether__wire_field field;
    assert_int_equal(tether__wire_next(&none, &field), TETHER__WIRE_END);
}

static void fixed_numbers_are_little_endian(void **state)
{
    (void)state;
    struct tether__wire_field field;
    struct tether__wire_reader reader =
        tether__wire_reader("\x09\x01\x02\x03\x04\x05\x06\x07\x88\x0d\x01\x02\x03\x84", 14);
    assert_int_equal(tether__wire_next(&reader, &field), TETHER__WIRE_FIELD);
    assert_true(field.value == 0x8807060504030201);
    assert_int_equal(tether__wire_next(&reader, &field), TETHER__WIRE_FIELD);
    assert_true(field.value == 0x84030201);
}

/* ---- Messages ---- */

static Tether__Call small_call(void)
{
    Tether__Call call = TETHER__CALL__INIT;
    call.id = 77;
    call.function = (char *)"add";
    call.timeout_ms = 5000;
    return call;
}

static void small_message_needs_no_heap(void **state)
{
    (void)state;
    Tether__Call call = small_call();
    tether_buf buf = TETHER_BUF_INIT;
    assert_int_equal(tether__pb_pack(&call.base, &buf), TETHER_OK);

    tether_test_heap_fail_from(0);
    TETHER__ARENA(arena, 512);
    const void *read;
    assert_int_equal(
        tether__wire_unpack(&tether__call__descriptor, tether_buf_bytes(&buf), &arena, &read),
        TETHER_OK);
    const Tether__Call *got = read;
    assert_int_equal(got->id, 77);
    assert_string_equal(got->function, "add");
    assert_int_equal(got->timeout_ms, 5000);
    tether__arena_fini(&arena);
    assert_false(tether_test_heap_fired());
    tether_test_heap_fail_never();
    tether_buf_fini(&buf);
}

static tether_status pack_and_unpack(void *userdata)
{
    size_t arena_bytes = *(size_t *)userdata;
    Tether__RefId id = TETHER__REF_ID__INIT;
    id.creator = 3, id.counter = 9;
    Tether__Ref refs[40], *list[40];
    for (int i = 0; i < 40; i++) {
        refs[i] = (Tether__Ref)TETHER__REF__INIT;
        refs[i].id = refs[i].fork = &id;
        refs[i].owner_name = (char *)"a worker with a name";
        list[i] = &refs[i];
    }
    Tether__Call call = small_call();
    call.n_ref = 40;
    call.ref = list;
    tether_buf buf = TETHER_BUF_INIT;
    tether_status st = tether__pb_pack(&call.base, &buf);
    if (st != TETHER_OK)
        return st;
    _Alignas(max_align_t) uint8_t room[256];
    struct tether__arena arena;
    tether__arena_init(&arena, room, arena_bytes);
    const void *read = NULL;
    st = tether__wire_unpack(&tether__call__descriptor, tether_buf_bytes(&buf), &arena, &read);
    if (st == TETHER_OK) {
        const Tether__Call *got = read;
        assert_int_equal(got->n_ref, 40);
        assert_int_equal(got->ref[39]->fork->counter, 9);
        assert_string_equal(got->ref[39]->owner_name, "a worker with a name");
    } else {
        assert_null(read);
    }
    tether__arena_fini(&arena);
    tether_buf_fini(&buf);
    return st;
}

static void large_message_goes_over_to_the_heap(void **state)
{
    (void)state;
    for (size_t arena_bytes = 0; arena_bytes <= 256; arena_bytes += 51)
        tether_test_heap_fail_each(pack_and_unpack, &arena_bytes);
}

static void reader_leaks_nothing_when_message_is_malformed(void **state)
{
    (void)state;
    tether_test_heap_fail_never();
    Tether__Call call = small_call();
    tether_buf buf = TETHER_BUF_INIT;
    assert_int_equal(tether__pb_pack(&call.base, &buf), TETHER_OK);
    buf.data[1] ^= 0x80; /* the id swallows the next tag, and so on */
    int n_corrupt = 0;
    for (size_t len = 1; len < buf.len; len++) {
        TETHER__ARENA(arena, 32);
        const void *read = NULL;
        tether_status st = tether__wire_unpack(&tether__call__descriptor,
                                               tether_bytes_of(buf.data, len), &arena, &read);
        assert_true(st == TETHER_ECORRUPT || st == TETHER_OK);
        assert_int_equal(st == TETHER_OK, read != NULL);
        n_corrupt += st == TETHER_ECORRUPT;
        tether__arena_fini(&arena);
    }
    assert_true(n_corrupt > 0);
    tether_buf_fini(&buf);
    assert_int_equal(tether_test_heap_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_as_written),
        cmocka_unit_test(bytes_are_read_as_written),
        cmocka_unit_test(reader_tells_malformed_fields),
        cmocka_unit_test(fixed_numbers_are_little_endian),
        cmocka_unit_test(small_message_needs_no_heap),
        cmocka_unit_test(large_message_goes_over_to_the_heap),
        cmocka_unit_test(reader_leaks_nothing_when_message_is_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
