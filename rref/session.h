/* Sessions with peers, as references see them: lists of what a fence ends, and the fence. */
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

/* A peer in one session with it. A fence ends all items that name it. */
struct tether__ref_session {
    struct tether__peer *peer; /* counted, or in its lists, when it is kept for long */
    uint64_t number;           /* of the session (rpc/peer/session.h) */
};

/* Why references broke: one for all that a fence breaks. */
struct tether__cause {
    _Atomic uint32_t refs;
    tether_error error;
};

struct tether__cause *tether__cause_new(const tether_error *error); /* NULL: no memory */
struct tether__cause *tether__cause_retain(struct tether__cause *cause);
void tether__cause_release(struct tether__cause *cause); /* NULL is fine */

/* The items that concern one peer, in lists. An item stays in its list when sessions end and begin;
 * its ref_session says which session it belongs to. A fence moves the lists to `ended` and then
 * goes through them in slices. Items of a later session go back to `live`. */
struct tether__ref_lists {
    struct tether__list forks;    /* tether__fork.by_holder: of our objects, held by the peer */
    struct tether__list users;    /* tether_rref.node: references here to objects of the peer's */
    struct tether__list children; /* tether__pending_child.node: references passed on to the peer */
    struct tether__list expected; /* tether_rref.node: objects that the peer is to have made here */
    struct tether__list asked;    /* tether__waiting.by_asker: requests of the peer's that wait */
};

struct tether__ref_peer {
    struct tether__peer *peer;
    uint64_t first_session; /* sessions before this one are over */
    struct tether__ref_lists live, ended;
    size_t n_asked;              /* items of both `asked` lists */
    size_t n_expected;           /* objects that the peer is about to have made here */
    size_t n_unconfirmed;        /* references in its messages that other owners have to confirm */
    struct tether__list fencing; /* in refs->fencing while `ended` has items */
    struct tether__list
        awaited;              /* tether__waiting.by_creator: for objects that the peer is to make */
    struct tether__list lost; /* of `awaited`: not looked at since the session has ended */
    struct tether__list losses; /* in refs->losses while `lost` has items */
    struct tether__loss {
        uint64_t start, made_in; /* the creator's start, and the next session with that */
        uint64_t later_start;    /* which may make what some still wait for; 0: none */
        bool not_there;          /* the directory does not have the creator */
    } loss;
    uint64_t n_looks;             /* at all of `awaited`: one for each session that was met */
    struct tether__list creators; /* in refs->creators while `awaited` has items */
    uint64_t looked_at_start, looked_at_fences; /* of the peer, when the last look began */
    struct tether__watermark *mark;             /* of its latest creation here; NULL: none yet */
    struct tether__cause *why; /* of the last fence; NULL: there was no memory for it */
    tether_status why_code;
    struct tether__outbox_items untold; /* of ended sessions: to be freed */
};

/* The lists of a peer; NULL: it has none. */
static inline struct tether__ref_peer *tether__ref_peer_find_locked(const struct tether__peer *peer)
{
    return tether__peer_refs(peer);
}

/* The first session of a peer that is not over. Without lists nothing is held in the name of any
 * session, so a session is over as soon as rpc has ended it. */
static inline uint64_t tether__ref_first_session_locked(const struct tether__peer *peer)
{
    const struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(peer);
    return ref_peer ? ref_peer->first_session : tether__peer_session(peer);
}

/* Whether the session has ended, and everything of it been released: nothing more may be held in
 * its name. A message that was on a thread's hands meanwhile finds out so. */
static inline bool tether__ref_session_is_over_locked(struct tether__ref_session session)
{
    return session.number < tether__ref_first_session_locked(session.peer);
}

/* The lists of a peer, made if there are none. NULL: no memory. */
struct tether__ref_peer *tether__ref_peer_locked(struct tether__peer *peer);
/* Drops all forks that the peer holds: the agent is released. */
void tether__ref_peer_drop_forks_locked(const struct tether__peer *peer,
                                        struct tether__collected *collected);
/* Frees the lists of a peer. Items that are still in one of them leave it. */
void tether__ref_peer_forget_locked(struct tether__peer *peer);

/* "I have it": made when the reference arrives, so that it cannot fail when it is due. */
struct tether__accept {
    struct tether__outbox_item item;
    struct tether__refs *refs;
    tether_rref_id fork;
    struct tether__ref_session parent; /* retained */
};

/* ---- gathered.c ---- */
struct tether__accept *tether__accept_new(struct tether__refs *refs,
                                          tether_rref_id fork,
                                          struct tether__ref_session parent); /* NULL: no memory */
void tether__accept_free(struct tether__accept *accept);                      /* NULL is fine */

/* Tells the owner, with others, that `rref` is gone; frees it when that is queued. */
void tether__refs_queue_delete(tether_rref *rref);
/* Tells the parent, with others. TAKES `accept` (NULL: nothing). No lock held. */
void tether__refs_queue_accept(struct tether__accept *accept);

/* How long the timer's thread does something else between two slices. */
#define TETHER__PAUSE_NS (TETHER__NS_PER_MS / 10)

/* The status that a fence of its owner breaks a reference with. */
tether_status tether__fence_code(const struct tether__ref_peer *ref_peer, const tether_rref *rref);
/* Goes on with fences that have not come to all items yet, for a short time. When to go on then. */
int64_t tether__fence_go_on(struct tether__refs *refs, int64_t now);
void tether__fence_finish(struct tether__refs *refs); /* all of them */

#endif
