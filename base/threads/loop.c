/* The loop thread and its post queue. */
#include "base/threads/loop.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/threads/thread.h"

/* The loop that this thread runs. Thread ids cannot be compared instead: they are reused. */
static _Thread_local const struct tether__loop *current;

static void run_queued(struct tether__loop *loop)
{
    struct tether__list batch = TETHER__LIST_INIT(batch);
    pthread_mutex_lock(&loop->mu);
    tether__list_splice(&batch, &loop->posted);
    pthread_mutex_unlock(&loop->mu);
    for (struct tether__list *node; (node = tether__list_pop_front(&batch));) {
        struct tether__task *task = tether__list_entry(node, struct tether__task, node);
        task->run(task);
    }
}

/* Whether stop() has begun and the queue is empty. If so, the loop ends and takes no more tasks. */
static bool go_down(struct tether__loop *loop)
{
    pthread_mutex_lock(&loop->mu);
    bool down = loop->state == TETHER__LOOP_STOPPING && tether__list_empty(&loop->posted);
    if (down)
        loop->state = TETHER__LOOP_DOWN;
    pthread_mutex_unlock(&loop->mu);
    return down;
}

static void on_wake(uv_async_t *wake)
{
    struct tether__loop *loop = wake->data;
    run_queued(loop);
    if (go_down(loop))
        uv_stop(&loop->uv);
}

static void close_forgotten(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void *loop_main(void *arg)
{
    struct tether__loop *loop = arg;
    current = loop;
    uv_run(&loop->uv, UV_RUN_DEFAULT); /* `wake` keeps the loop running until on_wake() stops it */
    uv_walk(&loop->uv, close_forgotten, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT); /* once more, to run the callbacks of closed handles */
    return NULL;
}

void tether__occupy_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        /* the descriptors 0 to 2 are open: another thread has opened them meanwhile */
        if (null > STDERR_FILENO)
            close(null);
    }
}

tether_status tether__loop_start(struct tether__loop *loop, const char *name, tether_error *reterr)
{
    memset(loop, 0, sizeof *loop);
    pthread_mutex_init(&loop->mu, NULL);
    tether__list_init(&loop->posted);
    tether__occupy_standard_streams();
    int rc = uv_loop_init(&loop->uv);
    if (rc != 0)
        goto fail;
    rc = uv_async_init(&loop->uv, &loop->wake, on_wake);
    if (rc != 0)
        goto undo_loop;
    loop->wake.data = loop;
    loop->state = TETHER__LOOP_UP;
    rc = -tether__thread_start(&loop->thread, name, loop_main, loop);
    if (rc != 0)
        goto undo_wake;
    return TETHER_OK;

undo_wake:
    loop->state = TETHER__LOOP_DOWN;
    uv_close((uv_handle_t *)&loop->wake, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
undo_loop:
    uv_loop_close(&loop->uv);
fail:
    return tether_error_set(reterr, rc == UV_ENOMEM ? TETHER_ENOMEM : TETHER_EIO,
                            "starting event loop '%s': %s", name, uv_strerror(rc));
}

void tether__loop_stop(struct tether__loop *loop)
{
    pthread_mutex_lock(&loop->mu);
    bool up = loop->state == TETHER__LOOP_UP;
    if (up) {
        loop->state = TETHER__LOOP_STOPPING;
        uv_async_send(&loop->wake);
    }
    pthread_mutex_unlock(&loop->mu);
    if (!up)
        return;
    pthread_join(loop->thread, NULL);
    uv_loop_close(&loop->uv);
}

bool tether__loop_is_current(const struct tether__loop *loop)
{
    return current == loop;
}

bool tether__loop_post(struct tether__loop *loop, struct tether__task *task)
{
    pthread_mutex_lock(&loop->mu);
    bool accepted = loop->state == TETHER__LOOP_UP ||
                    (loop->state == TETHER__LOOP_STOPPING && tether__loop_is_current(loop));
    if (accepted) {
        bool was_empty = tether__list_empty(&loop->posted);
        tether__list_push_back(&loop->posted, &task->node);
        /* Send under the lock, because `wake` is closed once the loop has ended. */
        if (was_empty)
            uv_async_send(&loop->wake);
    }
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
