/* Events over a condition variable on the monotonic clock, and the nap of assert_eventually(). */
#include "tests/lib/wait.h"

#include <time.h>

void tether_test_event_init(struct tether_test_event *event)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&event->changed, &attr);
    pthread_condattr_destroy(&attr);
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
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (deadline.tv_nsec >= 1000000000L) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000L;
    }

    pthread_mutex_lock(&event->mu);
    int rc = 0;
    while (event->count < count && rc == 0)
        rc = pthread_cond_timedwait(&event->changed, &event->mu, &deadline);
    bool reached = event->count >= count;
    pthread_mutex_unlock(&event->mu);
    return reached;
}

bool tether_test_nap(int tries)
{
    const struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, NULL);
    return tries < TETHER_TEST_LIMIT_MS;
}
