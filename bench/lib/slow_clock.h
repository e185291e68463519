/* Slows the clocks of a program that runs under valgrind.
 *
 * Instructions take about a hundred times as long there, timers do not. With the real clock a
 * thread that makes 256 calls in one millisecond would take a tenth of a second for them, timers
 * would fire in between, and the count would be of another course of events, one that also depends
 * on what else the machine does.
 *
 * A program that is linked with this reads CLOCK_MONOTONIC and CLOCK_BOOTTIME slower by the factor
 * in the environment variable BENCH_SLOW_CLOCK, and its waits last longer by that factor. Without
 * the variable nothing changes. Reading a clock takes some 25 instructions more.
 */
#ifndef TETHER_BENCH_LIB_SLOW_CLOCK_H
#define TETHER_BENCH_LIB_SLOW_CLOCK_H

#define BENCH_SLOW_CLOCK "BENCH_SLOW_CLOCK"

#endif
