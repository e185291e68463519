/* This node's part in the group: every call that talks to the store, and so blocks.
 *
 * Happy path: join() until there is a round; watch() over and over while the workers run, until it
 * gives the round's verdict; done() or failed() tell the others how our workers did; end() leaves
 * the group. The nodes of a round use these keys, in the round's own part of the store:
 *
 *     hello/N     node N: how many workers it has, how many restarts it knows of
 *     done/N      node N: all its workers exited with 0
 *     verdict     how the round ends (verdict.h)
 *     bye/N       node N has seen the verdict: whoever hosts the store waits for these
 *
 * Failure modes: a store that does not answer is put up with for as long as a node may be silent
 * (heartbeat x attempts); then the group is lost. A node that is lost, or joins, makes watch()
 * propose to form the group anew.
 *
 * Threads: join() and end() alone; watch() beside done() or failed(); cancel() and progress() from
 * any thread at any time.
 */
#ifndef TETHER_TOOLS_RUN_NODE_H
#define TETHER_TOOLS_RUN_NODE_H

#include <pthread.h>
#include <stdatomic.h>

#include "rendezvous/elastic/handler/handler.h"
#include "tools/run/meeting.h"
#include "tools/run/options.h"
#include "tools/run/round.h"
#include "tools/run/verdict.h"

/* How far a join has come. */
struct run_progress {
    bool connected; /* to the store */
    bool waiting;   /* for a round that runs without us to end */
    int participants, min_nodes, max_nodes;
    int64_t until_ms; /* run_now_ms() when it goes on or gives up; -1: not known */
};

enum run_farewell {
    RUN_JOB_OVER, /* for everybody */
    RUN_LEAVE,    /* only this node goes */
    RUN_VANISH,   /* the store is lost: talk to nobody */
};

struct run_node {
    const struct run_options *options;

    /* written by join() and end(), in between only read */
    struct run_meeting meeting;
    _Atomic(tether_rdzv *) rdzv; /* atomic for cancel() */
    struct tether_rdzv_info info;
    struct run_round round;
    int restarts; /* that we know of */

    int64_t silent_since_ms; /* watch(): the store does not answer; 0: it does */
    atomic_bool canceled;
    pthread_mutex_t mu;
    struct run_progress progress; /* under mu */
};

void run_node_init(struct run_node *node, const struct run_options *options);
void run_node_fini(struct run_node *node);

/* Finds the store (the first time) and the next round; `restarts` is what the last verdict said.
 * `reterr` is needed here. TETHER_ETIMEOUT: too few nodes; TETHER_ECLOSED: the job is over;
 * TETHER_ESHUTDOWN: the same while we stood by as a spare; TETHER_ECANCELED; else the store cannot
 * be used. */
tether_status run_node_join(struct run_node *node, int restarts, tether_error *reterr);

/* Waits about a second for a verdict; RUN_UNDECIDED: call it again. TETHER_EUNAVAILABLE: the group
 * is lost; TETHER_ECLOSED: somebody closed it without a verdict. */
tether_status run_node_watch(struct run_node *node,
                             struct run_verdict *ret_verdict,
                             tether_error *reterr);

/* All workers here exited with 0; a worker did not, and `why` says which and how. watch()
 * gives the verdict that follows. */
void run_node_done(struct run_node *node);
void run_node_failed(struct run_node *node, const char *why);

/* Closes everything, at most within some seconds. */
void run_node_end(struct run_node *node, enum run_farewell farewell);

/* Makes a join() or a report end soon. Call it again until it has ended. */
void run_node_cancel(struct run_node *node);

struct run_progress run_node_progress(struct run_node *node);

#endif
