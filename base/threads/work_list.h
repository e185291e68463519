/* One work list for each thread: it turns recursion into iteration.
 *
 * Releasing a reference may destroy an object that releases another reference, answering a request
 * may make an object that others wait for, and so on. The length of such a chain is up to the
 * program or to a peer, so no step may call the next one. Instead a step puts the next one on the
 * list of its thread:
 *
 *     struct thing { ...; struct tether__work work; };
 *     thing->work.run = finish_thing;
 *     tether__work_run(&thing->work);
 *
 * If no item runs on this thread, this frame is the outermost one: it runs the item, and all items
 * that are added meanwhile, first in, first out, before it returns. If an item runs already, the
 * new one is appended and the call returns at once. So the stack never grows with the chain.
 *
 * Items of run_last() may block: destructors of user objects. They run when no other item is left.
 * While one runs, the list of this thread is free: an item that is added by it, or by a message
 * that it waits for, runs in place. But an item of run_last() that is added then waits for its
 * turn.
 *
 * Items are intrusive: adding one needs no memory and cannot fail. An item may be freed, or added
 * again, as soon as its run() has begun. Call both functions without any lock held: they run user
 * code. No locks of its own: each list belongs to its thread.
 */
#ifndef TETHER_BASE_THREADS_WORK_LIST_H
#define TETHER_BASE_THREADS_WORK_LIST_H

#include <stdbool.h>

struct tether__work {
    struct tether__work *next; /* next item; used only by the list */
    void (*run)(struct tether__work *work);
};

/* Runs `work` now, or when the item that runs on this thread has returned. It must not block. */
void tether__work_run(struct tether__work *work);

/* Runs `work` like tether__work_run(), but after all other items. It may block. */
void tether__work_run_last(struct tether__work *work);

/* Whether an item of tether__work_run() runs on this thread: the next one would be appended. */
bool tether__work_is_running(void);

#endif
