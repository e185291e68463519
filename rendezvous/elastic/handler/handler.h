/* Dynamic rendezvous: nodes that know only a store form a numbered group, and form it again when a
 * node joins, leaves or dies.
 *
 *     tether_rdzv *rdzv = NULL;
 *     tether_rdzv_new(&settings, store, NULL, &rdzv, &err);
 *     for (;;) {
 *         struct tether_rdzv_info info;
 *         if (tether_rdzv_next(rdzv, &info, &err))         // blocks until a round is complete
 *             break;
 *         ... run the job as node info.rank of info.world_size, meanwhile look now and then: ...
 *         tether_rdzv_members(rdzv, &members, &err);       // members.changed: stop and call next()
 *         tether_rdzv_info_fini(&info);
 *     }
 *     tether_rdzv_leave(rdzv, &err);                       // only this node; the job goes on
 *     rdzv = tether_rdzv_release(rdzv);
 *
 * A round: nodes join until there are max_nodes, or until last_call has passed since there were
 * min_nodes. Then the round is complete and every node gets a rank. A node that comes later waits
 * for the next round: num_nodes_waiting() tells the others, which call next() to let it in. When
 * the round is full, the late node is a spare. A node whose heartbeats stop is dropped from every
 * list after keep_alive_interval x keep_alive_max_attempts. Ranks are sticky: a node keeps its rank
 * in the next round if that rank is free. A rank_hint takes precedence; the other nodes are
 * numbered in the order of their names.
 *
 * Lifetime: tether_rdzv_new() OK => you must tether_rdzv_release(). Release without leave() or
 * shutdown() looks like a crash to the other nodes: they notice it when the heartbeats stop.
 *
 * Ownership: arguments are borrowed for the call. You own what a `ret_` argument returns (the store
 * in an info: tether_rdzv_info_fini()). Results of get_ functions are LENT.
 *
 * Threads: any thread may make any call. next(), set_closed(), leave() and shutdown() block until
 * their timeout at the latest; the others make one request to the store, unless the last one is
 * younger than a second. One next() at a time (TETHER_EBUSY for a second one). After next() has
 * returned, a thread called "rdzv-<local id>" keeps this node alive until next(), leave(),
 * shutdown() or release(). Not for inline functions.
 *
 * Errors common to the calls that talk to the store: TETHER_ETIMEOUT, TETHER_EUNAVAILABLE (the
 * store is not reachable), TETHER_ECORRUPT ("the rendezvous state is corrupt": another program
 * wrote there), TETHER_ENOMEM, TETHER_EIO. Each is also an event.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_HANDLER_HANDLER_H
#define TETHER_RENDEZVOUS_ELASTIC_HANDLER_HANDLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "rendezvous/elastic/backend/backend.h"
#include "rendezvous/elastic/handler/events.h"
#include "rendezvous/elastic/rules/settings.h"
#include "rendezvous/store.h"

TETHER_BEGIN_DECLS

typedef struct tether_rdzv tether_rdzv;

#define TETHER_RDZV_ADDR_MAX 256

/* A completed round, seen from one node. */
struct tether_rdzv_info {
    /* only for this round: a view of the store under "tether.rendezvous.<run_id>.<round>/" */
    tether_store *store;
    uint64_t round;
    int rank, world_size;

    /* The address where the workers of this round meet: MASTER_ADDR and MASTER_PORT. All nodes get
     * the same. With the shared store, a TCP store serves at this address: the store of the
     * rendezvous if that is a TCP store, else one that rank 0 runs until the next round, release()
     * or shutdown(). Without it (settings.own_store), it is a port that was free on rank 0's host
     * a moment ago. */
    char master_addr[TETHER_RDZV_ADDR_MAX];
    uint16_t master_port;
};

/* Releases the store. NULL and a zeroed info are fine. */
TETHER_API void tether_rdzv_info_fini(struct tether_rdzv_info *info);

/* The group as this node last saw it, at most a second ago (a keep-alive interval, where the
 * store can't be reached). */
struct tether_rdzv_members {
    uint64_t round;   /* number of the group's present round */
    int world_size;   /* number of nodes that completed the round; 0 while one is being formed */
    int participants; /* number of those nodes that are still alive */
    int waiting;      /* number of nodes that wait for the next round */
    int redundant;    /* spares */
    bool closed;
    bool changed; /* this node's round is over, has lost a node, has been closed, or a node
                   * waits: call next(). False before the first next(). */
};

/* Makes a handler for this node on `store` (retained) and `backend` (retained; NULL: one on
 * `store`). `settings` is copied, strings too. Does no I/O yet. TETHER_EINVAL with a message about
 * the setting that is wrong. */
TETHER_API tether_status tether_rdzv_new(const struct tether_rdzv_settings *settings,
                                         tether_store *store,
                                         tether_rdzv_backend *backend,
                                         tether_rdzv **ret_rdzv,
                                         tether_error *reterr);

/* tether_rdzv_retain() returns the same handler; release accepts NULL and returns NULL. The last
 * release stops the keep-alive thread, and waits for a heartbeat that it is sending. */
TETHER_API tether_rdzv *tether_rdzv_retain(tether_rdzv *rdzv);
TETHER_API tether_rdzv *tether_rdzv_release(tether_rdzv *rdzv);

/* Leaves the round that this node is in, if any, joins the next one and blocks until it is
 * complete. Errors beside the common ones: TETHER_ETIMEOUT (join_ms is over; this node has left the
 * lists again), TETHER_ECLOSED (the job is closed), TETHER_ESHUTDOWN (the job was closed while this
 * node was a spare: a normal end), TETHER_ECANCELED, TETHER_EBUSY. A spare waits without limit. */
TETHER_API tether_status tether_rdzv_next(tether_rdzv *rdzv,
                                          struct tether_rdzv_info *ret_info,
                                          tether_error *reterr);

/* Makes a next() that blocks in another thread leave the lists and return TETHER_ECANCELED, within
 * about a second. Later calls of next() are not affected. Never blocks; not from a signal handler.
 */
TETHER_API void tether_rdzv_cancel(tether_rdzv *rdzv);

/* Gives the group as this node sees it. */
TETHER_API tether_status tether_rdzv_members(tether_rdzv *rdzv,
                                             struct tether_rdzv_members *ret_members,
                                             tether_error *reterr);

/* Gives how many nodes wait for the next round. */
TETHER_API tether_status tether_rdzv_num_nodes_waiting(tether_rdzv *rdzv,
                                                       int *ret_count,
                                                       tether_error *reterr);

/* A closed rendezvous stays closed: no node can join any more, and nodes that wait get
 * TETHER_ECLOSED. Nodes in a round stay in it. Closing again does nothing. set_closed() waits up to
 * close_ms. */
TETHER_API tether_status tether_rdzv_is_closed(tether_rdzv *rdzv,
                                               bool *ret_closed,
                                               tether_error *reterr);
TETHER_API tether_status tether_rdzv_set_closed(tether_rdzv *rdzv, tether_error *reterr);

/* Removes this node from its round and stops its heartbeats. The job stays open, and the other
 * nodes notice at once (members.changed). next() joins again. Waits up to close_ms. */
TETHER_API tether_status tether_rdzv_leave(tether_rdzv *rdzv, tether_error *reterr);

/* Stops the keep-alive thread and closes the rendezvous for all nodes. On error the rendezvous is
 * not closed, but the thread has stopped. Can be called again. */
TETHER_API tether_status tether_rdzv_shutdown(tether_rdzv *rdzv, tether_error *reterr);

/* Return the values that the handler was made with. LENT as long as the handler; never fail. The
 * first one is the backend's name. */
TETHER_API const char *tether_rdzv_get_backend(const tether_rdzv *rdzv);
TETHER_API const char *tether_rdzv_get_run_id(const tether_rdzv *rdzv);
TETHER_API const char *tether_rdzv_get_node(const tether_rdzv *rdzv); /* "host_pid_localid" */
TETHER_API const struct tether_rdzv_settings *tether_rdzv_get_settings(const tether_rdzv *rdzv);

/* Whether workers should use the store at master_addr:master_port instead of starting one. */
TETHER_API bool tether_rdzv_use_agent_store(const tether_rdzv *rdzv);

TETHER_END_DECLS

#endif
