/* Another worker, as this one sees it: its session, its state and its address. docs/design.md shows
 * how the units around it fit together. */
#ifndef TETHER_RPC_PEER_PEER_H
#define TETHER_RPC_PEER_PEER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/bytes.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/log_limit.h"
#include "base/status.h"
#include "rpc/agent.h"
#include "rpc/agent/counters.h"
#include "rpc/agent/routes.h"
#include "rpc/call/budget.h"
#include "rpc/future/condition.h"
#include "rpc/handshake/pairing.h"
#include "rpc/peer/admission/starts.h"
#include "rpc/peer/after.h"
#include "rpc/peer/connect/dialer.h"
#include "rpc/peer/connect/outage.h"

struct tether__route;
struct tether__handshake;
struct tether__poller;

struct tether__peer {
    /* immutable */
    tether_agent *agent;
    tether_bytes name_key; /* key in agent->peers_by_name; points to `name` */
    char name[TETHER_MAX_WORKER_NAME + 1];
    uint64_t serial; /* of the peer's entry in agent->peers */
    bool is_self;
    /* an observer, not a worker: it is never dialled and not shown in the metrics */
    bool is_observer;
    _Atomic uint32_t refs;
    /* any thread */
    /* start of the peer that this worker connected to last; 0: none */
    _Atomic uint64_t incarnation;
    /* worker id of the peer, as met or as in the directory; UINT32_MAX: not known */
    _Atomic uint32_t id;
    /* sum of the fence counts of both ends in the present session; written before `incarnation` */
    _Atomic uint64_t fences;
    /* the route of the last dial, or of the first one to come */
    _Atomic(struct tether__route *) route;
    /* when the peer's timers run; changed under agent->due_mu; TETHER__NEVER: not in agent->dues */
    _Atomic int64_t due_at;
    /* peers that exist only because this peer has named them in a message */
    _Atomic uint32_t n_named;
    /* under agent->mu */
    struct tether__list retries_put_off; /* retries that wait for `budget`, oldest first */
    /* under agent->due_mu */
    struct tether__heap_node due;  /* the peer's place in agent->dues */
    struct tether__peer *next_due; /* next peer whose timers run in this tick */
    /* under mu */
    struct tether__pairing pairing;
    /* the present session, never NULL; a fence replaces it by `spare` */
    struct tether__session *session;
    struct tether__session *spare;   /* NULL while `session` is not in use (peer/session.h) */
    _Atomic uint64_t session_number; /* number of `session`; may be read without mu */
    /* the peer that counts this one in its `n_named`; NULL: none, or met since */
    struct tether__peer *named_by;
    /* connections dialled so far; the peer uses the number to tell later dials */
    uint64_t n_dials;
    int64_t heard_at; /* when a message last arrived in any session that has ended */
    struct tether__peer_metrics metrics;
    /* limits the log of streams closed because of bad messages */
    struct tether__log_limit closings;
    /* limit the logs of refused streams and of fences */
    struct tether__log_limit rejections, fencings;
    struct tether__start start;
    /* the peer's address, and the connection that this worker dials */
    struct tether__dialer dialer;
    bool is_unlisted; /* the peer counts in agent->n_unlisted */
    /* this worker has ended the session, and no stream has come up since */
    bool fenced;
    struct tether__outage outage; /* whether the peer is known to be out of reach */
    /* TETHER__NEVER: the peer is in use, or no tick has found it idle yet */
    int64_t idle_since;
    struct tether__budget budget; /* limits how often messages to the peer are retried */
    /* calls to the peer in all sessions, so that no call number is used twice */
    uint64_t n_calls_ever;
    _Atomic size_t n_gathered; /* items in the outbox of `session`; may be read without mu */
    /* struct of the reference layer for the peer, under that layer's lock (refs_api.h) */
    void *ref_peer;
    /* threads that wait until one more call may be made; has its own lock */
    struct tether__condition room;
    /* under mu */
    struct tether__after after; /* work for the thread that unlocks the peer */
    pthread_mutex_t mu;
};

/* Inline, since a call locks and unlocks a peer a dozen times, mostly without work to run after the
 * unlock (peer/after.h). */
static inline void tether__peer_lock(struct tether__peer *peer)
{
    pthread_mutex_lock(&peer->mu);
}

static inline void tether__peer_unlock(struct tether__peer *peer)
{
    if (peer->after.any)
        tether__peer_unlock_and_run(peer);
    else
        pthread_mutex_unlock(&peer->mu);
}

tether_status tether__peer_new(tether_agent *agent,
                               const char *name,
                               struct tether__peer **ret_peer);

/* Every struct that refers to a peer holds a count of that peer, except the peer's own lists in the
 * reference layer and the field `named_by`. */
struct tether__peer *tether__peer_retain(struct tether__peer *peer); /* NULL is fine */

void tether__peer_release(struct tether__peer *peer); /* NULL is fine */

/* Finds the peer called `name`, or adds it to the table without a look-up in the directory.
 * `*ret_peer` is retained. */
tether_status tether__agent_peer(tether_agent *agent,
                                 const char *name,
                                 struct tether__peer **ret_peer,
                                 tether_error *reterr);

/* Like tether__agent_peer(), for a name in a message from the peer `by`. TETHER_EBUSY: too many
 * peers exist only because messages named them: TETHER__MAX_NAMES_PER_PEER named by `by`, or
 * TETHER__MAX_NAMES named by all peers. */
#define TETHER__MAX_NAMES_PER_PEER 1024

#define TETHER__MAX_NAMES 16384

tether_status tether__agent_peer_named_by(tether_agent *agent,
                                          struct tether__peer *by,
                                          const char *name,
                                          struct tether__peer **ret_peer,
                                          tether_error *reterr);

/* Subtracts the peer from the `n_named` of the peer that named it. Called when the peer is met or
 * dropped. */
void tether__peer_end_naming_locked(struct tether__peer *peer);

/* Takes one of TETHER__MAX_UNLISTED places for a peer that has connected under a name that is not
 * in the directory. The limit stops a member that invents names from filling the table. Returns
 * false if all places are taken. The peer keeps its place until the directory lists its name or the
 * peer is dropped. */
#define TETHER__MAX_UNLISTED 256

bool tether__agent_take_place(tether_agent *agent);

void tether__agent_return_place(tether_agent *agent);

void tether__peer_end_unlisted_locked(struct tether__peer *peer);

/* Returns the peer called `name`, retained; NULL if the table has none. */
struct tether__peer *tether__agent_find_peer(tether_agent *agent, const char *name);

/* Returns the latest start of the peer that this worker has met or found in the directory; 0: none.
 */
uint64_t tether__peer_known_start(struct tether__peer *peer);

uint64_t tether__peer_known_start_locked(const struct tether__peer *peer);

/* Returns the poller that receives the replies of this peer with the fewest thread hand-overs. */
static inline struct tether__poller *tether__peer_poller(struct tether__peer *peer)
{
    return &atomic_load_explicit(&peer->route, memory_order_acquire)->poller;
}

/* Finds the peer at the other end of a finished handshake, or adds it; `*ret_peer` is retained.
 * TETHER_EUNAVAILABLE: the other end must dial again, since the directory is asked first. */
tether_status tether__admit_peer(tether_agent *agent,
                                 const struct tether__handshake *handshake,
                                 bool is_proved,
                                 struct tether__peer **ret_peer,
                                 uint64_t *ret_known, /* the peer's latest known start; 0: none */
                                 tether_error *reterr);

/* Whether a new connection of the peer, which sent `state`, may replace its incoming stream. */
bool tether__admit_locked(struct tether__peer *peer,
                          const Tether__State *state,
                          tether_error *ret_why);

#endif
