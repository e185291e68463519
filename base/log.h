/* Log hook: silent by default. TETHER_LOG=error|warn|info|debug|trace in the environment writes to
 * standard error, "2026-01-31T23:59:59.123Z tether warn rpc: ..." with the time in UTC; another
 * value is reported there once. An application sets a hook of its own instead.
 *
 * The library reports errors to its caller, not to the log: log messages explain a status, they do
 * not replace it. A message that is not logged costs one load and a compare.
 */
#ifndef TETHER_BASE_LOG_H
#define TETHER_BASE_LOG_H

#include "base/macros.h"

TETHER_BEGIN_DECLS

typedef enum tether_log_level {
    TETHER_LOG_NONE = 0,
    TETHER_LOG_ERROR,
    TETHER_LOG_WARN,
    TETHER_LOG_INFO,
    TETHER_LOG_DEBUG,
    TETHER_LOG_TRACE,
} tether_log_level;

/* Receives each message at or below the level in force, as one line without time, newline and
 * control characters. `area` is the part of the library ("rpc", "store"). A message of a thread
 * that has a trace id (base/trace.h) ends in " [trace 4bf9…]". Runs on any thread, several at once;
 * must not block and must not call Tether. */
typedef void tether_log_fn(void *userdata,
                           tether_log_level level,
                           const char *area,
                           const char *message);

/* Sends messages up to `level` to `fn`, or to standard error when `fn` is NULL. Overrides
 * TETHER_LOG. `userdata` stays yours; `fn` gets it for as long as the hook is set. Call it before
 * other threads use Tether. */
TETHER_API void tether_set_log(tether_log_level level, tether_log_fn *fn, void *userdata);

/* Parses "warn" and so on; returns TETHER_LOG_NONE for NULL or unknown text. Any thread. */
TETHER_API tether_log_level tether_log_level_parse(const char *text);

/* Internal from here on. */
tether_log_level tether__log_level(void);
void tether__log_write(tether_log_level level, const char *area, const char *format, ...)
    TETHER_PRINTF(3, 4);

#define tether__log(level, area, ...)                        \
    do {                                                     \
        if ((level) <= tether__log_level())                  \
            tether__log_write((level), (area), __VA_ARGS__); \
    } while (0)

TETHER_END_DECLS

#endif
