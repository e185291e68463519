/* Measures how long nodes need to form a group. Nodes are threads, each with a connection of its
 * own to one TCP store; all start at the same moment.
 *
 * "full": the round is complete when the last node has joined. "last call": one more node could
 * still join, so the round waits for the last call; the reported time is the time beyond it. Both
 * contain the random delay of up to 0.3 s before a node joins.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/lib/measure.h"
#include "bench/lib/options.h"
#include "bench/lib/results.h"
#include "rendezvous/elastic/handler/handler.h"
#include "rendezvous/store_tcp.h"

#define MAX_NODES 256
#define LAST_CALL_MS 1000
#define GOAL_NODES 64
#define GOAL_MS 1000

struct node {
    pthread_t thread;
    pthread_barrier_t *start;
    int port, min_nodes, max_nodes;
    const char *run_id;
    int64_t joined_ms; /* when the node got its rank */
    int rank, world_size;
    uint64_t round;
    char failure[256];
};

static int64_t now_ms(void)
{
    return tether__clock_now_ms(&tether__clock_system);
}

static tether_status run_node(struct node *node, tether_error *reterr)
{
    tether_store *store = NULL;
    tether_rdzv *rdzv = NULL;
    struct tether_rdzv_info info = {0};
    struct tether_rdzv_settings settings;
    tether_rdzv_settings_init(&settings);
    settings.run_id = node->run_id;
    settings.min_nodes = node->min_nodes;
    settings.max_nodes = node->max_nodes;
    settings.timeouts.last_call_ms = LAST_CALL_MS;
    settings.local_addr = "127.0.0.1";
    tether_status st =
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = node->port), &store, reterr);
    if (st == TETHER_OK)
        st = tether_rdzv_new(&settings, store, NULL, &rdzv, reterr);
    pthread_barrier_wait(node->start);
    if (st == TETHER_OK)
        st = tether_rdzv_next(rdzv, &info, reterr);
    node->joined_ms = now_ms();
    node->rank = info.rank;
    node->world_size = info.world_size;
    node->round = info.round;
    pthread_barrier_wait(node->start); /* all threads have started */
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
    tether_store_release(store);
    return st;
}

static void *node_thread(void *userdata)
{
    struct node *node = userdata;
    tether_error err = {0};
    if (run_node(node, &err) != TETHER_OK)
        snprintf(node->failure, sizeof node->failure, "%s", err.message);
    return NULL;
}

/* Returns the milliseconds from the start until the last node had its rank; -1 on failure. */
static int64_t form(int n, int max_nodes, int run)
{
    static struct node nodes[MAX_NODES];
    tether_store_server *server = NULL;
    tether_error err = {0};
    if (tether_store_server_new(TETHER_STORE_SERVER_OPTS(.port = 0), &server, &err) != TETHER_OK) {
        fprintf(stderr, "%s\n", err.message);
        return -1;
    }
    char run_id[32];
    snprintf(run_id, sizeof run_id, "bench-%d", run);
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)n + 1);
    for (int i = 0; i < n; i++) {
        nodes[i] = (struct node){.start = &start,
                                 .port = tether_store_server_port(server),
                                 .min_nodes = n,
                                 .max_nodes = max_nodes,
                                 .run_id = run_id};
        if (pthread_create(&nodes[i].thread, NULL, node_thread, &nodes[i]) != 0)
            abort();
    }
    pthread_barrier_wait(&start);
    int64_t began_ms = now_ms(), last_ms = began_ms;
    pthread_barrier_wait(&start);
    bool taken[MAX_NODES] = {false}, good = true;
    for (int i = 0; i < n; i++) {
        pthread_join(nodes[i].thread, NULL);
        if (nodes[i].failure[0] != '\0' || nodes[i].world_size != n || taken[nodes[i].rank]) {
            fprintf(stderr, "node %d: rank %d of %d: %s\n", i, nodes[i].rank, nodes[i].world_size,
                    nodes[i].failure);
            good = false;
            continue;
        }
        taken[nodes[i].rank] = true;
        last_ms = nodes[i].joined_ms > last_ms ? nodes[i].joined_ms : last_ms;
    }
    pthread_barrier_destroy(&start);
    tether_store_server_release(server);
    return good ? last_ms - began_ms : -1;
}

/* Returns the milliseconds of some runs; with `last_call`, the time beyond the last call. */
static struct bench_spread measure(int n, bool last_call, int rounds)
{
    double times[BENCH_MAX_ROUNDS];
    for (int run = 0; run < rounds; run++) {
        int64_t took = form(n, last_call ? n + 1 : n, run);
        if (took < 0)
            bench_die("the nodes did not become a group", NULL);
        times[run] = (double)(took - (last_call ? LAST_CALL_MS : 0));
    }
    return bench_spread_of(times, (size_t)rounds);
}

static void report(bool last_call, int n, struct bench_spread ms)
{
    const char *figure = last_call ? "beyond the last call" : "complete";
    char who[32];
    snprintf(who, sizeof who, n == 1 ? "%d node" : "%d nodes", n);
    bench_result(&(struct bench_result){
        .figure = figure, .placement = "-", .who = who, .unit = "ms", .value = ms});
    if (last_call && n == GOAL_NODES)
        bench_goal(&(struct bench_verdict){.text = "64 nodes, beyond the last call",
                                           .placement = "-",
                                           .figure = figure,
                                           .who = who,
                                           .unit = "ms",
                                           .value = ms,
                                           .limit = GOAL_MS,
                                           .at = GOAL_MS});
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 8, GOAL_NODES, MAX_NODES};
    struct bench_options options = {.only = "", .rounds = 5, .seconds = 1};
    bench_options_read(argc, argv, &options);
    bench_results_open("rendezvous", options.tsv);
    for (int last_call = 0; last_call < 2; last_call++) {
        for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
            size_t done = (size_t)last_call * TETHER__ARRAY_LEN(sizes) + i;
            bench_progress(done, 2 * TETHER__ARRAY_LEN(sizes),
                           last_call ? "beyond the last call" : "complete");
            report(last_call, sizes[i], measure(sizes[i], last_call, options.rounds));
        }
    }
    bench_results_close();
    return 0;
}
