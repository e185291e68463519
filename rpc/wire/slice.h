/* A counted piece of memory: how received bytes travel from the transport to a value, and large
 * payloads from a value to the transport, without a copy.
 *
 * A slice is passed by value; `owner` (NULL: static memory) is what keeps the bytes alive. LENDS
 * means: retain it to keep it past the call. Any thread.
 */
#ifndef TETHER_RPC_WIRE_SLICE_H
#define TETHER_RPC_WIRE_SLICE_H

#include "base/bytes.h"

struct tether__slice_owner {
    void (*retain)(struct tether__slice_owner *owner);
    void (*release)(struct tether__slice_owner *owner);
    /* size of the memory that a retain keeps alive; 0: not known, use the length of the slice */
    size_t n_bytes;
};

struct tether__slice {
    const uint8_t *data;
    size_t len;
    struct tether__slice_owner *owner;
};

#define TETHER__SLICE_EMPTY ((struct tether__slice){NULL, 0, NULL})

static inline struct tether__slice tether__slice_retain(struct tether__slice slice)
{
    if (slice.owner)
        slice.owner->retain(slice.owner);
    return slice;
}

static inline void tether__slice_release(struct tether__slice slice)
{
    if (slice.owner)
        slice.owner->release(slice.owner);
}

/* Returns the part of `slice` from `start`, `len` bytes long. It has the same owner; nothing is
 * retained. */
static inline struct tether__slice tether__slice_sub(struct tether__slice slice,
                                                     size_t start,
                                                     size_t len)
{
    return (struct tether__slice){slice.data + start, len, slice.owner};
}

/* Returns how much memory a retain of `slice` keeps. */
static inline size_t tether__slice_pins(struct tether__slice slice)
{
    return slice.owner && slice.owner->n_bytes > slice.len ? slice.owner->n_bytes : slice.len;
}

static inline tether_bytes tether__slice_bytes(struct tether__slice slice)
{
    return tether_bytes_of(slice.data, slice.len);
}

/* How many references a value, and so a call or a reply, can carry. */
#define TETHER__MAX_REFS 1024

#endif
