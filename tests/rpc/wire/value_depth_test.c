/* tether_value_unpack() of messages that contain themselves: a sender chooses how deep, and
 * protobuf-c calls itself for each level. */
#include <stdlib.h>
#include <string.h>

#include "rpc/value.h"
#include "rpc/wire/message_depth.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/wire/tree.pb-c.h"

enum { ROOM = 16 * 1000 * 1000 };

/* A message that is written from its end to its begin, since each level needs the length of what is
 * in it. */
struct backwards {
    uint8_t *bytes;
    size_t at;
};

static void put_varint(struct backwards *out, uint64_t number)
{
    uint8_t text[10];
    size_t n = 0;
    do {
        text[n] = (uint8_t)((number & 0x7F) | (number > 0x7F ? 0x80 : 0));
        number >>= 7;
        n++;
    } while (number);
    out->at -= n;
    memcpy(out->bytes + out->at, text, n);
}

/* `levels` messages, each inside the one before in field `field`, and a number in the innermost. */
static tether_value *nested(int levels, unsigned field)
{
    tether_value *value = NULL;
    struct backwards out = {malloc(ROOM), ROOM};
    assert_non_null(out.bytes);
    put_varint(&out, UINT64_MAX);
    put_varint(&out, 4 << 3);
    for (int i = 1; i < levels; i++) {
        put_varint(&out, ROOM - out.at);
        put_varint(&out, field << 3 | 2);
    }
    assert_int_equal(
        tether_value_new(tether_bytes_of(out.bytes + out.at, ROOM - out.at), &value, NULL),
        TETHER_OK);
    free(out.bytes);
    return value;
}

static tether_status unpack(tether_value *value, tether_error *reterr)
{
    ProtobufCMessage *message = NULL;
    tether_status st =
        tether_value_unpack(value, &tether__test__tree__descriptor, &message, reterr);
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
    tether_value_release(value);
    return st;
}

static void unpack_accepts_messages_up_to_the_depth_limit(void **state)
{
    (void)state;
    for (unsigned field = 1; field <= 2; field++) {
        assert_int_equal(unpack(nested(1, field), NULL), TETHER_OK);
        assert_int_equal(unpack(nested(TETHER__MAX_DEPTH, field), NULL), TETHER_OK);
    }
}

static void unpack_refuses_messages_that_are_nested_deeper(void **state)
{
    (void)state;
    static const int levels[] = {TETHER__MAX_DEPTH + 1, 2 * TETHER__MAX_DEPTH, 1000000};
    for (unsigned field = 1; field <= 2; field++)
        for (size_t i = 0; i < TETHER__ARRAY_LEN(levels); i++) {
            tether_error err = {0};
            assert_int_equal(unpack(nested(levels[i], field), &err), TETHER_ETOOBIG);
            assert_non_null(strstr(err.message, "100 levels"));
        }
}

/* Bytes that only look like nested messages: protobuf-c does not read what is inside of them. */
static void unpack_accepts_bytes_that_look_like_deep_messages(void **state)
{
    (void)state;
    assert_int_equal(unpack(nested(1000, 3), NULL), TETHER_OK); /* a bytes field */
    assert_int_equal(unpack(nested(1000, 9), NULL), TETHER_OK); /* an unknown field */
}

static void unpack_refuses_bytes_that_are_cut_off(void **state)
{
    (void)state;
    tether_value *whole = nested(TETHER__MAX_DEPTH, 1);
    tether_bytes bytes = tether_value_bytes(whole);
    for (size_t len = 1; len < bytes.len; len++) {
        tether_value *part = NULL;
        assert_int_equal(tether_value_new(tether_bytes_of(bytes.data, len), &part, NULL),
                         TETHER_OK);
        assert_int_equal(unpack(part, NULL), TETHER_ECORRUPT);
    }
    tether_value_release(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpack_accepts_messages_up_to_the_depth_limit),
        cmocka_unit_test(unpack_refuses_messages_that_are_nested_deeper),
        cmocka_unit_test(unpack_accepts_bytes_that_look_like_deep_messages),
        cmocka_unit_test(unpack_refuses_bytes_that_are_cut_off),
    };
    return cmocka_run_group_tests_name("depth of messages", tests, NULL, NULL);
}
