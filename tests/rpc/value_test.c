/* The contents of a value: bytes, a protobuf message, or an object. */
#include <string.h>

#include "protos/rpc.pb-c.h"
#include "rpc/value.h"
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

static void value_of_no_memory_is_an_empty_text(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpack_fails_when_value_is_object),
        cmocka_unit_test(value_of_no_memory_is_an_empty_text),
        cmocka_unit_test(unpack_gives_back_what_was_packed),
        cmocka_unit_test(unpack_fails_when_bytes_are_not_the_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
