/* Events on a condition variable, and the sleep of assert_eventually(). */
#include "tests/lib/wait.h"

#include <time.h>

#include "base/clock.h"
#include "base/threads/cond.h"

void tether_test_event_init(struct tether_test_event *event)
{
    tether__cond_init(&event->changed);
    pthread_mutex_init(&event->mu, NULL);
    event->count = 0;
}

void tether_test_event_fini(struct tether_test_event *event)
{
    pthread_mutex_destroy(&event->mu);
    pthread_cond_destroy(&event->changed);
}

void tether_test_event_signal(struct tether_test_event *event)
{
    pthread_mutex_lock(&event->mu);
    event->count++;
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->mu);
}

bool tether_test_event_wait(struct tether_test_event *event, int count, int timeout_ms)
{
    int64_t deadline = tether__deadline_in(&tether__clock_system, timeout_ms);
    pthread_mutex_lock(&event->mu);
    while (event->count < count && tether__cond_wait(&event->changed, &event->mu, deadline)) {
    }
    bool reached = event->count >= count;
    pthread_mutex_unlock(&event->mu);
    return reached;
}

bool tether_test_nap(int tries)
{
    /* The clock decides when to give up, not the number of sleeps: on a busy machine each takes
     * several milliseconds. */
    static _Thread_local int64_t deadline;
    const struct timespec millisecond = {0, 1000000};
    if (tries == 0)
        deadline = tether__deadline_in(&tether__clock_system, TETHER_TEST_LIMIT_MS);
    nanosleep(&millisecond, NULL);
    return tether__clock_now_ns(&tether__clock_system) < deadline;
}
