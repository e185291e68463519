/* Calls and replies whose large value is still on its way: taken back when nobody waits for them
 * any more, so that the rest of it does not cross the wire.
 *
 * Happy path: a call that goes in pieces is watched. When it is given up before its last piece was
 * queued, the lane forgets it, and tells the peer to forget the pieces that it has; the function
 * there never hears of it. Later than that, or when the peer has acknowledged it, there is nothing
 * to take back, and the peer is told to cancel instead.
 *
 * The same for a reply that goes in pieces, when its caller cancels the call meanwhile. (A result
 * that comes only after the cancel is not sent in the first place: answer.c.)
 *
 * A message with references, or a call that makes an object, is never taken back: they count from
 * the moment it is queued, and must arrive to be released.
 *
 * Everything here is under peer->mu.
 */
#include "base/alloc.h"
#include "rpc/agent_internal.h"

/* ---- Calls ---- */

struct tether__unsent {
    struct tether__lane_watch watch;
    struct tether__call *call; /* NULL: it has ended, and arrives all the same */
};

/* The peer has it, or the session is over. */
static void on_arrived(struct tether__lane_watch *watch, tether_status status)
{
    (void)status;
    struct tether__unsent *unsent = tether__container_of(watch, struct tether__unsent, watch);
    if (unsent->call)
        unsent->call->unsent = NULL;
    tether__free(unsent);
}

struct tether__lane_watch *tether__call_watch_locked(struct tether__call *call)
{
    struct tether__unsent *unsent = tether__calloc(1, sizeof *unsent);
    if (!unsent)
        return NULL;
    unsent->watch.done = on_arrived;
    unsent->call = call;
    call->unsent = unsent;
    return &unsent->watch;
}

void tether__call_unwatch_locked(struct tether__call *call)
{
    tether__free(call->unsent);
    call->unsent = NULL;
}

void tether__call_let_arrive_locked(struct tether__call *call)
{
    call->unsent->call = NULL;
    call->unsent = NULL;
}

bool tether__call_withdraw_locked(struct tether__call *call)
{
    struct tether__peer *peer = call->peer;
    if (!call->unsent || !tether__lane_withdraw(&peer->out.lane, &call->unsent->watch))
        return false;
    tether__call_unwatch_locked(call);
    tether__link_flush_locked(&peer->out, false); /* the peer still has its first pieces */
    return true;
}

/* ---- Replies ---- */

struct unsent_reply {
    struct tether__lane_watch watch;
    struct tether__list node; /* of peer->unsent_replies */
    uint64_t id;
};

static void reply_free(struct unsent_reply *reply)
{
    tether__list_remove(&reply->node);
    tether__free(reply);
}

static void on_reply_arrived(struct tether__lane_watch *watch, tether_status status)
{
    (void)status;
    reply_free(tether__container_of(watch, struct unsent_reply, watch));
}

struct tether__lane_watch *tether__reply_watch_locked(struct tether__peer *peer, uint64_t id)
{
    struct unsent_reply *reply = tether__calloc(1, sizeof *reply);
    if (!reply)
        return NULL;
    reply->watch.done = on_reply_arrived;
    reply->id = id;
    tether__list_push_back(&peer->unsent_replies, &reply->node);
    return &reply->watch;
}

void tether__reply_unwatch_locked(struct tether__lane_watch *watch)
{
    if (watch)
        reply_free(tether__container_of(watch, struct unsent_reply, watch));
}

void tether__reply_withdraw_locked(struct tether__peer *peer, uint64_t id)
{
    TETHER__LIST_FOR_EACH(node, &peer->unsent_replies) {
        struct unsent_reply *reply = tether__list_entry(node, struct unsent_reply, node);
        if (reply->id != id)
            continue;
        if (tether__lane_withdraw(&peer->in.lane, &reply->watch)) {
            reply_free(reply);
            tether__link_flush_locked(&peer->in, false);
        }
        return;
    }
}
