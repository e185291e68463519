/* Trace ids: 16 bytes that accompany a call and all calls that are made for it, on any worker. They
 * connect the log lines of one request; Tether itself only passes them on.
 *
 *     tether_trace before = tether_trace_set(tether_trace_new());
 *     tether_rpc_sync(agent, "front", "search", query, TETHER_DEFAULT_MS, &result, &err);
 *     tether_trace_set(before);
 *
 * Each thread has a trace id, initially none, and its calls carry it. While a function runs for a
 * caller, its thread has the trace id of the caller; while a callback of a future runs, that of the
 * call. Log lines end with the trace id of their thread (base/log.h).
 *
 * The format is that of W3C Trace Context, so the "traceparent" of a gRPC client becomes one.
 */
#ifndef TETHER_BASE_TRACE_H
#define TETHER_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"

TETHER_BEGIN_DECLS

typedef struct tether_trace {
    uint8_t bytes[16]; /* all zero: there is no trace id */
} tether_trace;

#define TETHER_TRACE_NONE ((tether_trace){{0}})

/* Makes a new trace id from random numbers of the kernel. Any thread. */
TETHER_API tether_trace tether_trace_new(void);

/* Returns the trace id of this thread. Any thread. */
TETHER_API tether_trace tether_trace_current(void);

/* Sets the trace id of this thread; returns the one before, to be restored later. Any thread. */
TETHER_API tether_trace tether_trace_set(tether_trace trace);

/* Returns whether `trace` is a trace id, that is, not all zero. Any thread. */
TETHER_API bool tether_trace_is_set(tether_trace trace);

/* tether_trace_format() gives 32 hexadecimal digits and a NUL, copied into your own array;
 * tether_trace_parse() reads them. parse() returns false for any other text and leaves
 * `*ret_trace` unchanged. Any thread. */
#define TETHER_TRACE_TEXT_SIZE 33
TETHER_API void tether_trace_format(tether_trace trace, char ret_text[TETHER_TRACE_TEXT_SIZE]);
TETHER_API bool tether_trace_parse(const char *text, tether_trace *ret_trace);

TETHER_END_DECLS

#endif
