/* Bytes of a local peer, in reads of arbitrary sizes: the deframer must return the same messages as
 * a simple reader that gets all bytes in one piece.
 *
 * The input is a list of reads: a byte that says how long the next one is, then its bytes. A read
 * of an odd size goes directly into the buffer of the unfinished message, as far as there is room.
 */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "rpc/transport/socket/frames.h"
#include "tests/fuzz/fuzz.h"

#define LIMIT 600

/* How far the messages of a stream go, in a number. */
struct sum {
    uint64_t hash;
    size_t n;
    enum tether__next end;
};

static void add(struct sum *sum, const uint8_t *data, size_t len)
{
    static const uint8_t nothing;
    sum->hash = sum->hash * 31 + tether__hash(len ? data : &nothing, len, 0);
    sum->n++;
}

/* The rule of docs/wire.md, said once more. */
static struct sum read_simply(const uint8_t *at, size_t left)
{
    struct sum sum = {.end = TETHER__NEXT_NONE};
    while (left >= 4) {
        size_t len = at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 | (size_t)at[3] << 24;
        if (len == 0xFFFFFFFF || len > LIMIT) {
            sum.end = len == 0xFFFFFFFF ? TETHER__NEXT_END : TETHER__NEXT_TOO_BIG;
            return sum;
        }
        if (len > left - 4)
            return sum;
        add(&sum, at + 4, len);
        at += 4 + len;
        left -= 4 + len;
    }
    return sum;
}

static void take(struct tether__frames *frames, struct sum *sum, const uint8_t *data, size_t len)
{
    uint8_t *exact = malloc(len ? len : 1); /* so that a sanitizer sees a read behind its end */
    fuzz_check(exact);
    if (len)
        memcpy(exact, data, len);
    struct tether__slice bytes = {exact, len, NULL}, message;
    while ((sum->end = tether__frames_next(frames, &bytes, &message)) == TETHER__NEXT_MESSAGE) {
        fuzz_check(message.len <= LIMIT);
        add(sum, message.data, message.len);
    }
    fuzz_check(sum->end != TETHER__NEXT_NONE || bytes.len == 0);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *joined = malloc(size + 1);
    fuzz_check(joined);
    size_t n_joined = 0;
    struct sum sum = {.end = TETHER__NEXT_NONE};
    struct tether__frames frames;
    tether__frames_init(&frames, LIMIT);
    for (size_t at = 0; at < size && sum.end == TETHER__NEXT_NONE;) {
        size_t step = data[at], len = step < size - at - 1 ? step : size - at - 1;
        const uint8_t *bytes = data + at + 1;
        memcpy(joined + n_joined, bytes, len);
        n_joined += len;
        at += 1 + len;
        uint8_t *to;
        size_t room = step % 2 ? tether__frames_room(&frames, &to) : 0;
        size_t direct = len < room ? len : room;
        if (direct) {
            memcpy(to, bytes, direct);
            tether__frames_filled(&frames, direct);
        }
        take(&frames, &sum, bytes + direct, len - direct);
    }
    struct sum expected = read_simply(joined, n_joined);
    fuzz_check(sum.n == expected.n && sum.hash == expected.hash && sum.end == expected.end);
    tether__frames_fini(&frames);
    free(joined);
    return 0;
}
