/* Shared by node.c and join.c. */
#ifndef TETHER_TOOLS_RUN_NODE_INTERNAL_H
#define TETHER_TOOLS_RUN_NODE_INTERNAL_H

#include "tools/run/node/node.h"

#define RUN_SLICE_MS 1000 /* how often a call checks for a cancel and for changes */
#define RUN_CALL_MS 5000  /* the timeout of one call to the store */

/* Returns the keys "kind/0" ... of all nodes of the round in one block, which the caller frees by
 * free(). NULL: out of memory. */
const char **run_node_keys(const struct run_node *node, const char *kind);

/* Sets this node's own key of `kind` in the round's store. */
tether_status run_node_announce(struct run_node *node,
                                const char *kind,
                                const char *value,
                                tether_error *reterr);

#endif
