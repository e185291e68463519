/* Trace ids inside the library: the thread's own as a variable, without a function call. */
#ifndef TETHER_BASE_TRACE_INTERNAL_H
#define TETHER_BASE_TRACE_INTERNAL_H

#include <string.h>

#include "base/trace.h"

/* Hidden in the declaration, too: otherwise every access would use the slower dynamic TLS, as for
 * a variable of another library. */
extern __attribute__((visibility("hidden"))) _Thread_local tether_trace tether__trace;

/* Parses a W3C "traceparent" of version 00, "00-<32 digits: the trace>-<16: the caller's
 * span>-<2>", which needs no terminating NUL. Any other text counts as no trace id, as W3C demands.
 */
tether_trace tether__trace_from_parent(const char *text, size_t len);

static inline bool tether__trace_is_set(const tether_trace *trace)
{
    uint64_t halves[2];
    memcpy(halves, trace->bytes, sizeof halves);
    return (halves[0] | halves[1]) != 0;
}

#endif
