/* The settings of a dynamic rendezvous: how many nodes take part, and how long each step may take.
 *
 *     struct tether_rdzv_settings settings;
 *     tether_rdzv_settings_init(&settings);
 *     settings.run_id = "job-7";
 *     settings.min_nodes = 1;
 *     settings.max_nodes = 4;
 *     settings.timeouts.last_call_ms = 2000;
 *
 * tether_rdzv_settings_init() fills in the defaults. tether_rdzv_new() checks the values that you
 * set afterwards and uses them unchanged: zero does not mean "default" here.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_RULES_SETTINGS_H
#define TETHER_RENDEZVOUS_ELASTIC_RULES_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"

TETHER_BEGIN_DECLS

struct tether_rdzv_event; /* rendezvous/elastic/handler/events.h */

/* Receives the events of a rendezvous. The thread that takes the step calls it (the caller's thread
 * or the keep-alive thread), one call at a time per handler. It must not block for long, and must
 * not call the handler. */
typedef void tether_rdzv_event_fn(void *userdata, const struct tether_rdzv_event *event);

/* Timeouts; all must be positive. The comments have the defaults. */
struct tether_rdzv_timeouts {
    int64_t join_ms;      /* time for next() until the round is complete; 600 s */
    int64_t last_call_ms; /* time for more nodes to come once min_nodes are there; 30 s */
    int64_t close_ms;     /* time for set_closed(), leave() and shutdown(); 30 s */
    int64_t heartbeat_ms; /* time to write one heartbeat; 5 s */
};

#define TETHER_RDZV_JOIN_MS 600000
#define TETHER_RDZV_LAST_CALL_MS 30000
#define TETHER_RDZV_CLOSE_MS 30000
#define TETHER_RDZV_HEARTBEAT_MS 5000
#define TETHER_RDZV_KEEP_ALIVE_INTERVAL_MS 5000
#define TETHER_RDZV_KEEP_ALIVE_MAX_ATTEMPTS 3
#define TETHER_RDZV_MAX_NODES 100000 /* the largest value of max_nodes */

struct tether_rdzv_settings {
    size_t size; /* set by tether_rdzv_settings_init() */

    const char *run_id;       /* name of the job; required; all nodes give the same */
    int min_nodes, max_nodes; /* required; 0 < min <= max; all nodes give the same */
    struct tether_rdzv_timeouts timeouts;

    int64_t keep_alive_interval_ms; /* time between two heartbeats; 5 s */
    int keep_alive_max_attempts;    /* a node that misses so many heartbeats is dropped; 3 */

    const char *local_addr; /* address at which others reach this host; NULL: its full name */
    int rank_hint;          /* the rank that this node prefers; -1: any */
    bool own_store;         /* give each round an address of its own instead of the shared store
                             * (also: TETHER_DISABLE_SHARED_STORE=1 in the environment) */
    bool insecure;          /* the store that rank 0 runs may listen beyond loopback */

    tether_rdzv_event_fn *on_event; /* NULL: events are dropped */
    void *on_event_userdata;
};

/* Fills in the defaults. Any thread. */
TETHER_API void tether_rdzv_settings_init(struct tether_rdzv_settings *settings);

/* Sets one field by name from the text of a configuration file or command line. Times are in
 * seconds
 * ("50", "0.5"): join_timeout, last_call_timeout, close_timeout, heartbeat_timeout,
 * keep_alive_interval, keep_alive_max_attempt, rank_hint. TETHER_EINVAL, with a message that lists
 * the valid names or says what is wrong with the value; then nothing has changed. Any thread. */
TETHER_API tether_status tether_rdzv_settings_set(struct tether_rdzv_settings *settings,
                                                  const char *name,
                                                  const char *value,
                                                  tether_error *reterr);

/* Checks all fields. TETHER_EINVAL with a message about the first wrong one. Any thread. */
TETHER_API tether_status tether_rdzv_settings_check(const struct tether_rdzv_settings *settings,
                                                    tether_error *reterr);

TETHER_END_DECLS

#endif
