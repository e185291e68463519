/* Publishes the leader's state: first the assignments that have changed, then the summary, then the
 * "done" key that wakes the nodes that wait for the round.
 *
 * Assignments come before the summary, so a node that reads the summary and then its assignment
 * never has an assignment older than the summary. The state is written before both, so an
 * assignment that is newer than the summary is correct, too.
 */
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/elastic/coordination/internal.h"

/* An assignment that the leader has written to the store. */
struct published {
    tether_bytes key; /* the node as text; key of the map `published` */
    struct tether__rdzv_assignment assignment;
    uint64_t edition; /* the last edition in which the node was in a list */
    char node[];
};

/* Assignments to write now. */
struct changes {
    struct tether__rdzv_named_assignment *assignments;
    struct published **entries;
    size_t n, cap;
};

static tether_status no_memory(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ENOMEM, "out of memory to publish the rendezvous state");
}

static bool same_assignment(const struct tether__rdzv_assignment *a,
                            const struct tether__rdzv_assignment *b)
{
    return a->list == b->list && a->round == b->round && a->complete == b->complete &&
           a->rank == b->rank && a->world_size == b->world_size;
}

static struct published *entry_of(struct tether__rdzv_leadership *lead,
                                  const struct tether__rdzv_node *node)
{
    char text[TETHER__RDZV_NODE_TEXT];
    tether_bytes key = tether_bytes_str(tether__rdzv_node_format(node, text));
    void *found = tether__map_get(&lead->published, &key);
    if (found)
        return tether__container_of(found, struct published, key);
    struct published *entry = tether__calloc(1, sizeof *entry + key.len + 1);
    if (!entry)
        return NULL;
    memcpy(entry->node, text, key.len + 1);
    entry->key = tether_bytes_of(entry->node, key.len);
    if (tether__map_put(&lead->published, &entry->key) != TETHER_OK)
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
    const struct tether__rdzv_state *state = &member->leadership->full.state;
    for (size_t i = 0; i < roster->n && *st == TETHER_OK; i++) {
        struct published *entry = entry_of(member->leadership, &roster->members[i]->node);
        if (!entry) {
            *st = TETHER_ENOMEM;
            return;
        }
        entry->edition = edition;
        struct tether__rdzv_assignment assignment = {.list = list};
        if (list == TETHER__RDZV_PARTICIPANTS) {
            assignment.round = state->round;
            assignment.complete = state->complete;
            if (state->complete) {
                assignment.rank = roster->members[i]->rank;
                assignment.world_size = state->world_size;
            }
        }
        if (same_assignment(&entry->assignment, &assignment))
            continue;
        changes->assignments[changes->n] =
            (struct tether__rdzv_named_assignment){entry->node, assignment};
        changes->entries[changes->n++] = entry;
    }
}

/* Deletes the keys of nodes that are in no list any more. */
static void delete_departed(struct tether__rdzv_member_holder *member,
                            uint64_t edition,
                            int timeout_ms)
{
    struct tether__rdzv_leadership *lead = member->leadership;
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_bytes *key; (key = tether__map_next(&lead->published, &it));) {
        struct published *entry = tether__container_of(key, struct published, key);
        if (entry->edition == edition)
            continue;
        tether__rdzv_assignment_delete(member->store, member->summary.value.term, entry->node,
                                       timeout_ms);
        if (lead->former_term)
            tether__rdzv_assignment_delete(member->store, lead->former_term, entry->node,
                                           timeout_ms);
        tether__rdzv_heartbeat_delete(&member->heartbeats, entry->node, timeout_ms);
        tether__map_del(&lead->published, key);
        tether__free(entry);
    }
}

static tether_status publish_assignments(struct tether__rdzv_member_holder *member,
                                         uint64_t edition,
                                         int timeout_ms,
                                         tether_error *reterr)
{
    const struct tether__rdzv_state *state = &member->leadership->full.state;
    size_t n = state->participants.n + state->wait_list.n + state->redundancy_list.n;
    struct changes changes = {
        .assignments = tether__calloc(n + 1, sizeof *changes.assignments),
        .entries = tether__calloc(n + 1, sizeof *changes.entries),
        .cap = n,
    };
    tether_status st = changes.assignments && changes.entries ? TETHER_OK : TETHER_ENOMEM;
    add_changes(member, &state->participants, TETHER__RDZV_PARTICIPANTS, edition, &changes, &st);
    add_changes(member, &state->wait_list, TETHER__RDZV_WAIT_LIST, edition, &changes, &st);
    add_changes(member, &state->redundancy_list, TETHER__RDZV_REDUNDANCY_LIST, edition, &changes,
                &st);
    if (st != TETHER_OK)
        no_memory(reterr);
    else
        st = tether__rdzv_assignment_write(member->store, member->summary.value.term,
                                           changes.assignments, changes.n, timeout_ms, reterr);
    for (size_t i = 0; i < changes.n && st == TETHER_OK; i++)
        changes.entries[i]->assignment = changes.assignments[i].assignment;
    tether__free(changes.assignments);
    tether__free(changes.entries);
    if (st == TETHER_OK)
        delete_departed(member, edition, timeout_ms);
    return st;
}

static void fill_summary(const struct tether__rdzv_member_holder *member,
                         struct tether__rdzv_summary *summary)
{
    const struct tether__rdzv_state *state = &member->leadership->full.state;
    summary->round = state->round;
    summary->complete = state->complete;
    summary->closed = state->closed;
    summary->world_size = state->world_size;
    summary->counts = (struct tether__rdzv_others){state->participants.n, state->wait_list.n,
                                                   state->redundancy_list.n};
    summary->applied = state->applied;
    summary->last_call = state->deadline != TETHER__NEVER;
    if (summary->last_call) {
        int64_t left = state->deadline - tether__rdzv_now(member->env);
        summary->last_calls = state->last_calls;
        summary->last_call_left_ms = left > 0 ? left / TETHER__NS_PER_MS : 0;
    }
}

tether_status tether__rdzv_publish(struct tether__rdzv_member_holder *member,
                                   int timeout_ms,
                                   tether_error *reterr)
{
    struct tether__rdzv_leadership *lead = member->leadership;
    const struct tether__rdzv_state *state = &lead->full.state;
    int64_t now = tether__rdzv_now(member->env);
    bool beat_due = now - member->summary.changed_at >= tether__rdzv_interval_ns(member);
    if (!lead->unpublished && !beat_due)
        return TETHER_OK;
    struct tether__rdzv_summary summary = member->summary.value;
    summary.beat++;
    if (lead->unpublished) {
        summary.edition++;
        summary.assignments_term = summary.term;
        tether_status st = publish_assignments(member, summary.edition, timeout_ms, reterr);
        if (st != TETHER_OK)
            return st;
        fill_summary(member, &summary);
    }
    bool swapped = false;
    tether_status st = tether__rdzv_summary_swap(member->store, &summary, timeout_ms,
                                                 &member->summary.raw, &swapped, reterr);
    if (st != TETHER_OK)
        return st;
    if (!swapped) {
        tether__rdzv_lead_end(member, false, timeout_ms);
        return TETHER_OK;
    }
    member->summary.value = summary;
    member->summary.changed_at = now;
    if (!lead->unpublished)
        return TETHER_OK;

    if (state->complete && lead->announced != state->round + 1) {
        st = tether__rdzv_done_write(member->store, state->round, timeout_ms, reterr);
        if (st != TETHER_OK)
            return st;
        lead->announced = state->round + 1;
    }
    tether__rdzv_request_delete(member->store, lead->deleted + 1, state->applied, timeout_ms);
    lead->deleted = state->applied;
    lead->unpublished = false;
    return TETHER_OK;
}

void tether__rdzv_publish_fini(struct tether__rdzv_leadership *lead)
{
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_bytes *key; (key = tether__map_next(&lead->published, &it));) {
        tether__map_del(&lead->published, key);
        tether__free(tether__container_of(key, struct published, key));
    }
}
