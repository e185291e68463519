/* Creates, finds and frees peers. connect/reach.c dials a peer, timers.c keeps its lease. See
 * peer.h for the struct. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/status.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/call/budget.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/pairing.h"
#include "rpc/peer/after.h"
#include "rpc/peer/connect/outage.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/table.h"

struct tether__peer *tether__peer_retain(struct tether__peer *peer)
{
    if (peer)
        atomic_fetch_add_explicit(&peer->refs, 1, memory_order_relaxed);
    return peer;
}

static void peer_destroy(struct tether__peer *peer)
{
    tether__session_drop(peer->session);
    tether__session_drop(peer->spare);
    tether__condition_fini(&peer->room);
    pthread_mutex_destroy(&peer->mu);
    tether__free(peer);
}

void tether__peer_release(struct tether__peer *peer)
{
    if (peer && atomic_fetch_sub_explicit(&peer->refs, 1, memory_order_acq_rel) == 1)
        peer_destroy(peer);
}

tether_status tether__peer_new(tether_agent *agent,
                               const char *name,
                               struct tether__peer **ret_peer)
{
    struct tether__peer *peer = tether__calloc(1, sizeof *peer);
    if (!peer)
        return TETHER_ENOMEM;
    peer->agent = agent;
    bool has_local = agent->timers == &agent->local.poller;
    atomic_init(&peer->route, has_local ? &agent->local : &agent->network);
    snprintf(peer->name, sizeof peer->name, "%s", name);
    peer->name_key = tether_bytes_str(peer->name);
    peer->is_self = strcmp(name, agent->name) == 0;
    peer->is_observer = tether__name_is_observer(name);
    atomic_init(&peer->id, UINT32_MAX);
    atomic_init(&peer->refs, 1);
    atomic_init(&peer->due_at, TETHER__NEVER);
    /* above all numbers that an earlier, dropped peer of this name has used */
    peer->n_calls_ever = atomic_load(&agent->started_calls);
    peer->idle_since = TETHER__NEVER;
    tether__dialer_init(&peer->dialer);
    tether__list_init(&peer->retries_put_off);
    tether__budget_init(&peer->budget, tether__clock_now_ns(agent->clock));
    tether__pairing_init(&peer->pairing, &agent->self, peer->name, 0, 0);
    tether__outage_init(&peer->outage);
    tether__after_init(&peer->after);
    tether__condition_init(&peer->room);
    pthread_mutex_init(&peer->mu, NULL);
    peer->session = tether__session_new(peer);
    if (!peer->session) {
        peer_destroy(peer);
        return TETHER_ENOMEM;
    }
    *ret_peer = peer;
    return TETHER_OK;
}

static tether_status add_peer_locked(tether_agent *agent,
                                     const char *name,
                                     struct tether__peer **ret_peer)
{
    struct tether__peer *peer;
    if (tether__peer_new(agent, name, &peer) != TETHER_OK)
        return TETHER_ENOMEM;
    if (tether__agent_add_peer_locked(agent, peer) != TETHER_OK) {
        tether__peer_release(peer);
        return TETHER_ENOMEM;
    }
    *ret_peer = peer;
    return TETHER_OK;
}

/* `by`: the peer whose message contained the name; NULL: this program has named the peer. */
static tether_status find_or_add_locked(tether_agent *agent,
                                        const char *name,
                                        struct tether__peer *by,
                                        struct tether__peer **ret_peer)
{
    tether_bytes key = tether_bytes_str(name);
    tether_bytes *found = tether__map_get(&agent->peers_by_name, &key);
    if (found) {
        *ret_peer = tether__container_of(found, struct tether__peer, name_key);
        return TETHER_OK;
    }
    if (!tether__name_valid(name))
        return TETHER_EINVAL;
    if (by && (atomic_load(&by->n_named) >= TETHER__MAX_NAMES_PER_PEER ||
               atomic_load(&agent->n_named) >= TETHER__MAX_NAMES))
        return TETHER_EBUSY;
    tether_status st = add_peer_locked(agent, name, ret_peer);
    if (st == TETHER_OK && by) {
        (*ret_peer)->named_by = by;
        atomic_fetch_add(&by->n_named, 1);
        atomic_fetch_add(&agent->n_named, 1);
    }
    return st;
}

void tether__peer_end_naming_locked(struct tether__peer *peer)
{
    if (!peer->named_by)
        return;
    atomic_fetch_sub(&peer->named_by->n_named, 1);
    atomic_fetch_sub(&peer->agent->n_named, 1);
    peer->named_by = NULL;
}

bool tether__agent_take_place(tether_agent *agent)
{
    if (atomic_fetch_add(&agent->n_unlisted, 1) < TETHER__MAX_UNLISTED)
        return true;
    tether__agent_return_place(agent);
    return false;
}

void tether__agent_return_place(tether_agent *agent)
{
    atomic_fetch_sub(&agent->n_unlisted, 1);
}

void tether__peer_end_unlisted_locked(struct tether__peer *peer)
{
    if (peer->is_unlisted)
        tether__agent_return_place(peer->agent);
    peer->is_unlisted = false;
}

tether_status tether__agent_peer_named_by(tether_agent *agent,
                                          struct tether__peer *by,
                                          const char *name,
                                          struct tether__peer **ret_peer,
                                          tether_error *reterr)
{
    struct tether__peer *peer = NULL;
    pthread_mutex_lock(&agent->mu);
    tether_status st = find_or_add_locked(agent, name, by, &peer);
    if (st == TETHER_OK)
        tether__peer_retain(peer);
    pthread_mutex_unlock(&agent->mu);
    if (st == TETHER_EINVAL)
        return tether_error_set(reterr, st,
                                "'%.40s' is not the name of a worker: names have 1 to %d of A-Z "
                                "a-z 0-9 _ : . -",
                                name, TETHER_MAX_WORKER_NAME);
    if (st == TETHER_EBUSY)
        return tether_error_set(
            reterr, st,
            "worker '%s' names more than %d workers that nobody has met, or all "
            "workers together name more than %d",
            by->name, TETHER__MAX_NAMES_PER_PEER, TETHER__MAX_NAMES);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "no memory for worker '%s'", name);
    *ret_peer = peer;
    return TETHER_OK;
}

tether_status tether__agent_peer(tether_agent *agent,
                                 const char *name,
                                 struct tether__peer **ret_peer,
                                 tether_error *reterr)
{
    return tether__agent_peer_named_by(agent, NULL, name, ret_peer, reterr);
}

struct tether__peer *tether__agent_find_peer(tether_agent *agent, const char *name)
{
    tether_bytes key = tether_bytes_str(name);
    struct tether__peer *peer = NULL;
    pthread_mutex_lock(&agent->mu);
    tether_bytes *found = tether__map_get(&agent->peers_by_name, &key);
    if (found)
        peer = tether__peer_retain(tether__container_of(found, struct tether__peer, name_key));
    pthread_mutex_unlock(&agent->mu);
    return peer;
}

uint64_t tether__peer_known_start_locked(const struct tether__peer *peer)
{
    uint64_t met = peer->pairing.peer_incarnation;
    return peer->dialer.record.incarnation > met ? peer->dialer.record.incarnation : met;
}

uint64_t tether__peer_known_start(struct tether__peer *peer)
{
    tether__peer_lock(peer);
    uint64_t known = tether__peer_known_start_locked(peer);
    tether__peer_unlock(peer);
    return known;
}
