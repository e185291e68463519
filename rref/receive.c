/* References on their way in, and the messages of the protocol.
 *
 * A reference arrives in one of three ways: it is to an object of ours (we take a handle of our own
 * entry), its owner itself sends it (confirmed at once: the owner has counted us), or a third
 * worker passes it on: then the owner is asked (fork-request) before anything is done with it, and
 * the one who passed it on is told when that is decided (child-accept), either way.
 *
 * Messages that come twice, late or for what is gone do nothing.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "rpc/packed.h"
#include "rpc/wire.h"
#include "rref/context.h"

#define MAX_WAIT_MS (3600u * 1000) /* for an object that was passed on before it was made */

/* 0: the sender has not met the owner, so any start of it is meant. */
static bool is_me(const struct tether__refs *refs, uint64_t owner_incarnation)
{
    return !owner_incarnation || owner_incarnation == refs->agent->self.incarnation;
}

/* ---- A message with references ---- */

/* Counts down the confirmations that a message waits for. */
struct arrival {
    _Atomic size_t left;
    struct tether__resume *resume;
    pthread_mutex_t mu;
    tether_status status; /* under mu: the first failure */
    tether_error error;
};

static void arrival_fail(struct arrival *arrival, tether_status status, const tether_error *error)
{
    pthread_mutex_lock(&arrival->mu);
    if (arrival->status == TETHER_OK) {
        arrival->status = status;
        arrival->error = *error;
    }
    pthread_mutex_unlock(&arrival->mu);
}

/* True: that was the last one, and the message can go on (or not: see status). */
static bool arrival_step(struct arrival *arrival)
{
    return atomic_fetch_sub(&arrival->left, 1) == 1;
}

static void arrival_free(struct arrival *arrival)
{
    pthread_mutex_destroy(&arrival->mu);
    tether__free(arrival);
}

struct fork_wait {
    tether_rref *rref; /* one count */
    struct arrival *arrival;
};

/* The reference is of the session that the request goes out in (peer->mu is held). If it was broken
 * meanwhile, the owner must not be asked: nobody would give its fork back. */
static tether_status join_session_locked(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    pthread_mutex_lock(&refs->mu);
    tether_status st = rref->state == TETHER_RREF_PENDING ? TETHER_OK : TETHER_EFENCED;
    if (st == TETHER_OK)
        rref->user.owner.epoch = atomic_load(&rref->user.owner.peer->session_epoch);
    pthread_mutex_unlock(&refs->mu);
    return st;
}

static tether_status pack_fork_request(void *userdata,
                                       uint64_t id,
                                       uint32_t timeout_ms,
                                       struct tether__packed *ret_packed)
{
    tether_rref *rref = userdata;
    tether_status st = join_session_locked(rref);
    if (st != TETHER_OK)
        return st;
    Tether__ForkRequest message = TETHER__FORK_REQUEST__INIT;
    Tether__RefId object = tether__wire_id(rref->id), fork = tether__wire_id(rref->user.fork);
    message.id = id;
    message.object = &object;
    message.fork = &fork;
    message.owner_incarnation = rref->user.owner_incarnation;
    /* We wait for the owner, who always answers; it waits for the object no longer than this. */
    int wait_ms = rref->context->agent->opts.timeout_ms;
    message.timeout_ms = timeout_ms ? timeout_ms : wait_ms > 0 ? (uint32_t)wait_ms : MAX_WAIT_MS;
    return tether__pack(ret_packed, &message.base);
}

/* What a failed request means for the reference. */
static tether_status lost_or_gone(tether_status status)
{
    switch (status) {
        case TETHER_EUNAVAILABLE:
        case TETHER_EFENCED:
        case TETHER_ENOTFOUND:
            return TETHER_EOWNERDIED;
        default:
            return status;
    }
}

static void decide(tether_rref *rref, tether_status status, const char *why)
{
    struct tether__refs *refs = rref->context;
    struct tether__collected collected = {NULL};
    tether_future *settled = NULL;
    tether_error cause = {0};
    bool lost = false;
    pthread_mutex_lock(&refs->mu);
    if (status == TETHER_OK && rref->state == TETHER_RREF_PENDING) {
        tether__user_set_state_locked(rref, TETHER_RREF_CONFIRMED);
        rref->user.known_to_owner = true;
        settled = tether_future_retain(rref->settled);
    } else if (status != TETHER_OK) {
        settled = tether__rref_break_locked(rref, status, why);
        lost = status == TETHER_EOWNERDIED && !rref->lost;
        rref->lost |= lost;
    }
    struct tether__accept *accept = rref->user.accept;
    rref->user.accept = NULL;
    pthread_mutex_unlock(&refs->mu);
    tether__refs_queue_accept(accept);
    tether_error_set(&cause, status, "%s", why);
    tether__future_settle(settled, status, &cause);
    if (lost)
        tether__rref_give_notice(rref);
    tether__refs_settle(refs, &collected);
}

static void on_fork_reply(tether_future *future, void *userdata)
{
    struct fork_wait *wait = userdata;
    tether_rref *rref = wait->rref;
    struct arrival *arrival = wait->arrival;
    tether_error error = {0};
    tether_status st = lost_or_gone(tether_future_status(future, &error));
    error.code = st;
    decide(rref, st, error.message);
    if (st != TETHER_OK)
        arrival_fail(arrival, st, &error);
    tether_rref_release(rref);
    tether__free(wait);
    if (arrival_step(arrival)) {
        arrival->resume->run(arrival->resume, arrival->status, &arrival->error);
        arrival_free(arrival);
    }
}

/* Asks the owner. The reference and the arrival each get one more count. */
static tether_status request_fork(tether_rref *rref, struct arrival *arrival, tether_error *reterr)
{
    struct fork_wait *wait = tether__malloc(sizeof *wait);
    tether_future *future = NULL;
    if (!wait)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a reference");
    *wait = (struct fork_wait){tether_rref_retain(rref), arrival};
    atomic_fetch_add(&arrival->left, 1);
    tether_status st =
        tether__call_request(rref->user.owner.peer, TETHER__FRAME_FORK_REQUEST, "fork request",
                             true, TETHER__NEVER, pack_fork_request, rref, &future, reterr);
    if (st != TETHER_OK) {
        atomic_fetch_sub(&arrival->left, 1);
        tether_rref_release(wait->rref);
        tether__free(wait);
        return st;
    }
    tether_future_then(future, on_fork_reply, wait); /* the first callback needs no memory */
    tether_future_release(future);
    return TETHER_OK;
}

/* Our own object comes back. */
static tether_status take_own(struct tether__refs *refs,
                              const Tether__Ref *ref,
                              tether_value *value,
                              tether_error *reterr)
{
    tether_rref_id id = tether__id_from_wire(ref->id);
    tether_rref *rref = NULL;
    pthread_mutex_lock(&refs->mu);
    if (is_me(refs, ref->owner_incarnation))
        rref = tether_rref_retain(tether__owner_find_locked(refs, id));
    pthread_mutex_unlock(&refs->mu);
    if (!rref)
        return tether_error_set(reterr, TETHER_EGONE,
                                "the object that a reference came for is gone");
    tether_status st = tether__value_attach(value, &rref->rider);
    tether_rref_release(rref);
    return st == TETHER_OK ? st : tether_error_set(reterr, st, "no memory for a reference");
}

/* A reference to somebody else's object. */
static tether_status take_other(struct tether__refs *refs,
                                struct tether__peer *from,
                                struct tether__peer *owner,
                                const Tether__Ref *ref,
                                tether_value *value,
                                struct tether__accept *accept,
                                tether_rref **ret_rref,
                                tether_error *reterr)
{
    bool from_owner = owner == from;
    tether_rref *rref = tether__rref_alloc(refs, false, tether__id_from_wire(ref->id));
    if (!rref)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a reference");
    rref->user.fork = tether__id_from_wire(ref->fork);
    rref->user.owner = (struct tether__party){owner, atomic_load(&owner->session_epoch)};
    rref->user.owner_id = ref->owner;
    rref->user.owner_incarnation = ref->owner_incarnation;
    rref->user.known_to_owner = from_owner;
    if (from_owner)
        rref->state = TETHER_RREF_CONFIRMED;
    pthread_mutex_lock(&refs->mu);
    rref->type = ref->type[0] ? tether__refs_intern_locked(refs, ref->type) : NULL;
    tether_status st = tether__user_add_locked(rref);
    pthread_mutex_unlock(&refs->mu);
    if (st == TETHER_OK)
        st = tether__value_attach(value, &rref->rider);
    if (st != TETHER_OK) {
        tether_rref_release(rref); /* tells the owner, if it counts us */
        return tether_error_set(reterr, st, "no memory for a reference");
    }
    rref->user.accept = accept;
    *ret_rref = rref;
    return TETHER_OK;
}

static tether_status take_ref(struct tether__refs *refs,
                              struct tether__peer *from,
                              const Tether__Ref *ref,
                              tether_value *value,
                              struct arrival *arrival,
                              tether_error *reterr)
{
    tether_agent *agent = refs->agent;
    if (!ref->id || !ref->owner_name[0] || !tether__name_valid(ref->owner_name))
        return tether_error_set(reterr, TETHER_ECORRUPT, "a reference without an id or an owner");
    bool own = strcmp(ref->owner_name, agent->name) == 0;
    if (!own && !ref->fork)
        return tether_error_set(reterr, TETHER_ECORRUPT, "a reference without a fork");
    struct tether__peer *owner = NULL;
    struct tether__accept *accept = NULL;
    if (!own) {
        tether_status st = tether__agent_peer(agent, ref->owner_name, &owner, reterr);
        if (st != TETHER_OK)
            return st;
        tether__peer_release(owner); /* peers live as long as the agent */
    }
    if (ref->fork && owner != from) { /* its sender holds on to it until it hears from us */
        accept = tether__malloc(sizeof *accept);
        if (!accept)
            return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a reference");
        *accept = (struct tether__accept){
            NULL, tether__id_from_wire(ref->fork), {from, atomic_load(&from->session_epoch)}};
    }
    if (own) {
        tether_status st = take_own(refs, ref, value, reterr);
        tether__refs_queue_accept(accept);
        return st;
    }
    tether_rref *rref = NULL;
    tether_status st = take_other(refs, from, owner, ref, value, accept, &rref, reterr);
    if (st != TETHER_OK) {
        tether__refs_queue_accept(accept);
        return st;
    }
    if (owner != from) {
        st = request_fork(rref, arrival, reterr);
        if (st != TETHER_OK)
            decide(rref, lost_or_gone(st), reterr ? reterr->message : "");
    }
    tether_rref_release(rref); /* the value holds it now */
    return st;
}

tether_status tether__refs_arrived(void *ext,
                                   struct tether__peer *peer,
                                   Tether__Ref **refs,
                                   size_t n,
                                   bool in_reply,
                                   tether_value *value,
                                   struct tether__resume *resume,
                                   tether_error *reterr)
{
    (void)in_reply;
    struct arrival *arrival = tether__calloc(1, sizeof *arrival);
    if (!arrival)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for references");
    atomic_init(&arrival->left, 1); /* ours, so that none of them resumes before all are taken */
    arrival->resume = resume;
    pthread_mutex_init(&arrival->mu, NULL);
    for (size_t i = 0; i < n; i++) { /* all of them, also after a failure: each must be settled */
        tether_error error = {0};
        tether_status st = take_ref(ext, peer, refs[i], value, arrival, &error);
        if (st != TETHER_OK)
            arrival_fail(arrival, st, &error);
    }
    if (!arrival_step(arrival))
        return TETHER_EBUSY;
    tether_status st = arrival->status;
    if (st != TETHER_OK && reterr)
        *reterr = arrival->error;
    arrival_free(arrival);
    return st;
}

/* ---- The protocol's messages ---- */

static void on_fork_request(struct tether__refs *refs,
                            struct tether__peer *peer,
                            const Tether__ForkRequest *message)
{
    tether_rref_id object = tether__id_from_wire(message->object);
    tether_rref_id fork = tether__id_from_wire(message->fork);
    struct tether__party from = {peer, atomic_load(&peer->session_epoch)};
    tether_status st = TETHER_EGONE;
    pthread_mutex_lock(&refs->mu);
    if (is_me(refs, message->owner_incarnation)) {
        tether_rref *rref = tether__owner_find_locked(refs, object);
        if (rref) {
            st = tether__fork_add_locked(rref, fork, from);
        } else if (tether__may_come_locked(refs, object)) {
            struct tether__parked parked = {
                .what = TETHER__PARKED_FORK,
                .from = from,
                .request = message->id,
                .object = object,
                .fork = fork,
                .deadline = message->timeout_ms
                                ? tether__deadline_in(refs->agent->clock, (int)message->timeout_ms)
                                : TETHER__NEVER,
            };
            st = tether__park_locked(refs, &parked) == TETHER_OK ? TETHER_EBUSY : TETHER_ENOMEM;
        }
    }
    pthread_mutex_unlock(&refs->mu);
    if (st != TETHER_EBUSY)
        tether__reply_to(peer, from.epoch, message->id, st,
                         st == TETHER_EGONE ? "the object is gone" : tether_status_text(st), NULL);
}

static void on_fetch(struct tether__refs *refs,
                     struct tether__peer *peer,
                     const Tether__Fetch *message)
{
    tether_rref_id object = tether__id_from_wire(message->object);
    struct tether__party from = {peer, atomic_load(&peer->session_epoch)};
    tether_status st = TETHER_EGONE;
    tether_error error;
    tether_value *value = NULL;
    tether_error_set(&error, st, "the object is gone");
    pthread_mutex_lock(&refs->mu);
    if (is_me(refs, message->owner_incarnation)) {
        tether_rref *rref = tether__owner_find_locked(refs, object);
        if ((rref && rref->owner.making) || (!rref && tether__may_come_locked(refs, object))) {
            struct tether__parked parked = {
                .what = TETHER__PARKED_FETCH,
                .from = from,
                .request = message->id,
                .object = object,
                .deadline = message->timeout_ms
                                ? tether__deadline_in(refs->agent->clock, (int)message->timeout_ms)
                                : TETHER__NEVER,
            };
            st = tether__park_locked(refs, &parked) == TETHER_OK ? TETHER_EBUSY : TETHER_ENOMEM;
        } else if (rref) {
            st = tether__rref_usable_locked(rref, &error);
            value = tether_value_retain(rref->owner.value);
        }
    }
    pthread_mutex_unlock(&refs->mu);
    if (st != TETHER_EBUSY)
        tether__reply_to(peer, from.epoch, message->id, st, error.message, value);
    tether_value_release(value);
}

static void on_user_delete(struct tether__refs *refs,
                           struct tether__peer *peer,
                           const Tether__UserDelete *message)
{
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; i < message->n_item; i++) {
        tether_rref *rref =
            tether__owner_find_locked(refs, tether__id_from_wire(message->item[i]->object));
        if (rref)
            tether__fork_remove_locked(rref, tether__id_from_wire(message->item[i]->fork), peer,
                                       &collected);
    }
    pthread_mutex_unlock(&refs->mu);
    tether__refs_settle(refs, &collected);
}

static void on_child_accept(struct tether__refs *refs,
                            struct tether__peer *peer,
                            const Tether__ChildAccept *message)
{
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; i < message->n_fork; i++)
        tether__child_remove_locked(refs, tether__id_from_wire(message->fork[i]), peer, &collected);
    pthread_mutex_unlock(&refs->mu);
    tether__refs_settle(refs, &collected);
}

void tether__refs_frame(void *ext, struct tether__peer *peer, const struct tether__inbound *message)
{
    struct tether__refs *refs = ext;
    TETHER__ARENA(arena, 2048);
    const void *body;
#define UNPACK(type)                                                                       \
    (tether__wire_unpack(&tether__##type##__descriptor, message->header, &arena, &body) == \
     TETHER_OK)
    switch (message->kind) {
        case TETHER__FRAME_FORK_REQUEST:
            if (UNPACK(fork_request))
                on_fork_request(refs, peer, body);
            break;
        case TETHER__FRAME_CHILD_ACCEPT:
            if (UNPACK(child_accept))
                on_child_accept(refs, peer, body);
            break;
        case TETHER__FRAME_USER_DELETE:
            if (UNPACK(user_delete))
                on_user_delete(refs, peer, body);
            break;
        case TETHER__FRAME_FETCH:
            if (UNPACK(fetch))
                on_fetch(refs, peer, body);
            break;
        default:
            break;
    }
#undef UNPACK
    tether__arena_fini(&arena);
}
