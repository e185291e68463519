/* Somebody else who wants the CPUs: an endless loop on each of them, as when a machine has more to
 * do than it can.
 *
 *     bench_load_begin();
 *     ... // what is measured competes for every CPU
 *     bench_load_end();
 *
 * The loops are threads of this process, which should not be one of those that are measured.
 * One thread begins and ends; never twice at a time.
 */
#ifndef TETHER_BENCH_LIB_LOAD_H
#define TETHER_BENCH_LIB_LOAD_H

void bench_load_begin(void); /* returns when every loop runs */
void bench_load_end(void);

#endif
