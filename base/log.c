/* Where a log line goes: nowhere, to standard error, or to the application's hook. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/trace_internal.h"

/* Behind a message: " [trace …]", and the NUL. */
#define TRACE_ROOM (TETHER_TRACE_TEXT_SIZE + 10)

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

tether_log_level tether__log_level(void)
{
    int level = atomic_load_explicit(&level_in_force, memory_order_acquire);
    if (level < 0) {
        int unread = -1;
        level = (int)tether_log_level_parse(getenv("TETHER_LOG"));
        if (!atomic_compare_exchange_strong(&level_in_force, &unread, level))
            level = unread;
    }
    return (tether_log_level)level;
}

void tether__log_write(tether_log_level level, const char *area, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message - TRACE_ROOM, format, args);
    va_end(args);
    if (tether__trace_is_set(&tether__trace)) {
        char trace[TETHER_TRACE_TEXT_SIZE];
        tether_trace_format(tether__trace, trace);
        snprintf(message + strlen(message), TRACE_ROOM, " [trace %s]", trace);
    }
    if (hook)
        hook(hook_userdata, level, area, message);
    else
        fprintf(stderr, "tether %s %s: %s\n", level_names[level], area, message);
}
