/* Compares the TCP store with Redis in one run, and with PyTorch's TCPStore if it is installed.
 *
 * measure.c describes how the two take turns. Processes are pinned: "same", servers and
 * clients on one CPU, and "split", the servers on another. Redis runs without persistence; both use
 * loopback TCP without delay. A ratio above 1 means that Tether is better.
 *
 *     store_bench [--tsv=FILE] [--rounds=N] [--only=TEXT]
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "bench/lib/measure.h"
#include "bench/lib/options.h"
#include "bench/lib/results.h"
#include "bench/store/measure.h"

#define LEN(array) (sizeof(array) / sizeof(array)[0])

enum { TETHER, REDIS };
static const struct store_peer *const peers[] = {&store_peer_tether, &store_peer_redis};

static const struct figure {
    const char *name, *unit;
    enum store_kind kind;
    int arg, procs;
    bool less_is_better;
    double goal; /* of the ratio; of Tether's own value for IDLE and MEMORY */
} figures[] = {
    {"set with ack, 1 client", "/s", STORE_RATE, OP_SET, 1, false, 1.0},
    {"get, 1 client", "/s", STORE_RATE, OP_GET, 1, false, 1.0},
    {"add, 1 client", "/s", STORE_RATE, OP_ADD, 1, false, 1.0},
    {"set with ack, 8 processes", "/s", STORE_RATE, OP_SET, 8, false, 1.0},
    {"get, 8 processes", "/s", STORE_RATE, OP_GET, 8, false, 1.0},
    {"add, 8 processes", "/s", STORE_RATE, OP_ADD, 8, false, 1.0},
    {"64 pipelined sets", "/s", STORE_RATE, OP_BATCH, 1, false, 1.0},
    {"set to wake", "us", STORE_WAKE, 0, 1, true, 1.0},
    {"barrier of 8", "us", STORE_BARRIER, 8, 1, true, 1.0},
    {"barrier of 32", "us", STORE_BARRIER, 32, 1, true, 1.0},
    {"barrier of 128", "us", STORE_BARRIER, 128, 1, true, 2.0},
    {"rate left among 5,000 idle", "%", STORE_IDLE, 0, 1, false, 90},
    {"memory of a key beside its own", "B", STORE_MEMORY, 0, 1, true, 150},
};

static bool is_absolute(const struct figure *figure)
{
    return figure->kind == STORE_IDLE || figure->kind == STORE_MEMORY;
}

/* ---- PyTorch -------------------------------------------------------------------------------- */

#define PYTHON "/usr/bin/python3" /* Debian's Python, which finds Debian's packages */
#define SCRIPT "bench/store/pytorch.py"

struct torch_figure {
    char name[64];
    double value;
};

static struct torch_figure torch_figures[2][8]; /* by placement */

static void measure_torch(int split)
{
    char command[128], line[128];
    snprintf(command, sizeof command, PYTHON " " SCRIPT " 0 %d 2>/dev/null", split);
    FILE *output = popen(command, "r");
    for (int i = 0; output && i < 8 && fgets(line, sizeof line, output); i++)
        sscanf(line, "%63[^\t]\t%lf", torch_figures[split][i].name, &torch_figures[split][i].value);
    if (output)
        pclose(output);
}

/* 0: not measured. */
static double torch_value(const char *name, int split)
{
    for (int i = 0; i < 8; i++)
        if (strcmp(torch_figures[split][i].name, name) == 0)
            return torch_figures[split][i].value;
    return 0;
}

/* ---- Running and reporting ------------------------------------------------------------------- */

static void report_value(const struct figure *figure,
                         int split,
                         const char *who,
                         struct bench_spread value)
{
    bench_result(&(struct bench_result){.figure = figure->name,
                                        .placement = split ? "split" : "same",
                                        .who = who,
                                        .unit = figure->unit,
                                        .more_is_better = !figure->less_is_better,
                                        .value = value});
}

/* A ratio above 1 means that Tether is better. */
static void report_goal(const struct figure *figure,
                        int split,
                        struct bench_spread tether,
                        struct bench_spread redis,
                        struct bench_spread ratio)
{
    char text[96];
    bool absolute = is_absolute(figure);
    double at = figure->less_is_better ? redis.median / figure->goal : redis.median * figure->goal;
    snprintf(text, sizeof text, absolute ? "%s" : "%s, times better than Redis", figure->name);
    bench_goal(&(struct bench_verdict){.text = text,
                                       .placement = split ? "split" : "same",
                                       .figure = figure->name,
                                       .who = "Tether",
                                       .base = absolute ? NULL : "Redis",
                                       .unit = absolute ? figure->unit : "x",
                                       .value = absolute ? tether : ratio,
                                       .at_least = !absolute || !figure->less_is_better,
                                       .limit = figure->goal,
                                       .at = absolute ? figure->goal : at});
}

static void run_figure(const struct figure *figure, int split, int rounds)
{
    double values[2][BENCH_MAX_ROUNDS], ratios[BENCH_MAX_ROUNDS];
    store_place(split);
    for (int round = 0; round < rounds; round++) {
        double now[2] = {0};
        store_measure(figure->kind, figure->arg, figure->procs, peers, now);
        values[TETHER][round] = now[TETHER];
        values[REDIS][round] = now[REDIS];
        double ratio = now[TETHER] / now[REDIS];
        ratios[round] = figure->less_is_better ? 1 / ratio : ratio;
    }
    struct bench_spread tether = bench_spread_of(values[TETHER], (size_t)rounds);
    struct bench_spread redis = bench_spread_of(values[REDIS], (size_t)rounds);
    report_value(figure, split, "Tether", tether);
    report_value(figure, split, "Redis", redis);
    double torch = torch_value(figure->name, split);
    if (torch > 0)
        report_value(figure, split, "PyTorch TCPStore", bench_single(torch));
    report_goal(figure, split, tether, redis, bench_spread_of(ratios, (size_t)rounds));
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < STORE_IDLE_CLIENTS + 100)
        bench_die("5,000 clients need more descriptors", "raise `ulimit -n`");
}

int main(int argc, char **argv)
{
    struct bench_options options = {.only = "", .rounds = 5, .seconds = 1};
    bench_options_read(argc, argv, &options);
    raise_descriptor_limit();
    signal(SIGPIPE, SIG_IGN);
    bench_results_open("store", options.tsv);
    bench_progress(0, 2 * LEN(figures), "PyTorch's TCPStore");
    for (int split = 0; split < 2; split++)
        measure_torch(split);
    if (torch_value("get, 1 client", 0) == 0)
        bench_note("not installed: PyTorch's TCPStore (python3-torch)");
    for (size_t i = 0; i < LEN(figures); i++) {
        bool once = figures[i].kind == STORE_MEMORY; /* memory is measured once, without turns */
        if (!strstr(figures[i].name, options.only))
            continue;
        for (int split = 0; split <= !once; split++) {
            bench_progress(2 * i + (size_t)split, 2 * LEN(figures), figures[i].name);
            run_figure(&figures[i], split, once ? 1 : options.rounds);
        }
    }
    bench_results_close();
    return 0;
}
