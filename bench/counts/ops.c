/* See ops.h. Three agents in one process, without spin, because the number of unsuccessful
 * polls depends on the load of the machine. */
#include "bench/counts/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench/lib/counts.h"
#include "bench/lib/crew.h"
#include "bench/lib/measure.h"
#include "rendezvous/store.h"
#include "rref/rref.h"

#define TIMEOUT_MS 60000
#define OUTSTANDING 64
#define WINDOW 256
#define WARM_UP 20

static tether_agent *client, *owner, *third;
static tether_value *small, *large;

static tether_agent *join(tether_store *store, const char *name, enum counts_way way)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    bench_check(
        tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store, .threads = 2,
                                           .no_unix_socket = way == COUNTS_NETWORK, .spin_us = -1),
                         &agent, &err),
        &err);
    bench_crew_serve_calls(agent);
    bench_check(tether_agent_start(agent, &err), &err);
    return agent;
}

/* ---- Operations ---- */

static void call(const char *fn, const tether_value *arg)
{
    tether_error err = {0};
    tether_value *result = NULL;
    bench_check(tether_rpc_sync(client, "owner", fn, arg, TIMEOUT_MS, &result, &err), &err);
    tether_value_release(result);
}

static void call_inline(void)
{
    call("echo", small);
}

static void call_pooled(void)
{
    call("pooled", small);
}

static void call_large(void)
{
    call("echo", large);
}

static void call_outstanding(void)
{
    tether_future *futures[OUTSTANDING];
    tether_error err = {0};
    for (int i = 0; i < OUTSTANDING; i++)
        futures[i] = tether_rpc_async(client, "owner", "echo", small, TIMEOUT_MS);
    for (int i = 0; i < OUTSTANDING; i++) {
        bench_check(tether_future_wait(futures[i], TIMEOUT_MS, NULL, &err), &err);
        tether_future_release(futures[i]);
    }
}

static void create_drop(void)
{
    tether_error err = {0};
    for (int i = 0; i < WINDOW; i++) {
        tether_rref *rref = tether_remote(client, "owner", "echo", NULL, TIMEOUT_MS);
        if (i == WINDOW - 1) {
            tether_future *confirmed = tether_rref_confirmed(rref);
            bench_check(tether_future_wait(confirmed, TIMEOUT_MS, NULL, &err), &err);
            tether_future_release(confirmed);
        }
        tether_rref_release(rref);
    }
}

static void create_fetch_drop(void)
{
    tether_error err = {0};
    tether_value *value = NULL;
    tether_rref *rref = tether_remote(client, "owner", "echo", NULL, TIMEOUT_MS);
    bench_check(tether_rref_to_here(rref, TIMEOUT_MS, &value, &err), &err);
    tether_value_release(value);
    tether_rref_release(rref);
}

static void create_pass_drop(void)
{
    tether_error err = {0};
    tether_value *job = NULL;
    tether_rref *rref = tether_remote(client, "owner", "echo", NULL, TIMEOUT_MS);
    bench_check(tether_value_new(tether_bytes_of("", 0), &job, &err), &err);
    bench_check(tether_value_attach(job, rref, &err), &err);
    bench_check(tether_rpc_sync(client, "third", "nothing", job, TIMEOUT_MS, NULL, &err), &err);
    tether_value_release(job);
    tether_rref_release(rref);
}

static void local_use(void)
{
    tether_error err = {0};
    tether_rref *rref = NULL;
    tether_value *value = NULL;
    bench_check(tether_rref_new(client, small, &rref, &err), &err);
    bench_check(tether_rref_to_here(rref, TIMEOUT_MS, &value, &err), &err);
    tether_value_release(value);
    tether_rref_release(rref);
}

/* The numbers of rounds are chosen so that counts repeat within one or two per cent. The start and
 * end of a run take about 0.3 million instructions more or less each time. So a run of a local call
 * has to take 30 million. */
#define LOCAL_AND_NETWORK(name, words, ...)                 \
    {"local-" name, words, COUNTS_LOCAL, __VA_ARGS__},      \
    {                                                       \
        "network-" name, words, COUNTS_NETWORK, __VA_ARGS__ \
    }

const struct counts_op counts_ops[] = {
    LOCAL_AND_NETWORK("call", "call, 64 B", 4000, 1, call_inline),
    LOCAL_AND_NETWORK("pooled", "call, 64 B, pooled function", 4000, 1, call_pooled),
    LOCAL_AND_NETWORK("large", "call, 64 KiB", 1500, 1, call_large),
    LOCAL_AND_NETWORK("outstanding",
                      "64 outstanding, 64 B, each",
                      120,
                      OUTSTANDING,
                      call_outstanding),
    LOCAL_AND_NETWORK("drop", "create, drop; by 256, each", 20, WINDOW, create_drop),
    LOCAL_AND_NETWORK("fetch", "create, fetch, drop", 1500, 1, create_fetch_drop),
    LOCAL_AND_NETWORK("pass", "create, pass to a third, drop", 600, 1, create_pass_drop),
    {"local", "create, fetch, drop; on the owner", COUNTS_HERE, 20000, 1, local_use},
};
const size_t counts_n_ops = sizeof counts_ops / sizeof counts_ops[0];

static double switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_nvcsw + usage.ru_nivcsw);
}

static void run(const struct counts_op *op, long rounds)
{
    for (int i = 0; i < WARM_UP; i++)
        op->run();
    bench_count_begin();
    double before = switches();
    for (long i = 0; i < rounds; i++)
        op->run();
    printf("%.6f\n", (switches() - before) / (double)rounds);
}

static const struct counts_op *find(const char *name)
{
    for (size_t i = 0; i < counts_n_ops; i++)
        if (strcmp(counts_ops[i].name, name) == 0)
            return &counts_ops[i];
    bench_die("no such operation", name);
}

int counts_op_main(const char *name, long rounds)
{
    static char bytes[64 << 10];
    const struct counts_op *op = find(name);
    tether_store *store = NULL;
    tether_error err = {0};
    bench_pin(0);
    bench_check(tether_store_hash_new(&store, &err), &err);
    owner = join(store, "owner", op->way);
    third = join(store, "third", op->way);
    client = join(store, "client", op->way);
    bench_check(tether_value_new(tether_bytes_of(bytes, 64), &small, &err), &err);
    bench_check(tether_value_new(tether_bytes_of(bytes, sizeof bytes), &large, &err), &err);
    run(op, rounds);
    tether_value_release(small);
    tether_value_release(large);
    tether_agent_release(client);
    tether_agent_release(third);
    tether_agent_release(owner);
    tether_store_release(store);
    return 0;
}
