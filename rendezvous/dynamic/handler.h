/* Dynamic rendezvous: nodes that know only a meeting point become a numbered group, stay one, and
 * become one again when somebody joins, leaves or dies.
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
 * A round: nodes join until max_nodes are there, or until last_call has passed since min_nodes
 * were; then the round is complete and everybody gets a rank. Who comes later waits for the next
 * round (num_nodes_waiting() tells the others, who call next() to let it in), or stands by as a
 * spare when the round is full. A node that stops its heartbeats is dropped from every list after
 * keep_alive_interval x keep_alive_max_attempts. Ranks are sticky: who had one keeps it in the next
 * round where it can; a rank_hint goes before that; the rest are numbered in the order of their
 * names.
 *
 * Lifetime: tether_rdzv_new() OK => you must tether_rdzv_release(). Release without leave() or
 * shutdown() is what a crash looks like to the others: they notice when the heartbeats stop.
 *
 * Ownership: arguments are borrowed for the call, what comes out of a `ret_` argument is yours (the
 * store in an info: tether_rdzv_info_fini()), what a get_ function gives is LENT.
 *
 * Threads: every call may be made from any thread. next(), set_closed(), leave() and shutdown()
 * block, for their time-out at the most; the others take one look at the store (at most a second
 * old). One next() at a time (TETHER_EBUSY for a second one). From a completed next() until the
 * next next(), leave(), shutdown() or release(), a thread called "rdzv-<local id>" keeps this node
 * alive. Not for inline functions.
 *
 * Errors common to the calls that talk to the store: TETHER_ETIMEOUT, TETHER_EUNAVAILABLE (the
 * store is gone), TETHER_ECORRUPT ("the rendezvous state is corrupt": something else wrote there),
 * TETHER_ENOMEM, TETHER_EIO. Each is also an event.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_HANDLER_H
#define TETHER_RENDEZVOUS_DYNAMIC_HANDLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "rendezvous/dynamic/backend.h"
#include "rendezvous/dynamic/events.h"
#include "rendezvous/dynamic/settings.h"
#include "rendezvous/store.h"

TETHER_BEGIN_DECLS

typedef struct tether_rdzv tether_rdzv;

#define TETHER_RDZV_ADDR_MAX 256

/* A completed round, seen from one node. */
struct tether_rdzv_info {
    tether_store *store; /* for this round only: under "tether.rendezvous.<run_id>.<round>/" */
    uint64_t round;
    int rank, world_size;

    /* Where the workers of this round can meet: MASTER_ADDR and MASTER_PORT. The same at all nodes.
     * With the shared store a TCP store serves there (the rendezvous' own when that is one, else
     * one that rank 0 runs until the next round, release() or shutdown()); without it
     * (settings.own_store), a port that was free on rank 0's host a moment ago. */
    char master_addr[TETHER_RDZV_ADDR_MAX];
    uint16_t master_port;
};

/* Releases the store. NULL and a zeroed info are fine. */
TETHER_API void tether_rdzv_info_fini(struct tether_rdzv_info *info);

/* The group as this node last saw it, at most a second ago (a keep-alive interval, where the
 * store can't be reached). */
struct tether_rdzv_members {
    uint64_t round;   /* of the group's present round */
    int world_size;   /* nodes that completed it; 0 while a round is being formed */
    int participants; /* of those, still there */
    int waiting;      /* nodes that want in */
    int redundant;    /* spares */
    bool closed;
    bool changed; /* this node's round is over, has lost somebody, has been closed, or somebody
                   * waits: time to call next(). False before the first next(). */
};

/* Makes a handler for this node on `store` (retained) and `backend` (retained; NULL: one on
 * `store`). `settings` is copied, strings too. Talks to nobody yet. TETHER_EINVAL with a sentence
 * on the setting that is wrong. */
TETHER_API tether_status tether_rdzv_new(const struct tether_rdzv_settings *settings,
                                         tether_store *store,
                                         tether_rdzv_backend *backend,
                                         tether_rdzv **ret_rdzv,
                                         tether_error *reterr);

/* Retain gives the same handler back; release accepts NULL and returns NULL. The last release stops
 * the keep-alive thread (waits for a heartbeat that is under way). */
TETHER_API tether_rdzv *tether_rdzv_retain(tether_rdzv *rdzv);
TETHER_API tether_rdzv *tether_rdzv_release(tether_rdzv *rdzv);

/* Leaves the round that this node is in, if any, joins the next one and blocks until it is
 * complete. Beside the common errors: TETHER_ETIMEOUT (join_ms ran out; this node has been taken
 * off the lists again), TETHER_ECLOSED (the job is closed), TETHER_ESHUTDOWN (the job was closed
 * while this node stood by as a spare: a normal end), TETHER_ECANCELED, TETHER_EBUSY. A spare waits
 * without limit. */
TETHER_API tether_status tether_rdzv_next(tether_rdzv *rdzv,
                                          struct tether_rdzv_info *ret_info,
                                          tether_error *reterr);

/* Makes a next() that blocks in another thread end with TETHER_ECANCELED, within about a second,
 * after it has taken this node off the lists. Later ones are not affected. Never blocks; not from a
 * signal handler. */
TETHER_API void tether_rdzv_cancel(tether_rdzv *rdzv);

/* How the group is doing. */
TETHER_API tether_status tether_rdzv_members(tether_rdzv *rdzv,
                                             struct tether_rdzv_members *ret_members,
                                             tether_error *reterr);

/* How many nodes wait for the next round. */
TETHER_API tether_status tether_rdzv_num_nodes_waiting(tether_rdzv *rdzv,
                                                       int *ret_count,
                                                       tether_error *reterr);

/* Closed for good: no node can join any more, those that wait get TETHER_ECLOSED. Who is in a round
 * stays in it. Closing again does nothing. set_closed() waits up to close_ms. */
TETHER_API tether_status tether_rdzv_is_closed(tether_rdzv *rdzv,
                                               bool *ret_closed,
                                               tether_error *reterr);
TETHER_API tether_status tether_rdzv_set_closed(tether_rdzv *rdzv, tether_error *reterr);

/* Takes this node out of the round that it is in and stops its heartbeats; the job stays open and
 * the others notice at once (members.changed). next() joins again. Waits up to close_ms. */
TETHER_API tether_status tether_rdzv_leave(tether_rdzv *rdzv, tether_error *reterr);

/* Stops the keep-alive thread and closes the rendezvous for everybody. An error says that it could
 * not be closed; the thread is stopped all the same. Can be called again. */
TETHER_API tether_status tether_rdzv_shutdown(tether_rdzv *rdzv, tether_error *reterr);

/* What the handler was made with. LENDS, as long as the handler; never fails. */
TETHER_API const char *tether_rdzv_get_backend(const tether_rdzv *rdzv); /* its name */
TETHER_API const char *tether_rdzv_get_run_id(const tether_rdzv *rdzv);
TETHER_API const char *tether_rdzv_get_node(const tether_rdzv *rdzv); /* "host_pid_localid" */
TETHER_API const struct tether_rdzv_settings *tether_rdzv_get_settings(const tether_rdzv *rdzv);

/* Whether workers should use the store at master_addr:master_port instead of starting one. */
TETHER_API bool tether_rdzv_use_agent_store(const tether_rdzv *rdzv);

TETHER_END_DECLS

#endif
