/* The part of a member that leader and follower share: roles, heartbeats, pauses. */
#include "rendezvous/elastic/coordination/member.h"

#include <string.h>

#include "rendezvous/elastic/coordination/internal.h"

#define MAX_ROLE_CHANGES 8

static struct tether__rdzv_member_holder *self(struct tether__rdzv_holder *holder)
{
    return tether__container_of(holder, struct tether__rdzv_member_holder, base);
}

static struct tether__rdzv_state *state_of(struct tether__rdzv_holder *holder)
{
    struct tether__rdzv_member_holder *member = self(holder);
    return member->leadership ? &member->leadership->full.state : &member->view;
}

tether_status tether__rdzv_member_beat(struct tether__rdzv_member_holder *member,
                                       int timeout_ms,
                                       tether_error *reterr)
{
    if (!member->beat.due)
        return TETHER_OK;
    tether_status st = tether__rdzv_heartbeat_send(&member->heartbeats, &member->self->node,
                                                   member->beat.count + 1, timeout_ms, reterr);
    if (st != TETHER_OK)
        return tether_error_wrap(reterr, st, "sending a heartbeat");
    member->beat.count++;
    member->beat.due = false;
    member->beat.sent = true;
    member->beat.sent_at = tether__rdzv_now(member->env);
    /* Store the node's own heartbeat, so that a later read of the heartbeats does not take it for
     * a new one. */
    if (member->leadership) {
        struct tether__rdzv_member *heard = tether__rdzv_roster_find(
            &member->leadership->full.state.last_heartbeats, &member->self->node);
        if (heard)
            heard->beat = member->beat.count;
    }
    return TETHER_OK;
}

/* Calls the sync() of the role until the role stays the same: a follower may find that no node
 * leads and become the leader, a leader may find that another node does. */
static tether_status sync(struct tether__rdzv_holder *holder,
                          int64_t deadline,
                          enum tether__rdzv_sync *ret_sync,
                          tether_error *reterr)
{
    struct tether__rdzv_member_holder *member = self(holder);
    bool lost = false;
    for (int changes = 0; changes < MAX_ROLE_CHANGES; changes++) {
        bool led = member->leadership != NULL;
        enum tether__rdzv_sync result = TETHER__RDZV_CLEAN;
        tether_status st = led ? tether__rdzv_lead_sync(member, deadline, &result, reterr)
                               : tether__rdzv_follow_sync(member, deadline, &result, reterr);
        if (st != TETHER_OK)
            return tether_error_wrap(reterr, st, "rendezvous '%s'", member->settings->run_id);
        lost |= result == TETHER__RDZV_LOST;
        if (led == (member->leadership != NULL)) {
            *ret_sync = lost ? TETHER__RDZV_LOST : result;
            return TETHER_OK;
        }
    }
    return tether_error_set(reterr, TETHER_EBUSY,
                            "rendezvous '%s': the leader changed %d times during one request; "
                            "try again",
                            member->settings->run_id, MAX_ROLE_CHANGES);
}

/* Marks the request to be posted by the next sync(), unless it has been posted already. */
static void mark_wanted(struct tether__rdzv_request *request)
{
    if (request->state == TETHER__RDZV_REQUEST_NONE)
        request->state = TETHER__RDZV_REQUEST_WANTED;
}

static void mark_dirty(struct tether__rdzv_holder *holder, enum tether__rdzv_action action)
{
    struct tether__rdzv_member_holder *member = self(holder);
    switch (action) {
        case TETHER__RDZV_KEEP_ALIVE:
            member->beat.due = true;
            return;
        case TETHER__RDZV_ADD_TO_PARTICIPANTS:
        case TETHER__RDZV_ADD_TO_WAIT_LIST:
        case TETHER__RDZV_ADD_TO_REDUNDANCY_LIST:
            member->beat.due = true;
            member->withdrawn = false;
            mark_wanted(&member->join);
            break;
        case TETHER__RDZV_REMOVE_FROM_PARTICIPANTS:
        case TETHER__RDZV_REMOVE_FROM_WAIT_LIST:
            mark_wanted(&member->leave);
            /* A leave revokes a join that was posted before; a later join has to be posted again.
             */
            tether__rdzv_request_clear(&member->join);
            break;
        case TETHER__RDZV_MARK_CLOSED:
            mark_wanted(&member->close);
            break;
        default: /* no request is needed: the leader itself lets spares in and completes rounds */
            member->left_to_leader = true;
            break;
    }
    member->changed = true;
}

static void plan(struct tether__rdzv_holder *holder,
                 int64_t max_ns,
                 struct tether__rdzv_pause *ret_pause)
{
    struct tether__rdzv_member_holder *member = self(holder);
    *ret_pause = (struct tether__rdzv_pause){.max_ns = max_ns};
    const struct tether__rdzv_member *heard =
        tether__rdzv_roster_find(&state_of(holder)->last_heartbeats, &member->self->node);
    if (heard) { /* let the pause end in time for the next heartbeat */
        int64_t left =
            heard->heard_at + tether__rdzv_interval_ns(member) - tether__rdzv_now(member->env);
        ret_pause->max_ns = left < max_ns ? (left > 0 ? left : 1) : max_ns;
    }
    if (member->leadership)
        tether__rdzv_lead_plan(member, ret_pause);
    else
        tether__rdzv_follow_plan(member, ret_pause);
}

/* Reads immutable fields only: other threads may use the holder meanwhile. */
static tether_status pause_for(struct tether__rdzv_holder *holder,
                               const struct tether__rdzv_pause *pause,
                               tether_error *reterr)
{
    struct tether__rdzv_member_holder *member = self(holder);
    if (pause->key[0] == '\0') {
        tether__rdzv_delay(member->env, pause->max_ns);
        return TETHER_OK;
    }
    int64_t ms = (pause->max_ns + TETHER__NS_PER_MS - 1) / TETHER__NS_PER_MS;
    const char *key = pause->key;
    tether_error err;
    tether_status st = tether_store_wait(member->store, &key, 1, (int)ms, &err);
    if (st == TETHER_OK || st == TETHER_ETIMEOUT)
        return TETHER_OK;
    if (reterr)
        *reterr = err;
    return tether_error_wrap(reterr, st, "waiting at rendezvous '%s'", member->settings->run_id);
}

void tether__rdzv_member_holder_init(struct tether__rdzv_member_holder *member,
                                     const struct tether__rdzv_self *node,
                                     const struct tether_rdzv_settings *settings,
                                     tether_store *store,
                                     tether_rdzv_backend *backend,
                                     const struct tether__rdzv_env *env)
{
    static const struct tether__rdzv_holder_ops ops = {
        .state = state_of,
        .sync = sync,
        .mark_dirty = mark_dirty,
        .plan = plan,
        .pause = pause_for,
    };
    memset(member, 0, sizeof *member);
    member->base.ops = &ops;
    member->self = node;
    member->settings = settings;
    member->env = env;
    member->store = store;
    member->heartbeats = (struct tether__rdzv_heartbeats){
        .backend = backend,
        .store = store,
        .ttl_ms = settings->keep_alive_interval_ms * settings->keep_alive_max_attempts,
    };
    tether__rdzv_state_init(&member->view);
}

void tether__rdzv_member_holder_fini(struct tether__rdzv_member_holder *member)
{
    tether__rdzv_leadership_free(member->leadership);
    tether__rdzv_state_fini(&member->view);
    tether_buf_fini(&member->summary.raw);
}

bool tether__rdzv_member_holder_leads(const struct tether__rdzv_member_holder *member)
{
    return member->leadership != NULL;
}

void tether__rdzv_member_holder_withdraw(struct tether__rdzv_member_holder *member,
                                         int64_t deadline)
{
    int timeout_ms = tether__rdzv_io_ms(member->env, deadline);
    bool listed = tether__rdzv_roster_find(&state_of(&member->base)->last_heartbeats,
                                           &member->self->node) != NULL;
    bool joins = member->join.state == TETHER__RDZV_REQUEST_SENT;
    bool leaves = member->leave.state == TETHER__RDZV_REQUEST_WANTED;
    /* A leader posts a request as well: its own copy of the state may be half changed. */
    uint64_t number;
    if (listed || joins || leaves)
        tether__rdzv_request_post(member->store, TETHER__RDZV_LEAVE, member->self, timeout_ms,
                                  &number, NULL);
    tether__rdzv_request_clear(&member->join);
    tether__rdzv_request_clear(&member->leave);
    tether__rdzv_request_clear(&member->close);
    member->changed = member->left_to_leader = false;
    member->beat.due = member->beat.sent = false;
    member->assignment.read = false;
    member->withdrawn = true;
    if (member->leadership)
        tether__rdzv_lead_end(member, true, timeout_ms);
    tether__rdzv_state_fini(&member->view);
}
