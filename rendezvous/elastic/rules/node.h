/* A node: one participant of a rendezvous, as a rule one launcher process on one host.
 *
 * Its address, its process id and a number within the process identify it. Nodes are sorted by the
 * three in that order, the address as text. A tether__rdzv_node owns nothing: `addr` is lent.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_RULES_NODE_H
#define TETHER_RENDEZVOUS_ELASTIC_RULES_NODE_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"

#define TETHER__RDZV_ADDR_MAX 255                           /* the longest address, in characters */
#define TETHER__RDZV_NODE_TEXT (TETHER__RDZV_ADDR_MAX + 40) /* buffer size for a node as text */

struct tether__rdzv_node {
    const char *addr;
    int64_t pid;
    int32_t local_id;
};

/* Compares two nodes; returns a number below, at or above zero, as strcmp() does. */
int tether__rdzv_node_compare(const struct tether__rdzv_node *a, const struct tether__rdzv_node *b);

/* Writes the node as "addr_pid_localid"; returns `text`. */
const char *tether__rdzv_node_format(const struct tether__rdzv_node *node,
                                     char text[TETHER__RDZV_NODE_TEXT]);

/* Numbers the nodes of this process: 0, 1, 2 ... Zeroed memory is ready to use. */
struct tether__rdzv_node_generator {
    atomic_int next_local_id;
};

/* Describes a new node of this process. `local_addr` NULL: uses the full name of this host, which
 * may ask DNS. The caller owns `ret_node->addr` (tether__free()). TETHER_EINVAL for an address that
 * is empty or too long. */
tether_status tether__rdzv_node_generate(struct tether__rdzv_node_generator *generator,
                                         const char *local_addr,
                                         struct tether__rdzv_node *ret_node,
                                         tether_error *reterr);

/* The full name of this host, on the heap; its short name when there is no full name. */
tether_status tether__rdzv_full_host_name(char **ret_name, tether_error *reterr);

#endif
