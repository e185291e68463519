/* What an operation costs beside few and beside many other things: references, forks, waiting
 * requests, notices, types, workers. And for how long one operation waits while many references are
 * fenced, dumped, or made to fit a larger table.
 *
 *     flat_bench [--only=TEXT] [--rounds=N] [--tsv=FILE]
 *
 * Costs are processor time of this process, in which all workers live: they do not depend on what
 * else the machine does. A pause is the longest of many operations by the clock on the wall, and
 * the least of some rounds: a busy machine adds to it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/macros.h"
#include "bench/lib/crew.h"
#include "bench/lib/measure.h"
#include "bench/lib/options.h"
#include "bench/lib/results.h"
#include "rendezvous/store.h"
#include "rref/rref.h"

#define TIMEOUT_MS 600000
#define OPERATIONS 500
#define PER_MESSAGE 1000 /* references on one value */
#define MOST_KEPT 1000000
#define MOST_HOLDERS 8

static tether_store *store;
static tether_agent *client, *owner;

/* ---- Workers ---- */

/* What a worker keeps. */
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

static tether_agent *join(const char *name, struct keeper *keeper)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    keeper->values = calloc(MOST_KEPT / PER_MESSAGE + 1000, sizeof(tether_value *));
    bench_check(tether_agent_new(
                    TETHER_AGENT_OPTS(.name = name, .store = store, .threads = 2, .spin_us = -1,
                                      .lease_ms = 2000, .max_calls_per_peer = 100000,
                                      .max_bytes_per_peer = (size_t)1 << 30),
                    &agent, &err),
                &err);
    bench_crew_serve_calls(agent);
    bench_check(tether_agent_register_inline(agent, "keep", keep, keeper, &err), &err);
    bench_check(tether_agent_register_inline(agent, "drop", drop, keeper, &err), &err);
    bench_check(tether_agent_register_async(agent, "hold", hold, true, keeper, &err), &err);
    bench_check(tether_agent_start(agent, &err), &err);
    return agent;
}

static struct keeper keepers[2 + MOST_HOLDERS];

static void call(tether_agent *from, const char *to, const char *fn, const tether_value *arg)
{
    tether_error err = {0};
    tether_value *result = NULL;
    bench_check(tether_rpc_sync(from, to, fn, arg, TIMEOUT_MS, &result, &err), &err);
    tether_value_release(result);
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

/* `n` references, in equal shares of workers that die together; of 100,000. */
static double end_holders(size_t n_holders)
{
    const size_t n = 100000;
    tether_agent *holders[MOST_HOLDERS];
    char name[16];
    for (size_t i = 0; i < n_holders; i++) {
        snprintf(name, sizeof name, "h%zu-%zu", n_holders, i);
        holders[i] = join(name, &keepers[2 + i]);
        lend(owner, name, NULL, n / n_holders);
    }
    for (size_t i = 0; i < n_holders; i++)
        tether_agent_release(holders[i]);
    double before = cpu_ns(); /* the releases told nobody: the owner learns it by itself */
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
    snprintf(name, sizeof name, "s%zu", n);
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

/* ---- Pauses ---- */

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
    work(userdata);
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
    snprintf(name, sizeof name, "f%zu", n);
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
    snprintf(name, sizeof name, "o%zu", n);
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
    for (size_t i = 0; i < n; i++)
        tether_rref_release(rrefs[i]);
    free(rrefs);
    return longest;
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
    {"ending a holder's reference", "holders that die", "ns", end_holders, 1, MOST_HOLDERS},
    {"giving back at shutdown", "references", "ns", shut_down, 1000, 40000},
    {"pause: fence of a holder", "references", "ms", pause_of_fence, 1000, 1000000},
    {"pause: owner is lost", "references", "ms", pause_of_lost_owner, 1000, 1000000},
    {"pause: dump", "references", "ms", pause_of_dump, 1000, 1000000},
    {"longest creation", "objects", "ms", longest_creation, 1000, 1000000},
};

static void report(const struct row *row, size_t n, int rounds)
{
    double values[BENCH_MAX_ROUNDS];
    char who[64];
    for (int i = 0; i < rounds; i++)
        values[i] = row->measure(n);
    struct bench_spread spread = bench_spread_of(values, (size_t)rounds);
    if (strcmp(row->unit, "ms") == 0)
        spread.median = spread.lowest;
    snprintf(who, sizeof who, "%zu %s", n, row->beside);
    bench_result(&(struct bench_result){
        .figure = row->figure, .placement = "-", .who = who, .unit = row->unit, .value = spread});
}

int main(int argc, char **argv)
{
    struct bench_options options = {.only = "", .rounds = 3, .seconds = 1};
    tether_error err = {0};
    bench_options_read(argc, argv, &options);
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
