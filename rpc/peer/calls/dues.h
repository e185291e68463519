/* The calls of a session in the order in which something is to be done about them: first a question
 * to the peer, then the end by the deadline.
 *
 * Most calls are answered long before. So a call is put into a list first, which costs a few
 * instructions, and only a tick that comes while the call is open puts it into a heap. A tick costs
 * as much as the calls that are due, however many others are open. It takes TETHER__CALLS_AT_ONCE
 * steps at most under one hold of the lock; the next tick goes on.
 *
 * Calls without a deadline are in neither. Calls of an ended session stay in the list and in the
 * heap, which no thread looks at any more. Lock rule: all functions run under peer->mu.
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

/* Calls that are put into the heap, asked about or ended under one hold of the lock. */
#define TETHER__CALLS_AT_ONCE 64

/* The due times of the calls of a session. */
struct tether__call_dues {
    int64_t next;             /* no call of the session is due earlier */
    struct tether__list news; /* calls that are not in the heap yet */
    struct tether__heap heap;
};

/* Of a call. */
struct tether__call_due {
    bool in_heap;
    union {
        struct tether__list node; /* in `news`; in no list if the call has no deadline */
        struct tether__heap_node heap_node;
    };
};

void tether__call_dues_init(struct tether__call_dues *dues);
void tether__call_dues_add_locked(struct tether__call_dues *dues, struct tether__call *call);
void tether__call_dues_remove_locked(struct tether__call_dues *dues, struct tether__call *call);
/* Asks about calls that are due by `now`, and has those fail whose deadline is over. Says when to
 * go on: at once, if more calls are due than one hold of the lock is for. */
int64_t tether__calls_expire_locked(struct tether__peer *peer, int64_t now);

#endif
