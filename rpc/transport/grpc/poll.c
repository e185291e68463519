/* Polling one side: wait for an event of its queue, handle it, and look after deadlines.
 *
 * Happy path: the queue has an event, or one comes while the poller spins or blocks; done() of its
 * op runs here, holding no lock.
 *
 * One event per poll(): gRPC gives a second one that is ready without a system call when poll() is
 * called again, but to find out that there is none costs one.
 *
 * The spin: before it blocks, a poller asks the queue again and again, by the rule of spin.h.
 */
#include <sched.h>

#include "base/threads/handover.h"
#include "rpc/transport/grpc/take.h"

/* ---- Users of the queue ---- */

bool tether__grpc_side_enter_locked(struct tether__grpc_side *side)
{
    if (side->transport->stopping)
        return false;
    side->users++;
    return true;
}

bool tether__grpc_side_enter(struct tether__grpc_side *side)
{
    pthread_mutex_lock(&side->transport->mu);
    bool entered = tether__grpc_side_enter_locked(side);
    pthread_mutex_unlock(&side->transport->mu);
    return entered;
}

void tether__grpc_side_leave(struct tether__grpc_side *side)
{
    pthread_mutex_lock(&side->transport->mu);
    bool last = --side->users == 0;
    side->shut |= last;
    pthread_mutex_unlock(&side->transport->mu);
    if (last)
        grpc_completion_queue_shutdown(side->queue);
}

bool tether__grpc_start(struct tether__grpc *transport,
                        grpc_call *call,
                        const grpc_op *ops,
                        size_t n,
                        struct tether__grpc_op *op)
{
    atomic_fetch_add_explicit(&transport->stats.batches, 1, memory_order_relaxed);
    tether__hand_over(op);
    return grpc_call_start_batch(call, ops, n, op, NULL) == GRPC_CALL_OK;
}

/* ---- Waking ---- */

static void on_woken(struct tether__grpc_op *op, bool ok)
{
    (void)ok; /* this watch always fails; it exists only to make an event */
    struct tether__grpc_side *side = tether__container_of(op, struct tether__grpc_side, woken);
    atomic_store(&side->wake_pending, false);
    tether__grpc_side_leave(side);
}

static void wake(struct tether__grpc_side *side)
{
    if (atomic_exchange(&side->wake_pending, true))
        return; /* an earlier call has sent a wake-up that was not handled yet */
    struct tether__grpc *transport = side->transport;
    pthread_mutex_lock(&transport->mu);
    bool shut = side->shut;
    if (!shut)
        side->users++; /* allowed also while stopping: a queue that is not shut down still has other
                          users */
    pthread_mutex_unlock(&transport->mu);
    if (shut)
        return; /* when the queue is shut down, poll() returns at once anyway */
    side->woken.done = on_woken;
    tether__hand_over(&side->woken);
    atomic_fetch_add_explicit(&transport->stats.wakes, 1, memory_order_relaxed);
    grpc_channel_watch_connectivity_state(transport->lame, GRPC_CHANNEL_TRANSIENT_FAILURE,
                                          gpr_inf_past(GPR_CLOCK_MONOTONIC), side->queue,
                                          &side->woken);
}

void tether__grpc_wake(struct tether__transport *transport, enum tether__side side)
{
    wake(&tether__grpc_of(transport)->sides[side]);
}

/* ---- Events that other threads take ---- */

static grpc_event ask_now(struct tether__grpc_side *side)
{
    return grpc_completion_queue_next(side->queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
}

static void leave_locked(struct tether__grpc_side *side, struct tether__grpc_op *op, bool ok)
{
    struct tether__grpc_op **end = &side->left;
    while (*end)
        end = &(*end)->next;
    op->next = NULL;
    op->ok = ok;
    *end = op;
    atomic_store(&side->has_left, true);
}

static void leave(struct tether__grpc_side *side, struct tether__grpc_op *op, bool ok)
{
    pthread_mutex_lock(&side->transport->mu);
    leave_locked(side, op, ok);
    pthread_mutex_unlock(&side->transport->mu);
}

void tether__grpc_leave_to_poller(struct tether__grpc_side *side,
                                  struct tether__grpc_op *op,
                                  bool ok)
{
    if (op == &side->woken)
        on_woken(op, ok);
    else
        leave(side, op, ok);
    wake(side);
}

/* Takes `op` (NULL: the first one) out of the list `left`. Returns NULL if it is not there. */
static struct tether__grpc_op *take_left(struct tether__grpc_side *side,
                                         const struct tether__grpc_op *op)
{
    if (!atomic_load(&side->has_left))
        return NULL;
    pthread_mutex_lock(&side->transport->mu);
    struct tether__grpc_op **at = &side->left;
    while (*at && op && *at != op)
        at = &(*at)->next;
    struct tether__grpc_op *taken = *at;
    if (taken)
        *at = taken->next;
    atomic_store(&side->has_left, side->left != NULL);
    pthread_mutex_unlock(&side->transport->mu);
    return taken;
}

/* The side of which this thread handles an event; NULL: none. */
static _Thread_local const struct tether__grpc_side *handling;

/* Whether another thread polls the side and is handling an event, which may take as long as a
 * function runs. */
static bool poller_is_away(const struct tether__grpc_side *side)
{
    return handling != side && atomic_load(&side->poller) != TETHER__GRPC_ASKS;
}

/* Moves events of the queue to `left`. The poller handles these before it asks the queue, so the
 * order of events stays. */
bool tether__grpc_take_event(struct tether__grpc_side *side,
                             struct tether__grpc_op *op,
                             bool *ret_ok)
{
    int handles = TETHER__GRPC_HANDLES;
    if (!poller_is_away(side))
        return false;
    pthread_mutex_lock(&side->take_mu);
    bool may = atomic_compare_exchange_strong(&side->poller, &handles, TETHER__GRPC_TAKEN);
    if (may) {
        grpc_event event;
        while ((event = ask_now(side)).type == GRPC_OP_COMPLETE) {
            tether__take_over(event.tag);
            leave(side, event.tag, event.success);
        }
        op = take_left(side, op);
        atomic_store(&side->poller, TETHER__GRPC_HANDLES);
    }
    pthread_mutex_unlock(&side->take_mu);
    if (!may || !op)
        return false;
    tether__take_over(op);
    *ret_ok = op->ok;
    return true;
}

/* Lets other threads take events from the queue until end_handling(). */
static void begin_handling(struct tether__grpc_side *side)
{
    handling = side;
    atomic_store_explicit(&side->poller, TETHER__GRPC_HANDLES, memory_order_release);
}

static void end_handling(struct tether__grpc_side *side)
{
    int handles = TETHER__GRPC_HANDLES;
    handling = NULL;
    while (!atomic_compare_exchange_strong(&side->poller, &handles, TETHER__GRPC_ASKS)) {
        /* waits until a thread that takes events has finished */
        pthread_mutex_lock(&side->take_mu);
        pthread_mutex_unlock(&side->take_mu);
        handles = TETHER__GRPC_HANDLES;
    }
}

/* ---- Deadlines of conns ---- */

void tether__grpc_set_deadline(struct tether__grpc_conn *conn, int64_t deadline)
{
    struct tether__grpc_side *side = conn->side;
    struct tether__grpc *transport = side->transport;
    bool earlier = false;
    pthread_mutex_lock(&transport->mu);
    tether__list_remove(&conn->timed);
    conn->deadline = deadline;
    if (deadline != TETHER__NEVER) {
        tether__list_push_back(&side->timed, &conn->timed);
        earlier = deadline < atomic_load(&side->next_deadline);
        if (earlier)
            atomic_store(&side->next_deadline, deadline);
    }
    pthread_mutex_unlock(&transport->mu);
    if (earlier)
        wake(side); /* the polling thread computed a later wake-up time before it blocked */
}

/* Takes one conn whose deadline has passed, with a reference, out of `timed`. NULL: there is none,
 * and `next_deadline` was updated. */
static struct tether__grpc_conn *take_expired(struct tether__grpc_side *side, int64_t now)
{
    struct tether__grpc_conn *expired = NULL;
    int64_t next = TETHER__NEVER;
    pthread_mutex_lock(&side->transport->mu);
    TETHER__LIST_FOR_EACH(it, &side->timed) {
        struct tether__grpc_conn *conn = tether__list_entry(it, struct tether__grpc_conn, timed);
        if (conn->deadline <= now) {
            expired = conn;
            break;
        }
        if (conn->deadline < next)
            next = conn->deadline;
    }
    if (expired) {
        tether__list_remove(&expired->timed);
        tether__grpc_conn_ref(expired);
    } else {
        atomic_store(&side->next_deadline, next);
    }
    pthread_mutex_unlock(&side->transport->mu);
    return expired;
}

static void expire(struct tether__grpc_side *side)
{
    int64_t now = tether__clock_now_ns(&tether__clock_system);
    if (now < atomic_load(&side->next_deadline))
        return;
    struct tether__grpc_conn *conn;
    while ((conn = take_expired(side, now))) {
        tether__grpc_expired(conn);
        tether__grpc_conn_unref(conn);
    }
}

/* ---- Waiting ---- */

static int64_t now(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

static grpc_event spin_for(struct tether__grpc_side *side, int64_t deadline)
{
    struct tether__grpc_stats *stats = &side->transport->stats;
    grpc_event event = {.type = GRPC_QUEUE_TIMEOUT};
    bool emptied = atomic_load_explicit(&side->emptied, memory_order_relaxed);
    if (!emptied) /* skip the check if the queue is known to be empty: it costs a system call */
        event = ask_now(side);
    else
        atomic_store_explicit(&side->emptied, false, memory_order_relaxed);
    if (event.type != GRPC_QUEUE_TIMEOUT)
        return event; /* the event was there before the spin, so it does not count as a hit */
    int64_t begin = now(), end = begin + side->spin.ns, at;
    do {
        sched_yield();
        event = ask_now(side);
        at = now();
        if (event.type != GRPC_QUEUE_TIMEOUT) {
            tether__spin_hit(&side->spin, at - begin);
            atomic_fetch_add_explicit(&stats->spin_hits, 1, memory_order_relaxed);
            return event;
        }
    } while (at < (end < deadline ? end : deadline));
    tether__spin_missed(&side->spin);
    atomic_fetch_add_explicit(&stats->spin_misses, 1, memory_order_relaxed);
    return event;
}

static gpr_timespec span_until(int64_t deadline)
{
    if (deadline == TETHER__NEVER)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    int64_t left = deadline - tether__clock_now_ns(&tether__clock_system);
    return left > 0 ? gpr_time_from_nanos(left, GPR_TIMESPAN) : gpr_inf_past(GPR_CLOCK_MONOTONIC);
}

static void complete(struct tether__grpc_side *side, struct tether__grpc_op *op, bool ok)
{
    tether__take_over(op);
    begin_handling(side);
    op->done(op, ok);
    end_handling(side);
}

static bool handle(struct tether__grpc_side *side, grpc_event event)
{
    if (event.type == GRPC_OP_COMPLETE)
        complete(side, event.tag, event.success);
    return event.type == GRPC_OP_COMPLETE;
}

static bool handle_left(struct tether__grpc_side *side)
{
    struct tether__grpc_op *op = take_left(side, NULL);
    if (op)
        complete(side, op, op->ok);
    return op;
}

bool tether__grpc_poll_ready(struct tether__transport *transport, enum tether__side which)
{
    struct tether__grpc_side *side = &tether__grpc_of(transport)->sides[which];
    tether__grpc_receive_all(side);
    return handle_left(side) || handle(side, ask_now(side));
}

/* Waits for the next event and handles it. Returns false when the queue is shut down and drained.
 */
static bool handle_next(struct tether__grpc_side *side, int64_t until)
{
    grpc_event event = {.type = GRPC_QUEUE_TIMEOUT};
    if (tether__spin_may(&side->spin))
        event = spin_for(side, until);
    if (event.type == GRPC_QUEUE_TIMEOUT)
        event = grpc_completion_queue_next(side->queue, span_until(until), NULL);
    handle(side, event);
    return event.type != GRPC_QUEUE_SHUTDOWN;
}

/* Counts the poll and stores the thread's CPU clock, by which the acceptor sees how long one poll
 * takes (unproved.c). */
static void note_poll(struct tether__grpc_side *side)
{
    clockid_t clock;
    unsigned long long polls = atomic_load_explicit(&side->polls, memory_order_relaxed);
    if (!polls && pthread_getcpuclockid(pthread_self(), &clock) == 0)
        atomic_store(&side->cpu_clock, clock);
    atomic_store_explicit(&side->polls, polls + 1, memory_order_release);
}

bool tether__grpc_poll(struct tether__transport *transport,
                       enum tether__side which,
                       int64_t deadline)
{
    struct tether__grpc_side *side = &tether__grpc_of(transport)->sides[which];
    if (!side->queue)
        return false;
    tether__grpc_receive_all(side);
    int64_t until = atomic_load(&side->next_deadline);
    if (deadline < until)
        until = deadline;
    note_poll(side);
    bool alive = handle_left(side) || handle_next(side, until);
    expire(side);
    return alive;
}
