/* The trace id of each thread, and its text formats: our own, and W3C's. */
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
        int64_t now =
            tether__clock_now_ns(&tether__clock_system); /* fallback without random numbers: the
                                                            time is good enough to tell ids apart */
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

/* Parses 32 hexadecimal digits at `text`. */
static bool read_digits(const char *text, tether_trace *ret_trace)
{
    tether_trace trace;
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
    return text && strlen(text) == 2 * sizeof ret_trace->bytes && read_digits(text, ret_trace);
}

/* Whether `text` matches `pattern`, where x stands for a lower-case hexadecimal digit. */
static bool is_like(const char *pattern, const char *text)
{
    for (size_t i = 0; pattern[i]; i++)
        if (pattern[i] == 'x' ? digit(text[i]) < 0 || (text[i] >= 'A' && text[i] <= 'F')
                              : text[i] != pattern[i])
            return false;
    return true;
}

tether_trace tether__trace_from_parent(const char *text, size_t len)
{
    static const char pattern[] = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
    static const char no_caller[] = "0000000000000000";
    tether_trace trace = TETHER_TRACE_NONE;
    if (len == sizeof pattern - 1 && is_like(pattern, text) &&
        memcmp(text + 36, no_caller, sizeof no_caller - 1) != 0)
        read_digits(text + 3, &trace);
    return trace;
}
