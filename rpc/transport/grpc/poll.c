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

#include "base/handover.h"
#include "rpc/transport/grpc/grpc.h"

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
    (void)ok; /* the watch always fails: it is only there to make an event */
    struct tether__grpc_side *side = tether__container_of(op, struct tether__grpc_side, woken);
    atomic_store(&side->wake_pending, false);
    tether__grpc_side_leave(side);
}

static void wake(struct tether__grpc_side *side)
{
    if (atomic_exchange(&side->wake_pending, true))
        return; /* the event is on its way */
    struct tether__grpc *transport = side->transport;
    pthread_mutex_lock(&transport->mu);
    bool shut = side->shut;
    if (!shut)
        side->users++; /* also while stopping: the side has other users then, or it would be shut */
    pthread_mutex_unlock(&transport->mu);
    if (shut)
        return; /* poll() returns at once anyway */
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
        wake(side); /* whoever polls now has gone to sleep for longer */
}

/* Takes out one conn whose time has come, with a reference; NULL: none has, and next_deadline is
 * right again. */
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

static grpc_event ask_now(struct tether__grpc_side *side)
{
    return grpc_completion_queue_next(side->queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
}

static int64_t now(void)
{
    return tether__clock_now_ns(&tether__clock_system);
}

static grpc_event spin_for(struct tether__grpc_side *side, int64_t deadline)
{
    struct tether__grpc_stats *stats = &side->transport->stats;
    grpc_event event = {.type = GRPC_QUEUE_TIMEOUT};
    if (!side->emptied) /* to ask for nothing costs a system call */
        event = ask_now(side);
    side->emptied = false;
    if (event.type != GRPC_QUEUE_TIMEOUT)
        return event; /* was there already: says nothing about spinning */
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

static void handle(grpc_event event)
{
    if (event.type != GRPC_OP_COMPLETE)
        return;
    struct tether__grpc_op *op = event.tag;
    tether__take_over(op);
    op->done(op, event.success);
}

bool tether__grpc_poll_ready(struct tether__transport *transport, enum tether__side which)
{
    struct tether__grpc_side *side = &tether__grpc_of(transport)->sides[which];
    tether__grpc_receive_all(side);
    grpc_event event = ask_now(side);
    handle(event);
    return event.type == GRPC_OP_COMPLETE;
}

bool tether__grpc_poll(struct tether__transport *transport,
                       enum tether__side which,
                       int64_t deadline)
{
    struct tether__grpc_side *side = &tether__grpc_of(transport)->sides[which];
    tether__grpc_receive_all(side);
    int64_t until = atomic_load(&side->next_deadline);
    if (deadline < until)
        until = deadline;

    grpc_event event = {.type = GRPC_QUEUE_TIMEOUT};
    if (tether__spin_may(&side->spin))
        event = spin_for(side, until);
    if (event.type == GRPC_QUEUE_TIMEOUT)
        event = grpc_completion_queue_next(side->queue, span_until(until), NULL);

    handle(event);
    expire(side);
    return event.type != GRPC_QUEUE_SHUTDOWN;
}
