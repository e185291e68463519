/* The loop thread, its post queue and its timers. */
#include "base/loop.h"

#include <string.h>

#define POLL_NAME_MAX 16

static void run_batch(struct tether__loop *loop)
{
    struct tether__list batch = TETHER__LIST_INIT(batch);
    pthread_mutex_lock(&loop->mu);
    tether__list_splice(&batch, &loop->posted);
    bool stopping = loop->stopping;
    pthread_mutex_unlock(&loop->mu);

    for (struct tether__list *node; (node = tether__list_pop_front(&batch));) {
        struct tether__task *task = tether__list_entry(node, struct tether__task, node);
        task->run(task);
    }
    if (!stopping)
        return;

    /* Tasks may have posted more; stop only once the queue is seen empty under the lock. */
    pthread_mutex_lock(&loop->mu);
    bool empty = tether__list_empty(&loop->posted);
    loop->stopped = empty;
    pthread_mutex_unlock(&loop->mu);
    if (empty)
        uv_close((uv_handle_t *)&loop->wake, NULL);
    else
        uv_async_send(&loop->wake);
}

static void on_wake(uv_async_t *wake)
{
    run_batch(wake->data);
}

static void *loop_main(void *arg)
{
    struct tether__loop *loop = arg;
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    return NULL;
}

tether_status tether__loop_start(struct tether__loop *loop, const char *name, tether_error *reterr)
{
    memset(loop, 0, sizeof *loop);
    tether__list_init(&loop->posted);
    int rc = uv_loop_init(&loop->uv);
    if (rc != 0)
        return tether_error_set(reterr, TETHER_EIO, "starting event loop '%s': %s", name,
                                uv_strerror(rc));
    rc = uv_async_init(&loop->uv, &loop->wake, on_wake);
    if (rc != 0)
        goto undo_loop;
    loop->wake.data = loop;
    pthread_mutex_init(&loop->mu, NULL);
    rc = -pthread_create(&loop->thread, NULL, loop_main, loop);
    if (rc != 0)
        goto undo_wake;
    char short_name[POLL_NAME_MAX];
    strncpy(short_name, name, sizeof short_name - 1);
    short_name[sizeof short_name - 1] = '\0';
    pthread_setname_np(loop->thread, short_name);
    return TETHER_OK;

undo_wake:
    pthread_mutex_destroy(&loop->mu);
    uv_close((uv_handle_t *)&loop->wake, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
undo_loop:
    uv_loop_close(&loop->uv);
    memset(loop, 0, sizeof *loop);
    return tether_error_set(reterr, TETHER_EIO, "starting event loop '%s': %s", name,
                            uv_strerror(rc));
}

void tether__loop_stop(struct tether__loop *loop)
{
    if (!loop->wake.data)
        return;
    pthread_mutex_lock(&loop->mu);
    loop->stopping = true;
    pthread_mutex_unlock(&loop->mu);
    uv_async_send(&loop->wake);
    pthread_join(loop->thread, NULL);
    uv_loop_close(&loop->uv);
    pthread_mutex_destroy(&loop->mu);
    loop->wake.data = NULL;
}

bool tether__loop_is_current(const struct tether__loop *loop)
{
    return pthread_equal(pthread_self(), loop->thread) != 0;
}

bool tether__loop_post(struct tether__loop *loop, struct tether__task *task)
{
    pthread_mutex_lock(&loop->mu);
    bool accepted = !loop->stopped;
    bool was_empty = tether__list_empty(&loop->posted);
    if (accepted)
        tether__list_push_back(&loop->posted, &task->node);
    /* Sent under the lock: once `stopped` is set the handle may be closing. */
    if (accepted && was_empty)
        uv_async_send(&loop->wake);
    pthread_mutex_unlock(&loop->mu);
    return accepted;
}

struct call_task {
    struct tether__task task;
    struct tether__task *inner;
    pthread_mutex_t mu;
    pthread_cond_t done_cond;
    bool done;
};

static void run_call(struct tether__task *task)
{
    struct call_task *call = tether__container_of(task, struct call_task, task);
    call->inner->run(call->inner);
    pthread_mutex_lock(&call->mu);
    call->done = true;
    pthread_cond_signal(&call->done_cond);
    pthread_mutex_unlock(&call->mu);
}

bool tether__loop_call(struct tether__loop *loop, struct tether__task *task)
{
    if (tether__loop_is_current(loop)) {
        task->run(task);
        return true;
    }
    struct call_task call = {.task.run = run_call, .inner = task};
    pthread_mutex_init(&call.mu, NULL);
    pthread_cond_init(&call.done_cond, NULL);
    bool accepted = tether__loop_post(loop, &call.task);
    if (accepted) {
        pthread_mutex_lock(&call.mu);
        while (!call.done)
            pthread_cond_wait(&call.done_cond, &call.mu);
        pthread_mutex_unlock(&call.mu);
    }
    pthread_cond_destroy(&call.done_cond);
    pthread_mutex_destroy(&call.mu);
    return accepted;
}

static void on_timer(uv_timer_t *uv)
{
    struct tether__timer *timer = uv->data;
    timer->fire(timer);
}

static void on_timer_closed(uv_handle_t *uv)
{
    struct tether__timer *timer = uv->data;
    if (timer->closed)
        timer->closed(timer);
}

void tether__timer_init(struct tether__loop *loop,
                        struct tether__timer *timer,
                        void (*fire)(struct tether__timer *timer))
{
    uv_timer_init(&loop->uv, &timer->uv);
    timer->uv.data = timer;
    timer->fire = fire;
    timer->closed = NULL;
}

void tether__timer_start(struct tether__timer *timer, uint64_t delay_ms)
{
    uv_timer_start(&timer->uv, on_timer, delay_ms, 0);
}

void tether__timer_stop(struct tether__timer *timer)
{
    uv_timer_stop(&timer->uv);
}

void tether__timer_fini(struct tether__timer *timer, void (*closed)(struct tether__timer *timer))
{
    timer->closed = closed;
    uv_close((uv_handle_t *)&timer->uv, on_timer_closed);
}
