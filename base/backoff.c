/* Backoff: doubling, random waits. */
#include "base/backoff.h"

#include <stdlib.h>

#include "base/clock.h"

int64_t tether__backoff_ns(unsigned round, int64_t first_ns, int64_t longest_ns)
{
    int64_t step = round < 20 && first_ns << round < longest_ns ? first_ns << round : longest_ns;
    return step / 2 + arc4random_uniform((uint32_t)(step / 2 / 1000) + 1) * INT64_C(1000);
}

bool tether__backoff_sleep(unsigned round, int64_t first_ns, int64_t longest_ns, int64_t deadline)
{
    int64_t left = deadline - tether__clock_now_ns(&tether__clock_system);
    if (left <= 0)
        return false;
    int64_t wait = tether__backoff_ns(round, first_ns, longest_ns);
    tether__sleep_ns(wait < left ? wait : left);
    return true;
}

int64_t tether__backoff_slice_ns(int64_t elapsed_ns, int64_t shortest_ns, int64_t longest_ns)
{
    int64_t slice = elapsed_ns / 32;
    return slice < shortest_ns ? shortest_ns : slice > longest_ns ? longest_ns : slice;
}
