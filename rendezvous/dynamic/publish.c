/* How the leader tells the others: each node's place where it has changed, then the head, then the
 * note that wakes those who wait for the round.
 *
 * Places before the head: a node that reads the head and then its place never has a place older
 * than the head. The state is in force before either, so a place that is a moment ahead of the head
 * is true as well.
 */
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/dynamic/member_internal.h"

/* A place that has been written. */
struct published {
    tether_bytes key; /* the node, as text: first, as the map wants it */
    struct tether__rdzv_place place;
    uint64_t edition; /* of the head that last had it */
    char node[];
};

/* Places to be written now. */
struct changes {
    struct tether__rdzv_placing *placings;
    struct published **entries;
    size_t n, cap;
};

static tether_status no_memory(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ENOMEM, "no memory to publish the rendezvous state");
}

static bool same_place(const struct tether__rdzv_place *a, const struct tether__rdzv_place *b)
{
    return a->list == b->list && a->round == b->round && a->complete == b->complete &&
           a->rank == b->rank && a->world_size == b->world_size;
}

static struct published *entry_of(struct tether__rdzv_member_holder *member,
                                  const struct tether__rdzv_node *node)
{
    char text[TETHER__RDZV_NODE_TEXT];
    tether_bytes key = tether_bytes_str(tether__rdzv_node_format(node, text));
    void *found = tether__map_get(&member->published, &key);
    if (found)
        return tether__container_of(found, struct published, key);
    struct published *entry = tether__calloc(1, sizeof *entry + key.len + 1);
    if (!entry)
        return NULL;
    memcpy(entry->node, text, key.len + 1);
    entry->key = tether_bytes_of(entry->node, key.len);
    if (tether__map_put(&member->published, &entry->key) != TETHER_OK)
        return tether__free(entry);
    return entry;
}

static void add_changes(struct tether__rdzv_member_holder *member,
                        const struct tether__rdzv_roster *roster,
                        enum tether__rdzv_list list,
                        uint64_t edition,
                        struct changes *changes,
                        tether_status *st)
{
    const struct tether__rdzv_state *state = &member->full.state;
    for (size_t i = 0; i < roster->n && *st == TETHER_OK; i++) {
        struct published *entry = entry_of(member, &roster->members[i]->node);
        if (!entry) {
            *st = TETHER_ENOMEM;
            return;
        }
        entry->edition = edition;
        struct tether__rdzv_place place = {.list = list};
        if (list == TETHER__RDZV_PARTICIPANTS) {
            place.round = state->round;
            place.complete = state->complete;
            if (state->complete) {
                place.rank = roster->members[i]->rank;
                place.world_size = state->world_size;
            }
        }
        if (same_place(&entry->place, &place))
            continue;
        changes->placings[changes->n] = (struct tether__rdzv_placing){entry->node, place};
        changes->entries[changes->n++] = entry;
    }
}

/* Nodes that are in no list any more leave nothing behind. */
static void forget_gone(struct tether__rdzv_member_holder *member, uint64_t edition, int timeout_ms)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_bytes *key; (key = tether__map_next(&member->published, &it));) {
        struct published *entry = tether__container_of(key, struct published, key);
        if (entry->edition == edition)
            continue;
        tether__rdzv_place_forget(&member->notes, member->head.term, entry->node, timeout_ms);
        if (member->places_before)
            tether__rdzv_place_forget(&member->notes, member->places_before, entry->node,
                                      timeout_ms);
        tether__rdzv_pulse_forget(&member->pulse, entry->node, timeout_ms);
        tether__map_del(&member->published, key);
        tether__free(entry);
    }
}

static tether_status publish_places(struct tether__rdzv_member_holder *member,
                                    uint64_t edition,
                                    int timeout_ms,
                                    tether_error *reterr)
{
    const struct tether__rdzv_state *state = &member->full.state;
    size_t n = state->participants.n + state->wait_list.n + state->redundancy_list.n;
    struct changes changes = {
        .placings = tether__calloc(n + 1, sizeof *changes.placings),
        .entries = tether__calloc(n + 1, sizeof *changes.entries),
        .cap = n,
    };
    tether_status st = changes.placings && changes.entries ? TETHER_OK : TETHER_ENOMEM;
    add_changes(member, &state->participants, TETHER__RDZV_PARTICIPANTS, edition, &changes, &st);
    add_changes(member, &state->wait_list, TETHER__RDZV_WAIT_LIST, edition, &changes, &st);
    add_changes(member, &state->redundancy_list, TETHER__RDZV_REDUNDANCY_LIST, edition, &changes,
                &st);
    if (st != TETHER_OK)
        no_memory(reterr);
    else
        st = tether__rdzv_place_write(&member->notes, member->head.term, changes.placings,
                                      changes.n, timeout_ms, reterr);
    for (size_t i = 0; i < changes.n && st == TETHER_OK; i++)
        changes.entries[i]->place = changes.placings[i].place;
    tether__free(changes.placings);
    tether__free(changes.entries);
    if (st == TETHER_OK)
        forget_gone(member, edition, timeout_ms);
    return st;
}

static void fill_head(const struct tether__rdzv_member_holder *member,
                      struct tether__rdzv_head *head)
{
    const struct tether__rdzv_state *state = &member->full.state;
    head->round = state->round;
    head->complete = state->complete;
    head->closed = state->closed;
    head->world_size = state->world_size;
    head->counts = (struct tether__rdzv_others){state->participants.n, state->wait_list.n,
                                                state->redundancy_list.n};
    head->folded = state->folded;
    head->last_call = state->deadline != TETHER__NEVER;
    if (head->last_call) {
        int64_t left = state->deadline - tether__rdzv_now(member->env);
        head->last_calls = state->last_calls;
        head->last_call_left_ms = left > 0 ? left / TETHER__NS_PER_MS : 0;
    }
}

tether_status tether__rdzv_publish(struct tether__rdzv_member_holder *member,
                                   int timeout_ms,
                                   tether_error *reterr)
{
    const struct tether__rdzv_state *state = &member->full.state;
    int64_t now = tether__rdzv_now(member->env);
    bool beat_due = now - member->head_heard_at >= tether__rdzv_interval_ns(member);
    if (!member->unpublished && !beat_due)
        return TETHER_OK;
    struct tether__rdzv_head head = member->head;
    head.beat++;
    if (member->unpublished) {
        head.edition++;
        head.places = head.term;
        tether_status st = publish_places(member, head.edition, timeout_ms, reterr);
        if (st != TETHER_OK)
            return st;
        fill_head(member, &head);
    }
    bool swapped = false;
    tether_status st = tether__rdzv_head_swap(&member->notes, &head, timeout_ms, &member->head_raw,
                                              &swapped, reterr);
    if (st != TETHER_OK)
        return st;
    if (!swapped) {
        tether__rdzv_lead_end(member, false, timeout_ms);
        return TETHER_OK;
    }
    member->head = head;
    member->head_heard_at = now;
    if (!member->unpublished)
        return TETHER_OK;

    bool announced = member->round_announced && member->announced_round == state->round;
    if (state->complete && !announced) {
        st = tether__rdzv_done_write(&member->notes, state->round, timeout_ms, reterr);
        if (st != TETHER_OK)
            return st;
        member->round_announced = true;
        member->announced_round = state->round;
    }
    tether__rdzv_wish_forget(&member->notes, member->forgotten + 1, state->folded, timeout_ms);
    member->forgotten = state->folded;
    member->unpublished = false;
    return TETHER_OK;
}

void tether__rdzv_publish_fini(struct tether__rdzv_member_holder *member)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_bytes *key; (key = tether__map_next(&member->published, &it));) {
        tether__map_del(&member->published, key);
        tether__free(tether__container_of(key, struct published, key));
    }
}
