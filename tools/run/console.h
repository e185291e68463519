/* The launcher's own messages: lines on standard error, and one progress line, which is overwritten
 * on a terminal and elsewhere printed only when it changes. Loop thread only.
 */
#ifndef TETHER_TOOLS_RUN_CONSOLE_H
#define TETHER_TOOLS_RUN_CONSOLE_H

#include "tools/run/sink.h"

struct run_console {
    struct run_sink *sink;
    bool quiet;
    bool line_open; /* a progress line stands without its newline */
    char last[256]; /* the progress last shown; without the time, when not on a terminal */
};

/* A line of its own. warn() also when quiet. */
void run_console_say(struct run_console *console, const char *format, ...) TETHER_PRINTF(2, 3);
void run_console_warn(struct run_console *console, const char *format, ...) TETHER_PRINTF(2, 3);

/* Progress: `what`, and how long it may go on (-1: not known). */
void run_console_progress(struct run_console *console, const char *what, int64_t left_ms);

/* Takes the progress line away, before something else is written. */
void run_console_clear(struct run_console *console);

#endif
