/* Protobuf by hand where it pays, and with protobuf-c where it does not.
 *
 * The envelopes of a lane (Batch, Frame) are read field by field and written in place, so that no
 * frame costs an allocation and no payload a copy. The bodies (Hello, Call ...) are protobuf-c's:
 * pack() puts one into a buffer, unpack() makes one in an arena, which is a piece of the caller's
 * stack that goes over to the heap when it is full. A small body costs no malloc.
 *
 * Reading never looks beyond the end, even if the bytes are malformed; writing never goes beyond
 * it. No locks: everything here belongs to its caller.
 */
#ifndef TETHER_RPC_WIRE_WIRE_H
#define TETHER_RPC_WIRE_WIRE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"

enum tether__wire_type {
    TETHER__WIRE_VARINT = 0,
    TETHER__WIRE_FIXED64 = 1,
    TETHER__WIRE_BYTES = 2, /* a length and that many bytes */
    TETHER__WIRE_FIXED32 = 5,
};

/* ---- Reading ---- */

struct tether__wire_reader {
    const uint8_t *at, *end;
};

struct tether__wire_field {
    uint32_t number;     /* field number, 1 .. 2^29 - 1 */
    uint32_t type;       /* one of tether__wire_type */
    uint64_t value;      /* the value of a field that is a number */
    const uint8_t *data; /* the bytes of a BYTES field, which point into the input */
    size_t len;
};

enum tether__wire_read { TETHER__WIRE_END, TETHER__WIRE_FIELD, TETHER__WIRE_MALFORMED };

static inline struct tether__wire_reader tether__wire_reader(const void *data, size_t len)
{
    const uint8_t *at = data;
    return (struct tether__wire_reader){at, len ? at + len : at};
}

/* Reads the varint at `at`. Returns the position after it, or NULL when it does not end before
 * `end` or has more than 64 bits. */
const uint8_t *tether__read_long_varint(const uint8_t *at, const uint8_t *end, uint64_t *ret_value);

static inline const uint8_t *tether__read_varint(const uint8_t *at,
                                                 const uint8_t *end,
                                                 uint64_t *ret_value)
{
    if (at < end && *at < 0x80) {
        *ret_value = *at;
        return at + 1;
    }
    return tether__read_long_varint(at, end, ret_value);
}

/* Reads a tag or a length. protobuf-c takes at most 5 bytes for either, and so do we: both readers
 * must accept the same messages. */
static inline const uint8_t *tether__read_short_varint(const uint8_t *at,
                                                       const uint8_t *end,
                                                       uint64_t *ret_value)
{
    return tether__read_varint(at, end - at > 5 ? at + 5 : end, ret_value);
}

/* Reads a little-endian number of `size` bytes. Returns the position after it, or NULL when it
 * does not end before `end`. */
const uint8_t *tether__read_fixed(const uint8_t *at,
                                  const uint8_t *end,
                                  size_t size,
                                  uint64_t *ret_value);

/* Reads the next field. After MALFORMED (a number that does not fit, a tag or length of more than 5
 * bytes, a length beyond the end, field number 0, a group or an unknown wire type) the reader is of
 * no more use. In line, since a lane reads five fields for each message. */
static inline enum tether__wire_read tether__wire_next(struct tether__wire_reader *reader,
                                                       struct tether__wire_field *ret_field)
{
    const uint8_t *at = reader->at, *end = reader->end;
    if (at == end)
        return TETHER__WIRE_END;
    uint64_t tag; /* later used for the length */
    at = tether__read_short_varint(at, end, &tag);
    if (!at || tag < 1 << 3 || tag >> 32 != 0)
        return TETHER__WIRE_MALFORMED;
    ret_field->number = (uint32_t)tag >> 3;
    ret_field->type = tag & 7;
    switch (ret_field->type) {
        case TETHER__WIRE_VARINT:
            at = tether__read_varint(at, end, &ret_field->value);
            break;
        case TETHER__WIRE_BYTES:
            at = tether__read_short_varint(at, end, &tag);
            if (!at || tag > (uint64_t)(end - at))
                return TETHER__WIRE_MALFORMED;
            ret_field->data = at;
            ret_field->len = (size_t)tag;
            at += ret_field->len;
            break;
        case TETHER__WIRE_FIXED64:
            at = tether__read_fixed(at, end, 8, &ret_field->value);
            break;
        case TETHER__WIRE_FIXED32:
            at = tether__read_fixed(at, end, 4, &ret_field->value);
            break;
        default:
            return TETHER__WIRE_MALFORMED;
    }
    reader->at = at;
    return at ? TETHER__WIRE_FIELD : TETHER__WIRE_MALFORMED;
}

/* ---- Writing ---- */

/* How many bytes a varint takes, 1 to 10: one for each 7 bits begun. (9 * log2 + 73) / 64 is that,
 * without a division. */
static inline size_t tether__varint_size(uint64_t value)
{
    return ((63u ^ (unsigned)__builtin_clzll(value | 1)) * 9 + 73) / 64;
}

static inline size_t tether__tag_size(uint32_t number)
{
    return tether__varint_size((uint64_t)number << 3);
}

/* Returns the size of a whole varint field, tag included. */
static inline size_t tether__varint_field_size(uint32_t number, uint64_t value)
{
    return tether__tag_size(number) + tether__varint_size(value);
}

static inline size_t tether__bytes_field_size(uint32_t number, size_t len)
{
    return tether__tag_size(number) + tether__varint_size(len) + len;
}

/* Writes fields backwards from `end`. A field that does not fit is not written, and `overrun` is
 * set. */
struct tether__wire_writer {
    uint8_t *at, *end;
    bool overrun;
};

static inline struct tether__wire_writer tether__wire_writer(void *data, size_t room)
{
    uint8_t *at = data;
    return (struct tether__wire_writer){at, at + room, false};
}

void tether__wire_put_long_varint(struct tether__wire_writer *writer, uint64_t value);

static inline void tether__wire_put_varint(struct tether__wire_writer *writer, uint64_t value)
{
    if (value < 0x80 && writer->at < writer->end)
        *writer->at++ = (uint8_t)value;
    else
        tether__wire_put_long_varint(writer, value);
}

static inline void tether__wire_put_raw(struct tether__wire_writer *writer,
                                        const void *data,
                                        size_t len)
{
    if ((size_t)(writer->end - writer->at) < len) {
        writer->overrun = true;
        return;
    }
    if (len)
        memcpy(writer->at, data, len);
    writer->at += len;
}

static inline void tether__wire_put_varint_field(struct tether__wire_writer *writer,
                                                 uint32_t number,
                                                 uint64_t value)
{
    tether__wire_put_varint(writer, (uint64_t)number << 3 | TETHER__WIRE_VARINT);
    tether__wire_put_varint(writer, value);
}

/* Writes the tag and length of a BYTES field of `len` bytes. The caller provides the bytes behind
 * them. */
static inline void tether__wire_put_bytes_head(struct tether__wire_writer *writer,
                                               uint32_t number,
                                               size_t len)
{
    tether__wire_put_varint(writer, (uint64_t)number << 3 | TETHER__WIRE_BYTES);
    tether__wire_put_varint(writer, len);
}

static inline void tether__wire_put_bytes_field(struct tether__wire_writer *writer,
                                                uint32_t number,
                                                const void *data,
                                                size_t len)
{
    tether__wire_put_bytes_head(writer, number, len);
    tether__wire_put_raw(writer, data, len);
}

/* ---- Whole messages, with protobuf-c ---- */

/* Memory that is allocated in small parts and freed at once. The allocator points into this
 * struct, so it must not be moved. */
struct tether__arena {
    ProtobufCAllocator allocator;
    uint8_t *at, *end;
    /* blocks from the heap, used when the caller's buffer is full */
    struct tether__arena_block *blocks;
    bool exhausted; /* an allocation from the heap has failed */
};

void tether__arena_init(struct tether__arena *arena, void *buffer, size_t size);
void tether__arena_fini(struct tether__arena *arena);

/* Defines an arena `name` that uses `size` bytes of stack first. */
#define TETHER__ARENA(name, size)                       \
    _Alignas(max_align_t) uint8_t name##_buffer_[size]; \
    struct tether__arena name;                          \
    tether__arena_init(&name, name##_buffer_, sizeof name##_buffer_)

/* Unpacks `bytes` into `arena`; the message lives as long as the arena, and its strings are
 * copies. TETHER_ECORRUPT, TETHER_ENOMEM. There is no free_unpacked(): the arena does it.
 *
 *     TETHER__ARENA(arena, 512);
 *     const Tether__Call *call;
 *     st = tether__wire_unpack(&tether__call__descriptor, header, &arena, (void *)&call);
 *     ...
 *     tether__arena_fini(&arena);
 */
tether_status tether__wire_unpack(const ProtobufCMessageDescriptor *descriptor,
                                  tether_bytes bytes,
                                  struct tether__arena *arena,
                                  const void **ret_message);

#endif
