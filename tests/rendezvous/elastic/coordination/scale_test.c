/* Measures how the load on the store grows with the number of nodes, with the production code in
 * virtual time. Prints the table of docs/scale.md.
 *
 * Three things are counted: forming a group of N, a minute in which nothing happens, and forming it
 * again after one node has died. Each may grow no faster than N log N. For comparison, forming the
 * group without a leader: every node reads and writes the whole state.
 *
 * Built as a benchmark it goes up to 10,000 nodes.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rendezvous/elastic/lib/fixture.h"
#include "tests/rendezvous/elastic/sim/node.h"

#ifndef SCALE_MAX_NODES
#define SCALE_MAX_NODES 1000
#endif
#define LATENCY_NS (200 * INT64_C(1000))
#define ARRIVAL_NS (5 * S) /* the time in which the nodes arrive */
#define FORMING_NS (30 * S)
#define QUIET_NS (60 * S)

struct bill {
    struct sim_traffic form, quiet, reform;
    double form_s, reform_s; /* until the last node had its rank */
};

static struct sim_traffic minus(struct sim_traffic a, struct sim_traffic b)
{
    return (struct sim_traffic){a.requests - b.requests, a.keys - b.keys, a.bytes - b.bytes,
                                a.largest};
}

static void assert_all_ranked(const struct sim_job *job, int world_size)
{
    uint64_t round;
    if (sim_job_in_round(job, world_size, &round) != world_size)
        fail_msg("%d of %d nodes are in the round", sim_job_in_round(job, world_size, &round),
                 world_size);
    bool *taken = calloc((size_t)world_size, sizeof *taken);
    assert_non_null(taken);
    for (int i = 0; i < job->n; i++) {
        if (!job->nodes[i].in_round)
            continue;
        assert_in_range(job->nodes[i].rank, 0, world_size - 1);
        assert_false(taken[job->nodes[i].rank]);
        taken[job->nodes[i].rank] = true;
    }
    free(taken);
}

/* Returns the virtual seconds from `since` until the last node had joined the round. */
static double last_joined_s(const struct sim_job *job, int64_t since)
{
    int64_t last = since;
    for (int i = 0; i < job->n; i++) {
        if (job->nodes[i].in_round && job->nodes[i].joined_at > last)
            last = job->nodes[i].joined_at;
    }
    return (double)(last - since) / (double)S;
}

/* Starts `n` nodes and runs until they are all in a round. */
static void form(struct sim_job *job, int n, bool direct)
{
    struct tether_rdzv_settings settings = test_settings(n - 1, n);
    settings.run_id = "sim";
    settings.keep_alive_interval_ms = TETHER_RDZV_KEEP_ALIVE_INTERVAL_MS;
    settings.timeouts.last_call_ms = 10000;
    sim_job_init(job, (uint64_t)n, n, &settings, LATENCY_NS);
    job->stay = true;
    job->direct = direct;
    for (int i = 0; i < n; i++) {
        job->nodes[i].starts_at = (int64_t)(sim_random(job->sim) % (uint64_t)ARRIVAL_NS);
        sim_node_start(&job->nodes[i]);
    }
    sim_run(job->sim, FORMING_NS);
    assert_all_ranked(job, n);
}

static struct bill measure(int n)
{
    struct bill bill;
    struct sim_job job;
    form(&job, n, false);
    bill.form = sim_store_traffic(job.store);
    bill.form_s = last_joined_s(&job, 0);

    struct sim_traffic before = sim_store_traffic(job.store);
    sim_run(job.sim, sim_now(job.sim) + QUIET_NS);
    bill.quiet = minus(sim_store_traffic(job.store), before);
    assert_all_ranked(&job, n);

    /* A node that does not lead dies; the others notice and form the next round. */
    int victim = 0;
    while (tether__rdzv_member_holder_leads(&job.nodes[victim].member))
        victim++;
    before = sim_store_traffic(job.store);
    int64_t since = sim_now(job.sim);
    job.stay = false;
    sim_node_kill(&job.nodes[victim]);
    sim_run(job.sim, sim_now(job.sim) + QUIET_NS);
    assert_all_ranked(&job, n - 1);
    bill.reform = minus(sim_store_traffic(job.store), before);
    bill.reform_s = last_joined_s(&job, since);
    sim_job_fini(&job);
    return bill;
}

static struct sim_traffic measure_direct(int n)
{
    struct sim_job job;
    form(&job, n, true);
    struct sim_traffic traffic = sim_store_traffic(job.store);
    sim_job_fini(&job);
    return traffic;
}

static void print_bill(int n, const char *what, const struct sim_traffic *traffic)
{
    print_message("| %6d | %-24s | %9llu | %9llu | %8.2f | %8.1f |\n", n, what,
                  (unsigned long long)traffic->requests, (unsigned long long)traffic->keys,
                  (double)traffic->bytes / 1e6, (double)traffic->bytes / n);
}

/* Asserts that bytes and requests grow no faster than N log N from `small` to `large`. */
static void assert_growth(const char *what,
                          int small,
                          const struct sim_traffic *a,
                          int large,
                          const struct sim_traffic *b)
{
    double allowed = (large * log2(large)) / (small * log2(small));
    double requests = (double)b->requests / (double)a->requests;
    double keys = (double)b->keys / (double)a->keys;
    double bytes = (double)b->bytes / (double)a->bytes;
    if (requests > allowed || keys > allowed || bytes > allowed)
        fail_msg("%s, %d to %d nodes: requests x %.1f, keys x %.1f, bytes x %.1f; N log N: x %.1f",
                 what, small, large, requests, keys, bytes, allowed);
}

static void traffic_grows_no_faster_than_n_log_n(void **state)
{
    (void)state;
    static const int sizes[] = {10, 100, 1000, 10000};
    struct bill bills[TETHER__ARRAY_LEN(sizes)];
    print_message(
        "|  nodes | what                     |  requests |      keys |       MB |  bytes/N |\n");
    print_message(
        "|--------|--------------------------|-----------|-----------|----------|----------|\n");
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes) && sizes[i] <= SCALE_MAX_NODES; i++) {
        bills[i] = measure(sizes[i]);
        char formed[32], reformed[32];
        snprintf(formed, sizeof formed, "form (%.1f s)", bills[i].form_s);
        snprintf(reformed, sizeof reformed, "form again (%.1f s)", bills[i].reform_s);
        print_bill(sizes[i], formed, &bills[i].form);
        print_bill(sizes[i], "a quiet minute", &bills[i].quiet);
        print_bill(sizes[i], reformed, &bills[i].reform);
        if (i < 2)
            continue; /* only from 100 nodes on: below, constant costs dominate */
        assert_growth("forming", sizes[i - 1], &bills[i - 1].form, sizes[i], &bills[i].form);
        assert_growth("quiet", sizes[i - 1], &bills[i - 1].quiet, sizes[i], &bills[i].quiet);
        assert_growth("forming again", sizes[i - 1], &bills[i - 1].reform, sizes[i],
                      &bills[i].reform);
    }
}

static void group_moves_fewer_bytes_with_leader(void **state)
{
    (void)state;
    static const int sizes[] = {10, 100, 300};
    struct sim_traffic direct = {0};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        direct = measure_direct(sizes[i]);
        print_bill(sizes[i], "form without a leader", &direct);
    }
    struct bill led = measure(300);
    print_bill(300, "form with a leader", &led.form);
    assert_true(led.form.bytes * 4 < direct.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traffic_grows_no_faster_than_n_log_n),
        cmocka_unit_test(group_moves_fewer_bytes_with_leader),
    };
    return cmocka_run_group_tests_name("dynamic scale", tests, NULL, NULL);
}
