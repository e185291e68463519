/* Replies to our calls: the slot is emptied, references that came along are taken and confirmed,
 * and the future is finished, with the value or with the error that the other side sent. */
#include "base/alloc.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent_internal.h"
#include "rpc/value_internal.h"
#include "rpc/wire.h"

/* A reply that waits for its references to be confirmed. Its call stays in its slot meanwhile, so
 * that deadline, cancel and fence still end it; then nobody wants the value any more. */
struct waiting_reply {
    struct tether__resume resume;
    struct tether__peer *peer; /* retained */
    uint64_t epoch, id;
    tether_value *value;
    tether_status status; /* whether the value could be read; its references count in any case */
    tether_error error;
};

/* NULL: nobody waits for it any more, or the session that the reply came in has ended. */
static struct tether__call *take_call(struct tether__peer *peer, uint64_t epoch, uint64_t id)
{
    pthread_mutex_lock(&peer->mu);
    struct tether__call *call =
        peer->session_epoch == epoch ? tether__call_take_locked(peer, id) : NULL;
    pthread_mutex_unlock(&peer->mu);
    return call;
}

static void finish_reply(struct tether__resume *resume,
                         tether_status status,
                         const tether_error *error)
{
    struct waiting_reply *reply = tether__container_of(resume, struct waiting_reply, resume);
    struct tether__call *call = take_call(reply->peer, reply->epoch, reply->id);
    if (status == TETHER_OK && reply->status != TETHER_OK) {
        status = reply->status;
        error = &reply->error;
    }
    if (call)
        tether__call_finish(call, status, error, status == TETHER_OK ? reply->value : NULL);
    tether_value_release(reply->value);
    tether__peer_release(reply->peer);
    tether__free(reply);
}

/* References in a reply belong to us now, whether or not anybody still waits for it, or can read
 * what they came with. `value` (TAKES) may be NULL. DONE or NO_MEMORY. */
static enum tether__outcome take_refs(struct tether__peer *peer,
                                      uint64_t epoch,
                                      const Tether__Reply *reply,
                                      tether_value *value,
                                      tether_status readable,
                                      const tether_error *why_not)
{
    void *ext = peer->agent->ext;
    struct tether__arrival *arrival = NULL;
    struct waiting_reply *waiting = tether__malloc(sizeof *waiting);
    enum tether__outcome outcome = waiting ? TETHER__DONE : TETHER__NO_MEMORY;
    if (outcome == TETHER__DONE && !value)
        outcome = tether__outcome_of(tether_value_new(tether_bytes_of(NULL, 0), &value, NULL));
    if (outcome == TETHER__DONE && ext)
        outcome =
            tether__ext_ops->take(ext, peer, epoch, reply->ref, reply->n_ref, value, &arrival);
    if (outcome != TETHER__DONE) {
        tether__free(waiting);
        tether_value_release(value);
        return outcome;
    }
    tether_error error = {0};
    *waiting = (struct waiting_reply){
        {finish_reply}, tether__peer_retain(peer), epoch, reply->id, value, readable, *why_not};
    if (arrival) {
        outcome = tether__ext_ops->confirm(arrival, &waiting->resume, &error);
    } else {
        outcome = TETHER__REFUSED;
        tether_error_set(&error, TETHER_ENOTSUP,
                         "this worker was built without references (rref/rref.h)");
    }
    if (outcome != TETHER__WAITS)
        finish_reply(&waiting->resume, outcome == TETHER__DONE ? TETHER_OK : error.code, &error);
    return TETHER__DONE;
}

static enum tether__outcome finish_with_value(struct tether__peer *peer,
                                              uint64_t epoch,
                                              const Tether__Reply *reply,
                                              struct tether__slice payload)
{
    tether_value *value = NULL;
    tether_error error = {0};
    tether_status st = TETHER_OK;
    if ((payload.len || reply->n_ref || reply->type[0]) &&
        tether__value_received(payload,
                               tether__registry_find_type(&peer->agent->registry, reply->type),
                               &value, &error) != TETHER__DONE)
        st = error.code;
    if (reply->n_ref)
        return take_refs(peer, epoch, reply, value, st, &error);
    struct tether__call *call = take_call(peer, epoch, reply->id);
    if (call && call->result && reply->result_type[0])
        tether__ext_ops->result_type(call->result, reply->result_type);
    if (call)
        tether__call_finish(call, st, &error, value);
    tether_value_release(value);
    return TETHER__DONE;
}

enum tether__outcome tether__call_on_reply(struct tether__peer *peer,
                                           uint64_t epoch,
                                           const struct tether__inbound *message)
{
    TETHER__ARENA(arena, 512);
    const Tether__Reply *reply;
    struct tether__call *call = NULL;
    enum tether__outcome outcome = tether__outcome_of_unpacking(tether__wire_unpack(
        &tether__reply__descriptor, message->header, &arena, (const void **)&reply));
    if (outcome == TETHER__DONE && reply->status == TETHER_OK) {
        outcome = finish_with_value(peer, epoch, reply, message->payload);
    } else if (outcome == TETHER__DONE && (call = take_call(peer, epoch, reply->id))) {
        tether_error error;
        tether_status st = tether_error_set(&error, tether__status_from_outside(reply->status),
                                            "worker '%s', function '%s': %s", peer->name,
                                            call->function, reply->error);
        tether__call_finish(call, st, &error, NULL);
    }
    tether__arena_fini(&arena);
    return outcome;
}
