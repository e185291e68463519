/* Walks the wire format with a stack of its own. See message_depth.h. */
#include "rpc/wire/message_depth.h"

#include <stdint.h>

enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 };

/* A nested message takes at least a tag and a length, so shorter input cannot be nested too deep.
 */
#define BYTES_PER_LEVEL 2

struct level {
    const ProtobufCMessageDescriptor *type;
    const uint8_t *end;
};

/* Reads a varint of at most `max` bytes. False: the bytes are no such varint. */
static bool read_varint(const uint8_t **at, const uint8_t *end, int max, uint64_t *ret_number)
{
    uint64_t number = 0;
    for (int i = 0; i < max && *at < end; i++) {
        uint8_t byte = *(*at)++;
        number |= (uint64_t)(byte & 0x7F) << (7 * i);
        if (byte < 0x80) {
            *ret_number = number;
            return true;
        }
    }
    return false;
}

/* Returns the type of the messages in field `tag`; NULL: the field has no messages. */
static const ProtobufCMessageDescriptor *nested_type(const ProtobufCMessageDescriptor *type,
                                                     uint64_t tag)
{
    const ProtobufCFieldDescriptor *field =
        tag >> 3 <= UINT32_MAX ? protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3))
                               : NULL;
    return field && field->type == PROTOBUF_C_TYPE_MESSAGE ? field->descriptor : NULL;
}

/* Skips one field, or stops at the start of a nested message (`*ret_nested` is its type,
 * `*ret_end` its end). False: the bytes are malformed. */
static bool next_field(const struct level *level,
                       const uint8_t **at,
                       const ProtobufCMessageDescriptor **ret_nested,
                       const uint8_t **ret_end)
{
    uint64_t tag, number;
    *ret_nested = NULL;
    if (!read_varint(at, level->end, 5, &tag))
        return false;
    switch (tag & 7) {
        case VARINT:
            return read_varint(at, level->end, 10, &number);
        case FIXED64:
        case FIXED32:
            number = (tag & 7) == FIXED64 ? 8 : 4;
            break;
        case LENGTH:
            if (!read_varint(at, level->end, 5, &number))
                return false;
            break;
        default:
            return false;
    }
    if (number > (uint64_t)(level->end - *at))
        return false;
    *ret_end = *at + number;
    if ((tag & 7) == LENGTH)
        *ret_nested = nested_type(level->type, tag);
    if (!*ret_nested)
        *at = *ret_end;
    return true;
}

bool tether__message_depth_fits(const ProtobufCMessageDescriptor *type, tether_bytes bytes)
{
    struct level levels[TETHER__MAX_DEPTH];
    const uint8_t *at = bytes.data;
    size_t n = 1;
    if (bytes.len <= BYTES_PER_LEVEL * TETHER__MAX_DEPTH)
        return true;
    levels[0] = (struct level){type, at + bytes.len};
    while (n > 0) {
        const ProtobufCMessageDescriptor *nested;
        const uint8_t *end;
        if (at == levels[n - 1].end) {
            n--;
            continue;
        }
        if (!next_field(&levels[n - 1], &at, &nested, &end))
            return true; /* protobuf-c reads in the same order, so it rejects the message here, too
                          */
        if (nested && n == TETHER__MAX_DEPTH)
            return false;
        if (nested)
            levels[n++] = (struct level){nested, end};
    }
    return true;
}
