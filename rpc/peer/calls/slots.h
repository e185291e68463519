/* The calls that this worker has in flight to a peer.
 *
 * A call is in a slot of the session from the moment it is queued until it ends. The thread that
 * takes it out of the slot, and no other, finishes its future. Lock rule: functions named
 * `..._locked` run under peer->mu; the others take it themselves.
 */
#ifndef TETHER_RPC_PEER_CALLS_SLOTS_H
#define TETHER_RPC_PEER_CALLS_SLOTS_H

#include "rpc/agent.h"
#include "rpc/future/internal.h"
#include "rpc/peer/calls/dues.h"
#include "rpc/peer/calls/progress.h"

struct tether__peer;
struct tether__attached_ref;
struct tether__session;

/* Identifies an object or reference that a call uses and that may be lost while the call waits. The
 * value {0, 0} stands for none. */
struct tether__use {
    uint64_t high, low;
};

/* A call that this worker has made, until its future is freed. */
struct tether__call {
    tether_future future;
    tether_agent *agent;
    struct tether__peer *peer; /* retained */
    uint64_t id;
    int64_t deadline, started;
    tether_trace trace;
    /* reference that is kept until the call has ended; NULL: none */
    struct tether__attached_ref *held;
    struct tether__use use;      /* under peer->mu */
    struct tether__call_due due; /* under peer->mu */
    /* How far the call has come (progress.h). Under peer->mu, except `ask_at`. */
    int64_t ask_at;      /* when to ask the peer about it */
    bool is_due;         /* `ask_at` has passed */
    bool is_request;     /* a request of the reference layer (request.c), not a call */
    int64_t asked_at;    /* when the peer was asked about the call; 0: never */
    uint8_t state;       /* enum tether__call_state, as reported by the peer at `reported_at` */
    int64_t reported_at; /* when the peer reported `state`; 0: never */
    /* number of the call's frame in the lane, or TETHER__SEQ_OF_PIECES; 0: not queued yet */
    uint64_t seq;
    const char *progress; /* words for the error: how far the call had come when it was given up */
    struct tether__call *next_ended; /* next call in a list of peer->after; under peer->mu */
    tether_value *answer;            /* result of a call in peer->after.answered; under peer->mu */
    bool about_object; /* a call about an object of the peer's, which is lost with the peer */
    /* for a remote(): the new object, passed to the hook result_type(); else NULL */
    void *result;
    char function[]; /* name of the function, for error messages */
};

/* The most slots of one session; a power of two. */
#define TETHER__MAX_CALLS_PER_PEER (UINT32_C(1) << 24)

struct tether__call_slot {
    struct tether__call *call; /* NULL: free */
    union {
        uint32_t next_free; /* of a free slot: the next free slot; NO_SLOT: none */
        /* of a taken slot: the previous call in the chain of its call; NO_SLOT: it is the first */
        uint32_t prev_tied;
    };
    uint32_t first_tied; /* first of the chained calls whose `use` hashes to this slot */
    uint32_t next_tied;  /* the next call in that chain after the call of this slot */
};

tether_status tether__call_new(tether_agent *agent,
                               struct tether__peer *peer,
                               const char *fn,
                               int64_t deadline,
                               struct tether__call **ret_call);
/* a call that was never sent */
void tether__call_abandon(struct tether__call *call, bool had_slot);
tether_status tether__call_put_locked(struct tether__peer *peer, struct tether__call *call);
struct tether__call *tether__call_look_up_locked(struct tether__peer *peer, uint64_t id);
struct tether__call *tether__call_take_locked(struct tether__peer *peer, uint64_t id);
/* Fails the call, unless it has left its slot. */
void tether__call_give_up(struct tether__call *call,
                          tether_status status,
                          const tether_error *error);
tether_status tether__call_explain(tether_error *reterr,
                                   tether_status status,
                                   const struct tether__peer *peer,
                                   const char *fn,
                                   size_t len);
uint32_t tether__call_wire_timeout(int64_t now, int64_t deadline);
void tether__call_finish(struct tether__call *call,
                         tether_status status,
                         const tether_error *error,
                         tether_value *value); /* the call has left its slot; no lock held */
/* Notes that the call uses `use` from now on, unless the call has ended. */
void tether__call_tie_locked(struct tether__call *call, struct tether__use use);
/* Fails all calls in flight that use `use`, and cancels them at the peer. No lock held. */
void tether__calls_end_use(struct tether__peer *peer,
                           struct tether__use use,
                           tether_status status,
                           const tether_error *error);
/* Makes the timers of the peer run at the call's `ask_at`, since no thread may be waiting for the
 * call. */
void tether__call_schedule(const struct tether__call *call);
/* Words why a call whose deadline is over got no answer: TETHER_ETIMEOUT, or the reason why one
 * worker refuses the other. */
tether_status tether__peer_silence_locked(const struct tether__peer *peer, tether_error *ret_why);
/* Takes a call whose deadline is over out of its slot; the call fails after the unlock. */
void tether__call_expire_locked(struct tether__peer *peer, struct tether__call *call);
/* Notes how far the calls of a session have come, before the session ends and its lanes are reset.
 * Only calls of the worker to itself are visited one by one; for all others session->sent suffices.
 */
void tether__calls_note_progress_locked(struct tether__session *session);

#endif
