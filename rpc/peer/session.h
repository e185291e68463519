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
    uint64_t number; /* of all sessions with the peer; grows */
    _Atomic uint32_t refs;
    /* under peer->mu */
    _Atomic bool ended;            /* written under peer->mu; cancels the peer's calls */
    bool met;                      /* a stream has been up in it */
    bool bound;                    /* references or objects were queued in it */
    struct tether__stream out, in; /* that we dialled; that the peer dialled */
    struct tether__session *next;  /* of an ended session: see peer/after.h */
    /* our calls (calls/slots.h); of an ended session they belong to the thread that disposes of it
     */
    struct tether__call_slot *slots;
    uint32_t n_slots, first_free, n_calls;
    /* of an ended session */
    uint32_t next_failed;     /* the calls of the slots before it have failed */
    struct tether__sent sent; /* how far its calls had come */
    struct tether__call_dues dues;
    /* the peer's calls that run here */
    struct tether__map incoming;  /* by id */
    uint32_t n_waiting;           /* of those, for references or an object */
    size_t waiting_bytes;         /* in the arguments of these */
    size_t held_bytes;            /* in the arguments of all calls in `incoming` */
    struct tether__outbox outbox; /* messages of the reference layer */
};

/* A session with nothing in it, of which the caller holds one count. NULL: no memory. */
struct tether__session *tether__session_new(struct tether__peer *peer);

/* A count of a session, and one of its peer. */
struct tether__session *tether__session_retain(struct tether__session *session);
void tether__session_release(struct tether__session *session);

/* Gives back the count that the peer itself has, which is none of the peer. NULL is fine. */
void tether__session_drop(struct tether__session *session);

/* Makes the spare. False: no memory. may_begin() says so in `*ret_why`. */
bool tether__session_make_spare_locked(struct tether__peer *peer);
bool tether__session_may_begin_locked(struct tether__peer *peer, tether_error *ret_why);

/* Takes the present session away: gives it, with the peer's count, or NULL if nothing was in it. */
struct tether__session *tether__session_replace_locked(struct tether__peer *peer);

#endif
