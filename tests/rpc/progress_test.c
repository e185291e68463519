/* The background thread of progress.h over a transport that is shut down: it has nothing to poll,
 * but runs the timers until it is stopped. */
#include <semaphore.h>
#include <time.h>

#include "rpc/current.h"
#include "rpc/progress.h"
#include "rpc/transport.h"
#include "tests/lib/cmocka.h"

struct fixture {
    struct tether__progress progress;
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
    tether__progress_kick(&fixture->progress, 0);
}

static bool unflushed(const void *userdata)
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

static void a_kick_during_a_flush_counts(void **state)
{
    (void)state;
    static const struct tether__transport_ops transport_ops = {
        .poll = poll_nothing, .poll_ready = nothing_ready, .wake = wake_nobody};
    static const struct tether__progress_ops progress_ops = {tick, flush, unflushed};
    struct tether__transport transport = {.ops = &transport_ops};
    struct fixture fixture = {.kicked = false};
    sem_init(&fixture.ticked, 0, 0);
    assert_int_equal(tether__progress_start(&fixture.progress, &transport, &tether__clock_system,
                                            &progress_ops, &fixture, true, NULL),
                     TETHER_OK);
    await(&fixture.ticked);
    tether__progress_stop(&fixture.progress);
    tether__progress_fini(&fixture.progress);
    sem_destroy(&fixture.ticked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_kick_during_a_flush_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
