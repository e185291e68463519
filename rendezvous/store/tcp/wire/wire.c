/* Opcode tables, the incremental parser and the encoders. */
#include "rendezvous/store/tcp/wire/wire.h"

#include <string.h>

#define DEFAULT_MAX_VALUE ((size_t)64 << 20)
#define DEFAULT_MAX_MESSAGE ((size_t)256 << 20)
#define DEFAULT_MAX_BUFFERED ((size_t)1 << 30)
#define DEFAULT_MAX_KEPT ((size_t)4 << 30)
/* limit of all limits, so that sums of lengths cannot overflow */
#define MOST_BYTES ((size_t)1 << 40)
#define MOST_KEYS ((size_t)1 << 30)

static const struct {
    const char *shape;
    int8_t l0, l1, v;
} ops[] = {
#define X(name, l0, l1, v, shape) {shape, l0, l1, v},
    TETHER__STORE_WIRE_OPS(X)
#undef X
};

int tether__store_wire_opcode(enum tether__store_wire_op op, tether_store_dialect dialect)
{
    switch (dialect) {
        case TETHER_STORE_DIALECT_L0:
            return ops[op].l0;
        case TETHER_STORE_DIALECT_L1:
            return ops[op].l1;
        default:
            return ops[op].v;
    }
}

/* Returns the operation that an opcode means; N_OPS: none. */
static enum tether__store_wire_op op_of(int opcode, tether_store_dialect dialect)
{
    unsigned op = 0;
    while (op < TETHER__STORE_N_OPS && tether__store_wire_opcode(op, dialect) != opcode)
        op++;
    return op;
}

static size_t or_default(size_t asked, size_t otherwise)
{
    return asked ? asked : otherwise;
}

struct tether_store_limits tether__store_wire_limits(struct tether_store_limits asked)
{
    struct tether_store_limits limits = {
        .max_key = or_default(asked.max_key, TETHER_STORE_MAX_KEY),
        .max_value = or_default(asked.max_value, DEFAULT_MAX_VALUE),
        .max_keys = or_default(asked.max_keys, TETHER_STORE_MAX_KEYS_PER_CALL),
        .max_message = or_default(asked.max_message, DEFAULT_MAX_MESSAGE),
        .max_buffered = or_default(asked.max_buffered, DEFAULT_MAX_BUFFERED),
        .max_kept = or_default(asked.max_kept, DEFAULT_MAX_KEPT),
    };
    if (limits.max_key > TETHER_STORE_MAX_KEY)
        limits.max_key = TETHER_STORE_MAX_KEY;
    if (limits.max_value > MOST_BYTES)
        limits.max_value = MOST_BYTES;
    if (limits.max_keys > MOST_KEYS)
        limits.max_keys = MOST_KEYS;
    if (limits.max_message > MOST_BYTES)
        limits.max_message = MOST_BYTES;
    return limits;
}

/* ---- The parser ----------------------------------------------------------------------------- */

void tether__store_wire_parser_init(struct tether__store_wire_parser *parser,
                                    const struct tether_store_limits *limits,
                                    bool legacy_is_l1)
{
    memset(parser, 0, sizeof *parser);
    parser->limits = limits;
    parser->legacy_is_l1 = legacy_is_l1;
}

static uint32_t get_u32(const char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t get_u64(const char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Arguments and results of tether__store_wire_parse(). */
struct scan {
    const char *data;
    size_t len;
    size_t need;
    const char *why;
};

static bool have(struct scan *scan, size_t upto)
{
    scan->need = upto;
    return scan->len >= upto;
}

static tether__store_wire_result bad(struct scan *scan, const char *why)
{
    scan->why = why;
    return TETHER__STORE_WIRE_BAD;
}

/* Tells V from the legacy dialects by the first five bytes: read as a legacy SET, VALIDATE and its
 * magic number would announce a key of a gigabyte. */
static tether__store_wire_result detect(struct tether__store_wire_parser *parser, struct scan *scan)
{
    uint32_t magic = TETHER__STORE_WIRE_MAGIC;
    unsigned char first = (unsigned char)scan->data[0];
    parser->dialect = parser->legacy_is_l1 ? TETHER_STORE_DIALECT_L1 : TETHER_STORE_DIALECT_L0;
    if (first == 0) {
        size_t seen = scan->len - 1 < sizeof magic ? scan->len - 1 : sizeof magic;
        bool may_be_v = memcmp(scan->data + 1, &magic, seen) == 0;
        if (may_be_v && seen < sizeof magic) {
            parser->dialect = TETHER_STORE_DIALECT_AUTO;
            scan->need = 1 + sizeof magic;
            return TETHER__STORE_WIRE_MORE;
        }
        if (may_be_v)
            parser->dialect = TETHER_STORE_DIALECT_V;
    } else if (first > 11) {
        return bad(scan, "the first bytes are of no store client");
    }
    return TETHER__STORE_WIRE_REQUEST;
}

/* Decides between the legacy dialects by opcodes that only one of them has. An L0 client watches on
 * a separate connection, so a 7 after other requests is L1's DELETE. settle_by_rest() decides about
 * an 8, unless the server is set to expect L1. The decision holds for this connection only: the
 * bytes of one client must not change how the server reads others. */
static void settle_legacy(struct tether__store_wire_parser *parser, int opcode)
{
    if (parser->legacy_settled)
        return;
    bool is_l1 = (opcode >= 9 && opcode <= 11) || (opcode == 7 && parser->seen_request);
    if (is_l1)
        parser->dialect = TETHER_STORE_DIALECT_L1;
    parser->legacy_settled = is_l1 || opcode == 7;
}

static tether__store_wire_result start_message(struct tether__store_wire_parser *parser,
                                               struct scan *scan)
{
    if (!have(scan, 1))
        return TETHER__STORE_WIRE_MORE;
    if (parser->dialect == TETHER_STORE_DIALECT_AUTO) {
        tether__store_wire_result result = detect(parser, scan);
        if (result != TETHER__STORE_WIRE_REQUEST)
            return result;
    }
    int opcode = (unsigned char)scan->data[0];
    if (parser->dialect == TETHER_STORE_DIALECT_L0 || parser->dialect == TETHER_STORE_DIALECT_L1)
        settle_legacy(parser, opcode);
    enum tether__store_wire_op op = op_of(opcode, parser->dialect);
    if (op == TETHER__STORE_N_OPS)
        return bad(scan, "unknown opcode");
    parser->op = op;
    parser->shape = ops[op].shape;
    parser->pos = 1;
    parser->counted = false;
    parser->n_items = parser->strings_left = 0;
    parser->n_values = 0;
    parser->number = 0;
    memset(&parser->key, 0, sizeof parser->key);
    memset(&parser->values, 0, sizeof parser->values);
    memset(&parser->items, 0, sizeof parser->items);
    return TETHER__STORE_WIRE_REQUEST;
}

/* Parses one length and its bytes. REQUEST: it is complete, and `pos` is after it. */
static tether__store_wire_result scan_string(struct tether__store_wire_parser *parser,
                                             struct scan *scan,
                                             bool is_key,
                                             struct tether__store_wire_span *ret_span)
{
    const struct tether_store_limits *limits = parser->limits;
    size_t at = parser->pos + sizeof(uint64_t);
    if (!have(scan, at))
        return TETHER__STORE_WIRE_MORE;
    uint64_t len = get_u64(scan->data + parser->pos);
    /* one more for the "/" in front of a key */
    if (len > (is_key ? limits->max_key + 1 : limits->max_value))
        return bad(scan, is_key ? "key longer than the limit" : "value longer than the limit");
    if (at + len > limits->max_message)
        return bad(scan, "request longer than the limit");
    if (!have(scan, at + len))
        return TETHER__STORE_WIRE_MORE;
    *ret_span = (struct tether__store_wire_span){at, len};
    parser->pos = at + len;
    return TETHER__STORE_WIRE_REQUEST;
}

static tether__store_wire_result scan_list(struct tether__store_wire_parser *parser,
                                           struct scan *scan,
                                           bool pairs)
{
    if (!parser->counted) {
        if (!have(scan, parser->pos + sizeof(uint64_t)))
            return TETHER__STORE_WIRE_MORE;
        uint64_t count = get_u64(scan->data + parser->pos);
        if (count > parser->limits->max_keys)
            return bad(scan, "more keys in one request than the limit");
        parser->pos += sizeof(uint64_t);
        parser->items.at = parser->pos;
        parser->n_items = count;
        parser->strings_left = pairs ? 2 * count : count;
        parser->counted = true;
    }
    while (parser->strings_left) {
        struct tether__store_wire_span ignored;
        bool is_key = !pairs || parser->strings_left % 2 == 0;
        tether__store_wire_result result = scan_string(parser, scan, is_key, &ignored);
        if (result != TETHER__STORE_WIRE_REQUEST)
            return result;
        parser->strings_left--;
    }
    parser->items.len = parser->pos - parser->items.at;
    return TETHER__STORE_WIRE_REQUEST;
}

static tether__store_wire_result scan_number(struct tether__store_wire_parser *parser,
                                             struct scan *scan,
                                             size_t size)
{
    if (!have(scan, parser->pos + size))
        return TETHER__STORE_WIRE_MORE;
    const char *at = scan->data + parser->pos;
    parser->number = size == sizeof(uint32_t) ? (int64_t)get_u32(at) : (int64_t)get_u64(at);
    parser->pos += size;
    return TETHER__STORE_WIRE_REQUEST;
}

static tether__store_wire_result scan_field(struct tether__store_wire_parser *parser,
                                            struct scan *scan,
                                            char kind)
{
    tether__store_wire_result result;
    switch (kind) {
        case 'k':
            return scan_string(parser, scan, true, &parser->key);
        case 'v':
            result = scan_string(parser, scan, false, &parser->values[parser->n_values]);
            parser->n_values += result == TETHER__STORE_WIRE_REQUEST;
            return result;
        case 'i':
            return scan_number(parser, scan, sizeof(uint64_t));
        case 'u':
            return scan_number(parser, scan, sizeof(uint32_t));
        default:
            return scan_list(parser, scan, kind == 'P');
    }
}

static tether__store_wire_result scan_fields(struct tether__store_wire_parser *parser,
                                             struct scan *scan)
{
    tether__store_wire_result result = TETHER__STORE_WIRE_REQUEST;
    while (result == TETHER__STORE_WIRE_REQUEST && *parser->shape) {
        result = scan_field(parser, scan, *parser->shape);
        if (result == TETHER__STORE_WIRE_REQUEST)
            parser->shape++;
    }
    return result;
}

/* An opcode 8 and its key are complete: this is L0's DELETE, or the beginning of L1's APPEND. A
 * wrong guess would delete the key of an APPEND. */
static tether__store_wire_result settle_by_rest(struct tether__store_wire_parser *parser,
                                                struct scan *scan)
{
    if (!have(scan, parser->pos + 1))
        return TETHER__STORE_WIRE_UNSURE;
    parser->dialect = TETHER_STORE_DIALECT_L1;
    parser->legacy_settled = true;
    parser->op = TETHER__STORE_OP_APPEND;
    parser->shape = "v";
    return scan_fields(parser, scan);
}

static tether__store_wire_result scan_message(struct tether__store_wire_parser *parser,
                                              struct scan *scan)
{
    tether__store_wire_result result = TETHER__STORE_WIRE_REQUEST;
    if (!parser->shape)
        result = start_message(parser, scan);
    if (result == TETHER__STORE_WIRE_REQUEST)
        result = scan_fields(parser, scan);
    if (result == TETHER__STORE_WIRE_REQUEST && parser->op == TETHER__STORE_OP_DELETE &&
        parser->dialect == TETHER_STORE_DIALECT_L0 && !parser->legacy_settled)
        result = settle_by_rest(parser, scan);
    return result;
}

void tether__store_wire_settle_l0(struct tether__store_wire_parser *parser)
{
    parser->legacy_settled = true;
}

static tether_bytes view(const char *data, struct tether__store_wire_span span)
{
    return tether_bytes_of(data + span.at, span.len);
}

tether__store_wire_result tether__store_wire_parse(struct tether__store_wire_parser *parser,
                                                   const char *data,
                                                   size_t len,
                                                   struct tether__store_wire_request *ret_request,
                                                   size_t *ret_size,
                                                   const char **ret_why)
{
    struct scan scan = {data, len, 0, NULL};
    tether__store_wire_result result = scan_message(parser, &scan);
    if (result == TETHER__STORE_WIRE_REQUEST && parser->op == TETHER__STORE_OP_VALIDATE &&
        parser->number != TETHER__STORE_WIRE_MAGIC)
        result = bad(&scan, "VALIDATE with a number that is not its own");
    if (result != TETHER__STORE_WIRE_REQUEST) {
        *ret_size = scan.need;
        *ret_why = scan.why;
        return result;
    }
    *ret_request = (struct tether__store_wire_request){
        .op = parser->op,
        .key = view(data, parser->key),
        .value = view(data, parser->values[parser->n_values == 2]),
        .expected = view(data, parser->values[0]),
        .number = parser->number,
        .n_items = parser->n_items,
        .items = view(data, parser->items),
    };
    *ret_size = parser->pos;
    parser->shape = NULL;
    parser->seen_request = true;
    if (parser->op == TETHER__STORE_OP_PING && parser->number == TETHER__STORE_WIRE_HELLO)
        parser->dialect = TETHER_STORE_DIALECT_TETHER;
    return TETHER__STORE_WIRE_REQUEST;
}

tether_bytes tether__store_wire_next(tether_bytes *items)
{
    const char *at = items->data;
    tether_bytes item = tether_bytes_of(at + sizeof(uint64_t), get_u64(at));
    items->data = at + sizeof(uint64_t) + item.len;
    items->len -= sizeof(uint64_t) + item.len;
    return item;
}

/* ---- Encoders ------------------------------------------------------------------------------- */

tether_status tether__store_wire_put_u8(tether_buf *buf, uint8_t value)
{
    return tether_buf_append(buf, tether_bytes_of(&value, sizeof value));
}

tether_status tether__store_wire_put_u32(tether_buf *buf, uint32_t value)
{
    return tether_buf_append(buf, tether_bytes_of(&value, sizeof value));
}

tether_status tether__store_wire_put_u64(tether_buf *buf, uint64_t value)
{
    return tether_buf_append(buf, tether_bytes_of(&value, sizeof value));
}

tether_status tether__store_wire_put_bytes(tether_buf *buf, tether_bytes bytes)
{
    /* Reserves room for both first, so that a failure leaves the buffer unchanged. */
    if (bytes.len > SIZE_MAX - sizeof(uint64_t))
        return TETHER_ENOMEM;
    tether_status st = tether_buf_reserve(buf, sizeof(uint64_t) + bytes.len);
    if (st == TETHER_OK)
        st = tether__store_wire_put_u64(buf, bytes.len);
    if (st == TETHER_OK)
        st = tether_buf_append(buf, bytes);
    return st;
}
