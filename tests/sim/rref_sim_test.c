/* Remote references in a simulated world that goes wrong, many times, each time drawn from a seed.
 *
 * The agents, sessions, lanes and reference contexts are the shipped ones; the network, the clock
 * and the threads are simulated, so a seed runs the same way each time. What is checked is told in
 * oracle.c. A seed that fails prints the command that runs it again, with all that happens in it:
 *
 *     TETHER_SEED=1234 TETHER_TRACE=1 \
 *         bazel run --test_sharding_strategy=disabled //tests/sim:rref_sim_test
 *
 *   TETHER_SEED=1234                runs seed 1234 alone
 *   TETHER_SEED=1 TETHER_SEEDS=5000 runs seeds 1 to 5000
 *   TETHER_TRACE=1                  tells what happens, on standard error
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/sim/crowd.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEEDS 100
#else
#define SEEDS 2000
#endif

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* What all seeds together have seen. */
struct total {
    int made, arrived, used, refused, restarted, bulky;
    struct tether_sim_faults faults;
};

static void add(struct total *total, const struct crowd *crowd)
{
    const struct tether_sim_faults *faults = tether_sim_faults(crowd->sim);
    total->made += crowd->seen.made;
    total->arrived += crowd->seen.arrived;
    total->used += crowd->seen.used;
    total->refused += crowd->seen.refused;
    total->restarted += crowd->seen.restarted;
    total->bulky += crowd->bulky;
    total->faults.cut += faults->cut;
    total->faults.lost += faults->lost;
    total->faults.duplicated += faults->duplicated;
    total->faults.reordered += faults->reordered;
    total->faults.slowed += faults->slowed;
    total->faults.parted += faults->parted;
    total->faults.paused += faults->paused;
    total->faults.killed += faults->killed;
}

static void fail_seed(uint64_t seed, const char *why)
{
    fail_msg(
        "seed %llu: %s\n    to see it again: TETHER_SEED=%llu TETHER_TRACE=1 "
        "bazel run --test_sharding_strategy=disabled //tests/sim:rref_sim_test",
        (unsigned long long)seed, why, (unsigned long long)seed);
}

static void run(uint64_t seed, bool trace, struct total *total)
{
    tether_test_heap_fail_never();
    struct crowd *crowd = crowd_new(seed, trace);
    chaos(crowd);
    if (crowd->violation[0])
        fail_seed(seed, crowd->violation);
    add(total, crowd);
    crowd_free(crowd);
    if (tether_test_heap_live() != 0)
        fail_seed(seed, "it leaves memory behind");
}

/* A promise that was kept in fair weather only is none. */
static void assert_all_has_happened(const struct total *total)
{
    const struct {
        const char *name;
        int n;
    } rows[] = {
        {"cut", total->faults.cut},
        {"messages lost", total->faults.lost},
        {"messages duplicated", total->faults.duplicated},
        {"messages reordered by reconnects", total->faults.reordered},
        {"delay", total->faults.slowed},
        {"partition", total->faults.parted},
        {"pause", total->faults.paused},
        {"crash", total->faults.killed},
        {"restart", total->restarted},
        {"worlds with values in pieces", total->bulky},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        print_message("%8d %s\n", rows[i].n, rows[i].name);
        if (!rows[i].n)
            fail_msg("there was no %s", rows[i].name);
    }
}

static void keeps_its_promises(void **state)
{
    (void)state;
    struct total total = {0};
    uint64_t first = number_from("TETHER_SEED", 1);
    uint64_t n = number_from("TETHER_SEEDS", getenv("TETHER_SEED") ? 1 : SEEDS);
    uint64_t shards = number_from("TEST_TOTAL_SHARDS", 1);
    uint64_t shard = number_from("TEST_SHARD_INDEX", 0);
    bool trace = number_from("TETHER_TRACE", 0);
    for (uint64_t seed = first + shard; seed < first + n; seed += shards)
        run(seed, trace, &total);
    print_message("%d objects, %d references arrived, %d operations, %d refused\n", total.made,
                  total.arrived, total.used, total.refused);
    if (n / shards >= 100) /* each kind of weather has come often */
        assert_all_has_happened(&total);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_its_promises)};
    declare_shards();
    return cmocka_run_group_tests_name("references in a simulated world", tests, NULL, NULL);
}
