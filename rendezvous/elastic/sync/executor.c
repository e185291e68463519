/* The loop that calls ops and applies their actions. */
#include "rendezvous/elastic/sync/executor.h"

#include <inttypes.h>

#define SYNC_NS TETHER__NS_PER_S
#define FIRST_BACKOFF_NS (10 * TETHER__NS_PER_MS)
#define MAX_BACKOFF_NS TETHER__NS_PER_S
#define IO_GRACE_NS TETHER__NS_PER_S

/* One run of one op. */
struct run {
    int64_t deadline;
    int64_t backoff_ns;
    enum tether__rdzv_sync sync;
    enum tether__rdzv_action asked; /* the action that the last ASKED sync() sent to the leader */
    bool redundant;                 /* the node was a spare at the last step */
};

static void lock(struct tether__rdzv_executor *executor)
{
    if (executor->mu)
        pthread_mutex_lock(executor->mu);
}

static void unlock(struct tether__rdzv_executor *executor)
{
    if (executor->mu)
        pthread_mutex_unlock(executor->mu);
}

static tether_status failure(const struct tether__rdzv_executor *executor,
                             enum tether__rdzv_action action,
                             tether_error *reterr)
{
    char node[TETHER__RDZV_NODE_TEXT];
    const char *run_id = executor->settings->run_id;
    const struct tether__rdzv_state *state = executor->holder->ops->state(executor->holder);
    switch (action) {
        case TETHER__RDZV_ERROR_CLOSED:
            return tether_error_set(reterr, TETHER_ECLOSED,
                                    "the rendezvous '%s' is closed: no node can join it any more",
                                    run_id);
        case TETHER__RDZV_ERROR_GRACEFUL_EXIT:
            return tether_error_set(reterr, TETHER_ESHUTDOWN,
                                    "the rendezvous '%s' was closed while this node stood by as a "
                                    "spare: nothing is left to do",
                                    run_id);
        default:
            return tether_error_set(reterr, TETHER_ETIMEOUT,
                                    "%s ran out of time at rendezvous '%s': round %" PRIu64
                                    " has %zu of %d to %d nodes",
                                    tether__rdzv_node_format(&executor->self->node, node), run_id,
                                    state->round, tether__rdzv_num_participants(state),
                                    executor->settings->min_nodes, executor->settings->max_nodes);
    }
}

/* A spare has no deadline; when it stops being one, its time to join starts. */
static void restart_clock_of_spare(const struct tether__rdzv_executor *executor,
                                   struct run *run,
                                   const struct tether__rdzv_context *context)
{
    bool redundant =
        tether__rdzv_roster_find(&context->state->redundancy_list, context->node) != NULL;
    if (run->redundant && !redundant)
        run->deadline = context->now + executor->settings->timeouts.join_ms * TETHER__NS_PER_MS;
    run->redundant = redundant;
}

/* Syncs, decides, applies. `ret_action` is FINISH, SYNC (pause as `ret_pause` says), or the action
 * that was applied; it is untouched when the last change was lost, since nothing is decided then.
 */
static tether_status step_locked(struct tether__rdzv_executor *executor,
                                 tether__rdzv_op *op,
                                 struct run *run,
                                 enum tether__rdzv_action *ret_action,
                                 struct tether__rdzv_pause *ret_pause,
                                 tether_error *reterr)
{
    struct tether__rdzv_holder *holder = executor->holder;
    int64_t now = tether__rdzv_now(executor->env);
    int64_t io_deadline = run->deadline;
    if (run->redundant)
        io_deadline = TETHER__NEVER;
    /* leave some time to take the node off the lists again */
    else if (io_deadline < now + IO_GRACE_NS)
        io_deadline = now + IO_GRACE_NS;
    tether_status st = holder->ops->sync(holder, io_deadline, &run->sync, reterr);
    if (st != TETHER_OK || run->sync == TETHER__RDZV_LOST)
        return st;

    struct tether__rdzv_context context = {
        .node = &executor->self->node,
        .state = holder->ops->state(holder),
        .settings = executor->settings,
        .now = tether__rdzv_now(executor->env),
    };
    restart_clock_of_spare(executor, run, &context);
    enum tether__rdzv_action action = op(&context, run->deadline);
    if (run->sync == TETHER__RDZV_ASKED && action == run->asked)
        action = TETHER__RDZV_SYNC; /* the leader has not answered the request yet: wait */
    if (executor->on_step)
        executor->on_step(executor->userdata, &context, action, run->deadline);

    if (action > TETHER__RDZV_FINISH)
        return failure(executor, action, reterr);
    if (tether__rdzv_action_changes(action)) {
        st = tether__rdzv_apply(holder->ops->state(holder), action, executor->self,
                                executor->settings, context.now);
        if (st != TETHER_OK)
            return tether_error_set(reterr, st, "out of memory to change the rendezvous state");
        holder->ops->mark_dirty(holder, action);
        run->asked = action;
    } else if (action == TETHER__RDZV_SYNC) {
        holder->ops->plan(holder, SYNC_NS, ret_pause);
    }
    *ret_action = action;
    return TETHER_OK;
}

static void back_off(struct tether__rdzv_executor *executor, struct run *run)
{
    tether__rdzv_delay_random(executor->env, run->backoff_ns);
    run->backoff_ns *= 2;
    if (run->backoff_ns > MAX_BACKOFF_NS)
        run->backoff_ns = MAX_BACKOFF_NS;
}

tether_status tether__rdzv_execute(struct tether__rdzv_executor *executor,
                                   tether__rdzv_op *op,
                                   int64_t deadline,
                                   tether_error *reterr)
{
    struct run run = {
        .deadline = deadline, .backoff_ns = FIRST_BACKOFF_NS, .asked = TETHER__RDZV_FINISH};
    for (;;) {
        enum tether__rdzv_action action = TETHER__RDZV_FINISH;
        struct tether__rdzv_pause pause;
        lock(executor);
        tether_status st = step_locked(executor, op, &run, &action, &pause, reterr);
        unlock(executor);
        if (st != TETHER_OK)
            return st;
        if (executor->cancel && atomic_load(executor->cancel))
            return tether_error_set(reterr, TETHER_ECANCELED,
                                    "joining the rendezvous '%s' was canceled",
                                    executor->settings->run_id);
        if (run.sync == TETHER__RDZV_LOST) {
            back_off(executor, &run);
            continue;
        }
        run.backoff_ns = FIRST_BACKOFF_NS;
        if (action == TETHER__RDZV_FINISH)
            return TETHER_OK;
        if (action == TETHER__RDZV_SYNC) {
            st = executor->holder->ops->pause(executor->holder, &pause, reterr);
            if (st != TETHER_OK)
                return st;
        }
    }
}
