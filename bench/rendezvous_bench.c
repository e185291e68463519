/* How long nodes need to become a group: threads, each with a connection of its own to one TCP
 * store, that all start at the same moment.
 *
 * "full": the round is complete when the last node has come. "last call": one more could still
 * come, so the round waits for the time of the last call; what is told is the time beyond that.
 * Both contain the up to 0.3 s by which nodes come apart on purpose. Exits with 1 when 64 nodes
 * need more than a second beyond the last call.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/dynamic/handler.h"
#include "rendezvous/store_tcp.h"

#define MAX_NODES 256
#define LAST_CALL_MS 1000
#define RUNS 5
#define GOAL_NODES 64
#define GOAL_MS 1000

struct node {
    pthread_t thread;
    pthread_barrier_t *start;
    int port, min_nodes, max_nodes;
    const char *run_id;
    int64_t joined_ms; /* when it had its rank */
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
    pthread_barrier_wait(node->start); /* nobody goes before all are there */
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

/* Milliseconds from the start until the last node had its rank; -1: it did not work. */
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

static int compare(const void *a, const void *b)
{
    return (*(const int64_t *)a > *(const int64_t *)b) -
           (*(const int64_t *)a < *(const int64_t *)b);
}

/* The median of some runs; -1: one did not work. */
static int64_t median(int n, bool last_call)
{
    int64_t times[RUNS];
    for (int run = 0; run < RUNS; run++) {
        times[run] = form(n, last_call ? n + 1 : n, run);
        if (times[run] < 0)
            return -1;
        if (last_call)
            times[run] -= LAST_CALL_MS;
    }
    qsort(times, RUNS, sizeof *times, compare);
    return times[RUNS / 2];
}

int main(void)
{
    static const int sizes[] = {1, 8, GOAL_NODES, MAX_NODES};
    bool good = true;
    printf("nodes      full   beyond last call   (ms, median of %d)\n", RUNS);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        int64_t full = median(sizes[i], false), beyond = median(sizes[i], true);
        printf("%5d  %8lld   %16lld\n", sizes[i], (long long)full, (long long)beyond);
        fflush(stdout);
        good &= full >= 0 && beyond >= 0 && (sizes[i] > GOAL_NODES || beyond <= GOAL_MS);
    }
    return good ? 0 : 1;
}
