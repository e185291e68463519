/* Watches the group, reports the result of the workers, and leaves. */
#include "tools/run/node/node.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/backoff.h"
#include "base/text.h"
#include "tools/run/node/clock.h"
#include "tools/run/node/internal.h"

#define RETRY_MS 200 /* pause between two attempts of a failing call */
/* How long the other nodes have to read the verdict before this node stops the store. */
#define BYE_WAIT_MS 10000
#define JOB_OVER_WAIT_MS 2500 /* how long waiting nodes have to learn that the job is over */

static void pause_ms(long ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&ts, NULL);
}

/* Returns how long a node may miss heartbeats before the others form a group without it. */
static int64_t lease_ms(const struct run_node *node)
{
    return (int64_t)node->options->heartbeat_ms * node->options->heartbeat_attempts;
}

void run_node_init(struct run_node *node, const struct run_options *options)
{
    *node = (struct run_node){.options = options};
    node->progress.until_ms = run_now_ms() + options->join_timeout_ms;
    pthread_mutex_init(&node->mu, NULL);
}

void run_node_fini(struct run_node *node)
{
    pthread_mutex_destroy(&node->mu);
}

struct run_progress run_node_progress(struct run_node *node)
{
    pthread_mutex_lock(&node->mu);
    struct run_progress progress = node->progress;
    pthread_mutex_unlock(&node->mu);
    return progress;
}

void run_node_cancel(struct run_node *node)
{
    atomic_store(&node->canceled, true);
    tether_rdzv *rdzv = atomic_load(&node->rdzv);
    if (rdzv)
        tether_rdzv_cancel(rdzv);
}

/* ---- Watching and reporting ----------------------------------------------------------------- */

/* Whether the group should form again because its members have changed; writes the reason to
 * `why`. */
static bool should_reform(struct run_node *node,
                          const struct tether_rdzv_members *members,
                          char *why,
                          size_t why_size)
{
    if (members->round != node->info.round || members->participants < members->world_size) {
        snprintf(why, why_size, "a node has left or is lost");
        return true;
    }
    if (members->waiting == 0)
        return false;
    /* Do not let a node in after another has finished: the finished work would be repeated. */
    const char *any_done = "any_done";
    bool done = false;
    tether_status st = tether_store_check(node->info.store, &any_done, 1, RUN_CALL_MS, &done, NULL);
    snprintf(why, why_size, "%d more node%s joined", members->waiting,
             members->waiting == 1 ? " has" : "s have");
    return st == TETHER_OK && !done;
}

static tether_status look_at_members(struct run_node *node,
                                     struct run_verdict *ret_verdict,
                                     tether_error *reterr)
{
    struct tether_rdzv_members members;
    tether_status st = tether_rdzv_members(node->rdzv, &members, reterr);
    if (st != TETHER_OK)
        return st;
    struct run_verdict verdict = {RUN_REFORM, node->round.restarts, ""};
    if (!members.changed ||
        (!members.closed && !should_reform(node, &members, verdict.why, sizeof verdict.why)))
        return TETHER_OK;
    if (members.closed) {
        /* A node that closes the rendezvous because of a verdict sets the verdict first. */
        st = run_verdict_await(node->info.store, 0, ret_verdict, reterr);
        return st != TETHER_ETIMEOUT
                   ? st
                   : tether_error_set(reterr, TETHER_ECLOSED, "the job was closed from outside");
    }
    st = run_verdict_propose(node->info.store, &verdict, RUN_CALL_MS, reterr);
    if (st == TETHER_OK)
        *ret_verdict = verdict;
    return st;
}

tether_status run_node_watch(struct run_node *node,
                             struct run_verdict *ret_verdict,
                             tether_error *reterr)
{
    tether_error err = {0};
    ret_verdict->outcome = RUN_UNDECIDED;
    /* A single node has its own store, so it may poll more often: its requests load no other node.
     */
    int64_t slice_ms = RUN_SLICE_MS;
    if (node->options->max_nodes == 1)
        slice_ms = tether__backoff_slice_ns(run_now_ms() - node->round_began_ms, RUN_SLICE_MS / 10,
                                            RUN_SLICE_MS);
    tether_status st = run_verdict_await(node->info.store, (int)slice_ms, ret_verdict, &err);
    if (st == TETHER_ETIMEOUT)
        st = look_at_members(node, ret_verdict, &err);
    if (st == TETHER_OK) {
        node->silent_since_ms = 0;
        return TETHER_OK;
    }
    int64_t now = run_now_ms();
    if (node->silent_since_ms == 0)
        node->silent_since_ms = now;
    bool for_good = st == TETHER_ECLOSED || st == TETHER_ECORRUPT;
    if (!for_good && now - node->silent_since_ms < lease_ms(node)) {
        pause_ms(RETRY_MS);
        return TETHER_OK;
    }
    if (for_good)
        return tether_error_set(reterr, st, "%s", err.message);
    return tether_error_set(reterr, TETHER_EUNAVAILABLE,
                            "the store has not answered for %" PRId64 " s: %s",
                            (now - node->silent_since_ms) / 1000, err.message);
}

/* Whether to retry a report: the store may respond again before the lease is over. */
static bool try_again(struct run_node *node, tether_status st, int64_t deadline)
{
    if (st == TETHER_OK || atomic_load(&node->canceled) || run_now_ms() >= deadline)
        return false;
    pause_ms(RETRY_MS);
    return true;
}

static void propose(struct run_node *node, enum run_outcome outcome, int restarts, const char *why)
{
    struct run_verdict verdict = {outcome, restarts, ""};
    tether__text_fit(verdict.why, sizeof verdict.why, tether_bytes_str(why));
    int64_t deadline = run_now_ms() + lease_ms(node);
    while (try_again(node, run_verdict_propose(node->info.store, &verdict, RUN_CALL_MS, NULL),
                     deadline))
        ;
}

void run_node_done(struct run_node *node)
{
    size_t n = (size_t)node->info.world_size;
    const char **keys = run_node_keys(node, "done");
    int64_t deadline = run_now_ms() + lease_ms(node);
    bool all_done = false;
    tether_status st;
    do {
        /* Each node sets its own key and then checks all keys, so the last one finds all of
         * them. */
        st = keys ? tether_store_set(node->info.store, "any_done", tether_bytes_str("1"),
                                     RUN_CALL_MS, NULL)
                  : TETHER_ENOMEM;
        if (st == TETHER_OK)
            st = run_node_announce(node, "done", "1", NULL);
        if (st == TETHER_OK)
            st = tether_store_check(node->info.store, keys, n, RUN_CALL_MS, &all_done, NULL);
    } while (try_again(node, st, deadline));
    free(keys);
    if (all_done)
        propose(node, RUN_SUCCEEDED, node->round.restarts, "every worker exited with 0");
}

/* Waits until the heartbeats of a lost node are overdue and returns whether a node is lost. A
 * worker may fail because of a lost node before that, and a lost node must not count as a failed
 * worker. A lost leader takes the longest: the others read its last heartbeat up to one period
 * after it was sent, miss it up to one period after the lease, and elect another leader. */
static bool node_was_lost(struct run_node *node)
{
    int64_t deadline =
        run_now_ms() + lease_ms(node) + INT64_C(2) * node->options->heartbeat_ms + 3 * RUN_SLICE_MS;
    while (run_now_ms() < deadline && !atomic_load(&node->canceled)) {
        struct run_verdict verdict;
        struct tether_rdzv_members members;
        if (run_verdict_await(node->info.store, RUN_SLICE_MS, &verdict, NULL) == TETHER_OK)
            return false;
        if (tether_rdzv_members(node->rdzv, &members, NULL) != TETHER_OK)
            pause_ms(RETRY_MS);
        else if (members.participants < members.world_size)
            return true;
    }
    return false;
}

void run_node_failed(struct run_node *node, const char *why)
{
    const struct run_options *options = node->options;
    bool elastic = options->min_nodes < options->max_nodes && node->round.node_count > 1;
    if (node->round.restarts < options->max_restarts)
        propose(node, RUN_RESTART, node->round.restarts + 1, why);
    else if (elastic && node_was_lost(node))
        propose(node, RUN_REFORM, node->round.restarts, "a node has left or is lost");
    else
        propose(node, RUN_FAILED, node->round.restarts, why);
}

/* ---- The end -------------------------------------------------------------------------------- */

/* This node hosts the store, so wait until the others have read the verdict. */
static void wait_for_others(struct run_node *node)
{
    const char **keys = run_node_keys(node, "bye");
    if (keys)
        tether_store_wait(node->info.store, keys, (size_t)node->info.world_size, BYE_WAIT_MS, NULL);
    free(keys);
    struct tether_rdzv_members members;
    if (tether_rdzv_members(node->rdzv, &members, NULL) == TETHER_OK &&
        members.waiting + members.redundant > 0)
        pause_ms(JOB_OVER_WAIT_MS);
}

void run_node_end(struct run_node *node, enum run_end_mode end_mode)
{
    tether_rdzv *rdzv = node->rdzv;
    if (rdzv && end_mode == RUN_LEAVE)
        tether_rdzv_leave(rdzv, NULL);
    if (rdzv && end_mode == RUN_JOB_OVER) {
        tether_rdzv_shutdown(rdzv, NULL);
        if (node->info.store && run_node_announce(node, "bye", "1", NULL) == TETHER_OK &&
            node->meeting.is_host)
            wait_for_others(node);
    }
    tether_rdzv_info_fini(&node->info);
    memset(&node->info, 0, sizeof node->info);
    node->rdzv = tether_rdzv_release(rdzv);
    run_meeting_close(&node->meeting);
}
