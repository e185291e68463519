/* See slow_clock.h. The linker sends calls of these functions here (`--wrap`, in BUILD). */
#include "bench/lib/slow_clock.h"

#include <grpc/support/time.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

#define NS_PER_S 1000000000LL

int __real_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __real_pthread_cond_timedwait(pthread_cond_t *cond,
                                  pthread_mutex_t *mu,
                                  const struct timespec *until);
int __real_sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until);
int __real_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms);

gpr_timespec __real_gpr_time_from_nanos(int64_t ns, gpr_clock_type type);

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond,
                                  pthread_mutex_t *mu,
                                  const struct timespec *until);
int __wrap_sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms);
gpr_timespec __wrap_gpr_time_from_nanos(int64_t ns, gpr_clock_type type);

static int64_t slower = 1;
static int64_t monotonic_start, boottime_start; /* the times at which the slow clocks start */

static int64_t ns_of(const struct timespec *time)
{
    return (int64_t)time->tv_sec * NS_PER_S + time->tv_nsec;
}

static struct timespec time_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
}

static int64_t real_now(clockid_t clock)
{
    struct timespec now;
    __real_clock_gettime(clock, &now);
    return ns_of(&now);
}

/* Runs before main(), so that no time is read earlier. */
__attribute__((constructor)) static void start(void)
{
    const char *factor = getenv(BENCH_SLOW_CLOCK);
    if (factor && atoi(factor) > 1)
        slower = atoi(factor);
    monotonic_start = real_now(CLOCK_MONOTONIC);
    boottime_start = real_now(CLOCK_BOOTTIME);
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    int rc = __real_clock_gettime(clock, ret_time);
    if (slower == 1 || (clock != CLOCK_MONOTONIC && clock != CLOCK_BOOTTIME))
        return rc;
    int64_t begin = clock == CLOCK_MONOTONIC ? monotonic_start : boottime_start;
    *ret_time = time_of(begin + (ns_of(ret_time) - begin) / slower);
    return rc;
}

/* Returns the time of the real clock at which the slow clock shows `until`. */
static struct timespec real_moment(const struct timespec *until)
{
    int64_t left = ns_of(until) - monotonic_start, most = INT64_MAX / 2 / slower;
    return time_of(monotonic_start + (left < most ? left : most) * slower);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond,
                                  pthread_mutex_t *mu,
                                  const struct timespec *until)
{
    struct timespec real = real_moment(until);
    return __real_pthread_cond_timedwait(cond, mu, &real);
}

int __wrap_sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until)
{
    struct timespec real = real_moment(until);
    return __real_sem_clockwait(sem, clock, &real);
}

int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms)
{
    if (timeout_ms > 0)
        timeout_ms = timeout_ms < INT_MAX / slower ? (int)(timeout_ms * slower) : INT_MAX;
    return __real_epoll_wait(fd, events, max, timeout_ms);
}

/* gRPC converts the timeout of a poll by this function. */
gpr_timespec __wrap_gpr_time_from_nanos(int64_t ns, gpr_clock_type type)
{
    int64_t most = INT64_MAX / slower;
    return __real_gpr_time_from_nanos((ns < most ? ns : most) * slower, type);
}
