/* Headers of calls and replies from any bytes: the reader by hand accepts and refuses the same
 * bytes as protobuf-c, and makes the same message of them. The first byte says which kind it is. */
#include <stdlib.h>
#include <string.h>

#include "rpc/wire/call_header.h"
#include "tests/fuzz/fuzz.h"

/* Equal messages have equal bytes when they are packed. Unknown fields are packed, too. */
static void check_same(const ProtobufCMessage *a, const ProtobufCMessage *b)
{
    struct tether__packed first, second;
    fuzz_check(tether__pack(&first, a) == TETHER_OK);
    fuzz_check(tether__pack(&second, b) == TETHER_OK);
    fuzz_check(first.bytes.len == second.bytes.len);
    fuzz_check(!first.bytes.len ||
               memcmp(first.bytes.data, second.bytes.data, first.bytes.len) == 0);
    tether__packed_fini(&first);
    tether__packed_fini(&second);
}

static void fuzz_call(tether_bytes bytes)
{
    TETHER__ARENA(arena, 512);
    TETHER__ARENA(others_arena, 512);
    const Tether__Call *call, *others;
    tether_status st = tether__call_header_unpack(bytes, &arena, &call);
    fuzz_check(st == tether__wire_unpack(&tether__call__descriptor, bytes, &others_arena,
                                         (const void **)&others));
    if (st == TETHER_OK) {
        struct tether__packed packed, expected;
        check_same(&call->base, &others->base);
        fuzz_check(tether__call_header_pack(&packed, others) == TETHER_OK);
        fuzz_check(tether__pack(&expected, &others->base) == TETHER_OK);
        /* By hand, fields of a newer version are not passed on. */
        fuzz_check(others->base.n_unknown_fields ||
                   (packed.bytes.len == expected.bytes.len &&
                    memcmp(packed.bytes.data, expected.bytes.data, expected.bytes.len) == 0));
        tether__packed_fini(&packed);
        tether__packed_fini(&expected);
    }
    tether__arena_fini(&arena);
    tether__arena_fini(&others_arena);
}

static void fuzz_reply(tether_bytes bytes)
{
    TETHER__ARENA(arena, 512);
    TETHER__ARENA(others_arena, 512);
    const Tether__Reply *reply, *others;
    tether_status st = tether__reply_header_unpack(bytes, &arena, &reply);
    fuzz_check(st == tether__wire_unpack(&tether__reply__descriptor, bytes, &others_arena,
                                         (const void **)&others));
    if (st == TETHER_OK)
        check_same(&reply->base, &others->base);
    tether__arena_fini(&arena);
    tether__arena_fini(&others_arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t *exact = malloc(size); /* so that a sanitizer sees a read behind its end */
    fuzz_check(exact);
    memcpy(exact, data + 1, size - 1);
    if (data[0] % 2)
        fuzz_call(tether_bytes_of(exact, size - 1));
    else
        fuzz_reply(tether_bytes_of(exact, size - 1));
    free(exact);
    return 0;
}
