/* The outbox of a session: messages of the reference layer that gather until a frame is written.
 *
 * No caller waits for these messages, and a message of their own costs as much as a call. So they
 * wait for another frame to leave with, for a millisecond at the most. An item is one thing that
 * the peer has to be told; items of one kind leave together, up to TETHER__OUTBOX_PER_MESSAGE in
 * one message. So there may be millions of items, and few messages. Items that were posted last
 * leave first.
 *
 * If a message cannot be handed to the lane, its items stay in the outbox. They are tried again
 * after growing pauses, paid from the peer's retry budget, until the session ends: there is no last
 * attempt. A message that is too long can never be sent, so it ends the session; the peer then
 * drops the same references.
 *
 * Items are intrusive, so neither posting nor the end of a session needs memory. When the session
 * ends, its items go to peer->after, and from there to the reference layer, which frees them in
 * slices.
 *
 * Lock rule: all fields are under peer->mu. kind->pack() runs under it, too.
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
    /* messages of SOONER kinds are filled first */
    enum { TETHER__OUTBOX_SOONER, TETHER__OUTBOX_LATER, TETHER__OUTBOX_N_TURNS } turn;
    /* Packs `n` items, from `first` on, into one message. Fails with TETHER_ENOMEM only. */
    tether_status (*pack)(const struct tether__outbox_item *first,
                          size_t n,
                          struct tether__packed *ret_packed);
    /* Frees the item, once the lane has its message or its session has ended. Runs with or without
     * peer->mu. */
    void (*done)(struct tether__outbox_item *item);
};

/* A list of items. `end` points to the `next` field of the last item, or to `first` if there is
 * none. */
struct tether__outbox_items {
    struct tether__outbox_item *first, **end;
};

static inline void tether__outbox_items_init(struct tether__outbox_items *items)
{
    *items = (struct tether__outbox_items){NULL, &items->first};
}

/* Adds the item at the front. */
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
    /* when the items are sent if no other frame is sent before; TETHER__NEVER: no timer */
    int64_t due;
    /* no items are sent before this time, to let other threads have the lock; 0: any time */
    int64_t from;
    /* when to try again after a failed attempt; TETHER__NEVER: the last one did not fail */
    int64_t retry_at;
    int n_failures; /* failed attempts in a row */
    /* a message is too long to be sent ever: the peer's timers must fence the session */
    bool is_stuck;
};

void tether__outbox_init(struct tether__outbox *outbox);

bool tether__outbox_is_empty(const struct tether__outbox *outbox);

/* Posts an item to the peer in session `session_number`. The item leaves with the next frame, at
 * the latest after a millisecond, or once the peer is connected. TAKES the item, and calls done()
 * when the session has ended already. No lock held. */
void tether__outbox_post(struct tether__peer *peer,
                         uint64_t session_number,
                         struct tether__outbox_item *item);

/* Queues messages for some of the items. Called just before a frame is written to the peer. */
void tether__outbox_fill_locked(struct tether__session *session);

/* Runs the outbox's timers that are due by `now`; returns when it must be called again. */
int64_t tether__outbox_tick_locked(struct tether__session *session, int64_t now);

/* Moves all items to peer->after, because the session ends. */
void tether__outbox_end_locked(struct tether__session *session);

/* Frees all items, those of ended sessions too, when the agent is released. No lock held. */
void tether__outbox_clear(struct tether__peer *peer);

/* Whether more items than most_gathered() wait to be sent to the peer. Then no message of the peer
 * that would add items is applied (limits.h). May be called without the lock. */
bool tether__outbox_is_full(const struct tether__peer *peer);

#endif
