/* Handles replies to this worker's calls: empties the slot, confirms references in the reply, and
 * finishes the future with the value or the error that the other worker has sent. */
#include "base/alloc.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent/internal.h"
#include "rpc/call/call.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/after.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/refs.h"
#include "rpc/serve/registry.h"
#include "rpc/wire/call_header.h"
#include "rpc/wire/value_internal.h"
#include "rpc/wire/wire.h"

/* A reply that waits for its references to be confirmed. Its call stays in its slot meanwhile, so
 * that deadline, cancel and fence still end it; then the value is dropped. */
struct waiting_reply {
    struct tether__resume resume;
    struct tether__session *session; /* retained */
    uint64_t id;
    tether_value *value;
    /* TETHER_OK if the value could be read; its references are confirmed in any case */
    tether_status status;
    tether_error error;
};

/* Takes the call of a reply out of its slot. NULL: the call or its session has ended. */
static struct tether__call *take_call(struct tether__session *session, uint64_t id)
{
    struct tether__peer *peer = session->peer;
    tether__peer_lock(peer);
    struct tether__call *call =
        peer->session == session ? tether__call_take_locked(peer, id) : NULL;
    tether__peer_unlock(peer);
    return call;
}

static void finish_reply(struct tether__resume *resume,
                         tether_status status,
                         const tether_error *error)
{
    struct waiting_reply *reply = tether__container_of(resume, struct waiting_reply, resume);
    struct tether__call *call = take_call(reply->session, reply->id);
    if (status == TETHER_OK && reply->status != TETHER_OK) {
        status = reply->status;
        error = &reply->error;
    }
    if (call)
        tether__call_finish(call, status, error, status == TETHER_OK ? reply->value : NULL);
    tether_value_release(reply->value);
    tether__session_release(reply->session);
    tether__free(reply);
}

/* Takes over the references in a reply and lets their owners confirm them. This worker holds them
 * even if the call has ended or the payload cannot be read. `value` (TAKES) may be NULL. DONE or
 * NO_MEMORY. */
static enum tether__outcome take_refs(struct tether__session *session,
                                      const Tether__Reply *reply,
                                      tether_value *value,
                                      tether_status readable,
                                      const tether_error *why_not)
{
    struct tether__peer *peer = session->peer;
    void *ext = peer->agent->ext;
    struct tether__ref_message message = {.peer = peer,
                                          .session_number = session->number,
                                          .refs = reply->ref,
                                          .n_refs = reply->n_ref};
    struct waiting_reply *waiting = tether__malloc(sizeof *waiting);
    enum tether__outcome outcome = waiting ? TETHER__DONE : TETHER__NO_MEMORY;
    if (outcome == TETHER__DONE && !value)
        outcome = tether__outcome_of(tether_value_new(tether_bytes_of(NULL, 0), &value, NULL));
    message.value = value;
    if (outcome == TETHER__DONE && ext)
        outcome = tether__ext_ops->arrived(ext, &message, NULL);
    if (outcome != TETHER__DONE) {
        tether__free(waiting);
        tether_value_release(value);
        return outcome;
    }
    tether_error error = {0};
    *waiting = (struct waiting_reply){
        {finish_reply}, tether__session_retain(session), reply->id, value, readable, *why_not};
    if (message.arrival) {
        outcome = tether__ext_ops->confirm(message.arrival, &waiting->resume, &error);
    } else {
        outcome = TETHER__REFUSED;
        tether_error_set(&error, TETHER_ENOTSUP,
                         "this worker was built without references (rref/rref.h)");
    }
    if (outcome != TETHER__WAITS)
        finish_reply(&waiting->resume, outcome == TETHER__DONE ? TETHER_OK : error.code, &error);
    return TETHER__DONE;
}

/* Reads the value of a reply. DONE: `*ret_value` is the value; it is not set if there is none.
 * Otherwise `ret_error` has the reason. */
static enum tether__outcome read_value(struct tether__peer *peer,
                                       const Tether__Reply *reply,
                                       struct tether__slice payload,
                                       tether_value **ret_value,
                                       tether_error *ret_error)
{
    if (!payload.len && !reply->n_ref && !reply->type[0])
        return TETHER__DONE;
    return tether__value_received(payload,
                                  tether__registry_find_type(&peer->agent->registry, reply->type),
                                  ret_value, ret_error);
}

/* Handles a successful reply. `call` was taken out of its slot; NULL: the reply has references,
 * which must be confirmed first. */
static enum tether__outcome finish_with_value(struct tether__session *session,
                                              struct tether__call *call,
                                              const Tether__Reply *reply,
                                              struct tether__slice payload)
{
    tether_value *value = NULL;
    tether_error error = {0};
    tether_status st = TETHER_OK;
    if (read_value(session->peer, reply, payload, &value, &error) != TETHER__DONE)
        st = error.code;
    if (!call)
        return take_refs(session, reply, value, st, &error);
    if (call->result && reply->result_type[0])
        tether__ext_ops->result_type(call->result, reply->result_type);
    tether__call_finish(call, st, &error, value);
    tether_value_release(value);
    return TETHER__DONE;
}

/* Whether the reply can be read under peer->mu: reading it runs no user code and takes no other
 * lock. */
static bool is_plain(const Tether__Reply *reply)
{
    return reply->status == TETHER_OK && !reply->n_ref && !reply->type[0] && !reply->result_type[0];
}

bool tether__call_take_reply_locked(struct tether__peer *peer,
                                    const struct tether__inbound *message)
{
    TETHER__ARENA(arena, 512);
    const Tether__Reply *reply;
    struct tether__call *call = NULL;
    struct tether__slice payload = message->payload;
    bool taken = tether__reply_header_unpack(message->header, &arena, &reply) == TETHER_OK &&
                 is_plain(reply);
    if (taken && (call = tether__call_look_up_locked(peer, reply->id))) {
        call->answer = NULL;
        taken = !payload.len || tether__value_from_slice(payload, &call->answer) == TETHER_OK;
    }
    if (taken && call) {
        tether__call_take_locked(peer, reply->id);
        tether__peer_end_call_locked(peer, &peer->after.answered, call);
    }
    tether__arena_fini(&arena);
    return taken;
}

static void finish_with_error(struct tether__call *call, const Tether__Reply *reply)
{
    tether_error error;
    tether_status st = tether_error_set(&error, tether__status_from_outside(reply->status),
                                        "worker '%s', function '%s': %s", call->peer->name,
                                        call->function, reply->error);
    tether__call_finish(call, st, &error, NULL);
}

enum tether__outcome tether__call_on_reply_unlock(struct tether__peer *peer,
                                                  const struct tether__inbound *message)
{
    TETHER__ARENA(arena, 512);
    const Tether__Reply *reply;
    struct tether__call *call = NULL;
    /* not retained here: the conn on which the reply arrived holds a count */
    struct tether__session *session = peer->session;
    enum tether__outcome outcome =
        tether__outcome_of_unpacking(tether__reply_header_unpack(message->header, &arena, &reply));
    bool is_value = outcome == TETHER__DONE && reply->status == TETHER_OK;
    bool has_refs = is_value && reply->n_ref;
    if (outcome == TETHER__DONE && !has_refs)
        call = tether__call_take_locked(peer, reply->id);
    tether__peer_unlock(peer);
    if (has_refs || (call && is_value))
        outcome = finish_with_value(session, call, reply, message->payload);
    else if (call)
        finish_with_error(call, reply);
    tether__arena_fini(&arena);
    return outcome;
}
