/* The calls of a session, ordered by the time when each is due: first to ask the peer about it,
 * later to fail it because its deadline is over.
 *
 * Most calls are answered long before they are due. So a new call goes into a list, which costs a
 * few instructions; only a tick that finds it unanswered moves it into a heap. A tick costs as much
 * as the calls that are due, however many others are open. Under one hold of the lock a tick takes
 * at most TETHER__CALLS_AT_ONCE steps; the next tick continues.
 *
 * Calls without a deadline are in neither the list nor the heap. Calls of an ended session stay in
 * the list and in the heap, which no thread looks at any more. Lock rule: all functions run under
 * peer->mu.
 */
#ifndef TETHER_RPC_PEER_CALLS_DUES_H
#define TETHER_RPC_PEER_CALLS_DUES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/heap.h"
#include "base/list.h"

struct tether__call;
struct tether__peer;
struct tether__session;

/* The most calls that are moved into the heap, asked about or failed under one hold of the lock. */
#define TETHER__CALLS_AT_ONCE 64

/* The due times of the calls of a session. */
struct tether__call_dues {
    int64_t next;             /* no call of the session is due earlier */
    struct tether__list news; /* calls that are not in the heap yet */
    struct tether__heap heap;
};

/* The part of a call that links it into struct tether__call_dues. */
struct tether__call_due {
    bool in_heap;
    union {
        struct tether__list node; /* in dues->news; in no list if the call has no deadline */
        struct tether__heap_node heap_node;
    };
};

void tether__call_dues_init(struct tether__call_dues *dues);
void tether__call_dues_add_locked(struct tether__call_dues *dues, struct tether__call *call);
void tether__call_dues_remove_locked(struct tether__call_dues *dues, struct tether__call *call);
/* Asks the peer about the calls that are due by `now`, and fails those whose deadline is over.
 * Returns when it must be called again: `now`, if more calls are due than TETHER__CALLS_AT_ONCE. */
int64_t tether__calls_expire_locked(struct tether__peer *peer, int64_t now);

#endif
