/* The loop thread: tasks run once and in order, stop() never hangs, and later posts are refused. */
#include "base/threads/loop.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/lib/wait.h"

struct fixture {
    struct tether__loop loop;
    struct tether_test_event event;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    tether_test_event_init(&f->event);
    tether_error err = {0};
    if (tether__loop_start(&f->loop, "test-loop", &err) != TETHER_OK)
        return -1;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    tether__loop_stop(&f->loop);
    tether_test_event_fini(&f->event);
    free(f);
    return 0;
}

/* A task that records when it ran, and on which thread. */
struct note {
    struct tether__task task;
    struct fixture *fixture;
    int order;
    bool on_loop;
    char thread_name[16];
};

static _Atomic int next_order;

static void take_note(struct tether__task *task)
{
    struct note *note = tether__container_of(task, struct note, task);
    note->order = atomic_fetch_add(&next_order, 1);
    note->on_loop = tether__loop_is_current(&note->fixture->loop);
    pthread_getname_np(pthread_self(), note->thread_name, sizeof note->thread_name);
    tether_test_event_signal(&note->fixture->event);
}

static void tasks_run_in_order_on_the_loop_thread(void **state)
{
    struct fixture *f = *state;
    struct note notes[100];
    atomic_store(&next_order, 0);
    for (int i = 0; i < 100; i++) {
        notes[i] = (struct note){.task.run = take_note, .fixture = f};
        assert_true(tether__loop_post(&f->loop, &notes[i].task));
    }
    assert_true(tether_test_event_wait(&f->event, 100, TETHER_TEST_LIMIT_MS));
    for (int i = 0; i < 100; i++) {
        assert_int_equal(notes[i].order, i);
        assert_true(notes[i].on_loop);
        assert_string_equal(notes[i].thread_name, "test-loop");
    }
    assert_false(tether__loop_is_current(&f->loop));
}

/* A task that posts itself again until it has run five times; the loop must not hold its lock
 * then. */
struct again {
    struct tether__task task;
    struct fixture *fixture;
    int runs;
    bool posted;
};

static void run_again(struct tether__task *task)
{
    struct again *again = tether__container_of(task, struct again, task);
    if (++again->runs < 5)
        again->posted = tether__loop_post(&again->fixture->loop, &again->task);
    else
        tether_test_event_signal(&again->fixture->event);
}

static void task_may_post_itself_again(void **state)
{
    struct fixture *f = *state;
    struct again again = {.task.run = run_again, .fixture = f};
    assert_true(tether__loop_post(&f->loop, &again.task));
    assert_true(tether_test_event_wait(&f->event, 1, TETHER_TEST_LIMIT_MS));
    assert_int_equal(again.runs, 5);
}

static void stop_returns_after_all_steps_of_a_task(void **state)
{
    struct fixture *f = *state;
    struct again again = {.task.run = run_again, .fixture = f};
    assert_true(tether__loop_post(&f->loop, &again.task));
    tether__loop_stop(&f->loop);
    assert_int_equal(again.runs, 5);
    assert_true(again.posted);
}

struct call {
    struct tether__task task;
    struct fixture *fixture;
    struct call *inner;
    int ran;
};

static void run_call(struct tether__task *task)
{
    struct call *call = tether__container_of(task, struct call, task);
    call->ran++;
    if (call->inner) /* a call on the loop thread runs in place */
        assert_true(tether__loop_call(&call->fixture->loop, &call->inner->task));
}

static void call_waits_until_the_task_has_run(void **state)
{
    struct fixture *f = *state;
    struct call inner = {.task.run = run_call, .fixture = f};
    struct call outer = {.task.run = run_call, .fixture = f, .inner = &inner};
    assert_true(tether__loop_call(&f->loop, &outer.task));
    assert_int_equal(outer.ran, 1);
    assert_int_equal(inner.ran, 1);
}

static void post_and_call_fail_after_stop(void **state)
{
    struct fixture *f = *state;
    tether__loop_stop(&f->loop);
    tether__loop_stop(&f->loop);
    struct call call = {.task.run = run_call, .fixture = f};
    assert_false(tether__loop_post(&f->loop, &call.task));
    assert_false(tether__loop_call(&f->loop, &call.task));
    assert_int_equal(call.ran, 0);
}

static void post_fails_when_loop_never_started(void **state)
{
    (void)state;
    struct tether__loop loop = {0};
    struct call call = {.task.run = run_call};
    assert_false(tether__loop_post(&loop, &call.task));
    assert_false(tether__loop_call(&loop, &call.task));
    tether__loop_stop(&loop);
}

static void loop_starts_again_after_stop(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 5; i++) {
        tether__loop_stop(&f->loop);
        assert_int_equal(tether__loop_start(&f->loop, "again", NULL), TETHER_OK);
        struct call call = {.task.run = run_call, .fixture = f};
        assert_true(tether__loop_call(&f->loop, &call.task));
        assert_int_equal(call.ran, 1);
    }
}

/* ---- Posting from many threads while the loop stops ------------------------------------------ */

enum { POSTERS = 4, POSTS = 2000 };

struct poster {
    struct fixture *fixture;
    struct call calls[POSTS];
    int accepted;
};

static void *post_many(void *arg)
{
    struct poster *poster = arg;
    for (int i = 0; i < POSTS; i++) {
        poster->calls[i] = (struct call){.task.run = run_call, .fixture = poster->fixture};
        poster->accepted += tether__loop_post(&poster->fixture->loop, &poster->calls[i].task);
        if (i == POSTS / 4)
            tether_test_event_signal(&poster->fixture->event);
    }
    return NULL;
}

static void accepted_task_runs_once_when_loop_stops(void **state)
{
    struct fixture *f = *state;
    struct poster *posters = calloc(POSTERS, sizeof *posters);
    pthread_t threads[POSTERS];
    for (int i = 0; i < POSTERS; i++) {
        posters[i].fixture = f;
        pthread_create(&threads[i], NULL, post_many, &posters[i]);
    }
    assert_true(tether_test_event_wait(&f->event, 1, TETHER_TEST_LIMIT_MS));
    tether__loop_stop(&f->loop);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < POSTERS; i++) {
        int ran = 0;
        for (int j = 0; j < POSTS; j++) {
            assert_in_range(posters[i].calls[j].ran, 0, 1);
            ran += posters[i].calls[j].ran;
        }
        assert_int_equal(ran, posters[i].accepted);
    }
    free(posters);
}

/* ---- Handles --------------------------------------------------------------------------------- */

struct forgotten {
    struct tether__task set;
    struct tether__loop *loop;
    uv_timer_t timer;
    int fired;
};

static void on_fire(uv_timer_t *timer)
{
    tether__container_of(timer, struct forgotten, timer)->fired++;
}

static void set_timer(struct tether__task *task)
{
    struct forgotten *forgotten = tether__container_of(task, struct forgotten, set);
    uv_timer_init(tether__loop_uv(forgotten->loop), &forgotten->timer);
    uv_timer_start(&forgotten->timer, on_fire, 1000000, 0);
}

/* The owner has not closed its handles; stop() must not hang. */
static void stop_closes_remaining_handles(void **state)
{
    struct fixture *f = *state;
    struct forgotten forgotten = {.set.run = set_timer, .loop = &f->loop};
    assert_true(tether__loop_call(&f->loop, &forgotten.set));
    tether__loop_stop(&f->loop);
    assert_int_equal(forgotten.fired, 0);
}

/* ---- Failure to start ------------------------------------------------------------------------ */

static void start_reports_lack_of_descriptors(void **state)
{
    (void)state;
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct tether__loop loop;
    tether_error err = {0};
    tether_status st = tether__loop_start(&loop, "poor", &err);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(st, TETHER_EIO);
    assert_string_equal(err.message, "starting event loop 'poor': too many open files");
    tether__loop_stop(&loop); /* does nothing: the loop has not started */
}

/* libuv aborts the process when it closes one of the first three descriptors. */
static void loop_ends_when_the_standard_streams_were_closed_before(void **state)
{
    (void)state;
    int saved[3];
    for (int fd = 0; fd < 3; fd++)
        saved[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    struct tether__loop loop;
    tether_status st = tether__loop_start(&loop, "test-loop", NULL);
    if (st == TETHER_OK)
        tether__loop_stop(&loop);
    for (int fd = 0; fd < 3; fd++) {
        if (saved[fd] < 0)
            continue;
        dup2(saved[fd], fd);
        close(saved[fd]);
    }
    assert_int_equal(st, TETHER_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tasks_run_in_order_on_the_loop_thread, set_up, tear_down),
        cmocka_unit_test_setup_teardown(task_may_post_itself_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stop_returns_after_all_steps_of_a_task, set_up, tear_down),
        cmocka_unit_test_setup_teardown(call_waits_until_the_task_has_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(post_and_call_fail_after_stop, set_up, tear_down),
        cmocka_unit_test(post_fails_when_loop_never_started),
        cmocka_unit_test_setup_teardown(loop_starts_again_after_stop, set_up, tear_down),
        cmocka_unit_test_setup_teardown(accepted_task_runs_once_when_loop_stops, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stop_closes_remaining_handles, set_up, tear_down),
        cmocka_unit_test(start_reports_lack_of_descriptors),
        cmocka_unit_test(loop_ends_when_the_standard_streams_were_closed_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
