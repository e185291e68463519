/* See scheduler.h. */
#include "bench/lib/scheduler.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "bench/lib/measure.h"

#define SLEEP_MS 1.0
#define WORK_MS 0.1

static pthread_t thread;
static _Atomic bool stop;
static double longest_ms;

static double processor_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void work(void)
{
    double until = processor_ms() + WORK_MS;
    while (processor_ms() < until) {
    }
}

static void *measure(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        double before = bench_now_s();
        nanosleep(&(struct timespec){.tv_nsec = (long)(SLEEP_MS * 1e6)}, NULL);
        work();
        double delay = (bench_now_s() - before) * 1e3 - SLEEP_MS - WORK_MS;
        if (delay > longest_ms)
            longest_ms = delay;
    }
    return NULL;
}

void bench_scheduler_watch(void)
{
    longest_ms = 0;
    atomic_store(&stop, false);
    pthread_create(&thread, NULL, measure, NULL);
}

double bench_scheduler_longest_ms(void)
{
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    return longest_ms;
}
