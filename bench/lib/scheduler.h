/* Measures how long the scheduler keeps a thread that has nothing to do with the measured code from
 * running. A time by the clock says something about our code only where that is short.
 *
 * The thread sleeps for 1 ms and then works for 0.1 ms, again and again. All that it takes beyond
 * these is the scheduler's: a thread that slept waits for a CPU, or one that works is put aside.
 */
#ifndef TETHER_BENCH_LIB_SCHEDULER_H
#define TETHER_BENCH_LIB_SCHEDULER_H

/* Starts the thread. One at a time. */
void bench_scheduler_watch(void);

/* Ends the thread; returns the longest delay in milliseconds. */
double bench_scheduler_longest_ms(void);

#endif
