/* Slows the clocks of a program that runs under valgrind.
 *
 * Under valgrind instructions take about a hundred times as long, timers do not. With the real
 * clock, a thread that normally makes 256 calls in a millisecond would need a tenth of a second for
 * them. Timers would fire meanwhile, and the counts would include that work and depend on the load.
 *
 * A program that is linked with this file reads CLOCK_MONOTONIC and CLOCK_BOOTTIME slower by the
 * factor in the environment variable BENCH_SLOW_CLOCK, and its waits last longer by that factor.
 * Without the variable nothing changes. Reading a clock takes some 25 instructions more.
 */
#ifndef TETHER_BENCH_LIB_SLOW_CLOCK_H
#define TETHER_BENCH_LIB_SLOW_CLOCK_H

#define BENCH_SLOW_CLOCK "BENCH_SLOW_CLOCK"

#endif
