/* Threads that come and go over one bounded queue. */
#include "base/threads/pool.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/threads/cond.h"
#include "base/threads/thread.h"

/* Time after which an idle thread ends. It is long, because starting a thread costs as much as
 * several calls. */
#define IDLE_S 5

struct tether__pool_thread {
    struct tether__pool *pool;
    pthread_t thread;
    enum { NONE, RUNS, ENDED } state; /* ENDED: the thread has ended and only has to be joined */
};

/* Waits for a task. False: none came for `idle_s`, or none will come. */
static bool wait_for_task_locked(struct tether__pool *pool)
{
    if (!tether__list_empty(&pool->queue))
        return true;
    struct timespec until;
    int rc = 0;
    /* the coarse clock is cheapest, and every wait for a task passes here */
    clock_gettime(CLOCK_MONOTONIC_COARSE, &until);
    until.tv_sec += pool->idle_s;
    pool->n_idle++;
    while (tether__list_empty(&pool->queue) && pool->open && rc == 0)
        rc = pthread_cond_timedwait(&pool->wake, &pool->mu, &until);
    pool->n_idle--;
    return !tether__list_empty(&pool->queue);
}

static bool is_full_locked(const struct tether__pool *pool)
{
    return pool->n_queued > 0 && pool->n_idle == 0 && pool->n_threads == pool->max_threads;
}

static void *pool_main(void *arg)
{
    struct tether__pool_thread *self = arg;
    struct tether__pool *pool = self->pool;
    pthread_mutex_lock(&pool->mu);
    while (wait_for_task_locked(pool)) {
        struct tether__list *node = tether__list_pop_front(&pool->queue);
        pool->n_queued--;
        pthread_mutex_unlock(&pool->mu);
        struct tether__task *task = tether__list_entry(node, struct tether__task, node);
        task->run(task);
        pthread_mutex_lock(&pool->mu);
        if (is_full_locked(pool))
            pool->last_full = tether__clock_now_ns(&tether__clock_system);
    }
    self->state = ENDED;
    pool->n_threads--;
    pthread_mutex_unlock(&pool->mu);
    return NULL;
}

/* Starts one more thread. It may fail, and then the threads that run have more to do. */
static void start_thread_locked(struct tether__pool *pool)
{
    size_t i = 0;
    while (pool->threads[i].state == RUNS)
        i++;
    struct tether__pool_thread *thread = &pool->threads[i];
    /* this thread does not take the lock again, so joining it does not block */
    if (thread->state == ENDED)
        pthread_join(thread->thread, NULL);
    thread->state = NONE;
    char name[16];
    snprintf(name, sizeof name, "%s-%u", pool->name, (unsigned)(i % 1000));
    if (tether__thread_start(&thread->thread, name, pool_main, thread) != 0)
        return;
    thread->state = RUNS;
    pool->n_threads++;
}

void tether__pool_stop(struct tether__pool *pool)
{
    pthread_mutex_lock(&pool->mu);
    bool was_open = pool->open;
    pool->open = false;
    pthread_mutex_unlock(&pool->mu);
    if (!was_open)
        return;
    pthread_cond_broadcast(&pool->wake);
    for (size_t i = 0; i < pool->max_threads; i++) {
        pthread_mutex_lock(&pool->mu);
        bool started = pool->threads[i].state != NONE;
        pthread_mutex_unlock(&pool->mu);
        if (started)
            pthread_join(pool->threads[i].thread, NULL);
    }
    pool->threads = tether__free(pool->threads);
}

tether_status tether__pool_start(struct tether__pool *pool,
                                 const char *name,
                                 size_t max_threads,
                                 size_t max_queued,
                                 tether_error *reterr)
{
    memset(pool, 0, sizeof *pool);
    if (max_threads == 0 || max_queued == 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "pool '%s' needs at least one thread and one queue place", name);
    pool->threads = tether__calloc(max_threads, sizeof *pool->threads);
    if (!pool->threads)
        return tether_error_set(reterr, TETHER_ENOMEM, "starting pool '%s': out of memory", name);
    for (size_t i = 0; i < max_threads; i++)
        pool->threads[i].pool = pool;
    snprintf(pool->name, sizeof pool->name, "%s", name);
    pool->max_threads = max_threads;
    pool->max_queued = max_queued;
    pool->idle_s = IDLE_S;
    pool->open = true;
    tether__list_init(&pool->queue);
    pthread_mutex_init(&pool->mu, NULL);
    tether__cond_init(&pool->wake);
    return TETHER_OK;
}

tether_status tether__pool_submit(struct tether__pool *pool, struct tether__task *task)
{
    tether_status st = TETHER_OK;
    pthread_mutex_lock(&pool->mu);
    if (!pool->open)
        st = TETHER_ESHUTDOWN;
    else if (pool->n_queued >= pool->max_queued)
        st = TETHER_EBUSY;
    /* idle threads that queued tasks have woken still count as idle, so start one if there are not
     * more of them */
    if (st == TETHER_OK && pool->n_idle <= pool->n_queued && pool->n_threads < pool->max_threads)
        start_thread_locked(pool);
    if (st == TETHER_OK && pool->n_threads == 0)
        st = TETHER_EIO;
    if (st == TETHER_OK) {
        tether__list_push_back(&pool->queue, &task->node);
        pool->n_queued++;
    }
    bool wake = st == TETHER_OK && pool->n_idle > 0;
    pthread_mutex_unlock(&pool->mu);
    if (wake) /* signal after the unlock: otherwise the woken thread would wait for the lock */
        pthread_cond_signal(&pool->wake);
    return st;
}

struct tether__pool_stats tether__pool_stats(struct tether__pool *pool)
{
    pthread_mutex_lock(&pool->mu);
    struct tether__pool_stats stats = {0};
    if (pool->open) {
        size_t busy = pool->n_threads - pool->n_idle;
        stats = (struct tether__pool_stats){pool->max_threads, pool->max_threads - busy,
                                            pool->n_queued, pool->last_full};
    }
    if (is_full_locked(pool))
        stats.last_full = tether__clock_now_ns(&tether__clock_system);
    pthread_mutex_unlock(&pool->mu);
    return stats;
}
