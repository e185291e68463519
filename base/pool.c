/* Fixed threads over one bounded queue. */
#include "base/pool.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"

static void *pool_main(void *arg)
{
    struct tether__pool *pool = arg;
    pthread_mutex_lock(&pool->mu);
    for (;;) {
        while (tether__list_empty(&pool->queue) && pool->open) {
            pool->n_idle++;
            pthread_cond_wait(&pool->wake, &pool->mu);
            pool->n_idle--;
        }
        struct tether__list *node = tether__list_pop_front(&pool->queue);
        if (!node)
            break; /* closed, and nothing is left */
        pool->n_queued--;
        pthread_mutex_unlock(&pool->mu);
        struct tether__task *task = tether__list_entry(node, struct tether__task, node);
        task->run(task);
        pthread_mutex_lock(&pool->mu);
        if (pool->n_queued > 0 && pool->n_idle == 0)
            pool->last_full = tether__clock_now_ns(&tether__clock_system);
    }
    pthread_mutex_unlock(&pool->mu);
    return NULL;
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
    for (size_t i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pool->threads = tether__free(pool->threads);
}

tether_status tether__pool_start(struct tether__pool *pool,
                                 const char *name,
                                 size_t n_threads,
                                 size_t max_queued,
                                 tether_error *reterr)
{
    memset(pool, 0, sizeof *pool);
    if (n_threads == 0 || max_queued == 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "pool '%s' needs at least one thread and one queue place", name);
    pool->threads = tether__calloc(n_threads, sizeof *pool->threads);
    if (!pool->threads)
        return tether_error_set(reterr, TETHER_ENOMEM, "starting pool '%s': out of memory", name);
    pool->max_queued = max_queued;
    pool->open = true;
    tether__list_init(&pool->queue);
    pthread_mutex_init(&pool->mu, NULL);
    pthread_cond_init(&pool->wake, NULL);

    for (; pool->n_threads < n_threads; pool->n_threads++) {
        char thread_name[16];
        snprintf(thread_name, sizeof thread_name, "%.11s-%u", name,
                 (unsigned)(pool->n_threads % 1000));
        int rc =
            tether__thread_start(&pool->threads[pool->n_threads], thread_name, pool_main, pool);
        if (rc != 0) {
            tether__pool_stop(pool);
            return tether_error_set(reterr, TETHER_EIO, "starting thread %zu of pool '%s': %s",
                                    pool->n_threads, name, strerror(rc));
        }
    }
    return TETHER_OK;
}

tether_status tether__pool_submit(struct tether__pool *pool, struct tether__task *task)
{
    tether_status st = TETHER_OK;
    pthread_mutex_lock(&pool->mu);
    if (!pool->open) {
        st = TETHER_ESHUTDOWN;
    } else if (pool->n_queued >= pool->max_queued) {
        st = TETHER_EBUSY;
    } else {
        tether__list_push_back(&pool->queue, &task->node);
        pool->n_queued++;
    }
    bool wake = st == TETHER_OK && pool->n_idle > 0;
    pthread_mutex_unlock(&pool->mu);
    if (wake) /* after the lock, which it would else wake up only to wait for */
        pthread_cond_signal(&pool->wake);
    return st;
}

struct tether__pool_stats tether__pool_stats(struct tether__pool *pool)
{
    pthread_mutex_lock(&pool->mu);
    struct tether__pool_stats stats = {0};
    if (pool->open)
        stats = (struct tether__pool_stats){pool->n_threads, pool->n_idle, pool->n_queued,
                                            pool->last_full};
    if (stats.queued > 0 && stats.idle == 0)
        stats.last_full = tether__clock_now_ns(&tether__clock_system);
    pthread_mutex_unlock(&pool->mu);
    return stats;
}
