/* The executor pool: threads start and end on demand, the queue is bounded, and stop() runs all
 * accepted tasks. */
#include "base/threads/pool.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads/thread.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/lib/wait.h"

/* A task that reports its start and then waits for a signal of the test. */
struct job {
    struct tether__task task;
    struct tether_test_event *begun, *go;
    _Atomic int ran;
    char thread_name[16];
};

static void work(struct tether__task *task)
{
    struct job *job = tether__container_of(task, struct job, task);
    pthread_getname_np(pthread_self(), job->thread_name, sizeof job->thread_name);
    if (job->begun)
        tether_test_event_signal(job->begun);
    if (job->go)
        tether_test_event_wait(job->go, 1, TETHER_TEST_LIMIT_MS);
    atomic_fetch_add(&job->ran, 1);
}

static void every_thread_runs_a_task(void **state)
{
    (void)state;
    enum { THREADS = 3 };
    struct tether_test_event begun, go;
    tether_test_event_init(&begun);
    tether_test_event_init(&go);
    struct tether__pool pool;
    assert_int_equal(tether__pool_start(&pool, "test-pool", THREADS, 10, NULL), TETHER_OK);

    struct job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){.task.run = work, .begun = &begun, .go = &go};
        assert_int_equal(tether__pool_submit(&pool, &jobs[i].task), TETHER_OK);
    }
    assert_true(tether_test_event_wait(&begun, THREADS, TETHER_TEST_LIMIT_MS)); /* all at once */
    struct tether__pool_stats stats = tether__pool_stats(&pool);
    assert_int_equal(stats.threads, THREADS);
    assert_int_equal(stats.idle, 0);
    assert_int_equal(stats.queued, 0);
    tether_test_event_signal(&go);
    tether__pool_stop(&pool);

    bool named[THREADS] = {false};
    for (int i = 0; i < THREADS; i++) {
        assert_memory_equal(jobs[i].thread_name, "test-pool-", 10);
        named[atoi(jobs[i].thread_name + 10)] = true;
    }
    for (int i = 0; i < THREADS; i++)
        assert_true(named[i]);
    tether_test_event_fini(&go);
    tether_test_event_fini(&begun);
}

static size_t n_threads(struct tether__pool *pool)
{
    pthread_mutex_lock(&pool->mu);
    size_t n = pool->n_threads;
    pthread_mutex_unlock(&pool->mu);
    return n;
}

static void thread_starts_with_first_task_and_serves_the_next(void **state)
{
    (void)state;
    struct tether__pool pool;
    assert_int_equal(tether__pool_start(&pool, "lazy", 4, 10, NULL), TETHER_OK);
    assert_int_equal(n_threads(&pool), 0);
    /* Threads that have not started yet are idle. */
    assert_int_equal(tether__pool_stats(&pool).idle, 4);
    for (int i = 0; i < 100; i++) {
        struct job job = {.task.run = work};
        assert_int_equal(tether__pool_submit(&pool, &job.task), TETHER_OK);
        assert_eventually(atomic_load(&job.ran) == 1);
        assert_eventually(tether__pool_stats(&pool).idle == 4);
        assert_int_equal(n_threads(&pool), 1);
        assert_string_equal(job.thread_name, "lazy-0");
    }
    tether__pool_stop(&pool);
}

static void idle_threads_end_and_start_again(void **state)
{
    (void)state;
    struct tether_test_event begun, go;
    tether_test_event_init(&begun);
    tether_test_event_init(&go);
    struct tether__pool pool;
    assert_int_equal(tether__pool_start(&pool, "short", 2, 10, NULL), TETHER_OK);
    pool.idle_s = 0;
    for (int round = 1; round <= 3; round++) {
        struct job jobs[2];
        for (int i = 0; i < 2; i++) {
            jobs[i] = (struct job){.task.run = work, .begun = &begun, .go = &go};
            assert_int_equal(tether__pool_submit(&pool, &jobs[i].task), TETHER_OK);
        }
        assert_true(tether_test_event_wait(&begun, 2 * round, TETHER_TEST_LIMIT_MS));
        tether_test_event_signal(&go); /* in later rounds it is signalled already */
        assert_eventually(n_threads(&pool) == 0);
        assert_int_equal(atomic_load(&jobs[0].ran) + atomic_load(&jobs[1].ran), 2);
    }
    tether__pool_stop(&pool);
    tether_test_event_fini(&go);
    tether_test_event_fini(&begun);
}

/* ---- No thread can be started ---- */

static bool no_threads;

__typeof__(tether__thread_start) __real_tether__thread_start, __wrap_tether__thread_start;

/* The linker sends calls of tether__thread_start() here (`--wrap`, in BUILD). */
int __wrap_tether__thread_start(pthread_t *ret_thread,
                                const char *name,
                                void *(*run)(void *arg),
                                void *arg)
{
    return no_threads ? EAGAIN : __real_tether__thread_start(ret_thread, name, run, arg);
}

static void submit_fails_when_no_thread_can_be_started(void **state)
{
    (void)state;
    struct tether__pool pool;
    assert_int_equal(tether__pool_start(&pool, "none", 2, 10, NULL), TETHER_OK);
    no_threads = true;
    struct job job = {.task.run = work};
    assert_int_equal(tether__pool_submit(&pool, &job.task), TETHER_EIO);
    assert_int_equal(tether__pool_stats(&pool).queued, 0);
    no_threads = false;
    assert_int_equal(tether__pool_submit(&pool, &job.task), TETHER_OK);
    tether__pool_stop(&pool);
    assert_int_equal(atomic_load(&job.ran), 1);
}

static void task_waits_when_no_further_thread_can_be_started(void **state)
{
    (void)state;
    struct tether_test_event begun, go;
    tether_test_event_init(&begun);
    tether_test_event_init(&go);
    struct tether__pool pool;
    assert_int_equal(tether__pool_start(&pool, "one", 2, 10, NULL), TETHER_OK);
    struct job first = {.task.run = work, .begun = &begun, .go = &go}, second = {.task.run = work};
    assert_int_equal(tether__pool_submit(&pool, &first.task), TETHER_OK);
    assert_true(tether_test_event_wait(&begun, 1, TETHER_TEST_LIMIT_MS));
    no_threads = true;
    assert_int_equal(tether__pool_submit(&pool, &second.task), TETHER_OK);
    assert_int_equal(tether__pool_stats(&pool).queued, 1);
    /* A thread could not be started; it is not busy. */
    assert_int_equal(tether__pool_stats(&pool).last_full, 0);
    tether_test_event_signal(&go);
    assert_eventually(atomic_load(&second.ran) == 1);
    no_threads = false;
    tether__pool_stop(&pool);
    tether_test_event_fini(&go);
    tether_test_event_fini(&begun);
}

static void submit_fails_when_queue_is_full_and_stop_runs_the_rest(void **state)
{
    (void)state;
    struct tether_test_event begun, go;
    tether_test_event_init(&begun);
    tether_test_event_init(&go);
    struct tether__pool pool;
    assert_int_equal(tether__pool_start(&pool, "full", 1, 2, NULL), TETHER_OK);

    struct job blocker = {.task.run = work, .begun = &begun, .go = &go};
    struct job queued[2] = {{.task.run = work}, {.task.run = work}}, refused = {.task.run = work};
    assert_int_equal(tether__pool_submit(&pool, &blocker.task), TETHER_OK);
    assert_true(tether_test_event_wait(&begun, 1, TETHER_TEST_LIMIT_MS));
    assert_int_equal(tether__pool_submit(&pool, &queued[0].task), TETHER_OK);
    assert_int_equal(tether__pool_submit(&pool, &queued[1].task), TETHER_OK);
    assert_int_equal(tether__pool_submit(&pool, &refused.task), TETHER_EBUSY);
    assert_int_equal(tether__pool_stats(&pool).queued, 2);
    tether_test_event_signal(&go);
    tether__pool_stop(&pool);

    assert_int_equal(atomic_load(&blocker.ran), 1);
    assert_int_equal(atomic_load(&queued[0].ran), 1);
    assert_int_equal(atomic_load(&queued[1].ran), 1);
    assert_int_equal(atomic_load(&refused.ran), 0);
    tether_test_event_fini(&go);
    tether_test_event_fini(&begun);
}

static void submit_fails_after_stop(void **state)
{
    (void)state;
    struct tether__pool pool;
    assert_int_equal(tether__pool_start(&pool, "down", 2, 2, NULL), TETHER_OK);
    tether__pool_stop(&pool);
    tether__pool_stop(&pool);
    struct job job = {.task.run = work};
    assert_int_equal(tether__pool_submit(&pool, &job.task), TETHER_ESHUTDOWN);
    assert_int_equal(tether__pool_stats(&pool).threads, 0);
}

static void submit_fails_when_pool_never_started(void **state)
{
    (void)state;
    struct tether__pool pool = {0};
    struct job job = {.task.run = work};
    assert_int_equal(tether__pool_submit(&pool, &job.task), TETHER_ESHUTDOWN);
    assert_int_equal(tether__pool_stats(&pool).threads, 0);
    tether__pool_stop(&pool);
}

static void start_refuses_bad_sizes(void **state)
{
    (void)state;
    struct tether__pool pool;
    tether_error err = {0};
    assert_int_equal(tether__pool_start(&pool, "none", 0, 1, &err), TETHER_EINVAL);
    assert_string_equal(err.message, "pool 'none' needs at least one thread and one queue place");
    assert_int_equal(tether__pool_start(&pool, "none", 1, 0, &err), TETHER_EINVAL);
    tether__pool_stop(&pool);
}

/* A task may submit others; many threads may submit at once. */
enum { SUBMITTERS = 4, SUBMITS = 1000 };

struct submitter {
    struct tether__pool *pool;
    struct job jobs[SUBMITS];
    int accepted;
};

static void *submit_many(void *arg)
{
    struct submitter *submitter = arg;
    for (int i = 0; i < SUBMITS; i++) {
        submitter->jobs[i] = (struct job){.task.run = work};
        tether_status st = tether__pool_submit(submitter->pool, &submitter->jobs[i].task);
        assert_true(st == TETHER_OK || st == TETHER_EBUSY);
        submitter->accepted += st == TETHER_OK;
    }
    return NULL;
}

static void accepted_task_runs_once(void **state)
{
    (void)state;
    struct tether__pool pool;
    assert_int_equal(tether__pool_start(&pool, "busy", 3, 50, NULL), TETHER_OK);
    struct submitter *submitters = calloc(SUBMITTERS, sizeof *submitters);
    pthread_t threads[SUBMITTERS];
    for (int i = 0; i < SUBMITTERS; i++) {
        submitters[i].pool = &pool;
        pthread_create(&threads[i], NULL, submit_many, &submitters[i]);
    }
    for (int i = 0; i < SUBMITTERS; i++)
        pthread_join(threads[i], NULL);
    tether__pool_stop(&pool);
    int all = 0;
    for (int i = 0; i < SUBMITTERS; i++) {
        int ran = 0;
        for (int j = 0; j < SUBMITS; j++) {
            assert_in_range(atomic_load(&submitters[i].jobs[j].ran), 0, 1);
            ran += atomic_load(&submitters[i].jobs[j].ran);
        }
        assert_int_equal(ran, submitters[i].accepted);
        all += ran;
    }
    assert_true(all >= 50); /* at least as many as the queue holds */
    free(submitters);
}

static tether_status start_and_stop(void *userdata)
{
    (void)userdata;
    struct tether__pool pool;
    struct job job = {.task.run = work};
    tether_error err = {0};
    tether_status st = tether__pool_start(&pool, "poor", 2, 2, &err);
    if (st == TETHER_OK)
        assert_int_equal(tether__pool_submit(&pool, &job.task), TETHER_OK);
    else
        assert_string_equal(err.message, "starting pool 'poor': out of memory");
    tether__pool_stop(&pool);
    assert_int_equal(atomic_load(&job.ran), st == TETHER_OK);
    return st;
}

static void pool_reports_failed_allocations(void **state)
{
    (void)state;
    tether_test_heap_fail_each(start_and_stop, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_a_task),
        cmocka_unit_test(thread_starts_with_first_task_and_serves_the_next),
        cmocka_unit_test(idle_threads_end_and_start_again),
        cmocka_unit_test(submit_fails_when_no_thread_can_be_started),
        cmocka_unit_test(task_waits_when_no_further_thread_can_be_started),
        cmocka_unit_test(submit_fails_when_queue_is_full_and_stop_runs_the_rest),
        cmocka_unit_test(submit_fails_after_stop),
        cmocka_unit_test(submit_fails_when_pool_never_started),
        cmocka_unit_test(start_refuses_bad_sizes),
        cmocka_unit_test(accepted_task_runs_once),
        cmocka_unit_test(pool_reports_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
