/* Leader and followers, and the background thread. See poller.h. */
#include "rpc/future/poller.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/threads/state.h"
#include "base/threads/thread.h"
#include "rpc/future/thread_context.h"
#include "rpc/transport/transport.h"

/* How long the background thread waits before it polls or flushes itself, so that threads that
 * make synchronous calls can do both. */
#define GRACE_NS (2 * TETHER__NS_PER_MS)

/* How many events may be handled before deferred frames are written. */
#define MAX_POSTPONED 16

_Thread_local struct tether__current tether__current;

/* Returns the time `left_ns` from now on the clock that semaphores and conditions use. */
static struct timespec monotonic_in(int64_t left_ns)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    int64_t ns = ts.tv_nsec + left_ns % TETHER__NS_PER_S;
    ts.tv_sec += left_ns / TETHER__NS_PER_S + ns / TETHER__NS_PER_S;
    ts.tv_nsec = ns % TETHER__NS_PER_S;
    return ts;
}

void tether__waiter_init(struct tether__waiter *waiter, struct tether__poller *poller)
{
    waiter->poller = poller;
    atomic_init(&waiter->polling, false);
    tether__list_init(&waiter->done_node);
    tether__list_init(&waiter->follower_node);
    sem_init(&waiter->wake, 0, 0);
}

void tether__waiter_fini(struct tether__waiter *waiter)
{
    sem_destroy(&waiter->wake);
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

/* Wakes the leader. While a thread leads, stop() waits, so the transport still exists. If none
 * leads, there is no thread to wake. */
static void wake_leader_locked(struct tether__poller *poller)
{
    if (poller->led)
        poller->transport->ops->wake(poller->transport, TETHER__CLIENT);
}

static void wake_leader(struct tether__poller *poller)
{
    pthread_mutex_lock(&poller->mu);
    wake_leader_locked(poller);
    pthread_mutex_unlock(&poller->mu);
}

void tether__waiter_wake(struct tether__waiter *waiter)
{
    if (!atomic_load(&waiter->polling))
        sem_post(&waiter->wake);
    else if (tether__current.polling != waiter->poller)
        wake_leader(waiter->poller);
}

/* Handles received answers before deferred frames are written: the thread that gets the answers may
 * have more to write. Without this, the calls of a thread that keeps many in flight would leave in
 * ever smaller messages. */
static bool take_answers_first(struct tether__poller *poller)
{
    struct tether__transport *transport = poller->transport;
    if (poller->postponed == MAX_POSTPONED || !poller->ops->deferred(poller->userdata) ||
        !transport->ops->poll_ready(transport, TETHER__CLIENT)) {
        poller->postponed = 0;
        return false;
    }
    poller->postponed++;
    return true;
}

static struct tether__reaper *reaper_of(struct tether__poller *poller)
{
    return poller->ops->reaper ? poller->ops->reaper(poller->userdata) : NULL;
}

static bool poll_client(struct tether__poller *poller, int64_t deadline)
{
    struct tether__poller *outer = tether__current.polling;
    struct tether__reaper *outer_reaper = tether__thread_state.reaper;
    bool alive = true;
    tether__current.polling = poller;
    if (!take_answers_first(poller)) {
        poller->ops->flush(poller->userdata);
        struct tether__call_context own = tether__context_leave();
        tether__thread_state.reaper = reaper_of(poller);
        alive = poller->transport->ops->poll(poller->transport, TETHER__CLIENT, deadline);
        tether__thread_state.reaper = outer_reaper;
        tether__context_return(own);
    }
    tether__current.polling = outer;
    return alive;
}

static void stop_resting_locked(struct tether__poller *poller)
{
    if (!atomic_load_explicit(&poller->resting, memory_order_relaxed))
        return;
    atomic_store(&poller->resting, false);
    pthread_cond_signal(&poller->background_wake);
}

/* No thread leads: makes the first follower the leader, else wakes the background thread. */
static void pass_lead_locked(struct tether__poller *poller)
{
    struct tether__list *node = poller->followers.next;
    if (node != &poller->followers) {
        tether__list_remove(node);
        sem_post(&tether__list_entry(node, struct tether__waiter, follower_node)->wake);
    } else {
        stop_resting_locked(poller);
    }
}

/* Polls until `done` is set or the deadline passes. False: the transport is shut down, and only
 * other threads can set `done`. */
static bool lead(struct tether__poller *poller,
                 const _Atomic bool *done,
                 struct tether__waiter *waiter,
                 int64_t deadline)
{
    /* A thread that sets `done` then looks at `polling`. This thread does the two the other way
     * round, so one of them sees the other. */
    atomic_store(&waiter->polling, true);
    bool alive = true, is_first = true; /* the caller has just read the clock */
    while (alive && !atomic_load(done) && !atomic_load(&poller->stopping) &&
           (is_first || tether__clock_now_ns(poller->clock) < deadline)) {
        alive = poll_client(poller, deadline);
        is_first = false;
    }
    atomic_store(&waiter->polling, false);
    return alive;
}

/* Sleeps until this thread is woken or becomes the leader: another thread polls, or none may. */
static void follow_locked(struct tether__poller *poller,
                          struct tether__waiter *waiter,
                          int64_t deadline)
{
    tether__list_push_back(&poller->followers, &waiter->follower_node);
    if (poller->background_leads)
        wake_leader_locked(poller);
    pthread_mutex_unlock(&poller->mu);
    poller->ops->flush(poller->userdata);
    tether__waiter_sleep(waiter, poller->clock, deadline);
    pthread_mutex_lock(&poller->mu);
    tether__list_remove(&waiter->follower_node);
}

void tether__poller_wait(struct tether__poller *poller,
                         const _Atomic bool *done,
                         struct tether__waiter *waiter,
                         int64_t deadline)
{
    bool alive = true;
    pthread_mutex_lock(&poller->mu);
    while (!atomic_load(done) && tether__clock_now_ns(poller->clock) < deadline) {
        if (alive && !poller->led && !atomic_load(&poller->stopping)) {
            poller->led = true;
            poller->turns++;
            atomic_store_explicit(&poller->threads_lead, poller->threaded, memory_order_relaxed);
            pthread_mutex_unlock(&poller->mu);
            alive = lead(poller, done, waiter, deadline);
            pthread_mutex_lock(&poller->mu);
            poller->led = false;
            poller->last_led = tether__clock_now_ns(poller->clock);
            if (atomic_load(&poller->stopping))
                pthread_cond_signal(&poller->none_leads);
            pass_lead_locked(poller);
        } else {
            follow_locked(poller, waiter, deadline);
        }
    }
    /* This thread may have been made the leader although its flag is set. */
    if (!poller->led)
        pass_lead_locked(poller);
    pthread_mutex_unlock(&poller->mu);
}

void tether__poller_pause(struct tether__poller *poller, int64_t until)
{
    static const _Atomic bool never;
    struct tether__waiter waiter;
    tether__waiter_init(&waiter, poller);
    tether__poller_wait(poller, &never, &waiter, until);
    tether__waiter_fini(&waiter);
}

static void background_sleep_locked(struct tether__poller *poller, int64_t until)
{
    poller->background_sleeps = true;
    if (until == TETHER__NEVER) {
        pthread_cond_wait(&poller->background_wake, &poller->mu);
    } else {
        int64_t left = until - tether__clock_now_ns(poller->clock);
        struct timespec ts = monotonic_in(left > 0 ? left : 0);
        pthread_cond_timedwait(&poller->background_wake, &poller->mu, &ts);
    }
    poller->background_sleeps = false;
}

void tether__poller_run_due(struct tether__poller *poller, int64_t now)
{
    if (atomic_load(&poller->next_due) > now)
        return;
    /* A kick that comes now lowers `next_due` again; tick() handles the earlier ones. */
    atomic_store(&poller->next_due, TETHER__NEVER);
    tether__poller_kick(poller, poller->ops->tick(poller->userdata, now));
}

void tether__poller_frames_deferred(struct tether__poller *poller)
{
    if (!atomic_load(&poller->resting))
        return;
    pthread_mutex_lock(&poller->mu);
    stop_resting_locked(poller);
    pthread_mutex_unlock(&poller->mu);
}

/* Whether to rest: the thread that leads is still the `turn`-th, and no frame is deferred. A thread
 * that defers a frame makes it visible first and then looks at `resting`; this does the two the
 * other way round, so one of them sees the other. */
static bool begin_rest_locked(struct tether__poller *poller, uint64_t turn)
{
    if (!poller->led || poller->turns != turn)
        return false;
    atomic_store(&poller->resting, true);
    if (poller->ops->deferred(poller->userdata))
        atomic_store(&poller->resting, false);
    return atomic_load_explicit(&poller->resting, memory_order_relaxed);
}

/* Ends a rest. True: another thread ended it first, because it defers a frame or stops leading. */
static bool end_rest_locked(struct tether__poller *poller)
{
    return !atomic_exchange(&poller->resting, false);
}

/* Notes of the background thread from its last check whether another thread leads. */
struct look {
    uint64_t turn; /* value of `turns` when that thread began to lead */
    bool woken;    /* another thread ended the rest */
};

/* Leaves the lead to other threads for GRACE_NS. If the same thread has led for that long, rests
 * until something happens. `others_lead` false: no thread can poll any more. */
static void leave_lead_locked(struct tether__poller *poller, bool others_lead, struct look *look)
{
    /* if it was woken, the thread that deferred a frame may be about to defer more: give it time */
    if (!look->woken) {
        pthread_mutex_unlock(&poller->mu);
        /* flush frames of threads that deferred them and do not wait */
        poller->ops->flush(poller->userdata);
        pthread_mutex_lock(&poller->mu);
    }
    bool rests = !look->woken && begin_rest_locked(poller, look->turn);
    look->turn = poller->turns;
    /* a kick may have come while no thread was asleep */
    int64_t until = atomic_load(&poller->next_due);
    if (others_lead && !rests) {
        int64_t again = tether__clock_now_ns(poller->clock) + GRACE_NS;
        until = again < until ? again : until;
    }
    if (!poller->stopping)
        background_sleep_locked(poller, until);
    look->woken = rests && end_rest_locked(poller);
}

static void *background_main(void *arg)
{
    struct tether__poller *poller = arg;
    tether__thread_state.reaper = reaper_of(poller);
    struct look look = {0};
    bool alive = true, has_ticked = false;
    pthread_mutex_lock(&poller->mu);
    while (!poller->stopping) {
        int64_t now = tether__clock_now_ns(poller->clock);
        /* Timers that work in slices are due again at once, so handle messages in between. */
        has_ticked = !has_ticked && atomic_load(&poller->next_due) <= now;
        if (has_ticked) {
            pthread_mutex_unlock(&poller->mu);
            tether__poller_run_due(poller, now);
            pthread_mutex_lock(&poller->mu);
            continue;
        }
        int64_t due = atomic_load(&poller->next_due);
        bool others_lead = poller->led || !tether__list_empty(&poller->followers) ||
                           now - poller->last_led < GRACE_NS;
        if (others_lead || !alive) {
            leave_lead_locked(poller, others_lead, &look);
            continue;
        }
        atomic_store(&poller->threads_lead,
                     /* Store this before poll_client() flushes. A thread that defers a frame
                      * reads it last, so one of the two flushes. */
                     false);
        poller->led = poller->background_leads = true;
        pthread_mutex_unlock(&poller->mu);
        alive = poll_client(poller, due);
        pthread_mutex_lock(&poller->mu);
        poller->led = poller->background_leads = false;
        if (!tether__list_empty(&poller->followers))
            poller->last_led = tether__clock_now_ns(poller->clock);
        pass_lead_locked(poller);
    }
    pthread_mutex_unlock(&poller->mu);
    return NULL;
}

void tether__poller_kick(struct tether__poller *poller, int64_t due)
{
    int64_t present = atomic_load(&poller->next_due);
    while (due < present)
        if (atomic_compare_exchange_weak(&poller->next_due, &present, due))
            break;
    if (due >= present || !poller->threaded)
        return;
    /* The background thread reads next_due before each poll. It also does so on behalf of other
     * polling threads, unless it rests, and once more before it rests. */
    if (tether__current.polling == poller && !atomic_load(&poller->resting))
        return;
    pthread_mutex_lock(&poller->mu);
    if (poller->background_leads)
        wake_leader_locked(poller);
    if (poller->background_sleeps)
        pthread_cond_signal(&poller->background_wake);
    pthread_mutex_unlock(&poller->mu);
}

tether_status tether__poller_start(struct tether__poller *poller,
                                   struct tether__transport *transport,
                                   const struct tether__clock *clock,
                                   const struct tether__poller_ops *ops,
                                   void *userdata,
                                   bool threaded,
                                   tether_error *reterr)
{
    memset(poller, 0, sizeof *poller);
    poller->transport = transport;
    poller->clock = clock;
    poller->ops = ops;
    poller->userdata = userdata;
    poller->threaded = threaded;
    atomic_init(&poller->next_due, 0);
    poller->last_led = INT64_MIN / 2;
    tether__list_init(&poller->followers);
    pthread_mutex_init(&poller->mu, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&poller->background_wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&poller->none_leads, NULL);
    if (!threaded)
        return TETHER_OK;
    int rc = tether__thread_start(&poller->thread, "tether-back", background_main, poller);
    if (rc != 0) {
        tether__poller_fini(poller);
        return tether_error_set(reterr, TETHER_EIO, "starting the background thread: %s",
                                strerror(rc));
    }
    return TETHER_OK;
}

void tether__poller_stop(struct tether__poller *poller)
{
    pthread_mutex_lock(&poller->mu);
    atomic_store(&poller->stopping, true);
    pthread_cond_signal(&poller->background_wake);
    wake_leader_locked(poller);
    pthread_mutex_unlock(&poller->mu);
    if (poller->threaded)
        pthread_join(poller->thread, NULL);
    pthread_mutex_lock(&poller->mu);
    while (poller->led)
        pthread_cond_wait(&poller->none_leads, &poller->mu);
    pthread_mutex_unlock(&poller->mu);
}

void tether__poller_fini(struct tether__poller *poller)
{
    pthread_cond_destroy(&poller->none_leads);
    pthread_cond_destroy(&poller->background_wake);
    pthread_mutex_destroy(&poller->mu);
}
