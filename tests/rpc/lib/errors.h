/* For tests of the words of errors. */
#ifndef TETHER_TESTS_RPC_ERRORS_H
#define TETHER_TESTS_RPC_ERRORS_H

#include "tests/rpc/lib/world.h"

/* Fails the test unless the message of `err` has these words in it. */
void assert_says(const tether_error *err, const char *words);

/* Occupies the thread pool of a simulated world: the next pooled call waits until w1 has free
 * threads again. */
void occupy_threads(struct tether_test_world *world);
void free_threads(struct tether_test_world *world);

#endif
