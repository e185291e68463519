/* The background thread of poller.h over a transport that is shut down: it has nothing to poll,
 * but runs the timers until it is stopped. */
#include <semaphore.h>
#include <time.h>

#include "rpc/future/poller.h"
#include "rpc/future/thread_context.h"
#include "rpc/transport/transport.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

struct fixture {
    struct tether__poller poller;
    bool kicked;  /* of the background thread */
    sem_t ticked; /* posted by a tick() after the kick */
};

static bool poll_nothing(struct tether__transport *transport, enum tether__side side, int64_t until)
{
    (void)transport, (void)side, (void)until;
    return false;
}

static bool nothing_ready(struct tether__transport *transport, enum tether__side side)
{
    (void)transport, (void)side;
    return false;
}

static void wake_nobody(struct tether__transport *transport, enum tether__side side)
{
    (void)transport, (void)side;
}

static int64_t tick(void *userdata, int64_t now)
{
    struct fixture *fixture = userdata;
    (void)now;
    if (fixture->kicked)
        sem_post(&fixture->ticked);
    return TETHER__NEVER;
}

/* Kicks once, when the background thread is about to sleep: it does neither that nor poll. */
static void flush(void *userdata)
{
    struct fixture *fixture = userdata;
    if (fixture->kicked || tether__current.polling)
        return;
    fixture->kicked = true;
    tether__poller_kick(&fixture->poller, 0);
}

static bool deferred(const void *userdata)
{
    (void)userdata;
    return false;
}

static void await(sem_t *sem)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 60;
    assert_int_equal(sem_clockwait(sem, CLOCK_MONOTONIC, &until), 0);
}

static void poller_heeds_kick_during_flush(void **state)
{
    (void)state;
    static const struct tether__transport_ops transport_ops = {
        .poll = poll_nothing, .poll_ready = nothing_ready, .wake = wake_nobody};
    static const struct tether__poller_ops poller_ops = {tick, flush, deferred, NULL};
    struct tether__transport transport = {.ops = &transport_ops};
    struct fixture fixture = {.kicked = false};
    sem_init(&fixture.ticked, 0, 0);
    assert_int_equal(tether__poller_start(&fixture.poller, &transport, &tether__clock_system,
                                          &poller_ops, &fixture, true, NULL),
                     TETHER_OK);
    await(&fixture.ticked);
    tether__poller_stop(&fixture.poller);
    tether__poller_fini(&fixture.poller);
    sem_destroy(&fixture.ticked);
}

/* ---- A leader that waits for long ---- */

struct long_wait {
    struct tether__poller poller;
    _Atomic bool done; /* the leader waits for it */
    pthread_t leader;
    sem_t ticked, flushed;
    _Atomic bool kicked, deferred;
};

static struct long_wait *long_wait_of_transport;

/* Only the leader polls. It sleeps in here until the background thread rests, then sets a timer, as
 * an event that it handles might. */
static bool kick_while_background_rests(struct tether__transport *transport,
                                        enum tether__side side,
                                        int64_t until)
{
    (void)transport, (void)side, (void)until;
    struct long_wait *wait = long_wait_of_transport;
    if (!pthread_equal(pthread_self(), wait->leader))
        return true;
    assert_eventually(atomic_load(&wait->poller.resting));
    atomic_store(&wait->kicked, true);
    tether__poller_kick(&wait->poller, 0);
    await(&wait->ticked);
    assert_eventually(atomic_load(&wait->poller.resting));
    atomic_store(&wait->deferred, true);
    tether__poller_frames_deferred(&wait->poller);
    await(&wait->flushed);
    atomic_store(&wait->done, true);
    return true;
}

static int64_t count_tick(void *userdata, int64_t now)
{
    struct long_wait *wait = userdata;
    (void)now;
    if (atomic_exchange(&wait->kicked, false))
        sem_post(&wait->ticked);
    return TETHER__NEVER;
}

static void count_flush(void *userdata)
{
    struct long_wait *wait = userdata;
    if (atomic_exchange(&wait->deferred, false))
        sem_post(&wait->flushed);
}

static bool has_deferred(const void *userdata)
{
    return atomic_load(&((const struct long_wait *)userdata)->deferred);
}

static void resting_background_thread_runs_timer_and_flushes_deferred_frames(void **state)
{
    (void)state;
    static const struct tether__transport_ops transport_ops = {
        .poll = kick_while_background_rests, .poll_ready = nothing_ready, .wake = wake_nobody};
    static const struct tether__poller_ops poller_ops = {count_tick, count_flush, has_deferred,
                                                         NULL};
    struct tether__transport transport = {.ops = &transport_ops};
    struct long_wait wait = {.leader = pthread_self()};
    struct tether__waiter waiter;
    long_wait_of_transport = &wait;
    sem_init(&wait.ticked, 0, 0);
    sem_init(&wait.flushed, 0, 0);
    assert_int_equal(tether__poller_start(&wait.poller, &transport, &tether__clock_system,
                                          &poller_ops, &wait, true, NULL),
                     TETHER_OK);
    tether__waiter_init(&waiter, &wait.poller);
    tether__poller_wait(&wait.poller, &wait.done, &waiter, TETHER__NEVER);
    assert_true(atomic_load(&wait.done));
    tether__poller_stop(&wait.poller);
    tether__poller_fini(&wait.poller);
    tether__waiter_fini(&waiter);
    sem_destroy(&wait.ticked);
    sem_destroy(&wait.flushed);
}

/* ---- Timers that are always due ---- */

struct busy_timers {
    struct tether__poller poller;
    int n_ticks; /* of the background thread, as are the others */
    bool polled;
    sem_t ended; /* posted once: after a poll, or after MOST_TICKS without one */
};

enum { MOST_TICKS = 1000 };

static struct busy_timers *busy_timers_of_transport;

static bool note_poll(struct tether__transport *transport, enum tether__side side, int64_t until)
{
    (void)transport, (void)side, (void)until;
    struct busy_timers *timers = busy_timers_of_transport;
    if (timers->polled || timers->n_ticks >= MOST_TICKS)
        return true; /* this poll may also be a later one, while the test stops the thread */
    timers->polled = true;
    sem_post(&timers->ended);
    return true;
}

static int64_t tick_again(void *userdata, int64_t now)
{
    struct busy_timers *timers = userdata;
    if (++timers->n_ticks == MOST_TICKS && !timers->polled)
        sem_post(&timers->ended);
    return timers->n_ticks < 2 * MOST_TICKS ? now : TETHER__NEVER;
}

static void flush_nothing(void *userdata)
{
    (void)userdata;
}

static bool defers_nothing(const void *userdata)
{
    (void)userdata;
    return false;
}

static void background_thread_polls_between_ticks_when_timers_are_always_due(void **state)
{
    (void)state;
    static const struct tether__transport_ops transport_ops = {
        .poll = note_poll, .poll_ready = nothing_ready, .wake = wake_nobody};
    static const struct tether__poller_ops poller_ops = {tick_again, flush_nothing, defers_nothing,
                                                         NULL};
    struct tether__transport transport = {.ops = &transport_ops};
    struct busy_timers timers = {.n_ticks = 0};
    busy_timers_of_transport = &timers;
    sem_init(&timers.ended, 0, 0);
    assert_int_equal(tether__poller_start(&timers.poller, &transport, &tether__clock_system,
                                          &poller_ops, &timers, true, NULL),
                     TETHER_OK);
    await(&timers.ended);
    tether__poller_stop(&timers.poller);
    tether__poller_fini(&timers.poller);
    assert_true(timers.polled);
    sem_destroy(&timers.ended);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poller_heeds_kick_during_flush),
        cmocka_unit_test(resting_background_thread_runs_timer_and_flushes_deferred_frames),
        cmocka_unit_test(background_thread_polls_between_ticks_when_timers_are_always_due),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
