/* Condition variables with our deadlines: pthread's can't wait on CLOCK_BOOTTIME, so the time left
 * is measured there and waited for on CLOCK_MONOTONIC.
 */
#ifndef TETHER_BASE_COND_H
#define TETHER_BASE_COND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* For use with tether__cond_wait() only. Goes back with pthread_cond_destroy(). */
void tether__cond_init(pthread_cond_t *cond);

/* Waits, `mu` held, for a signal or until `deadline` (on tether__clock_system; TETHER__NEVER: no
 * end). False once the deadline has passed. May return early, so call it in a loop:
 *
 *     while (!done && tether__cond_wait(&cond, &mu, deadline)) {}
 */
bool tether__cond_wait(pthread_cond_t *cond, pthread_mutex_t *mu, int64_t deadline);

#endif
