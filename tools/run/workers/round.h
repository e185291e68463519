/* A round of the group, seen from this node. */
#ifndef TETHER_TOOLS_RUN_WORKERS_ROUND_H
#define TETHER_TOOLS_RUN_WORKERS_ROUND_H

#include <stdbool.h>
#include <stdint.h>

struct run_round {
    uint64_t number;
    int node_rank, node_count;
    int first_rank, world_size; /* the rank of this node's first worker */
    int restarts;               /* number of restarts of the whole group after failures */
    char master_addr[256];
    int master_port;
    bool use_agent_store;
    char store_prefix[320];
};

#endif
