/* The owned buffer: its size doubles, and there is always a NUL after the last byte. */
#include "base/bytes.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"

void tether_buf_fini(tether_buf *buf)
{
    if (!buf)
        return;
    tether__free(buf->data);
    *buf = TETHER_BUF_INIT;
}

tether_status tether_buf_reserve(tether_buf *buf, size_t extra)
{
    size_t need;
    if (__builtin_add_overflow(buf->len, extra, &need) || __builtin_add_overflow(need, 1, &need))
        return TETHER_ENOMEM;
    if (need <= buf->cap)
        return TETHER_OK;
    size_t cap = buf->cap > SIZE_MAX / 2 ? need : buf->cap * 2;
    if (cap < need)
        cap = need < 32 ? 32 : need;
    char *data = tether__realloc(buf->data, cap);
    if (!data)
        return TETHER_ENOMEM;
    buf->data = data;
    buf->cap = cap;
    buf->data[buf->len] = '\0';
    return TETHER_OK;
}

tether_status tether_buf_append(tether_buf *buf, tether_bytes bytes)
{
    tether_status st = tether_buf_reserve(buf, bytes.len);
    if (st != TETHER_OK)
        return st;
    if (bytes.len)
        memcpy(buf->data + buf->len, bytes.data, bytes.len);
    buf->len += bytes.len;
    buf->data[buf->len] = '\0';
    return TETHER_OK;
}

tether_status tether_buf_assign(tether_buf *buf, tether_bytes bytes)
{
    if (bytes.len > buf->len) {
        tether_status st = tether_buf_reserve(buf, bytes.len - buf->len);
        if (st != TETHER_OK)
            return st;
    }
    buf->len = 0;
    return tether_buf_append(buf, bytes);
}

tether_status tether_buf_printf(tether_buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    tether_status st = len < 0 ? TETHER_EINVAL : tether_buf_reserve(buf, (size_t)len);
    if (st == TETHER_OK) {
        vsnprintf(buf->data + buf->len, (size_t)len + 1, format, again);
        buf->len += (size_t)len;
    }
    va_end(again);
    return st;
}
