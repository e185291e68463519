/* The heap of a test: counts the blocks that the library holds, and makes the nth allocation fail.
 *
 * A test that calls any of these functions has this allocator from the start of the process. Happy
 * path:
 *
 *     for (int n = 0;; n++) {
 *         tether_test_heap_fail_at(n);
 *         tether_status st = roundtrip();
 *         assert_int_equal(tether_test_heap_live(), 0);
 *         if (!tether_test_heap_fired()) { assert_int_equal(st, TETHER_OK); break; }
 *     }
 *     tether_test_heap_fail_never();
 *
 * tether_test_heap_fail_each() contains this loop. Any thread; counts are of the whole process, so
 * the scenario must join its threads before it returns.
 */
#ifndef TETHER_TESTS_LIB_HEAP_H
#define TETHER_TESTS_LIB_HEAP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Lets `n` allocations (malloc or growing realloc) succeed, fails the next one, and lets the rest
 * succeed. Resets the live count to 0. */
void tether_test_heap_fail_at(int n);

/* Like tether_test_heap_fail_at(), but fails every allocation after the first `n`. So it checks
 * that cleaning up needs no memory. */
void tether_test_heap_fail_from(int n);

void tether_test_heap_fail_never(void);

/* Lets all further allocations succeed; the counts continue. */
void tether_test_heap_relent(void);

/* Whether an allocation has failed since the last fail_at() or fail_from(). */
bool tether_test_heap_fired(void);

/* Returns the number of blocks allocated and not freed since the last fail_…(), or since the
 * process started. */
long tether_test_heap_live(void);

/* Returns the number of bytes in those live blocks, as the C library has rounded them. */
long tether_test_heap_bytes(void);

/* Returns the number of allocations that succeeded, growing ones included, since the process
 * started. */
long tether_test_heap_allocations(void);

/* Runs `scenario` with its 1st, 2nd, 3rd ... allocation failing, alone and with all later ones,
 * until a run has no failure. Asserts after each run that no block is left and that the status is
 * TETHER_OK or TETHER_ENOMEM, and TETHER_OK after the last. */
typedef tether_status tether_test_scenario(void *userdata);
void tether_test_heap_fail_each(tether_test_scenario *scenario, void *userdata);

#endif
