/* Threads for calls to the store, which may block: started on demand, a few at a time, and ended
 * when they have had nothing to do for a while.
 *
 * Happy path: submit() queues a task and wakes a thread that is idle, or starts one. So a look-up
 * that hangs holds up no other until TETHER__MAX_LOOKUP_THREADS hang.
 *
 * Failure modes: the queue is bounded (TETHER_EBUSY); a thread that cannot be started leaves the
 * task to those that run, and is an error only if none does. stop() refuses further tasks, runs
 * those queued, and joins.
 *
 * Lock rule: `mu` is a leaf and never held while a task runs.
 */
#ifndef TETHER_RPC_LOOKUPS_H
#define TETHER_RPC_LOOKUPS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/list.h"
#include "base/loop.h" /* struct tether__task */
#include "base/status.h"

#define TETHER__MAX_LOOKUP_THREADS 8

struct tether__lookups {
    /* under mu */
    struct tether__list queue;
    size_t n_queued, n_idle, n_running;
    bool open; /* false in zeroed memory, and from stop() on */
    struct {
        pthread_t thread;
        enum { TETHER__LOOKUP_NONE, TETHER__LOOKUP_RUNS, TETHER__LOOKUP_ENDED } state;
    } threads[TETHER__MAX_LOOKUP_THREADS];
    pthread_mutex_t mu;
    pthread_cond_t wake;
};

void tether__lookups_init(struct tether__lookups *lookups);

/* Queues `task` (intrusive). TETHER_EBUSY, TETHER_EIO (no thread can be started), TETHER_ESHUTDOWN;
 * then the task will not run. Any thread. */
tether_status tether__lookups_submit(struct tether__lookups *lookups, struct tether__task *task);

/* Not from a thread of its own. On one that was never made, or has stopped: does nothing. */
void tether__lookups_stop(struct tether__lookups *lookups);

#endif
