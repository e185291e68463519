/* Each thread's work list. See work_list.h. */
#include "base/threads/work_list.h"

#include <stddef.h>

struct queue {
    struct tether__work *first, *last;
    bool running;
};

static _Thread_local struct queue now, later;

static void append(struct queue *queue, struct tether__work *work)
{
    work->next = NULL;
    if (queue->first)
        queue->last->next = work;
    else
        queue->first = work;
    queue->last = work;
}

/* Runs the items of `queue` until it is empty; does nothing if an outer frame does so already. */
static void drain(struct queue *queue)
{
    if (queue->running)
        return;
    queue->running = true;
    for (struct tether__work *work; (work = queue->first);) {
        queue->first = work->next;
        work->run(work);
    }
    queue->running = false;
}

void tether__work_run(struct tether__work *work)
{
    append(&now, work);
    if (now.running)
        return;
    drain(&now);
    drain(&later);
}

void tether__work_run_last(struct tether__work *work)
{
    append(&later, work);
    if (!now.running)
        drain(&later);
}

bool tether__work_is_running(void)
{
    return now.running;
}
