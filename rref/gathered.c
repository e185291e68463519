/* The two messages that gather in the outbox of a session (rpc/peer/outbox.h): user-delete and
 * child-accept. */
#include "base/alloc.h"
#include "rpc/peer/outbox.h"
#include "rpc/wire/packed.h"
#include "rref/context.h"

/* The ids of one message, one array per number (see RefIds). */
struct columns {
    Tether__RefIds ids;
    uint32_t creator[TETHER__MAX_IDS];
    uint64_t incarnation[TETHER__MAX_IDS], counter[TETHER__MAX_IDS];
};
_Static_assert(TETHER__MAX_IDS >= TETHER__OUTBOX_PER_MESSAGE, "the ids of one message fit");

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

/* ---- User-delete ---- */

static tether_status pack_deletes(const struct tether__outbox_item *first,
                                  size_t n,
                                  struct tether__packed *ret_packed)
{
    struct columns objects, forks;
    Tether__UserDelete message = TETHER__USER_DELETE__INIT;
    columns_init(&objects);
    columns_init(&forks);
    for (const struct tether__outbox_item *item = first; n > 0; item = item->next, n--) {
        const tether_rref *rref = tether__container_of(item, const struct tether_rref, outgoing);
        columns_add(&objects, rref->id);
        columns_add(&forks, rref->user.fork);
    }
    message.object = &objects.ids;
    message.fork = &forks.ids;
    return tether__pack(ret_packed, &message.base);
}

static void delete_done(struct tether__outbox_item *item)
{
    tether_rref *rref = tether__container_of(item, struct tether_rref, outgoing);
    tether__refs_count_message(rref->context, -1);
    tether__rref_free(rref);
}

void tether__refs_queue_delete(tether_rref *rref)
{
    static const struct tether__outbox_kind kind = {
        .frame = TETHER__FRAME_USER_DELETE,
        .turn = TETHER__OUTBOX_LATER,
        .pack = pack_deletes,
        .done = delete_done,
    };
    tether__refs_count_message(rref->context, 1);
    rref->outgoing.kind = &kind;
    tether__outbox_post(rref->user.owner.peer, rref->user.owner.number, &rref->outgoing);
}

/* ---- Child-accept ---- */

struct tether__accept *tether__accept_new(struct tether__refs *refs,
                                          tether_rref_id fork,
                                          struct tether__ref_session parent)
{
    struct tether__accept *accept = tether__malloc(sizeof *accept);
    if (!accept)
        return NULL;
    *accept = (struct tether__accept){.refs = refs, .fork = fork, .parent = parent};
    tether__peer_retain(parent.peer);
    return accept;
}

void tether__accept_free(struct tether__accept *accept)
{
    if (accept)
        tether__peer_release(accept->parent.peer);
    tether__free(accept);
}

static tether_status pack_accepts(const struct tether__outbox_item *first,
                                  size_t n,
                                  struct tether__packed *ret_packed)
{
    struct columns forks;
    Tether__ChildAccept message = TETHER__CHILD_ACCEPT__INIT;
    columns_init(&forks);
    for (const struct tether__outbox_item *item = first; n > 0; item = item->next, n--)
        columns_add(&forks, tether__container_of(item, const struct tether__accept, item)->fork);
    message.fork = &forks.ids;
    return tether__pack(ret_packed, &message.base);
}

/* A thread that writes to the peer holds a count of the peer, too, so this is never the last one.
 */
static void accept_done(struct tether__outbox_item *item)
{
    struct tether__accept *accept = tether__container_of(item, struct tether__accept, item);
    tether__refs_count_message(accept->refs, -1);
    tether__accept_free(accept);
}

void tether__refs_queue_accept(struct tether__accept *accept)
{
    static const struct tether__outbox_kind kind = {
        .frame = TETHER__FRAME_CHILD_ACCEPT,
        .turn = TETHER__OUTBOX_SOONER,
        .pack = pack_accepts,
        .done = accept_done,
    };
    if (!accept)
        return;
    tether__refs_count_message(accept->refs, 1);
    accept->item.kind = &kind;
    tether__outbox_post(accept->parent.peer, accept->parent.number, &accept->item);
}
