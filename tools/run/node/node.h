/* This node as a member of the group: all calls that use the store, and so block.
 *
 * Happy path: join() returns with a round; watch() is called again and again while the workers run,
 * until it gives the verdict of the round; done() or failed() report the result of this node's
 * workers; end() leaves the group. The nodes of a round use these keys, in the round's own part of
 * the store:
 *
 *     hello/N     node N: the number of its workers, and of the restarts that it knows of
 *     done/N      node N: all its workers exited with 0
 *     verdict     the verdict of the round (verdict.h)
 *     bye/N       node N has read the verdict; the host of the store waits for these
 *
 * Failure modes: when the store does not answer, calls are retried for as long as a node may be
 * silent (heartbeat x attempts); then the group is lost. When a node is lost or joins, watch()
 * proposes to form the group again.
 *
 * Threads: join() and end() run alone; watch() may run at the same time as done() or failed();
 * cancel() and progress() may be called by any thread at any time.
 */
#ifndef TETHER_TOOLS_RUN_NODE_NODE_H
#define TETHER_TOOLS_RUN_NODE_NODE_H

#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/elastic/handler/handler.h"
#include "tools/run/node/meeting.h"
#include "tools/run/node/verdict.h"
#include "tools/run/options/options.h"
#include "tools/run/workers/round.h"

/* The progress of a join. */
struct run_progress {
    bool connected; /* the node has connected to the store */
    bool waiting;   /* the node waits until a round ends that runs without it */
    int participants, min_nodes, max_nodes;
    int64_t until_ms; /* run_now_ms() at which this step ends or times out; -1: not known */
};

enum run_end_mode {
    RUN_JOB_OVER,       /* end(): the job is over for all nodes */
    RUN_LEAVE,          /* end(): only this node leaves */
    RUN_LEAVE_SILENTLY, /* end(): the store is lost, so make no requests */
};

struct run_node {
    const struct run_options *options;

    /* written by join() and end(); read-only in between */
    struct run_meeting meeting;
    _Atomic(tether_rdzv *) rdzv; /* atomic, because cancel() reads it on other threads */
    struct tether_rdzv_info info;
    struct run_round round;
    int64_t round_began_ms;
    int restarts; /* number of restarts of the group that this node knows of */

    int64_t silent_since_ms; /* watch(): since when the store has not answered; 0: it answers */
    atomic_bool canceled;
    pthread_mutex_t mu;
    struct run_progress progress; /* fields under mu */
};

void run_node_init(struct run_node *node, const struct run_options *options);
void run_node_fini(struct run_node *node);

/* Opens the store (in the first call) and joins the next round; `restarts` is that of the last
 * verdict. `reterr` must not be NULL. TETHER_ETIMEOUT: too few nodes; TETHER_ECLOSED: the job is
 * over; TETHER_ESHUTDOWN: the job ended while this node was a spare; TETHER_ECANCELED; otherwise
 * the store cannot be used. */
tether_status run_node_join(struct run_node *node, int restarts, tether_error *reterr);

/* Waits about a second for a verdict; RUN_UNDECIDED: call it again. TETHER_EUNAVAILABLE: the group
 * is lost; TETHER_ECLOSED: another program closed it without a verdict. */
tether_status run_node_watch(struct run_node *node,
                             struct run_verdict *ret_verdict,
                             tether_error *reterr);

/* Report that all workers of this node exited with 0, or that one did not (`why` says which, and
 * how). Then watch() gives the verdict. */
void run_node_done(struct run_node *node);
void run_node_failed(struct run_node *node, const char *why);

/* Leaves the group and closes everything, within some seconds. */
void run_node_end(struct run_node *node, enum run_end_mode end_mode);

/* Makes a join() or a report end soon. Repeat the call until it has ended. */
void run_node_cancel(struct run_node *node);

struct run_progress run_node_progress(struct run_node *node);

#endif
