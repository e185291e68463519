/* Writes log lines to standard error or to the application's hook. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "base/trace_internal.h"

/* Room for the text after a message: " [trace …]" and the NUL. */
#define TRACE_ROOM (TETHER_TRACE_TEXT_SIZE + 10)

#define TIME_SIZE 64 /* size of a text like "2026-01-31T23:59:59.123Z", with room for any int */

static const char *const level_names[] = {"none", "error", "warn", "info", "debug", "trace"};

static _Atomic int level_in_force = -1; /* -1: TETHER_LOG has not been read yet */
static tether_log_fn *hook;             /* written before threads start, see tether_set_log() */
static void *hook_userdata;

tether_log_level tether_log_level_parse(const char *text)
{
    for (size_t i = 0; text && i < TETHER__ARRAY_LEN(level_names); i++)
        if (strcmp(text, level_names[i]) == 0)
            return (tether_log_level)i;
    return TETHER_LOG_NONE;
}

void tether_set_log(tether_log_level level, tether_log_fn *fn, void *userdata)
{
    hook = fn;
    hook_userdata = userdata;
    atomic_store_explicit(&level_in_force, (int)level, memory_order_release);
}

/* Report a misspelt level: otherwise the user would get no log and no reason. */
static void report_unknown(const char *text)
{
    char shown[64];
    tether__text_escape(shown, sizeof shown, tether_bytes_str(text), TETHER__TEXT_LINE);
    fprintf(stderr,
            "tether: TETHER_LOG=%s is not a log level and nothing is logged; use none, error, "
            "warn, info, debug or trace\n",
            shown);
}

tether_log_level tether__log_level(void)
{
    int level = atomic_load_explicit(&level_in_force, memory_order_acquire);
    if (level < 0) {
        int unread = -1;
        const char *text = getenv("TETHER_LOG");
        level = (int)tether_log_level_parse(text);
        if (!atomic_compare_exchange_strong(&level_in_force, &unread, level))
            level = unread;
        else if (text && *text && level == TETHER_LOG_NONE && strcmp(text, "none") != 0)
            report_unknown(text);
    }
    return (tether_log_level)level;
}

/* Writes the time as "2026-01-31T23:59:59.123Z" (RFC 3339, UTC), which is the same wherever the
 * workers are. */
static void print_time(char text[TIME_SIZE])
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    if (!gmtime_r(&now.tv_sec, &utc))
        utc = (struct tm){.tm_year = 70, .tm_mday = 1};
    snprintf(text, TIME_SIZE, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", (utc.tm_year + 1900) % 10000,
             utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
             (int)(now.tv_nsec / 1000000));
}

void tether__log_write(tether_log_level level, const char *area, const char *format, ...)
{
    /* escape the message, because it may contain text of a peer or a store */
    char raw[1024], message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw - TRACE_ROOM, format, args);
    va_end(args);
    tether__text_escape(message, sizeof message - TRACE_ROOM, tether_bytes_str(raw),
                        TETHER__TEXT_LINE);
    if (tether__trace_is_set(&tether__trace)) {
        char trace[TETHER_TRACE_TEXT_SIZE];
        tether_trace_format(tether__trace, trace);
        snprintf(message + strlen(message), TRACE_ROOM, " [trace %s]", trace);
    }
    if (hook) {
        hook(hook_userdata, level, area, message);
        return;
    }
    char now[TIME_SIZE];
    print_time(now);
    fprintf(stderr, "%s tether %s %s: %s\n", now, level_names[level], area, message);
}
