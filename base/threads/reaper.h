/* The thread that runs destructors of user objects whose last handle was released on a thread that
 * must not wait for them: one that receives messages, runs timers or looks workers up.
 *
 * Happy path: the first object starts the thread; it runs the destructors one after the other and
 * ends when none has come for a second. Failure mode: if no thread can be started, or the reaper is
 * closed, give() says so and the destructor runs in place.
 *
 * Lock rule: `mu` is a leaf; no destructor runs under it.
 */
#ifndef TETHER_BASE_THREADS_REAPER_H
#define TETHER_BASE_THREADS_REAPER_H

#include <pthread.h>
#include <stdbool.h>

#include "base/threads/work_list.h"

struct tether__reaper {
    /* fields under mu */
    struct tether__work *first, *last;
    bool open;       /* the reaper takes work; false in an agent without threads */
    bool busy;       /* a destructor runs now */
    bool runs;       /* the thread runs, and will check the list again before it ends */
    bool has_thread; /* a thread has to be joined, whether or not it still runs */
    pthread_t thread;
    pthread_cond_t wake;
    pthread_mutex_t mu;
};

void tether__reaper_init(struct tether__reaper *reaper); /* closed */
void tether__reaper_open(struct tether__reaper *reaper);

/* Makes the reaper's thread run `work`, which may block. False: the work was not taken. Any
 * thread. */
bool tether__reaper_give(struct tether__reaper *reaper, struct tether__work *work);

/* Whether everything that was given has run. Any thread. */
bool tether__reaper_is_idle(struct tether__reaper *reaper);

/* Closes the reaper, and waits until all of its work has run. Not from the reaper's thread. */
void tether__reaper_close(struct tether__reaper *reaper);
void tether__reaper_fini(struct tether__reaper *reaper);

#endif
