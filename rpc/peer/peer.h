/* One other worker: its session, its state, and how it is found. docs/design.md has the picture. */
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
    tether_bytes name_key; /* of peers_by_name; points to `name` */
    char name[TETHER_MAX_WORKER_NAME + 1];
    uint64_t serial; /* of its entry in the table */
    bool is_self;
    bool is_observer; /* one of a few that come and go: it is never dialled, and not in metrics */
    _Atomic uint32_t refs;
    /* any thread */
    _Atomic uint64_t incarnation; /* of the start that we met last; 0: none */
    _Atomic uint32_t id; /* of that start, or of the one that the directory has; UINT32_MAX: none */
    _Atomic uint64_t fences; /* of both, in the present session; written before `incarnation` */
    _Atomic(struct tether__route *) route; /* that we last dialled it by, or would */
    _Atomic int64_t due_at;   /* changed under agent->due_mu; TETHER__NEVER: not in agent->dues */
    _Atomic uint32_t n_named; /* peers that exist because it has named them, and were never met */
    /* under agent->mu */
    struct tether__list retries_put_off; /* those that wait for `budget`, oldest first */
    /* under agent->due_mu */
    struct tether__heap_node due;  /* in agent->dues */
    struct tether__peer *next_due; /* of the thread that runs the timers */
    /* under mu */
    struct tether__pairing pairing;
    struct tether__session *session; /* the present one, never NULL; a fence puts `spare` there */
    struct tether__session *spare;   /* NULL: nothing is in `session` (peer/session.h) */
    _Atomic uint64_t session_number; /* that of `session`; read without mu too */
    struct tether__peer *named_by;   /* until it was met; NULL: no other peer counts for it */
    uint64_t n_dials;                /* conns that we dialled; the peer compares them */
    int64_t heard_at;                /* when something last came in a session that has ended */
    struct tether__peer_metrics metrics;
    struct tether__log_limit closings;             /* of streams, for what the peer sent */
    struct tether__log_limit rejections, fencings; /* of streams by states, of the peer */
    struct tether__start start;
    struct tether__dialer dialer;  /* where it is, and the connection that we dial */
    bool is_unlisted;              /* it counts in agent->n_unlisted */
    bool fenced;                   /* given up, and not heard of since */
    struct tether__outage outage;  /* whether it is known to be out of reach */
    int64_t idle_since;            /* TETHER__NEVER: it is not, or no tick has seen that */
    struct tether__budget budget;  /* of retries */
    uint64_t n_calls_ever;         /* over all sessions: no number comes twice */
    _Atomic size_t n_gathered;     /* items in the outbox of `session`; read without mu, too */
    void *ref_peer;                /* the reference layer's, under its lock (refs_api.h) */
    struct tether__condition room; /* for more calls. It has its own lock */
    /* under mu */
    struct tether__after after; /* for the thread that unlocks it */
    pthread_mutex_t mu;
};

/* See peer/after.h. A call takes these locks a dozen times, mostly with nothing to run. */
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

/* Every struct that refers to a peer holds a count of it, except its own lists in the reference
 * layer and `named_by`. */
struct tether__peer *tether__peer_retain(struct tether__peer *peer); /* NULL is fine */

void tether__peer_release(struct tether__peer *peer); /* NULL is fine */

/* Finds the peer called `name`, or makes it (not yet looked up). Gives a retained peer. */
tether_status tether__agent_peer(tether_agent *agent,
                                 const char *name,
                                 struct tether__peer **ret_peer,
                                 tether_error *reterr);

/* The same for a name in a message of `by`. TETHER_EBUSY: it has named TETHER__MAX_NAMES_PER_PEER
 * workers that this one had never heard of, or all peers TETHER__MAX_NAMES, and none of them was
 * met since. */
#define TETHER__MAX_NAMES_PER_PEER 1024

#define TETHER__MAX_NAMES 16384

tether_status tether__agent_peer_named_by(tether_agent *agent,
                                          struct tether__peer *by,
                                          const char *name,
                                          struct tether__peer **ret_peer,
                                          tether_error *reterr);

/* The peer was met, or goes: it no longer counts for the peer that has named it. */
void tether__peer_end_naming_locked(struct tether__peer *peer);

/* A peer that has said hello, and that the directory has not named, needs one of
 * TETHER__MAX_UNLISTED places: so a member that invents names cannot make peers without end. False:
 * all are taken. The peer keeps its place until the directory names it, or it is dropped. */
#define TETHER__MAX_UNLISTED 256

bool tether__agent_take_place(tether_agent *agent);

void tether__agent_return_place(tether_agent *agent);

void tether__peer_end_unlisted_locked(struct tether__peer *peer);

/* The peer called `name`, retained, if there is one; else NULL. */
struct tether__peer *tether__agent_find_peer(tether_agent *agent, const char *name);

/* The latest start of the peer that we have met or that the directory has told us; 0: none. */
uint64_t tether__peer_known_start(struct tether__peer *peer);

uint64_t tether__peer_known_start_locked(const struct tether__peer *peer);

/* Returns the poller that receives the replies of this peer with the fewest thread hand-overs. */
static inline struct tether__poller *tether__peer_poller(struct tether__peer *peer)
{
    return &atomic_load_explicit(&peer->route, memory_order_acquire)->poller;
}

/* Finds who this is; `*ret_peer` is retained. TETHER_EUNAVAILABLE: it has to try again. */
tether_status tether__admit_peer(tether_agent *agent,
                                 const struct tether__handshake *handshake,
                                 bool is_proved,
                                 struct tether__peer **ret_peer,
                                 uint64_t *ret_known, /* its latest start; 0: none */
                                 tether_error *reterr);

/* Whether its stream may take the place of the one that is there. */
bool tether__admit_locked(struct tether__peer *peer,
                          const Tether__State *state,
                          tether_error *ret_why);

#endif
