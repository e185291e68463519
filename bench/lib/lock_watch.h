/* Measures how long locks are held, in processor time of the thread that holds them.
 *
 * A program that is linked with this file watches all mutexes that our code locks. Wall-clock times
 * say little on a busy machine, since a thread with a lock may have to wait for a CPU. The
 * processor time under a lock does not depend on the load, and bounds how long others wait for that
 * lock on an idle machine.
 *
 * While bench_locks_watch() is on, each lock and unlock takes one more system call.
 */
#ifndef TETHER_BENCH_LIB_LOCK_WATCH_H
#define TETHER_BENCH_LIB_LOCK_WATCH_H

#include <stdbool.h>

/* Resets and starts the measurement, or stops it. */
void bench_locks_watch(bool on);

/* Returns the longest processor time under one lock since the start, in milliseconds. */
double bench_locks_longest_ms(void);

/* Gives the addresses of that lock and unlock, for addr2line. */
void bench_locks_longest_at(unsigned long *ret_from, unsigned long *ret_to);

#endif
