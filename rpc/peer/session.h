/* One session with a peer: everything that a fence ends, and nothing else.
 *
 * A peer has one present session, always. A fence (fence.c) takes it away in one step and puts the
 * spare one in its place, so a fence needs no memory. The ended session goes to peer->after; its
 * calls fail when the lock is released. Code that keeps a session compares it with peer->session:
 * if they differ, the session has ended, and nothing may be sent or taken in its name.
 *
 * The numbers that both workers agree on outlive sessions: they are in peer->pairing (pairing.h).
 *
 * The spare is made where a lack of memory can be reported: before a call gets a slot, and before a
 * connection becomes a stream. So a peer without a spare has nothing in its session, and a fence
 * only gives that session its next number.
 */
#ifndef TETHER_RPC_PEER_SESSION_H
#define TETHER_RPC_PEER_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/map.h"
#include "rpc/peer/calls/dues.h"
#include "rpc/peer/calls/progress.h"
#include "rpc/peer/outbox.h"
#include "rpc/peer/stream.h"

struct tether__call_slot;
struct tether__peer;

struct tether__session {
    /* immutable while the session is in use */
    struct tether__peer *peer;
    uint64_t number; /* counts the sessions with the peer */
    _Atomic uint32_t refs;
    /* under peer->mu */
    /* set by a fence; functions that run for the peer read it without the lock as "cancelled" */
    _Atomic bool ended;
    bool met; /* a stream was up at some time in this session */
    /* a message with references or about an object was queued in this session */
    bool bound;
    struct tether__stream out, in; /* `out`: this worker dials; `in`: the peer dials */
    struct tether__session *next;  /* links ended sessions in peer->after.ended */
    /* This worker's calls to the peer (calls/slots.h). In an ended session only the thread that
     * fails them uses these fields. */
    struct tether__call_slot *slots;
    uint32_t n_slots, first_free, n_calls;
    /* used once the session has ended */
    uint32_t next_failed;     /* the calls in all slots before this one have been failed */
    struct tether__sent sent; /* which frames had been sent and acknowledged at the end */
    struct tether__call_dues dues;
    /* the peer's calls that run here */
    struct tether__map incoming;  /* calls by their number */
    uint32_t n_waiting;           /* calls in `incoming` that wait for references or an object */
    size_t waiting_bytes;         /* bytes in the arguments of the `n_waiting` calls */
    size_t held_bytes;            /* bytes in the arguments of all calls in `incoming` */
    struct tether__outbox outbox; /* items of the reference layer that wait to be sent */
};

/* Returns an empty session with a reference count of one, held by the caller. NULL: no memory. */
struct tether__session *tether__session_new(struct tether__peer *peer);

/* Takes a reference count of the session and one of its peer; release() gives both back. */
struct tether__session *tether__session_retain(struct tether__session *session);
void tether__session_release(struct tether__session *session);

/* Gives back the peer's own count of its session, which, unlike others, holds no count of the peer.
 * NULL is fine. */
void tether__session_drop(struct tether__session *session);

/* Creates peer->spare if it is NULL. False: no memory; may_begin() then fills `*ret_why`. */
bool tether__session_make_spare_locked(struct tether__peer *peer);
bool tether__session_may_begin_locked(struct tether__peer *peer, tether_error *ret_why);

/* Puts the spare in the place of the present session. Returns the replaced session with the peer's
 * count of it; NULL if that session was never used, so that it stays with a new number. */
struct tether__session *tether__session_replace_locked(struct tether__peer *peer);

#endif
