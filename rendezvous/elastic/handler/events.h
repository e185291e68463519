/* Events of a dynamic rendezvous: it reports every step and every failure through a hook.
 *
 * A launcher can show progress with them ("2 of 4 nodes, 27 s left") or write them to a log.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_HANDLER_EVENTS_H
#define TETHER_RENDEZVOUS_ELASTIC_HANDLER_EVENTS_H

#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "rendezvous/elastic/rules/settings.h"

TETHER_BEGIN_DECLS

typedef enum tether_rdzv_event_kind {
    TETHER_RDZV_INIT,      /* a handler was made, or an operation begins */
    TETHER_RDZV_RUNNING,   /* an operation took a step, or still waits */
    TETHER_RDZV_SUCCEEDED, /* an operation ended well */
    TETHER_RDZV_FAILED,    /* an operation failed; `status` says how */
    TETHER_RDZV_MEMBERS,   /* the group changed while a round runs: compare `participants` with
                            * `world_size`, and look at `waiting`: time to re-form */
} tether_rdzv_event_kind;

/* Returns the kind as text for logs, such as "running"; "?" for an unknown kind. Static string.
 * Never fails. Any thread. */
TETHER_API const char *tether_rdzv_event_kind_text(tether_rdzv_event_kind kind);

/* An event, as a tether_rdzv_event_fn (settings.h) receives it. All pointers are LENT for the call.
 */
struct tether_rdzv_event {
    tether_rdzv_event_kind kind;
    const char *name;    /* the operation: "next", "set_closed", "keep_alive" ... */
    const char *message; /* a sentence that describes the event */
    tether_status status;

    const char *run_id;
    const char *node; /* this node: "host_pid_localid" */
    int rank;         /* this node's rank; -1: none yet */

    /* The group as this node last saw it. */
    uint64_t round;
    int participants;          /* nodes of the round that runs or is being formed */
    int waiting;               /* nodes that wait for the next round */
    int redundant;             /* spares: nodes beyond max_nodes */
    int world_size;            /* size of the round that runs; 0 while one is being formed */
    int min_nodes, max_nodes;  /* as in the settings */
    int64_t last_call_left_ms; /* time until the last call ends; -1: min_nodes not reached */
    int64_t deadline_left_ms;  /* time until the deadline of the operation; -1: it has none */
};

TETHER_END_DECLS

#endif
