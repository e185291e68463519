/* Trace ids: 16 bytes that go along with a call, and with every call that is made for it, on
 * whatever worker. They are for whoever reads logs: Tether itself only carries them.
 *
 *     tether_trace before = tether_trace_set(tether_trace_new());
 *     tether_rpc_sync(agent, "front", "search", query, TETHER_DEFAULT_MS, &result, &err);
 *     tether_trace_set(before);
 *
 * Each thread has a trace id, at first none. The calls that it makes bear it. While a function runs
 * for a caller, its thread has the caller's; while a callback of a call's future runs, that call's.
 * Lines in the log that are written meanwhile end in it (base/log.h).
 *
 * They are those of W3C Trace Context, so a gRPC client's "traceparent" becomes one.
 */
#ifndef TETHER_BASE_TRACE_H
#define TETHER_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"

TETHER_BEGIN_DECLS

typedef struct tether_trace {
    uint8_t bytes[16]; /* all zero: none */
} tether_trace;

#define TETHER_TRACE_NONE ((tether_trace){{0}})

/* One that nobody else has, from the kernel's random numbers. Any thread. */
TETHER_API tether_trace tether_trace_new(void);

/* That of this thread. Any thread. */
TETHER_API tether_trace tether_trace_current(void);

/* Gives this thread another; returns the one that it had, to be set again later. Any thread. */
TETHER_API tether_trace tether_trace_set(tether_trace trace);

/* Whether it is one at all. Any thread. */
TETHER_API bool tether_trace_is_set(tether_trace trace);

/* As 32 hexadecimal digits and a NUL, copied into your own array, and back. parse() wants no more
 * and no less: false when the text is something else, and `*ret_trace` is as it was. Any thread. */
#define TETHER_TRACE_TEXT_SIZE 33
TETHER_API void tether_trace_format(tether_trace trace, char ret_text[TETHER_TRACE_TEXT_SIZE]);
TETHER_API bool tether_trace_parse(const char *text, tether_trace *ret_trace);

TETHER_END_DECLS

#endif
