/* What the two halves of chaos_test share: the rounds that they go through together, what they tell
 * each other through the world's marks and counters, and the dice.
 *
 *   chaos_test.c    the test: starts the workers, makes the faults
 *   chaos_worker.c  a worker: what it does, and whether that may fail
 */
#ifndef TETHER_TESTS_PROC_CHAOS_H
#define TETHER_TESTS_PROC_CHAOS_H

#include "tests/proc/stage.h"

enum { N = 4 }; /* workers */

/* Marks. A round begins with GO and ends with REST, each once; the others count workers. */
enum { GO, IN, REST, DONE, CHECKED, END };

/* Counters: operations by how they ended; the next thing's number; who is disturbed, a bit each. */
enum { WENT_WELL, FAILED_BY_FAULT, NEXT_NUMBER, DISTURBED };

void load_dice(uint64_t seed);
int draw(int n); /* 0 to n - 1; one thread */

/* Everything that a worker does, from its start to its end. `words`: "static" or "dynamic", and the
 * seed behind it. */
void chaos_worker(struct tether_test_rank *self);

#endif
