/* The executor pool: all threads work, the queue is bounded, stop() runs what was accepted. */
#include "base/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/lib/wait.h"

/* A task that says it has begun and then waits until the test lets it go. */
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

static void every_thread_takes_a_task(void **state)
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

static void a_full_queue_refuses_and_stop_runs_the_rest(void **state)
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

static void after_stop_everything_is_refused(void **state)
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

static void a_pool_that_never_started_refuses_too(void **state)
{
    (void)state;
    struct tether__pool pool = {0};
    struct job job = {.task.run = work};
    assert_int_equal(tether__pool_submit(&pool, &job.task), TETHER_ESHUTDOWN);
    assert_int_equal(tether__pool_stats(&pool).threads, 0);
    tether__pool_stop(&pool);
}

static void bad_sizes_are_refused(void **state)
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

static void what_is_accepted_runs_once(void **state)
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
    assert_true(all >= 50); /* as many as the queue holds */
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

static void every_allocation_may_fail(void **state)
{
    (void)state;
    tether_test_heap_fail_each(start_and_stop, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_takes_a_task),
        cmocka_unit_test(a_full_queue_refuses_and_stop_runs_the_rest),
        cmocka_unit_test(after_stop_everything_is_refused),
        cmocka_unit_test(a_pool_that_never_started_refuses_too),
        cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(what_is_accepted_runs_once),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
