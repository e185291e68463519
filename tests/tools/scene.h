/* A TCP store in the test's own process, and tether-runs that meet at it. */
#ifndef TETHER_TESTS_TOOLS_SCENE_H
#define TETHER_TESTS_TOOLS_SCENE_H

#include "rendezvous/store_tcp.h"
#include "tests/tools/launch.h"

/* Three seconds of silence: long enough for a machine that is busy, short enough for a test. */
#define HEARTBEAT "--heartbeat=500ms", "--heartbeat-attempts=6"

/* The end of a worker's script: works until it is told to stop. */
#define WAIT_FOR_EVER "trap 'exit 0' TERM; sleep 600 & wait"

struct scene {
    tether_store_server *server;
    char endpoint[64]; /* "--rdzv-endpoint=..." */
};

int scene_setup(void **state);
int scene_teardown(void **state);

/* Starts a node that meets the others at the scene's store. */
#define join_group(state, ...)                                                                    \
    launch(((struct scene *)(state))->endpoint, "--rdzv-host=no", "--last-call=300ms", HEARTBEAT, \
           __VA_ARGS__)

/* Waits for the end of a node and frees it. */
void end_node(struct tether_test_child *node, int exit_code);

/* "--rdzv-endpoint=127.0.0.1:PORT", of a port that was free a moment ago. Static buffer. */
const char *free_endpoint(void);

#endif
