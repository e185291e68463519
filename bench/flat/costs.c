/* The costs that flat_bench measures, in processor time of this process or in bytes. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench/flat/shared.h"
#include "bench/lib/crew.h"

#define OPERATIONS 500

static double cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

double flat_add_fork(size_t n)
{
    tether_rref *rref = flat_own_object(flat_owner);
    flat_lend(flat_owner, "client", rref, n);
    double before = cpu_ns();
    flat_lend(flat_owner, "client", rref, FLAT_PER_MESSAGE);
    double cost = (cpu_ns() - before) / FLAT_PER_MESSAGE;
    flat_call(flat_owner, "client", "drop", NULL);
    flat_wait_until_empty(flat_owner);
    tether_rref_release(rref);
    return cost;
}

/* Starts to create an object, which end_creation() completes, and `n` requests that wait for it. */
static tether_future **begin_creation(size_t n, tether_rref **ret_rref)
{
    tether_future **futures = calloc(n + 1, sizeof(tether_future *));
    *ret_rref = tether_remote(flat_client, "owner", "hold", NULL, FLAT_TIMEOUT_MS);
    for (size_t i = 0; i < n; i++)
        futures[i] = tether_rref_to_here_async(*ret_rref, FLAT_TIMEOUT_MS);
    while (tether_rref_counts(flat_owner).pending_owners < n)
        flat_wait_1_ms();
    return futures;
}

static void end_creation(size_t n, tether_future **futures, tether_rref *rref)
{
    tether_error err = {0};
    tether_reply_ok(flat_keepers[1].held, NULL);
    for (size_t i = 0; i < n; i++) {
        bench_check(tether_future_wait(futures[i], FLAT_TIMEOUT_MS, NULL, &err), &err);
        tether_future_release(futures[i]);
    }
    free(futures);
    tether_rref_release(rref);
}

double flat_create_beside_waiting(size_t n)
{
    tether_rref *rref;
    tether_future **futures = begin_creation(n, &rref);
    double before = cpu_ns();
    for (int i = 0; i < OPERATIONS; i++)
        tether_rref_release(tether_remote(flat_client, "owner", "echo", NULL, FLAT_TIMEOUT_MS));
    flat_call(flat_client, "owner", "nothing", NULL);
    double cost = (cpu_ns() - before) / OPERATIONS;
    end_creation(n, futures, rref);
    return cost;
}

double flat_complete_requests(size_t n)
{
    tether_rref *rref;
    double before = cpu_ns();
    tether_future **futures = begin_creation(n, &rref);
    end_creation(n, futures, rref);
    return (cpu_ns() - before) / (double)n;
}

static void on_lost(tether_rref *rref, void *userdata)
{
    (void)rref, (void)userdata;
}

double flat_add_notice(size_t n)
{
    tether_error err = {0};
    tether_rref *rref = tether_remote(flat_client, "owner", "echo", NULL, FLAT_TIMEOUT_MS);
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

/* Measures a call with an object whose type is one of `n` that the receiver knows. */
double flat_pass_typed(size_t n)
{
    tether_type *types = calloc(n, sizeof *types);
    char(*names)[16] = calloc(n, sizeof *names), worker[16];
    tether_value *value = NULL;
    tether_error err = {0};
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "type%zu", i);
        types[i] = (tether_type){names[i], NULL, serialise, deserialise};
    }
    flat_next_name(worker);
    tether_agent *agent = flat_join(worker, &flat_keepers[2], types, n);
    bench_check(tether_value_new_object(&types[n / 2], "x", &value, &err), &err);
    flat_call(flat_client, worker, "nothing", value);
    double before = cpu_ns();
    for (int i = 0; i < OPERATIONS; i++)
        flat_call(flat_client, worker, "nothing", value);
    double cost = (cpu_ns() - before) / OPERATIONS;
    tether_value_release(value);
    tether_agent_release(agent);
    free(flat_keepers[2].values);
    free(types);
    free(names);
    return cost;
}

/* Measures the end of a million references, held in equal shares by workers that die together. */
double flat_end_holders(size_t n_holders)
{
    const size_t n = FLAT_MAX_KEPT;
    tether_agent *holders[FLAT_MAX_HOLDERS];
    char name[16];
    for (size_t i = 0; i < n_holders; i++) {
        flat_next_name(name);
        holders[i] = flat_join(name, &flat_keepers[2 + i], NULL, 0);
        flat_lend(flat_owner, name, NULL, n / n_holders);
    }
    double before = cpu_ns(); /* both ends: the owner notices while the others still stop */
    for (size_t i = 0; i < n_holders; i++)
        tether_agent_release(holders[i]);
    flat_wait_until_empty(flat_owner);
    double cost = (cpu_ns() - before) / (double)n;
    for (size_t i = 0; i < n_holders; i++) {
        flat_release_values(&flat_keepers[2 + i]);
        free(flat_keepers[2 + i].values);
    }
    return cost;
}

/* Measures a graceful shutdown of a worker that holds `n` references; the cost of one of these. */
double flat_shut_down(size_t n)
{
    char name[16];
    flat_next_name(name);
    tether_agent *agent = flat_join(name, &flat_keepers[2], NULL, 0);
    flat_lend(flat_owner, name, NULL, n);
    double before = cpu_ns();
    tether_agent_shutdown(agent, true, NULL);
    double cost = (cpu_ns() - before) / (double)n;
    tether_agent_release(agent);
    flat_release_values(&flat_keepers[2]);
    free(flat_keepers[2].values);
    flat_wait_until_empty(flat_owner);
    return cost;
}

/* Returns the bytes on the heap for each of `n` references whose owner has died. */
double flat_keep_lost(size_t n)
{
    char name[16];
    flat_next_name(name);
    malloc_trim(0);
    size_t before = mallinfo2().uordblks;
    tether_agent *lost = flat_join(name, &flat_keepers[2], NULL, 0);
    flat_lend(lost, "client", NULL, n);
    tether_agent_release(lost);
    free(flat_keepers[2].values);
    flat_wait_until_lost();
    double bytes = (double)(mallinfo2().uordblks - before) / (double)n;
    flat_call(flat_owner, "client", "drop", NULL);
    return bytes;
}
