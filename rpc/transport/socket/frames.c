/* See transport/socket/frames.h. */
#include "rpc/transport/socket/frames.h"

#include <endian.h>
#include <string.h>

#include "base/alloc.h"

/* ---- Blocks ---- */

static struct tether__block *block_of(struct tether__slice_owner *owner)
{
    return tether__container_of(owner, struct tether__block, owner);
}

static void block_retain(struct tether__slice_owner *owner)
{
    atomic_fetch_add_explicit(&block_of(owner)->refs, 1, memory_order_relaxed);
}

static void block_release(struct tether__slice_owner *owner)
{
    tether__block_release(block_of(owner));
}

struct tether__block *tether__block_new(size_t size)
{
    struct tether__block *block = tether__malloc(sizeof *block + size);
    if (!block)
        return NULL;
    block->owner = (struct tether__slice_owner){block_retain, block_release, size};
    atomic_init(&block->refs, 1);
    block->size = size;
    return block;
}

struct tether__block *tether__block_release(struct tether__block *block)
{
    if (block && atomic_fetch_sub_explicit(&block->refs, 1, memory_order_acq_rel) == 1)
        tether__free(block);
    return NULL;
}

/* ---- Frames ---- */

void tether__frames_init(struct tether__frames *frames, uint32_t max_bytes)
{
    *frames = (struct tether__frames){.max_bytes = max_bytes};
}

void tether__frames_fini(struct tether__frames *frames)
{
    frames->body = tether__block_release(frames->body);
}

void tether__frames_header(uint8_t ret_header[TETHER__UNIX_HEADER_BYTES], uint32_t len)
{
    uint32_t little = htole32(len);
    memcpy(ret_header, &little, sizeof little);
}

static void skip(struct tether__slice *bytes, size_t n)
{
    *bytes = tether__slice_sub(*bytes, n, bytes->len - n);
}

size_t tether__frames_room(struct tether__frames *frames, uint8_t **ret_room)
{
    bool under_way = frames->body && !frames->lent;
    *ret_room = under_way ? frames->body->data + frames->body_len : NULL;
    return under_way ? frames->body->size - frames->body_len : 0;
}

void tether__frames_filled(struct tether__frames *frames, size_t len)
{
    frames->body_len += len;
}

static size_t take(uint8_t *to, size_t room, struct tether__slice *bytes)
{
    size_t n = bytes->len < room ? bytes->len : room;
    if (n) {
        memcpy(to, bytes->data, n);
        skip(bytes, n);
    }
    return n;
}

/* Continues with the message of which only a part was there. */
static enum tether__next go_on(struct tether__frames *frames,
                               struct tether__slice *bytes,
                               struct tether__slice *ret_message)
{
    uint8_t *to;
    size_t room = tether__frames_room(frames, &to);
    frames->body_len += take(to, room, bytes);
    if (frames->body_len < frames->body->size)
        return TETHER__NEXT_NONE;
    frames->lent = true;
    *ret_message =
        (struct tether__slice){frames->body->data, frames->body_len, &frames->body->owner};
    return TETHER__NEXT_MESSAGE;
}

/* Takes bytes of a header. False: the header is still incomplete. */
static bool take_header(struct tether__frames *frames,
                        struct tether__slice *bytes,
                        uint32_t *ret_len)
{
    size_t missing = sizeof frames->header - frames->header_len;
    frames->header_len += (uint8_t)take(frames->header + frames->header_len, missing, bytes);
    if (frames->header_len < sizeof frames->header)
        return false;
    frames->header_len = 0;
    uint32_t little;
    memcpy(&little, frames->header, sizeof little);
    *ret_len = le32toh(little);
    return true;
}

enum tether__next tether__frames_next(struct tether__frames *frames,
                                      struct tether__slice *bytes,
                                      struct tether__slice *ret_message)
{
    if (frames->lent) {
        frames->body = tether__block_release(frames->body);
        frames->lent = false;
    }
    if (frames->ended)
        return TETHER__NEXT_END;
    if (frames->body)
        return go_on(frames, bytes, ret_message);

    uint32_t len;
    if (!take_header(frames, bytes, &len))
        return TETHER__NEXT_NONE;
    if (len == TETHER__UNIX_END) {
        frames->ended = true;
        return TETHER__NEXT_END;
    }
    if (len > frames->max_bytes) {
        frames->announced = len;
        return TETHER__NEXT_TOO_BIG;
    }
    if (len <= bytes->len) {
        *ret_message = tether__slice_sub(*bytes, 0, len);
        skip(bytes, len);
        return TETHER__NEXT_MESSAGE;
    }
    frames->body = tether__block_new(len);
    if (!frames->body)
        return TETHER__NEXT_NO_MEMORY;
    frames->body_len = 0;
    return go_on(frames, bytes, ret_message);
}
