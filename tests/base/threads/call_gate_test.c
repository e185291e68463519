/* The gate of public calls: when it refuses entry, and which threads it waits for. */
#include "base/threads/call_gate.h"

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

static void gate_lets_threads_in_while_it_is_open(void **state)
{
    (void)state;
    struct tether__call_gate gate;
    tether__call_gate_init(&gate);
    assert_true(tether__call_gate_enter(&gate));
    assert_true(tether__call_gate_enter(&gate)); /* again, by the same thread */
    assert_false(tether__call_gate_is_closed(&gate));
    tether__call_gate_leave(&gate);
    tether__call_gate_leave(&gate);
    tether__call_gate_close(&gate);
    tether__call_gate_wait(&gate);
    tether__call_gate_fini(&gate);
}

static void gate_refuses_entry_when_closed(void **state)
{
    (void)state;
    struct tether__call_gate gate;
    tether__call_gate_init(&gate);
    tether__call_gate_close(&gate);
    tether__call_gate_close(&gate);
    assert_false(tether__call_gate_enter(&gate));
    assert_true(tether__call_gate_is_closed(&gate));
    tether__call_gate_wait(&gate); /* a refused thread does not count as inside */
    tether__call_gate_wait(&gate);
    tether__call_gate_fini(&gate);
}

struct scene {
    struct tether__call_gate gate;
    struct tether_test_event entered;
    _Atomic int n_inside, n_refused;
    _Atomic bool may_leave;
};

static void *stay(void *arg)
{
    struct scene *scene = arg;
    assert_true(tether__call_gate_enter(&scene->gate));
    atomic_fetch_add(&scene->n_inside, 1);
    tether_test_event_signal(&scene->entered);
    assert_eventually(atomic_load(&scene->may_leave));
    atomic_fetch_sub(&scene->n_inside, 1);
    tether__call_gate_leave(&scene->gate);
    return NULL;
}

static void *close_and_wait(void *arg)
{
    struct scene *scene = arg;
    tether__call_gate_close(&scene->gate);
    tether__call_gate_wait(&scene->gate);
    assert_int_equal(atomic_load(&scene->n_inside), 0);
    return NULL;
}

static void gate_wait_returns_when_the_last_thread_has_left(void **state)
{
    (void)state;
    struct scene scene = {.n_inside = 0};
    pthread_t inside[3], closers[2];
    tether__call_gate_init(&scene.gate);
    tether_test_event_init(&scene.entered);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&inside[i], NULL, stay, &scene), 0);
    assert_true(tether_test_event_wait(&scene.entered, 3, TETHER_TEST_LIMIT_MS));
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&closers[i], NULL, close_and_wait, &scene), 0);
    assert_eventually(tether__call_gate_is_closed(&scene.gate));
    assert_false(tether__call_gate_enter(&scene.gate));
    atomic_store(&scene.may_leave, true);
    for (int i = 0; i < 2; i++)
        pthread_join(closers[i], NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(inside[i], NULL);
    tether_test_event_fini(&scene.entered);
    tether__call_gate_fini(&scene.gate);
}

static void *go_in_and_out(void *arg)
{
    struct scene *scene = arg;
    while (tether__call_gate_enter(&scene->gate)) {
        atomic_fetch_add(&scene->n_inside, 1);
        atomic_fetch_sub(&scene->n_inside, 1);
        tether__call_gate_leave(&scene->gate);
    }
    return NULL;
}

static void gate_is_empty_after_wait_when_threads_come_and_go(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct scene scene = {.n_inside = 0};
        pthread_t threads[3];
        tether__call_gate_init(&scene.gate);
        for (int i = 0; i < 3; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, go_in_and_out, &scene), 0);
        close_and_wait(&scene);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        tether__call_gate_fini(&scene.gate);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gate_lets_threads_in_while_it_is_open),
        cmocka_unit_test(gate_refuses_entry_when_closed),
        cmocka_unit_test(gate_wait_returns_when_the_last_thread_has_left),
        cmocka_unit_test(gate_is_empty_after_wait_when_threads_come_and_go),
    };
    return cmocka_run_group_tests_name("call_gate", tests, NULL, NULL);
}
