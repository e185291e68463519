/* Backoff: the wait before another attempt doubles each round, up to a limit, and is random, so
 * that callers that collided once do not collide again. Any thread.
 */
#ifndef TETHER_BASE_BACKOFF_H
#define TETHER_BASE_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>

/* Nanoseconds to wait after round 0, 1, 2 ...: random, from the upper half of
 * min(first_ns * 2^round, longest_ns). */
int64_t tether__backoff_ns(unsigned round, int64_t first_ns, int64_t longest_ns);

/* Sleeps for tether__backoff_ns(), but not beyond `deadline` (of tether__clock_system). Returns
 * false without sleeping when the deadline has passed: the caller gives up. */
bool tether__backoff_sleep(unsigned round, int64_t first_ns, int64_t longest_ns, int64_t deadline);

/* Returns the time in nanoseconds between two checks of a state that cannot wake the caller: a
 * 32nd of the time that the caller has waited so far, within the limits. So a short wait ends
 * soon, and a long one rarely wakes the CPU. */
int64_t tether__backoff_slice_ns(int64_t elapsed_ns, int64_t shortest_ns, int64_t longest_ns);

#endif
