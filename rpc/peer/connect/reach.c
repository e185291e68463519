/* Reaches a peer: asks the directory where it is, dials it, and dials it again. See reach.h. */
#include "rpc/peer/connect/reach.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/threads/loop.h"
#include "base/threads/reaper.h"
#include "base/threads/state.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/group/directory.h"
#include "rpc/group/group.h"
#include "rpc/handshake/pairing.h"
#include "rpc/peer/admission/starts.h"
#include "rpc/peer/after.h"
#include "rpc/peer/connect/dialer.h"
#include "rpc/peer/connect/outage.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"

#define LOOKUP_TIMEOUT_MS 5000

struct lookup {
    struct tether__task task;
    struct tether__peer *peer;
};

/* Whether the start in the record can be dialled over its unix socket: it runs on this host, in the
 * same network namespace. */
static bool is_here(const struct tether__peer *peer, const struct tether__worker_record *record)
{
    return record->unix_address[0] && peer->agent->local.transport &&
           tether__directory_is_here(&peer->agent->directory, record);
}

/* Whether the start in `record`, just read from the directory, will be dialled over gRPC. */
static bool needs_network_locked(const struct tether__peer *peer,
                                 const struct tether__worker_record *record)
{
    const struct tether__dialer *dialer = &peer->dialer;
    return !is_here(peer, record) || (dialer->route == TETHER__NETWORK_ROUTE &&
                                      record->incarnation == dialer->record.incarnation);
}

/* Starts the network route if the peer needs it. Called before the dial, because the start must not
 * take place under peer->mu. */
static void start_network(struct tether__peer *peer, const struct tether__worker_record *record)
{
    tether_error error = {0};
    tether__peer_lock(peer);
    bool needed = needs_network_locked(peer, record);
    tether__peer_unlock(peer);
    if (!needed || tether__network_start(peer->agent, &error) == TETHER_OK)
        return;
    tether__peer_lock(peer);
    tether__dialer_explain(&peer->dialer, error.message);
    tether__peer_unlock(peer);
}

static void run_lookup(struct tether__task *task)
{
    struct lookup *lookup = tether__container_of(task, struct lookup, task);
    struct tether__peer *peer = lookup->peer;
    struct tether__worker_record record;
    tether_error error = {0};
    /* no look-up when the agent stops: stop() waits for all queued ones */
    tether_status st = TETHER_ESHUTDOWN;
    if (!tether__agent_is_parting(peer->agent))
        st = tether__directory_lookup(&peer->agent->directory, peer->name, LOOKUP_TIMEOUT_MS,
                                      &record, &error);
    if (st == TETHER_EUNAVAILABLE) /* the store may have lost its keys */
        tether__agent_store_check_at(peer->agent, tether__clock_now_ns(peer->agent->clock));
    struct tether__reaper *outer = tether__thread_state.reaper;
    tether__thread_state.reaper = &peer->agent->reaper;
    if (st == TETHER_OK && !tether__network_runs(peer->agent))
        start_network(peer, &record);
    tether__peer_found(peer, st == TETHER_OK ? &record : NULL, st, &error);
    tether__thread_state.reaper = outer;
    tether__peer_release(peer);
    tether__free(lookup);
}

static void dial_locked(struct tether__peer *peer)
{
    tether_agent *agent = peer->agent;
    struct tether__dialer *dialer = &peer->dialer;
    bool local = tether__dialer_dial(dialer, is_here(peer, &dialer->record)) == TETHER__LOCAL_ROUTE;
    struct tether__route *route = local ? &agent->local : &agent->network;
    if (local || tether__network_runs(agent)) {
        atomic_store_explicit(&peer->route, route, memory_order_release);
        tether__stream_dial_locked(&peer->session->out, route,
                                   local ? dialer->record.unix_address : dialer->record.address);
    } else {
        tether__network_want(agent); /* starts in the background; a later dial finds it running */
    }
    if (!peer->session->out.conn) {
        tether__dialer_closed(dialer);
        tether__peer_connect_locked(peer);
    }
}

/* Whether a session is up that lasts until its lease is over, even if the directory does not list
 * the peer. */
static bool has_live_session_locked(const struct tether__peer *peer)
{
    return peer->session->met && peer->pairing.watching;
}

/* Whether the start in this record is known to be dead. */
static bool is_dead_locked(const struct tether__peer *peer,
                           const struct tether__worker_record *record)
{
    return peer->outage.kind == TETHER__DEAD && record->incarnation <= peer->outage.start;
}

/* Whether the record has the address of the start that the session is with, or of a later one. */
static bool has_address_locked(const struct tether__peer *peer)
{
    return tether__dialer_knows(&peer->dialer, peer->pairing.peer_incarnation) &&
           !is_dead_locked(peer, &peer->dialer.record);
}

/* Whether this agent may dial the peer: it runs, was not replaced, and the peer is another worker.
 */
static bool may_dial_locked(const struct tether__peer *peer)
{
    int state = atomic_load(&peer->agent->state);
    return !peer->is_self && !peer->is_observer && state >= TETHER__AGENT_JOINING &&
           state <= TETHER__AGENT_STOPPING && !atomic_load(&peer->agent->replaced);
}

void tether__peer_look_up_locked(struct tether__peer *peer)
{
    int64_t now = tether__clock_now_ns(peer->agent->clock);
    if (peer->agent->directory.running && may_dial_locked(peer) &&
        tether__dialer_ask_at(&peer->dialer, now))
        tether__peer_wake_at_locked(peer, now);
}

void tether__peer_connect_locked(struct tether__peer *peer)
{
    bool is_known = has_live_session_locked(peer) && has_address_locked(peer);
    if (!tether__dialer_may_begin(&peer->dialer, is_known) || !may_dial_locked(peer))
        return;
    int64_t now = tether__clock_now_ns(peer->agent->clock);
    peer->idle_since = TETHER__NEVER;
    if (!peer->pairing.watching) { /* the lease begins now: the peer must answer within it */
        tether__pairing_heard(&peer->pairing, now);
        if (peer->outage.kind != TETHER__NO_OUTAGE)
            peer->dialer.backoff_ms = 0; /* outage.retry_at already has a longer pause */
    }
    int64_t from = tether__outage_try(&peer->outage, peer->pairing.lease_ms, now);
    tether__peer_wake_at_locked(
        peer, tether__dialer_back_off(&peer->dialer, from, now, peer->pairing.lease_ms));
}

/* Submits a look-up of the peer in the directory. False: out of memory, or the queue is full. */
static bool look_up_locked(struct tether__peer *peer)
{
    struct lookup *lookup = tether__calloc(1, sizeof *lookup);
    if (!lookup)
        return false;
    lookup->task.run = run_lookup;
    lookup->peer = tether__peer_retain(peer);
    if (tether__agent_submit(peer->agent, &peer->agent->directory.lookups, &lookup->task) ==
        TETHER_OK) {
        tether__dialer_asked(&peer->dialer); /* in time: the answer needs peer->mu */
        return true;
    }
    tether__peer_release(peer);
    tether__free(lookup);
    return false;
}

void tether__peer_dial_due_locked(struct tether__peer *peer)
{
    struct tether__dialer *dialer = &peer->dialer;
    bool has_address = has_address_locked(peer);
    bool asks = tether__dialer_on_due(dialer, has_address, peer->agent->directory.running);
    if (asks && !dialer->is_asking && !look_up_locked(peer))
        asks = false;
    if (tether__dialer_has_conn(dialer))
        return; /* only the look-up was due */
    if (has_address && (!asks || has_live_session_locked(peer)))
        dial_locked(peer);
    else if (!asks)
        tether__peer_connect_locked(peer);
}

bool tether__peer_is_unbound_locked(const struct tether__peer *peer)
{
    return !peer->session->met && !peer->session->bound;
}

void tether__peer_learn_record_locked(struct tether__peer *peer,
                                      const struct tether__worker_record *record)
{
    bool met = peer->pairing.peer_incarnation != 0;
    bool restarted = tether__pairing_restarted(&peer->pairing, record->id, record->incarnation);
    if (restarted) { /* objects created from now on belong to a session with the new start */
        atomic_store(&peer->fences, tether__pairing_fences(&peer->pairing));
        atomic_store(&peer->incarnation, record->incarnation);
    }
    if (restarted && met && !tether__peer_is_unbound_locked(peer))
        tether__peer_end_session_locked(peer, TETHER_EUNAVAILABLE, "it was restarted");
    if (record->incarnation > peer->outage.start)
        tether__outage_end(&peer->outage);
    /* keeps last_error, which calls that fail still report */
    tether__dialer_learn(&peer->dialer, record);
    /* if this fails, it is tried again when a stream comes up */
    tether__start_take_locked(peer, record->incarnation, NULL);
    tether__peer_end_unlisted_locked(peer);
    atomic_store(&peer->id, record->id);
}

static bool is_elsewhere(const struct tether__worker_record *a,
                         const struct tether__worker_record *b)
{
    return strcmp(a->address, b->address) != 0 || strcmp(a->unix_address, b->unix_address) != 0;
}

void tether__peer_found(struct tether__peer *peer,
                        const struct tether__worker_record *record,
                        tether_status status,
                        const tether_error *error)
{
    struct tether__dialer *dialer = &peer->dialer;
    tether__peer_lock(peer);
    tether__dialer_answered(dialer);
    /* so that the timers watch the lease, which may begin below */
    tether__peer_wake_at_locked(peer, 0);
    if (tether__agent_is_parting(peer->agent)) {
        /* the thread that stops the agent ends this session: do not dial or fence */
    } else if (is_dead_locked(peer, record ? record : &dialer->record) &&
               status != TETHER_ENOTFOUND) {
        if (peer->pairing.watching ||
            peer->session->n_calls) /* calls may have been made during the look-up */
            tether__peer_attempt_failed_locked(peer);
    } else if (record && record->incarnation >= peer->pairing.peer_incarnation) {
        if (dialer->state == TETHER__DIALER_CONNECTING && is_elsewhere(record, &dialer->record))
            /* the conn is being made to the old address */
            tether__stream_drop_locked(&peer->session->out);
        tether__peer_learn_record_locked(peer, record);
        if (!tether__dialer_has_conn(dialer)) {
            if (peer->session->n_calls && !peer->pairing.watching)
                tether__pairing_heard(&peer->pairing, tether__clock_now_ns(peer->agent->clock));
            dial_locked(peer);
        }
    } else if (status == TETHER_ENOTFOUND && !has_live_session_locked(peer)) {
        /* if the peer connects later, it learns of this fence */
        tether__pairing_fence(&peer->pairing);
        tether__peer_end_session_with_locked(peer, error);
        /* the peer has left the group and may join again at any time */
        tether__outage_end(&peer->outage);
        peer->pairing.watching = false;
        peer->fenced = true;
        tether__dialer_doubt(dialer, "");
        tether__dialer_restart(dialer);
    } else {
        if (!record)
            tether__dialer_explain(dialer, error->message);
        if (status == TETHER_EUNAVAILABLE && has_address_locked(peer) &&
            !tether__dialer_has_conn(dialer))
            dial_locked(peer); /* the store is gone, but the peer may be alive */
        else
            tether__peer_connect_locked(peer);
    }
    tether__peer_unlock(peer);
}

/* ---- Out of reach ---- */

/* Ends the session; its calls fail with the error of the outage. */
static void fence_unreachable_locked(struct tether__peer *peer, int64_t now)
{
    tether_error error;
    tether__outage_error(&peer->outage, peer->name, now, &error);
    tether__peer_give_up_with_locked(peer, &error, peer->outage.how);
}

void tether__peer_attempt_failed_locked(struct tether__peer *peer)
{
    fence_unreachable_locked(peer, tether__clock_now_ns(peer->agent->clock));
}

tether_status tether__peer_admit_locked(const struct tether__peer *peer, tether_error *reterr)
{
    if (peer->outage.kind == TETHER__NO_OUTAGE)
        return TETHER_OK;
    int64_t now = tether__clock_now_ns(peer->agent->clock);
    return tether__outage_refuses(&peer->outage, now)
               ? tether__outage_error(&peer->outage, peer->name, now, reterr)
               : TETHER_OK;
}

bool tether__peer_is_at_own_address_locked(const struct tether__peer *peer)
{
    return peer->dialer.record.address_is_own &&
           tether__directory_is_here(&peer->agent->directory, &peer->dialer.record);
}

void tether__peer_refused_locked(struct tether__peer *peer, const char *how)
{
    uint64_t start = peer->dialer.dialled_start;
    int64_t now = tether__clock_now_ns(peer->agent->clock);
    if (!start || start < tether__peer_known_start_locked(peer))
        return; /* the refused address was that of an earlier start */
    tether__outage_begin(&peer->outage, TETHER__DEAD, start, how, now);
    if (peer->session->met) {
        fence_unreachable_locked(peer, now);
        /* no call was sent yet, so a later start of the peer may get them */
    } else if (!peer->dialer.is_asking) {
        tether__dialer_restart(&peer->dialer);
        tether__peer_connect_locked(peer);
    }
}

void tether__peer_lost_locked(struct tether__peer *peer, int64_t now)
{
    char how[TETHER__OUTAGE_HOW_SIZE], error[96];
    tether__text_fit(error, sizeof error, tether_bytes_str(peer->dialer.last_error));
    snprintf(how, sizeof how, "no word from it for %u ms (lease_ms)%s%s", peer->pairing.lease_ms,
             error[0] ? ", " : "", error);
    tether__outage_begin(&peer->outage, TETHER__LOST, tether__peer_known_start_locked(peer), how,
                         now);
    fence_unreachable_locked(peer, now);
}
