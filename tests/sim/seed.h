/* Runs the world of one seed and says what broke. Shared by the test (rref_sim_test.c) and by the
 * program behind `./dev sim` (sim_range.c). */
#ifndef TETHER_TESTS_SIM_SEED_H
#define TETHER_TESTS_SIM_SEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/rpc/lib/sim_net.h"

/* Sums over all seeds that ran. Plain integers, so that it can live in shared memory. */
struct seed_total {
    long excuses[48]; /* how often each rule of the oracle excused something */
    int made, arrived, used, refused, restarted, bulky, store_losses, empty_stores, renamed;
    int two_runs, refused_starts, sliced;
    struct tether_sim_faults faults;
};

/* Runs one seed and adds what it saw to `total`. Returns false and writes the broken promise into
 * `why` when the seed fails; the memory of its world is not freed then, so heap counts of later
 * seeds in the same process are wrong. */
bool seed_run(uint64_t seed, bool trace, struct seed_total *total, char *why, size_t size);

/* Returns the name of a kind of fault that `total` never saw, NULL when each kind happened.
 * Prints each count with `print` (may be NULL). */
const char *seed_total_lacks(const struct seed_total *total,
                             void (*print)(int count, const char *name));

/* The name of a rule of the oracle; NULL: there is none with this number. */
const char *seed_excuse(size_t rule);

/* Adds what another process has seen. */
void seed_total_add(struct seed_total *total, const struct seed_total *more);

/* The number in the environment variable `name`, `otherwise` when it is unset or empty. */
uint64_t seed_number_from(const char *name, uint64_t otherwise);

#endif
