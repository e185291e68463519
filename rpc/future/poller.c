/* Leader and followers, and the background thread. See poller.h. */
#include "rpc/future/poller.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/threads/state.h"
#include "base/threads/thread.h"
#include "rpc/future/internal.h"
#include "rpc/future/thread_context.h"
#include "rpc/transport/transport.h"

/* How long the background thread leaves the queue to the threads that make synchronous calls, and
 * the deferred frames to the threads that made them. */
#define GRACE_NS (2 * TETHER__NS_PER_MS)

/* So many events are handled before calls that wait to be written are. */
#define MAX_POSTPONED 16

_Thread_local struct tether__current tether__current;

/* `left_ns` from now, on the clock that semaphores and conditions can wait for. */
static struct timespec monotonic_in(int64_t left_ns)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    int64_t ns = ts.tv_nsec + left_ns % TETHER__NS_PER_S;
    ts.tv_sec += left_ns / TETHER__NS_PER_S + ns / TETHER__NS_PER_S;
    ts.tv_nsec = ns % TETHER__NS_PER_S;
    return ts;
}

void tether__waiter_sleep(struct tether__waiter *waiter,
                          const struct tether__clock *clock,
                          int64_t deadline)
{
    int rc;
    do {
        if (deadline == TETHER__NEVER) {
            rc = sem_wait(&waiter->wake);
        } else {
            int64_t left = deadline - tether__clock_now_ns(clock);
            struct timespec until = monotonic_in(left > 0 ? left : 0);
            rc = sem_clockwait(&waiter->wake, CLOCK_MONOTONIC, &until);
        }
    } while (rc != 0 && errno == EINTR);
}

/* While a thread leads, stop() waits, so the transport exists; else there is no thread to wake. */
static void wake_leader_locked(struct tether__progress *progress)
{
    if (progress->led)
        progress->transport->ops->wake(progress->transport, TETHER__CLIENT);
}

static void wake_leader(struct tether__progress *progress)
{
    pthread_mutex_lock(&progress->mu);
    wake_leader_locked(progress);
    pthread_mutex_unlock(&progress->mu);
}

void tether__waiter_wake(struct tether__waiter *waiter)
{
    if (!atomic_load(&waiter->polling))
        sem_post(&waiter->wake);
    else if (tether__current.polling != waiter->progress)
        wake_leader(waiter->progress);
}

/* Handles received answers before deferred frames are written: the thread that gets the answers may
 * have more to write. Without this, the calls of a thread that keeps many in flight would leave in
 * ever smaller messages. */
static bool take_answers_first(struct tether__progress *progress)
{
    struct tether__transport *transport = progress->transport;
    if (progress->postponed == MAX_POSTPONED || !progress->ops->deferred(progress->userdata) ||
        !transport->ops->poll_ready(transport, TETHER__CLIENT)) {
        progress->postponed = 0;
        return false;
    }
    progress->postponed++;
    return true;
}

static struct tether__reaper *reaper_of(struct tether__progress *progress)
{
    return progress->ops->reaper ? progress->ops->reaper(progress->userdata) : NULL;
}

static bool poll_client(struct tether__progress *progress, int64_t deadline)
{
    struct tether__progress *outer = tether__current.polling;
    struct tether__reaper *outer_reaper = tether__thread_state.reaper;
    bool alive = true;
    tether__current.polling = progress;
    if (!take_answers_first(progress)) {
        progress->ops->flush(progress->userdata);
        struct tether__call_context own = tether__context_leave();
        tether__thread_state.reaper = reaper_of(progress);
        alive = progress->transport->ops->poll(progress->transport, TETHER__CLIENT, deadline);
        tether__thread_state.reaper = outer_reaper;
        tether__context_return(own);
    }
    tether__current.polling = outer;
    return alive;
}

static void stop_resting_locked(struct tether__progress *progress)
{
    if (!atomic_load_explicit(&progress->resting, memory_order_relaxed))
        return;
    atomic_store(&progress->resting, false);
    pthread_cond_signal(&progress->background_wake);
}

/* No thread leads: makes the first follower the leader, else wakes the background thread. */
static void pass_lead_locked(struct tether__progress *progress)
{
    struct tether__list *node = progress->followers.next;
    if (node != &progress->followers) {
        tether__list_remove(node);
        sem_post(&tether__list_entry(node, struct tether__waiter, follower_node)->wake);
    } else {
        stop_resting_locked(progress);
    }
}

/* False: the transport is shut down, only others can finish the future now. */
static bool lead(struct tether__progress *progress,
                 tether_future *future,
                 struct tether__waiter *waiter,
                 int64_t deadline)
{
    /* finish() sets `done`, then looks at `polling`; we set `polling`, then look at `done`. */
    atomic_store(&waiter->polling, true);
    bool alive = true, is_first = true; /* the caller has just looked at the clock */
    while (alive && !atomic_load(&future->done) && !atomic_load(&progress->stopping) &&
           (is_first || tether__clock_now_ns(progress->clock) < deadline)) {
        alive = poll_client(progress, deadline);
        is_first = false;
    }
    atomic_store(&waiter->polling, false);
    return alive;
}

/* Another thread polls, or none may: sleeps until the future is done or this thread is to lead. */
static void follow_locked(struct tether__progress *progress,
                          struct tether__waiter *waiter,
                          int64_t deadline)
{
    tether__list_push_back(&progress->followers, &waiter->follower_node);
    if (progress->background_leads)
        wake_leader_locked(progress);
    pthread_mutex_unlock(&progress->mu);
    progress->ops->flush(progress->userdata);
    tether__waiter_sleep(waiter, progress->clock, deadline);
    pthread_mutex_lock(&progress->mu);
    tether__list_remove(&waiter->follower_node);
}

void tether__progress_wait(struct tether__progress *progress,
                           tether_future *future,
                           struct tether__waiter *waiter,
                           int64_t deadline)
{
    bool alive = true;
    pthread_mutex_lock(&progress->mu);
    while (!atomic_load(&future->done) && tether__clock_now_ns(progress->clock) < deadline) {
        if (alive && !progress->led && !atomic_load(&progress->stopping)) {
            progress->led = true;
            progress->turns++;
            atomic_store_explicit(&progress->threads_lead, progress->threaded,
                                  memory_order_relaxed);
            pthread_mutex_unlock(&progress->mu);
            alive = lead(progress, future, waiter, deadline);
            pthread_mutex_lock(&progress->mu);
            progress->led = false;
            progress->last_led = tether__clock_now_ns(progress->clock);
            if (atomic_load(&progress->stopping))
                pthread_cond_signal(&progress->none_leads);
            pass_lead_locked(progress);
        } else {
            follow_locked(progress, waiter, deadline);
        }
    }
    /* This thread may have been made the leader although its future is done. */
    if (!progress->led)
        pass_lead_locked(progress);
    pthread_mutex_unlock(&progress->mu);
}

static void background_sleep_locked(struct tether__progress *progress, int64_t until)
{
    progress->background_sleeps = true;
    if (until == TETHER__NEVER) {
        pthread_cond_wait(&progress->background_wake, &progress->mu);
    } else {
        int64_t left = until - tether__clock_now_ns(progress->clock);
        struct timespec ts = monotonic_in(left > 0 ? left : 0);
        pthread_cond_timedwait(&progress->background_wake, &progress->mu, &ts);
    }
    progress->background_sleeps = false;
}

void tether__progress_run_due(struct tether__progress *progress, int64_t now)
{
    if (atomic_load(&progress->next_due) > now)
        return;
    /* A kick from here on lowers it again; tick() handles the earlier ones. */
    atomic_store(&progress->next_due, TETHER__NEVER);
    tether__progress_kick(progress, progress->ops->tick(progress->userdata, now));
}

void tether__progress_frames_deferred(struct tether__progress *progress)
{
    if (!atomic_load(&progress->resting))
        return;
    pthread_mutex_lock(&progress->mu);
    stop_resting_locked(progress);
    pthread_mutex_unlock(&progress->mu);
}

/* Whether to rest: the thread that leads is still the `turn`-th, and no frame is deferred. A thread
 * that defers a frame makes it visible first and then looks at `resting`; this does the two the
 * other way round, so one of them sees the other. */
static bool begin_rest_locked(struct tether__progress *progress, uint64_t turn)
{
    if (!progress->led || progress->turns != turn)
        return false;
    atomic_store(&progress->resting, true);
    if (progress->ops->deferred(progress->userdata))
        atomic_store(&progress->resting, false);
    return atomic_load_explicit(&progress->resting, memory_order_relaxed);
}

/* Ends a rest. True: another thread ended it already, since it defers a frame or leads no more. */
static bool end_rest_locked(struct tether__progress *progress)
{
    return !atomic_exchange(&progress->resting, false);
}

/* The background thread's notes on the last time that another thread led. */
struct look {
    uint64_t turn; /* of the thread that led */
    bool woken;    /* from a rest, by another thread */
};

/* Leaves the lead to others (if not `others_lead`: no thread can poll any more) for GRACE_NS, or
 * until something happens when the same thread has led for that long. */
static void leave_lead_locked(struct tether__progress *progress,
                              bool others_lead,
                              struct look *look)
{
    if (!look->woken) { /* else the thread that deferred a frame may be about to defer more */
        pthread_mutex_unlock(&progress->mu);
        progress->ops->flush(progress->userdata); /* of a thread that went on without waiting */
        pthread_mutex_lock(&progress->mu);
    }
    bool rests = !look->woken && begin_rest_locked(progress, look->turn);
    look->turn = progress->turns;
    int64_t until = atomic_load(&progress->next_due); /* a kick may have found no thread asleep */
    if (others_lead && !rests) {
        int64_t again = tether__clock_now_ns(progress->clock) + GRACE_NS;
        until = again < until ? again : until;
    }
    if (!progress->stopping)
        background_sleep_locked(progress, until);
    look->woken = rests && end_rest_locked(progress);
}

static void *background_main(void *arg)
{
    struct tether__progress *progress = arg;
    tether__thread_state.reaper = reaper_of(progress);
    struct look look = {0};
    bool alive = true, has_ticked = false;
    pthread_mutex_lock(&progress->mu);
    while (!progress->stopping) {
        int64_t now = tether__clock_now_ns(progress->clock);
        /* Timers that work in slices are due again at once: messages come in between. */
        has_ticked = !has_ticked && atomic_load(&progress->next_due) <= now;
        if (has_ticked) {
            pthread_mutex_unlock(&progress->mu);
            tether__progress_run_due(progress, now);
            pthread_mutex_lock(&progress->mu);
            continue;
        }
        int64_t due = atomic_load(&progress->next_due);
        bool others_lead = progress->led || !tether__list_empty(&progress->followers) ||
                           now - progress->last_led < GRACE_NS;
        if (others_lead || !alive) {
            leave_lead_locked(progress, others_lead, &look);
            continue;
        }
        atomic_store(&progress->threads_lead,
                     false); /* then flush(); a thread that defers looks last */
        progress->led = progress->background_leads = true;
        pthread_mutex_unlock(&progress->mu);
        alive = poll_client(progress, due);
        pthread_mutex_lock(&progress->mu);
        progress->led = progress->background_leads = false;
        if (!tether__list_empty(&progress->followers))
            progress->last_led = tether__clock_now_ns(progress->clock);
        pass_lead_locked(progress);
    }
    pthread_mutex_unlock(&progress->mu);
    return NULL;
}

void tether__progress_kick(struct tether__progress *progress, int64_t due)
{
    int64_t present = atomic_load(&progress->next_due);
    while (due < present)
        if (atomic_compare_exchange_weak(&progress->next_due, &present, due))
            break;
    if (due >= present || !progress->threaded)
        return;
    /* Of the threads that poll, the background thread looks at next_due before it polls again, and
     * for the others the background thread comes by, unless it rests. It looks at next_due last. */
    if (tether__current.polling == progress && !atomic_load(&progress->resting))
        return;
    pthread_mutex_lock(&progress->mu);
    if (progress->background_leads)
        wake_leader_locked(progress);
    if (progress->background_sleeps)
        pthread_cond_signal(&progress->background_wake);
    pthread_mutex_unlock(&progress->mu);
}

tether_status tether__progress_start(struct tether__progress *progress,
                                     struct tether__transport *transport,
                                     const struct tether__clock *clock,
                                     const struct tether__progress_ops *ops,
                                     void *userdata,
                                     bool threaded,
                                     tether_error *reterr)
{
    memset(progress, 0, sizeof *progress);
    progress->transport = transport;
    progress->clock = clock;
    progress->ops = ops;
    progress->userdata = userdata;
    progress->threaded = threaded;
    atomic_init(&progress->next_due, 0);
    progress->last_led = INT64_MIN / 2;
    tether__list_init(&progress->followers);
    pthread_mutex_init(&progress->mu, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&progress->background_wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&progress->none_leads, NULL);
    if (!threaded)
        return TETHER_OK;
    int rc = tether__thread_start(&progress->thread, "tether-back", background_main, progress);
    if (rc != 0) {
        tether__progress_fini(progress);
        return tether_error_set(reterr, TETHER_EIO, "starting the background thread: %s",
                                strerror(rc));
    }
    return TETHER_OK;
}

void tether__progress_stop(struct tether__progress *progress)
{
    pthread_mutex_lock(&progress->mu);
    atomic_store(&progress->stopping, true);
    pthread_cond_signal(&progress->background_wake);
    wake_leader_locked(progress);
    pthread_mutex_unlock(&progress->mu);
    if (progress->threaded)
        pthread_join(progress->thread, NULL);
    pthread_mutex_lock(&progress->mu);
    while (progress->led)
        pthread_cond_wait(&progress->none_leads, &progress->mu);
    pthread_mutex_unlock(&progress->mu);
}

void tether__progress_fini(struct tether__progress *progress)
{
    pthread_cond_destroy(&progress->none_leads);
    pthread_cond_destroy(&progress->background_wake);
    pthread_mutex_destroy(&progress->mu);
}
