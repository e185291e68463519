/* References on their way out: forks made when a value is sent, and the two messages that gather
 * for a peer (user-delete, child-accept) until something is written to it.
 *
 * Who keeps what alive (design §4): a reference to our own object becomes a fork, held by the peer,
 * at the moment the message is queued. One passed from user to user is pinned here until the
 * receiver accepts. One that goes back to its owner in a call needs neither: the lane brings it
 * before any later delete of ours. In a reply it is pinned, for replies travel on another stream
 * than deletes; and in a call that goes in pieces, for a delete could overtake it.
 */
#include <string.h>

#include "base/alloc.h"
#include "rpc/packed.h"
#include "rref/context.h"

#define MAX_ITEMS 256 /* of one user-delete or child-accept */

/* How long user-deletes and child-accepts wait for something to ride on. Nobody waits for them, and
 * a message of their own costs as much as a call. */
#define GATHER_NS TETHER__NS_PER_MS

struct packed_ref {
    Tether__Ref ref;
    Tether__RefId id, fork;
    tether_rref *rref;
    bool is_fork, is_child;
};

struct pack_memory {
    size_t n;
    struct packed_ref *items; /* behind the pointers */
    Tether__Ref *refs[];
};

static tether_rref *rider_rref(const tether_value *value, size_t i)
{
    return tether__container_of(value->riders[i], struct tether_rref, rider);
}

void tether__refs_pack_fini(struct tether__ref_pack *pack)
{
    tether__free(pack->memory);
    memset(pack, 0, sizeof *pack);
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
    /* The value still holds each of them: nothing was collected. */
}

void tether__refs_undo_locked(void *ext, struct tether__peer *peer, struct tether__ref_pack *pack)
{
    undo_items_locked(ext, peer, pack->memory);
    tether__refs_pack_fini(pack);
}

/* One that we are just making may be made by whichever start of the owner we meet. */
static uint64_t owner_incarnation(const tether_rref *rref)
{
    return rref->user.owner_incarnation ? rref->user.owner_incarnation
                                        : atomic_load(&rref->user.owner.peer->incarnation);
}

/* Which session the call is to bring the object in, when it is we who make it (Ref.made_in). */
static uint64_t made_in(const struct tether__refs *refs, const tether_rref *rref)
{
    const struct tether__self *self = &refs->agent->self;
    bool we_make_it = !rref->is_owner && rref->state == TETHER_RREF_PENDING &&
                      rref->id.creator == self->id && rref->id.incarnation == self->incarnation;
    return we_make_it ? 1 + atomic_load(&rref->user.owner.peer->fences) : 0;
}

/* Whether it may ride on a value that the agent of `refs` sends. */
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
    for (size_t i = 0; st == TETHER_OK && i < value->n_riders; i++) {
        const tether_rref *rref = rider_rref(value, i);
        if (sending)
            st = may_send_locked(refs, rref, reterr);
        else if (!rref->is_owner)
            st = tether__rref_usable_locked(rref, reterr);
    }
    pthread_mutex_unlock(&refs->mu);
    return st;
}

/* Forks or pins one reference for `peer`, and describes it. */
static tether_status pack_one_locked(struct tether__refs *refs,
                                     struct tether__peer *peer,
                                     tether_rref *rref,
                                     bool pin, /* also from its owner */
                                     struct packed_ref *item,
                                     tether_error *reterr)
{
    tether_agent *agent = refs->agent;
    struct tether__party receiver = {peer, peer->session_epoch};
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
    } else if (rref->user.owner.peer == peer && rref->user.owner.epoch != peer->session_epoch) {
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
    item->ref.owner = rref->is_owner ? agent->self.id : tether__rref_owner_id(rref);
    item->ref.owner_incarnation =
        rref->is_owner ? agent->self.incarnation : owner_incarnation(rref);
    item->ref.owner_name = rref->is_owner ? agent->name : rref->user.owner.peer->name;
    item->ref.type = (char *)(rref->type ? rref->type : "");
    item->ref.made_in = made_in(refs, rref);
    return TETHER_OK;
}

tether_status tether__refs_pack_locked(void *ext,
                                       struct tether__peer *peer,
                                       const tether_value *value,
                                       bool in_reply,
                                       struct tether__ref_pack *ret_pack,
                                       tether_error *reterr)
{
    struct tether__refs *refs = ext;
    size_t n = value->n_riders;
    struct pack_memory *memory =
        tether__calloc(1, sizeof *memory + n * (sizeof *memory->refs + sizeof *memory->items));
    if (!memory)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory to pass on references");
    memory->items = (struct packed_ref *)(void *)&memory->refs[n];
    bool pin = in_reply || tether__lane_in_pieces(&peer->out.lane, tether_value_bytes(value).len);
    tether_status st = TETHER_OK;
    pthread_mutex_lock(&refs->mu);
    for (size_t i = 0; st == TETHER_OK && i < n; i++) {
        memory->refs[i] = &memory->items[i].ref;
        st = pack_one_locked(refs, peer, rider_rref(value, i), pin, &memory->items[i], reterr);
        if (st == TETHER_OK)
            memory->n++;
    }
    pthread_mutex_unlock(&refs->mu);
    *ret_pack = (struct tether__ref_pack){n, memory->refs, memory};
    if (st != TETHER_OK)
        tether__refs_undo_locked(refs, peer, ret_pack);
    return st;
}

/* ---- What gathers for a peer ---- */

/* What has gathered leaves with the next message, soon, or when there is a stream; unlocks the
 * peer. */
static void send_gathered_and_unlock(struct tether__peer *peer)
{
    if (!peer->out.conn)
        tether__peer_connect_locked(peer);
    else if (peer->gather_due == TETHER__NEVER)
        peer->gather_due = tether__clock_now_ns(peer->agent->clock) + GATHER_NS;
    int64_t due = peer->next_dial < peer->gather_due ? peer->next_dial : peer->gather_due;
    pthread_mutex_unlock(&peer->mu);
    tether__agent_kick(peer->agent, due);
}

/* Sets peer->ext_deletes (a list by `next`, of collected entries that nobody else sees). */
void tether__refs_queue_delete(tether_rref *rref)
{
    struct tether__peer *peer = rref->user.owner.peer;
    pthread_mutex_lock(&peer->mu);
    if (rref->user.owner.epoch != peer->session_epoch) { /* the owner has forgotten us already */
        pthread_mutex_unlock(&peer->mu);
        tether__rref_free(rref);
        return;
    }
    atomic_fetch_add_explicit(&rref->context->n_told, 1, memory_order_relaxed);
    rref->next = peer->ext_deletes;
    peer->ext_deletes = rref;
    tether__refs_count_message(rref->context, 1);
    send_gathered_and_unlock(peer);
}

void tether__refs_queue_accept(struct tether__accept *accept)
{
    if (!accept)
        return;
    struct tether__peer *peer = accept->parent.peer;
    pthread_mutex_lock(&peer->mu);
    if (accept->parent.epoch != peer->session_epoch) {
        pthread_mutex_unlock(&peer->mu);
        tether__free(accept);
        return;
    }
    struct tether__refs *refs = peer->agent->ext;
    atomic_fetch_add_explicit(&refs->n_told, 1, memory_order_relaxed);
    accept->next = peer->ext_accepts;
    peer->ext_accepts = accept;
    tether__refs_count_message(peer->agent->ext, 1);
    send_gathered_and_unlock(peer);
}

uint64_t tether__refs_told(void *ext, bool *ret_under_way)
{
    struct tether__refs *refs = ext;
    struct tether__peer *peer;
    *ret_under_way = false;
    for (size_t i = 0; (peer = tether__agent_peer_at(refs->agent, i)); i++) {
        pthread_mutex_lock(&peer->mu);
        *ret_under_way |= !peer->is_self && (peer->ext_deletes || peer->ext_accepts ||
                                             peer->out.lane.unacked_bytes > 0);
        pthread_mutex_unlock(&peer->mu);
        tether__peer_release(peer);
    }
    return atomic_load(&refs->n_told);
}

/* Both lists have the latest first, so what is of later sessions is in front. */
void tether__refs_drop_gathered(struct tether__peer *peer,
                                uint64_t epoch,
                                tether_rref **ret_deletes,
                                struct tether__accept **ret_accepts)
{
    pthread_mutex_lock(&peer->mu);
    tether_rref *newer = NULL, *deletes = peer->ext_deletes;
    for (; deletes && deletes->user.owner.epoch > epoch; deletes = deletes->next)
        newer = deletes;
    struct tether__accept *newer_accept = NULL, *accepts = peer->ext_accepts;
    for (; accepts && accepts->parent.epoch > epoch; accepts = accepts->next)
        newer_accept = accepts;
    if (newer)
        newer->next = NULL;
    else
        peer->ext_deletes = NULL;
    if (newer_accept)
        newer_accept->next = NULL;
    else
        peer->ext_accepts = NULL;
    pthread_mutex_unlock(&peer->mu);
    *ret_deletes = deletes;
    *ret_accepts = accepts;
}

/* Ids of one message, by columns. */
struct columns {
    Tether__RefIds ids;
    uint32_t creator[MAX_ITEMS];
    uint64_t incarnation[MAX_ITEMS], counter[MAX_ITEMS];
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
        st = tether__lane_send(&peer->out.lane, kind, packed.bytes, TETHER__SLICE_EMPTY, NULL);
        may_pass = st == TETHER_ENOMEM; /* another attempt makes a message no shorter */
        tether__packed_fini(&packed);
    }
    if (st != TETHER_OK)
        tether__peer_control_failed_locked(peer, may_pass);
    return st == TETHER_OK;
}

/* Packs up to MAX_ITEMS deletes of the present session into one message; drops those of former
 * ones. False: nothing could be queued now. */
static bool write_deletes_locked(struct tether__peer *peer)
{
    struct columns objects, forks;
    Tether__UserDelete message = TETHER__USER_DELETE__INIT;
    tether_rref *rest = peer->ext_deletes;
    size_t n = 0;
    columns_init(&objects);
    columns_init(&forks);
    for (; rest && n < MAX_ITEMS; rest = rest->next) {
        if (rest->user.owner.epoch != peer->session_epoch)
            continue;
        columns_add(&objects, rest->id);
        columns_add(&forks, rest->user.fork);
        n++;
    }
    message.object = &objects.ids;
    message.fork = &forks.ids;
    if (n && !write_message_locked(peer, TETHER__FRAME_USER_DELETE, &message.base))
        return false; /* they stay for the next attempt */
    peer->control_failures = 0;
    for (tether_rref *rref = peer->ext_deletes, *next; rref != rest; rref = next) {
        next = rref->next;
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
    for (; rest && n < MAX_ITEMS; rest = rest->next) {
        if (rest->parent.epoch != peer->session_epoch)
            continue;
        columns_add(&forks, rest->fork);
        n++;
    }
    message.fork = &forks.ids;
    if (n && !write_message_locked(peer, TETHER__FRAME_CHILD_ACCEPT, &message.base))
        return false; /* they stay for the next attempt */
    peer->control_failures = 0;
    for (struct tether__accept *accept = peer->ext_accepts, *next; accept != rest; accept = next) {
        next = accept->next;
        tether__refs_count_message(peer->agent->ext, -1);
        tether__free(accept);
    }
    peer->ext_accepts = rest;
    return true;
}

void tether__refs_before_write_locked(void *ext,
                                      struct tether__peer *peer,
                                      struct tether__link *link)
{
    (void)ext;
    if (link != &peer->out || peer->control_due != TETHER__NEVER)
        return;
    peer->gather_due = TETHER__NEVER;
    while (peer->ext_accepts && write_accepts_locked(peer))
        ;
    while (peer->control_due == TETHER__NEVER && peer->ext_deletes && write_deletes_locked(peer))
        ;
}
