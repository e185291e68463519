/* The two messages that gather for a peer (user-delete, child-accept) until something is written to
 * it. */
#include "base/alloc.h"
#include "rpc/peer/dialer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/table.h"
#include "rpc/peer/timers.h"
#include "rpc/wire/packed.h"
#include "rref/context.h"
#include "rref/hooks.h"

#define MESSAGES_AT_ONCE 4                /* for which the peer's lock is held once */
#define PAUSE_NS (TETHER__NS_PER_MS / 10) /* in which others get that lock */

/* How long user-deletes and child-accepts wait for another frame to leave with. No caller waits
 * for them, and a message of their own costs as much as a call. */
#define GATHER_NS TETHER__NS_PER_MS

/* Has gathered messages leave with the next frame, after GATHER_NS, or once connected. Unlocks the
 * peer. */
static void send_gathered_and_unlock(struct tether__peer *peer)
{
    if (!peer->session->out.conn)
        tether__peer_connect_locked(peer);
    else if (peer->session->gather_due == TETHER__NEVER) {
        peer->session->gather_due = tether__clock_now_ns(peer->agent->clock) + GATHER_NS;
        tether__peer_wake_at_locked(peer, peer->session->gather_due);
    }
    tether__peer_unlock(peer);
}

/* Sets peer->ext_deletes (a list by `next`, of collected entries that no other thread sees). */
void tether__refs_queue_delete(tether_rref *rref)
{
    struct tether__peer *peer = rref->user.owner.peer;
    tether__peer_lock(peer);
    if (rref->user.owner.number != peer->session_number) { /* the owner has forgotten us already */
        tether__peer_unlock(peer);
        tether__rref_free(rref);
        return;
    }
    atomic_fetch_add_explicit(&rref->context->n_sent, 1, memory_order_relaxed);
    rref->next = peer->ext_deletes;
    peer->ext_deletes = rref;
    peer->n_gathered++;
    tether__refs_count_message(rref->context, 1);
    send_gathered_and_unlock(peer);
}

void tether__accept_free(struct tether__accept *accept)
{
    if (accept)
        tether__peer_release(accept->parent.peer);
    tether__free(accept);
}

void tether__refs_queue_accept(struct tether__accept *accept)
{
    if (!accept)
        return;
    struct tether__peer *peer = accept->parent.peer;
    tether__peer_lock(peer);
    if (accept->parent.number != peer->session_number) {
        tether__peer_unlock(peer);
        tether__accept_free(accept);
        return;
    }
    struct tether__refs *refs = peer->agent->ext;
    atomic_fetch_add_explicit(&refs->n_sent, 1, memory_order_relaxed);
    accept->next = peer->ext_accepts;
    peer->ext_accepts = accept;
    peer->n_gathered++;
    tether__refs_count_message(peer->agent->ext, 1);
    send_gathered_and_unlock(peer);
}

uint64_t tether__refs_count_sent(void *ext, bool *ret_under_way)
{
    struct tether__refs *refs = ext;
    struct tether__peer *peer;
    *ret_under_way = false;
    for (uint64_t at = 0; (peer = tether__agent_next_peer(refs->agent, &at));) {
        tether__peer_lock(peer);
        *ret_under_way |= !peer->is_self && (peer->ext_deletes || peer->ext_accepts ||
                                             peer->session->out.lane.unacked_bytes > 0);
        tether__peer_unlock(peer);
        tether__peer_release(peer);
    }
    return atomic_load(&refs->n_sent);
}

/* Both lists have the latest first, so what is of later sessions is in front. */
void tether__refs_drop_gathered(struct tether__peer *peer,
                                uint64_t session_number,
                                tether_rref **ret_deletes,
                                struct tether__accept **ret_accepts)
{
    size_t n_newer = 0;
    tether__peer_lock(peer);
    tether_rref *newer = NULL, *deletes = peer->ext_deletes;
    for (; deletes && deletes->user.owner.number > session_number;
         deletes = deletes->next, n_newer++)
        newer = deletes;
    struct tether__accept *newer_accept = NULL, *accepts = peer->ext_accepts;
    for (; accepts && accepts->parent.number > session_number; accepts = accepts->next, n_newer++)
        newer_accept = accepts;
    peer->n_gathered = n_newer;
    if (newer)
        newer->next = NULL;
    else
        peer->ext_deletes = NULL;
    if (newer_accept)
        newer_accept->next = NULL;
    else
        peer->ext_accepts = NULL;
    tether__peer_unlock(peer);
    *ret_deletes = deletes;
    *ret_accepts = accepts;
}

/* Ids of one message, by columns. */
struct columns {
    Tether__RefIds ids;
    uint32_t creator[TETHER__MAX_IDS];
    uint64_t incarnation[TETHER__MAX_IDS], counter[TETHER__MAX_IDS];
};

static void columns_init(struct columns *columns)
{
    columns->ids = (Tether__RefIds)TETHER__REF_IDS__INIT;
    columns->ids.creator = columns->creator;
    columns->ids.incarnation = columns->incarnation;
    columns->ids.counter = columns->counter;
}

static void columns_add(struct columns *columns, tether_rref_id id)
{
    columns->creator[columns->ids.n_creator++] = id.creator;
    columns->incarnation[columns->ids.n_incarnation++] = id.incarnation;
    columns->counter[columns->ids.n_counter++] = id.counter;
}

/* False: it could not be queued now. */
static bool write_message_locked(struct tether__peer *peer,
                                 uint32_t kind,
                                 const ProtobufCMessage *message)
{
    struct tether__packed packed;
    bool may_pass = true;
    tether_status st = tether__peer_may_send(peer, kind);
    if (st == TETHER_OK)
        st = tether__pack(&packed, message);
    if (st == TETHER_OK) {
        st =
            tether__lane_send(&peer->session->out.lane, kind, packed.bytes, TETHER__SLICE_EMPTY, 0);
        may_pass = st == TETHER_ENOMEM; /* another attempt makes a message no shorter */
        tether__packed_fini(&packed);
    }
    if (st != TETHER_OK)
        tether__peer_control_failed_locked(peer, may_pass);
    return st == TETHER_OK;
}

/* Looks at up to TETHER__MAX_IDS deletes: packs those of the present session into one message,
 * drops those of former ones. False: nothing could be queued now. */
static bool write_deletes_locked(struct tether__peer *peer)
{
    struct columns objects, forks;
    Tether__UserDelete message = TETHER__USER_DELETE__INIT;
    tether_rref *rest = peer->ext_deletes;
    size_t n = 0;
    columns_init(&objects);
    columns_init(&forks);
    for (int looked_at = 0; rest && looked_at < TETHER__MAX_IDS; rest = rest->next, looked_at++) {
        if (rest->user.owner.number != peer->session_number)
            continue;
        columns_add(&objects, rest->id);
        columns_add(&forks, rest->user.fork);
        n++;
    }
    message.object = &objects.ids;
    message.fork = &forks.ids;
    if (n && !write_message_locked(peer, TETHER__FRAME_USER_DELETE, &message.base))
        return false; /* they stay for the next attempt */
    peer->session->control_failures = 0;
    for (tether_rref *rref = peer->ext_deletes, *next; rref != rest; rref = next) {
        next = rref->next;
        peer->n_gathered--;
        tether__refs_count_message(rref->context, -1);
        tether__rref_free(rref);
    }
    peer->ext_deletes = rest;
    return true;
}

static bool write_accepts_locked(struct tether__peer *peer)
{
    struct columns forks;
    Tether__ChildAccept message = TETHER__CHILD_ACCEPT__INIT;
    struct tether__accept *rest = peer->ext_accepts;
    size_t n = 0;
    columns_init(&forks);
    for (int looked_at = 0; rest && looked_at < TETHER__MAX_IDS; rest = rest->next, looked_at++) {
        if (rest->parent.number != peer->session_number)
            continue;
        columns_add(&forks, rest->fork);
        n++;
    }
    message.fork = &forks.ids;
    if (n && !write_message_locked(peer, TETHER__FRAME_CHILD_ACCEPT, &message.base))
        return false; /* they stay for the next attempt */
    peer->session->control_failures = 0;
    for (struct tether__accept *accept = peer->ext_accepts, *next; accept != rest; accept = next) {
        next = accept->next;
        peer->n_gathered--;
        tether__refs_count_message(peer->agent->ext, -1);
        tether__accept_free(accept); /* the writing thread holds a count of the peer, too */
    }
    peer->ext_accepts = rest;
    return true;
}

/* Queues messages about what has gathered, but no more than MESSAGES_AT_ONCE. */
static void write_slice_locked(struct tether__peer *peer)
{
    int n = 0;
    while (n < MESSAGES_AT_ONCE && peer->ext_accepts && write_accepts_locked(peer))
        n++;
    while (n < MESSAGES_AT_ONCE && peer->session->control_due == TETHER__NEVER &&
           peer->ext_deletes && write_deletes_locked(peer))
        n++;
}

/* After a slice other threads get the lock: their messages take nothing along meanwhile, and the
 * timer goes on. */
void tether__refs_before_write_locked(void *ext,
                                      struct tether__peer *peer,
                                      struct tether__stream *stream)
{
    (void)ext;
    if (stream != &peer->session->out || peer->session->control_due != TETHER__NEVER ||
        (!peer->ext_deletes && !peer->ext_accepts))
        return;
    const struct tether__clock *clock = peer->agent->clock;
    if (peer->session->gather_from && tether__clock_now_ns(clock) < peer->session->gather_from)
        return;
    peer->session->gather_due = TETHER__NEVER;
    peer->session->gather_from = 0;
    write_slice_locked(peer);
    if (peer->session->control_due == TETHER__NEVER && (peer->ext_deletes || peer->ext_accepts)) {
        peer->session->gather_from = peer->session->gather_due =
            tether__clock_now_ns(clock) + PAUSE_NS;
        tether__peer_wake_at_locked(peer, peer->session->gather_due);
    }
}
