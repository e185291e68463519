/* The pairing of two workers: the start of the other one, and whether both still agree that their
 * session has never been broken. No I/O, clock, thread or lock of its own.
 *
 * A worker start has an incarnation (from an atomic add in the store), and each worker counts how
 * often it has fenced the other's present incarnation. Their session is those four numbers, mine
 * and yours. They only grow, so two ends that differ agree by taking the greater of each: no vote,
 * no tie to break. (An impostor may send one end any fence count for the other. So counts are
 * compared by their distance, half of all numbers at most, and the two ends always agree again.) A
 * State message carries the four; a stream is up for an end when the other has named on it the four
 * that this end has.
 *
 *   STATE names                       it means                       what happens here
 *   the four that I have              same session                   ACCEPT, up
 *   a higher incarnation of the       it was restarted               FENCED: reset, up if it named
 *     sender                                                           mine right
 *   a higher fence count of the       it gave me up                  FENCED_BY_PEER: break what I
 *     sender                                                           hold of it, reset, up if …
 *   lower numbers of mine, or of      it has not heard yet, or this  ANSWER: my state tells it, it
 *     itself, than I have               state was overtaken            says its own again
 *   a lower incarnation of the sender a stale incarnation            REJECT
 *   a lower dial than one heard of    a stream given up long ago     REJECT
 *   a higher incarnation of mine      I am the stale incarnation     REJECT
 * The handshake (handshake.h) has shown before who the other end is: states come after it.
 *
 * A worker that has forgotten the other (peer/table.h) no longer knows its own fence count. The
 * other may name an old one, and go on in a session that is over. So a worker that may have
 * forgotten the start of the other names no start of it, as if they had never met, until it has
 * heard a state; then it takes one count more than that state names.
 *
 * The rule that makes it converge: after a state has come in, and after a fence, an end says its
 * state on each open stream where the last one that it said named other numbers (`stated_version`
 * of the stream differs from the pairing's `version`). Numbers only grow, so this ends: once
 * neither fences any more, each end says its state at most twice on a stream.
 *
 *     result = tether__pairing_on_state(&pairing, state, &err);
 *     if (result.verdict == TETHER__STATE_REJECT) close it;
 *     if (tether__state_fences(result.verdict)) reset both lanes of the pair, end the session;
 *     if (stream->stated_version != pairing.version)
 *         say the state, stream->stated_version = pairing.version;
 *     if (result.up) tether__lane_connected(lane, result.received); else not connected;
 *
 * Lease: any batch renews it (heard()); tick() says when to ping and when the lease is over.
 */
#ifndef TETHER_RPC_HANDSHAKE_PAIRING_H
#define TETHER_RPC_HANDSHAKE_PAIRING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/status.h"
#include "protos/rpc.pb-c.h"

#define TETHER__MAX_NAME 127

/* The bound of `lease_ms` of an agent, and of the lease that a peer may ask for: with one bound,
 * both ends use the longer lease. So no peer can make the other wait longer than this before it is
 * given up. */
#define TETHER__MAX_LEASE_MS (24u * 3600 * 1000)

/* The identity of this worker that it sends to all others. It is set once and outlives all
 * sessions. */
struct tether__self {
    const char *group, *run, *name, *address, *token; /* token may be NULL */
    uint32_t id;
    uint64_t incarnation;
    uint32_t lease_ms;
    /* The highest start of the workers that this one has forgotten; 0: none. There may have been a
     * session with a start up to this one of which nothing is known. */
    _Atomic uint64_t forgotten_start;
    uint64_t max_message_bytes; /* must be the same at both ends; 0: not said, not compared */
};

struct tether__pairing {
    const struct tether__self *self;
    /* the other worker, as far as this one knows it */
    char peer_name[TETHER__MAX_NAME + 1];
    uint32_t peer_id;
    uint64_t peer_incarnation; /* 0: never met */
    uint64_t my_fence, peer_fence;
    uint64_t peer_dial; /* number of the latest stream that the peer's present start has dialled */
    uint64_t version;   /* changes whenever one of the four numbers grows; never 0 */
    bool met;           /* a stream has been up in this session */
    bool may_be_known;  /* the peer may remember a session with us that we have forgotten */
    /* the longer of the two leases that were requested; TETHER__MAX_LEASE_MS at most */
    uint32_t lease_ms;
    /* times of the lease, in ns of the caller's clock */
    int64_t heard_at, pinged_at;
    bool watching; /* the lease is running */
};

enum tether__state_verdict {
    TETHER__STATE_ACCEPT, /* the session is the same: resume from `received` */
    TETHER__STATE_ANSWER, /* the peer's numbers are out of date: it must send its state again */
    TETHER__STATE_FENCED, /* a new session, because the peer was restarted: reset the lanes */
    /* a new session, because the peer has fenced this worker: break its references, reset the
     * lanes */
    TETHER__STATE_FENCED_BY_PEER,
    TETHER__STATE_REJECT, /* reject the sender of the state: close the stream */
};

struct tether__state_result {
    enum tether__state_verdict verdict;
    bool up;           /* the stream is up; always with ACCEPT, perhaps with the FENCED ones */
    uint64_t received; /* if `up`: how many frames the peer has received in this session */
    /* with REJECT */
    /* the peer refuses this worker, or has another token: TETHER_EPERM, TETHER_EAUTH */
    bool refused;
    bool replaced; /* the peer knows a later start of this worker: TETHER_EFENCED */
};

/* Whether a verdict means a new session, so that all that is queued or held in the old one is
 * lost. */
static inline bool tether__state_fences(enum tether__state_verdict verdict)
{
    return verdict == TETHER__STATE_FENCED || verdict == TETHER__STATE_FENCED_BY_PEER;
}

enum tether__lease_verdict { TETHER__LEASE_FINE, TETHER__LEASE_PING, TETHER__LEASE_OVER };

/* An observer connects to a group without being a worker of it. On the wire its name is this
 * prefix, the observer's own name, a dot, and 16 random digits. No worker's name may begin so. */
#define TETHER__OBSERVER_PREFIX "observer:"
/* size of an observer's `name` in its options, with a NUL */
#define TETHER__OBSERVER_NAME_SIZE 96

bool tether__name_is_observer(const char *name);

/* Gives the name that certificates and allow-lists use: of an observer the `name` of its options,
 * of a worker its whole name. */
void tether__name_certified(const char *name, char ret_name[TETHER__MAX_NAME + 1]);

/* Whether a worker or a group may have this name: 1 to 127 of [A-Za-z0-9_:.-]. */
bool tether__name_valid(const char *name);

/* `self` LENDS. `peer_incarnation` 0: not known yet (the directory in the store usually tells). */
void tether__pairing_init(struct tether__pairing *pairing,
                          const struct tether__self *self,
                          const char *peer_name,
                          uint32_t peer_id,
                          uint64_t peer_incarnation);

/* Returns this worker's state for the peer; its strings are constants. `dial` numbers the stream
 * among those that I have dialled to the peer (1, 2, 3 ...), 0 when the peer dialled it;
 * `received` is the lane's. */
Tether__State tether__pairing_state(const struct tether__pairing *pairing,
                                    uint64_t dial,
                                    uint64_t received);

/* Judges the peer's state and adopts its numbers. On REJECT nothing changed, and `reterr` has the
 * reason, as a sentence for the log and for the peer. */
struct tether__state_result tether__pairing_on_state(struct tether__pairing *pairing,
                                                     const Tether__State *state,
                                                     tether_error *reterr);

/* Size of a buffer for a peer's reason, escaped like all foreign text (base/text.h). */
#define TETHER__REASON_SIZE 160
void tether__pairing_reason(const char *from, char ret_text[TETHER__REASON_SIZE]);

/* Whether on_state() would reject the state; changes nothing. Lets the caller keep a good stream
 * when a stale start opens another one. */
tether_status tether__pairing_check(const struct tether__pairing *pairing,
                                    const Tether__State *state,
                                    tether_error *reterr);

/* The number of my latest dial, raised to the highest one that a peer reports. Without this, a peer
 * that got a higher number from an impostor of this worker would refuse every stream of mine. */
uint64_t tether__pairing_next_dial(uint64_t dial, const Tether__State *refusal);

/* Returns how often both have fenced each other. The number orders the sessions of two starts, in
 * the same way at both ends. */
static inline uint64_t tether__pairing_fences(const struct tether__pairing *pairing)
{
    return pairing->my_fence + pairing->peer_fence;
}

/* Fences the peer: a new session begins. The caller resets the lanes and ends the old session. */
void tether__pairing_fence(struct tether__pairing *pairing);

/* Handles the news from the directory that the peer's present start is `incarnation`, with the id
 * `peer_id`. Returns true if that is a later start than the known one: then a new session begins,
 * as after FENCED. */
bool tether__pairing_restarted(struct tether__pairing *pairing,
                               uint32_t peer_id,
                               uint64_t incarnation);

/* Forgets the start of the peer, so that any start is accepted next. */
void tether__pairing_forget(struct tether__pairing *pairing);

/* The lease: runs from the first heard() of a session until it is over or fenced. tick() says PING
 * once for each third of the lease in silence, and OVER, again and again, when all of it has passed
 * (now - heard_at >= lease). `*ret_next` is when to look again: TETHER__NEVER while the lease does
 * not run, and with OVER. */
void tether__pairing_heard(struct tether__pairing *pairing, int64_t now);
enum tether__lease_verdict tether__pairing_tick(struct tether__pairing *pairing,
                                                int64_t now,
                                                int64_t *ret_next);

#endif
