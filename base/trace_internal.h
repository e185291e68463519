/* What Tether itself does with trace ids: each thread's own, without a call. */
#ifndef TETHER_BASE_TRACE_INTERNAL_H
#define TETHER_BASE_TRACE_INTERNAL_H

#include <string.h>

#include "base/trace.h"

/* Hidden where it is declared, too: a file that takes it for another library's pays for that at
 * every access. */
extern __attribute__((visibility("hidden"))) _Thread_local tether_trace tether__trace;

/* Out of a W3C "traceparent" of version 00, "00-<32 digits: the trace>-<16: the caller's part of
 * it>-<2>", which needs no NUL behind it. What looks otherwise counts as none, as W3C says. */
tether_trace tether__trace_from_parent(const char *text, size_t len);

static inline bool tether__trace_is_set(const tether_trace *trace)
{
    uint64_t halves[2];
    memcpy(halves, trace->bytes, sizeof halves);
    return (halves[0] | halves[1]) != 0;
}

#endif
