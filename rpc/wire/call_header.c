/* Calls and replies, field by field. See call_header.h. */
#include "rpc/wire/call_header.h"

#include <string.h>

#include "rpc/wire/slice.h"

/* Limit of a list of numbers that this file reads; protobuf-c reads longer ones. Tether itself
 * sends three. */
#define MAX_NUMBERS 16

/* ---- Packing: a field that is zero or empty is left out ---- */

static inline void put_number(struct tether__wire_writer *writer, uint32_t number, uint64_t value)
{
    if (value)
        tether__wire_put_varint_field(writer, number, value);
}

static inline void put_text(struct tether__wire_writer *writer, uint32_t number, const char *text)
{
    if (text && *text)
        tether__wire_put_bytes_field(writer, number, text, strlen(text));
}

static inline void put_numbers(struct tether__wire_writer *writer,
                               uint32_t number,
                               const uint64_t *values,
                               size_t n)
{
    size_t len = 0;
    if (n == 0)
        return;
    for (size_t i = 0; i < n; i++)
        len += tether__varint_size(values[i]);
    tether__wire_put_bytes_head(writer, number, len);
    for (size_t i = 0; i < n; i++)
        tether__wire_put_varint(writer, values[i]);
}

/* Ends a message that was packed. False: it did not fit. */
static bool finish(struct tether__packed *packed, const struct tether__wire_writer *writer)
{
    packed->heap = NULL;
    packed->bytes = tether_bytes_of(packed->stack, (size_t)(writer->at - packed->stack));
    return !writer->overrun;
}

static bool put_call(struct tether__packed *packed, const Tether__Call *call)
{
    struct tether__wire_writer writer = tether__wire_writer(packed->stack, sizeof packed->stack);
    put_number(&writer, 1, call->id);
    put_text(&writer, 2, call->function);
    put_number(&writer, 3, call->timeout_ms);
    if (call->trace.len)
        tether__wire_put_bytes_field(&writer, 4, call->trace.data, call->trace.len);
    put_numbers(&writer, 7, call->result, call->n_result);
    put_numbers(&writer, 8, call->result_fork, call->n_result_fork);
    put_number(&writer, 9, call->owner_incarnation);
    put_text(&writer, 10, call->type);
    put_text(&writer, 11, call->site);
    put_number(&writer, 12, call->announced);
    return finish(packed, &writer);
}

tether_status tether__call_header_pack(struct tether__packed *packed, const Tether__Call *call)
{
    if (!call->n_ref && !call->target && put_call(packed, call))
        return TETHER_OK;
    return tether__pack(packed, &call->base);
}

static bool put_reply(struct tether__packed *packed, const Tether__Reply *reply)
{
    struct tether__wire_writer writer = tether__wire_writer(packed->stack, sizeof packed->stack);
    put_number(&writer, 1, reply->id);
    put_number(&writer, 2, (uint64_t)(int64_t)reply->status);
    put_text(&writer, 3, reply->error);
    put_text(&writer, 5, reply->type);
    put_text(&writer, 6, reply->result_type);
    return finish(packed, &writer);
}

tether_status tether__reply_header_pack(struct tether__packed *packed, const Tether__Reply *reply)
{
    if (!reply->n_ref && put_reply(packed, reply))
        return TETHER_OK;
    return tether__pack(packed, &reply->base);
}

/* ---- Unpacking: of a field that comes twice the last one counts ---- */

/* The take_ functions return false for messages that protobuf-c must read. */
static void *take_memory(struct tether__arena *arena, size_t size)
{
    return arena->allocator.alloc(arena->allocator.allocator_data, size);
}

static bool take_bytes(struct tether__arena *arena,
                       const struct tether__wire_field *field,
                       uint8_t **ret_bytes)
{
    uint8_t *bytes = take_memory(arena, field->len + 1);
    if (!bytes)
        return false;
    memcpy(bytes, field->data, field->len);
    bytes[field->len] = '\0';
    *ret_bytes = bytes;
    return true;
}

static bool take_text(struct tether__arena *arena,
                      const struct tether__wire_field *field,
                      char **ret_text)
{
    return take_bytes(arena, field, (uint8_t **)ret_text);
}

/* Reads a packed list of numbers. Lists that come twice must be joined: that is left to
 * protobuf-c. */
static bool take_numbers(struct tether__arena *arena,
                         const struct tether__wire_field *field,
                         uint64_t **ret_values,
                         size_t *ret_n)
{
    const uint8_t *at = field->data, *end = at + field->len;
    uint64_t *values = *ret_n ? NULL : take_memory(arena, MAX_NUMBERS * sizeof *values);
    size_t n = 0;
    if (!values)
        return false;
    while (at < end) {
        if (n == MAX_NUMBERS || !(at = tether__read_varint(at, end, &values[n++])))
            return false;
    }
    *ret_values = values;
    *ret_n = n;
    return true;
}

#define TAG(number, type) ((number) << 3 | TETHER__WIRE_##type)

static uint32_t tag_of(const struct tether__wire_field *field)
{
    return field->number << 3 | field->type;
}

static bool take_call_field(const struct tether__wire_field *field,
                            struct tether__arena *arena,
                            Tether__Call *call)
{
    switch (tag_of(field)) {
        case TAG(1, VARINT):
            call->id = field->value;
            return true;
        case TAG(2, BYTES):
            return take_text(arena, field, &call->function);
        case TAG(3, VARINT):
            call->timeout_ms = (uint32_t)field->value;
            return true;
        case TAG(4, BYTES):
            call->trace.len = field->len;
            return take_bytes(arena, field, &call->trace.data);
        case TAG(7, BYTES):
            return take_numbers(arena, field, &call->result, &call->n_result);
        case TAG(8, BYTES):
            return take_numbers(arena, field, &call->result_fork, &call->n_result_fork);
        case TAG(9, VARINT):
            call->owner_incarnation = field->value;
            return true;
        case TAG(10, BYTES):
            return take_text(arena, field, &call->type);
        case TAG(11, BYTES):
            return take_text(arena, field, &call->site);
        case TAG(12, VARINT):
            call->announced = field->value != 0;
            return true;
        default:
            return false;
    }
}

/* Whether a message has more references than a value can carry. Counts them before memory is
 * allocated; each takes at least two bytes. */
static bool has_too_many_refs(tether_bytes bytes, uint32_t number)
{
    struct tether__wire_reader reader = tether__wire_reader(bytes.data, bytes.len);
    struct tether__wire_field field;
    size_t n = 0;
    if (bytes.len <= 2 * TETHER__MAX_REFS)
        return false;
    while (n <= TETHER__MAX_REFS && tether__wire_next(&reader, &field) == TETHER__WIRE_FIELD)
        n += field.number == number;
    return n > TETHER__MAX_REFS;
}

tether_status tether__call_header_unpack(tether_bytes bytes,
                                         struct tether__arena *arena,
                                         const Tether__Call **ret_call)
{
    struct tether__wire_reader reader = tether__wire_reader(bytes.data, bytes.len);
    struct tether__wire_field field;
    enum tether__wire_read read = TETHER__WIRE_MALFORMED;
    uint8_t *before = arena->at;
    Tether__Call *call = take_memory(arena, sizeof *call);
    if (call) {
        tether__call__init(call);
        while ((read = tether__wire_next(&reader, &field)) == TETHER__WIRE_FIELD)
            if (!take_call_field(&field, arena, call))
                break;
    }
    *ret_call = call;
    if (read == TETHER__WIRE_END)
        return TETHER_OK;
    if (has_too_many_refs(bytes, 5))
        return TETHER_ECORRUPT;
    arena->at = before;
    return tether__wire_unpack(&tether__call__descriptor, bytes, arena, (const void **)ret_call);
}

static bool take_reply_field(const struct tether__wire_field *field,
                             struct tether__arena *arena,
                             Tether__Reply *reply)
{
    switch (tag_of(field)) {
        case TAG(1, VARINT):
            reply->id = field->value;
            return true;
        case TAG(2, VARINT):
            reply->status = (int32_t)field->value;
            return true;
        case TAG(3, BYTES):
            return take_text(arena, field, &reply->error);
        case TAG(5, BYTES):
            return take_text(arena, field, &reply->type);
        case TAG(6, BYTES):
            return take_text(arena, field, &reply->result_type);
        default:
            return false;
    }
}

tether_status tether__reply_header_unpack(tether_bytes bytes,
                                          struct tether__arena *arena,
                                          const Tether__Reply **ret_reply)
{
    struct tether__wire_reader reader = tether__wire_reader(bytes.data, bytes.len);
    struct tether__wire_field field;
    enum tether__wire_read read = TETHER__WIRE_MALFORMED;
    uint8_t *before = arena->at;
    Tether__Reply *reply = take_memory(arena, sizeof *reply);
    if (reply) {
        tether__reply__init(reply);
        while ((read = tether__wire_next(&reader, &field)) == TETHER__WIRE_FIELD)
            if (!take_reply_field(&field, arena, reply))
                break;
    }
    *ret_reply = reply;
    if (read == TETHER__WIRE_END)
        return TETHER_OK;
    if (has_too_many_refs(bytes, 4))
        return TETHER_ECORRUPT;
    arena->at = before;
    return tether__wire_unpack(&tether__reply__descriptor, bytes, arena, (const void **)ret_reply);
}
