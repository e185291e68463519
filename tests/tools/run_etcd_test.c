/* Several tether-runs with a rendezvous on etcd: any node may fail, and etcd may restart.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/store_etcd.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/etcd.h"
#include "tests/tools/launch.h"

#define HEARTBEAT "--heartbeat=1s", "--heartbeat-attempts=10"

static int start_etcd(void **state)
{
    *state = tether_test_etcd_start(NULL);
    return 0;
}

static int end_etcd(void **state)
{
    tether_test_etcd_free(*state);
    return 0;
}

static const char *endpoint(void **state)
{
    static char text[96];
    snprintf(text, sizeof text, "--rdzv-endpoint=%s", tether_test_etcd_endpoint(*state));
    return text;
}

static void nodes_form_a_group_at_etcd(void **state)
{
    struct tether_test_child *nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = launch("--rdzv-backend=etcd", endpoint(state), "--rdzv-id=meet", "--nnodes=2",
                          "--nproc-per-node=2", HEARTBEAT, "--", "examples/elastic", "3", "1");
    for (int i = 0; i < 2; i++) {
        free(await_exit(nodes[i], 0));
        tether_test_child_free(nodes[i]);
    }
}

/* etcd is killed and restarted while the workers run, which has no effect on the job. Then the node
 * with rank 0 is lost, and the other one continues. While the file is there, a node that is alone
 * at first waits for the other one. */
static void group_continues_when_etcd_and_a_node_are_killed(void **state)
{
    struct tether_test_child *nodes[2];
    char script[256], file[] = "/tmp/tether-nodes-XXXXXX";
    close(mkstemp(file));
    snprintf(script, sizeof script,
             "echo world $WORLD_SIZE; [ $WORLD_SIZE = 1 ] && [ ! -e %s ] && exit 0; "
             "trap 'exit 0' TERM; sleep 600 & wait",
             file);
    static const char *const ranks[] = {"--node-rank=0", "--node-rank=1"};
    for (int i = 0; i < 2; i++)
        nodes[i] = launch("--rdzv-backend=etcd", endpoint(state), "--rdzv-id=die", "--nnodes=1:2",
                          ranks[i], "--last-call=1s", HEARTBEAT, "--", "sh", "-c", script);
    for (int i = 0; i < 2; i++)
        await_text(nodes[i], "world 2\n", 1);
    tether_test_etcd_kill(*state);
    tether_test_etcd_restart(*state);
    unlink(file);
    tether_test_signal_pid(nodes[0]->pid, SIGKILL);
    char *output = await_exit(nodes[1], 0);
    has(output, "forming the group again: a node has left or is lost\n");
    has(output, "world 1\n");
    assert_int_equal(count_text(output, "world 2\n"), 1);
    free(output);
    tether_test_child_free(nodes[0]);
    tether_test_child_free(nodes[1]);
}

static void keys_of_a_job_are_below_their_prefix(void **state)
{
    tether_store *store = NULL;
    tether_store_keys keys;
    tether_error err = {0};
    struct tether_test_child *node =
        launch("--rdzv-backend=etcd", endpoint(state), "--rdzv-id=nightly", "--nnodes=1",
               "--nproc-per-node=1", HEARTBEAT, "--", "true");
    free(await_exit(node, 0));
    tether_test_child_free(node);
    if (tether_store_etcd_new(TETHER_STORE_ETCD_OPTS(.endpoints = tether_test_etcd_endpoint(*state),
                                                     .prefix = "tether-run/"),
                              &store, &err) != TETHER_OK ||
        tether_store_list_keys(store, TETHER_DEFAULT_MS, &keys, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    int n = 0;
    for (size_t i = 0; i < keys.count; i++)
        n += strstr((const char *)keys.keys[i].data, "nightly") != NULL;
    assert_true(n > 0);
    tether_store_keys_fini(&keys);
    tether_store_release(store);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_form_a_group_at_etcd),
        cmocka_unit_test(group_continues_when_etcd_and_a_node_are_killed),
        cmocka_unit_test(keys_of_a_job_are_below_their_prefix),
    };
    return cmocka_run_group_tests(tests, start_etcd, end_etcd);
}
