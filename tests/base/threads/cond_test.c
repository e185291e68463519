/* A wait ends by a signal or at its deadline, and returns which. */
#include "base/threads/cond.h"

#include "base/clock.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

struct door {
    pthread_mutex_t mu;
    pthread_cond_t opened;
    bool open;
};

static void door_init(struct door *door)
{
    pthread_mutex_init(&door->mu, NULL);
    tether__cond_init(&door->opened);
    door->open = false;
}

static void door_fini(struct door *door)
{
    pthread_cond_destroy(&door->opened);
    pthread_mutex_destroy(&door->mu);
}

static bool door_wait(struct door *door, int timeout_ms)
{
    int64_t deadline = tether__deadline_in(&tether__clock_system, timeout_ms);
    pthread_mutex_lock(&door->mu);
    while (!door->open && tether__cond_wait(&door->opened, &door->mu, deadline)) {
    }
    bool open = door->open;
    pthread_mutex_unlock(&door->mu);
    return open;
}

static void *open_door(void *arg)
{
    struct door *door = arg;
    pthread_mutex_lock(&door->mu);
    door->open = true;
    pthread_cond_signal(&door->opened);
    pthread_mutex_unlock(&door->mu);
    return NULL;
}

static void wait_ends_at_deadline_and_not_before(void **state)
{
    (void)state;
    struct door door;
    door_init(&door);
    const int timeouts[] = {0, 1, 20};
    for (size_t i = 0; i < sizeof timeouts / sizeof timeouts[0]; i++) {
        int64_t start = tether__clock_now_ns(&tether__clock_system);
        assert_false(door_wait(&door, timeouts[i]));
        int64_t waited = tether__clock_now_ns(&tether__clock_system) - start;
        assert_true(waited >= timeouts[i] * TETHER__NS_PER_MS);
    }
    door_fini(&door);
}

static void wait_ends_at_signal(void **state)
{
    (void)state;
    const int timeouts[] = {TETHER_TEST_LIMIT_MS, -1};
    for (size_t i = 0; i < sizeof timeouts / sizeof timeouts[0]; i++) {
        struct door door;
        door_init(&door);
        pthread_t opener;
        assert_int_equal(pthread_create(&opener, NULL, open_door, &door), 0);
        assert_true(door_wait(&door, timeouts[i]));
        pthread_join(opener, NULL);
        door_fini(&door);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wait_ends_at_deadline_and_not_before),
        cmocka_unit_test(wait_ends_at_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
