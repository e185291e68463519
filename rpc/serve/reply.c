/* Replies to calls of others, and tells running functions about their caller.
 *
 * A reply goes to its caller: over the lane to a peer, over gRPC to a plain client, or directly
 * into the future of a call of this worker itself. The result of remote() stays here, and only its
 * status is sent. If a reply cannot be queued, an error reply that says why is sent in its place. A
 * caller whose session has ended gets no reply.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status_internal.h"
#include "base/threads/life.h"
#include "base/threads/state.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent/counters.h"
#include "rpc/agent/internal.h"
#include "rpc/group/group.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/limits.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/serve/incoming.h"
#include "rpc/serve/serve.h"
#include "rpc/wire/call_header.h"
#include "rpc/wire/value_internal.h"

tether_value *tether__empty_value(void)
{
    static char nothing[1];
    static tether_value empty = {
        .refs = UINT32_MAX / 2,
        .data = (const uint8_t *)nothing,
        .text = nothing,
    };
    return &empty;
}

/* Whether a result of `len` bytes may be sent, given the replies that the peer has not
 * acknowledged. If all are acknowledged, a result of any size may. */
static bool has_room_locked(const struct tether__peer *peer, size_t len)
{
    size_t unread = peer->session->in.lane.unacked_bytes, most = tether__most_unread(peer->agent);
    return unread == 0 || (unread <= most && len <= most - unread);
}

/* Queues a reply. `value` is the result as it is sent; its attached references are registered for
 * the peer. */
static tether_status send_reply_locked(struct tether__peer *peer,
                                       Tether__Reply *reply,
                                       tether_value *value,
                                       tether_error *reterr)
{
    struct tether__packed packed;
    struct tether__ref_pack pack = {0};
    void *ext = peer->agent->ext;
    if (value && !has_room_locked(peer, tether__value_slice(value).len))
        return tether_error_set(reterr, TETHER_EBUSY,
                                "%zu bytes of replies are still on their way to this caller: wait "
                                "for some, or raise max_bytes_per_peer there",
                                peer->session->in.lane.unacked_bytes);
    if (tether__value_n_attached(value)) {
        tether_status st = tether__ext_ops->encode_locked(ext, peer, value, true, &pack, reterr);
        if (st != TETHER_OK)
            return st;
        reply->n_ref = pack.n;
        reply->ref = pack.refs;
    }
    tether_status st = tether__reply_header_pack(&packed, reply);
    if (st == TETHER_OK) {
        struct tether__slice payload = tether__value_slice(value);
        /* References count from the moment that the reply is queued. So a reply with references
         * must not be cancelled: tag 0. */
        st = tether__stream_send_locked(&peer->session->in, TETHER__FRAME_REPLY, packed.bytes,
                                        payload, pack.n ? 0 : reply->id);
        tether__packed_fini(&packed);
    }
    if (pack.n)
        tether__ext_ops->encode_end_locked(ext, peer, &pack, st == TETHER_OK);
    reply->n_ref = 0;
    reply->ref = NULL;
    return st;
}

static void reply_to(struct tether__peer *peer,
                     uint64_t session_number,
                     uint64_t id,
                     tether_status status,
                     const char *error,
                     tether_value *value,
                     const char *result_type)
{
    tether_error why;
    tether_value *sent = NULL;
    tether__error_init(&why);
    if (status == TETHER_OK) {
        status = tether__value_to_send(value, &sent, &why);
        error = why.message;
    }
    Tether__Reply reply = TETHER__REPLY__INIT;
    reply.id = id;
    reply.status = status;
    if (status != TETHER_OK)
        reply.error = (char *)error;
    else if (value && value->type)
        reply.type = (char *)value->type->name;
    if (status == TETHER_OK && result_type)
        reply.result_type = (char *)result_type;

    tether_status st = TETHER_OK;
    tether__peer_lock(peer);
    if (peer->session->number == session_number) {
        st = send_reply_locked(peer, &reply, sent, &why);
        /* send an error that says why there is no result */
        if (st != TETHER_OK && status == TETHER_OK) {
            char text[TETHER_ERROR_MESSAGE_SIZE];
            if (st == TETHER_ETOOBIG && why.code != st)
                tether_error_set(&why, st,
                                 "with what goes with them they exceed max_message_bytes = %zu: "
                                 "return less at once, or raise it on all workers",
                                 peer->agent->opts.max_message_bytes);
            snprintf(text, sizeof text, "the result of %zu bytes cannot be sent: %s",
                     tether_value_bytes(sent).len,
                     why.code == st ? why.message : tether_status_text(st));
            reply.status = st;
            reply.error = text;
            reply.type = "";
            st = send_reply_locked(peer, &reply, NULL, NULL);
        }
    }
    /* end the session: otherwise the caller would wait for a reply that never comes */
    if (st != TETHER_OK)
        tether__peer_fence_locked(peer, "there was no memory to answer it");
    tether__peer_unlock(peer);
    tether_value_release(sent);
}

void tether__reply_to(struct tether__peer *peer,
                      uint64_t session_number,
                      uint64_t id,
                      tether_status status,
                      const char *error,
                      tether_value *value)
{
    reply_to(peer, session_number, id, status, error, value, NULL);
}

void tether__incoming_unlist(struct tether__incoming *incoming)
{
    struct tether__peer *peer = incoming->peer;
    tether__peer_lock(peer);
    if (incoming->listed) {
        tether__map_del(&incoming->session->incoming, &incoming->id);
        incoming->session->held_bytes -= incoming->held_bytes;
    }
    incoming->listed = false;
    tether__peer_unlock(peer);
}

static void answer_lane(struct tether__incoming *incoming,
                        tether_status status,
                        const char *error,
                        tether_value *value,
                        const char *result_type)
{
    struct tether__peer *peer = incoming->peer;
    if (incoming->on_heap)
        tether__incoming_unlist(incoming);
    /* the caller no longer waits, so do not send the result */
    if (value && tether__incoming_cancelled(incoming)) {
        status = TETHER_ECANCELED;
        error = "canceled while it ran";
        value = NULL;
    }
    reply_to(peer, incoming->session->number, incoming->id, status, error, value, result_type);
}

static void answer_unary(struct tether__incoming *incoming,
                         tether_status status,
                         const char *error,
                         tether_value *value)
{
    tether_error why = {0};
    tether_value *sent = NULL;
    if (status == TETHER_OK) {
        status = tether__value_to_send(value, &sent, &why);
        error = why.message;
    }
    struct tether__slice payload = tether__value_slice(sent);
    size_t limit = incoming->agent->opts.max_message_bytes;
    if (payload.len > limit) {
        status = tether_error_set(&why, TETHER_ETOOBIG,
                                  "the result of %zu bytes is over the limit of %zu "
                                  "(max_message_bytes)",
                                  payload.len, limit);
        error = why.message;
        payload = TETHER__SLICE_EMPTY;
    }
    incoming->unary->reply(incoming->unary, status, error, tether__slice_retain(payload));
    tether_value_release(sent);
}

static void answer_local(struct tether__incoming *incoming,
                         tether_status status,
                         const char *text,
                         tether_value *value)
{
    struct tether__peer *peer = incoming->peer;
    if (incoming->on_heap)
        tether__incoming_unlist(incoming);
    tether__peer_lock(peer);
    struct tether__call *call = tether__call_take_locked(peer, incoming->id);
    tether__peer_unlock(peer);
    if (!call)
        return; /* the call has timed out or was cancelled */
    tether_error error;
    if (status != TETHER_OK)
        tether_error_set(&error, status, "worker '%s', function '%s': %s", peer->name,
                         incoming->function_name, text);
    tether__call_finish(call, status, &error, value);
}

/* Ends the access of a function that still runs to its call, which is being answered and may then
 * be freed. */
static void end_context(struct tether__incoming *incoming)
{
    if (!incoming->on_heap)
        return;
    atomic_store(&incoming->answered, true);
    /* the function's thread reads the call for a few instructions only */
    while (atomic_load(&incoming->looked_at))
        sched_yield();
}

void tether__incoming_unref(struct tether__incoming *incoming)
{
    if (atomic_fetch_sub_explicit(&incoming->refs, 1, memory_order_acq_rel) != 1)
        return;
    tether_agent *agent = incoming->agent;
    bool keeps_agent = incoming->keeps_agent;
    if (incoming->arg != tether__empty_value())
        tether_value_release(incoming->arg);
    tether__free(incoming);
    if (atomic_fetch_sub(&agent->running, 1) == 1)
        tether__condition_notify(&agent->idle);
    if (keeps_agent)
        tether__life_release(&agent->life);
}

/* Passes the result of a remote() call, or its error, to the reference layer. */
static void finish_result(struct tether__incoming *incoming,
                          tether_status status,
                          const char *error,
                          tether_value *value)
{
    tether_error named;
    if (!incoming->result)
        return;
    /* a call of this worker itself: name worker and function, as for other callers */
    if (incoming->local && status != TETHER_OK) {
        tether_error_set(&named, status, "worker '%s', function '%s': %s", incoming->peer->name,
                         incoming->function_name, error);
        error = named.message;
    }
    tether__ext_ops->remote_done(incoming->result, status, error, value);
}

void tether__incoming_answer(struct tether__incoming *incoming,
                             tether_status status,
                             const char *error,
                             tether_value *value)
{
    end_context(incoming);
    const char *result_type = NULL;
    tether__metrics_served(&incoming->agent->metrics, status);
    if (incoming->has_result) { /* the object stays at this worker; only the status is sent */
        if (status == TETHER_OK && value && value->type)
            result_type = value->type->name;
        finish_result(incoming, status, error, value);
        value = NULL;
    }
    if (incoming->unary)
        answer_unary(incoming, status, error, value);
    else if (incoming->local)
        answer_local(incoming, status, error, value);
    else
        answer_lane(incoming, status, error, status == TETHER_OK ? value : NULL, result_type);
    if (incoming->held)
        incoming->held->ops->release(incoming->held);
    tether__free(incoming->why_refused);
    if (incoming->session)
        tether__session_release(incoming->session);
    tether_value_release(incoming->object);
    if (incoming->on_heap)
        tether__incoming_unref(incoming);
    else if (incoming->arg != tether__empty_value())
        tether_value_release(incoming->arg);
}

/* ---- What the running function can see ---- */

const char *tether__incoming_caller(const struct tether__incoming *incoming)
{
    return incoming->unary ? incoming->unary->peer : incoming->peer->name;
}

int64_t tether__incoming_deadline(const struct tether__incoming *incoming)
{
    return atomic_load(&incoming->answered) ? TETHER__NEVER : incoming->deadline;
}

bool tether__incoming_cancelled(const struct tether__incoming *incoming)
{
    return atomic_load(&incoming->cancelled) ||
           (incoming->session && atomic_load(&incoming->session->ended)) ||
           (incoming->unary && atomic_load(&incoming->unary->canceled));
}

/* Returns the call whose function runs on this thread, and keeps it from being freed until
 * end_look(). NULL: there is none, or it has been answered already, perhaps by another thread. */
static struct tether__incoming *begin_look(void)
{
    struct tether__incoming *incoming = tether__thread_state.incoming;
    if (!incoming)
        return NULL;
    atomic_store(&incoming->looked_at, true);
    if (!atomic_load(&incoming->answered))
        return incoming;
    atomic_store(&incoming->looked_at, false);
    return NULL;
}

static void end_look(struct tether__incoming *incoming)
{
    atomic_store(&incoming->looked_at, false);
}

const char *tether_caller_name(void)
{
    /* a copy of a plain gRPC client's address, because the original is freed with the reply */
    static _Thread_local char address[128];
    struct tether__incoming *incoming = begin_look();
    if (!incoming)
        return NULL;
    const char *name = tether__incoming_caller(incoming);
    if (incoming->unary) {
        snprintf(address, sizeof address, "%s", name);
        name = address;
    }
    end_look(incoming);
    return name;
}

int tether_caller_time_left_ms(void)
{
    struct tether__incoming *incoming = tether__thread_state.incoming;
    return incoming ? tether__deadline_left_ms(incoming->agent->clock,
                                               tether__incoming_deadline(incoming))
                    : -1;
}

bool tether_caller_has_cancelled(void)
{
    struct tether__incoming *incoming = begin_look();
    if (!incoming)
        return false;
    bool cancelled = tether__incoming_cancelled(incoming);
    end_look(incoming);
    return cancelled;
}

tether_trace tether_reply_trace(const tether_reply *reply)
{
    return reply->incoming.trace;
}

void tether_reply_ok(tether_reply *reply, tether_value *value)
{
    tether__incoming_answer(&reply->incoming, TETHER_OK, "", value);
}

void tether_reply_error(tether_reply *reply, tether_status status, const char *format, ...)
{
    char text[TETHER_ERROR_MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    status = status == TETHER_OK ? TETHER_EREMOTE : tether__status_from_outside(status);
    tether__incoming_answer(&reply->incoming, status, text, NULL);
}

bool tether_reply_is_cancelled(const tether_reply *reply)
{
    return tether__incoming_cancelled(&reply->incoming);
}
