/* The outbox of a session: messages of the reference layer that gather until a frame is written.
 *
 * No caller waits for these messages, and a message of their own costs as much as a call. So they
 * wait for another frame to leave with, for a millisecond at the most. An item is one thing that
 * the peer has to be told; items of one kind leave together, up to TETHER__OUTBOX_PER_MESSAGE in
 * one message. So there may be millions of items, and few messages. Items that were posted last
 * leave first.
 *
 * A message that cannot be handed to the lane keeps its items. They go again after a pause that
 * grows, paid from the peer's retry budget, until the session ends: there is no last attempt. A
 * message that is too long can never be sent, so then the session ends, which tells the peer the
 * same.
 *
 * Items are intrusive, so neither posting nor the end of a session needs memory. When the session
 * ends, its items go to peer->after, and from there to the reference layer, which frees them in
 * slices.
 *
 * Lock rule: all under peer->mu, which kind->pack() and kind->done() are called with, too.
 */
#ifndef TETHER_RPC_PEER_OUTBOX_H
#define TETHER_RPC_PEER_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"

struct tether__packed;
struct tether__peer;
struct tether__session;

/* The receiver applies a message under one lock, so its length is limited (docs/wire.md). */
#define TETHER__OUTBOX_PER_MESSAGE 256

struct tether__outbox_item {
    struct tether__outbox_item *next;
    const struct tether__outbox_kind *kind;
};

struct tether__outbox_kind {
    uint32_t frame;
    enum { TETHER__OUTBOX_SOONER, TETHER__OUTBOX_LATER, TETHER__OUTBOX_N_TURNS } turn; /* its own */
    /* Packs `n` items, from `first` on, into one message. TETHER_ENOMEM. */
    tether_status (*pack)(const struct tether__outbox_item *first,
                          size_t n,
                          struct tether__packed *ret_packed);
    /* The item is in a message that the lane has, or its session has ended: frees it. Also called
     * without the lock. */
    void (*done)(struct tether__outbox_item *item);
};

/* `end` is where the item after the last one goes. */
struct tether__outbox_items {
    struct tether__outbox_item *first, **end;
};

static inline void tether__outbox_items_init(struct tether__outbox_items *items)
{
    *items = (struct tether__outbox_items){NULL, &items->first};
}

/* In front of the others. */
static inline void tether__outbox_items_push(struct tether__outbox_items *items,
                                             struct tether__outbox_item *item)
{
    item->next = items->first;
    items->first = item;
    if (!item->next)
        items->end = &item->next;
}

/* Moves all items of `from` to the end of `to`. */
static inline void tether__outbox_items_append(struct tether__outbox_items *to,
                                               struct tether__outbox_items *from)
{
    if (!from->first)
        return;
    *to->end = from->first;
    to->end = from->end;
    tether__outbox_items_init(from);
}

static inline struct tether__outbox_item *tether__outbox_items_pop(
    struct tether__outbox_items *items)
{
    struct tether__outbox_item *item = items->first;
    if (item && !(items->first = item->next))
        items->end = &items->first;
    return item;
}

struct tether__outbox {
    struct tether__outbox_items gathered[TETHER__OUTBOX_N_TURNS];
    int64_t due;      /* they leave then, if no frame takes them along; TETHER__NEVER: not set */
    int64_t from;     /* no earlier, since a slice of them has just left; 0: any time */
    int64_t retry_at; /* an attempt has failed, and they go again then; TETHER__NEVER: none has */
    int n_failures;   /* in a row */
    bool is_stuck;    /* a message can never be sent: the session is to be fenced */
};

void tether__outbox_init(struct tether__outbox *outbox);

bool tether__outbox_is_empty(const struct tether__outbox *outbox);

/* Posts an item to the peer in session `session_number`. It leaves with the next frame, after a
 * millisecond, or once the peer is connected. TAKES the item, and calls done() when the session has
 * ended already. No lock held. */
void tether__outbox_post(struct tether__peer *peer,
                         uint64_t session_number,
                         struct tether__outbox_item *item);

/* A frame is about to be written to the peer: queues messages for a slice of the items. */
void tether__outbox_fill_locked(struct tether__session *session);

/* Does what is due; says when to come again. */
int64_t tether__outbox_tick_locked(struct tether__session *session, int64_t now);

/* The session ends: moves its items to peer->after. */
void tether__outbox_end_locked(struct tether__session *session);

/* Frees all items, those of ended sessions too. The agent is released. No lock held. */
void tether__outbox_clear(struct tether__peer *peer);

/* Whether the peer does not take what it is to be told: then no message of the peer that leads to
 * more of it is applied (limits.h). Without the lock. */
bool tether__outbox_is_full(const struct tether__peer *peer);

#endif
