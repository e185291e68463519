/* Protobuf's fields, and the arena under protobuf-c. See wire.h. */
#include "rpc/wire/wire.h"

#include <stddef.h>

#include "base/alloc.h"

#define MAX_VARINT 10 /* bytes of the longest varint */

/* ---- Fields, where the short way in wire.h does not do ---- */

const uint8_t *tether__read_long_varint(const uint8_t *at, const uint8_t *end, uint64_t *ret_value)
{
    /* fast path: most of these numbers take two or three bytes */
    if (end - at >= 3 && at[0] >= 0x80) {
        uint32_t low = (at[0] & 0x7fu) | (at[1] & 0x7fu) << 7;
        if (at[1] < 0x80) {
            *ret_value = low;
            return at + 2;
        }
        if (at[2] < 0x80) {
            *ret_value = low | (uint32_t)at[2] << 14;
            return at + 3;
        }
    }
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && at < end; shift += 7) {
        uint8_t byte = *at++;
        if (shift == 63 && byte > 1)
            return NULL;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *ret_value = value;
            return at;
        }
    }
    return NULL;
}

const uint8_t *tether__read_fixed(const uint8_t *at,
                                  const uint8_t *end,
                                  size_t size,
                                  uint64_t *ret_value)
{
    if ((size_t)(end - at) < size)
        return NULL;
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)at[i] << (8 * i);
    *ret_value = value;
    return at + size;
}

void tether__wire_put_long_varint(struct tether__wire_writer *writer, uint64_t value)
{
    size_t room = (size_t)(writer->end - writer->at);
    if (room < MAX_VARINT && room < tether__varint_size(value)) {
        writer->overrun = true;
        return;
    }
    uint8_t *at = writer->at;
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    writer->at = at;
}

/* ---- Arena ---- */

struct tether__arena_block {
    struct tether__arena_block *next;
    _Alignas(max_align_t) uint8_t bytes[];
};

static void *arena_alloc(void *userdata, size_t size)
{
    struct tether__arena *arena = userdata;
    size_t padding = -(uintptr_t)arena->at % _Alignof(max_align_t);
    size_t room = (size_t)(arena->end - arena->at), need;
    if (!__builtin_add_overflow(size, padding, &need) && need <= room) {
        void *ptr = arena->at + padding;
        arena->at += need;
        return ptr;
    }
    struct tether__arena_block *block = NULL;
    if (!__builtin_add_overflow(size, sizeof *block, &need))
        block = tether__malloc(need);
    if (!block) {
        arena->exhausted = true;
        return NULL;
    }
    block->next = arena->blocks;
    arena->blocks = block;
    return block->bytes;
}

/* protobuf-c frees its partial result of a malformed message; here fini() frees everything at
 * once. */
static void arena_free(void *userdata, void *ptr)
{
    (void)userdata, (void)ptr;
}

void tether__arena_init(struct tether__arena *arena, void *buffer, size_t size)
{
    *arena = (struct tether__arena){
        .allocator = {arena_alloc, arena_free, arena},
        .at = buffer,
        .end = (uint8_t *)buffer + size,
    };
}

void tether__arena_fini(struct tether__arena *arena)
{
    while (arena->blocks) {
        struct tether__arena_block *block = arena->blocks;
        arena->blocks = block->next;
        tether__free(block);
    }
    arena->at = arena->end;
}

tether_status tether__wire_unpack(const ProtobufCMessageDescriptor *descriptor,
                                  tether_bytes bytes,
                                  struct tether__arena *arena,
                                  const void **ret_message)
{
    arena->exhausted = false;
    const ProtobufCMessage *message =
        protobuf_c_message_unpack(descriptor, &arena->allocator, bytes.len, bytes.data);
    if (!message)
        return arena->exhausted ? TETHER_ENOMEM : TETHER_ECORRUPT;
    *ret_message = message;
    return TETHER_OK;
}
