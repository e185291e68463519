/* Executor pool: a fixed number of named threads and a bounded queue for functions that may block.
 *
 * Happy path: submit() queues a task, one of the threads runs it. A full queue refuses
 * (TETHER_EBUSY) instead of growing. From stop() on, for as long as the struct lives, every submit
 * is refused with TETHER_ESHUTDOWN, also one from a task; what was queued runs, then the threads
 * end.
 *
 * Lock rule: `mu` is a leaf and never held while a task runs.
 */
#ifndef TETHER_BASE_POOL_H
#define TETHER_BASE_POOL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/loop.h" /* struct tether__task */
#include "base/status.h"

struct tether__pool {
    /* immutable after start() */
    pthread_t *threads;
    size_t n_threads, max_queued;
    /* under mu */
    struct tether__list queue;
    size_t n_queued, n_idle;
    int64_t last_full;  /* when a task was last taken up that had to wait for a thread; 0: never */
    bool open;          /* false in zeroed memory, and from stop() on */
    pthread_mutex_t mu; /* lives as long as the struct: late submitters lock it */
    pthread_cond_t wake;
};

struct tether__pool_stats {
    size_t threads, idle, queued;
    int64_t last_full; /* when all threads were last busy and tasks waited; 0: never */
};

/* Starts `n_threads` threads called "name-0", "name-1" ... On error nothing is left behind. */
tether_status tether__pool_start(struct tether__pool *pool,
                                 const char *name,
                                 size_t n_threads,
                                 size_t max_queued,
                                 tether_error *reterr);

/* Queues `task` (intrusive, as for the loop). TETHER_EBUSY when `max_queued` wait already,
 * TETHER_ESHUTDOWN when the pool does not run; then the task will not run. Any thread. */
tether_status tether__pool_submit(struct tether__pool *pool, struct tether__task *task);

/* Refuses new tasks, runs those queued, joins. Not from a pool thread. On a pool that never started
 * or has stopped: does nothing. */
void tether__pool_stop(struct tether__pool *pool);

/* As it is right now; zeros for a pool that does not run. Any thread. */
struct tether__pool_stats tether__pool_stats(struct tether__pool *pool);

#endif
