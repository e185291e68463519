/* The followers' part of a member: it reads the summary and its own assignment, and posts requests.
 *
 * A follower's view of the state lists itself and counts the others. A join that the leader has not
 * applied yet leaves the view as it is. A leave takes effect in the view at once, since the leader
 * cannot refuse it. An assignment to a round that is over for this node is ignored, even if the
 * leader still publishes it; the request to join tells the leader which rounds are over.
 *
 * A leader whose summary does not change for interval x attempts, counting only the time in which
 * this node could read it, is taken for dead. A node that has a request, or is in a list, then
 * tries to lead itself.
 */
#include <string.h>

#include "rendezvous/elastic/coordination/internal.h"

static tether_status read_summary(struct tether__rdzv_member_holder *member,
                                  int timeout_ms,
                                  tether_error *reterr)
{
    struct tether__rdzv_summary summary;
    tether_status st = tether__rdzv_summary_read(member->store, timeout_ms, &summary,
                                                 &member->summary.raw, reterr);
    if (st == TETHER_ENOTFOUND) {
        member->summary.exists = false;
        return TETHER_OK;
    }
    if (st != TETHER_OK)
        return st;
    int64_t now = tether__rdzv_now(member->env);
    const struct tether__rdzv_summary *before = &member->summary.value;
    if (!member->summary.exists || summary.term != before->term || summary.beat != before->beat) {
        member->summary.changed_at = now;
    } else {
        /* If this node was suspended, count at most two heartbeat intervals of the gap; otherwise
         * every leader would look dead after a resume. */
        int64_t gap = now - member->summary.read_at - 2 * tether__rdzv_interval_ns(member);
        if (gap > 0)
            member->summary.changed_at += gap;
    }
    member->summary.exists = true;
    member->summary.value = summary;
    member->summary.read_at = now;
    return TETHER_OK;
}

static bool leader_is_gone(const struct tether__rdzv_member_holder *member)
{
    const struct tether__rdzv_summary *summary = &member->summary.value;
    if (!member->summary.exists || summary->leader[0] == '\0')
        return true;
    char me[TETHER__RDZV_NODE_TEXT];
    if (strcmp(summary->leader, tether__rdzv_node_format(&member->self->node, me)) == 0)
        return true; /* this node was the leader and is not any more */
    int64_t lifetime = tether__rdzv_interval_ns(member) * member->settings->keep_alive_max_attempts;
    return member->summary.read_at - member->summary.changed_at > lifetime;
}

/* Whether this node is in a list. */
static bool is_listed(const struct tether__rdzv_member_holder *member)
{
    return member->assignment.value.list != TETHER__RDZV_NO_LIST && !member->withdrawn;
}

static bool needs_leader(const struct tether__rdzv_member_holder *member)
{
    return member->join.state != TETHER__RDZV_REQUEST_NONE ||
           member->leave.state != TETHER__RDZV_REQUEST_NONE ||
           member->close.state != TETHER__RDZV_REQUEST_NONE || is_listed(member);
}

static tether_status post(struct tether__rdzv_member_holder *member,
                          struct tether__rdzv_request *request,
                          enum tether__rdzv_request_kind kind,
                          int timeout_ms,
                          tether_error *reterr)
{
    if (request->state != TETHER__RDZV_REQUEST_WANTED)
        return TETHER_OK;
    tether_status st = tether__rdzv_request_post(member->store, kind, member->self, timeout_ms,
                                                 &request->number, reterr);
    if (st == TETHER_OK)
        request->state = TETHER__RDZV_REQUEST_SENT;
    return st;
}

/* Posts the requests that are wanted; a leave before a join. */
static tether_status post_all(struct tether__rdzv_member_holder *member,
                              int timeout_ms,
                              tether_error *reterr)
{
    if (member->leave.state == TETHER__RDZV_REQUEST_WANTED &&
        member->join.state != TETHER__RDZV_REQUEST_WANTED)
        member->beat.sent = false; /* the leave stops heartbeats, unless a join follows it */
    tether_status st = post(member, &member->leave, TETHER__RDZV_LEAVE, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = post(member, &member->join, TETHER__RDZV_JOIN, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = post(member, &member->close, TETHER__RDZV_CLOSE, timeout_ms, reterr);
    return st;
}

/* Clears a request that the leader has applied. The assignment tells what came of it. */
static void clear_applied(const struct tether__rdzv_member_holder *member,
                          struct tether__rdzv_request *request)
{
    if (request->state == TETHER__RDZV_REQUEST_SENT && member->summary.exists &&
        member->summary.value.applied >= request->number)
        tether__rdzv_request_clear(request);
}

/* Reads the assignment that belongs to the summary. The leader writes it before the summary, so it
 * is at least as new. */
static tether_status read_assignment(struct tether__rdzv_member_holder *member,
                                     int timeout_ms,
                                     tether_error *reterr)
{
    if (!member->summary.exists) {
        member->assignment.value.list = TETHER__RDZV_NO_LIST;
        return TETHER_OK;
    }
    uint64_t term = member->summary.value.assignments_term;
    uint64_t edition = member->summary.value.edition;
    if (member->assignment.read && member->assignment.term == term &&
        member->assignment.edition == edition)
        return TETHER_OK;
    uint64_t old_term = member->assignment.read ? member->assignment.term : term;
    tether_status st = tether__rdzv_assignment_read(member->store, term, &member->self->node,
                                                    timeout_ms, &member->assignment.value, reterr);
    if (st != TETHER_OK)
        return st;
    member->assignment.read = true;
    member->assignment.term = term;
    member->assignment.edition = edition;
    if (old_term != term) {
        char me[TETHER__RDZV_NODE_TEXT];
        tether__rdzv_assignment_delete(
            member->store, old_term, tether__rdzv_node_format(&member->self->node, me), timeout_ms);
    }
    return TETHER_OK;
}

static void uncount(size_t *count)
{
    if (*count > 0)
        --*count;
}

/* Adds this node to the list of the view that its assignment names. */
static tether_status list_self(struct tether__rdzv_member_holder *member,
                               struct tether__rdzv_state *view)
{
    const struct tether__rdzv_assignment *assignment = &member->assignment.value;
    struct tether__rdzv_roster *list = &view->participants;
    size_t *count = &view->others.participants;
    if (assignment->list == TETHER__RDZV_WAIT_LIST) {
        list = &view->wait_list;
        count = &view->others.waiting;
    } else if (assignment->list == TETHER__RDZV_REDUNDANCY_LIST) {
        list = &view->redundancy_list;
        count = &view->others.redundant;
    }
    struct tether__rdzv_member *self = tether__rdzv_roster_add(list, &member->self->node);
    if (!self)
        return TETHER_ENOMEM;
    self->hint = member->self->hint;
    self->previous = member->self->previous;
    uncount(count);
    if (assignment->list == TETHER__RDZV_PARTICIPANTS) {
        /* The assignment may be newer than the summary; if so, it is the correct one. */
        self->rank = assignment->rank;
        view->round = assignment->round;
        view->complete = assignment->complete;
        view->world_size = assignment->world_size;
        if (assignment->complete)
            view->deadline = TETHER__NEVER;
    }
    return TETHER_OK;
}

static void copy_summary(const struct tether__rdzv_member_holder *member,
                         struct tether__rdzv_state *view)
{
    const struct tether__rdzv_summary *summary = &member->summary.value;
    view->term = summary->term;
    view->applied = summary->applied;
    view->round = summary->round;
    view->complete = summary->complete;
    view->closed = summary->closed;
    view->world_size = summary->world_size;
    view->others = summary->counts;
    if (summary->last_call) {
        view->last_calls = summary->last_calls;
        view->deadline =
            tether__rdzv_now(member->env) + summary->last_call_left_ms * TETHER__NS_PER_MS;
        /* A last call that this node knew before keeps its earlier deadline. */
        if (member->view.last_calls == view->last_calls && member->view.deadline < view->deadline)
            view->deadline = member->view.deadline;
    }
}

static tether_status make_view(struct tether__rdzv_member_holder *member, tether_error *reterr)
{
    struct tether__rdzv_state view;
    tether__rdzv_state_init(&view);
    tether_status st = TETHER_OK;
    if (member->summary.exists) {
        copy_summary(member, &view);
        const struct tether__rdzv_assignment *assignment = &member->assignment.value;
        bool over = assignment->complete && assignment->round < member->self->past;
        if (is_listed(member) && !over && member->leave.state == TETHER__RDZV_REQUEST_NONE)
            st = list_self(member, &view);
    }
    if (st == TETHER_OK && member->beat.sent)
        st = tether__rdzv_state_heard(&view, &member->self->node, member->beat.sent_at);
    if (st != TETHER_OK) {
        tether__rdzv_state_fini(&view);
        return tether_error_set(reterr, st, "out of memory for the view of a rendezvous");
    }
    tether__rdzv_state_fini(&member->view);
    member->view = view;
    return TETHER_OK;
}

tether_status tether__rdzv_follow_sync(struct tether__rdzv_member_holder *member,
                                       int64_t deadline,
                                       enum tether__rdzv_sync *ret_sync,
                                       tether_error *reterr)
{
    int timeout_ms = tether__rdzv_io_ms(member->env, deadline);
    bool dirty = member->changed || member->beat.due;
    tether_status st = tether__rdzv_member_beat(member, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = read_summary(member, timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    if (needs_leader(member) && leader_is_gone(member)) {
        bool leads = false;
        st = tether__rdzv_lead_begin(member, deadline, &leads, reterr);
        if (st != TETHER_OK)
            return st;
        if (leads) {
            *ret_sync = TETHER__RDZV_CLEAN; /* member.c calls lead_sync() next */
            return TETHER_OK;
        }
        st = read_summary(member, timeout_ms, reterr);
    }
    if (st == TETHER_OK)
        st = post_all(member, timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    clear_applied(member, &member->leave);
    clear_applied(member, &member->join);
    clear_applied(member, &member->close);
    st = read_assignment(member, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = make_view(member, reterr);
    if (st != TETHER_OK)
        return st;
    bool asked = member->join.state == TETHER__RDZV_REQUEST_SENT ||
                 member->close.state == TETHER__RDZV_REQUEST_SENT || member->left_to_leader;
    member->changed = member->left_to_leader = false;
    *ret_sync = asked ? TETHER__RDZV_ASKED : dirty ? TETHER__RDZV_WRITTEN : TETHER__RDZV_CLEAN;
    return TETHER_OK;
}

void tether__rdzv_follow_plan(const struct tether__rdzv_member_holder *member,
                              struct tether__rdzv_pause *pause)
{
    uint64_t round = member->view.round + (member->view.complete ? 1 : 0);
    tether__rdzv_pause_for_round(pause, round);
}
