/* The launcher's own lines. */
#include "tools/run/output/console.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static void write_text(struct run_console *console, const char *text)
{
    run_sink_take_line(console->sink, console);
    run_sink_write(console->sink, tether_bytes_str(text));
}

void run_console_clear(struct run_console *console)
{
    if (console->line_open)
        write_text(console, "\r\033[K");
    console->line_open = false;
    console->last[0] = '\0';
}

static void say(struct run_console *console, const char *format, va_list args)
{
    /* the text is escaped, because it may come from other nodes */
    char raw[512], line[1024] = "tether-run: ";
    size_t prefix = strlen(line);
    run_console_clear(console);
    vsnprintf(raw, sizeof raw, format, args);
    tether__text_escape(line + prefix, sizeof line - prefix - 1, tether_bytes_str(raw),
                        TETHER__TEXT_LINE);
    strcat(line, "\n");
    write_text(console, line);
}

void run_console_say(struct run_console *console, const char *format, ...)
{
    va_list args;
    if (console->quiet)
        return;
    va_start(args, format);
    say(console, format, args);
    va_end(args);
}

void run_console_warn(struct run_console *console, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(console, format, args);
    va_end(args);
}

void run_console_progress(struct run_console *console, const char *what, int64_t left_ms)
{
    bool terminal = console->sink->terminal;
    char line[256], left[48] = "";
    if (left_ms >= 0)
        snprintf(left, sizeof left, ", %lld s left", (long long)(left_ms + 999) / 1000);
    snprintf(line, sizeof line, "%s%s", what, left);
    /* compare without the time left, which only a terminal shows */
    const char *news = terminal ? line : what;
    if (console->quiet || strcmp(console->last, news) == 0)
        return;
    snprintf(console->last, sizeof console->last, "%s", news);
    console->line_open = terminal;
    write_text(console, terminal ? "\r\033[Ktether-run: " : "tether-run: ");
    write_text(console, line);
    if (!terminal)
        write_text(console, "\n");
}
