/* Load on all CPUs: an endless loop on each of them, as on an overloaded machine.
 *
 *     bench_load_begin();
 *     ... // measured threads compete for every CPU
 *     bench_load_end();
 *
 * The loops are threads of this process, so don't measure this process. One thread calls both
 * functions, and does not begin twice.
 */
#ifndef TETHER_BENCH_LIB_LOAD_H
#define TETHER_BENCH_LIB_LOAD_H

void bench_load_begin(void); /* returns when every loop runs */
void bench_load_end(void);

#endif
