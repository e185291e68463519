/* Several tether-runs that make one group: meeting, failing, joining, leaving, dying. Each node is
 * a process; the store is in this one, unless a test is about a node that hosts it. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/macros.h"
#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/tools/launch.h"

/* Three seconds of silence: long enough for a machine that is busy, short enough for a test. */
#define HEARTBEAT "--heartbeat=500ms", "--heartbeat-attempts=6"
#define WAIT_FOR_EVER "trap 'exit 0' TERM; sleep 600 & wait"

struct scene {
    tether_store_server *server;
    char endpoint[64];
};

static int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);
    tether_error err = {0};
    if (tether_store_server_new(TETHER_STORE_SERVER_OPTS(.host = "127.0.0.1"), &scene->server,
                                &err) != TETHER_OK)
        fail_msg("%s", err.message);
    snprintf(scene->endpoint, sizeof scene->endpoint, "--rdzv-endpoint=127.0.0.1:%d",
             tether_store_server_port(scene->server));
    *state = scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *scene = *state;
    tether_store_server_release(scene->server);
    free(scene);
    return 0;
}

#define join_group(scene, ...) \
    launch((scene)->endpoint, "--rdzv-host=no", "--last-call=300ms", HEARTBEAT, __VA_ARGS__)

static void end(struct tether_test_child *child, int exit_code)
{
    free(await_exit(child, exit_code));
    tether_test_child_free(child);
}

static void ranks_go_over_all_nodes(void **state)
{
    struct tether_test_child *nodes[3];
    static const char *const nproc[] = {"--nproc-per-node=1", "--nproc-per-node=3",
                                        "--nproc-per-node=2"};
    static const char *const rank[] = {"--node-rank=0", "--node-rank=1", "--node-rank=2"};
    for (int i = 0; i < 3; i++)
        nodes[i] =
            join_group((struct scene *)*state, "--nnodes=3", nproc[i], rank[i], "--", "sh", "-c",
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

static void workers_of_all_nodes_meet(void **state)
{
    struct tether_test_child *nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group((struct scene *)*state, "--nnodes=2", "--nproc-per-node=2", "--",
                              "examples/elastic", "4", "1");
    for (int i = 0; i < 2; i++)
        end(nodes[i], 0);
}

/* A failure costs one restart of everybody, wherever it happens and however many fail. */
static void failure_restarts_all_nodes(void **state)
{
    struct tether_test_child *nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group((struct scene *)*state, "--nnodes=2", "--nproc-per-node=2",
                              "--max-restarts=2", "--", "sh", "-c",
                              "echo try $TETHER_RESTART_COUNT; [ $TETHER_RESTART_COUNT = 2 ] && "
                              "exit 0; [ $RANK -ge 2 ] && exit 5; exec sleep 600");
    for (int i = 0; i < 2; i++) {
        char *output = await_exit(nodes[i], 0);
        for (int n = 0; n < 3; n++) {
            char text[48]; /* a worker may be stopped before it can say anything itself */
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
        nodes[i] = join_group((struct scene *)*state, "--nnodes=2", "--", "sh", "-c",
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

static void node_that_joins_is_let_in(void **state)
{
    struct tether_test_child *nodes[3];
    static const char script[] = "echo world $WORLD_SIZE in $TETHER_ROUND; " WAIT_FOR_EVER;
    nodes[0] = join_group((struct scene *)*state, "--nnodes=1:3", "--", "sh", "-c", script);
    await_text(nodes[0], "world 1 in 0\n", 1);
    nodes[1] = join_group((struct scene *)*state, "--nnodes=1:3", "--", "sh", "-c", script);
    await_text(nodes[0], "forming the group anew: 1 more node has joined\n", 1);
    await_text(nodes[0], "world 2 in 1\n", 1);
    await_text(nodes[1], "world 2 in 1\n", 1);
    nodes[2] = join_group((struct scene *)*state, "--nnodes=1:3", "--", "sh", "-c", script);
    for (int i = 0; i < 3; i++)
        await_text(nodes[i], "world 3 in 2\n", 1);
    for (int i = 0; i < 3; i++)
        kill(nodes[i]->pid, SIGTERM);
    for (int i = 0; i < 3; i++)
        end(nodes[i], 128 + SIGTERM);
}

/* By kill -9: nobody is told, heartbeats stop. By SIGTERM: it says so. Either way its workers are
 * gone, and the others go on without, and with those who come later. */
static void group_goes_on_without_a_lost_node(void **state)
{
    static const int signals[] = {SIGKILL, SIGTERM};
    static const char script[] =
        "echo world $WORLD_SIZE restarts $TETHER_RESTART_COUNT; " WAIT_FOR_EVER;
    for (int s = 0; s < 2; s++) {
        struct tether_test_child *nodes[3];
        char id[32];
        snprintf(id, sizeof id, "--rdzv-id=job-%d", s);
        for (int i = 0; i < 2; i++)
            nodes[i] = join_group((struct scene *)*state, id, "--nnodes=1:2", "--last-call=30s",
                                  "--", "sh", "-c", script);
        for (int i = 0; i < 2; i++)
            await_text(nodes[i], "world 2 restarts 0\n", 1);
        kill(nodes[0]->pid, signals[s]);
        await_text(nodes[1], "forming the group anew: a node has left or is lost\n", 1);
        nodes[2] = join_group((struct scene *)*state, id, "--nnodes=1:2", "--last-call=30s", "--",
                              "sh", "-c", script);
        await_text(nodes[1], "world 2 restarts 0\n", 2);
        await_text(nodes[2], "world 2 restarts 0\n", 1);
        tether_test_child_free(nodes[0]);
        for (int i = 1; i < 3; i++)
            kill(nodes[i]->pid, SIGTERM);
        for (int i = 1; i < 3; i++)
            end(nodes[i], 128 + SIGTERM);
    }
}

/* A worker that notices first that a node is lost, and fails, does not cost the job. */
static void losing_a_node_is_no_failure(void **state)
{
    struct tether_test_child *nodes[2];
    char command[256], file[] = "/tmp/tether-nodes-XXXXXX";
    close(mkstemp(file));
    snprintf(command, sizeof command,
             "echo world $WORLD_SIZE; [ $WORLD_SIZE = 1 ] && exit 0; trap 'exit 0' TERM; "
             "while [ -e %s ]; do sleep 0.1; done; exit 7",
             file);
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group((struct scene *)*state, "--nnodes=1:2", "--last-call=1s", "--", "sh",
                              "-c", command);
    for (int i = 0; i < 2; i++)
        await_text(nodes[i], "world 2\n", 1);
    tether_test_signal_pid(nodes[0]->pid, SIGKILL);
    unlink(file);
    char *output = await_exit(nodes[1], 0);
    has(output, "failed: exit 7\n");
    has(output, "forming the group anew: a node has left or is lost\n");
    has(output, "world 1\n");
    free(output);
    tether_test_child_free(nodes[0]);
    tether_test_child_free(nodes[1]);
}

static void too_few_nodes(void **state)
{
    struct tether_test_child *node =
        join_group((struct scene *)*state, "--nnodes=2", "--join-timeout=1s", "--", "true");
    char *output = await_exit(node, 3);
    has(output, "tether-run: 1 of 2 nodes, 1 s left\n");
    free(output);
    tether_test_child_free(node);
}

static void late_comer_is_told_that_it_is_over(void **state)
{
    end(join_group((struct scene *)*state, "--nnodes=1:2", "--", "true"), 0);
    struct tether_test_child *late =
        join_group((struct scene *)*state, "--nnodes=1:2", "--", "true");
    char *output = await_exit(late, 4);
    has(output, "closed");
    free(output);
    tether_test_child_free(late);
}

/* A third node of two stands by, and takes over when one goes. */
static void spare_takes_over(void **state)
{
    struct tether_test_child *nodes[3];
    static const char script[] = "echo world $WORLD_SIZE; " WAIT_FOR_EVER;
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group((struct scene *)*state, "--nnodes=2", "--", "sh", "-c", script);
    for (int i = 0; i < 2; i++)
        await_text(nodes[i], "world 2\n", 1);
    nodes[2] = join_group((struct scene *)*state, "--nnodes=2", "--", "sh", "-c", script);
    await_text(nodes[2], "waiting for the next round, 2 nodes run now", 1);
    kill(nodes[0]->pid, SIGTERM);
    end(nodes[0], 128 + SIGTERM);
    await_text(nodes[1], "world 2\n", 2);
    await_text(nodes[2], "world 2\n", 1);
    for (int i = 1; i < 3; i++)
        kill(nodes[i]->pid, SIGTERM);
    for (int i = 1; i < 3; i++)
        end(nodes[i], 128 + SIGTERM);
}

static void signal_while_joining(void **state)
{
    struct tether_test_child *node = join_group((struct scene *)*state, "--nnodes=2", "--", "true");
    await_text(node, "1 of 2 nodes", 1);
    kill(node->pid, SIGINT);
    end(node, 128 + SIGINT);
    node = launch("--rdzv-endpoint=127.0.0.1:1", "--rdzv-host=no", "--nnodes=2", "--", "true");
    await_text(node, "waiting for the store at 127.0.0.1:1", 1);
    kill(node->pid, SIGTERM);
    end(node, 128 + SIGTERM);
}

static void store_that_is_not_there(void **state)
{
    (void)state;
    struct tether_test_child *node = launch("--rdzv-endpoint=127.0.0.1:1", "--rdzv-host=no",
                                            "--join-timeout=700ms", "--nnodes=2", "--", "true");
    char *output = await_exit(node, 5);
    has(output, "no store at 127.0.0.1:1");
    free(output);
    tether_test_child_free(node);
}

static void store_that_is_lost(void **state)
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

/* "--rdzv-endpoint=127.0.0.1:PORT", of a port that was free a moment ago. Static buffer. */
static const char *free_endpoint(void)
{
    static char endpoint[64];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    close(fd);
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=127.0.0.1:%d", ntohs(address.sin_port));
    return endpoint;
}

/* Whoever comes first hosts the store; it stays until all others know how it ended. */
static void first_node_hosts_the_store(void **state)
{
    (void)state;
    const char *endpoint = free_endpoint();
    struct tether_test_child *nodes[3];
    for (int i = 0; i < 3; i++)
        nodes[i] = launch(endpoint, "--nnodes=3", "--nproc-per-node=2", "--", "examples/elastic",
                          "3", "1");
    for (int i = 0; i < 3; i++)
        end(nodes[i], 0);
}

/* The host stops for a while, store and heartbeats and all: nothing comes of it. Then it dies: the
 * others are told. */
static void host_that_pauses_and_dies(void **state)
{
    (void)state;
    const char *endpoint = free_endpoint();
    struct tether_test_child *host = launch(endpoint, "--rdzv-host=yes", "--nnodes=2", HEARTBEAT,
                                            "--", "sh", "-c", "echo up; " WAIT_FOR_EVER);
    struct tether_test_child *other =
        launch(endpoint, "--rdzv-host=no", "--nnodes=2", HEARTBEAT, "--", "sh", "-c",
               "i=0; while [ -e /proc ]; do echo tick $((i += 1)); sleep 0.1; done");
    await_text(host, "] up\n", 1);
    await_text(other, "] tick 1\n", 1);
    tether_test_signal_pid(host->pid, SIGSTOP);
    await_text(other, "] tick 12\n", 1); /* over a second, of three */
    tether_test_signal_pid(host->pid, SIGCONT);
    await_text(other, "] tick 60\n", 1); /* longer than the lease: nobody was given up */
    tether_test_signal_pid(host->pid, SIGKILL);
    char *output = await_exit(other, 5);
    has(output, "the store has not answered for ");
    assert_int_equal(count_text(output, "] tick 1\n"), 1);
    has_not(output, "forming the group anew");
    free(output);
    tether_test_child_free(host);
    tether_test_child_free(other);
}

static void nodes_meet_at_a_file(void **state)
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
        end(nodes[i], 0);
    unlink(path);
}

/* The example as its header tells it: a worker killed, a node killed, a node that joins. */
static void elastic_example(void **state)
{
    struct tether_test_child *nodes[3];
    for (int i = 0; i < 2; i++)
        nodes[i] = join_group((struct scene *)*state, "--nnodes=1:2", "--last-call=10s",
                              "--max-restarts=3", "--nproc-per-node=2", "--", "sh", "-c",
                              "echo pid $$; exec examples/elastic 40 50");
    for (int i = 0; i < 2; i++)
        await_text(nodes[i], " of 4 goes on after step 0\n", 2);
    char *output = tether_test_child_output(nodes[0]);
    kill((pid_t)atol(strstr(output, "pid ") + 4), SIGKILL);
    free(output);
    await_text(nodes[1], "starting again: rank ", 1);
    await_text(nodes[0], " of 4 goes on after step ", 4);

    tether_test_signal_pid(nodes[0]->pid, SIGKILL);
    await_text(nodes[1], "forming the group anew: a node has left or is lost\n", 1);
    nodes[2] =
        join_group((struct scene *)*state, "--nnodes=1:2", "--last-call=10s", "--max-restarts=3",
                   "--nproc-per-node=2", "--", "examples/elastic", "40", "50");
    await_text(nodes[2], " of 4 goes on after step ", 2);
    char *outputs[] = {await_exit(nodes[1], 0), await_exit(nodes[2], 0)};
    /* Whichever has rank 0 at the end: every step was taken once, by four. */
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
#define SCENE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        SCENE(ranks_go_over_all_nodes),
        SCENE(workers_of_all_nodes_meet),
        SCENE(failure_restarts_all_nodes),
        SCENE(failure_without_restarts_ends_all_nodes),
        SCENE(node_that_joins_is_let_in),
        SCENE(group_goes_on_without_a_lost_node),
        SCENE(losing_a_node_is_no_failure),
        SCENE(too_few_nodes),
        SCENE(late_comer_is_told_that_it_is_over),
        SCENE(spare_takes_over),
        SCENE(signal_while_joining),
        SCENE(store_that_is_not_there),
        SCENE(store_that_is_lost),
        SCENE(first_node_hosts_the_store),
        SCENE(host_that_pauses_and_dies),
        SCENE(nodes_meet_at_a_file),
        SCENE(elastic_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
