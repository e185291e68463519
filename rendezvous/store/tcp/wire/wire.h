/* The wire format of the TCP store, without I/O: decodes bytes into requests, and encodes.
 *
 * There are four dialects. V, L0 and L1 are PyTorch's (2.2 and later; 1.13 and 2.0; 2.1). A request
 * is an opcode byte and its arguments, without a frame; numbers are in host byte order; a string is
 * a u64 length and its bytes. Some requests have no reply, and a server reports errors by closing
 * the connection. T is Tether's: a connection starts as V, with VALIDATE and a PING whose nonce is
 * TETHER__STORE_WIRE_HELLO. A PyTorch server echoes the nonce. Ours answers
 * TETHER__STORE_WIRE_WELCOME and its limits (u64 key, u64 value, u64 keys, u64 message). After
 * that, requests are encoded as in V and
 *   - every request has a reply, which starts with a status byte; the rest of the reply follows
 * only TETHER_OK;
 *   - GET, MULTI_GET and QUEUE_POP wait until they can be answered, in one step;
 *   - COMPARE_SET answers u8 swapped, bytes;
 *   - CANCEL_WAIT ends the wait of this connection with TETHER_ECANCELED. Without a wait its own
 *     reply is TETHER_ECANCELED. So a request sent together with a CANCEL_WAIT is a poll, and one
 *     TETHER_ECANCELED is always the last reply;
 *   - while a request waits, a client may send only CANCEL_WAIT.
 *
 * Parsing is incremental and reads each byte once: the parser remembers its position in the
 * message. It checks every length and count against the limits before memory is allocated for it,
 * and yields a request only when it is complete, so half a request changes nothing.
 *
 * Not thread-safe: a parser belongs to one connection.
 */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_WIRE_WIRE_H
#define TETHER_RENDEZVOUS_STORE_TCP_WIRE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "rendezvous/store_tcp.h"

#define TETHER__STORE_WIRE_MAGIC UINT32_C(0x3C85F7CE)
/* Nonces of Tether's PING and of the answer. PyTorch sends a pid as nonce, and no pid is as large
 * as these: the bytes "Teth" and "Ther" as numbers. */
#define TETHER__STORE_WIRE_HELLO UINT32_C(0x68746554)
#define TETHER__STORE_WIRE_WELCOME UINT32_C(0x72656854)

/* The prefix of users' keys on the wire. The key that counts the joined stores has no prefix. */
#define TETHER__STORE_WIRE_USER_KEY "/"
#define TETHER__STORE_WIRE_JOINED_KEY "init/"

/* PyTorch's own limits in V: of a value, and of a key with its "/". */
#define TETHER__STORE_WIRE_TORCH_MAX_VALUE ((size_t)8 << 20)
#define TETHER__STORE_WIRE_TORCH_MAX_KEY 8192

#define TETHER__STORE_WIRE_READY 0
#define TETHER__STORE_WIRE_NOT_READY 1
#define TETHER__STORE_WIRE_STOP_WAITING 0
#define TETHER__STORE_WIRE_WAIT_CANCELED 1
#define TETHER__STORE_WIRE_WATCHING 3

/* The operations: X(name, opcode in L0, in L1, in V and T, shape); -1: the dialect lacks it. The
 * shape has a letter for each argument: k key, v value, i 64-bit number, u 32-bit number, K a
 * count and so many keys, P a count and so many pairs of key and value. */
#define TETHER__STORE_WIRE_OPS(X)   \
    X(VALIDATE, -1, -1, 0, "u")     \
    X(SET, 0, 0, 1, "kv")           \
    X(COMPARE_SET, 1, 1, 2, "kvv")  \
    X(GET, 2, 2, 3, "k")            \
    X(ADD, 3, 3, 4, "ki")           \
    X(CHECK, 4, 4, 5, "K")          \
    X(WAIT, 5, 5, 6, "K")           \
    X(NUM_KEYS, 6, 6, 7, "")        \
    X(WATCH_KEY, 7, -1, -1, "k")    \
    X(DELETE, 8, 7, 8, "k")         \
    X(APPEND, -1, 8, 9, "kv")       \
    X(MULTI_GET, -1, 9, 10, "K")    \
    X(MULTI_SET, -1, 10, 11, "P")   \
    X(CANCEL_WAIT, -1, 11, 12, "")  \
    X(PING, -1, -1, 13, "u")        \
    X(QUEUE_PUSH, -1, -1, 14, "kv") \
    X(QUEUE_POP, -1, -1, 15, "k")   \
    X(QUEUE_LEN, -1, -1, 16, "k")   \
    X(LIST_KEYS, -1, -1, 17, "")    \
    X(BARRIER, -1, -1, 18, "ki")

enum tether__store_wire_op {
#define X(name, l0, l1, v, shape) TETHER__STORE_OP_##name,
    TETHER__STORE_WIRE_OPS(X)
#undef X
        TETHER__STORE_N_OPS,
};

/* Returns the opcode of `op` in a dialect; -1: the dialect lacks it. */
int tether__store_wire_opcode(enum tether__store_wire_op op, tether_store_dialect dialect);

/* Replaces zero fields by their defaults, and lowers fields to the limits of the wire format. */
struct tether_store_limits tether__store_wire_limits(struct tether_store_limits asked);

/* ---- Requests, as a server reads them ------------------------------------------------------- */

/* A whole request. Views point into the bytes that were parsed. */
struct tether__store_wire_request {
    enum tether__store_wire_op op;
    tether_bytes key;      /* k */
    tether_bytes value;    /* the last argument of kind v: the value to set */
    tether_bytes expected; /* the first argument of kind v if there are two */
    int64_t number;        /* the argument of kind i or u */
    size_t n_items;        /* number of items of an argument of kind K or P */
    tether_bytes items;    /* those items as encoded, for tether__store_wire_next() */
};

struct tether__store_wire_parser {
    const struct tether_store_limits *limits;
    bool legacy_is_l1;
    /* fields of the whole connection */
    tether_store_dialect dialect; /* AUTO until the first bytes have arrived */
    bool legacy_settled;          /* L0 or L1 is certain, not a guess */
    bool seen_request;
    /* fields of the current message */
    const char *shape; /* the arguments that are still missing; NULL between messages */
    enum tether__store_wire_op op;
    size_t pos; /* bytes of the current message that were parsed so far */
    bool counted;
    /* items of an argument of kind K or P, and how many strings of them are missing */
    size_t n_items, strings_left;
    int n_values;
    struct tether__store_wire_span {
        size_t at, len;
    } key, values[2], items;
    int64_t number;
};

void tether__store_wire_parser_init(struct tether__store_wire_parser *parser,
                                    const struct tether_store_limits *limits,
                                    bool legacy_is_l1);

typedef enum tether__store_wire_result {
    TETHER__STORE_WIRE_MORE, /* the request is not complete */
    /* the bytes are complete as one request, but also the beginning of another */
    TETHER__STORE_WIRE_UNSURE,
    TETHER__STORE_WIRE_REQUEST, /* one complete request */
    TETHER__STORE_WIRE_BAD,     /* invalid bytes: close the connection */
} tether__store_wire_result;

/* Parses the message that starts at `data`; when called again after MORE, `data` starts with the
 * same bytes. `*ret_size` is the size of the request on REQUEST. On MORE it is the number of bytes
 * that the next call needs at least; a peer chooses it within the limits, so don't allocate it at
 * once. On BAD `*ret_why` (static) says what is wrong. */
tether__store_wire_result tether__store_wire_parse(struct tether__store_wire_parser *parser,
                                                   const char *data,
                                                   size_t len,
                                                   struct tether__store_wire_request *ret_request,
                                                   size_t *ret_size,
                                                   const char **ret_why);

/* Decides that the connection uses L0, because nothing has followed an UNSURE request. Opcode 8 is
 * DELETE in L0, whose client waits for the reply, and APPEND in L1, whose client sends the value
 * right after the key. */
void tether__store_wire_settle_l0(struct tether__store_wire_parser *parser);

/* Removes the first string from `items`, which has been parsed before, and returns it. */
tether_bytes tether__store_wire_next(tether_bytes *items);

/* ---- Encoding, for both sides ----------------------------------------------------------------
 *
 * All append to `buf`; TETHER_ENOMEM leaves it as it was. */

tether_status tether__store_wire_put_u8(tether_buf *buf, uint8_t value);
tether_status tether__store_wire_put_u32(tether_buf *buf, uint32_t value);
tether_status tether__store_wire_put_u64(tether_buf *buf, uint64_t value);
tether_status tether__store_wire_put_bytes(tether_buf *buf, tether_bytes bytes);

#endif
