/* The interface between the two halves of chaos_test: the rounds that they go through together, the
 * marks and counters of the world by which they inform each other, and the random numbers.
 *
 *   chaos_test.c    the test: starts the workers, causes the faults
 *   chaos_worker.c  a worker: its operations, and the judgement whether one of them may fail
 */
#ifndef TETHER_TESTS_PROC_CHAOS_H
#define TETHER_TESTS_PROC_CHAOS_H

#include "tests/proc/stage.h"

enum { N = 4 }; /* workers */

/* Marks. A round begins with GO and ends with REST, each once; the others count workers. */
enum { GO, IN, REST, DONE, CHECKED, END };

/* Counters: operations by how they ended; the number of the next thing; the disturbed ranks, a bit
 * each. */
enum { WENT_WELL, FAILED_BY_FAULT, NEXT_NUMBER, DISTURBED };

void load_dice(uint64_t seed);
int draw(int n); /* 0 to n - 1; one thread */

/* Everything that a worker does, from its start to its end. `words`: "static" or "dynamic", and the
 * seed behind it. */
void chaos_worker(struct tether_test_rank *self);

#endif
