/* Several tether-runs in one group: they form it, fail, join, leave and die. Each node is a
 * process. This process has the store, unless a test is about a node that hosts it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/tools/scene.h"

static void ranks_continue_from_node_to_node(void **state)
{
    struct tether_test_child *nodes[3];
    static const char *const nproc[] = {"--nproc-per-node=1", "--nproc-per-node=3",
                                        "--nproc-per-node=2"};
    static const char *const rank[] = {"--node-rank=0", "--node-rank=1", "--node-rank=2"};
    for (int i = 0; i < 3; i++)
        nodes[i] = join_group(*state, "--nnodes=3", nproc[i], rank[i], "--", "sh", "-c",
                              "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
                              "$NODE_RANK/$NODE_COUNT");
    static const char *const lines[3][3] = {
        {"[0] 0/6 0/1 0/3\n"},
        {"[1] 1/6 0/3 1/3\n", "[2] 2/6 1/3 1/3\n", "[3] 3/6 2/3 1/3\n"},
        {"[4] 4/6 0/2 2/3\n", "[5] 5/6 1/2 2/3\n"},
    };
    for (int i = 0; i < 3; i++) {
        char *output = await_exit(nodes[i], 0);
        for (int k = 0; k < 3 && lines[i][k]; k++)
            has(output, lines[i][k]);
        has(output, "tether-run: round 0: node ");
        free(output);
        tether_test_child_free(nodes[i]);
    }
}

static void workers_of_all_nodes_form_one_group(void **state)
{
    struct tether_test_child *nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group(*state, "--nnodes=2", "--nproc-per-node=2", "--", "examples/elastic",
                              "4", "1");
    for (int i = 0; i < 2; i++)
        end_node(nodes[i], 0);
}

/* Failures cost one restart of all workers, on whichever node they happen and however many workers
 * fail. */
static void failure_restarts_all_nodes(void **state)
{
    struct tether_test_child *nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group(*state, "--nnodes=2", "--nproc-per-node=2", "--max-restarts=2", "--",
                              "sh", "-c",
                              "echo try $TETHER_RESTART_COUNT; [ $TETHER_RESTART_COUNT = 2 ] && "
                              "exit 0; [ $RANK -ge 2 ] && exit 5; exec sleep 600");
    for (int i = 0; i < 2; i++) {
        char *output = await_exit(nodes[i], 0);
        for (int n = 0; n < 3; n++) {
            char text[48]; /* a worker may be stopped before it has printed anything */
            snprintf(text, sizeof text, " of 4, restarts %d\n", n);
            assert_int_equal(count_text(output, text), 1);
        }
        assert_int_equal(count_text(output, "] try 2\n"), 2);
        assert_int_equal(count_text(output, "tether-run: starting again: rank "), 2);
        free(output);
        tether_test_child_free(nodes[i]);
    }
}

static void failure_without_restarts_ends_all_nodes(void **state)
{
    struct tether_test_child *nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group(*state, "--nnodes=2", "--", "sh", "-c",
                              "[ $RANK = 1 ] && { echo last words; exit 5; }; exec sleep 600");
    int tails = 0;
    for (int i = 0; i < 2; i++) {
        char *output = await_exit(nodes[i], 1);
        has(output, "the job has failed: rank 1 on node 1: exit 5\n");
        tails += count_text(output, "last lines of rank 1:\n    last words\n");
        free(output);
        tether_test_child_free(nodes[i]);
    }
    assert_int_equal(tails, 1);
}

static void group_reforms_when_a_node_joins(void **state)
{
    struct tether_test_child *nodes[3];
    static const char script[] = "echo world $WORLD_SIZE in $TETHER_ROUND; " WAIT_FOR_EVER;
    nodes[0] = join_group(*state, "--nnodes=1:3", "--", "sh", "-c", script);
    await_text(nodes[0], "world 1 in 0\n", 1);
    nodes[1] = join_group(*state, "--nnodes=1:3", "--", "sh", "-c", script);
    await_text(nodes[0], "forming the group again: 1 more node has joined\n", 1);
    await_text(nodes[0], "world 2 in 1\n", 1);
    await_text(nodes[1], "world 2 in 1\n", 1);
    nodes[2] = join_group(*state, "--nnodes=1:3", "--", "sh", "-c", script);
    for (int i = 0; i < 3; i++)
        await_text(nodes[i], "world 3 in 2\n", 1);
    for (int i = 0; i < 3; i++)
        kill(nodes[i]->pid, SIGTERM);
    for (int i = 0; i < 3; i++)
        end_node(nodes[i], 128 + SIGTERM);
}

static void eight_nodes_join_at_once(void **state)
{
    struct tether_test_child *nodes[8];
    for (int i = 0; i < 8; i++)
        nodes[i] = join_group(*state, "--nnodes=8", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE");
    for (int rank = 0, found = 0; rank < 8; rank++, found = 0) {
        char line[32];
        snprintf(line, sizeof line, "] %d of 8\n", rank);
        for (int i = 0; i < 8; i++) {
            char *output = await_exit(nodes[i], 0);
            found += count_text(output, line);
            free(output);
        }
        assert_int_equal(found, 1);
    }
    for (int i = 0; i < 8; i++)
        tether_test_child_free(nodes[i]);
}

static void join_times_out_when_nodes_are_too_few(void **state)
{
    struct tether_test_child *node =
        join_group(*state, "--nnodes=2", "--join-timeout=3s", "--", "true");
    char *output = await_exit(node, 3);
    has(output, "tether-run: too few nodes within 3 s: start the others with the same ");
    has(output, "tether-run: 1 of 2 nodes, ");
    has(output, " s left\n");
    free(output);
    tether_test_child_free(node);
}

static void join_fails_when_job_is_over(void **state)
{
    end_node(join_group(*state, "--nnodes=1:2", "--", "true"), 0);
    struct tether_test_child *late = join_group(*state, "--nnodes=1:2", "--", "true");
    char *output = await_exit(late, 4);
    has(output, "closed");
    free(output);
    tether_test_child_free(late);
}

/* A third node is a spare while the round is full, and joins when a node leaves. */
static void spare_joins_when_a_node_leaves(void **state)
{
    struct tether_test_child *nodes[3];
    static const char script[] = "echo world $WORLD_SIZE; " WAIT_FOR_EVER;
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group(*state, "--nnodes=2", "--", "sh", "-c", script);
    for (int i = 0; i < 2; i++)
        await_text(nodes[i], "world 2\n", 1);
    nodes[2] = join_group(*state, "--nnodes=2", "--", "sh", "-c", script);
    await_text(nodes[2], "waiting for the next round, 2 nodes run now", 1);
    kill(nodes[0]->pid, SIGTERM);
    end_node(nodes[0], 128 + SIGTERM);
    await_text(nodes[1], "world 2\n", 2);
    await_text(nodes[2], "world 2\n", 1);
    for (int i = 1; i < 3; i++)
        kill(nodes[i]->pid, SIGTERM);
    for (int i = 1; i < 3; i++)
        end_node(nodes[i], 128 + SIGTERM);
}

static void join_ends_when_a_signal_arrives(void **state)
{
    struct tether_test_child *node = join_group(*state, "--nnodes=2", "--", "true");
    await_text(node, "1 of 2 nodes", 1);
    kill(node->pid, SIGINT);
    end_node(node, 128 + SIGINT);
    node = launch("--rdzv-endpoint=127.0.0.1:1", "--rdzv-host=no", "--nnodes=2", "--", "true");
    await_text(node, "waiting for the store at 127.0.0.1:1", 1);
    kill(node->pid, SIGTERM);
    end_node(node, 128 + SIGTERM);
}

static void join_fails_when_store_cannot_be_reached(void **state)
{
    (void)state;
    struct tether_test_child *node = launch("--rdzv-endpoint=127.0.0.1:1", "--rdzv-host=no",
                                            "--join-timeout=700ms", "--nnodes=2", "--", "true");
    char *output = await_exit(node, 5);
    has(output, "no store at 127.0.0.1:1");
    free(output);
    tether_test_child_free(node);
}

/* The first node hosts the store and stays until all other nodes know the result. */
static void first_node_hosts_the_store(void **state)
{
    (void)state;
    const char *endpoint = free_endpoint();
    struct tether_test_child *nodes[3];
    for (int i = 0; i < 3; i++)
        nodes[i] = launch(endpoint, "--nnodes=3", "--nproc-per-node=2", "--", "examples/elastic",
                          "3", "1");
    for (int i = 0; i < 3; i++)
        end_node(nodes[i], 0);
}

static void nodes_form_a_group_at_a_file(void **state)
{
    (void)state;
    char path[] = "/tmp/tether-nodes-XXXXXX", endpoint[64];
    close(mkstemp(path));
    unlink(path);
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=%s", path);
    struct tether_test_child *nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = launch("--rdzv-backend=file", endpoint, "--nnodes=2", HEARTBEAT, "--",
                          "examples/elastic", "3", "1");
    for (int i = 0; i < 2; i++)
        end_node(nodes[i], 0);
    unlink(path);
}

static void store_of_workers_is_beyond_loopback_only_when_run_is_insecure(void **state)
{
    (void)state;
    char path[] = "/tmp/tether-nodes-XXXXXX", endpoint[64];
    close(mkstemp(path));
    unlink(path);
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=%s", path);
    struct tether_test_child *node =
        launch("--rdzv-backend=file", endpoint, "--node-addr=0.0.0.0", HEARTBEAT, "--", "true");
    char *output = await_exit(node, 2);
    has(output, "the store of the workers at 0.0.0.0 would be beyond loopback");
    has(output, "give --insecure if you trust the network");
    has_not(output, "'insecure'");
    free(output);
    tether_test_child_free(node);
    unlink(path);
    node = launch("--rdzv-backend=file", endpoint, "--node-addr=0.0.0.0", "--insecure", HEARTBEAT,
                  "--", "true");
    end_node(node, 0);
    unlink(path);
}

static void job_id_can_be_used_again_when_its_keys_are_dropped(void **state)
{
    struct scene *scene = *state;
    end_node(join_group(scene, "--rdzv-id=nightly", "--", "true"), 0);
    end_node(join_group(scene, "--rdzv-id=nightly", "--", "true"), 4);
    char at[64];
    snprintf(at, sizeof at, "--listen=127.0.0.1:%d", tether_store_server_port(scene->server));
    struct tether_test_child *drop = tether_test_child_start(
        (const char *const[]){"tools/tether-store", "--drop-job=nightly", at, NULL});
    assert_true(tether_test_child_wait(drop, TETHER_TEST_LIMIT_MS) && tether_test_child_ok(drop));
    tether_test_child_free(drop);
    struct tether_store_server_stats stats;
    tether_store_server_stats(scene->server, &stats);
    assert_int_equal(stats.keys, 0); /* the job has left no other key */
    end_node(join_group(scene, "--rdzv-id=nightly", "--", "true"), 0);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
#define STAGED(test) cmocka_unit_test_setup_teardown(test, scene_setup, scene_teardown)
    const struct CMUnitTest tests[] = {
        STAGED(ranks_continue_from_node_to_node),
        STAGED(workers_of_all_nodes_form_one_group),
        STAGED(failure_restarts_all_nodes),
        STAGED(failure_without_restarts_ends_all_nodes),
        STAGED(group_reforms_when_a_node_joins),
        STAGED(eight_nodes_join_at_once),
        STAGED(join_times_out_when_nodes_are_too_few),
        STAGED(join_fails_when_job_is_over),
        STAGED(spare_joins_when_a_node_leaves),
        STAGED(join_ends_when_a_signal_arrives),
        STAGED(join_fails_when_store_cannot_be_reached),
        STAGED(first_node_hosts_the_store),
        STAGED(nodes_form_a_group_at_a_file),
        STAGED(store_of_workers_is_beyond_loopback_only_when_run_is_insecure),
        STAGED(job_id_can_be_used_again_when_its_keys_are_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
