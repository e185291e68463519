/* See results.h. */
#include "bench/lib/results.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/measure.h"

static const char *name;
static FILE *lines;
static double began;
static size_t n_goals, n_met;
static bool line_open; /* the terminal shows a progress line */

struct bench_spread bench_spread_of(double *values, size_t n)
{
    double median = bench_quantile(values, n, 0.5);
    return (struct bench_spread){median, n ? values[0] : 0, n ? values[n - 1] : 0};
}

struct bench_spread bench_single(double value)
{
    return (struct bench_spread){value, value, value};
}

void bench_results_open(const char *bench, const char *tsv)
{
    name = bench;
    began = bench_now_s();
    lines = tsv ? fopen(tsv, "ae") : NULL;
    if (tsv && !lines)
        bench_die(tsv, strerror(errno));
    if (lines)
        setvbuf(lines, NULL, _IOLBF, 0); /* so that no line is lost when the program dies */
}

static void end_progress_line(void)
{
    if (line_open)
        fputs("\r\033[K", stderr);
    line_open = false;
}

/* Formats "12.3", "456,789": four significant figures, or all digits of a larger number. */
static const char *number(double value, char text[32])
{
    int decimals = value < 0.1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0;
    char plain[32];
    snprintf(plain, sizeof plain, "%.*f", decimals, value);
    size_t digits = strcspn(plain, "."), at = 0;
    for (size_t i = 0; plain[i]; i++) {
        if (i > 0 && i < digits && (digits - i) % 3 == 0 && plain[i - 1] != '-')
            text[at++] = ',';
        text[at++] = plain[i];
    }
    text[at] = '\0';
    return text;
}

void bench_result(const struct bench_result *result)
{
    char median[32], lowest[32], highest[32];
    end_progress_line();
    printf("  %-6s %-34s %-24s %10s %-4s (%s to %s)", result->placement, result->figure,
           result->who, number(result->value.median, median), result->unit,
           number(result->value.lowest, lowest), number(result->value.highest, highest));
    if (result->ratio.median > 0)
        printf("  %.2fx", result->ratio.median);
    putchar('\n');
    fflush(stdout);
    if (lines)
        fprintf(lines, "result\t%s\t%s\t%s\t%s\t%s\t%s\t%.6g\t%.6g\t%.6g\n", name, result->figure,
                result->placement, result->who, result->unit,
                result->more_is_better ? "more" : "less", result->value.median,
                result->value.lowest, result->value.highest);
}

bool bench_goal(const struct bench_verdict *verdict)
{
    char median[32], lowest[32], highest[32], limit[32];
    double value = verdict->value.median;
    bool met = verdict->at_least ? value >= verdict->limit : value <= verdict->limit;
    const char *sign = verdict->at_least ? ">=" : "<=";
    n_goals++;
    n_met += met;
    end_progress_line();
    printf("  %-4s %-6s %s: %s%s (%s to %s), goal %s %s\n", met ? "met" : "MISS",
           verdict->placement, verdict->text, number(value, median), verdict->unit,
           number(verdict->value.lowest, lowest), number(verdict->value.highest, highest), sign,
           number(verdict->limit, limit));
    fflush(stdout);
    if (lines)
        fprintf(lines, "goal\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.6g\t%.6g\t%.6g\t%s\t%g\t%.6g\t%s\n",
                name, verdict->text, verdict->placement, verdict->figure, verdict->who,
                verdict->base ? verdict->base : "-", verdict->unit, value, verdict->value.lowest,
                verdict->value.highest, sign, verdict->limit, verdict->at, met ? "yes" : "NO");
    return met;
}

void bench_note(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    end_progress_line();
    printf("  %s\n", text);
    fflush(stdout);
    if (lines)
        fprintf(lines, "note\t%s\t%s\n", name, text);
}

void bench_results_close(void)
{
    end_progress_line();
    if (n_goals > 0)
        printf("%zu of %zu goals met\n", n_met, n_goals);
    if (!lines)
        return;
    fprintf(lines, "took\t%s\t%.0f\n", name, bench_now_s() - began);
    if (fclose(lines) != 0)
        bench_die("writing the results", strerror(errno));
    lines = NULL;
}

void bench_progress(size_t done, size_t all, const char *what)
{
    static double first, last_line;
    const char *step = getenv("BENCH_STEP"), *later = getenv("BENCH_LATER_S");
    double now = bench_now_s();
    if (done == 0 || first == 0) /* with --only, steps before this may have been left out */
        first = now;
    double elapsed = now - first;
    double left = done ? elapsed / (double)done * (double)(all - done) : 0;
    bool terminal = isatty(STDERR_FILENO);
    if (!terminal && now - last_line < 10)
        return;
    last_line = now;
    left += later ? atof(later) : 0;
    fprintf(stderr, "%s[%s%s%s] %3.0f %%, ", terminal ? "\r\033[K" : "", step ? step : "",
            step ? " " : "", name, 100.0 * (double)done / (double)all);
    if (done && elapsed > 2)
        fprintf(stderr, "%d:%02d left, ", (int)left / 60, (int)left % 60);
    fprintf(stderr, "%s%s", what, terminal ? "" : "\n");
    fflush(stderr);
    line_open = terminal;
}
