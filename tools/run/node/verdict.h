/* The verdict: how a round ends, agreed on by all its nodes.
 *
 * A round has one key, "verdict", in its own part of the store. A node that has a reason to end
 * the round proposes one by compare-and-set; the first proposal wins, and every node acts on it. So
 * ten workers that fail at the same moment cost one restart, not ten.
 *
 * The value of the key: "word restarts sentence".
 */
#ifndef TETHER_TOOLS_RUN_NODE_VERDICT_H
#define TETHER_TOOLS_RUN_NODE_VERDICT_H

#include "base/bytes.h"
#include "rendezvous/store.h"

enum run_outcome {
    RUN_UNDECIDED,
    RUN_SUCCEEDED, /* every worker of every node exited with 0 */
    RUN_RESTART,   /* a worker failed, and a restart is left */
    RUN_REFORM,    /* a node joined, left or was lost */
    RUN_FAILED,    /* a worker failed, and no restart is left */
};

struct run_verdict {
    enum run_outcome outcome;
    /* number of restarts of the group so far, including the one that this verdict causes */
    int restarts;
    char why[200]; /* the reason, as a sentence for the user */
};

/* Proposes `*verdict`. On success `*verdict` is the one in force, which another node may have
 * proposed. */
tether_status run_verdict_propose(tether_store *round_store,
                                  struct run_verdict *verdict,
                                  int timeout_ms,
                                  tether_error *reterr);

/* Waits up to `timeout_ms` for a verdict; TETHER_ETIMEOUT when there is none. */
tether_status run_verdict_await(tether_store *round_store,
                                int timeout_ms,
                                struct run_verdict *ret_verdict,
                                tether_error *reterr);

#endif
