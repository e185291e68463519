/* The trace id of each thread, and as text. */
#include "base/trace_internal.h"

#include <stdio.h>
#include <sys/random.h>

#include "base/clock.h"

_Thread_local tether_trace tether__trace;

tether_trace tether_trace_new(void)
{
    tether_trace trace = TETHER_TRACE_NONE;
    ssize_t n = getrandom(trace.bytes, sizeof trace.bytes, 0);
    if (n != (ssize_t)sizeof trace.bytes || !tether__trace_is_set(&trace)) {
        int64_t now = tether__clock_now_ns(&tether__clock_system); /* good enough to tell apart */
        memcpy(trace.bytes, &now, sizeof now);
    }
    return trace;
}

tether_trace tether_trace_current(void)
{
    return tether__trace;
}

tether_trace tether_trace_set(tether_trace trace)
{
    tether_trace before = tether__trace;
    tether__trace = trace;
    return before;
}

bool tether_trace_is_set(tether_trace trace)
{
    return tether__trace_is_set(&trace);
}

void tether_trace_format(tether_trace trace, char ret_text[TETHER_TRACE_TEXT_SIZE])
{
    for (size_t i = 0; i < sizeof trace.bytes; i++)
        snprintf(ret_text + 2 * i, 3, "%02x", trace.bytes[i]);
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool tether__trace_read(const char *text, size_t len, tether_trace *ret_trace)
{
    tether_trace trace;
    if (len != 2 * sizeof trace.bytes)
        return false;
    for (size_t i = 0; i < sizeof trace.bytes; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        trace.bytes[i] = (uint8_t)(16 * high + low);
    }
    *ret_trace = trace;
    return true;
}

bool tether_trace_parse(const char *text, tether_trace *ret_trace)
{
    return text && tether__trace_read(text, strlen(text), ret_trace);
}
