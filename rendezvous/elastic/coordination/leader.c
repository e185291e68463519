/* The leader's part of a member: it keeps the state for all nodes.
 *
 * Each sync() applies the requests that have arrived (apply.c), reads the heartbeats when it is
 * time to, writes the changed state in one compare-and-set, and publishes it (publish.c).
 *
 * The state is written at most once per 100 us for each node in it. So ten thousand nodes that join
 * within a second cause one or two writes, not ten thousand.
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "rendezvous/elastic/coordination/internal.h"

/* least time between two writes, for each node in the state */
#define WRITE_GAP_NS INT64_C(100000)
#define MAX_WRITE_GAP_NS TETHER__NS_PER_S
#define RETRY_NS (100 * TETHER__NS_PER_MS)
#define MAX_ATTEMPTS 8

/* ---- Sync ----------------------------------------------------------------------------------- */

/* Removes the leader before this one if its heartbeats stopped. The lists may still call it alive:
 * followers watch the leader's beat in the summary. */
static void drop_dead_leader(struct tether__rdzv_member_holder *member, int timeout_ms)
{
    struct tether__rdzv_leadership *lead = member->leadership;
    struct tether__rdzv_state *state = &lead->full.state;
    char text[TETHER__RDZV_NODE_TEXT];
    if (lead->dead_leader[0] == '\0')
        return;
    for (size_t i = 0; i < state->last_heartbeats.n; i++) {
        struct tether__rdzv_member *heard = state->last_heartbeats.members[i];
        if (strcmp(tether__rdzv_node_format(&heard->node, text), lead->dead_leader) == 0)
            heard->heard_at = INT64_MIN;
    }
    tether__rdzv_state_sanitize(state, INT64_MIN + 1, (size_t)member->settings->min_nodes);
    tether__rdzv_assignment_delete(member->store, lead->former_term, lead->dead_leader, timeout_ms);
    tether__rdzv_heartbeat_delete(&member->heartbeats, lead->dead_leader, timeout_ms);
    lead->dead_leader[0] = '\0';
}

/* Applies a request of this node itself, which needs no key in the store. */
static tether_status apply_own(struct tether__rdzv_member_holder *member,
                               const struct tether__rdzv_request *request,
                               enum tether__rdzv_request_kind kind,
                               tether_error *reterr)
{
    if (request->state != TETHER__RDZV_REQUEST_WANTED)
        return TETHER_OK;
    return tether__rdzv_apply_request(member, kind, member->self, reterr);
}

/* Starts the term: reads the state that the last leader left and applies this node's requests. */
static tether_status start_term(struct tether__rdzv_member_holder *member,
                                int64_t deadline,
                                tether_error *reterr)
{
    enum tether__rdzv_sync sync;
    struct tether__rdzv_leadership *lead = member->leadership;
    struct tether__rdzv_holder *full = &lead->full.base;
    tether_status st = full->ops->sync(full, deadline, &sync, reterr);
    if (st != TETHER_OK)
        return st;
    drop_dead_leader(member, tether__rdzv_io_ms(member->env, deadline));
    lead->full.state.term = member->summary.value.term;
    lead->full.dirty = true;
    st = apply_own(member, &member->leave, TETHER__RDZV_LEAVE, reterr);
    if (st == TETHER_OK)
        st = apply_own(member, &member->join, TETHER__RDZV_JOIN, reterr);
    if (st == TETHER_OK)
        st = apply_own(member, &member->close, TETHER__RDZV_CLOSE, reterr);
    if (st != TETHER_OK)
        return st;
    lead->new_term = false;
    lead->deleted = lead->full.state.applied;
    return TETHER_OK;
}

/* Brings requests, missing heartbeats and elapsed time into the state. */
static tether_status update_state(struct tether__rdzv_member_holder *member,
                                  int64_t deadline,
                                  tether_error *reterr)
{
    size_t dead = 0;
    struct tether__rdzv_backend_holder *full = &member->leadership->full;
    int timeout_ms = tether__rdzv_io_ms(member->env, deadline);
    tether_status st = tether__rdzv_apply_requests(member, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = tether__rdzv_backend_holder_listen(full, deadline, &dead, reterr);
    if (st == TETHER_OK && dead > 0)
        full->dirty = true;
    if (st == TETHER_OK)
        st = tether__rdzv_advance_round(member, reterr);
    return st;
}

tether_status tether__rdzv_lead_sync(struct tether__rdzv_member_holder *member,
                                     int64_t deadline,
                                     enum tether__rdzv_sync *ret_sync,
                                     tether_error *reterr)
{
    struct tether__rdzv_leadership *lead = member->leadership;
    struct tether__rdzv_holder *full = &lead->full.base;
    int timeout_ms = tether__rdzv_io_ms(member->env, deadline);
    bool dirty = member->changed || member->beat.due;
    enum tether__rdzv_sync result = dirty ? TETHER__RDZV_WRITTEN : TETHER__RDZV_CLEAN;
    tether_status st = tether__rdzv_member_beat(member, timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    if (lead->new_term)
        st = start_term(member, deadline, reterr);
    else if (member->changed)
        lead->full.dirty = true; /* the action was applied to the full state itself */
    if (st != TETHER_OK)
        return st;
    member->changed = member->left_to_leader = false;
    tether__rdzv_request_clear(&member->join);
    tether__rdzv_request_clear(&member->leave);
    tether__rdzv_request_clear(&member->close);

    for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        st = update_state(member, deadline, reterr);
        if (st != TETHER_OK)
            return st;
        if (!lead->full.dirty) {
            *ret_sync = result;
            return tether__rdzv_publish(member, timeout_ms, reterr);
        }
        enum tether__rdzv_sync written;
        st = full->ops->sync(full, deadline, &written, reterr);
        if (st != TETHER_OK)
            return st;
        if (written == TETHER__RDZV_WRITTEN) {
            lead->written_at = tether__rdzv_now(member->env);
            lead->unpublished = true;
            *ret_sync = result;
            return tether__rdzv_publish(member, timeout_ms, reterr);
        }
        /* Another leader has written the state. If it has a newer term, this node is no longer the
         * leader. */
        if (result != TETHER__RDZV_CLEAN)
            result = TETHER__RDZV_LOST;
        if (lead->full.state.term > member->summary.value.term) {
            tether__rdzv_lead_end(member, false, timeout_ms);
            *ret_sync = result;
            return TETHER_OK;
        }
        lead->full.state.term = member->summary.value.term;
        lead->full.dirty = true;
    }
    return tether_error_set(reterr, TETHER_EBUSY,
                            "other nodes changed the state %d times in a row; try again",
                            MAX_ATTEMPTS);
}

/* ---- Beginning, waiting, ending ------------------------------------------------------------- */

void tether__rdzv_leadership_free(struct tether__rdzv_leadership *lead)
{
    if (!lead)
        return;
    tether__rdzv_publish_fini(lead);
    tether__map_fini(&lead->published);
    tether__rdzv_backend_holder_fini(&lead->full);
    tether__free(lead);
}

static struct tether__rdzv_leadership *leadership_new(struct tether__rdzv_member_holder *member)
{
    struct tether__rdzv_leadership *lead = tether__calloc(1, sizeof *lead);
    if (!lead)
        return NULL;
    if (tether__map_init(&lead->published, &tether__map_bytes) != TETHER_OK)
        return tether__free(lead);
    tether__rdzv_backend_holder_init(&lead->full, member->heartbeats.backend, &member->heartbeats,
                                     member->settings, member->env, TETHER__NEVER);
    lead->new_term = lead->unpublished = true;
    return lead;
}

/* A request that was posted is in the store, so the leader applies it like all others: forget it
 * here. */
static void clear_sent(struct tether__rdzv_request *request)
{
    if (request->state == TETHER__RDZV_REQUEST_SENT)
        tether__rdzv_request_clear(request);
}

tether_status tether__rdzv_lead_begin(struct tether__rdzv_member_holder *member,
                                      int64_t deadline,
                                      bool *ret_leads,
                                      tether_error *reterr)
{
    struct tether__rdzv_summary summary = {0};
    char me[TETHER__RDZV_NODE_TEXT];
    struct tether__rdzv_leadership *lead = leadership_new(member);
    if (!lead)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory to lead the rendezvous");
    tether__rdzv_node_format(&member->self->node, me);
    if (member->summary.exists) {
        summary = member->summary.value;
        if (strcmp(summary.leader, me) != 0)
            strcpy(lead->dead_leader, summary.leader);
    }
    lead->former_term = summary.assignments_term;
    summary.term++;
    summary.edition++;
    summary.beat = 1;
    strcpy(summary.leader, me);
    bool swapped = false;
    int timeout_ms = tether__rdzv_io_ms(member->env, deadline);
    tether_status st = tether__rdzv_summary_swap(member->store, &summary, timeout_ms,
                                                 &member->summary.raw, &swapped, reterr);
    if (st != TETHER_OK || !swapped) {
        tether__rdzv_leadership_free(lead);
        *ret_leads = false;
        return st;
    }
    tether__log(TETHER_LOG_INFO, "rendezvous", "%s leads '%s' in term %" PRIu64, me,
                member->settings->run_id, summary.term);
    member->leadership = lead;
    member->summary.exists = true;
    member->summary.value = summary;
    member->summary.changed_at = tether__rdzv_now(member->env);
    /* a leader reads its rank from the state, not from an assignment */
    if (member->assignment.read)
        tether__rdzv_assignment_delete(member->store, member->assignment.term, me, timeout_ms);
    member->assignment.read = false;
    clear_sent(&member->join);
    clear_sent(&member->leave);
    clear_sent(&member->close);
    *ret_leads = true;
    return TETHER_OK;
}

void tether__rdzv_lead_plan(const struct tether__rdzv_member_holder *member,
                            struct tether__rdzv_pause *pause)
{
    const struct tether__rdzv_leadership *lead = member->leadership;
    const struct tether__rdzv_state *state = &lead->full.state;
    int64_t now = tether__rdzv_now(member->env);
    int64_t until = now + pause->max_ns;
    int64_t moments[] = {
        state->deadline == TETHER__NEVER ? TETHER__NEVER : state->deadline + 1,
        tether__rdzv_backend_holder_listens_at(&lead->full),
        member->summary.changed_at + tether__rdzv_interval_ns(member),
        lead->unpublished ? now + RETRY_NS : TETHER__NEVER,
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(moments); i++) {
        if (moments[i] < until)
            until = moments[i];
    }
    pause->max_ns = until > now ? until - now : 1;

    int64_t gap = (int64_t)state->last_heartbeats.n * WRITE_GAP_NS;
    if (gap > MAX_WRITE_GAP_NS)
        gap = MAX_WRITE_GAP_NS;
    gap -= now - lead->written_at;
    if (gap > 0) /* too soon for another write: sleep, even if requests arrive */
        pause->max_ns = gap < pause->max_ns ? gap : pause->max_ns;
    else
        tether__rdzv_pause_for_request(pause, state->applied + 1);
}

static void resign(struct tether__rdzv_member_holder *member, int timeout_ms)
{
    struct tether__rdzv_summary summary = member->summary.value;
    char me[TETHER__RDZV_NODE_TEXT];
    bool swapped;
    summary.beat++;
    summary.leader[0] = '\0';
    tether__rdzv_summary_swap(member->store, &summary, timeout_ms, &member->summary.raw, &swapped,
                              NULL);
    tether__rdzv_assignment_delete(member->store, summary.term,
                                   tether__rdzv_node_format(&member->self->node, me), timeout_ms);
}

void tether__rdzv_lead_end(struct tether__rdzv_member_holder *member, bool resigns, int timeout_ms)
{
    if (resigns)
        resign(member, timeout_ms);
    tether__log(TETHER_LOG_INFO, "rendezvous", "term %" PRIu64 " of '%s' is over",
                member->summary.value.term, member->settings->run_id);
    tether__rdzv_leadership_free(member->leadership);
    member->leadership = NULL;
    /* A deposed leader has an assignment of its own term in the store. With `read` set and an old
     * edition, the next sync() reads the new assignment and deletes the old one. */
    member->assignment.read = !resigns;
    member->assignment.term = member->summary.value.term;
    member->assignment.edition = UINT64_MAX;
    member->assignment.value.list = TETHER__RDZV_NO_LIST;
}
