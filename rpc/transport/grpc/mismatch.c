/* The answer to a client that speaks plain text to a listener with TLS, or TLS to one without.
 *
 * Such a client can be told in its own protocol, so that its calls fail at once and say why,
 * instead of being tried again until they time out.
 *
 * TLS client: one alert record ends its handshake.
 *
 * HTTP/2 client: the listener's SETTINGS, without which a client of gRPC begins no call; then its
 * frames are skipped up to the first HEADERS; that call is answered with a status, and GOAWAY ends
 * the connection. A GOAWAY alone is no answer: gRPC would connect again and again.
 *
 * Does no I/O except for the log, allocates nothing, and keeps only the head of one frame of the
 * client. The caller bounds bytes and time.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "rpc/transport/grpc/accept.h"

#define FRAME_HEAD 9
/* the largest frame that HTTP/2 allows as long as our SETTINGS do not raise the limit */
#define MAX_FRAME 16384

enum { HEADERS = 1, SETTINGS = 4, GOAWAY = 7 };
enum { END_STREAM = 1, END_HEADERS = 4 };

/* ---- Writing ---- */

struct writer {
    uint8_t *at;
};

static void put(struct writer *writer, const void *bytes, size_t len)
{
    memcpy(writer->at, bytes, len);
    writer->at += len;
}

static void put_byte(struct writer *writer, unsigned byte)
{
    *writer->at++ = (uint8_t)byte;
}

static void put_frame_head(struct writer *writer,
                           size_t len,
                           unsigned type,
                           unsigned flags,
                           uint32_t stream)
{
    const uint8_t head[FRAME_HEAD] = {
        (uint8_t)(len >> 16),    (uint8_t)(len >> 8),    (uint8_t)len,
        (uint8_t)type,           (uint8_t)flags,         (uint8_t)(stream >> 24),
        (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    put(writer, head, sizeof head);
}

/* Writes an uncompressed HPACK string of 253 bytes at most. */
static void put_text(struct writer *writer, const char *text)
{
    size_t len = strlen(text);
    put_byte(writer, len < 127 ? (unsigned)len : 127);
    if (len >= 127)
        put_byte(writer, (unsigned)len - 127);
    put(writer, text, len);
}

static void put_field(struct writer *writer, const char *name, const char *value)
{
    put_byte(writer, 0); /* HPACK: a literal with a new name, not added to the table */
    put_text(writer, name);
    put_text(writer, value);
}

/* Writes the answer to the call of `stream`, and a GOAWAY that says that no other call will be
 * answered. */
static size_t put_answer(uint8_t *out, uint32_t stream)
{
    char grpc_status[16], tether_status_text[16];
    struct writer writer = {out + FRAME_HEAD};
    snprintf(grpc_status, sizeof grpc_status, "%d", tether_status_to_grpc(TETHER_EPERM));
    snprintf(tether_status_text, sizeof tether_status_text, "%d", TETHER_EPERM);
    put_byte(&writer, 0x88); /* ":status: 200", number 8 of HPACK's table */
    put_field(&writer, "content-type", "application/grpc");
    put_field(&writer, "grpc-status", grpc_status);
    put_field(&writer, "grpc-message", TETHER__GRPC_NEEDS_TLS);
    put_field(&writer, "tether-status", tether_status_text);
    size_t len = (size_t)(writer.at - out) - FRAME_HEAD;
    struct writer head = {out};
    put_frame_head(&head, len, HEADERS, END_STREAM | END_HEADERS, stream);

    const uint8_t last[8] = {(uint8_t)(stream >> 24), (uint8_t)(stream >> 16),
                             /* GOAWAY: the last stream, then the code NO_ERROR */
                             (uint8_t)(stream >> 8), (uint8_t)stream};
    put_frame_head(&writer, sizeof last, GOAWAY, 0, 0);
    put(&writer, last, sizeof last);
    return (size_t)(writer.at - out);
}

/* ---- Reading ---- */

enum tether__grpc_speech tether__grpc_speech_of(const char *first, size_t n)
{
    static const char preface[] = TETHER__GRPC_PREFACE;
    static const char tls_head[] = {22, 3}; /* a TLS record of type handshake, version 3.x */
    const size_t preface_len = sizeof preface - 1;
    if (memcmp(first, preface, n < preface_len ? n : preface_len) == 0)
        return n < preface_len ? TETHER__GRPC_BEGINS_PLAIN : TETHER__GRPC_SPEAKS_PLAIN;
    if (memcmp(first, tls_head, n < sizeof tls_head ? n : sizeof tls_head) == 0)
        return n < sizeof tls_head ? TETHER__GRPC_BEGINS_TLS : TETHER__GRPC_SPEAKS_TLS;
    return TETHER__GRPC_SPEAKS_OTHER;
}

int tether__grpc_bytes_wanted(enum tether__grpc_speech speech)
{
    bool is_plain = speech == TETHER__GRPC_BEGINS_PLAIN || speech == TETHER__GRPC_SPEAKS_PLAIN;
    return speech == TETHER__GRPC_SPEAKS_OTHER ? 0 : is_plain ? (int)TETHER__GRPC_FIRST_BYTES : 6;
}

size_t tether__grpc_mismatch_begin(struct tether__grpc_mismatch *mismatch,
                                   bool client_has_tls,
                                   uint8_t out[TETHER__GRPC_MISMATCH_BYTES])
{
    /* a TLS alert record: fatal, protocol_version */
    static const uint8_t alert[] = {21, 3, 3, 0, 2, 2, 70};
    *mismatch = (struct tether__grpc_mismatch){.is_over = client_has_tls,
                                               .skip = sizeof TETHER__GRPC_PREFACE - 1};
    struct writer writer = {out};
    if (client_has_tls)
        put(&writer, alert, sizeof alert);
    else
        put_frame_head(&writer, 0, SETTINGS, 0, 0);
    return (size_t)(writer.at - out);
}

size_t tether__grpc_mismatch_feed(struct tether__grpc_mismatch *mismatch,
                                  const uint8_t *bytes,
                                  size_t n,
                                  uint8_t out[TETHER__GRPC_MISMATCH_BYTES])
{
    while (n > 0 && !mismatch->is_over) {
        if (mismatch->skip) {
            size_t part = n < mismatch->skip ? n : mismatch->skip;
            bytes += part, n -= part, mismatch->skip -= part;
            continue;
        }
        const uint8_t *head = mismatch->head;
        mismatch->head[mismatch->n_head++] = *bytes;
        bytes++, n--;
        if (mismatch->n_head < FRAME_HEAD)
            continue;
        mismatch->n_head = 0;
        mismatch->skip = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        mismatch->is_over = head[3] == HEADERS || mismatch->skip > MAX_FRAME;
        if (head[3] == HEADERS)
            return put_answer(out, (uint32_t)(head[5] & 0x7f) << 24 | (uint32_t)head[6] << 16 |
                                       (uint32_t)head[7] << 8 | head[8]);
    }
    return 0;
}

/* ---- The log ---- */

void tether__grpc_log_mismatch(struct tether__log_limit *limit, int fd, bool has_tls)
{
    unsigned left_out;
    char address[TETHER__GRPC_ADDRESS_SIZE] = "a client";
    int64_t now = tether__clock_now_ns(&tether__clock_system);
    if (!tether__log_limit_passes(limit, now, &left_out))
        return;
    tether__grpc_address_of(fd, address);
    tether__log(TETHER_LOG_WARN, "rpc",
                "refused %s: it %s: give both ends a certificate, or neither (and %u more since "
                "this was last logged)",
                address,
                has_tls ? "speaks plain text, and this worker has TLS"
                        : "has TLS, and this worker speaks plain text",
                left_out);
}
