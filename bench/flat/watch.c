/* The operations that go on while flat_bench has something happen to many references or calls. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "bench/flat/shared.h"
#include "bench/lib/lock_watch.h"
#include "bench/lib/measure.h"
#include "bench/lib/scheduler.h"

static struct {
    tether_agent *agent;
    const char *to;
    pthread_t thread;
    sem_t began; /* the first call is over */
    _Atomic bool stop;
    struct flat_pause pause;
} watch;

/* Needs the lock of the agent's references. */
static void create(void)
{
    tether_rref *rref = flat_own_object(watch.agent);
    tether_rref_weak *weak = tether_rref_weak_new(rref); /* puts the object into the table */
    tether_rref_weak_release(weak);
    tether_rref_release(rref);
}

static void call(void)
{
    flat_call(watch.agent, watch.to, "watched", NULL);
}

static void time_operation(void (*operation)(void), double *longest_ms)
{
    double before = bench_now_s();
    operation();
    double took = (bench_now_s() - before) * 1e3;
    if (took > *longest_ms)
        *longest_ms = took;
}

static void *operate(void *unused)
{
    (void)unused;
    call();
    sem_post(&watch.began);
    do {
        time_operation(create, &watch.pause.creation_ms);
        time_operation(call, &watch.pause.call_ms);
    } while (!atomic_load(&watch.stop));
    return NULL;
}

void flat_watch_begin(tether_agent *agent, const char *to)
{
    watch.agent = agent;
    watch.to = to;
    watch.pause = (struct flat_pause){0};
    atomic_store(&watch.stop, false);
    bench_scheduler_watch();
    sem_init(&watch.began, 0, 0);
    pthread_create(&watch.thread, NULL, operate, NULL);
    sem_wait(&watch.began);
    bench_locks_watch(true);
}

struct flat_pause flat_watch_end(void)
{
    watch.pause.locked_ms = bench_locks_longest_ms();
    bench_locks_watch(false);
    atomic_store(&watch.stop, true);
    pthread_join(watch.thread, NULL);
    sem_destroy(&watch.began);
    watch.pause.scheduler_ms = bench_scheduler_longest_ms();
    return watch.pause;
}
