/* Condition variables with deadlines on CLOCK_BOOTTIME. pthread can't wait on that clock, so these
 * functions measure the time left there and wait on CLOCK_MONOTONIC.
 */
#ifndef TETHER_BASE_THREADS_COND_H
#define TETHER_BASE_THREADS_COND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* For use with tether__cond_wait() only. Free it with pthread_cond_destroy(). */
void tether__cond_init(pthread_cond_t *cond);

/* Waits, `mu` held, for a signal or until `deadline` (on tether__clock_system; TETHER__NEVER: no
 * end). False once the deadline has passed. May return early, so call it in a loop:
 *
 *     while (!done && tether__cond_wait(&cond, &mu, deadline)) {}
 */
bool tether__cond_wait(pthread_cond_t *cond, pthread_mutex_t *mu, int64_t deadline);

#endif
