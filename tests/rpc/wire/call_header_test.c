/* Headers of calls and replies: written and read by hand, they are the same as with protobuf-c. */
#include <stdlib.h>
#include <string.h>

#include "base/pb.h"
#include "rpc/wire/call_header.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

#define MESSAGES 20000
#define MUTATIONS 20000

static uint64_t random_state = 88172645463325252u;

static uint64_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* A number of any size, often zero. */
static uint64_t draw_number(void)
{
    return draw() % 3 == 0 ? 0 : draw() >> draw() % 64;
}

static char *draw_text(char *buffer, size_t size)
{
    size_t len = draw() % 3 == 0 ? 0 : draw() % size;
    for (size_t i = 0; i < len; i++)
        buffer[i] = (char)('a' + draw() % 26);
    buffer[len] = '\0';
    return buffer;
}

/* Storage for the pointers of a random message. */
struct texts {
    char function[400], type[300], site[150], error[150], trace[16];
    uint64_t numbers[2][20];
    Tether__RefId id;
    Tether__Ref ref, *refs[1];
};

static void draw_ref(struct texts *texts)
{
    texts->id = (Tether__RefId)TETHER__REF_ID__INIT;
    texts->id.counter = draw_number();
    texts->ref = (Tether__Ref)TETHER__REF__INIT;
    texts->ref.id = &texts->id;
    texts->refs[0] = &texts->ref;
}

static Tether__Call draw_call(struct texts *texts)
{
    Tether__Call call = TETHER__CALL__INIT;
    draw_ref(texts);
    call.id = draw_number();
    call.function = draw_text(texts->function, draw() % 8 ? 20 : sizeof texts->function);
    call.timeout_ms = (uint32_t)draw_number();
    if (draw() % 4 == 0)
        call.trace = (ProtobufCBinaryData){sizeof texts->trace, (uint8_t *)texts->trace};
    for (int i = 0; i < 20; i++)
        texts->numbers[0][i] = draw_number(), texts->numbers[1][i] = draw_number();
    call.n_result = draw() % 2 ? 3 : draw() % 21;
    call.result = texts->numbers[0];
    call.n_result_fork = draw() % 2 ? 3 : draw() % 21;
    call.result_fork = texts->numbers[1];
    call.owner_incarnation = draw_number();
    call.type = draw_text(texts->type, draw() % 8 ? 20 : sizeof texts->type);
    call.site = draw_text(texts->site, sizeof texts->site);
    call.announced = draw() % 2;
    if (draw() % 8 == 0) {
        call.n_ref = 1;
        call.ref = texts->refs;
    }
    if (draw() % 8 == 0)
        call.target = &texts->id;
    return call;
}

static Tether__Reply draw_reply(struct texts *texts)
{
    Tether__Reply reply = TETHER__REPLY__INIT;
    draw_ref(texts);
    reply.id = draw_number();
    reply.status = (int32_t)draw_number();
    reply.error = draw_text(texts->error, sizeof texts->error);
    reply.type = draw_text(texts->type, sizeof texts->type);
    reply.result_type = draw_text(texts->site, sizeof texts->site);
    if (draw() % 8 == 0) {
        reply.n_ref = 1;
        reply.ref = texts->refs;
    }
    return reply;
}

/* ---- Packing ---- */

static void assert_packed_as_by_protobuf(struct tether__packed *packed,
                                         const ProtobufCMessage *message)
{
    struct tether__packed expected;
    assert_int_equal(tether__pack(&expected, message), TETHER_OK);
    assert_int_equal(packed->bytes.len, expected.bytes.len);
    assert_memory_equal(packed->bytes.data, expected.bytes.data, expected.bytes.len);
    tether__packed_fini(&expected);
}

static void header_has_the_bytes_of_protobuf_when_packed(void **state)
{
    (void)state;
    struct texts texts = {.trace = "0123456789abcde"};
    struct tether__packed packed;
    for (int i = 0; i < MESSAGES; i++) {
        Tether__Call call = draw_call(&texts);
        assert_int_equal(tether__call_header_pack(&packed, &call), TETHER_OK);
        assert_packed_as_by_protobuf(&packed, &call.base);
        tether__packed_fini(&packed);
        Tether__Reply reply = draw_reply(&texts);
        assert_int_equal(tether__reply_header_pack(&packed, &reply), TETHER_OK);
        assert_packed_as_by_protobuf(&packed, &reply.base);
        tether__packed_fini(&packed);
    }
}

/* ---- Unpacking ---- */

/* Equal messages have equal bytes when they are packed. Unknown fields are packed too. */
static void assert_same_message(const ProtobufCMessage *a, const ProtobufCMessage *b)
{
    struct tether__packed packed;
    assert_int_equal(tether__pack(&packed, a), TETHER_OK);
    assert_packed_as_by_protobuf(&packed, b);
    tether__packed_fini(&packed);
}

static void assert_call_read_as_by_protobuf(tether_bytes bytes)
{
    TETHER__ARENA(arena, 512);
    TETHER__ARENA(expected_arena, 512);
    const Tether__Call *call = NULL, *expected = NULL;
    tether_status st = tether__call_header_unpack(bytes, &arena, &call);
    assert_int_equal(st, tether__wire_unpack(&tether__call__descriptor, bytes, &expected_arena,
                                             (const void **)&expected));
    if (st == TETHER_OK)
        assert_same_message(&call->base, &expected->base);
    tether__arena_fini(&arena);
    tether__arena_fini(&expected_arena);
}

static void assert_reply_read_as_by_protobuf(tether_bytes bytes)
{
    TETHER__ARENA(arena, 512);
    TETHER__ARENA(expected_arena, 512);
    const Tether__Reply *reply = NULL, *expected = NULL;
    tether_status st = tether__reply_header_unpack(bytes, &arena, &reply);
    assert_int_equal(st, tether__wire_unpack(&tether__reply__descriptor, bytes, &expected_arena,
                                             (const void **)&expected));
    if (st == TETHER_OK)
        assert_same_message(&reply->base, &expected->base);
    tether__arena_fini(&arena);
    tether__arena_fini(&expected_arena);
}

static void header_has_the_fields_of_protobuf_when_unpacked(void **state)
{
    (void)state;
    struct texts texts = {.trace = "0123456789abcde"};
    struct tether__packed packed;
    for (int i = 0; i < MESSAGES; i++) {
        Tether__Call call = draw_call(&texts);
        assert_int_equal(tether__pack(&packed, &call.base), TETHER_OK);
        assert_call_read_as_by_protobuf(packed.bytes);
        tether__packed_fini(&packed);
        Tether__Reply reply = draw_reply(&texts);
        assert_int_equal(tether__pack(&packed, &reply.base), TETHER_OK);
        assert_reply_read_as_by_protobuf(packed.bytes);
        tether__packed_fini(&packed);
    }
}

/* Bytes that no worker of ours sends: fields twice, out of order, unknown, cut, malformed. */
static void header_is_judged_as_by_protobuf_when_bytes_are_changed(void **state)
{
    (void)state;
    struct texts texts = {.trace = "0123456789abcde"};
    struct tether__packed first, second;
    for (int i = 0; i < MUTATIONS; i++) {
        Tether__Call call = draw_call(&texts);
        assert_int_equal(tether__pack(&first, &call.base), TETHER_OK);
        call = draw_call(&texts);
        assert_int_equal(tether__pack(&second, &call.base), TETHER_OK);
        size_t len = first.bytes.len + second.bytes.len;
        uint8_t *bytes = malloc(len + 1);
        assert_non_null(bytes);
        memcpy(bytes, first.bytes.data, first.bytes.len);
        memcpy(bytes + first.bytes.len, second.bytes.data, second.bytes.len);
        for (uint64_t changes = draw() % 4; changes > 0 && len > 0; changes--)
            bytes[draw() % len] ^= (uint8_t)(1u << draw() % 8);
        size_t cut = draw() % 2 ? len : draw() % (len + 1);
        uint8_t *exact = malloc(cut ? cut : 1);
        assert_non_null(exact);
        memcpy(exact, bytes, cut);
        assert_call_read_as_by_protobuf(tether_bytes_of(exact, cut));
        assert_reply_read_as_by_protobuf(tether_bytes_of(exact, cut));
        free(exact);
        free(bytes);
        tether__packed_fini(&first);
        tether__packed_fini(&second);
    }
}

/* ---- Memory ---- */

static tether_status unpack_a_large_call(void *userdata)
{
    TETHER__ARENA(arena, 64);
    const Tether__Call *call = NULL;
    tether_status st = tether__call_header_unpack(*(tether_bytes *)userdata, &arena, &call);
    tether__arena_fini(&arena);
    return st;
}

static void header_leaves_nothing_when_memory_runs_out(void **state)
{
    (void)state;
    static char name[300];
    memset(name, 'x', sizeof name - 1);
    Tether__Call call = TETHER__CALL__INIT;
    call.function = call.site = name;
    tether_buf buf = TETHER_BUF_INIT;
    assert_int_equal(tether__pb_pack(&call.base, &buf), TETHER_OK);
    tether_bytes bytes = tether_buf_bytes(&buf);
    tether_test_heap_fail_each(unpack_a_large_call, &bytes);
    tether_test_heap_fail_never();
    tether_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_has_the_bytes_of_protobuf_when_packed),
        cmocka_unit_test(header_has_the_fields_of_protobuf_when_unpacked),
        cmocka_unit_test(header_is_judged_as_by_protobuf_when_bytes_are_changed),
        cmocka_unit_test(header_leaves_nothing_when_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
