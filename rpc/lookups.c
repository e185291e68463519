/* Threads for calls to the store. See lookups.h. */
#include "rpc/lookups.h"

#include <time.h>

#include "base/thread.h"

#define MAX_QUEUED (1 << 20)
#define IDLE_SECONDS 2

void tether__lookups_init(struct tether__lookups *lookups)
{
    *lookups = (struct tether__lookups){.open = true};
    tether__list_init(&lookups->queue);
    pthread_mutex_init(&lookups->mu, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&lookups->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Waits for something to do. False: there was nothing for a while, or nothing more will come. */
static bool wait_for_task_locked(struct tether__lookups *lookups)
{
    struct timespec until;
    int rc = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_SECONDS;
    lookups->n_idle++;
    while (lookups->open && tether__list_empty(&lookups->queue) && rc == 0)
        rc = pthread_cond_timedwait(&lookups->wake, &lookups->mu, &until);
    lookups->n_idle--;
    return !tether__list_empty(&lookups->queue);
}

static void mark_ended_locked(struct tether__lookups *lookups)
{
    pthread_t self = pthread_self();
    for (size_t i = 0; i < TETHER__MAX_LOOKUP_THREADS; i++)
        if (lookups->threads[i].state == TETHER__LOOKUP_RUNS &&
            pthread_equal(lookups->threads[i].thread, self))
            lookups->threads[i].state = TETHER__LOOKUP_ENDED;
    lookups->n_running--;
}

static void *lookup_main(void *arg)
{
    struct tether__lookups *lookups = arg;
    pthread_mutex_lock(&lookups->mu);
    while (!tether__list_empty(&lookups->queue) || wait_for_task_locked(lookups)) {
        struct tether__list *node = tether__list_pop_front(&lookups->queue);
        struct tether__task *task = tether__list_entry(node, struct tether__task, node);
        lookups->n_queued--;
        pthread_mutex_unlock(&lookups->mu);
        task->run(task);
        pthread_mutex_lock(&lookups->mu);
    }
    mark_ended_locked(lookups);
    pthread_mutex_unlock(&lookups->mu);
    return NULL;
}

/* One more thread, if there may be one. Holding `mu` until it is entered, the thread finds itself.
 */
static void start_thread_locked(struct tether__lookups *lookups)
{
    for (size_t i = 0; i < TETHER__MAX_LOOKUP_THREADS; i++) {
        if (lookups->threads[i].state == TETHER__LOOKUP_RUNS)
            continue;
        if (lookups->threads[i].state == TETHER__LOOKUP_ENDED) /* it does nothing any more */
            pthread_join(lookups->threads[i].thread, NULL);
        lookups->threads[i].state = TETHER__LOOKUP_NONE;
        if (tether__thread_start(&lookups->threads[i].thread, "tether-dir", lookup_main, lookups))
            return;
        lookups->threads[i].state = TETHER__LOOKUP_RUNS;
        lookups->n_running++;
        return;
    }
}

tether_status tether__lookups_submit(struct tether__lookups *lookups, struct tether__task *task)
{
    tether_status st = TETHER_OK;
    pthread_mutex_lock(&lookups->mu);
    if (!lookups->open)
        st = TETHER_ESHUTDOWN;
    else if (lookups->n_queued == MAX_QUEUED)
        st = TETHER_EBUSY;
    if (st == TETHER_OK && lookups->n_idle <= lookups->n_queued)
        start_thread_locked(lookups);
    if (st == TETHER_OK && lookups->n_running == 0)
        st = TETHER_EIO;
    if (st == TETHER_OK) {
        tether__list_push_back(&lookups->queue, &task->node);
        lookups->n_queued++;
        pthread_cond_signal(&lookups->wake);
    }
    pthread_mutex_unlock(&lookups->mu);
    return st;
}

void tether__lookups_stop(struct tether__lookups *lookups)
{
    if (!lookups->open)
        return;
    pthread_mutex_lock(&lookups->mu);
    lookups->open = false;
    bool started[TETHER__MAX_LOOKUP_THREADS];
    for (size_t i = 0; i < TETHER__MAX_LOOKUP_THREADS; i++)
        started[i] = lookups->threads[i].state != TETHER__LOOKUP_NONE;
    pthread_cond_broadcast(&lookups->wake);
    pthread_mutex_unlock(&lookups->mu);
    for (size_t i = 0; i < TETHER__MAX_LOOKUP_THREADS; i++)
        if (started[i])
            pthread_join(lookups->threads[i].thread, NULL);
}
