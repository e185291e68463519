/* Measures how long locks are held, in processor time of the thread that holds them.
 *
 * A program that is linked with this watches all mutexes that our code locks. A wait by the clock
 * on the wall says little on a busy machine, since a thread that holds a lock may have to wait for
 * a CPU. The processor time under a lock does not depend on the load, and bounds how long others
 * wait for that lock on an idle machine.
 *
 * Each lock and unlock takes a system call more while bench_locks_watch() is on.
 */
#ifndef TETHER_BENCH_LIB_LOCK_WATCH_H
#define TETHER_BENCH_LIB_LOCK_WATCH_H

#include <stdbool.h>

/* Starts anew, or stops. */
void bench_locks_watch(bool on);

/* The longest time that a thread has held a lock meanwhile, in milliseconds. */
double bench_locks_longest_ms(void);

/* Where the program locked and unlocked then, for addr2line. */
void bench_locks_longest_at(unsigned long *ret_from, unsigned long *ret_to);

#endif
