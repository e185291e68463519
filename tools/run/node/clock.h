/* The clock of all deadlines: milliseconds since boot, including the time in which the machine was
 * suspended. */
#ifndef TETHER_TOOLS_RUN_NODE_CLOCK_H
#define TETHER_TOOLS_RUN_NODE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t run_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

#endif
