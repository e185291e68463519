/* What Tether itself does with trace ids: each thread's own, without a call. */
#ifndef TETHER_BASE_TRACE_INTERNAL_H
#define TETHER_BASE_TRACE_INTERNAL_H

#include <string.h>

#include "base/trace.h"

/* Hidden where it is declared, too: a file that takes it for another library's pays for that at
 * every access. */
extern __attribute__((visibility("hidden"))) _Thread_local tether_trace tether__trace;

/* tether_trace_parse() of `len` bytes, which need no NUL behind them. */
bool tether__trace_read(const char *text, size_t len, tether_trace *ret_trace);

static inline bool tether__trace_is_set(const tether_trace *trace)
{
    uint64_t halves[2];
    memcpy(halves, trace->bytes, sizeof halves);
    return (halves[0] | halves[1]) != 0;
}

#endif
