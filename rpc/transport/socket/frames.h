/* Messages out of a stream of bytes: each is its length in 4 bytes, little-endian, and then that
 * many bytes. The length 0xFFFFFFFF is no message: the sender is done (docs/wire.md).
 *
 * Happy path: received bytes are given to next() again and again, which finds one message at a time
 * and lends it out of those very bytes. When they end within a message, next() takes memory of its
 * exact length and keeps what there is; room() is where the rest of it should be received, and
 * filled() says how much was.
 *
 * Failure modes: a length over the limit is found before any memory is taken for it; no memory.
 * Either way the stream is of no further use.
 *
 * No I/O and no locks: one thread at a time.
 */
#ifndef TETHER_RPC_TRANSPORT_SOCKET_FRAMES_H
#define TETHER_RPC_TRANSPORT_SOCKET_FRAMES_H

#include <stdatomic.h>
#include <stdbool.h>

#include "rpc/wire/slice.h"

#define TETHER__UNIX_HEADER_BYTES 4
#define TETHER__UNIX_END UINT32_MAX

/* Memory with a reference count, from which messages are lent. */
struct tether__block {
    struct tether__slice_owner owner;
    atomic_uint refs;
    size_t size;
    uint8_t data[];
};

/* Makes a block with one reference; NULL: no memory. */
struct tether__block *tether__block_new(size_t size);
struct tether__block *tether__block_release(struct tether__block *block); /* NULL is fine */

/* Returns whether the caller has the only reference, so that the bytes may be overwritten. */
static inline bool tether__block_is_mine(struct tether__block *block)
{
    return atomic_load_explicit(&block->refs, memory_order_acquire) == 1;
}

struct tether__frames {
    uint32_t max_bytes; /* limit of one message */
    uint8_t header[TETHER__UNIX_HEADER_BYTES];
    uint8_t header_len; /* how many bytes of the next header have arrived */
    bool ended;
    bool lent;                  /* next() has returned the message in `body` */
    struct tether__block *body; /* the message of which only a part has arrived; NULL: none */
    size_t body_len;            /* how many bytes of that message have arrived */
    uint32_t announced;         /* the announced length, when it was over the limit */
};

enum tether__next {
    TETHER__NEXT_NONE, /* all bytes were consumed */
    TETHER__NEXT_MESSAGE,
    TETHER__NEXT_END, /* the sender's end marker came; later bytes are ignored */
    TETHER__NEXT_TOO_BIG,
    TETHER__NEXT_NO_MEMORY,
};

void tether__frames_init(struct tether__frames *frames, uint32_t max_bytes);
void tether__frames_fini(struct tether__frames *frames);

/* Returns the next message in `bytes`, and moves `bytes` past it. LENDS until the next call. */
enum tether__next tether__frames_next(struct tether__frames *frames,
                                      struct tether__slice *bytes,
                                      struct tether__slice *ret_message);

/* Returns the length of the missing rest of a message, and where to receive it; 0: no message is
 * incomplete.
 */
size_t tether__frames_room(struct tether__frames *frames, uint8_t **ret_room);

/* Tells that the first `len` bytes of the room were filled. */
void tether__frames_filled(struct tether__frames *frames, size_t len);

/* Writes the 4 bytes that precede a message of `len` bytes; TETHER__UNIX_END makes the end marker.
 */
void tether__frames_header(uint8_t ret_header[TETHER__UNIX_HEADER_BYTES], uint32_t len);

#endif
