/* Remote references in a simulated world that goes wrong, many times, each time drawn from a seed.
 *
 * The agents, sessions, lanes and reference contexts are the shipped ones; the network, the clock
 * and the threads are simulated, so a seed runs the same way each time. oracle.c lists the
 * properties that are checked. A seed that fails prints the command that runs it again, with all
 * that happens in it:
 *
 *     TETHER_TRACE=1 ./dev sim 1234 1
 *
 * The test itself runs a fixed range of seeds; `./dev sim FIRST COUNT` runs any other. It reads
 * TETHER_SEED (the first seed), TETHER_SEEDS (how many) and TETHER_TRACE, too.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/cmocka.h"
#include "tests/sim/seed.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEEDS 100
#else
#define SEEDS 2000
#endif

static void print_count(int count, const char *name)
{
    print_message("%8d %s\n", count, name);
}

static void references_keep_the_protocol_promises_in_a_faulty_world(void **state)
{
    (void)state;
    struct seed_total total = {0};
    uint64_t first = seed_number_from("TETHER_SEED", 1);
    uint64_t n = seed_number_from("TETHER_SEEDS", getenv("TETHER_SEED") ? 1 : SEEDS);
    uint64_t shards = seed_number_from("TEST_TOTAL_SHARDS", 1);
    uint64_t shard = seed_number_from("TEST_SHARD_INDEX", 0);
    bool trace = seed_number_from("TETHER_TRACE", 0);
    char why[512];
    for (uint64_t seed = first + shard; seed < first + n; seed += shards)
        if (!seed_run(seed, trace, &total, why, sizeof why))
            fail_msg("seed %llu: %s\n    to see it again: TETHER_TRACE=1 ./dev sim %llu 1",
                     (unsigned long long)seed, why, (unsigned long long)seed);
    print_message("%d objects, %d references arrived, %d operations, %d refused\n", total.made,
                  total.arrived, total.used, total.refused);
    if (n / shards < 100) /* too few for each kind of fault to be certain */
        return;
    const char *lacks = seed_total_lacks(&total, print_count);
    if (lacks)
        fail_msg("there was no %s", lacks);
}

/* Tells Bazel that we split the work ourselves. */
static void declare_shards(void)
{
    const char *path = getenv("TEST_SHARD_STATUS_FILE");
    FILE *file = path && *path ? fopen(path, "w") : NULL;
    if (file)
        fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_keep_the_protocol_promises_in_a_faulty_world)};
    declare_shards();
    return cmocka_run_group_tests_name("references in a simulated world", tests, NULL, NULL);
}
