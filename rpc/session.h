/* The session of a pair of workers: who the other one is, and whether both still agree that they
 * have been together all along. No I/O, clock, thread or lock of its own.
 *
 * A worker start has an incarnation (from an atomic add in the store), and each worker counts how
 * often it has fenced the other's present incarnation. The session is those four numbers, mine and
 * yours. They only grow, so two ends that differ agree by taking the greater of each: no vote, no
 * tie to break. HELLO carries the four; a stream is up for an end when the other has named on it
 * the four that this end has.
 *
 *   HELLO names                       it means                       what happens here
 *   the four that I have              same session                   ACCEPT, up
 *   a higher incarnation of the       it was restarted               FENCED: reset, up if it named
 *     sender                                                           mine right
 *   a higher fence count of the       it gave me up                  FENCED_BY_PEER: break what I
 *     sender                                                           hold of it, reset, up if …
 *   lower numbers of mine, or of      it has not heard yet, or this  ANSWER: my hello tells it, it
 *     itself, than I have               hello was overtaken            says hello again
 *   a lower incarnation of the sender a ghost of an earlier start    REJECT
 *   a lower dial than one heard of    a stream given up long ago     REJECT
 *   a higher incarnation of mine      I am the ghost                 REJECT
 *   other name, group, version, …     not for me                     REJECT
 *
 * The rule that makes it converge: after a hello has come in, and after a fence, an end says hello
 * on each open stream where the last hello that it said named other numbers (`said` of the stream
 * differs from the session's `epoch`). Numbers only grow, so this ends: once nobody fences any
 * more, each end says hello at most twice on a stream.
 *
 *     result = tether__session_on_hello(&session, body, &err);
 *     if (result.verdict == TETHER__HELLO_REJECT) close it;
 *     if (tether__hello_fences(result.verdict)) reset both lanes of the pair, tell everybody;
 *     if (stream->said != session.epoch) say hello, stream->said = session.epoch;
 *     if (result.up) tether__lane_connected(lane, result.received); else not connected;
 *
 * Lease: any batch renews it (heard()); tick() says when to ping and when the lease is over.
 */
#ifndef TETHER_RPC_SESSION_H
#define TETHER_RPC_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"

#define TETHER__WIRE_VERSION 1
#define TETHER__MAX_NAME 127
#define TETHER__MAX_ADDRESS 255

/* What this worker says of itself to everybody; set once, outlives its sessions. */
struct tether__self {
    const char *group, *name, *address, *token; /* token may be NULL */
    uint32_t id;
    uint64_t incarnation;
    uint32_t lease_ms;
    uint64_t max_message_bytes; /* must be the same at both ends; 0: not said, not compared */
};

struct tether__session {
    const struct tether__self *self;
    /* what I know of the other */
    char peer_name[TETHER__MAX_NAME + 1];
    uint32_t peer_id;
    uint64_t peer_incarnation; /* 0: never met */
    uint64_t my_fence, peer_fence;
    uint64_t peer_dial; /* the latest stream that the peer's present start has dialled */
    uint64_t epoch;     /* grows with any of the four numbers; never 0 */
    bool met;           /* a stream has been up in this session */
    uint32_t lease_ms;  /* the longer of both wishes */
    /* lease, in ns of the caller's clock */
    int64_t heard_at, pinged_at;
    bool watching; /* the lease runs */
};

enum tether__hello_verdict {
    TETHER__HELLO_ACCEPT,         /* same session: resume from `received` */
    TETHER__HELLO_ANSWER,         /* the peer is behind: it must say hello again */
    TETHER__HELLO_FENCED,         /* new session since the peer was restarted: reset */
    TETHER__HELLO_FENCED_BY_PEER, /* new session since the peer gave me up: break, reset */
    TETHER__HELLO_REJECT,         /* not a peer of mine: close */
};

struct tether__hello_result {
    enum tether__hello_verdict verdict;
    bool up;           /* the stream is up; always with ACCEPT, perhaps with the FENCED ones */
    uint64_t received; /* when up: how far the peer got in this session */
    /* with REJECT */
    bool refused;  /* it does not want us, or has another token: TETHER_EPERM, TETHER_EAUTH */
    bool replaced; /* it knows a later start of this worker: TETHER_EFENCED */
};

/* A new session: what was queued and held in the old one is lost. */
static inline bool tether__hello_fences(enum tether__hello_verdict verdict)
{
    return verdict == TETHER__HELLO_FENCED || verdict == TETHER__HELLO_FENCED_BY_PEER;
}

enum tether__lease_verdict { TETHER__LEASE_FINE, TETHER__LEASE_PING, TETHER__LEASE_OVER };

/* 1 to 127 of [A-Za-z0-9_:.-]: what a worker or a group may be called. */
bool tether__name_valid(const char *name);

/* `self` LENDS. `peer_incarnation` 0: not known yet (the directory in the store usually tells). */
void tether__session_init(struct tether__session *session,
                          const struct tether__self *self,
                          const char *peer_name,
                          uint32_t peer_id,
                          uint64_t peer_incarnation);

/* Packs my hello for this peer behind what `body` holds. `dial` numbers the stream among those that
 * I have dialled to the peer (1, 2, 3 ...), 0 when the peer dialled it; `received` is the lane's.
 */
tether_status tether__session_hello(const struct tether__session *session,
                                    uint64_t dial,
                                    uint64_t received,
                                    tether_buf *body);

/* Judges the peer's hello and takes over what it tells. On REJECT nothing changed, and `reterr`
 * says why, as a sentence for the log and for the peer. */
struct tether__hello_result tether__session_on_hello(struct tether__session *session,
                                                     tether_bytes body,
                                                     tether_error *reterr);

/* Whether on_hello() would reject it, without taking anything over: so that a ghost's stream does
 * not take the place of a good one. */
tether_status tether__session_check(const struct tether__session *session,
                                    tether_bytes body,
                                    tether_error *reterr);

/* Who sent this hello, for finding the session that it belongs to. Checks all that can be checked
 * without one (version, group, token, names, limits), so that a stranger makes no state. */
struct tether__hello_peek {
    char from_name[TETHER__MAX_NAME + 1];
    char address[TETHER__MAX_ADDRESS + 1];
    uint32_t from_id;
    uint64_t from_incarnation;
};
tether_status tether__hello_peek(const struct tether__self *self,
                                 tether_bytes body,
                                 struct tether__hello_peek *ret_peek,
                                 tether_error *reterr);

/* How often both have fenced each other: orders the sessions of two starts, at both ends alike. */
static inline uint64_t tether__session_fences(const struct tether__session *session)
{
    return session->my_fence + session->peer_fence;
}

/* I give the peer up: a new session from here on. The caller resets the lanes and tells everybody.
 */
void tether__session_fence(struct tether__session *session);

/* The directory says that the peer's present start is `incarnation`, with the id `peer_id`. True
 * when that is a later start than the one known: a new session from here on, as after FENCED. */
bool tether__session_restarted(struct tether__session *session,
                               uint32_t peer_id,
                               uint64_t incarnation);

/* The lease: runs from the first heard() of a session until it is over or fenced. tick() says PING
 * once for each third of the lease in silence, and OVER, again and again, when all of it has passed
 * (now - heard_at >= lease). `*ret_next` is when to look again: TETHER__NEVER while the lease does
 * not run, and with OVER. */
void tether__session_heard(struct tether__session *session, int64_t now);
enum tether__lease_verdict tether__session_tick(struct tether__session *session,
                                                int64_t now,
                                                int64_t *ret_next);

#endif
