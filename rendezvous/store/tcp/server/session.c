/* Hub and sessions: turns bytes into requests, makes room for replies, and accounts for memory. */
#include "rendezvous/store/tcp/server/session.h"

#include <string.h>

#include "base/alloc.h"

#define TOO_MUCH "no room: the server holds too much for its clients already"

/* ---- Hub and session ------------------------------------------------------------------------ */

tether_status tether__store_hub_init(struct tether__store_hub *hub,
                                     const struct tether_store_limits *limits,
                                     bool legacy_is_l1)
{
    *hub = (struct tether__store_hub){.limits = *limits, .legacy_is_l1 = legacy_is_l1};
    tether__list_init(&hub->dirty);
    tether__list_init(&hub->claims);
    tether_status st = tether__kv_init(&hub->kv, limits->max_value);
    if (st != TETHER_OK)
        return st;
    hub->kv.max_bytes = limits->max_kept;
    st = tether__map_init(&hub->watches, &tether__map_bytes);
    if (st != TETHER_OK)
        tether__kv_fini(&hub->kv);
    return st;
}

void tether__store_hub_fini(struct tether__store_hub *hub)
{
    tether__kv_fini(&hub->kv);
    tether__map_fini(&hub->watches);
    hub->views = tether__free(hub->views);
}

void tether__store_session_init(struct tether__store_session *session,
                                struct tether__store_hub *hub)
{
    *session = (struct tether__store_session){.hub = hub};
    tether__store_wire_parser_init(&session->parser, &hub->limits, hub->legacy_is_l1);
    tether__list_init(&session->dirty_node);
    tether__list_init(&session->claim_node);
    tether__list_init(&session->watches);
}

static void mark_dirty(struct tether__store_session *session)
{
    if (tether__list_empty(&session->dirty_node))
        tether__list_push_back(&session->hub->dirty, &session->dirty_node);
}

void tether__store_session_end_wait(struct tether__store_session *session)
{
    session->hub->waiting -= session->is_waiting;
    session->is_waiting = false;
    tether_buf_fini(&session->awaited);
    session->held_bytes -= session->wait_bytes;
    session->wait_bytes = 0;
    tether__store_session_charge(session, session->owner_bytes);
}

void tether__store_session_cancel_wait(struct tether__store_session *session)
{
    if (session->is_waiting)
        tether__kv_cancel(&session->hub->kv, &session->waiter);
    tether__store_session_end_wait(session);
}

void tether__store_session_drop_claim(struct tether__store_session *session)
{
    tether__list_remove(&session->claim_node);
    session->claim_is_old = false;
    tether__kv_claim_drop(&session->hub->kv, &session->claim);
}

bool tether__store_hub_sweep(struct tether__store_hub *hub)
{
    TETHER__LIST_FOR_EACH(node, &hub->claims) {
        struct tether__store_session *session =
            tether__list_entry(node, struct tether__store_session, claim_node);
        if (session->claim_is_old)
            tether__store_session_drop_claim(session);
        else
            session->claim_is_old = true;
    }
    return !tether__list_empty(&hub->claims);
}

void tether__store_session_fini(struct tether__store_session *session)
{
    tether__store_session_cancel_wait(session);
    tether__store_session_drop_claim(session);
    tether__store_watch_end(session);
    tether__list_remove(&session->dirty_node);
    session->hub->buffered -= session->charged;
    session->charged = 0;
    tether_buf_fini(&session->out);
}

void tether__store_session_fail(struct tether__store_session *session, const char *why)
{
    if (!session->why)
        session->why = why;
    mark_dirty(session);
}

void tether__store_session_overload(struct tether__store_session *session, const char *why)
{
    session->is_overload = true;
    tether__store_session_fail(session, why);
}

bool tether__store_session_charge(struct tether__store_session *session, size_t owner_bytes)
{
    struct tether__store_hub *hub = session->hub;
    size_t before = session->charged;
    session->owner_bytes = owner_bytes;
    session->charged = owner_bytes + session->held_bytes + session->out.cap;
    hub->buffered += session->charged - before;
    if (session->charged <= before || hub->buffered <= hub->limits.max_buffered)
        return true; /* a session that holds less than before cannot have exceeded the limit */
    tether__store_session_overload(session, TOO_MUCH);
    return false;
}

bool tether__store_session_hold(struct tether__store_session *session, size_t more)
{
    if (session->hub->buffered + more > session->hub->limits.max_buffered)
        return false;
    session->held_bytes += more;
    return tether__store_session_charge(session, session->owner_bytes);
}

char *tether__store_session_room(struct tether__store_session *session, size_t size)
{
    struct tether__store_hub *hub = session->hub;
    if (session->why)
        return NULL;
    if (session->out.cap - session->out.len <= size) {
        if (hub->buffered + size > hub->limits.max_buffered) {
            tether__store_session_overload(session, TOO_MUCH);
            return NULL;
        }
        if (tether_buf_reserve(&session->out, size) != TETHER_OK) {
            tether__store_session_overload(session, "out of memory");
            return NULL;
        }
        if (!tether__store_session_charge(session, session->owner_bytes))
            return NULL;
    }
    mark_dirty(session);
    char *at = session->out.data + session->out.len;
    session->out.len += size;
    return at;
}

/* ---- Feeding -------------------------------------------------------------------------------- */

/* Handles a request that arrives during a wait. L0 has no cancel, so a new request means that the
 * client has given up. In V the wait continues beside the new request. */
static void speak_while_waiting(struct tether__store_session *session,
                                const struct tether__store_wire_request *req)
{
    if (req->op == TETHER__STORE_OP_CANCEL_WAIT)
        return;
    if (tether__store_session_is_legacy(session))
        tether__store_session_cancel_wait(session);
    else if (tether__store_session_has_status(session))
        tether__store_session_fail(session,
                                   "the client sent a request while its earlier one still waits");
}

size_t tether__store_session_feed(struct tether__store_session *session,
                                  const char *data,
                                  size_t len,
                                  size_t *ret_need)
{
    size_t done = 0;
    *ret_need = 1;
    session->is_unsure = false;
    while (!session->why && session->out.len < TETHER__STORE_SESSION_HIGH_WATER) {
        struct tether__store_wire_request req;
        size_t size;
        tether__store_wire_result result = tether__store_wire_parse(
            &session->parser, data + done, len - done, &req, &size, &session->why);
        if (result == TETHER__STORE_WIRE_MORE || result == TETHER__STORE_WIRE_UNSURE)
            *ret_need = size;
        session->is_unsure = result == TETHER__STORE_WIRE_UNSURE;
        if (result != TETHER__STORE_WIRE_REQUEST)
            break;
        if (session->is_waiting)
            speak_while_waiting(session, &req);
        if (session->why)
            break;
        tether__store_session_handle(session, &req);
        session->hub->requests++;
        session->has_spoken = true;
        done += size;
    }
    return done;
}

void tether__store_session_settle(struct tether__store_session *session)
{
    tether__store_wire_settle_l0(&session->parser);
}
