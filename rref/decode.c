/* References on their way in.
 *
 * A reference arrives in one of three ways: it is to an object of ours (we take a handle of our
 * own entry), its owner itself sends it (confirmed at once: the owner has counted us), or a third
 * worker passes it on: then the owner is asked (fork-request) before the value is used, and the
 * worker that passed it on is told when the owner has decided (child-accept), either way.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "rpc/future/internal.h"
#include "rpc/peer/limits.h"
#include "rpc/peer/outbox.h"
#include "rpc/refs.h"
#include "rpc/wire/packed.h"
#include "rref/context.h"
#include "rref/hooks.h"

/* the longest wait for an object that was passed on before it was made */
#define MAX_WAIT_MS (3600 * 1000)
/* ---- A message with references ---- */

/* One of the references that a message brings. */
struct arriving {
    struct tether__arrival *arrival;
    tether_rref *rref; /* holds one count; NULL: the reference was refused */
    /* the child-accept for the sender of the reference; NULL: none is due */
    struct tether__accept *accept;
    /* the owner does not know of this fork yet, so it gets a fork-request */
    bool ask;
    uint64_t made_in;
    tether_status refusal;
};

/* All memory that the references of one message need. Counts down the confirmations that the
 * message waits for. */
struct tether__arrival {
    struct tether__refs *refs;
    struct tether__peer *from; /* retained */
    /* how many of its references are counted in `n_unconfirmed` of the sending peer */
    size_t n_unconfirmed;
    struct tether__resume *resume;
    _Atomic size_t left;
    pthread_mutex_t mu;
    tether_status status; /* under mu: the status of the first reference that failed */
    tether_error error;
    size_t n;
    struct arriving items[];
};

static void arrival_fail(struct tether__arrival *arrival,
                         tether_status status,
                         const tether_error *error)
{
    pthread_mutex_lock(&arrival->mu);
    if (arrival->status == TETHER_OK) {
        arrival->status = status;
        arrival->error = *error;
    }
    pthread_mutex_unlock(&arrival->mu);
}

/* Fails the arrival if a fence broke one of its references while the owners of others were asked.
 */
static void check_all(struct tether__arrival *arrival)
{
    for (size_t i = 0; i < arrival->n; i++) {
        tether_error error = {0};
        tether_rref *rref = arrival->items[i].rref;
        if (!rref)
            continue;
        pthread_mutex_lock(&arrival->refs->mu);
        tether_status st = tether__rref_usable_locked(rref, &error);
        pthread_mutex_unlock(&arrival->refs->mu);
        if (st != TETHER_OK && !rref->is_owner)
            arrival_fail(arrival, st, &error);
    }
}

/* Records that one more reference is decided. Returns true after the last one: then the message is
 * processed further if `status` is TETHER_OK, else it fails. */
static bool arrival_step(struct tether__arrival *arrival)
{
    if (atomic_fetch_sub(&arrival->left, 1) != 1)
        return false;
    check_all(arrival);
    return true;
}

static void arrival_free(struct tether__arrival *arrival)
{
    for (size_t i = 0; i < arrival->n; i++) {
        tether_rref_release(arrival->items[i].rref);
        tether__accept_free(arrival->items[i].accept);
    }
    if (arrival->n_unconfirmed) {
        pthread_mutex_lock(&arrival->refs->mu);
        struct tether__ref_peer *from = tether__ref_peer_find_locked(arrival->from);
        if (from) /* NULL: the agent has been released, and the peer's counter with it */
            from->n_unconfirmed -= arrival->n_unconfirmed;
        pthread_mutex_unlock(&arrival->refs->mu);
    }
    tether__peer_release(arrival->from);
    pthread_mutex_destroy(&arrival->mu);
    tether__free(arrival);
}

/* Counts one more reference of the peer's messages that its owner has to confirm. TETHER_EBUSY:
 * the peer has sent too many of them. */
static tether_status count_unconfirmed_locked(struct tether__refs *refs,
                                              struct tether__arrival *arrival)
{
    struct tether__ref_peer *from = tether__ref_peer_locked(arrival->from);
    if (!from)
        return TETHER_ENOMEM;
    if (from->n_unconfirmed >= tether__most_unconfirmed(refs->agent))
        return TETHER_EBUSY;
    from->n_unconfirmed++;
    arrival->n_unconfirmed++;
    return TETHER_OK;
}

/* Whether our object may be of the type that a message names. */
static bool has_type_locked(const tether_rref *rref, const char *type)
{
    return !type[0] || !rref->type || strcmp(rref->type, type) == 0;
}

/* Takes a reference to an object of this worker. In a reply, the object may be one that its
 * creator has only just asked this worker to make: that call travels on another stream, so it
 * arrives later, or not at all when the session ends. */
static tether_status take_own(struct tether__refs *refs,
                              struct tether__ref_session from,
                              const Tether__Ref *ref,
                              struct arriving *item)
{
    tether_rref_id id = tether__id_from_wire(ref->id);
    tether_status st = TETHER_EGONE;
    pthread_mutex_lock(&refs->mu);
    if (tether__refs_is_me(refs, ref->owner_incarnation)) {
        tether_rref *rref = tether__owner_find_locked(refs, id);
        if (rref && !has_type_locked(rref, ref->type))
            st = TETHER_ETYPE;
        else if ((item->rref = tether_rref_retain(rref)))
            st = TETHER_OK;
        else if (!tether__may_come_locked(refs, id) || tether__ref_session_is_over_locked(from) ||
                 !tether__is_of_creator(from.peer,
                                        /* before the object is made, only its creator can send a
                                         * reference to it */
                                        id))
            st = TETHER_EGONE;
        else if (!tether__may_expect_locked(refs, from.peer))
            st = TETHER_EBUSY;
        else
            st = (item->rref = tether__owner_expect_locked(refs, id, from)) ? TETHER_OK
                                                                            : TETHER_ENOMEM;
    }
    pthread_mutex_unlock(&refs->mu);
    return st;
}

/* Takes a reference, sent by `from`, to an object of another worker, `owner`. */
static tether_status take_other(struct tether__refs *refs,
                                struct tether__ref_session from,
                                struct tether__peer *owner,
                                const Tether__Ref *ref,
                                struct arriving *item)
{
    bool from_owner = owner == from.peer;
    if (!from_owner) {
        pthread_mutex_lock(&refs->mu);
        tether_status st = count_unconfirmed_locked(refs, item->arrival);
        pthread_mutex_unlock(&refs->mu);
        if (st != TETHER_OK)
            return st;
    }
    tether_rref *rref = tether__rref_alloc(refs, false, tether__id_from_wire(ref->id));
    if (!rref)
        return TETHER_ENOMEM;
    rref->user.fork = tether__id_from_wire(ref->fork);
    rref->user.owner.peer = tether__peer_retain(owner);
    rref->user.owner.number = from_owner ? from.number : tether__peer_session(owner);
    rref->user.owner_id = ref->owner;
    rref->user.owner_incarnation = (uint32_t)ref->owner_incarnation;
    if (from_owner)
        rref->state = TETHER_RREF_CONFIRMED;
    pthread_mutex_lock(&refs->mu);
    rref->type = ref->type[0] ? tether__name_get_locked(refs, ref->type) : NULL;
    if (!from_owner &&
        tether__ref_session_is_over_locked(rref->user.owner)) /* it may have ended since */
        rref->user.owner.number = tether__ref_first_session_locked(owner);
    tether_status st = tether__ref_session_is_over_locked(rref->user.owner) && from_owner
                           ? TETHER_EFENCED
                           : tether__user_add_locked(rref);
    rref->known_to_owner = from_owner && st == TETHER_OK;
    pthread_mutex_unlock(&refs->mu);
    if (st != TETHER_OK) {
        tether_rref_release(rref);
        return st;
    }
    item->rref = rref;
    item->ask = !from_owner;
    item->made_in = ref->made_in;
    return TETHER_OK;
}

static tether_status take_one(struct tether__refs *refs,
                              struct tether__ref_session from,
                              const Tether__Ref *ref,
                              tether_value *value,
                              struct arriving *item)
{
    if (!ref->id || !ref->owner_name[0] || !tether__name_valid(ref->owner_name) ||
        ref->owner_incarnation > UINT32_MAX || strlen(ref->type) > TETHER_MAX_TYPE_NAME)
        return TETHER_ECORRUPT;
    bool own = strcmp(ref->owner_name, tether_agent_name(refs->agent)) == 0;
    if (!own && !ref->fork)
        return TETHER_ECORRUPT;
    struct tether__peer *owner = NULL;
    if (!own) {
        tether_status st =
            tether__agent_peer_named_by(refs->agent, from.peer, ref->owner_name, &owner, NULL);
        if (st != TETHER_OK)
            return st;
    }
    tether_status st = TETHER_OK;
    /* the sender keeps the reference pinned until it gets our child-accept */
    if (ref->fork && owner != from.peer) {
        item->accept = tether__accept_new(refs, tether__id_from_wire(ref->fork), from);
        st = item->accept ? TETHER_OK : TETHER_ENOMEM;
    }
    if (st == TETHER_OK)
        st = own ? take_own(refs, from, ref, item) : take_other(refs, from, owner, ref, item);
    if (owner)
        tether__peer_release(owner);
    return st == TETHER_OK ? tether__value_attach(value, &item->rref->attached) : st;
}

/* Removes references that were taken for a message that is refused. The value still holds a count
 * of each; their owners are not told when these are released. */
static void untake(struct tether__arrival *arrival)
{
    pthread_mutex_lock(&arrival->refs->mu);
    for (size_t i = 0; i < arrival->n; i++)
        if (arrival->items[i].rref && !arrival->items[i].rref->is_owner)
            arrival->items[i].rref->known_to_owner = false;
    pthread_mutex_unlock(&arrival->refs->mu);
    arrival_free(arrival);
}

/* Attaches all references of the message to its value (DONE), or none (NO_MEMORY). */
static enum tether__outcome take(struct tether__refs *refs, struct tether__ref_message *message)
{
    struct tether__arrival *arrival = NULL;
    struct tether__peer *peer = message->peer;
    size_t n = message->n_refs;
    if (!tether__outbox_is_full(peer))
        arrival = tether__calloc(1, sizeof *arrival + n * sizeof *arrival->items);
    if (!arrival)
        return TETHER__NO_MEMORY;
    arrival->refs = refs;
    arrival->from = tether__peer_retain(peer);
    /* one extra count, so that the message does not resume before all owners were asked */
    atomic_init(&arrival->left, 1);
    pthread_mutex_init(&arrival->mu, NULL);
    /* go on after a failure: each reference must be taken or refused */
    for (; arrival->n < n; arrival->n++) {
        struct arriving *item = &arrival->items[arrival->n];
        item->arrival = arrival;
        item->refusal = take_one(refs, (struct tether__ref_session){peer, message->session_number},
                                 message->refs[arrival->n], message->value, item);
        if (item->refusal == TETHER_ENOMEM) {
            arrival->n++;
            untake(arrival);
            return TETHER__NO_MEMORY;
        }
    }
    message->arrival = arrival;
    return TETHER__DONE;
}

static struct tether__attached_ref *hold_target(struct tether__refs *refs, const Tether__Call *call)
{
    tether_rref *rref = NULL;
    tether_rref_id id = tether__id_from_wire(call->target);
    pthread_mutex_lock(&refs->mu);
    if (tether__refs_is_me(refs, call->owner_incarnation))
        rref = tether_rref_retain(tether__owner_find_locked(refs, id));
    pthread_mutex_unlock(&refs->mu);
    return rref ? &rref->attached : NULL;
}

enum tether__outcome tether__refs_arrived(void *ext,
                                          struct tether__ref_message *message,
                                          tether_error *reterr)
{
    struct tether__refs *refs = ext;
    const Tether__Call *call = message->call;
    struct tether__ref_session from = {message->peer, message->session_number};
    enum tether__outcome outcome = TETHER__DONE;
    if (message->n_refs)
        outcome = take(refs, message);
    if (outcome == TETHER__DONE && call && call->n_result)
        outcome = tether__owner_called(refs, from, call, &message->result, reterr);
    if (outcome == TETHER__NO_MEMORY && message->arrival) {
        untake(message->arrival);
        message->arrival = NULL;
    }
    if (message->arrival && call && call->target)
        message->held = hold_target(refs, call);
    return outcome;
}

/* ---- Asking the owner ---- */

/* Moves the reference to the session in which the fork-request is sent (the caller holds its
 * lock). Returns false if it was broken meanwhile: then the owner must not be asked, because its
 * fork would never be released. */
static bool join_session_locked(tether_rref *rref)
{
    struct tether__refs *refs = rref->context;
    pthread_mutex_lock(&refs->mu);
    bool is_pending = tether__rref_state_locked(rref) == TETHER_RREF_PENDING;
    if (is_pending)
        rref->user.owner.number = tether__peer_session(rref->user.owner.peer);
    pthread_mutex_unlock(&refs->mu);
    return is_pending;
}

/* Returns how long the owner waits for an object that was passed on before it was made. */
static int max_wait_ms(const struct tether__refs *refs)
{
    int wait_ms = refs->opts->timeout_ms;
    return wait_ms > 0 && wait_ms < MAX_WAIT_MS ? wait_ms : MAX_WAIT_MS;
}

static enum tether__outcome pack_fork_request(void *userdata,
                                              uint64_t id,
                                              uint32_t timeout_ms,
                                              struct tether__packed *ret_packed)
{
    struct arriving *item = userdata;
    tether_rref *rref = item->rref;
    if (!join_session_locked(rref))
        return TETHER__REFUSED;
    /* the deadline of the request is longer than max_wait_ms(): see request_fork() */
    (void)timeout_ms;
    Tether__ForkRequest message = TETHER__FORK_REQUEST__INIT;
    Tether__RefId object = tether__wire_id(rref->id), fork = tether__wire_id(rref->user.fork);
    message.id = id;
    message.object = &object;
    message.fork = &fork;
    message.owner_incarnation = rref->user.owner_incarnation;
    message.timeout_ms = (uint32_t)max_wait_ms(rref->context);
    if (item->accept)
        message.parent = (char *)tether__peer_name(item->accept->parent.peer);
    message.made_in = item->made_in;
    return tether__outcome_of(tether__pack(ret_packed, &message.base));
}

/* Converts the status of a request that was not answered into the status of its reference. These
 * statuses are the library's own. */
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

/* Handles the decision of the owner, or its loss. The sender of the reference may then release its
 * pin. */
static void decide(struct arriving *item, tether_status status, const tether_error *error)
{
    tether_rref *rref = item->rref;
    struct tether__refs *refs = rref->context;
    struct tether__collected nothing = {NULL};
    tether_future *ready = NULL;
    bool lost = false;
    pthread_mutex_lock(&refs->mu);
    /* Without a clear answer the owner may have the fork, so it is told when the reference is
     * released. */
    rref->known_to_owner = status != TETHER_EGONE && status != TETHER_EOWNERDIED;
    if (status != TETHER_OK) {
        ready = tether__rref_break_locked(rref, status, error->message);
        lost = status == TETHER_EOWNERDIED && !rref->lost;
        rref->lost |= lost;
    } else if (rref->state == TETHER_RREF_PENDING) {
        tether__user_set_state_locked(rref, TETHER_RREF_CONFIRMED);
        rref->user.owner_id = tether__rref_owner_id(rref);
        ready = tether_future_retain(rref->ready);
    }
    pthread_mutex_unlock(&refs->mu);
    tether__refs_queue_accept(item->accept);
    item->accept = NULL;
    tether__future_finish_and_release(ready, status, error);
    if (lost)
        tether__rref_give_notice(rref);
    if (status != TETHER_OK)
        arrival_fail(item->arrival, status, error);
    /* count down only after the child-accept was queued, so that the count does not reach 0 in
     * between */
    tether__refs_count_message(refs, -1);
    /* runs what a shutdown that waited for this confirmation has to do */
    tether__refs_run_collected(refs, &nothing);
}

static void on_fork_reply(tether_future *future, void *userdata)
{
    struct arriving *item = userdata;
    struct tether__arrival *arrival = item->arrival;
    tether_error error = {0};
    tether_status st = tether_future_status(future, &error);
    if (future->unanswered)
        st = lost_or_gone(st);
    error.code = st;
    decide(item, st, &error);
    if (arrival_step(arrival)) {
        arrival->resume->run(arrival->resume, arrival->status, &arrival->error);
        arrival_free(arrival);
    }
}

/* Asks the owner to confirm the fork. The owner always answers unless it is out of memory, so no
 * answer comes after this deadline. */
static void request_fork(struct arriving *item)
{
    struct tether__refs *refs = item->arrival->refs;
    tether_future *future = NULL;
    tether_error error = {0};
    atomic_fetch_add(&item->arrival->left, 1);
    tether__refs_count_message(refs, 1);
    tether_status st = tether__call_request(
        item->rref->user.owner.peer, TETHER__FRAME_FORK_REQUEST, "fork request", true,
        tether__deadline_in(refs->clock, max_wait_ms(refs) + 2 * refs->opts->lease_ms),
        pack_fork_request, item, &future, &error);
    if (st == TETHER_OK) {
        /* attaching the first callback allocates nothing, so it cannot fail */
        tether_future_then(future, on_fork_reply, item);
        tether_future_release(future);
    } else {
        decide(item, lost_or_gone(st), &error);
        /* cannot reach 0: take() still holds its extra count */
        atomic_fetch_sub(&item->arrival->left, 1);
    }
}

static void refuse(struct arriving *item)
{
    tether_error error = {0};
    const char *why = item->refusal == TETHER_EGONE ? "its object is gone"
                      : item->refusal == TETHER_EBUSY
                          ? "too many of this caller's references wait there: wait for some, or "
                            "raise max_bytes_per_peer or max_calls_per_peer there"
                          : tether_status_text(item->refusal);
    tether_error_set(&error, item->refusal, "a reference could not be taken: %s", why);
    arrival_fail(item->arrival, item->refusal, &error);
}

enum tether__outcome tether__refs_confirm(struct tether__arrival *arrival,
                                          struct tether__resume *resume,
                                          tether_error *reterr)
{
    arrival->resume = resume;
    for (size_t i = 0; i < arrival->n; i++) {
        struct arriving *item = &arrival->items[i];
        if (item->refusal != TETHER_OK)
            refuse(item);
        if (item->ask) {
            request_fork(item);
        } else {
            tether__refs_queue_accept(item->accept);
            item->accept = NULL;
        }
    }
    if (!arrival_step(arrival))
        return TETHER__WAITS;
    bool refused = arrival->status != TETHER_OK;
    if (refused) {
        *reterr = arrival->error;
        reterr->code = arrival->status;
    }
    arrival_free(arrival);
    return refused ? TETHER__REFUSED : TETHER__DONE;
}
