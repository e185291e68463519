/* A list of destructors, and a thread that is started when needed and ends when idle. See
 * reaper.h. */
#include "base/threads/reaper.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/threads/cond.h"
#include "base/threads/thread.h"

/* Time after which the idle thread ends. Starting a thread costs as much as some hundred
 * destructors. */
#define IDLE_NS TETHER__NS_PER_S

void tether__reaper_init(struct tether__reaper *reaper)
{
    pthread_mutex_init(&reaper->mu, NULL);
    tether__cond_init(&reaper->wake);
}

void tether__reaper_open(struct tether__reaper *reaper)
{
    pthread_mutex_lock(&reaper->mu);
    reaper->open = true;
    pthread_mutex_unlock(&reaper->mu);
}

/* Waits for work. False: none came within IDLE_NS, or the reaper is closed and has no work left. */
static bool wait_for_work_locked(struct tether__reaper *reaper)
{
    int64_t deadline = tether__clock_now_ns(&tether__clock_system) + IDLE_NS;
    while (!reaper->first && reaper->open &&
           tether__cond_wait(&reaper->wake, &reaper->mu, deadline)) {
    }
    return reaper->first != NULL;
}

static void *reaper_main(void *arg)
{
    struct tether__reaper *reaper = arg;
    pthread_mutex_lock(&reaper->mu);
    while (wait_for_work_locked(reaper)) {
        struct tether__work *work = reaper->first;
        reaper->first = work->next;
        reaper->busy = true;
        pthread_mutex_unlock(&reaper->mu);
        tether__work_run_last(work);
        pthread_mutex_lock(&reaper->mu);
        reaper->busy = false;
    }
    reaper->runs = false;
    pthread_mutex_unlock(&reaper->mu);
    return NULL;
}

/* Starts the thread. An earlier thread, if any, has cleared `runs` and returns without taking the
 * lock. */
static bool start_locked(struct tether__reaper *reaper)
{
    if (reaper->has_thread)
        pthread_join(reaper->thread, NULL);
    reaper->has_thread =
        tether__thread_start(&reaper->thread, "tether-reap", reaper_main, reaper) == 0;
    reaper->runs = reaper->has_thread;
    return reaper->runs;
}

bool tether__reaper_give(struct tether__reaper *reaper, struct tether__work *work)
{
    pthread_mutex_lock(&reaper->mu);
    bool taken = reaper->open && (reaper->runs || start_locked(reaper));
    if (taken) {
        work->next = NULL;
        if (reaper->first)
            reaper->last->next = work;
        else
            reaper->first = work;
        reaper->last = work;
    }
    pthread_mutex_unlock(&reaper->mu);
    if (taken)
        pthread_cond_signal(&reaper->wake);
    return taken;
}

bool tether__reaper_is_idle(struct tether__reaper *reaper)
{
    pthread_mutex_lock(&reaper->mu);
    bool idle = !reaper->first && !reaper->busy;
    pthread_mutex_unlock(&reaper->mu);
    return idle;
}

void tether__reaper_close(struct tether__reaper *reaper)
{
    pthread_mutex_lock(&reaper->mu);
    reaper->open = false;
    bool has_thread = reaper->has_thread;
    reaper->has_thread = false;
    pthread_mutex_unlock(&reaper->mu);
    if (!has_thread)
        return;
    pthread_cond_signal(&reaper->wake);
    pthread_join(reaper->thread, NULL);
}

void tether__reaper_fini(struct tether__reaper *reaper)
{
    pthread_cond_destroy(&reaper->wake);
    pthread_mutex_destroy(&reaper->mu);
}
