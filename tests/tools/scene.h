/* A TCP store in the test process, and tether-runs that use it. */
#ifndef TETHER_TESTS_TOOLS_SCENE_H
#define TETHER_TESTS_TOOLS_SCENE_H

#include "rendezvous/store_tcp.h"
#include "tests/tools/launch.h"

/* A lease of three seconds: long enough for a busy machine, short enough for a test. */
#define HEARTBEAT "--heartbeat=500ms", "--heartbeat-attempts=6"

/* The end of a worker's script: runs until SIGTERM. */
#define WAIT_FOR_EVER "trap 'exit 0' TERM; sleep 600 & wait"

struct scene {
    tether_store_server *server;
    char endpoint[64]; /* "--rdzv-endpoint=..." */
};

int scene_setup(void **state);
int scene_teardown(void **state);

/* Starts a node that uses the scene's store. */
#define join_group(state, ...)                                                                    \
    launch(((struct scene *)(state))->endpoint, "--rdzv-host=no", "--last-call=300ms", HEARTBEAT, \
           __VA_ARGS__)

/* Waits until a node has ended, asserts its exit code and frees it. */
void end_node(struct tether_test_child *node, int exit_code);

/* Returns "--rdzv-endpoint=127.0.0.1:PORT" with a port that was free a moment ago. Static
 * buffer. */
const char *free_endpoint(void);

#endif
