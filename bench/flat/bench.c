/* Measures whether costs are flat: the cost of one operation beside few and beside many references,
 * forks, waiting requests, notices, types and workers. Also measures the longest wait of one
 * operation, and the longest time under one lock, while many references are fenced or dumped, or
 * while their table grows.
 *
 *     flat_bench [--only=TEXT] [--rounds=N] [--tsv=FILE]
 *
 * Costs are processor time of this process, in which all workers live: they do not depend on what
 * else the machine does. A pause is the longest wall-clock time of one of many operations. It is
 * only judged where the scheduler kept a thread of ours from running for no more than 1 ms in the
 * same round (lib/scheduler.h). "Locked" is the longest processor time under one lock during the
 * pause (lib/lock_watch.h). It is always judged, since it does not depend on the load. A busy
 * machine adds to both, so the lowest value of some rounds counts.
 */
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "bench/flat/shared.h"
#include "bench/lib/crew.h"
#include "bench/lib/lock_watch.h"
#include "bench/lib/measure.h"
#include "bench/lib/options.h"
#include "bench/lib/results.h"
#include "rendezvous/store.h"
#include "rref/rref.h"

#define MOST_MS 5.0 /* that any operation may wait for another */
#define IDLE_MS 1.0 /* on an idle machine the scheduler takes no longer */

static const struct cost {
    const char *figure, *beside, *unit;
    double (*measure)(size_t n);
    size_t few, many;
} costs[] = {
    {"adding a fork", "forks of the object", "ns", flat_add_fork, 3000, 100000},
    {"a creation", "waiting requests", "ns", flat_create_beside_waiting, 10, 16000},
    {"a notice", "notices", "ns", flat_add_notice, 1000, 20000},
    {"a request", "requests on one object", "ns", flat_complete_requests, 1000, 16000},
    {"a call with a typed argument", "types", "ns", flat_pass_typed, 1, 10000},
    {"ending a holder's reference", "holders that die", "ns", flat_end_holders, 1,
     FLAT_MAX_HOLDERS},
    {"giving back at shutdown", "references", "ns", flat_shut_down, 1000, 40000},
    {"a reference whose owner has died", "references", "B", flat_keep_lost, 1000, 100000},
};

static const struct pause {
    const char *figure, *beside;
    struct flat_pause (*measure)(size_t n);
    size_t few, many;
} pauses[] = {
    {"pause: fence of a holder", "references", flat_pause_of_fence, 1000, 1000000},
    {"pause: owner is lost", "references", flat_pause_of_lost_owner, 1000, 1000000},
    {"pause: dump", "references", flat_pause_of_dump, 1000, 1000000},
    {"pause: objects are created", "objects", flat_pause_of_creations, 1000, 1000000},
    {"pause: calls time out", "calls", flat_pause_of_timeout, 100, 16000},
    {"pause: worker of calls is lost", "calls", flat_pause_of_lost_calls, 100, 16000},
};

static void report_cost(const struct cost *cost, size_t n, int rounds)
{
    double values[BENCH_MAX_ROUNDS];
    char who[64];
    for (int i = 0; i < rounds; i++)
        values[i] = cost->measure(n);
    snprintf(who, sizeof who, "%zu %s", n, cost->beside);
    bench_result(&(struct bench_result){.figure = cost->figure,
                                        .placement = "-",
                                        .who = who,
                                        .unit = cost->unit,
                                        .value = bench_spread_of(values, (size_t)rounds)});
}

/* ---- Pauses ---- */

/* The times of the rounds. */
struct times {
    double ms[BENCH_MAX_ROUNDS];
    size_t n;
};

static void add(struct times *times, double ms)
{
    times->ms[times->n++] = ms;
}

/* Reports the lowest time, and returns it in place of the median. */
static struct bench_spread report_times(const char *figure, const char *who, struct times *times)
{
    struct bench_spread spread = bench_spread_of(times->ms, times->n);
    spread.median = spread.lowest;
    bench_result(&(struct bench_result){
        .figure = figure, .placement = "-", .who = who, .unit = "ms", .value = spread});
    return spread;
}

static void judge(const char *figure, const char *who, struct bench_spread value)
{
    char text[192];
    snprintf(text, sizeof text, "%s, %s", figure, who);
    bench_goal(&(struct bench_verdict){.text = text,
                                       .placement = "-",
                                       .figure = figure,
                                       .who = who,
                                       .unit = "ms",
                                       .value = value,
                                       .limit = MOST_MS,
                                       .at = MOST_MS});
}

static void report_pause(const struct pause *pause, size_t n, int rounds)
{
    struct times calls = {.n = 0}, creations = {.n = 0}, locked = {.n = 0}, scheduler = {.n = 0};
    struct times idle = {.n = 0};
    char who[64], figure[96];
    for (int i = 0; i < rounds; i++) {
        struct flat_pause now = pause->measure(n);
        add(&calls, now.call_ms);
        add(&creations, now.creation_ms);
        add(&locked, now.locked_ms);
        add(&scheduler, now.scheduler_ms);
        if (now.scheduler_ms <= IDLE_MS)
            add(&idle, now.call_ms > now.creation_ms ? now.call_ms : now.creation_ms);
    }
    snprintf(who, sizeof who, "%zu %s", n, pause->beside);
    snprintf(figure, sizeof figure, "%s, a call", pause->figure);
    report_times(figure, who, &calls);
    snprintf(figure, sizeof figure, "%s, a creation", pause->figure);
    report_times(figure, who, &creations);
    snprintf(figure, sizeof figure, "%s, scheduler", pause->figure);
    report_times(figure, who, &scheduler);
    if (idle.n > 0) {
        struct bench_spread longest = bench_spread_of(idle.ms, idle.n);
        longest.median = longest.lowest;
        judge(pause->figure, who, longest);
    } else {
        bench_note("%s, %s: the clock is not judged, the machine was busy", pause->figure, who);
    }
    snprintf(figure, sizeof figure, "%s, locked", pause->figure);
    judge(figure, who, report_times(figure, who, &locked));
    unsigned long from, to;
    bench_locks_longest_at(&from, &to);
    bench_note("  at: addr2line -ife flat_bench %#lx %#lx", from, to);
}

static void report_all(const struct bench_options *options)
{
    size_t all = TETHER__ARRAY_LEN(costs) + TETHER__ARRAY_LEN(pauses);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(costs); i++) {
        if (!strstr(costs[i].figure, options->only))
            continue;
        bench_progress(i, all, costs[i].figure);
        report_cost(&costs[i], costs[i].few, options->rounds);
        report_cost(&costs[i], costs[i].many, options->rounds);
    }
    for (size_t i = 0; i < TETHER__ARRAY_LEN(pauses); i++) {
        if (!strstr(pauses[i].figure, options->only))
            continue;
        bench_progress(TETHER__ARRAY_LEN(costs) + i, all, pauses[i].figure);
        report_pause(&pauses[i], pauses[i].few, options->rounds);
        report_pause(&pauses[i], pauses[i].many, options->rounds);
    }
}

int main(int argc, char **argv)
{
    struct bench_options options = {.only = "", .rounds = 3, .seconds = 1};
    tether_error err = {0};
    bench_options_read(argc, argv, &options);
    /* When a million blocks have been freed, glibc's malloc later merges them for 10 to 40 ms, in
     * any thread. That time is not the library's: make malloc merge blocks one by one and keep
     * them. */
    mallopt(M_MXFAST, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    bench_results_open("flat", options.tsv);
    bench_check(tether_store_hash_new(&flat_store, &err), &err);
    flat_client = flat_join("client", &flat_keepers[0], NULL, 0);
    flat_owner = flat_join("owner", &flat_keepers[1], NULL, 0);
    report_all(&options);
    bench_results_close();
    tether_agent_release(flat_client);
    tether_agent_release(flat_owner);
    tether_store_release(flat_store);
    return 0;
}
