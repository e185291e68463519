/* Waiting on a condition until a CLOCK_BOOTTIME deadline. */
#include "base/threads/cond.h"

#include <time.h>

#include "base/clock.h"

void tether__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool tether__cond_wait(pthread_cond_t *cond, pthread_mutex_t *mu, int64_t deadline)
{
    if (deadline == TETHER__NEVER) {
        pthread_cond_wait(cond, mu);
        return true;
    }
    int64_t left = deadline - tether__clock_now_ns(&tether__clock_system);
    if (left <= 0)
        return false;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += left / TETHER__NS_PER_S;
    until.tv_nsec += left % TETHER__NS_PER_S;
    if (until.tv_nsec >= TETHER__NS_PER_S) {
        until.tv_nsec -= TETHER__NS_PER_S;
        until.tv_sec++;
    }
    pthread_cond_timedwait(cond, mu, &until);
    return tether__clock_now_ns(&tether__clock_system) < deadline;
}
