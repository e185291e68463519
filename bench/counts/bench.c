/* Counts the costs of an operation that do not depend on the load of the machine: instructions,
 * system calls and context switches, at both ends together.
 *
 *     counts_bench [--record] [--tsv=FILE] [--rounds=N] [--only=TEXT]
 *
 * Compares with the recorded counts in bench/counts/record.tsv; --record replaces these. The
 * workers of an operation ("client", "owner", "third") are agents of one process, without spin, so
 * that one count covers them all. Context switches are counted on one CPU.
 *
 * Threads run in a fixed order where this process may have a real-time priority. Then counts repeat
 * within one per cent. Otherwise counts that depend on the order are reported and not judged. The
 * median of some rounds is reported.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/counts/ops.h"
#include "bench/lib/counts.h"
#include "bench/lib/measure.h"
#include "bench/lib/options.h"
#include "bench/lib/results.h"

#define RECORD "bench/counts/record.tsv"
/* Three workers wake each other in more than one order. */
#define INSTRUCTIONS_THREE_NETWORK 1.08
#define SYSTEM_CALLS_THREE 1.05
#define LEAST 1
#define MAX_LINES 64
#define MAX_TIMES 3

enum { INSTRUCTIONS, SYSTEM_CALLS, SWITCHES, N_COUNTERS };

/* The goals are above what the medians of 3 rounds waver by. Lowest to highest of single counts,
 * with a load of 70 on 2 CPUs: instructions 0.5 %, system calls 2 %, context switches 0.2 %. System
 * calls waver most, since strace stops a thread at each of them and another runs meanwhile. With
 * three workers: 0.3 % (7 % by network), 6 % and 1 %. */
static const struct {
    const char *name, *unit;
    double (*count)(const char *program, const char *row, long rounds);
    const char *needs;
    int share;         /* counts one in so many of an operation's rounds */
    int times;         /* counts per round, more for cheap counters; at most MAX_TIMES */
    double most_above; /* the goal, times the recorded count */
} counters[N_COUNTERS] = {
    [INSTRUCTIONS] = {"instructions", "", bench_instructions, "valgrind", 1, 1, 1.02},
    [SYSTEM_CALLS] = {"system calls", "", bench_system_calls, "strace, and the right to trace", 2,
                      3, 1.03},
    [SWITCHES] = {"context switches", "", bench_number_from, "nothing", 1, 3, 1.02},
};

static const char *const ways[] =
    {[COUNTS_LOCAL] = "local", [COUNTS_NETWORK] = "network", [COUNTS_HERE] = "-"};

/* ---- The recorded counts ---- */

struct record {
    char operation[64];
    double values[N_COUNTERS];
};

static struct record records[MAX_LINES];
static size_t n_records;

static void read_records(void)
{
    char line[256];
    FILE *file = fopen(RECORD, "re");
    while (file && n_records < MAX_LINES && fgets(line, sizeof line, file)) {
        struct record *record = &records[n_records];
        n_records += sscanf(line, "%63[^\t]\t%lf\t%lf\t%lf", record->operation, &record->values[0],
                            &record->values[1], &record->values[2]) == 4;
    }
    if (file)
        fclose(file);
}

/* "call, 64 B, local" */
static void name_on_record(const struct counts_op *op, char ret_name[64])
{
    bool here = op->way == COUNTS_HERE;
    snprintf(ret_name, 64, "%s%s%s", op->words, here ? "" : ", ", here ? "" : ways[op->way]);
}

static const struct record *recorded(const char *operation)
{
    for (size_t i = 0; i < n_records; i++)
        if (strcmp(records[i].operation, operation) == 0)
            return &records[i];
    return NULL;
}

static void write_records(const struct record *all, size_t n)
{
    FILE *file = fopen(RECORD, "we");
    if (!file)
        bench_die(RECORD, strerror(errno));
    fputs("operation\tinstructions\tsystem calls\tcontext switches\n", file);
    for (size_t i = 0; i < n; i++)
        fprintf(file, "%s\t%.0f\t%.2f\t%.2f\n", all[i].operation, all[i].values[INSTRUCTIONS],
                all[i].values[SYSTEM_CALLS], all[i].values[SWITCHES]);
    if (fclose(file) != 0)
        bench_die(RECORD, strerror(errno));
}

/* ---- Counting and comparing ---- */

static struct bench_spread count(const char *program,
                                 const struct counts_op *op,
                                 int counter,
                                 int rounds)
{
    double values[MAX_TIMES * BENCH_MAX_ROUNDS];
    size_t n = 0;
    for (int i = 0; i < rounds * counters[counter].times; i++) {
        double value =
            counters[counter].count(program, op->name, op->rounds / counters[counter].share);
        if (value >= 0)
            values[n++] = value / op->per_round;
    }
    return n ? bench_spread_of(values, n) : bench_single(-1);
}

static bool in_order;

static double most_above_record(const struct counts_op *op, int counter)
{
    bool three = strstr(op->words, "third");
    if (three && counter == INSTRUCTIONS && op->way == COUNTS_NETWORK)
        return INSTRUCTIONS_THREE_NETWORK;
    if (three && counter == SYSTEM_CALLS)
        return SYSTEM_CALLS_THREE;
    return counters[counter].most_above;
}

static void report(const struct counts_op *op,
                   int counter,
                   struct bench_spread value,
                   double before)
{
    char figure[96], text[128];
    snprintf(figure, sizeof figure, "%s: %s", op->words, counters[counter].name);
    struct bench_result result = {.figure = figure,
                                  .placement = ways[op->way],
                                  .who = "now",
                                  .unit = counters[counter].unit,
                                  .value = value};
    bench_result(&result);
    if (before <= 0)
        return;
    result.who = "on record";
    result.value = bench_single(before);
    bench_result(&result);
    if (!in_order || before < LEAST) /* below: depends on the timing of threads in any case */
        return;
    double most_above = most_above_record(op, counter);
    snprintf(text, sizeof text, "%s, %+.1f %%", figure, (value.median / before - 1) * 100);
    bench_goal(&(struct bench_verdict){
        .text = text,
        .placement = ways[op->way],
        .figure = figure,
        .who = "now",
        .base = "on record",
        .unit = "x",
        .value = {value.median / before, value.lowest / before, value.highest / before},
        .limit = most_above,
        .at = before * most_above});
}

static void run_all(const char *program, const struct bench_options *options, bool record)
{
    struct record now[MAX_LINES] = {0};
    size_t n = 0;
    for (size_t i = 0; i < counts_n_ops; i++) {
        const struct counts_op *op = &counts_ops[i];
        char name[64];
        name_on_record(op, name);
        const struct record *before = recorded(name);
        if (!strstr(name, options->only)) {
            if (before)
                now[n++] = *before; /* stays on record */
            continue;
        }
        snprintf(now[n].operation, sizeof now[n].operation, "%s", name);
        for (int c = 0; c < N_COUNTERS; c++) {
            char what[128];
            snprintf(what, sizeof what, "%s: %s", name, counters[c].name);
            bench_progress(i * N_COUNTERS + (size_t)c, counts_n_ops * N_COUNTERS, what);
            struct bench_spread value = count(program, op, c, options->rounds);
            now[n].values[c] = value.median;
            if (value.median < 0)
                bench_note("can't count %s (needs %s)", counters[c].name, counters[c].needs);
            else
                report(op, c, value, before ? before->values[c] : 0);
        }
        n++;
    }
    if (record)
        write_records(now, n);
}

int main(int argc, char **argv)
{
    char program[4096] = "";
    bool record = argc > 1 && strcmp(argv[1], "--record") == 0;
    if (argc == 3 && argv[1][0] != '-')
        return counts_op_main(argv[1], strtol(argv[2], NULL, 10));
    struct bench_options options = {.only = "", .rounds = 1, .seconds = 1};
    bench_options_read(argc - record, argv + record, &options);
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        bench_die("finding this program", strerror(errno));
    read_records();
    bench_results_open("counts", options.tsv);
    in_order = bench_count_in_order();
    if (!in_order)
        bench_note("counts are not judged: the order of threads needs a real-time priority");
    if (record && !in_order)
        bench_die("recording counts", "the order of threads needs a real-time priority");
    run_all(program, &options, record);
    bench_results_close();
    return 0;
}
