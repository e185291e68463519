/* A libuv loop on a thread of its own, with a queue that any thread can post to.
 *
 * Happy path: start() starts the thread; post() queues a task for it; stop() runs the queued tasks,
 * closes the remaining handles and joins the thread.
 *
 * Tasks are intrusive: they are fields of the caller's struct, so posting one needs no memory.
 * Wake-ups coalesce: many posts cause one uv_async_send(), and the loop takes the whole queue under
 * one lock. Use your own uv handles (`tether__loop_uv()`) on the loop thread only.
 *
 * After stop() has begun, post() and call() of other threads return false, for as long as the
 * struct exists. An accepted task always runs. A task may still post another one, so that work in
 * several steps can finish.
 *
 * Lock rule: `mu` guards the queue and is a leaf; no task or callback runs under it.
 */
#ifndef TETHER_BASE_THREADS_LOOP_H
#define TETHER_BASE_THREADS_LOOP_H

#include <pthread.h>
#include <stdbool.h>
#include <uv.h>

#include "base/list.h"
#include "base/status.h"

struct tether__loop {
    /* fields that do not change after start() */
    uv_loop_t uv;
    uv_async_t wake;
    pthread_t thread;
    /* fields under mu */
    struct tether__list posted;
    enum {
        TETHER__LOOP_DOWN = 0, /* the state in zeroed memory */
        TETHER__LOOP_UP,
        TETHER__LOOP_STOPPING, /* stop() has begun, so only tasks may post */
    } state;
    pthread_mutex_t mu; /* the mutex is never destroyed, because threads may post after stop() */
};

/* Work for the loop thread. `run` may free or post the task again. */
struct tether__task {
    void (*run)(struct tether__task *task);
    struct tether__list node;
};

/* Opens /dev/null at the numbers of closed standard streams; daemons close theirs. Otherwise
 * descriptors of ours would get these numbers: libuv aborts when it closes one of them, and output
 * of other code would be written to them. Call it before a socket is made that may be the first
 * descriptor of the process. */
void tether__occupy_standard_streams(void);

/* Starts the thread; debuggers show `name` (at most 15 characters). On error there is nothing to
 * undo. */
tether_status tether__loop_start(struct tether__loop *loop, const char *name, tether_error *reterr);

/* Runs the queued tasks, then ends and joins the thread. The owner closes its own uv handles with a
 * task before; stop() closes the remaining ones without their close callbacks. Not from the loop
 * thread. Does nothing on a loop that never started or has stopped. */
void tether__loop_stop(struct tether__loop *loop);

/* Queues `task`, which must not be queued already. Any thread. False when the loop does not run or
 * is stopping: the task will not run. */
bool tether__loop_post(struct tether__loop *loop, struct tether__task *task);

/* Runs `task` on the loop and waits until it has run. Any thread but the loop's own (there it runs
 * at once). False as for post(). */
bool tether__loop_call(struct tether__loop *loop, struct tether__task *task);

bool tether__loop_is_current(const struct tether__loop *loop);

static inline uv_loop_t *tether__loop_uv(struct tether__loop *loop)
{
    return &loop->uv;
}

#endif
