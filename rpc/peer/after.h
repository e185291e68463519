/* Work that a thread leaves for after it has unlocked a peer.
 *
 * Code under the peer's lock must not call user code, nor take locks that come before this one. It
 * notes such work in `peer->after` instead, and tether__peer_unlock() does it. So no caller has to
 * remember it. Noting needs no memory and cannot fail.
 *
 * Calls that were answered are finished one after the other. Failing calls and telling the layer
 * above that a session has ended goes over the work list of the thread (base/threads/work_list.h),
 * since it may lead to the end of other sessions. So inside an item of that list it is done when
 * the item has returned. Work that other threads note until then is done with it.
 *
 * A session may end with thousands of calls, on a thread that others wait for. So it fails
 * TETHER__CALLS_AT_ONCE of them, and the peer's timers fail as many at a time of the others. An
 * agent that stops fails all at once.
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

/* Calls that are out of their slots, chained by next_ended, in order. */
struct tether__ended_calls {
    struct tether__call *first, **end; /* `end` is where the next one goes */
};

/* Those that end without an answer, and why. */
struct tether__failed_calls {
    struct tether__ended_calls calls;
    tether_error error;
};

/* Under peer->mu. */
struct tether__after {
    bool any;              /* tether__peer_unlock() has something to do */
    bool is_queued;        /* `work` is on the list of a thread, and will find what is noted */
    bool goes_on;          /* the timers have come to `ended` */
    bool fenced;           /* a session has ended, with the error `why`: */
    uint64_t ended_number; /* this session, and all before it */
    tether_error why;
    struct tether__session *ended;      /* calls may be left in these, which fail with `why`, too */
    struct tether__outbox_items untold; /* that ended sessions have left in their outboxes */
    int64_t due; /* the peer's timers have to run then; TETHER__NEVER: no sooner than they will */
    struct tether__ended_calls answered; /* each has its value */
    struct tether__failed_calls expired; /* by their deadlines */
    struct tether__work work;
};

void tether__after_init(struct tether__after *after);

/* tether__peer_lock() and tether__peer_unlock() are inline in rpc/peer/peer.h. This one
 * unlocks a peer whose `after` is not empty, and runs the work. */
void tether__peer_unlock_and_run(struct tether__peer *peer);

/* Has the timers of the peer run at `due` at the latest. */
void tether__peer_wake_at_locked(struct tether__peer *peer, int64_t due);

/* Has the layer above told that session `number`, which was the present one, has ended with this
 * error, and has the calls fail that are in `ended` (TAKES the peer's count; NULL: there were
 * none).
 */
void tether__peer_ended_locked(struct tether__peer *peer,
                               struct tether__session *ended,
                               uint64_t number,
                               const tether_error *error);

/* Has a slice of the calls of ended sessions fail, if any are left. Says when to go on. */
int64_t tether__peer_go_on_locked(struct tether__peer *peer, int64_t now);

/* Has a call end that is out of its slot. `calls`: those of peer->after.answered, with
 * call->answer, or those of expired, whose status and error must be set. */
void tether__peer_end_call_locked(struct tether__peer *peer,
                                  struct tether__ended_calls *calls,
                                  struct tether__call *call);

#endif
