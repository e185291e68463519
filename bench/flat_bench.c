/* Measures whether costs are flat: the cost of one operation beside few and beside many references,
 * forks, waiting requests, notices, types and workers. Also measures the longest wait of one
 * operation, and the longest time under one lock, while many references are fenced or dumped, or
 * while their table grows.
 *
 *     flat_bench [--only=TEXT] [--rounds=N] [--tsv=FILE]
 *
 * Costs are processor time of this process, in which all workers live: they do not depend on what
 * else the machine does. A pause is the longest wall-clock time of one of many operations; the
 * lowest value of some rounds is reported, since a busy machine adds to it. "Locked" is the longest
 * processor time under one lock during the pause (lib/lock_watch.h): on an idle machine no
 * operation waits longer for the lock.
 */
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "bench/flat.h"
#include "bench/lib/crew.h"
#include "bench/lib/lock_watch.h"
#include "bench/lib/measure.h"
#include "bench/lib/options.h"
#include "bench/lib/results.h"
#include "rendezvous/store.h"
#include "rref/rref.h"

static const struct row {
    const char *figure, *beside, *unit;
    double (*measure)(size_t n);
    size_t few, many;
} rows[] = {
    {"adding a fork", "forks of the object", "ns", flat_add_fork, 3000, 100000},
    {"a creation", "waiting requests", "ns", flat_create_beside_waiting, 10, 16000},
    {"a notice", "notices", "ns", flat_add_notice, 1000, 20000},
    {"a request", "requests on one object", "ns", flat_complete_requests, 1000, 16000},
    {"a call with a typed argument", "types", "ns", flat_pass_typed, 1, 10000},
    {"ending a holder's reference", "holders that die", "ns", flat_end_holders, 1,
     FLAT_MAX_HOLDERS},
    {"giving back at shutdown", "references", "ns", flat_shut_down, 1000, 40000},
    {"a reference whose owner has died", "references", "B", flat_keep_lost, 1000, 100000},
    {"pause: fence of a holder", "references", "ms", flat_pause_of_fence, 1000, 1000000},
    {"pause: owner is lost", "references", "ms", flat_pause_of_lost_owner, 1000, 1000000},
    {"pause: dump", "references", "ms", flat_pause_of_dump, 1000, 1000000},
    {"pause: calls time out", "calls", "ms", flat_pause_of_timeout, 100, 16000},
    {"pause: worker of calls is lost", "calls", "ms", flat_pause_of_lost_calls, 100, 16000},
    {"longest creation", "objects", "ms", flat_longest_creation, 1000, 1000000},
};

static void report(const struct row *row, size_t n, int rounds)
{
    double values[BENCH_MAX_ROUNDS], locked[BENCH_MAX_ROUNDS];
    char who[64], figure[96];
    flat_longest_locked = -1;
    for (int i = 0; i < rounds; i++) {
        values[i] = row->measure(n);
        locked[i] = flat_longest_locked;
    }
    struct bench_spread spread = bench_spread_of(values, (size_t)rounds);
    if (strcmp(row->unit, "ms") == 0)
        spread.median = spread.lowest;
    snprintf(who, sizeof who, "%zu %s", n, row->beside);
    bench_result(&(struct bench_result){
        .figure = row->figure, .placement = "-", .who = who, .unit = row->unit, .value = spread});
    if (flat_longest_locked < 0)
        return;
    struct bench_spread held = bench_spread_of(locked, (size_t)rounds);
    held.median = held.lowest;
    snprintf(figure, sizeof figure, "%s, locked", row->figure);
    bench_result(&(struct bench_result){
        .figure = figure, .placement = "-", .who = who, .unit = "ms", .value = held});
    unsigned long from, to;
    bench_locks_longest_at(&from, &to);
    bench_note("  at: addr2line -ife flat_bench %#lx %#lx", from, to);
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
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        if (!strstr(rows[i].figure, options.only))
            continue;
        bench_progress(i, TETHER__ARRAY_LEN(rows), rows[i].figure);
        report(&rows[i], rows[i].few, options.rounds);
        report(&rows[i], rows[i].many, options.rounds);
    }
    bench_results_close();
    tether_agent_release(flat_client);
    tether_agent_release(flat_owner);
    tether_store_release(flat_store);
    return 0;
}
