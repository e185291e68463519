/* Bytes: a borrowed view (tether_bytes) and an owned, growing buffer (tether_buf).
 *
 * Ownership: a tether_bytes owns nothing and is valid as long as the memory that it points to; a
 * tether_buf owns its memory, which tether_buf_fini() frees. Neither needs a terminating NUL, but
 * buffers from the library have one after the last byte, so that text can be printed directly.
 *
 * Threads: any thread; a buffer by one at a time.
 */
#ifndef TETHER_BASE_BYTES_H
#define TETHER_BASE_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/macros.h"
#include "base/status.h"

TETHER_BEGIN_DECLS

typedef struct tether_bytes {
    const void *data; /* may be NULL when len is 0 */
    size_t len;
} tether_bytes;

typedef struct tether_buf {
    char *data; /* NULL in a new buffer */
    size_t len;
    size_t cap;
} tether_buf;

#define TETHER_BUF_INIT ((tether_buf){NULL, 0, 0})

static inline tether_bytes tether_bytes_of(const void *data, size_t len)
{
    tether_bytes bytes = {data, len};
    return bytes;
}

/* The characters of `text` without its NUL. */
static inline tether_bytes tether_bytes_str(const char *text)
{
    return tether_bytes_of(text, strlen(text));
}

static inline tether_bytes tether_buf_bytes(const tether_buf *buf)
{
    return tether_bytes_of(buf->data, buf->len);
}

static inline bool tether_bytes_equal(tether_bytes a, tether_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* Frees the memory of `buf` and makes it empty; it can be used again. NULL is fine. */
TETHER_API void tether_buf_fini(tether_buf *buf);

/* Makes room for `extra` more bytes (and the NUL). On TETHER_ENOMEM nothing has changed. */
TETHER_API tether_status tether_buf_reserve(tether_buf *buf, size_t extra);

/* Appends a copy of `bytes`, which must not point into `buf`, and a NUL after it. On TETHER_ENOMEM
 * nothing has changed. */
TETHER_API tether_status tether_buf_append(tether_buf *buf, tether_bytes bytes);

/* Replaces the content by a copy of `bytes`, which must not point into `buf`. On TETHER_ENOMEM
 * nothing has changed. */
TETHER_API tether_status tether_buf_assign(tether_buf *buf, tether_bytes bytes);

/* Appends formatted text. On TETHER_ENOMEM nothing has changed. */
TETHER_API tether_status tether_buf_printf(tether_buf *buf, const char *format, ...)
    TETHER_PRINTF(2, 3);

TETHER_END_DECLS

#endif
