/* Sessions with peers, as the reference layer uses them: the lists of items that a fence ends, and
 * the fence itself. */
#ifndef TETHER_RREF_SESSION_H
#define TETHER_RREF_SESSION_H

#include "base/clock.h"
#include "base/list.h"
#include "rpc/peer/outbox.h"
#include "rpc/refs_api.h"
#include "rref/id.h"

struct tether__refs;
struct tether__collected;
struct tether__watermark;

/* A peer and one session with it. A fence ends all items that name this session. */
struct tether__ref_session {
    /* retained if this struct outlives the call, unless its item is in one of the peer's lists */
    struct tether__peer *peer;
    uint64_t number; /* number of the session (rpc/peer/session.h) */
};

/* The cause why references broke; all references that one fence breaks share it. */
struct tether__cause {
    _Atomic uint32_t refs;
    tether_error error;
};

/* returns NULL when there is no memory */
struct tether__cause *tether__cause_new(const tether_error *error);
struct tether__cause *tether__cause_retain(struct tether__cause *cause);
void tether__cause_release(struct tether__cause *cause); /* NULL is fine */

/* The items that concern one peer, in lists. An item stays in its list when sessions end and begin;
 * its ref_session says which session it belongs to. A fence moves the lists to `ended` and then
 * goes through them in slices. Items of a later session go back to `live`. */
struct tether__ref_lists {
    /* tether__fork.by_holder: forks of our objects that the peer holds */
    struct tether__list forks;
    /* tether_rref.node: our references to objects that the peer owns */
    struct tether__list users;
    /* tether__pending_child.node: references that we passed on to the peer */
    struct tether__list children;
    /* tether_rref.node: objects whose creation here the peer has announced */
    struct tether__list expected;
    struct tether__list asked; /* tether__waiting.by_asker: requests of the peer that wait */
};

struct tether__ref_peer {
    struct tether__peer *peer;
    uint64_t first_session; /* sessions before this one are over */
    struct tether__ref_lists live, ended;
    size_t n_asked;    /* items of both `asked` lists, live and ended */
    size_t n_expected; /* objects whose creation here the peer has announced */
    /* references in this peer's messages that other owners have to confirm */
    size_t n_unconfirmed;
    struct tether__list fencing; /* a node of refs->fencing while `ended` has items */
    struct tether__list
        awaited; /* tether__waiting.by_creator: requests for objects that this peer is to create */
    /* requests from `awaited` that were not checked since the session has ended */
    struct tether__list lost;
    struct tether__list losses; /* a node of refs->losses while `lost` has items */
    struct tether__loss {
        /* the creator's start when it was lost, and the next session number with that start */
        uint64_t start, made_in;
        /* a later start, which may create objects that some requests wait for; 0: none */
        uint64_t later_start;
        bool not_there; /* the directory does not have the creator */
    } loss;
    /* how often all of `awaited` had to be checked: once for each new session with the creator */
    uint64_t n_looks;
    struct tether__list creators; /* a node of refs->creators while `awaited` has items */
    /* start and number of fences of the peer when the last check of `awaited` began */
    uint64_t looked_at_start, looked_at_fences;
    /* the watermark of the peer's latest creation here; NULL: none yet */
    struct tether__watermark *mark;
    struct tether__cause *why; /* cause of the last fence; NULL: there was no memory for it */
    tether_status why_code;
    /* messages of ended sessions that are to be freed without being sent */
    struct tether__outbox_items untold;
};

/* Returns the lists of a peer; NULL: it has none. */
static inline struct tether__ref_peer *tether__ref_peer_find_locked(const struct tether__peer *peer)
{
    return tether__peer_refs(peer);
}

/* Returns the first session with a peer that is not over. A peer without lists has no items in any
 * session, so its session is over as soon as rpc has ended it. */
static inline uint64_t tether__ref_first_session_locked(const struct tether__peer *peer)
{
    const struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(peer);
    return ref_peer ? ref_peer->first_session : tether__peer_session(peer);
}

/* Returns whether the session has ended and all its items were released, so that no new item
 * may be added. A thread that handles a message of the session learns so that it has ended
 * meanwhile. */
static inline bool tether__ref_session_is_over_locked(struct tether__ref_session session)
{
    return session.number < tether__ref_first_session_locked(session.peer);
}

/* Returns the lists of a peer, and makes them if there are none. NULL: no memory. */
struct tether__ref_peer *tether__ref_peer_locked(struct tether__peer *peer);
/* Drops all forks that the peer holds, because the agent is being released. */
void tether__ref_peer_drop_forks_locked(const struct tether__peer *peer,
                                        struct tether__collected *collected);
/* Frees the lists of a peer. Items that are still in a list are taken out first. */
void tether__ref_peer_forget_locked(struct tether__peer *peer);

/* A child-accept message. It is allocated when the reference arrives, so that sending it later
 * cannot fail. */
struct tether__accept {
    struct tether__outbox_item item;
    struct tether__refs *refs;
    tether_rref_id fork;
    struct tether__ref_session parent; /* retained */
};

/* ---- gathered.c ---- */
struct tether__accept *tether__accept_new(struct tether__refs *refs,
                                          tether_rref_id fork,
                                          /* returns NULL when there is no memory */
                                          struct tether__ref_session parent);
void tether__accept_free(struct tether__accept *accept); /* NULL is fine */

/* Queues a user-delete for the owner of `rref` in its outbox, to be sent together with others;
 * frees `rref` once it is queued. */
void tether__refs_queue_delete(tether_rref *rref);
/* Queues a child-accept for the worker that passed on the reference, to be sent together with
 * others. TAKES `accept` (NULL: does nothing). No lock held. */
void tether__refs_queue_accept(struct tether__accept *accept);

/* How long the timer thread does other work between two slices. */
#define TETHER__PAUSE_NS (TETHER__NS_PER_MS / 10)

/* Returns the status with which a fence of the owner breaks `rref`. */
tether_status tether__fence_code(const struct tether__ref_peer *ref_peer, const tether_rref *rref);
/* Continues for a short time with fences that have not reached all their items. Returns when to
 * call it again. */
int64_t tether__fence_go_on(struct tether__refs *refs, int64_t now);
void tether__fence_finish(struct tether__refs *refs); /* completes all fences that are under way */

#endif
