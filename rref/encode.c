/* References on their way out: forks made when a value is sent, and the two messages that gather
 * for a peer (user-delete, child-accept) until something is written to it.
 *
 * How an object stays alive meanwhile: a reference to our own object becomes a fork, held by the
 * peer, at the moment the message is queued. One passed from user to user is pinned here until the
 * receiver accepts. A reference that goes back to its owner in a call needs no fork and no pin:
 * the lane delivers it before any later delete of ours. In a reply such a reference is pinned, for
 * replies travel on another stream than deletes; and in a call that goes in pieces, for a delete
 * could overtake it.
 */
#include <string.h>

#include "base/alloc.h"
#include "rpc/refs.h"
#include "rpc/wire/packed.h"
#include "rref/context.h"
#include "rref/hooks.h"

struct packed_ref {
    Tether__Ref ref;
    Tether__RefId id, fork;
    tether_rref *rref;
    bool is_fork, is_child;
};

struct pack_memory {
    size_t n;
    struct packed_ref *items; /* points into the same block, after the array of pointers */
    Tether__Ref *refs[];
};

static tether_rref *attached_rref(const tether_value *value, size_t i)
{
    return tether__container_of(value->attached[i], struct tether_rref, attached);
}

static void undo_items_locked(struct tether__refs *refs,
                              struct tether__peer *peer,
                              struct pack_memory *memory)
{
    struct tether__collected collected = {NULL};
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; i < memory->n; i++) {
        struct packed_ref *item = &memory->items[i];
        tether_rref_id fork = tether__id_from_wire(&item->fork);
        if (item->is_fork)
            tether__fork_remove_locked(item->rref, fork, peer, &collected);
        if (item->is_child)
            tether__child_remove_locked(refs, fork, peer, &collected);
    }
    pthread_mutex_unlock(&refs->mu);
    /* The value still holds a count of each reference, so `collected` is empty here. */
}

void tether__refs_encode_end_locked(void *ext,
                                    struct tether__peer *peer,
                                    struct tether__ref_pack *pack,
                                    bool queued)
{
    if (!queued)
        undo_items_locked(ext, peer, pack->memory);
    tether__free(pack->memory);
    memset(pack, 0, sizeof *pack);
}

/* Returns the start of the owner to name in the message; 0, any start, while our own creation of
 * the object is under way. */
static uint64_t owner_incarnation(const tether_rref *rref)
{
    return rref->user.owner_incarnation ? rref->user.owner_incarnation
                                        : tether__peer_start(rref->user.owner.peer);
}

/* Returns the session in which the creation call is to reach the owner, if this worker creates the
 * object (Ref.made_in). */
static uint64_t made_in(const struct tether__refs *refs, const tether_rref *rref)
{
    const struct tether__self *self = refs->self;
    bool we_make_it = !rref->is_owner && rref->state == TETHER_RREF_PENDING &&
                      rref->id.creator == self->id && rref->id.incarnation == self->incarnation;
    return we_make_it ? 1 + tether__peer_fences(rref->user.owner.peer) : 0;
}

/* Returns TETHER_OK if the reference may be attached to a value that the agent of `refs` sends. */
static tether_status may_send_locked(const struct tether__refs *refs,
                                     const tether_rref *rref,
                                     tether_error *reterr)
{
    if (rref->context != refs && !atomic_load(&rref->context->detached))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "passing on a reference: it belongs to another agent of this "
                                "process; pass it on with the agent that made or received it");
    tether_status st = tether__rref_usable_locked(rref, reterr);
    return st == TETHER_OK ? st : tether_error_wrap(reterr, st, "passing on a reference");
}

tether_status tether__refs_check(void *ext,
                                 const tether_value *value,
                                 bool sending,
                                 tether_error *reterr)
{
    struct tether__refs *refs = ext;
    tether_status st = TETHER_OK;
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; st == TETHER_OK && i < value->n_attached; i++) {
        const tether_rref *rref = attached_rref(value, i);
        if (sending)
            st = may_send_locked(refs, rref, reterr);
        else if (!rref->is_owner)
            st = tether__rref_usable_locked(rref, reterr);
    }
    pthread_mutex_unlock(&refs->mu);
    return st;
}

/* Adds a fork or a pin of one reference for `peer`, and fills its description in the message. */
static tether_status pack_one_locked(struct tether__refs *refs,
                                     struct tether__peer *peer,
                                     tether_rref *rref,
                                     bool pin, /* pin the reference even if `peer` is its owner */
                                     struct packed_ref *item,
                                     tether_error *reterr)
{
    struct tether__ref_session receiver = {peer, tether__peer_session(peer)};
    tether_status st = may_send_locked(refs, rref, reterr);
    if (st != TETHER_OK)
        return st;
    tether_rref_id fork = {0, 0, 0};
    if (rref->is_owner) {
        fork = tether__refs_new_id(refs);
        st = tether__owner_add_locked(rref);
        if (st == TETHER_OK)
            st = tether__fork_add_locked(rref, fork, receiver);
        item->is_fork = st == TETHER_OK;
    } else if (rref->user.owner.peer == peer && rref->user.owner.number != receiver.number) {
        return tether_error_set(reterr, TETHER_EOWNERDIED,
                                "the owner of the object is lost: make it anew elsewhere");
    } else if (rref->user.owner.peer != peer || pin) {
        fork = tether__refs_new_id(refs);
        st = tether__child_add_locked(refs, rref, fork, receiver);
        item->is_child = st == TETHER_OK;
    }
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "no memory to pass on a reference");
    item->rref = rref;
    item->ref = (Tether__Ref)TETHER__REF__INIT;
    item->id = tether__wire_id(rref->id);
    item->fork = tether__wire_id(fork);
    item->ref.id = &item->id;
    if (tether__id_is_set(fork))
        item->ref.fork = &item->fork;
    item->ref.owner = rref->is_owner ? refs->self->id : tether__rref_owner_id(rref);
    item->ref.owner_incarnation =
        rref->is_owner ? refs->self->incarnation : owner_incarnation(rref);
    item->ref.owner_name = (char *)(rref->is_owner ? tether_agent_name(refs->agent)
                                                   : tether__peer_name(rref->user.owner.peer));
    item->ref.type = (char *)(rref->type ? rref->type : "");
    item->ref.made_in = made_in(refs, rref);
    return TETHER_OK;
}

tether_status tether__refs_encode_locked(void *ext,
                                         struct tether__peer *peer,
                                         const tether_value *value,
                                         bool may_be_overtaken,
                                         struct tether__ref_pack *ret_pack,
                                         tether_error *reterr)
{
    struct tether__refs *refs = ext;
    size_t n = value->n_attached;
    struct pack_memory *memory =
        tether__calloc(1, sizeof *memory + n * (sizeof *memory->refs + sizeof *memory->items));
    if (!memory)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory to pass on references");
    memory->items = (struct packed_ref *)(void *)&memory->refs[n];
    tether_status st = TETHER_OK;
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; st == TETHER_OK && i < n; i++) {
        memory->refs[i] = &memory->items[i].ref;
        st = pack_one_locked(refs, peer, attached_rref(value, i), may_be_overtaken,
                             &memory->items[i], reterr);
        if (st == TETHER_OK)
            memory->n++;
    }
    pthread_mutex_unlock(&refs->mu);
    *ret_pack = (struct tether__ref_pack){n, memory->refs, memory};
    if (st != TETHER_OK)
        tether__refs_encode_end_locked(refs, peer, ret_pack, false);
    return st;
}
