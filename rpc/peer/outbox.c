/* Messages of the reference layer that gather for a peer. See outbox.h. */
#include "rpc/peer/outbox.h"

#include <stdatomic.h>

#include "rpc/agent/internal.h"
#include "rpc/call/budget.h"
#include "rpc/call/retry.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/after.h"
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/limits.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/timers.h"
#include "rpc/wire/packed.h"

#define GATHER_NS TETHER__NS_PER_MS /* how long items wait for another frame */
#define MESSAGES_AT_ONCE 4          /* messages queued under one hold of the peer's lock */
/* pause after those, in which other threads get the lock */
#define PAUSE_NS (TETHER__NS_PER_MS / 10)

/* ---- Lists of items ---- */

/* Frees up to `n` items. */
static void free_first(struct tether__outbox_items *items, size_t n)
{
    for (struct tether__outbox_item *item; n > 0 && (item = tether__outbox_items_pop(items)); n--)
        item->kind->done(item);
}

/* ---- The outbox of a session ---- */

void tether__outbox_init(struct tether__outbox *outbox)
{
    *outbox = (struct tether__outbox){.due = TETHER__NEVER, .retry_at = TETHER__NEVER};
    for (size_t turn = 0; turn < TETHER__OUTBOX_N_TURNS; turn++)
        tether__outbox_items_init(&outbox->gathered[turn]);
}

bool tether__outbox_is_empty(const struct tether__outbox *outbox)
{
    return !outbox->gathered[TETHER__OUTBOX_SOONER].first &&
           !outbox->gathered[TETHER__OUTBOX_LATER].first;
}

bool tether__outbox_is_full(const struct tether__peer *peer)
{
    return atomic_load_explicit(&peer->n_gathered, memory_order_relaxed) >
           tether__most_gathered(peer->agent);
}

void tether__outbox_post(struct tether__peer *peer,
                         uint64_t session_number,
                         struct tether__outbox_item *item)
{
    tether__peer_lock(peer);
    struct tether__session *session = peer->session;
    struct tether__outbox *outbox = &session->outbox;
    /* a fence has released the peer's side already, so the item is not needed */
    bool is_over = session->number != session_number;
    if (!is_over) {
        atomic_fetch_add_explicit(&peer->agent->n_posted, 1, memory_order_relaxed);
        tether__outbox_items_push(&outbox->gathered[item->kind->turn], item);
        peer->n_gathered++;
    }
    if (!is_over && !session->out.conn) {
        tether__peer_connect_locked(peer);
    } else if (!is_over && outbox->due == TETHER__NEVER) {
        outbox->due = tether__clock_now_ns(peer->agent->clock) + GATHER_NS;
        tether__peer_wake_at_locked(peer, outbox->due);
    }
    tether__peer_unlock(peer);
    if (is_over)
        item->kind->done(item);
}

/* Schedules another attempt after a growing pause. `may_pass`: another attempt may succeed;
 * otherwise the session must be fenced. */
static void attempt_failed_locked(struct tether__session *session, bool may_pass)
{
    struct tether__outbox *outbox = &session->outbox;
    int last = tether__retry_defaults.max_retries - 1;
    int delay = tether__retry_delay_ms(&tether__retry_defaults,
                                       outbox->n_failures < last ? outbox->n_failures : last);
    outbox->is_stuck |= !may_pass;
    outbox->n_failures++;
    outbox->retry_at =
        tether__clock_now_ns(session->peer->agent->clock) + delay * TETHER__NS_PER_MS;
    tether__peer_wake_at_locked(session->peer, may_pass ? outbox->retry_at : 0);
}

/* Queues one message for the first items, which are of one kind. False: it could not be queued, and
 * the items stay. */
static bool write_message_locked(struct tether__session *session,
                                 struct tether__outbox_items *items)
{
    const struct tether__outbox_kind *kind = items->first->kind;
    size_t n = 0;
    for (const struct tether__outbox_item *item = items->first;
         item && n < TETHER__OUTBOX_PER_MESSAGE; item = item->next)
        n++;
    struct tether__packed packed;
    bool may_pass = true;
    tether_status st = tether__peer_may_send(session->peer, kind->frame);
    if (st == TETHER_OK)
        st = kind->pack(items->first, n, &packed);
    if (st == TETHER_OK) {
        st = tether__lane_send(&session->out.lane, kind->frame, packed.bytes, TETHER__SLICE_EMPTY,
                               0);
        may_pass = st == TETHER_ENOMEM; /* a message that is too long stays too long */
        tether__packed_fini(&packed);
    }
    if (st != TETHER_OK) {
        attempt_failed_locked(session, may_pass);
        return false;
    }
    session->outbox.n_failures = 0;
    session->peer->n_gathered -= n;
    free_first(items, n);
    return true;
}

/* After MESSAGES_AT_ONCE messages the rest waits for PAUSE_NS, so that other threads get the lock.
 * Frames that they send in that time take no items along; the timer sends the rest. */
void tether__outbox_fill_locked(struct tether__session *session)
{
    struct tether__outbox *outbox = &session->outbox;
    if (tether__outbox_is_empty(outbox) || outbox->retry_at != TETHER__NEVER)
        return;
    const struct tether__clock *clock = session->peer->agent->clock;
    if (outbox->from && tether__clock_now_ns(clock) < outbox->from)
        return;
    outbox->due = TETHER__NEVER;
    outbox->from = 0;
    int n = 0;
    for (size_t turn = 0; turn < TETHER__OUTBOX_N_TURNS; turn++)
        while (n < MESSAGES_AT_ONCE && outbox->retry_at == TETHER__NEVER &&
               outbox->gathered[turn].first &&
               write_message_locked(session, &outbox->gathered[turn]))
            n++;
    if (outbox->retry_at == TETHER__NEVER && !tether__outbox_is_empty(outbox)) {
        outbox->from = outbox->due = tether__clock_now_ns(clock) + PAUSE_NS;
        tether__peer_wake_at_locked(session->peer, outbox->due);
    }
}

static void retry_locked(struct tether__session *session, int64_t now)
{
    struct tether__peer *peer = session->peer;
    int64_t put_off = tether__budget_spend(&peer->budget, now);
    if (put_off) {
        session->outbox.retry_at = put_off;
        peer->metrics.retries_put_off++;
        return;
    }
    session->outbox.retry_at = TETHER__NEVER;
    peer->metrics.retries++;
    tether__stream_flush_locked(&session->out, false);
}

int64_t tether__outbox_tick_locked(struct tether__session *session, int64_t now)
{
    struct tether__outbox *outbox = &session->outbox;
    if (outbox->retry_at <= now)
        retry_locked(session, now);
    if (outbox->due <= now) {
        outbox->due = TETHER__NEVER;
        tether__stream_flush_locked(&session->out, false);
    }
    return outbox->retry_at < outbox->due ? outbox->retry_at : outbox->due;
}

void tether__outbox_end_locked(struct tether__session *session)
{
    struct tether__outbox *outbox = &session->outbox;
    for (size_t turn = 0; turn < TETHER__OUTBOX_N_TURNS; turn++)
        tether__outbox_items_append(&session->peer->after.untold, &outbox->gathered[turn]);
    session->peer->n_gathered = 0;
    tether__outbox_init(outbox);
}

void tether__outbox_clear(struct tether__peer *peer)
{
    struct tether__outbox_items items;
    tether__outbox_items_init(&items);
    tether__peer_lock(peer);
    tether__outbox_end_locked(peer->session);
    tether__outbox_items_append(&items, &peer->after.untold);
    tether__peer_unlock(peer);
    free_first(&items, SIZE_MAX);
}
