/* Measures whether costs are flat: the cost of one operation beside few and beside many references,
 * forks, waiting requests, notices, types and workers. Also measures the longest wait of one
 * operation, and the longest time under one lock, while many references are fenced or dumped, or
 * while their table grows.
 *
 *     flat_bench [--only=TEXT] [--rounds=N] [--tsv=FILE]
 *
 * Costs are processor time of this process, in which all workers live: they do not depend on what
 * else the machine does. A pause is the longest of many operations by the clock on the wall, and
 * the least of some rounds: a busy machine adds to it. "Locked" is the longest processor time under
 * one lock meanwhile (lib/lock_watch.h): no operation waits longer for the lock on an idle machine.
 */
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/macros.h"
#include "bench/flat_calls.h"
#include "bench/lib/crew.h"
#include "bench/lib/lock_watch.h"
#include "bench/lib/measure.h"
#include "bench/lib/options.h"
#include "bench/lib/results.h"
#include "rendezvous/store.h"
#include "rref/rref.h"

#define TIMEOUT_MS 600000
#define OPERATIONS 500
#define PER_MESSAGE 1000 /* references on one value */
#define MOST_KEPT 1000000
#define MOST_HOLDERS 32

static tether_store *store;
static tether_agent *client, *owner;

/* ---- Workers ---- */

/* The values that a worker keeps. */
struct keeper {
    tether_value **values; /* that have references attached */
    size_t n;
    tether_reply *held;
};

static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    struct keeper *keeper = userdata;
    (void)ret_value, (void)reterr;
    keeper->values[keeper->n++] = tether_value_retain((tether_value *)arg);
    return TETHER_OK;
}

static tether_status drop(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    struct keeper *keeper = userdata;
    (void)arg, (void)ret_value, (void)reterr;
    while (keeper->n > 0)
        tether_value_release(keeper->values[--keeper->n]);
    return TETHER_OK;
}

static void hold(void *userdata, const tether_value *arg, tether_reply *reply)
{
    struct keeper *keeper = userdata;
    (void)arg;
    keeper->held = reply;
}

static tether_agent *join_with_types(const char *name,
                                     struct keeper *keeper,
                                     const tether_type *types,
                                     size_t n_types)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    keeper->values = calloc(MOST_KEPT / PER_MESSAGE + 1000, sizeof(tether_value *));
    bench_check(tether_agent_new(
                    TETHER_AGENT_OPTS(.name = name, .store = store, .threads = 2, .spin_us = -1,
                                      .lease_ms = 20000, .max_calls_per_peer = 100000,
                                      .max_bytes_per_peer = (size_t)1 << 30),
                    &agent, &err),
                &err);
    bench_crew_serve_calls(agent);
    flat_calls_register(agent);
    bench_check(tether_agent_register_inline(agent, "keep", keep, keeper, &err), &err);
    bench_check(tether_agent_register_inline(agent, "drop", drop, keeper, &err), &err);
    bench_check(tether_agent_register_async(agent, "hold", hold, true, keeper, &err), &err);
    for (size_t i = 0; i < n_types; i++)
        bench_check(tether_agent_register_type(agent, &types[i], &err), &err);
    bench_check(tether_agent_start(agent, &err), &err);
    return agent;
}

static tether_agent *join(const char *name, struct keeper *keeper)
{
    return join_with_types(name, keeper, NULL, 0);
}

static struct keeper keepers[2 + MOST_HOLDERS];

static void call(tether_agent *from, const char *to, const char *fn, const tether_value *arg)
{
    tether_error err = {0};
    tether_value *result = NULL;
    bench_check(tether_rpc_sync(from, to, fn, arg, TIMEOUT_MS, &result, &err), &err);
    tether_value_release(result);
}

/* Names a worker that joins for one measurement. A name that comes twice is a restart, which fences
 * the worker before. */
static void next_name(char ret_name[16])
{
    static unsigned n;
    snprintf(ret_name, 16, "w%u", n++);
}

static double cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* ---- Costs ---- */

static tether_rref *own_object(tether_agent *agent)
{
    tether_value *value = NULL;
    tether_rref *rref = NULL;
    tether_error err = {0};
    bench_check(tether_value_new(tether_bytes_str("x"), &value, &err), &err);
    bench_check(tether_rref_new(agent, value, &rref, &err), &err);
    tether_value_release(value);
    return rref;
}

/* Has `to` hold `n` references more to what `rref` refers to, or each to an object of its own. */
static void lend(tether_agent *from, const char *to, tether_rref *rref, size_t n)
{
    tether_error err = {0};
    for (size_t sent = 0; sent < n; sent += PER_MESSAGE) {
        tether_value *value = NULL;
        bench_check(tether_value_new(tether_bytes_str(""), &value, &err), &err);
        for (size_t i = 0; i < PER_MESSAGE && sent + i < n; i++) {
            tether_rref *one = rref ? tether_rref_retain(rref) : own_object(from);
            bench_check(tether_value_attach(value, one, &err), &err);
            tether_rref_release(one);
        }
        call(from, to, "keep", value);
        tether_value_release(value);
    }
}

static void wait_until_empty(tether_agent *agent)
{
    while (tether_rref_counts(agent).forks > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static double add_fork(size_t n)
{
    tether_rref *rref = own_object(owner);
    lend(owner, "client", rref, n);
    double before = cpu_ns();
    lend(owner, "client", rref, PER_MESSAGE);
    double cost = (cpu_ns() - before) / PER_MESSAGE;
    call(owner, "client", "drop", NULL);
    wait_until_empty(owner);
    tether_rref_release(rref);
    return cost;
}

/* An object that is made when end_making() says so, with `n` requests that wait for it. */
static tether_future **begin_making(size_t n, tether_rref **ret_rref)
{
    tether_future **futures = calloc(n + 1, sizeof(tether_future *));
    *ret_rref = tether_remote(client, "owner", "hold", NULL, TIMEOUT_MS);
    for (size_t i = 0; i < n; i++)
        futures[i] = tether_rref_to_here_async(*ret_rref, TIMEOUT_MS);
    while (tether_rref_counts(owner).pending_owners < n)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return futures;
}

static void end_making(size_t n, tether_future **futures, tether_rref *rref)
{
    tether_error err = {0};
    tether_reply_ok(keepers[1].held, NULL);
    for (size_t i = 0; i < n; i++) {
        bench_check(tether_future_wait(futures[i], TIMEOUT_MS, NULL, &err), &err);
        tether_future_release(futures[i]);
    }
    free(futures);
    tether_rref_release(rref);
}

static double create_beside_waiting(size_t n)
{
    tether_rref *rref;
    tether_future **futures = begin_making(n, &rref);
    double before = cpu_ns();
    for (int i = 0; i < OPERATIONS; i++)
        tether_rref_release(tether_remote(client, "owner", "echo", NULL, TIMEOUT_MS));
    call(client, "owner", "nothing", NULL);
    double cost = (cpu_ns() - before) / OPERATIONS;
    end_making(n, futures, rref);
    return cost;
}

static double complete_requests(size_t n)
{
    tether_rref *rref;
    double before = cpu_ns();
    tether_future **futures = begin_making(n, &rref);
    end_making(n, futures, rref);
    return (cpu_ns() - before) / (double)n;
}

static void on_lost(tether_rref *rref, void *userdata)
{
    (void)rref, (void)userdata;
}

static double add_notice(size_t n)
{
    tether_error err = {0};
    tether_rref *rref = tether_remote(client, "owner", "echo", NULL, TIMEOUT_MS);
    double before = 0;
    for (size_t i = 0; i < n + OPERATIONS; i++) {
        if (i == n)
            before = cpu_ns();
        bench_check(tether_rref_on_owner_lost(rref, on_lost, NULL, &err), &err);
    }
    double cost = (cpu_ns() - before) / OPERATIONS;
    tether_rref_release(rref);
    return cost;
}

static tether_status serialise(const void *object, tether_buf *ret_bytes, tether_error *reterr)
{
    (void)reterr;
    return tether_buf_append(ret_bytes, tether_bytes_str(object));
}

static tether_status deserialise(tether_bytes bytes, void **ret_object, tether_error *reterr)
{
    (void)bytes, (void)reterr;
    *ret_object = "x";
    return TETHER_OK;
}

/* A call with an object of one of `n` types that the receiver knows. */
static double pass_typed(size_t n)
{
    tether_type *types = calloc(n, sizeof *types);
    char(*names)[16] = calloc(n, sizeof *names), worker[16];
    tether_value *value = NULL;
    tether_error err = {0};
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "type%zu", i);
        types[i] = (tether_type){names[i], NULL, serialise, deserialise};
    }
    next_name(worker);
    tether_agent *agent = join_with_types(worker, &keepers[2], types, n);
    bench_check(tether_value_new_object(&types[n / 2], "x", &value, &err), &err);
    call(client, worker, "nothing", value);
    double before = cpu_ns();
    for (int i = 0; i < OPERATIONS; i++)
        call(client, worker, "nothing", value);
    double cost = (cpu_ns() - before) / OPERATIONS;
    tether_value_release(value);
    tether_agent_release(agent);
    free(keepers[2].values);
    free(types);
    free(names);
    return cost;
}

/* A million references, in equal shares of workers that die together. */
static double end_holders(size_t n_holders)
{
    const size_t n = MOST_KEPT;
    tether_agent *holders[MOST_HOLDERS];
    char name[16];
    for (size_t i = 0; i < n_holders; i++) {
        next_name(name);
        holders[i] = join(name, &keepers[2 + i]);
        lend(owner, name, NULL, n / n_holders);
    }
    double before = cpu_ns(); /* both ends: the owner notices while the others still stop */
    for (size_t i = 0; i < n_holders; i++)
        tether_agent_release(holders[i]);
    wait_until_empty(owner);
    double cost = (cpu_ns() - before) / (double)n;
    for (size_t i = 0; i < n_holders; i++) {
        drop(&keepers[2 + i], NULL, NULL, NULL);
        free(keepers[2 + i].values);
    }
    return cost;
}

/* A graceful shutdown of a worker that holds `n` references: for each. */
static double shut_down(size_t n)
{
    char name[16];
    next_name(name);
    tether_agent *agent = join(name, &keepers[2]);
    lend(owner, name, NULL, n);
    double before = cpu_ns();
    tether_agent_shutdown(agent, true, NULL);
    double cost = (cpu_ns() - before) / (double)n;
    tether_agent_release(agent);
    drop(&keepers[2], NULL, NULL, NULL);
    free(keepers[2].values);
    wait_until_empty(owner);
    return cost;
}

/* Bytes on the heap for each of `n` references whose owner has died. */
static double keep_lost(size_t n)
{
    char name[16];
    next_name(name);
    malloc_trim(0);
    size_t before = mallinfo2().uordblks;
    tether_agent *lost = join(name, &keepers[2]);
    lend(lost, "client", NULL, n);
    tether_agent_release(lost);
    free(keepers[2].values);
    while (tether_rref_counts(client).confirmed_users > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    double bytes = (double)(mallinfo2().uordblks - before) / (double)n;
    call(owner, "client", "drop", NULL);
    return bytes;
}

/* ---- Pauses ---- */

static double longest_locked; /* of the last measurement; below 0: it was none of these */

static _Atomic bool stop_looking;
static tether_agent *looked_at;

/* The longest of operations that need the context's lock, in milliseconds. */
static void *look(void *ret_longest)
{
    double longest = 0;
    while (!atomic_load(&stop_looking)) {
        double before = bench_now_s();
        tether_rref *rref = own_object(looked_at);
        tether_rref_weak *weak = tether_rref_weak_new(rref); /* it is in the table now */
        tether_rref_weak_release(weak);
        tether_rref_release(rref);
        double took = (bench_now_s() - before) * 1e3;
        if (took > longest)
            longest = took;
    }
    *(double *)ret_longest = longest;
    return NULL;
}

static double longest_during(tether_agent *agent, void (*work)(void *userdata), void *userdata)
{
    pthread_t thread;
    double longest = 0;
    looked_at = agent;
    atomic_store(&stop_looking, false);
    pthread_create(&thread, NULL, look, &longest);
    bench_locks_watch(true);
    work(userdata);
    longest_locked = bench_locks_longest_ms();
    bench_locks_watch(false);
    atomic_store(&stop_looking, true);
    pthread_join(thread, NULL);
    return longest;
}

static void end_holder(void *agent)
{
    tether_agent_release(agent);
    wait_until_empty(owner);
}

static double pause_of_fence(size_t n)
{
    char name[16];
    next_name(name);
    tether_agent *holder = join(name, &keepers[2]);
    lend(owner, name, NULL, n);
    double longest = longest_during(owner, end_holder, holder);
    drop(&keepers[2], NULL, NULL, NULL);
    free(keepers[2].values);
    return longest;
}

static void end_owner(void *agent)
{
    tether_agent_release(agent);
    while (tether_rref_counts(client).confirmed_users > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static double pause_of_lost_owner(size_t n)
{
    char name[16];
    next_name(name);
    tether_agent *lost = join(name, &keepers[2]);
    lend(lost, "client", NULL, n);
    double longest = longest_during(client, end_owner, lost);
    call(owner, "client", "drop", NULL);
    free(keepers[2].values);
    return longest;
}

static void dump(void *agent)
{
    tether_buf text = TETHER_BUF_INIT;
    tether_error err = {0};
    bench_check(tether_rref_dump(agent, true, &text), &err);
    tether_buf_fini(&text);
}

static double pause_of_dump(size_t n)
{
    lend(owner, "client", NULL, n);
    double longest = longest_during(owner, dump, owner);
    call(owner, "client", "drop", NULL);
    wait_until_empty(owner);
    return longest;
}

/* The longest creation of `n`, by the time of this thread. */
static double longest_creation(size_t n)
{
    tether_rref **rrefs = calloc(n, sizeof(tether_rref *));
    double longest = 0;
    bench_locks_watch(true);
    for (size_t i = 0; i < n; i++) {
        struct timespec from, to;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        rrefs[i] = own_object(owner);
        tether_rref_weak_release(tether_rref_weak_new(rrefs[i]));
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        double took =
            (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6;
        if (took > longest)
            longest = took;
    }
    longest_locked = bench_locks_longest_ms();
    bench_locks_watch(false);
    for (size_t i = 0; i < n; i++)
        tether_rref_release(rrefs[i]);
    free(rrefs);
    return longest;
}

/* The longest call while `n` others time out together. */
static double pause_of_timeout(size_t n)
{
    tether_future **futures = flat_calls_begin(client, "owner", n, 3000);
    flat_calls_watch(client, "owner");
    bench_locks_watch(true);
    flat_calls_end(futures, n);
    longest_locked = bench_locks_longest_ms();
    bench_locks_watch(false);
    return flat_calls_longest_ms();
}

/* The longest call while the worker of `n` others is lost. */
static double pause_of_lost_calls(size_t n)
{
    char name[16];
    next_name(name);
    tether_agent *lost = join(name, &keepers[2]);
    tether_future **futures = flat_calls_begin(client, name, n, TIMEOUT_MS);
    flat_calls_watch(client, "owner");
    bench_locks_watch(true);
    tether_agent_release(lost);
    flat_calls_end(futures, n);
    longest_locked = bench_locks_longest_ms();
    bench_locks_watch(false);
    free(keepers[2].values);
    return flat_calls_longest_ms();
}

/* ---- All of them ---- */

static const struct row {
    const char *figure, *beside, *unit;
    double (*measure)(size_t n);
    size_t few, many;
} rows[] = {
    {"adding a fork", "forks of the object", "ns", add_fork, 3000, 100000},
    {"a creation", "waiting requests", "ns", create_beside_waiting, 10, 16000},
    {"a notice", "notices", "ns", add_notice, 1000, 20000},
    {"a request", "requests on one object", "ns", complete_requests, 1000, 16000},
    {"a call with a typed argument", "types", "ns", pass_typed, 1, 10000},
    {"ending a holder's reference", "holders that die", "ns", end_holders, 1, MOST_HOLDERS},
    {"giving back at shutdown", "references", "ns", shut_down, 1000, 40000},
    {"a reference whose owner has died", "references", "B", keep_lost, 1000, 100000},
    {"pause: fence of a holder", "references", "ms", pause_of_fence, 1000, 1000000},
    {"pause: owner is lost", "references", "ms", pause_of_lost_owner, 1000, 1000000},
    {"pause: dump", "references", "ms", pause_of_dump, 1000, 1000000},
    {"pause: calls time out", "calls", "ms", pause_of_timeout, 100, 16000},
    {"pause: worker of calls is lost", "calls", "ms", pause_of_lost_calls, 100, 16000},
    {"longest creation", "objects", "ms", longest_creation, 1000, 1000000},
};

static void report(const struct row *row, size_t n, int rounds)
{
    double values[BENCH_MAX_ROUNDS], locked[BENCH_MAX_ROUNDS];
    char who[64], figure[96];
    longest_locked = -1;
    for (int i = 0; i < rounds; i++) {
        values[i] = row->measure(n);
        locked[i] = longest_locked;
    }
    struct bench_spread spread = bench_spread_of(values, (size_t)rounds);
    if (strcmp(row->unit, "ms") == 0)
        spread.median = spread.lowest;
    snprintf(who, sizeof who, "%zu %s", n, row->beside);
    bench_result(&(struct bench_result){
        .figure = row->figure, .placement = "-", .who = who, .unit = row->unit, .value = spread});
    if (longest_locked < 0)
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
    /* A million blocks that were freed cost glibc's malloc 10 to 40 ms, in whichever thread it then
     * merges them or gives them to the kernel. That is not the library's: have it merge them one by
     * one, and keep them. */
    mallopt(M_MXFAST, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    bench_results_open("flat", options.tsv);
    bench_check(tether_store_hash_new(&store, &err), &err);
    client = join("client", &keepers[0]);
    owner = join("owner", &keepers[1]);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        if (!strstr(rows[i].figure, options.only))
            continue;
        bench_progress(i, TETHER__ARRAY_LEN(rows), rows[i].figure);
        report(&rows[i], rows[i].few, options.rounds);
        report(&rows[i], rows[i].many, options.rounds);
    }
    bench_results_close();
    tether_agent_release(client);
    tether_agent_release(owner);
    tether_store_release(store);
    return 0;
}
