/* Replies to our calls: the slot is emptied, references that came along are taken and confirmed,
 * and the future is finished, with the value or with the error that the other side sent. */
#include "base/alloc.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent_internal.h"
#include "rpc/value_internal.h"
#include "rpc/wire.h"

/* A reply that waits for its references to be confirmed. */
struct waiting_reply {
    struct tether__resume resume;
    struct tether__call *call; /* NULL: it came too late, nobody wants it */
    tether_value *value;
};

static void finish_reply(struct tether__resume *resume,
                         tether_status status,
                         const tether_error *error)
{
    struct waiting_reply *reply = tether__container_of(resume, struct waiting_reply, resume);
    if (reply->call)
        tether__call_finish(reply->call, status, error, status == TETHER_OK ? reply->value : NULL);
    tether_value_release(reply->value);
    tether__free(reply);
}

/* References in a reply belong to us now, whether or not anybody still waits for it. */
static void take_refs(struct tether__peer *peer,
                      struct tether__call *call,
                      const Tether__Reply *reply,
                      tether_value *value)
{
    tether_error error = {0};
    struct waiting_reply *waiting = tether__malloc(sizeof *waiting);
    if (!waiting || !peer->agent->ext) {
        tether__free(waiting);
        tether_error_set(&error, TETHER_ENOMEM, "no memory for the references that came");
        if (call)
            tether__call_finish(call, TETHER_ENOMEM, &error, NULL);
        tether_value_release(value);
        return;
    }
    *waiting = (struct waiting_reply){{finish_reply}, call, value};
    tether_status st = tether__ext_ops->arrived(peer->agent->ext, peer, reply->ref, reply->n_ref,
                                                true, value, &waiting->resume, &error);
    if (st != TETHER_EBUSY)
        finish_reply(&waiting->resume, st, &error);
}

static void finish_with_value(struct tether__peer *peer,
                              struct tether__call *call,
                              const Tether__Reply *reply,
                              struct tether__slice payload)
{
    tether_value *value = NULL;
    tether_error error = {0};
    tether_status st = TETHER_OK;
    if (payload.len || reply->n_ref || reply->type[0])
        st = tether__value_received(payload,
                                    tether__registry_find_type(&peer->agent->registry, reply->type),
                                    &value, &error);
    if (st == TETHER_OK && reply->n_ref) {
        take_refs(peer, call, reply, value);
        return;
    }
    if (call)
        tether__call_finish(call, st, &error, value);
    tether_value_release(value);
}

void tether__call_on_reply(struct tether__peer *peer, const struct tether__inbound *message)
{
    TETHER__ARENA(arena, 512);
    const Tether__Reply *reply;
    if (tether__wire_unpack(&tether__reply__descriptor, message->header, &arena,
                            (const void **)&reply) == TETHER_OK) {
        pthread_mutex_lock(&peer->mu);
        struct tether__call *call = tether__call_take_locked(peer, reply->id);
        pthread_mutex_unlock(&peer->mu);
        if (reply->status == TETHER_OK) {
            finish_with_value(peer, call, reply, message->payload);
        } else if (call) {
            tether_error error;
            tether_error_set(&error, (tether_status)reply->status, "worker '%s', function '%s': %s",
                             peer->name, call->function, reply->error);
            tether__call_finish(call, (tether_status)reply->status, &error, NULL);
        }
    }
    tether__arena_fini(&arena);
}
