/* A group of tether-runs that loses a worker, a node or the store. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/tools/scene.h"

/* After kill -9 the others only notice missing heartbeats; after SIGTERM the node leaves the group.
 * In both cases its workers are gone, and the other nodes continue without it and with nodes that
 * join later. */
static void group_continues_when_a_node_is_lost(void **state)
{
    static const int signals[] = {SIGKILL, SIGTERM};
    static const char script[] =
        "echo world $WORLD_SIZE restarts $TETHER_RESTART_COUNT; " WAIT_FOR_EVER;
    for (int s = 0; s < 2; s++) {
        struct tether_test_child *nodes[3];
        char id[32];
        snprintf(id, sizeof id, "--rdzv-id=job-%d", s);
        for (int i = 0; i < 2; i++)
            nodes[i] =
                join_group(*state, id, "--nnodes=1:2", "--last-call=30s", "--", "sh", "-c", script);
        for (int i = 0; i < 2; i++)
            await_text(nodes[i], "world 2 restarts 0\n", 1);
        kill(nodes[0]->pid, signals[s]);
        await_text(nodes[1], "forming the group again: a node has left or is lost\n", 1);
        nodes[2] =
            join_group(*state, id, "--nnodes=1:2", "--last-call=30s", "--", "sh", "-c", script);
        await_text(nodes[1], "world 2 restarts 0\n", 2);
        await_text(nodes[2], "world 2 restarts 0\n", 1);
        tether_test_child_free(nodes[0]);
        for (int i = 1; i < 3; i++)
            kill(nodes[i]->pid, SIGTERM);
        for (int i = 1; i < 3; i++)
            end_node(nodes[i], 128 + SIGTERM);
    }
}

/* A worker may fail because it notices a lost node before the heartbeats do: that must not count as
 * a failure. The lost node is the leader, which takes the longest to be noticed: it was there
 * first. */
static void restarts_are_not_counted_when_a_node_is_lost(void **state)
{
    struct tether_test_child *nodes[2];
    char command[256], file[] = "/tmp/tether-nodes-XXXXXX";
    close(mkstemp(file));
    snprintf(command, sizeof command,
             "echo world $WORLD_SIZE; trap 'exit 0' TERM; while [ -e %s ]; do sleep 0.1; done; "
             "[ $WORLD_SIZE = 1 ] || exit 7",
             file);
    for (int i = 0; i < 2; i++) {
        nodes[i] = join_group(*state, "--nnodes=1:2", "--last-call=1s", "--", "sh", "-c", command);
        await_text(nodes[i], i == 0 ? "world 1\n" : "world 2\n", 1);
    }
    await_text(nodes[0], "world 2\n", 1);
    tether_test_signal_pid(nodes[0]->pid, SIGKILL);
    unlink(file);
    char *output = await_exit(nodes[1], 0);
    has(output, "failed: exit 7\n");
    has(output, "forming the group again: a node has left or is lost\n");
    has(output, "world 1\n");
    free(output);
    tether_test_child_free(nodes[0]);
    tether_test_child_free(nodes[1]);
}

static void nodes_exit_with_5_when_store_is_lost(void **state)
{
    struct scene *scene = *state;
    struct tether_test_child *nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group(scene, "--nnodes=2", "--", "sh", "-c", "echo up; " WAIT_FOR_EVER);
    for (int i = 0; i < 2; i++)
        await_text(nodes[i], "] up\n", 1);
    scene->server = tether_store_server_release(scene->server);
    for (int i = 0; i < 2; i++) {
        char *output = await_exit(nodes[i], 5);
        has(output, "the store has not answered for ");
        free(output);
        tether_test_child_free(nodes[i]);
    }
}

/* The host of the store is suspended for a while, which has no effect. Then it dies, and the other
 * node exits with an error. */
static void node_survives_pause_of_host_and_exits_when_host_dies(void **state)
{
    (void)state;
    const char *endpoint = free_endpoint();
    struct tether_test_child *host =
        launch(endpoint, "--rdzv-host=yes", "--nnodes=2", "--heartbeat=500ms",
               "--heartbeat-attempts=12", "--", "sh", "-c", "echo up; " WAIT_FOR_EVER);
    struct tether_test_child *other = launch(
        endpoint, "--rdzv-host=no", "--nnodes=2", "--heartbeat=500ms", "--heartbeat-attempts=12",
        "--", "sh", "-c", "i=0; while [ -e /proc ]; do echo tick $((i += 1)); sleep 0.1; done");
    await_text(host, "] up\n", 1);
    await_text(other, "] tick 1\n", 1);
    tether_test_signal_pid(host->pid, SIGSTOP);
    await_text(other, "] tick 7\n", 1); /* more than half a second, of a lease of six */
    tether_test_signal_pid(host->pid, SIGCONT);
    await_text(other, "] tick 75\n", 1); /* longer than the lease: no node was dropped */
    tether_test_signal_pid(host->pid, SIGKILL);
    char *output = await_exit(other, 5);
    has(output, "the store has not answered for ");
    assert_int_equal(count_text(output, "] tick 1\n"), 1);
    has_not(output, "forming the group again");
    free(output);
    tether_test_child_free(host);
    tether_test_child_free(other);
}

/* Does what the header of the example describes: kills a worker, kills a node, adds a node. */
static void elastic_example_runs_as_described(void **state)
{
    struct tether_test_child *nodes[3];
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group(*state, "--nnodes=1:2", "--last-call=10s", "--max-restarts=3",
                              "--nproc-per-node=2", "--", "sh", "-c",
                              "echo pid $$; exec examples/elastic 40 50");
    for (int i = 0; i < 2; i++)
        await_text(nodes[i], " of 4 goes on after step 0\n", 2);
    char *output = tether_test_child_output(nodes[0]);
    kill((pid_t)atol(strstr(output, "pid ") + 4), SIGKILL);
    free(output);
    await_text(nodes[1], "starting again: rank ", 1);
    await_text(nodes[0], " of 4 goes on after step ", 4);

    tether_test_signal_pid(nodes[0]->pid, SIGKILL);
    await_text(nodes[1], "forming the group again: a node has left or is lost\n", 1);
    nodes[2] = join_group(*state, "--nnodes=1:2", "--last-call=10s", "--max-restarts=3",
                          "--nproc-per-node=2", "--", "examples/elastic", "40", "50");
    await_text(nodes[2], " of 4 goes on after step ", 2);
    char *outputs[] = {await_exit(nodes[1], 0), await_exit(nodes[2], 0)};
    /* The worker with rank 0 at the end reports that four workers took every step once. */
    assert_int_equal(count_text(outputs[0], "step 40: 4 workers, total 160\n") +
                         count_text(outputs[1], "step 40: 4 workers, total 160\n"),
                     1);
    for (int i = 0; i < 2; i++)
        free(outputs[i]);
    for (int i = 0; i < 3; i++)
        tether_test_child_free(nodes[i]);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
#define STAGED(test) cmocka_unit_test_setup_teardown(test, scene_setup, scene_teardown)
    const struct CMUnitTest tests[] = {
        STAGED(group_continues_when_a_node_is_lost),
        STAGED(restarts_are_not_counted_when_a_node_is_lost),
        STAGED(nodes_exit_with_5_when_store_is_lost),
        STAGED(node_survives_pause_of_host_and_exits_when_host_dies),
        STAGED(elastic_example_runs_as_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
