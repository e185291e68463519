/* A lane that is fed anything: batches, and between them what its owner may do.
 *
 * The input is a list of steps: a byte that says what to do; for a batch its length follows (one
 * byte, two when the first is 255) and the bytes. For any input the lane stays within its limits,
 * what it delivers is readable, a batch that it refuses has not moved it beyond the frames that it
 * took, and nothing is left behind.
 */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "rpc/lane/lane.h"
#include "tests/fuzz/fuzz.h"

static const struct tether__lane_limits limits = {
    .segment_bytes = 512,
    .inline_bytes = 64,
    .fragment_bytes = 128,
    .max_message_bytes = 2048,
    .max_unacked_bytes = 4096,
    .max_blobs = 3,
};

struct fuzzed {
    struct tether__lane lane;
    uint64_t delivered; /* of this session */
    uint64_t sum;       /* so that the bytes are read */
};

static tether_status take(struct fuzzed *fuzzed, const struct tether__inbound *message)
{
    fuzz_check(message->kind > 1);
    fuzz_check(message->header.len + message->payload.len <= limits.max_message_bytes);
    fuzzed->sum += tether__hash(message->header.data, message->header.len, 0);
    fuzzed->sum += tether__hash(message->payload.data, message->payload.len, 0);
    if (message->numbered)
        fuzzed->delivered++;
    /* Some of them change the lane from within, as the owner may. */
    switch (message->kind) {
        case TETHER__FRAME_CALL:
            tether__lane_send(&fuzzed->lane, TETHER__FRAME_REPLY, message->header, message->payload,
                              0);
            break;
        case TETHER__FRAME_STATE:
            tether__lane_reset(&fuzzed->lane);
            fuzzed->delivered = 0;
            fuzz_check(tether__lane_connected(&fuzzed->lane, 0) == TETHER_OK);
            break;
        case TETHER__FRAME_GOODBYE:
            tether__lane_disconnected(&fuzzed->lane);
            break;
        case TETHER__FRAME_CANCEL:
            return TETHER_EPERM;
        case TETHER__FRAME_FETCH:
            fuzzed->delivered--;
            return TETHER_ENOMEM;
        default:
            break;
    }
    return TETHER_OK;
}

static void receive(struct fuzzed *fuzzed, const uint8_t *data, size_t len)
{
    uint8_t *exact = malloc(len ? len : 1); /* so that the sanitizer sees every byte too many */
    if (!exact)
        return;
    memcpy(exact, data, len);
    tether_error err = {0};
    struct tether__lane *lane = &fuzzed->lane;
    struct tether__lane_cursor cursor =
        tether__lane_begin(lane, (struct tether__slice){exact, len, NULL}, &err);
    struct tether__inbound message;
    tether_status st = TETHER_OK;
    while (st == TETHER_OK && tether__lane_next(lane, &cursor, &message)) {
        fuzz_check(!tether__lane_broke(lane, &cursor));
        st = take(fuzzed, &message);
        if (st == TETHER_ENOMEM)
            tether__lane_reject(lane, &cursor);
        else
            tether__lane_accept(lane, &cursor);
        fuzz_check(lane->delivering == 0);
    }
    if (st == TETHER_OK) {
        st = cursor.status;
        fuzz_check((st == TETHER_ECANCELED) == tether__lane_broke(lane, &cursor));
        fuzz_check(st == TETHER_OK || st == TETHER_ECANCELED || (err.code == st && err.message[0]));
    }
    fuzz_check(fuzzed->lane.received >= fuzzed->delivered); /* pieces are numbered too */
    fuzz_check(fuzzed->lane.n_blobs <= limits.max_blobs);
    fuzz_check(fuzzed->lane.blob_bytes <= limits.max_message_bytes);
    fuzz_check(fuzzed->lane.acked <= fuzzed->lane.sent);
    free(exact);
}

static void pull(struct fuzzed *fuzzed)
{
    struct tether__lane_out out;
    if (!tether__lane_pull(&fuzzed->lane, true, &out))
        return;
    for (size_t i = 0; i < out.n_pieces; i++) {
        fuzzed->sum += tether__hash(out.pieces[i].data, out.pieces[i].len, 0);
        tether__slice_release(out.pieces[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t payload[400];
    struct fuzzed fuzzed = {.delivered = 0};
    tether__lane_init(&fuzzed.lane, &limits);
    fuzz_check(tether__lane_connected(&fuzzed.lane, 0) == TETHER_OK);
    for (size_t at = 0; at < size;) {
        switch (data[at++] % 8) {
            case 0:
                pull(&fuzzed);
                break;
            case 1:
                tether__lane_disconnected(&fuzzed.lane);
                break;
            case 2:
                (void)tether__lane_connected(&fuzzed.lane, at < size ? data[at++] : 0);
                break;
            case 3: {
                size_t len = at < size ? data[at++] * 2u : 0;
                tether__lane_send(&fuzzed.lane, TETHER__FRAME_CALL, tether_bytes_of("h", 1),
                                  (struct tether__slice){payload, len > 400 ? 400 : len, NULL}, 0);
                break;
            }
            default: {
                size_t len = at < size ? data[at++] : 0;
                if (len == 255 && at < size)
                    len += data[at++];
                if (len > size - at)
                    len = size - at;
                receive(&fuzzed, data + at, len);
                at += len;
            }
        }
    }
    tether__lane_fini(&fuzzed.lane);
    return 0;
}
