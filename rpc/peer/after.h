/* Work that a thread leaves for after it has unlocked a peer.
 *
 * Code under the peer's lock must not call user code, nor take locks that come before this one. It
 * notes such work in `peer->after` instead, and tether__peer_unlock() does it. So no caller has to
 * run the work itself. Noting it needs no memory and cannot fail.
 *
 * The unlock finishes answered calls one after the other. Two kinds of work go through the work
 * list of the thread (base/threads/work_list.h), because they may end other sessions: failing
 * calls, and notifying the reference layer that a session has ended. A thread that is inside an
 * item of its work list does them after that item has returned, together with all work that other
 * threads have noted by then.
 *
 * A session may end with thousands of calls in flight, on a thread that others wait for. So that
 * thread fails only TETHER__CALLS_AT_ONCE of them; the peer's timers fail the rest, as many at a
 * time. An agent that stops fails all of them at once.
 *
 * Lock rule: tether__peer_unlock() runs user code, so it must not be called with another lock held.
 * A thread that holds the lock of the agent as well may only read the peer, and uses `mu` itself.
 */
#ifndef TETHER_RPC_PEER_AFTER_H
#define TETHER_RPC_PEER_AFTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/threads/work_list.h"
#include "rpc/peer/outbox.h"

struct tether__call;
struct tether__peer;
struct tether__session;

/* A list of calls that were taken out of their slots, linked by call->next_ended. */
struct tether__ended_calls {
    /* `end` points to the link that the next call is stored in */
    struct tether__call *first, **end;
};

/* Calls that end without an answer, with their error. */
struct tether__failed_calls {
    struct tether__ended_calls calls;
    tether_error error;
};

/* Under peer->mu. */
struct tether__after {
    bool any; /* tether__peer_unlock() has something to do */
    /* `work` is in the work list of a thread, and will run all work noted until then */
    bool is_queued;
    bool goes_on; /* the peer's timers ask for the next slice of calls to fail */
    /* the reference layer must be notified that sessions have ended, because of `why` */
    bool fenced;
    uint64_t ended_number; /* number of the last session that has ended */
    tether_error why;
    /* ended sessions whose calls have yet to fail, with `why` */
    struct tether__session *ended;
    struct tether__outbox_items untold; /* items from the outboxes of ended sessions */
    int64_t due; /* when the peer's timers must run; TETHER__NEVER: no change */
    struct tether__ended_calls answered; /* calls to finish with call->answer */
    struct tether__failed_calls expired; /* calls whose deadline is over */
    struct tether__work work;
};

void tether__after_init(struct tether__after *after);

/* tether__peer_lock() and tether__peer_unlock() are inline in rpc/peer/peer.h. This function
 * unlocks a peer whose `after` is not empty, and runs the work. */
void tether__peer_unlock_and_run(struct tether__peer *peer);

/* Makes the timers of the peer run at `due` at the latest. */
void tether__peer_wake_at_locked(struct tether__peer *peer, int64_t due);

/* Notes that session `number`, the present one until now, has ended with `error`: after the unlock
 * the reference layer is notified and the calls in `ended` fail. TAKES the peer's count of `ended`;
 * NULL: that session was never used. */
void tether__peer_ended_locked(struct tether__peer *peer,
                               struct tether__session *ended,
                               uint64_t number,
                               const tether_error *error);

/* Notes that the next slice of calls of ended sessions must fail, if any are left. Returns when to
 * call again. */
int64_t tether__peer_go_on_locked(struct tether__peer *peer, int64_t now);

/* Notes that a call, which was taken out of its slot, ends after the unlock. `calls` is
 * &after.answered (call->answer must be set) or &after.expired.calls (expired.error must be set).
 */
void tether__peer_end_call_locked(struct tether__peer *peer,
                                  struct tether__ended_calls *calls,
                                  struct tether__call *call);

#endif
