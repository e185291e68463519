/* Random faults: the production code in virtual time, with nodes that die, freeze, leave and come
 * late, and a store that stops answering for a while.
 *
 * Safety: in one round every rank belongs to one node, and all its nodes agree on its size.
 * Liveness: after the faults, all remaining nodes are in one round, and no node has got an error.
 *
 * A failure prints the seed; CHAOS_SEED=<n> runs only that seed, CHAOS_RUNS=<n> sets the number of
 * runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rendezvous/elastic/lib/fixture.h"
#include "tests/rendezvous/elastic/sim/node.h"

#define LATENCY_NS (500 * INT64_C(1000))
#define TROUBLE_NS (150 * S)
#define PEACE_NS (150 * S)
#define MAX_NODES 12
#define MAX_ROUNDS 512
#define RUNS 40

/* The node of each rank in each round. */
struct record {
    uint64_t seed;
    struct {
        int world_size;
        int owner[MAX_NODES + 1]; /* number of the node + 1; 0: none yet */
    } rounds[MAX_ROUNDS];
};

static void on_join(struct sim_job *job, struct sim_node *node)
{
    struct record *record = job->userdata;
    if (node->round >= MAX_ROUNDS)
        fail_msg("seed %llu: round %llu", (unsigned long long)record->seed,
                 (unsigned long long)node->round);
    int *world_size = &record->rounds[node->round].world_size;
    if (*world_size == 0)
        *world_size = node->world_size;
    if (*world_size != node->world_size || node->world_size < job->settings.min_nodes ||
        node->world_size > job->settings.max_nodes || node->rank < 0 ||
        node->rank >= node->world_size)
        fail_msg("seed %llu: node %d is rank %d of %d in round %llu, which has %d",
                 (unsigned long long)record->seed, node->number, node->rank, node->world_size,
                 (unsigned long long)node->round, *world_size);
    int *owner = &record->rounds[node->round].owner[node->rank];
    if (*owner != 0 && *owner != node->number + 1)
        fail_msg("seed %llu: rank %d of round %llu belongs to nodes %d and %d",
                 (unsigned long long)record->seed, node->rank, (unsigned long long)node->round,
                 *owner - 1, node->number);
    *owner = node->number + 1;
}

static bool alive(const struct sim_node *node)
{
    return node->fiber && !sim_dead(node->fiber) && !node->leave;
}

static int count_alive(const struct sim_job *job)
{
    int count = 0;
    for (int i = 0; i < job->n; i++)
        count += alive(&job->nodes[i]);
    return count;
}

static void make_trouble(struct sim_job *job)
{
    uint64_t kind = sim_random(job->sim) % 10;
    struct sim_node *node = &job->nodes[sim_random(job->sim) % (uint64_t)job->n];
    int64_t while_ns = (int64_t)(sim_random(job->sim) % (uint64_t)(25 * S));
    if (!node->fiber) { /* comes late */
        sim_node_start(node);
    } else if (!alive(node)) {
        if (sim_ended(node->fiber) && kind < 5)
            sim_node_restart(node);
    } else if (kind < 2 && count_alive(job) > 2) {
        sim_node_kill(node);
    } else if (kind < 3 && count_alive(job) > 2) {
        node->leave = true;
    } else if (kind < 7) { /* sometimes for longer than its lease */
        sim_freeze(job->sim, node->fiber, sim_now(job->sim) + while_ns);
    } else if (kind < 8) { /* freezes the store for less than a lease */
        sim_store_freeze(job->store, sim_now(job->sim) + while_ns / 3);
    }
}

static void check_peace(const struct sim_job *job, uint64_t seed)
{
    int left = count_alive(job);
    int expected = left < job->settings.max_nodes ? left : job->settings.max_nodes;
    uint64_t round;
    int in_round = sim_job_in_round(job, expected, &round);
    if (in_round != expected)
        fail_msg("seed %llu: %d of %d nodes are in one round at the end", (unsigned long long)seed,
                 in_round, expected);
    for (int i = 0; i < job->n; i++) {
        if (alive(&job->nodes[i]) && job->nodes[i].ended != TETHER_OK)
            fail_msg("seed %llu: node %d ended with %s", (unsigned long long)seed, i,
                     tether_status_name(job->nodes[i].ended));
    }
}

static void run(uint64_t seed)
{
    static struct record record;
    memset(&record, 0, sizeof record);
    record.seed = seed;
    struct tether_rdzv_settings settings = test_settings(1, MAX_NODES);
    settings.run_id = "sim";
    settings.keep_alive_interval_ms = TETHER_RDZV_KEEP_ALIVE_INTERVAL_MS;
    settings.timeouts.last_call_ms = 3000;
    struct sim_job job;
    int n = 3 + (int)(seed % (MAX_NODES - 2));
    if (seed % 4 == 0) /* with spares */
        settings.max_nodes = n > 4 ? n / 2 : n;
    sim_job_init(&job, seed, n, &settings, LATENCY_NS);
    job.on_join = on_join;
    job.userdata = &record;
    for (int i = 0; i < n; i++) {
        if (i < 2 || sim_random(job.sim) % 4 != 0)
            sim_node_start(&job.nodes[i]);
    }
    while (sim_now(job.sim) < TROUBLE_NS) {
        sim_run(job.sim, sim_now(job.sim) + (int64_t)(sim_random(job.sim) % (uint64_t)(8 * S)));
        make_trouble(&job);
    }
    sim_run(job.sim, sim_now(job.sim) + PEACE_NS);
    check_peace(&job, seed);
    sim_job_fini(&job);
}

static void group_reforms_after_random_faults(void **state)
{
    (void)state;
    const char *one = getenv("CHAOS_SEED"), *runs = getenv("CHAOS_RUNS");
    if (one) {
        run(strtoull(one, NULL, 10));
        return;
    }
    uint64_t n = runs ? strtoull(runs, NULL, 10) : RUNS;
    for (uint64_t seed = 1; seed <= n; seed++)
        run(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_reforms_after_random_faults),
    };
    return cmocka_run_group_tests_name("dynamic chaos", tests, NULL, NULL);
}
