/* A roster: a sorted list of nodes with their data.
 *
 * Members are on the heap and the array holds pointers, so moving one from a list to another
 * allocates nothing once room is reserved, and an array of ten thousand shifts 80 KB at most.
 * Not thread-safe.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_RULES_ROSTER_H
#define TETHER_RENDEZVOUS_ELASTIC_RULES_ROSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "rendezvous/elastic/rules/node.h"

/* The data of a node. The list that it is in decides which fields are valid. */
struct tether__rdzv_member {
    /* the first field, because a member is found by its node; `node.addr` points to `addr_` */
    struct tether__rdzv_node node;
    int32_t rank;     /* 0 until the round is complete */
    int32_t hint;     /* the rank that the node asked for; -1: none */
    int32_t previous; /* the rank it had in the last round; -1: none */
    uint64_t beat;    /* its last known heartbeat number */
    int64_t heard_at; /* when that number was new, on the clock of this process */
    char addr_[];
};

struct tether__rdzv_roster {
    struct tether__rdzv_member **members; /* `n` members, sorted by node */
    size_t n, cap;
};

/* Frees the members. Zeroed memory is an empty roster. */
void tether__rdzv_roster_fini(struct tether__rdzv_roster *roster);

/* Makes room for `extra` more members: so many add() and move() calls allocate no array. */
tether_status tether__rdzv_roster_reserve(struct tether__rdzv_roster *roster, size_t extra);

/* The member that is `node`, or NULL. LENDS. */
struct tether__rdzv_member *tether__rdzv_roster_find(const struct tether__rdzv_roster *roster,
                                                     const struct tether__rdzv_node *node);

/* The member that is `node`; adds one (rank 0, no hint, no previous rank) if there is none. NULL:
 * out of memory, and nothing changed. LENDS. */
struct tether__rdzv_member *tether__rdzv_roster_add(struct tether__rdzv_roster *roster,
                                                    const struct tether__rdzv_node *node);

/* Removes the member that is `node`; false when there was none. */
bool tether__rdzv_roster_remove(struct tether__rdzv_roster *roster,
                                const struct tether__rdzv_node *node);

/* Moves the member that is `node` with its data from one roster to another, and replaces the one
 * that `to` may have. TETHER_ENOTFOUND, TETHER_ENOMEM: nothing changed. */
tether_status tether__rdzv_roster_move(struct tether__rdzv_roster *to,
                                       struct tether__rdzv_roster *from,
                                       const struct tether__rdzv_node *node);

#endif
