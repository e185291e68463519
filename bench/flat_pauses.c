/* The pauses that flat_bench measures: how long one operation waits while many references are
 * fenced or dumped, or while their table grows. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "bench/flat.h"
#include "bench/flat_calls.h"
#include "bench/lib/crew.h"
#include "bench/lib/lock_watch.h"
#include "bench/lib/measure.h"

double flat_longest_locked;

static _Atomic bool stop_measuring;
static tether_agent *measured_agent;

/* Runs operations that need the context's lock; gives the time of the longest in milliseconds. */
static void *measure_operations(void *ret_longest)
{
    double longest = 0;
    while (!atomic_load(&stop_measuring)) {
        double before = bench_now_s();
        tether_rref *rref = flat_own_object(measured_agent);
        tether_rref_weak *weak = tether_rref_weak_new(rref); /* puts the object into the table */
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
    measured_agent = agent;
    atomic_store(&stop_measuring, false);
    pthread_create(&thread, NULL, measure_operations, &longest);
    bench_locks_watch(true);
    work(userdata);
    flat_longest_locked = bench_locks_longest_ms();
    bench_locks_watch(false);
    atomic_store(&stop_measuring, true);
    pthread_join(thread, NULL);
    return longest;
}

static void end_holder(void *agent)
{
    tether_agent_release(agent);
    flat_wait_until_empty(flat_owner);
}

double flat_pause_of_fence(size_t n)
{
    char name[16];
    flat_next_name(name);
    tether_agent *holder = flat_join(name, &flat_keepers[2], NULL, 0);
    flat_lend(flat_owner, name, NULL, n);
    double longest = longest_during(flat_owner, end_holder, holder);
    flat_release_values(&flat_keepers[2]);
    free(flat_keepers[2].values);
    return longest;
}

static void end_owner(void *agent)
{
    tether_agent_release(agent);
    flat_wait_until_lost();
}

double flat_pause_of_lost_owner(size_t n)
{
    char name[16];
    flat_next_name(name);
    tether_agent *lost = flat_join(name, &flat_keepers[2], NULL, 0);
    flat_lend(lost, "client", NULL, n);
    double longest = longest_during(flat_client, end_owner, lost);
    flat_call(flat_owner, "client", "drop", NULL);
    free(flat_keepers[2].values);
    return longest;
}

static void dump(void *agent)
{
    tether_buf text = TETHER_BUF_INIT;
    tether_error err = {0};
    bench_check(tether_rref_dump(agent, true, &text), &err);
    tether_buf_fini(&text);
}

double flat_pause_of_dump(size_t n)
{
    flat_lend(flat_owner, "client", NULL, n);
    double longest = longest_during(flat_owner, dump, flat_owner);
    flat_call(flat_owner, "client", "drop", NULL);
    flat_wait_until_empty(flat_owner);
    return longest;
}

/* Creates `n` objects; returns the processor time of the longest creation. */
double flat_longest_creation(size_t n)
{
    tether_rref **rrefs = calloc(n, sizeof(tether_rref *));
    double longest = 0;
    bench_locks_watch(true);
    for (size_t i = 0; i < n; i++) {
        struct timespec from, to;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        rrefs[i] = flat_own_object(flat_owner);
        tether_rref_weak_release(tether_rref_weak_new(rrefs[i]));
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        double took =
            (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6;
        if (took > longest)
            longest = took;
    }
    flat_longest_locked = bench_locks_longest_ms();
    bench_locks_watch(false);
    for (size_t i = 0; i < n; i++)
        tether_rref_release(rrefs[i]);
    free(rrefs);
    return longest;
}

/* The longest call while `n` others time out together. */
double flat_pause_of_timeout(size_t n)
{
    tether_future **futures = flat_calls_begin(flat_client, "owner", n, 3000);
    flat_calls_watch(flat_client, "owner");
    bench_locks_watch(true);
    flat_calls_end(futures, n);
    flat_longest_locked = bench_locks_longest_ms();
    bench_locks_watch(false);
    return flat_calls_longest_ms();
}

/* The longest call while the worker of `n` others is lost. */
double flat_pause_of_lost_calls(size_t n)
{
    char name[16];
    flat_next_name(name);
    tether_agent *lost = flat_join(name, &flat_keepers[2], NULL, 0);
    tether_future **futures = flat_calls_begin(flat_client, name, n, FLAT_TIMEOUT_MS);
    flat_calls_watch(flat_client, "owner");
    bench_locks_watch(true);
    tether_agent_release(lost);
    flat_calls_end(futures, n);
    flat_longest_locked = bench_locks_longest_ms();
    bench_locks_watch(false);
    free(flat_keepers[2].values);
    return flat_calls_longest_ms();
}
