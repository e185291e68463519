/* Shared by node.c and node_join.c. */
#ifndef TETHER_TOOLS_RUN_NODE_INTERNAL_H
#define TETHER_TOOLS_RUN_NODE_INTERNAL_H

#include "tools/run/node.h"

#define RUN_SLICE_MS 1000 /* the longest that a cancel or a change goes unseen */
#define RUN_CALL_MS 5000  /* for one call to the store */

/* The keys "kind/0" ... of all nodes of the round; one block, free() it. NULL: no memory. */
const char **run_node_keys(const struct run_node *node, const char *kind);

/* Sets this node's own key of that kind. */
tether_status run_node_announce(struct run_node *node,
                                const char *kind,
                                const char *value,
                                tether_error *reterr);

#endif
