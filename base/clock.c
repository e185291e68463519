/* The system clock and deadline arithmetic. */
#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

static int64_t boottime_ns(const struct tether__clock *clock)
{
    (void)clock;
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * TETHER__NS_PER_S + ts.tv_nsec;
}

const struct tether__clock tether__clock_system = {boottime_ns};

int64_t tether__deadline_in(const struct tether__clock *clock, int timeout_ms)
{
    int64_t deadline;
    if (timeout_ms < 0 || __builtin_add_overflow(tether__clock_now_ns(clock),
                                                 timeout_ms * TETHER__NS_PER_MS, &deadline))
        return TETHER__NEVER;
    return deadline;
}

int tether__deadline_left_ms_at(int64_t now, int64_t deadline)
{
    if (deadline == TETHER__NEVER)
        return -1;
    int64_t left = deadline - now;
    if (left <= 0)
        return 0;
    int64_t ms = left / TETHER__NS_PER_MS + (left % TETHER__NS_PER_MS != 0);
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

int tether__deadline_left_ms(const struct tether__clock *clock, int64_t deadline)
{
    int64_t now = deadline == TETHER__NEVER ? 0 : tether__clock_now_ns(clock);
    return tether__deadline_left_ms_at(now, deadline);
}

void tether__sleep_ns(int64_t ns)
{
    if (ns <= 0)
        return;
    struct timespec left = {.tv_sec = ns / TETHER__NS_PER_S, .tv_nsec = ns % TETHER__NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
    }
}
