/* The part of a member that does not lead: it reads the head and its own place, and leaves wishes.
 *
 * Its view of the state lists itself and counts the others. What it has asked for and not been
 * answered yet: joining leaves the view as it is; leaving takes effect in the view at once, since
 * nobody can keep a node that goes. A round that is over for this node is not its place any more,
 * whatever the leader has written; the wish to join says so to the leader too.
 *
 * A leader whose head does not change for interval x attempts, in time that this node could look,
 * is taken for dead; a node that wants something, or is in a list, then tries to lead itself.
 */
#include <string.h>

#include "rendezvous/dynamic/member_internal.h"

/* Whether the leader has seen wish `number`. */
static bool folded(const struct tether__rdzv_member_holder *member, uint64_t number)
{
    return member->has_head && member->head.folded >= number;
}

static tether_status read_head(struct tether__rdzv_member_holder *member,
                               int timeout_ms,
                               tether_error *reterr)
{
    struct tether__rdzv_head head;
    tether_status st =
        tether__rdzv_head_read(&member->notes, timeout_ms, &head, &member->head_raw, reterr);
    if (st == TETHER_ENOTFOUND) {
        member->has_head = false;
        return TETHER_OK;
    }
    if (st != TETHER_OK)
        return st;
    int64_t now = tether__rdzv_now(member->env);
    if (!member->has_head || head.term != member->head.term || head.beat != member->head.beat) {
        member->head_heard_at = now;
    } else {
        /* Time in which this node could not look is not the leader's fault. */
        int64_t gap = now - member->head_looked_at - 2 * tether__rdzv_interval_ns(member);
        if (gap > 0)
            member->head_heard_at += gap;
    }
    member->has_head = true;
    member->head = head;
    member->head_looked_at = now;
    return TETHER_OK;
}

static bool leader_is_gone(const struct tether__rdzv_member_holder *member)
{
    if (!member->has_head || member->head.leader[0] == '\0')
        return true;
    char me[TETHER__RDZV_NODE_TEXT];
    if (strcmp(member->head.leader, tether__rdzv_node_format(&member->self->node, me)) == 0)
        return true; /* it was this node, and it isn't any more */
    int64_t lifetime = tether__rdzv_interval_ns(member) * member->settings->keep_alive_max_attempts;
    return member->head_looked_at - member->head_heard_at > lifetime;
}

static bool needs_leader(const struct tether__rdzv_member_holder *member)
{
    return member->join_wanted || member->leave_wanted || member->close_wanted ||
           member->join_asked || member->leave_asked || member->close_asked ||
           (member->place.list != TETHER__RDZV_NO_LIST && !member->withdrawn);
}

static tether_status ask(struct tether__rdzv_member_holder *member,
                         enum tether__rdzv_wish_kind kind,
                         bool *wanted,
                         uint64_t *asked,
                         int timeout_ms,
                         tether_error *reterr)
{
    if (!*wanted || *asked != 0) {
        *wanted = false; /* under way already */
        return TETHER_OK;
    }
    tether_status st =
        tether__rdzv_wish_post(&member->notes, kind, member->self, timeout_ms, asked, reterr);
    if (st == TETHER_OK)
        *wanted = false;
    return st;
}

/* Leaves the wishes that are due: a leave before a join, and none twice. */
static tether_status ask_all(struct tether__rdzv_member_holder *member,
                             int timeout_ms,
                             tether_error *reterr)
{
    if (member->leave_wanted) {
        member->join_asked = 0; /* what was asked before is void, and may be asked again */
        if (!member->join_wanted)
            member->beaten = false; /* nobody has to be kept alive */
    }
    tether_status st = ask(member, TETHER__RDZV_LEAVE, &member->leave_wanted, &member->leave_asked,
                           timeout_ms, reterr);
    if (st == TETHER_OK)
        st = ask(member, TETHER__RDZV_JOIN, &member->join_wanted, &member->join_asked, timeout_ms,
                 reterr);
    if (st == TETHER_OK)
        st = ask(member, TETHER__RDZV_CLOSE, &member->close_wanted, &member->close_asked,
                 timeout_ms, reterr);
    return st;
}

/* What has been answered is no longer under way; whether it came true, the place tells. */
static void note_answers(struct tether__rdzv_member_holder *member)
{
    if (folded(member, member->leave_asked))
        member->leave_asked = 0;
    if (folded(member, member->join_asked))
        member->join_asked = 0;
    if (folded(member, member->close_asked))
        member->close_asked = 0;
}

/* The place that goes with the head. Read after the head, it is at least as new. */
static tether_status read_place(struct tether__rdzv_member_holder *member,
                                int timeout_ms,
                                tether_error *reterr)
{
    if (!member->has_head) {
        member->place.list = TETHER__RDZV_NO_LIST;
        return TETHER_OK;
    }
    if (member->place_read && member->place_term == member->head.places &&
        member->place_edition == member->head.edition)
        return TETHER_OK;
    uint64_t old_term = member->place_read ? member->place_term : member->head.places;
    tether_status st =
        tether__rdzv_place_read(&member->notes, member->head.places, &member->self->node,
                                timeout_ms, &member->place, reterr);
    if (st != TETHER_OK)
        return st;
    member->place_read = true;
    member->place_term = member->head.places;
    member->place_edition = member->head.edition;
    if (old_term != member->head.places) {
        char me[TETHER__RDZV_NODE_TEXT];
        tether__rdzv_place_forget(&member->notes, old_term,
                                  tether__rdzv_node_format(&member->self->node, me), timeout_ms);
    }
    return TETHER_OK;
}

static void uncount(size_t *count)
{
    if (*count > 0)
        --*count;
}

/* Lists this node in the view, where its place says. */
static tether_status list_self(struct tether__rdzv_member_holder *member,
                               struct tether__rdzv_state *view)
{
    const struct tether__rdzv_place *place = &member->place;
    struct tether__rdzv_roster *list = &view->participants;
    size_t *count = &view->others.participants;
    if (place->list == TETHER__RDZV_WAIT_LIST) {
        list = &view->wait_list;
        count = &view->others.waiting;
    } else if (place->list == TETHER__RDZV_REDUNDANCY_LIST) {
        list = &view->redundancy_list;
        count = &view->others.redundant;
    }
    struct tether__rdzv_member *self = tether__rdzv_roster_add(list, &member->self->node);
    if (!self)
        return TETHER_ENOMEM;
    self->hint = member->self->hint;
    self->previous = member->self->previous;
    uncount(count);
    if (place->list == TETHER__RDZV_PARTICIPANTS) {
        /* The place may be a moment ahead of the head, and then it is the place that is right. */
        self->rank = place->rank;
        view->round = place->round;
        view->complete = place->complete;
        view->world_size = place->world_size;
        if (place->complete)
            view->deadline = TETHER__NEVER;
    }
    return TETHER_OK;
}

static tether_status make_view(struct tether__rdzv_member_holder *member, tether_error *reterr)
{
    struct tether__rdzv_state view;
    tether__rdzv_state_init(&view);
    int64_t now = tether__rdzv_now(member->env);
    tether_status st = TETHER_OK;
    if (member->has_head) {
        const struct tether__rdzv_head *head = &member->head;
        view.term = head->term;
        view.folded = head->folded;
        view.round = head->round;
        view.complete = head->complete;
        view.closed = head->closed;
        view.world_size = head->world_size;
        view.others = head->counts;
        if (head->last_call) {
            view.last_calls = head->last_calls;
            view.deadline = now + head->last_call_left_ms * TETHER__NS_PER_MS;
            if (member->view.last_calls == view.last_calls && member->view.deadline < view.deadline)
                view.deadline = member->view.deadline;
        }
        const struct tether__rdzv_place *place = &member->place;
        bool listed = place->list != TETHER__RDZV_NO_LIST && !member->withdrawn;
        bool over = place->complete && place->round < member->self->past;
        if (listed && !over && !member->leave_asked && !member->leave_wanted)
            st = list_self(member, &view);
    }
    if (st == TETHER_OK && member->beaten)
        st = tether__rdzv_state_heard(&view, &member->self->node, member->beat_at);
    if (st != TETHER_OK) {
        tether__rdzv_state_fini(&view);
        return tether_error_set(reterr, st, "no memory for the view of a rendezvous");
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
    bool dirty = member->changed || member->beat_wanted;
    tether_status st = tether__rdzv_member_beat(member, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = read_head(member, timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    if (needs_leader(member) && leader_is_gone(member)) {
        bool leads = false;
        st = tether__rdzv_lead_begin(member, deadline, &leads, reterr);
        if (st != TETHER_OK)
            return st;
        if (leads) {
            *ret_sync = TETHER__RDZV_CLEAN; /* sync() goes on as the leader */
            return TETHER_OK;
        }
        st = read_head(member, timeout_ms, reterr);
    }
    if (st == TETHER_OK)
        st = ask_all(member, timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    note_answers(member);
    st = read_place(member, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = make_view(member, reterr);
    if (st != TETHER_OK)
        return st;
    bool asked = member->join_asked || member->close_asked || member->left_to_leader;
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
