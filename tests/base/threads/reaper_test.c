/* The thread that runs destructors. */
#include "base/threads/reaper.h"

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

static struct tether_test_event begun, may_end;
static _Atomic int n_run;

static void run(struct tether__work *work)
{
    (void)work;
    tether_test_event_signal(&begun);
    tether_test_event_wait(&may_end, 1, TETHER_TEST_LIMIT_MS);
    n_run++;
}

/* A graceful shutdown goes on when the reaper is idle, and destructors may release references. */
static void reaper_is_not_idle_while_a_destructor_runs(void **state)
{
    (void)state;
    struct tether__reaper reaper = {0};
    struct tether__work first = {.run = run}, second = {.run = run};
    tether_test_event_init(&begun);
    tether_test_event_init(&may_end);
    tether__reaper_init(&reaper);
    assert_false(tether__reaper_give(&reaper, &first)); /* it is closed */
    tether__reaper_open(&reaper);
    assert_true(tether__reaper_is_idle(&reaper));
    assert_true(tether__reaper_give(&reaper, &first));
    assert_true(tether_test_event_wait(&begun, 1, TETHER_TEST_LIMIT_MS));
    assert_false(tether__reaper_is_idle(&reaper)); /* it runs, and no other waits */
    assert_true(tether__reaper_give(&reaper, &second));
    assert_false(tether__reaper_is_idle(&reaper));
    tether_test_event_signal(&may_end);
    assert_eventually(tether__reaper_is_idle(&reaper));
    assert_int_equal(n_run, 2);
    tether__reaper_close(&reaper);
    assert_false(tether__reaper_give(&reaper, &first));
    tether__reaper_fini(&reaper);
    tether_test_event_fini(&may_end);
    tether_test_event_fini(&begun);
}

static void reaper_starts_another_thread_when_the_first_had_nothing_to_do(void **state)
{
    (void)state;
    struct tether__reaper reaper = {0};
    struct tether__work work = {.run = run};
    tether_test_event_init(&begun);
    tether_test_event_init(&may_end);
    tether_test_event_signal(&may_end);
    tether__reaper_init(&reaper);
    tether__reaper_open(&reaper);
    for (int i = 1; i <= 2; i++) {
        n_run = 0;
        assert_true(tether__reaper_give(&reaper, &work));
        assert_eventually(n_run == 1);
        bool runs = true;
        for (int tries = 0; runs && tether_test_nap(tries); tries++) {
            pthread_mutex_lock(&reaper.mu);
            runs = reaper.runs;
            pthread_mutex_unlock(&reaper.mu);
        }
        assert_false(runs);
    }
    tether__reaper_close(&reaper);
    tether__reaper_fini(&reaper);
    tether_test_event_fini(&may_end);
    tether_test_event_fini(&begun);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reaper_is_not_idle_while_a_destructor_runs),
        cmocka_unit_test(reaper_starts_another_thread_when_the_first_had_nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
