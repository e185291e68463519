/* Executor pool: named threads and a bounded queue for functions that may block.
 *
 * Happy path: submit() queues a task and wakes an idle thread, or starts one if all are busy and
 * there may be more. A thread that has had nothing to do for a while ends. So a pool without work
 * has no threads.
 *
 * Failure modes: submit() fails with TETHER_EBUSY when the queue is full, and with TETHER_EIO when
 * no thread runs and none can be started; if only a further thread can't be started, the task
 * waits for those that run. After stop() has begun, every submit() fails with TETHER_ESHUTDOWN,
 * also from a task; the queued tasks run, then the threads end.
 *
 * Lock rule: `mu` is a leaf and never held while a task runs.
 */
#ifndef TETHER_BASE_THREADS_POOL_H
#define TETHER_BASE_THREADS_POOL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/status.h"
#include "base/threads/loop.h" /* declares struct tether__task */

struct tether__pool_thread; /* one of the pool's threads, defined in pool.c */

struct tether__pool {
    /* fields that do not change after start() */
    char name[12];
    size_t max_threads, max_queued;
    int idle_s; /* a thread ends after so long without a task; a test may lower it */
    /* fields under mu */
    struct tether__pool_thread *threads; /* array with room for `max_threads` threads */
    struct tether__list queue;
    size_t n_queued, n_threads, n_idle;
    int64_t last_full;  /* when a task last started that had waited for a thread; 0: never */
    bool open;          /* submit() works; false in zeroed memory, and after stop() has begun */
    pthread_mutex_t mu; /* the mutex is never destroyed, because threads may submit after stop() */
    pthread_cond_t wake;
};

struct tether__pool_stats {
    size_t threads;    /* the largest number of threads */
    size_t idle;       /* how many of these run no task, whether they are started or not */
    size_t queued;     /* tasks that wait for a thread */
    int64_t last_full; /* when all threads were last busy and tasks waited; 0: never */
};

/* Makes a pool of at most `max_threads` threads, called "name-0", "name-1" ..., and starts none
 * yet. On error there is nothing to undo. */
tether_status tether__pool_start(struct tether__pool *pool,
                                 const char *name,
                                 size_t max_threads,
                                 size_t max_queued,
                                 tether_error *reterr);

/* Queues `task` (intrusive, as for the loop). TETHER_EBUSY when `max_queued` wait already,
 * TETHER_EIO when there is no thread, TETHER_ESHUTDOWN when the pool does not run; then the task
 * will not run. Any thread. */
tether_status tether__pool_submit(struct tether__pool *pool, struct tether__task *task);

/* Refuses new tasks, runs the queued ones, joins the threads. Not from a pool thread. Does nothing
 * on a pool that never started or has stopped. */
void tether__pool_stop(struct tether__pool *pool);

/* The present figures; zeros for a pool that does not run. Any thread. */
struct tether__pool_stats tether__pool_stats(struct tether__pool *pool);

#endif
