/* The part of a member that leaders and followers share: roles, heartbeats, pauses. */
#include "rendezvous/dynamic/member.h"

#include <string.h>

#include "rendezvous/dynamic/member_internal.h"

#define MAX_ROLE_CHANGES 8

static struct tether__rdzv_member_holder *self(struct tether__rdzv_holder *holder)
{
    return tether__container_of(holder, struct tether__rdzv_member_holder, base);
}

static struct tether__rdzv_state *state_of(struct tether__rdzv_holder *holder)
{
    struct tether__rdzv_member_holder *member = self(holder);
    return member->leads ? &member->full.state : &member->view;
}

tether_status tether__rdzv_member_beat(struct tether__rdzv_member_holder *member,
                                       int timeout_ms,
                                       tether_error *reterr)
{
    if (!member->beat_wanted)
        return TETHER_OK;
    tether_status st = tether__rdzv_pulse_beat(&member->pulse, &member->self->node,
                                               member->beats + 1, timeout_ms, reterr);
    if (st != TETHER_OK)
        return tether_error_wrap(reterr, st, "sending a heartbeat");
    member->beats++;
    member->beat_wanted = false;
    member->beaten = true;
    member->beat_at = tether__rdzv_now(member->env);
    /* A leader that listens later hears nothing new of itself. */
    struct tether__rdzv_member *heard =
        tether__rdzv_roster_find(&member->full.state.last_heartbeats, &member->self->node);
    if (heard)
        heard->beat = member->beats;
    return TETHER_OK;
}

/* Roles can change in between: a follower finds that nobody leads, a leader that another does. */
static tether_status sync(struct tether__rdzv_holder *holder,
                          int64_t deadline,
                          enum tether__rdzv_sync *ret_sync,
                          tether_error *reterr)
{
    struct tether__rdzv_member_holder *member = self(holder);
    bool lost = false;
    for (int changes = 0; changes < MAX_ROLE_CHANGES; changes++) {
        bool led = member->leads;
        enum tether__rdzv_sync result = TETHER__RDZV_CLEAN;
        tether_status st = led ? tether__rdzv_lead_sync(member, deadline, &result, reterr)
                               : tether__rdzv_follow_sync(member, deadline, &result, reterr);
        if (st != TETHER_OK)
            return tether_error_wrap(reterr, st, "rendezvous '%s'", member->settings->run_id);
        lost |= result == TETHER__RDZV_LOST;
        if (led == member->leads) {
            *ret_sync = lost ? TETHER__RDZV_LOST : result;
            return TETHER_OK;
        }
    }
    return tether_error_set(reterr, TETHER_EBUSY,
                            "rendezvous '%s': its leader changes too fast; try again",
                            member->settings->run_id);
}

static void mark_dirty(struct tether__rdzv_holder *holder, enum tether__rdzv_action action)
{
    struct tether__rdzv_member_holder *member = self(holder);
    switch (action) {
        case TETHER__RDZV_KEEP_ALIVE:
            member->beat_wanted = true;
            return;
        case TETHER__RDZV_ADD_TO_PARTICIPANTS:
        case TETHER__RDZV_ADD_TO_WAIT_LIST:
        case TETHER__RDZV_ADD_TO_REDUNDANCY_LIST:
            member->beat_wanted = true;
            member->join_wanted = true;
            member->withdrawn = false;
            break;
        case TETHER__RDZV_REMOVE_FROM_PARTICIPANTS:
        case TETHER__RDZV_REMOVE_FROM_WAIT_LIST:
            member->leave_wanted = true;
            break;
        case TETHER__RDZV_MARK_CLOSED:
            member->close_wanted = true;
            break;
        default: /* spares are let in and rounds completed by the leader itself */
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
    if (heard) { /* never past the next heartbeat */
        int64_t left =
            heard->heard_at + tether__rdzv_interval_ns(member) - tether__rdzv_now(member->env);
        ret_pause->max_ns = left < max_ns ? (left > 0 ? left : 1) : max_ns;
    }
    if (member->leads)
        tether__rdzv_lead_plan(member, ret_pause);
    else
        tether__rdzv_follow_plan(member, ret_pause);
}

/* Uses only what is immutable. */
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
    tether_status st = tether_store_wait(member->notes.store, &key, 1, (int)ms, &err);
    if (st == TETHER_OK || st == TETHER_ETIMEOUT)
        return TETHER_OK;
    if (reterr)
        *reterr = err;
    return tether_error_wrap(reterr, st, "waiting at rendezvous '%s'", member->settings->run_id);
}

tether_status tether__rdzv_member_holder_init(struct tether__rdzv_member_holder *member,
                                              const struct tether__rdzv_self *node,
                                              const struct tether_rdzv_settings *settings,
                                              tether_store *store,
                                              tether_rdzv_backend *backend,
                                              const struct tether__rdzv_env *env,
                                              tether_error *reterr)
{
    static const struct tether__rdzv_holder_ops ops = {
        .state = state_of,
        .sync = sync,
        .mark_dirty = mark_dirty,
        .plan = plan,
        .pause = pause_for,
    };
    memset(member, 0, sizeof *member);
    if (tether__map_init(&member->published, &tether__map_bytes) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a member of a rendezvous");
    member->base.ops = &ops;
    member->self = node;
    member->settings = settings;
    member->env = env;
    member->notes.store = store;
    member->pulse = (struct tether__rdzv_pulse){
        .backend = backend,
        .store = store,
        .ttl_ms = settings->keep_alive_interval_ms * settings->keep_alive_max_attempts,
    };
    tether__rdzv_state_init(&member->view);
    tether__rdzv_backend_holder_init(&member->full, backend, &member->pulse, settings, env,
                                     TETHER__NEVER);
    return TETHER_OK;
}

void tether__rdzv_member_holder_fini(struct tether__rdzv_member_holder *member)
{
    tether__rdzv_publish_fini(member);
    tether__map_fini(&member->published);
    tether__rdzv_backend_holder_fini(&member->full);
    tether__rdzv_state_fini(&member->view);
    tether_buf_fini(&member->head_raw);
}

bool tether__rdzv_member_holder_leads(const struct tether__rdzv_member_holder *member)
{
    return member->leads;
}

void tether__rdzv_member_holder_withdraw(struct tether__rdzv_member_holder *member,
                                         int64_t deadline)
{
    int timeout_ms = tether__rdzv_io_ms(member->env, deadline);
    bool listed = tether__rdzv_roster_find(&state_of(&member->base)->last_heartbeats,
                                           &member->self->node) != NULL;
    bool asked = member->join_asked > member->leave_asked;
    member->join_wanted = member->leave_wanted = member->close_wanted = false;
    member->beat_wanted = member->changed = member->left_to_leader = false;
    /* As a wish even when it leads: its own copy of the state may be half changed. */
    uint64_t number;
    if (listed || asked)
        tether__rdzv_wish_post(&member->notes, TETHER__RDZV_LEAVE, member->self, timeout_ms,
                               &number, NULL);
    member->join_asked = member->leave_asked = member->close_asked = 0;
    member->beaten = false;
    member->place_read = false;
    member->withdrawn = true;
    if (member->leads)
        tether__rdzv_lead_end(member, true, timeout_ms);
    tether__rdzv_state_fini(&member->view);
}
