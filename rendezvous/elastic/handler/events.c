/* Events: fills them in and calls the hook. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "rendezvous/elastic/handler/internal.h"

const char *tether_rdzv_event_kind_text(tether_rdzv_event_kind kind)
{
    static const char *const texts[] = {
        [TETHER_RDZV_INIT] = "init",           [TETHER_RDZV_RUNNING] = "running",
        [TETHER_RDZV_SUCCEEDED] = "succeeded", [TETHER_RDZV_FAILED] = "failed",
        [TETHER_RDZV_MEMBERS] = "members",
    };
    return (size_t)kind < TETHER__ARRAY_LEN(texts) ? texts[kind] : "?";
}

static int64_t left_ms(int64_t moment, int64_t now)
{
    if (moment == TETHER__NEVER)
        return -1;
    return moment > now ? (moment - now) / TETHER__NS_PER_MS : 0;
}

void tether__rdzv_event_locked(tether_rdzv *rdzv,
                               tether_rdzv_event_kind kind,
                               const char *name,
                               int64_t deadline,
                               tether_status status,
                               const char *format,
                               ...)
{
    if (!rdzv->settings.on_event && tether__log_level() < TETHER_LOG_DEBUG)
        return;
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    tether__log(TETHER_LOG_DEBUG, "rendezvous", "%s: %s %s: %s", rdzv->settings.run_id, name,
                tether_rdzv_event_kind_text(kind), message);
    if (!rdzv->settings.on_event)
        return;
    const struct tether__rdzv_state *state = rdzv->holder->ops->state(rdzv->holder);
    int64_t now = tether__rdzv_now(rdzv->env);
    struct tether_rdzv_event event = {
        .kind = kind,
        .name = name,
        .message = message,
        .status = status,
        .run_id = rdzv->settings.run_id,
        .node = rdzv->node_text,
        .rank = rdzv->joined ? rdzv->rank : -1,
        .round = state->round,
        .participants = (int)tether__rdzv_num_participants(state),
        .waiting = (int)tether__rdzv_num_waiting(state),
        .redundant = (int)tether__rdzv_num_redundant(state),
        .world_size = state->world_size,
        .min_nodes = rdzv->settings.min_nodes,
        .max_nodes = rdzv->settings.max_nodes,
        .last_call_left_ms = left_ms(state->deadline, now),
        .deadline_left_ms = left_ms(deadline, now),
    };
    rdzv->settings.on_event(rdzv->settings.on_event_userdata, &event);
}

tether_status tether__rdzv_failed(tether_rdzv *rdzv,
                                  const char *name,
                                  tether_status status,
                                  const tether_error *err,
                                  tether_error *reterr)
{
    pthread_mutex_lock(&rdzv->mu);
    tether__rdzv_event_locked(rdzv, TETHER_RDZV_FAILED, name, TETHER__NEVER, status, "%s",
                              err->message);
    pthread_mutex_unlock(&rdzv->mu);
    if (reterr)
        *reterr = *err;
    return status;
}

void tether__rdzv_members_locked(tether_rdzv *rdzv, struct tether_rdzv_members *ret_members)
{
    const struct tether__rdzv_state *state = rdzv->holder->ops->state(rdzv->holder);
    struct tether_rdzv_members members = {
        .round = state->round,
        .world_size = state->world_size,
        .participants = (int)tether__rdzv_num_participants(state),
        .waiting = (int)tether__rdzv_num_waiting(state),
        .redundant = (int)tether__rdzv_num_redundant(state),
        .closed = state->closed,
    };
    members.changed =
        rdzv->joined && (members.closed || !state->complete || members.round != rdzv->round ||
                         members.participants < members.world_size || members.waiting > 0 ||
                         !tether__rdzv_roster_find(&state->participants, &rdzv->self.node));
    *ret_members = members;
}
