/* The part of a member that leads: it keeps the state on behalf of all.
 *
 * At each sync() it folds the wishes that have come into the state (fold.c), looks at the
 * heartbeats now and then, writes what has changed as one compare-and-set, and publishes it
 * (publish.c).
 *
 * The state is written at most once per 100 us for each node in it, so that ten thousand nodes that
 * join within a second make one write or two, and not ten thousand.
 */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "rendezvous/dynamic/member_internal.h"

#define FOLD_GAP_NS INT64_C(100000) /* per node in the state */
#define MAX_FOLD_GAP_NS TETHER__NS_PER_S
#define RETRY_NS (100 * TETHER__NS_PER_MS)
#define MAX_ATTEMPTS 8

/* ---- The parts of a sync -------------------------------------------------------------------- */

/* The leader before this one is dead, as this node has found out by watching its head. */
static void drop_dead_leader(struct tether__rdzv_member_holder *member, int timeout_ms)
{
    struct tether__rdzv_state *state = &member->full.state;
    char text[TETHER__RDZV_NODE_TEXT];
    if (member->dead_leader[0] == '\0')
        return;
    for (size_t i = 0; i < state->last_heartbeats.n; i++) {
        struct tether__rdzv_member *heard = state->last_heartbeats.members[i];
        if (strcmp(tether__rdzv_node_format(&heard->node, text), member->dead_leader) == 0)
            heard->heard_at = INT64_MIN;
    }
    tether__rdzv_state_sanitize(state, INT64_MIN + 1, (size_t)member->settings->min_nodes);
    tether__rdzv_place_forget(&member->notes, member->places_before, member->dead_leader,
                              timeout_ms);
    tether__rdzv_pulse_forget(&member->pulse, member->dead_leader, timeout_ms);
    member->dead_leader[0] = '\0';
}

/* First of all: the state as the last leader left it, and what this node itself wants of it. */
static tether_status take_up(struct tether__rdzv_member_holder *member,
                             int64_t deadline,
                             tether_error *reterr)
{
    enum tether__rdzv_sync sync;
    struct tether__rdzv_holder *full = &member->full.base;
    tether_status st = full->ops->sync(full, deadline, &sync, reterr);
    if (st != TETHER_OK)
        return st;
    drop_dead_leader(member, tether__rdzv_io_ms(member->env, deadline));
    member->full.state.term = member->head.term;
    member->full.dirty = true;
    if (member->leave_wanted)
        st = tether__rdzv_grant(member, TETHER__RDZV_LEAVE, member->self, reterr);
    if (st == TETHER_OK && member->join_wanted)
        st = tether__rdzv_grant(member, TETHER__RDZV_JOIN, member->self, reterr);
    if (st == TETHER_OK && member->close_wanted)
        st = tether__rdzv_grant(member, TETHER__RDZV_CLOSE, member->self, reterr);
    if (st != TETHER_OK)
        return st;
    member->fresh = false;
    member->forgotten = member->full.state.folded;
    return TETHER_OK;
}

static tether_status look_around(struct tether__rdzv_member_holder *member,
                                 int64_t deadline,
                                 tether_error *reterr)
{
    size_t dead = 0;
    int timeout_ms = tether__rdzv_io_ms(member->env, deadline);
    tether_status st = tether__rdzv_fold(member, timeout_ms, reterr);
    if (st == TETHER_OK)
        st = tether__rdzv_backend_holder_listen(&member->full, deadline, &dead, reterr);
    if (st == TETHER_OK && dead > 0)
        member->full.dirty = true;
    if (st == TETHER_OK)
        st = tether__rdzv_settle(member, reterr);
    return st;
}

tether_status tether__rdzv_lead_sync(struct tether__rdzv_member_holder *member,
                                     int64_t deadline,
                                     enum tether__rdzv_sync *ret_sync,
                                     tether_error *reterr)
{
    struct tether__rdzv_holder *full = &member->full.base;
    int timeout_ms = tether__rdzv_io_ms(member->env, deadline);
    enum tether__rdzv_sync result = member->changed ? TETHER__RDZV_WRITTEN : TETHER__RDZV_CLEAN;
    bool beat = member->beat_wanted;
    tether_status st = tether__rdzv_member_beat(member, timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    if (beat && result == TETHER__RDZV_CLEAN)
        result = TETHER__RDZV_WRITTEN;
    if (member->fresh)
        st = take_up(member, deadline, reterr);
    else if (member->changed)
        member->full.dirty = true; /* the action was applied to the state itself */
    if (st != TETHER_OK)
        return st;
    member->changed = member->left_to_leader = false;
    member->join_wanted = member->leave_wanted = member->close_wanted = false;

    for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        st = look_around(member, deadline, reterr);
        if (st != TETHER_OK)
            return st;
        if (!member->full.dirty) {
            *ret_sync = result;
            return tether__rdzv_publish(member, timeout_ms, reterr);
        }
        enum tether__rdzv_sync written;
        st = full->ops->sync(full, deadline, &written, reterr);
        if (st != TETHER_OK)
            return st;
        if (written == TETHER__RDZV_WRITTEN) {
            member->folded_at = tether__rdzv_now(member->env);
            member->unpublished = true;
            *ret_sync = result;
            return tether__rdzv_publish(member, timeout_ms, reterr);
        }
        /* Somebody else has written: another leader, of an older term or a newer one. */
        if (result != TETHER__RDZV_CLEAN)
            result = TETHER__RDZV_LOST;
        if (member->full.state.term > member->head.term) {
            tether__rdzv_lead_end(member, false, timeout_ms);
            *ret_sync = result;
            return TETHER_OK;
        }
        member->full.state.term = member->head.term;
        member->full.dirty = true;
    }
    return tether_error_set(reterr, TETHER_EBUSY,
                            "the state was changed by others %d times in a row; try again",
                            MAX_ATTEMPTS);
}

/* ---- Beginning, waiting, ending ------------------------------------------------------------- */

tether_status tether__rdzv_lead_begin(struct tether__rdzv_member_holder *member,
                                      int64_t deadline,
                                      bool *ret_leads,
                                      tether_error *reterr)
{
    struct tether__rdzv_head head = {0};
    char me[TETHER__RDZV_NODE_TEXT], before[TETHER__RDZV_NODE_TEXT] = "";
    if (member->has_head) {
        head = member->head;
        strcpy(before, head.leader);
    }
    head.term++;
    head.edition++;
    head.beat = 1;
    strcpy(head.leader, tether__rdzv_node_format(&member->self->node, me));
    bool swapped = false;
    int timeout_ms = tether__rdzv_io_ms(member->env, deadline);
    tether_status st = tether__rdzv_head_swap(&member->notes, &head, timeout_ms, &member->head_raw,
                                              &swapped, reterr);
    if (st != TETHER_OK || !swapped) {
        *ret_leads = false;
        return st;
    }
    tether__log(TETHER_LOG_INFO, "rendezvous", "%s leads '%s' in term %" PRIu64, me,
                member->settings->run_id, head.term);
    member->has_head = true;
    member->head = head;
    member->head_heard_at = tether__rdzv_now(member->env);
    member->leads = member->fresh = member->unpublished = true;
    if (strcmp(before, me) != 0)
        strcpy(member->dead_leader, before);
    member->places_before = head.places;
    if (member->place_read) /* it needs none while it leads */
        tether__rdzv_place_forget(&member->notes, member->place_term, me, timeout_ms);
    member->place_read = false;
    /* Wishes that were left are in the store: they will be folded like all others. */
    member->join_asked = member->leave_asked = member->close_asked = 0;
    *ret_leads = true;
    return TETHER_OK;
}

void tether__rdzv_lead_plan(const struct tether__rdzv_member_holder *member,
                            struct tether__rdzv_pause *pause)
{
    const struct tether__rdzv_state *state = &member->full.state;
    int64_t now = tether__rdzv_now(member->env);
    int64_t until = now + pause->max_ns;
    int64_t moments[] = {
        state->deadline == TETHER__NEVER ? TETHER__NEVER : state->deadline + 1,
        tether__rdzv_backend_holder_listens_at(&member->full),
        member->head_heard_at + tether__rdzv_interval_ns(member),
        member->unpublished ? now + RETRY_NS : TETHER__NEVER,
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(moments); i++) {
        if (moments[i] < until)
            until = moments[i];
    }
    pause->max_ns = until > now ? until - now : 1;

    int64_t gap = (int64_t)state->last_heartbeats.n * FOLD_GAP_NS;
    if (gap > MAX_FOLD_GAP_NS)
        gap = MAX_FOLD_GAP_NS;
    gap -= now - member->folded_at;
    if (gap > 0) /* too soon to look at wishes again: just wait */
        pause->max_ns = gap < pause->max_ns ? gap : pause->max_ns;
    else
        tether__rdzv_pause_for_wish(pause, state->folded + 1);
}

/* So that nobody has to miss its heartbeats first. */
static void resign_lead(struct tether__rdzv_member_holder *member, int timeout_ms)
{
    struct tether__rdzv_head head = member->head;
    char me[TETHER__RDZV_NODE_TEXT];
    bool swapped;
    head.beat++;
    head.leader[0] = '\0';
    tether__rdzv_head_swap(&member->notes, &head, timeout_ms, &member->head_raw, &swapped, NULL);
    tether__rdzv_place_forget(&member->notes, head.term,
                              tether__rdzv_node_format(&member->self->node, me), timeout_ms);
}

void tether__rdzv_lead_end(struct tether__rdzv_member_holder *member, bool resign, int timeout_ms)
{
    if (resign)
        resign_lead(member, timeout_ms);
    tether__log(TETHER_LOG_INFO, "rendezvous", "term %" PRIu64 " of '%s' is over",
                member->head.term, member->settings->run_id);
    member->leads = member->fresh = member->unpublished = member->round_announced = false;
    member->hole = 0;
    /* Its own place is to be read, or to be removed when another leader has written it anew. */
    member->place_read = !resign;
    member->place_term = member->head.term;
    member->place_edition = UINT64_MAX;
    member->place.list = TETHER__RDZV_NO_LIST;
    tether__rdzv_publish_fini(member);
    tether__rdzv_backend_holder_fini(&member->full);
    tether__rdzv_backend_holder_init(&member->full, member->pulse.backend, &member->pulse,
                                     member->settings, member->env, TETHER__NEVER);
}
