/* See load.h. */
#include "bench/lib/load.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/measure.h"

#define MAX_CPUS 1024

static pthread_t loops[MAX_CPUS];
static size_t n_loops;
static pthread_barrier_t all_run;
static atomic_bool over;

static void *loop(void *cpu)
{
    bench_pin((int)(intptr_t)cpu);
    pthread_barrier_wait(&all_run);
    while (!atomic_load_explicit(&over, memory_order_relaxed))
        ;
    return NULL;
}

void bench_load_begin(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    n_loops = n < MAX_CPUS ? (size_t)n : MAX_CPUS;
    atomic_store(&over, false);
    pthread_barrier_init(&all_run, NULL, (unsigned)n_loops + 1);
    for (size_t i = 0; i < n_loops; i++) {
        int failed = pthread_create(&loops[i], NULL, loop, (void *)(intptr_t)i);
        if (failed)
            bench_die("starting a loop", strerror(failed));
    }
    pthread_barrier_wait(&all_run);
}

void bench_load_end(void)
{
    atomic_store(&over, true);
    for (size_t i = 0; i < n_loops; i++)
        pthread_join(loops[i], NULL);
    pthread_barrier_destroy(&all_run);
}
