/* The launcher's own messages: lines on standard error, and one progress line, which is overwritten
 * on a terminal and elsewhere printed only when it changes. Loop thread only.
 */
#ifndef TETHER_TOOLS_RUN_OUTPUT_CONSOLE_H
#define TETHER_TOOLS_RUN_OUTPUT_CONSOLE_H

#include "tools/run/output/sink.h"

struct run_console {
    struct run_sink *sink;
    bool quiet;
    bool line_open; /* a progress line has no newline yet */
    /* the last progress text; without the time left unless standard error is a terminal */
    char last[256];
};

/* Print a line to standard error. say() prints nothing when `quiet`. */
void run_console_say(struct run_console *console, const char *format, ...) TETHER_PRINTF(2, 3);
void run_console_warn(struct run_console *console, const char *format, ...) TETHER_PRINTF(2, 3);

/* Shows progress: `what`, and how long it may take (-1: not known). */
void run_console_progress(struct run_console *console, const char *what, int64_t left_ms);

/* Removes the progress line, before other output. */
void run_console_clear(struct run_console *console);

#endif
