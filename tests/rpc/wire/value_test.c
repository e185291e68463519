/* The contents of a value: bytes, a protobuf message, or an object. */
#include <string.h>

#include "protos/rpc.pb-c.h"
#include "rpc/wire/value_internal.h"
#include "tests/lib/cmocka.h"

static const tether_type matrix = {.name = "matrix"};

static void unpack_fails_when_value_is_object(void **state)
{
    (void)state;
    int object = 7;
    tether_value *value = NULL;
    ProtobufCMessage *message = NULL;
    tether_error err = {0};
    assert_int_equal(tether_value_new_object(&matrix, &object, &value, &err), TETHER_OK);
    assert_int_equal(tether_value_unpack(value, &tether__ping__descriptor, &message, &err),
                     TETHER_ETYPE);
    assert_null(message);
    assert_non_null(strstr(err.message, "'matrix'"));
    assert_non_null(strstr(err.message, "Ping"));
    tether_value_release(value);
}

static void large_value_reads_as_empty_text_when_copy_fails(void **state)
{
    (void)state;
    tether_value *value = NULL;
    assert_int_equal(tether_value_take(NULL, 0, NULL, NULL, &value, NULL), TETHER_OK);
    assert_string_equal(tether_value_str(value), "");
    assert_int_equal(tether_value_bytes(value).len, 0);
    tether_value_release(value);
}

static void unpack_gives_back_what_was_packed(void **state)
{
    (void)state;
    Tether__Ping ping = TETHER__PING__INIT;
    tether_value *value = NULL;
    ProtobufCMessage *message = NULL;
    ping.answer = true;
    assert_int_equal(tether_value_pack(&ping.base, &value, NULL), TETHER_OK);
    assert_int_equal(tether_value_unpack(value, &tether__ping__descriptor, &message, NULL),
                     TETHER_OK);
    assert_true(((Tether__Ping *)message)->answer);
    protobuf_c_message_free_unpacked(message, NULL);
    tether_value_release(value);
}

static void unpack_fails_when_bytes_are_not_the_message(void **state)
{
    (void)state;
    tether_value *value = NULL;
    ProtobufCMessage *message = NULL;
    assert_int_equal(tether_value_new(tether_bytes_str("\xff\xff\xff"), &value, NULL), TETHER_OK);
    assert_int_equal(tether_value_unpack(value, &tether__ping__descriptor, &message, NULL),
                     TETHER_ECORRUPT);
    tether_value_release(value);
}

/* ---- Received bytes ---- */

static int n_retained; /* references to one buffer */

static void keep(struct tether__slice_owner *owner)
{
    (void)owner;
    n_retained++;
}

static void drop(struct tether__slice_owner *owner)
{
    (void)owner;
    n_retained--;
}

static uint8_t received[100000];
static struct tether__slice_owner buffer = {keep, drop, sizeof received};

/* Makes a value of the first `len` bytes of the buffer. Returns whether it keeps the buffer. */
static bool keeps_buffer(size_t len)
{
    tether_value *value = NULL;
    struct tether__slice slice = {received, len, &buffer};
    assert_int_equal(tether__value_from_slice(slice, &value), TETHER_OK);
    bool keeps = n_retained == 1;
    assert_int_equal(tether_value_bytes(value).len, len);
    tether_value_release(value);
    assert_int_equal(n_retained, 0);
    return keeps;
}

static void value_keeps_buffer_when_bytes_fill_most_of_it(void **state)
{
    (void)state;
    assert_true(keeps_buffer(sizeof received));
    assert_true(keeps_buffer(sizeof received / 2 + 1));
}

static void value_has_a_copy_when_buffer_is_far_larger(void **state)
{
    (void)state;
    assert_false(keeps_buffer(sizeof received / 2));
    assert_false(keeps_buffer(4097));
    assert_false(keeps_buffer(1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpack_fails_when_value_is_object),
        cmocka_unit_test(large_value_reads_as_empty_text_when_copy_fails),
        cmocka_unit_test(unpack_gives_back_what_was_packed),
        cmocka_unit_test(unpack_fails_when_bytes_are_not_the_message),
        cmocka_unit_test(value_keeps_buffer_when_bytes_fill_most_of_it),
        cmocka_unit_test(value_has_a_copy_when_buffer_is_far_larger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
