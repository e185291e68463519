/* The calls that this worker has in flight to a peer.
 *
 * A call is in a slot of the session from the moment it is queued until it ends. The thread that
 * takes it out of the slot, and no other, finishes its future. Lock rule: functions whose name ends
 * in
 * `_locked` run under peer->mu; the others take it themselves.
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

/* Something that a call uses and that may be lost while the call waits; {0, 0}: nothing. */
struct tether__use {
    uint64_t high, low;
};

/* A call that we made and that is not answered yet. */
struct tether__call {
    tether_future future;
    tether_agent *agent;
    struct tether__peer *peer; /* retained */
    uint64_t id;
    int64_t deadline, started;
    tether_trace trace;
    struct tether__attached_ref *held; /* until it has ended; NULL: nothing */
    struct tether__use use;            /* under peer->mu */
    struct tether__call_due due;       /* likewise */
    /* How far it has come (progress.h), under peer->mu except `ask_at`. */
    int64_t ask_at;       /* when to ask the peer about it */
    bool is_due;          /* `ask_at` has passed */
    bool is_request;      /* a request of the reference layer (request.c), not a call */
    int64_t asked_at;     /* when a question was sent; 0: none */
    uint8_t state;        /* enum tether__call_state, as the peer said at `reported_at` */
    int64_t reported_at;  /* 0: it has not said */
    uint64_t seq;         /* of its frame, or TETHER__SEQ_OF_PIECES; 0: none yet */
    const char *progress; /* in words, when it was given up */
    struct tether__call *next_ended; /* under peer->mu: see after.h */
    tether_value *answer;            /* likewise: of a call in peer->after.answered */
    bool about_object; /* a call about an object of the peer's, which is lost with the peer */
    void *result;      /* of remote(), for result_type(); NULL: it makes nothing */
    char function[];   /* for messages */
};

/* A power of two: so many slots a peer can have. */
#define TETHER__MAX_CALLS_PER_PEER (UINT32_C(1) << 24)

struct tether__call_slot {
    struct tether__call *call; /* NULL: free */
    union {
        uint32_t next_free; /* of a free slot */
        uint32_t prev_tied; /* of a taken slot: before its call in the chain; NO_SLOT: the first */
    };
    uint32_t first_tied; /* first of the chained calls whose `use` hashes to this slot */
    uint32_t next_tied;  /* the next call in that chain after the call of this slot */
};

tether_status tether__call_new(tether_agent *agent,
                               struct tether__peer *peer,
                               const char *fn,
                               int64_t deadline,
                               struct tether__call **ret_call);
void tether__call_abandon(struct tether__call *call, bool had_slot); /* never on its way */
tether_status tether__call_put_locked(struct tether__peer *peer, struct tether__call *call);
struct tether__call *tether__call_look_up_locked(struct tether__peer *peer, uint64_t id);
struct tether__call *tether__call_take_locked(struct tether__peer *peer, uint64_t id);
void tether__call_give_up(struct tether__call *call,
                          tether_status status,
                          const tether_error *error); /* if it is still in its slot */
tether_status tether__call_explain(tether_error *reterr,
                                   tether_status status,
                                   const struct tether__peer *peer,
                                   const char *fn,
                                   size_t len);
uint32_t tether__call_wire_timeout(int64_t now, int64_t deadline);
void tether__call_finish(struct tether__call *call,
                         tether_status status,
                         const tether_error *error,
                         tether_value *value); /* out of its slot; no lock held */
/* The call uses this from here on, if it has not ended. */
void tether__call_tie_locked(struct tether__call *call, struct tether__use use);
/* Fails all that use this and wait for an answer, and tells the peer. No lock held. */
void tether__calls_end_use(struct tether__peer *peer,
                           struct tether__use use,
                           tether_status status,
                           const tether_error *error);
/* Has the timers of the peer look at the call in time, since no thread may be waiting for it. */
void tether__call_schedule(const struct tether__call *call);
/* Why a call whose time is over has no answer: TETHER_ETIMEOUT, or why one of both workers refuses
 * the other. */
tether_status tether__peer_silence_locked(const struct tether__peer *peer, tether_error *ret_why);
/* Takes out a call whose deadline is over, and has it fail. */
void tether__call_expire_locked(struct tether__peer *peer, struct tether__call *call);
/* Notes how far the calls of the session came, which is about to end. Its lanes are not reset yet.
 * Only calls of the worker to itself are looked at here: their session ends when the agent stops.
 */
void tether__calls_note_progress_locked(struct tether__session *session);

#endif
