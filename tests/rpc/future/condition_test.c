/* The condition variable of rpc/future/condition.h over a transport that has nothing to poll. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "rpc/future/condition.h"
#include "rpc/future/poller.h"
#include "rpc/transport/transport.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

enum { N_THREADS = 4, N_TURNS = 200 };

struct scene {
    struct tether__transport transport;
    struct tether__poller poller;
    struct tether__condition condition;
    _Atomic int level;
    _Atomic int n_looks, n_woken;
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

static int64_t tick_nothing(void *userdata, int64_t now)
{
    (void)userdata, (void)now;
    return TETHER__NEVER;
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

static int set_up(void **state)
{
    static const struct tether__transport_ops transport_ops = {
        .poll = poll_nothing, .poll_ready = nothing_ready, .wake = wake_nobody};
    static const struct tether__poller_ops poller_ops = {tick_nothing, flush_nothing,
                                                         defers_nothing, NULL};
    static struct scene scene;
    scene = (struct scene){.transport.ops = &transport_ops};
    tether__condition_init(&scene.condition);
    *state = &scene;
    return tether__poller_start(&scene.poller, &scene.transport, &tether__clock_system, &poller_ops,
                                &scene, true, NULL);
}

static int tear_down(void **state)
{
    struct scene *scene = *state;
    tether__poller_stop(&scene->poller);
    tether__poller_fini(&scene->poller);
    tether__condition_fini(&scene->condition);
    return 0;
}

static bool is_above_zero(void *userdata)
{
    struct scene *scene = userdata;
    scene->n_looks++;
    return atomic_load(&scene->level) > 0;
}

static bool wait_for_level(struct scene *scene, int64_t deadline)
{
    return tether__condition_wait(&scene->condition, &scene->poller, is_above_zero, scene,
                                  deadline);
}

static void wait_looks_once_when_condition_holds(void **state)
{
    struct scene *scene = *state;
    atomic_store(&scene->level, 1);
    assert_true(wait_for_level(scene, 0));
    assert_int_equal(scene->n_looks, 1);
    assert_false(tether__condition_has_waiters(&scene->condition));
}

static void wait_fails_when_deadline_passes(void **state)
{
    struct scene *scene = *state;
    assert_false(wait_for_level(scene, 0));
    assert_int_equal(scene->n_looks, 1);
    assert_false(wait_for_level(scene, tether__deadline_in(&tether__clock_system, 1)));
    assert_false(tether__condition_has_waiters(&scene->condition));
}

/* The level rises between the first look and the second one, without a notification. */
static bool is_second_look(void *userdata)
{
    struct scene *scene = userdata;
    return ++scene->n_looks == 2;
}

static void wait_looks_again_after_it_has_entered(void **state)
{
    struct scene *scene = *state;
    assert_true(tether__condition_wait(&scene->condition, &scene->poller, is_second_look, scene,
                                       TETHER__NEVER));
    assert_int_equal(scene->n_looks, 2);
}

static void *take_turns(void *arg)
{
    struct scene *scene = arg;
    for (int i = 0; i < N_TURNS; i++) {
        scene->n_woken += wait_for_level(scene, TETHER__NEVER);
        while (atomic_load(&scene->level) > 0)
            sched_yield();
    }
    return NULL;
}

/* Each turn ends when no thread that waits is left. */
static void notify_wakes_all_threads_each_time(void **state)
{
    struct scene *scene = *state;
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_turns, scene), 0);
    for (int i = 0; i < N_TURNS; i++) {
        assert_eventually(atomic_load(&scene->condition.n_waiting) == N_THREADS);
        tether__condition_notify(&scene->condition); /* in vain */
        atomic_store(&scene->level, 1);
        tether__condition_notify(&scene->condition);
        assert_eventually(!tether__condition_has_waiters(&scene->condition));
        atomic_store(&scene->level, 0);
    }
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(scene->n_woken, N_THREADS * N_TURNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wait_looks_once_when_condition_holds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wait_fails_when_deadline_passes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wait_looks_again_after_it_has_entered, set_up, tear_down),
        cmocka_unit_test_setup_teardown(notify_wakes_all_threads_each_time, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
