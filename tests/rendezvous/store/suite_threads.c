/* The store suite: tests of several threads. cmocka's asserts work on the test's own thread only,
 * so other threads report statuses, and the test asserts on these. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/rendezvous/store/suite_internal.h"

#define LIMIT TETHER_TEST_LIMIT_MS

bool tether_test_thread_sleeps(int tid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    char *end = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return end && end[2] == 'S';
}

/* ---- A thread that waits in one call -------------------------------------------------------- */

enum wait_by { BY_WAIT, BY_GET, BY_MULTI_GET, BY_POP };

struct waiting {
    tether_store *store;
    const char *keys[2];
    size_t n;
    enum wait_by by;
    pthread_t thread;
    atomic_int tid;
    tether_status status;
    tether_error error;
    tether_buf values[2];
};

static void *wait_thread(void *arg)
{
    struct waiting *w = arg;
    atomic_store(&w->tid, gettid());
    switch (w->by) {
        case BY_WAIT:
            w->status = tether_store_wait(w->store, w->keys, w->n, LIMIT, &w->error);
            break;
        case BY_GET:
            w->status = tether_store_get(w->store, w->keys[0], LIMIT, &w->values[0], &w->error);
            break;
        case BY_MULTI_GET:
            w->status =
                tether_store_multi_get(w->store, w->keys, w->n, LIMIT, w->values, &w->error);
            break;
        case BY_POP:
            w->status =
                tether_store_queue_pop(w->store, w->keys[0], LIMIT, &w->values[0], &w->error);
            break;
    }
    return NULL;
}

/* Starts the thread and returns once it sleeps in the wait. */
static void waiting_start(struct waiting *w)
{
    assert_int_equal(pthread_create(&w->thread, NULL, wait_thread, w), 0);
    assert_eventually(atomic_load(&w->tid) && tether_test_thread_sleeps(atomic_load(&w->tid)));
}

static void waiting_join(struct waiting *w)
{
    pthread_join(w->thread, NULL);
    if (w->status != TETHER_OK)
        fail_msg("%s: %s", tether_status_name(w->status), w->error.message);
}

static void waiting_fini(struct waiting *w)
{
    for (int i = 0; i < 2; i++)
        tether_buf_fini(&w->values[i]);
}

/* ---- Wake-ups ------------------------------------------------------------------------------- */

static tether_status do_set(tether_store *store)
{
    return tether_store_set(store, "key", tether_bytes_str("1"), LIMIT, NULL);
}

static tether_status do_add(tether_store *store)
{
    return tether_store_add(store, "key", 1, LIMIT, NULL, NULL);
}

static tether_status do_append(tether_store *store)
{
    return tether_store_append(store, "key", tether_bytes_str("1"), LIMIT, NULL);
}

static tether_status do_compare_set(tether_store *store)
{
    return tether_store_compare_set(store, "key", tether_bytes_str(""), tether_bytes_str("1"),
                                    LIMIT, NULL, NULL, NULL);
}

static tether_status do_multi_set(tether_store *store)
{
    const char *keys[] = {"other", "key"};
    tether_bytes values[] = {tether_bytes_str("0"), tether_bytes_str("1")};
    return tether_store_multi_set(store, keys, values, 2, LIMIT, NULL);
}

static tether_status do_queue_push(tether_store *store)
{
    return tether_store_queue_push(store, "key", tether_bytes_str("1"), LIMIT, NULL);
}

/* Every change that makes a key present ends all waits for it, through the same handle and through
 * another. */
static void waits_end_when_any_change_makes_the_key_present(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    static const struct {
        tether_status (*change)(tether_store *store);
        bool is_queue;
    } table[] = {{do_set, false},         {do_add, false},       {do_append, false},
                 {do_compare_set, false}, {do_multi_set, false}, {do_queue_push, true}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].is_queue && !s->kind->queues)
            continue;
        tether_store *other = suite_join(s);
        struct waiting waits[] = {
            {.store = store, .keys = {"key"}, .n = 1, .by = BY_WAIT},
            {.store = other, .keys = {"key"}, .n = 1, .by = BY_WAIT},
            {.store = store, .keys = {"key"}, .n = 1, .by = BY_GET},
            {.store = other, .keys = {"key"}, .n = 1, .by = BY_MULTI_GET},
        };
        size_t n = table[i].is_queue ? 2 : 4;
        for (size_t k = 0; k < n; k++)
            waiting_start(&waits[k]);
        assert_status(table[i].change(store), TETHER_OK);
        for (size_t k = 0; k < n; k++) {
            waiting_join(&waits[k]);
            if (waits[k].by != BY_WAIT)
                assert_string_equal(waits[k].values[0].data, "1");
            waiting_fini(&waits[k]);
        }
        tether_store_release(other);
        if (!table[i].is_queue)
            assert_ok(tether_store_delete(store, "key", LIMIT, NULL, err));
    }
}

static void wait_ends_when_both_keys_exist(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    struct waiting w = {.store = store, .keys = {"x", "y"}, .n = 2, .by = BY_MULTI_GET};
    waiting_start(&w);
    SET("unrelated", "0");
    SET("y", "1");
    SET("x", "2");
    waiting_join(&w);
    assert_string_equal(w.values[0].data, "2");
    assert_string_equal(w.values[1].data, "1");
    waiting_fini(&w);
}

/* test_store.py TestMultiThreadedWait: one rank waits, the other sets. */
static void test_multi_threaded_wait(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = suite_join(s);
    struct waiting w = {.store = s->store, .keys = {"key1"}, .n = 1, .by = BY_WAIT};
    assert_int_equal(pthread_create(&w.thread, NULL, wait_thread, &w), 0); /* either comes first */
    SET("key1", "value1");
    waiting_join(&w);
    suite_expect(s->store, "key1", "value1");
    tether_store_release(store);
}

static void on_signal(int number)
{
    (void)number;
}

/* test_store.py TimeoutTest: a wait continues after a signal has interrupted its system call. */
static void test_interrupt_doesnt_break_wait(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    struct sigaction old, action = {.sa_handler = on_signal};
    assert_int_equal(sigaction(SIGUSR1, &action, &old), 0);
    struct waiting w = {.store = store, .keys = {"foo"}, .n = 1, .by = BY_WAIT};
    waiting_start(&w);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_kill(w.thread, SIGUSR1), 0);
        assert_eventually(tether_test_thread_sleeps(atomic_load(&w.tid)));
    }
    SET("foo", "bar");
    waiting_join(&w);
    sigaction(SIGUSR1, &old, NULL);
}

/* ---- Races ---------------------------------------------------------------------------------- */

#define THREADS 8
#define ROUNDS 25

struct racer {
    tether_store *store;
    pthread_t thread;
    int index;
    tether_status status;
    int64_t sums[ROUNDS]; /* the results of add, or the popped numbers */
    int wins;
    atomic_int *arrived;
    bool too_early;
};

static void race(const struct suite_store *s, void *(*run)(void *), struct racer racers[THREADS])
{
    for (int i = 0; i < THREADS; i++) {
        racers[i].index = i;
        racers[i].store = i % 2 ? suite_join(s) : tether_store_retain(s->store);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&racers[i].thread, NULL, run, &racers[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(racers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++) {
        assert_status(racers[i].status, TETHER_OK);
        tether_store_release(racers[i].store);
    }
}

static void *add_thread(void *arg)
{
    struct racer *r = arg;
    for (int i = 0; i < ROUNDS && r->status == TETHER_OK; i++)
        r->status = tether_store_add(r->store, "sum", 1, LIMIT, &r->sums[i], NULL);
    return NULL;
}

static void concurrent_adds_are_all_counted(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    struct racer racers[THREADS] = {{0}};
    race(s, add_thread, racers);
    bool seen[THREADS * ROUNDS + 1] = {false};
    for (int i = 0; i < THREADS; i++) {
        for (int k = 0; k < ROUNDS; k++) {
            assert_in_range(racers[i].sums[k], 1, THREADS * ROUNDS);
            assert_false(seen[racers[i].sums[k]]);
            seen[racers[i].sums[k]] = true;
        }
    }
    ADD("sum", 0, THREADS * ROUNDS);
}

static void *append_thread(void *arg)
{
    struct racer *r = arg;
    char letter = (char)('a' + r->index);
    for (int i = 0; i < ROUNDS && r->status == TETHER_OK; i++)
        r->status = tether_store_append(r->store, "log", tether_bytes_of(&letter, 1), LIMIT, NULL);
    return NULL;
}

/* Each thread appends a letter of its own, so no two threads try to write the same value. PyTorch's
 * server answers a compare_set with the value only, and so the value shows whether the thread has
 * written. */
static void concurrent_appends_are_all_kept(void **state)
{
    struct suite_store *s = *state;
    struct racer racers[THREADS] = {{0}};
    race(s, append_thread, racers);
    tether_buf value = TETHER_BUF_INIT;
    assert_ok(tether_store_get(s->store, "log", LIMIT, &value, err));
    assert_int_equal(value.len, THREADS * ROUNDS);
    int counts[THREADS] = {0};
    for (size_t i = 0; i < value.len; i++) {
        assert_in_range(value.data[i], 'a', 'a' + THREADS - 1);
        counts[value.data[i] - 'a']++;
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(counts[i], ROUNDS);
    tether_buf_fini(&value);
}

static void *compare_set_thread(void *arg)
{
    struct racer *r = arg;
    for (int i = 0; i < ROUNDS && r->status == TETHER_OK; i++) {
        char key[32], mine[32];
        bool swapped = false;
        snprintf(key, sizeof key, "prize%d", i);
        snprintf(mine, sizeof mine, "taken by %d", r->index); /* differs, as in append_thread() */
        r->status = tether_store_compare_set(r->store, key, tether_bytes_str(""),
                                             tether_bytes_str(mine), LIMIT, &swapped, NULL, NULL);
        r->wins += swapped;
    }
    return NULL;
}

static void one_of_concurrent_compare_sets_swaps(void **state)
{
    struct suite_store *s = *state;
    struct racer racers[THREADS] = {{0}};
    race(s, compare_set_thread, racers);
    int wins = 0;
    for (int i = 0; i < THREADS; i++)
        wins += racers[i].wins;
    assert_int_equal(wins, ROUNDS);
}

static void *barrier_thread(void *arg)
{
    struct racer *r = arg;
    for (int i = 0; i < ROUNDS && r->status == TETHER_OK; i++) {
        char key[32];
        snprintf(key, sizeof key, "barrier%d", i);
        atomic_fetch_add(&r->arrived[i], 1);
        r->status = tether_store_barrier(r->store, key, THREADS, LIMIT, NULL);
        r->too_early |= atomic_load(&r->arrived[i]) < THREADS;
    }
    return NULL;
}

static void barrier_returns_when_all_callers_have_arrived(void **state)
{
    struct suite_store *s = *state;
    atomic_int arrived[ROUNDS] = {0};
    struct racer racers[THREADS] = {{0}};
    for (int i = 0; i < THREADS; i++)
        racers[i].arrived = arrived;
    race(s, barrier_thread, racers);
    for (int i = 0; i < THREADS; i++)
        assert_false(racers[i].too_early);
}

/* Threads with an even index push numbers, the others pop as many. */
static void *queue_thread(void *arg)
{
    struct racer *r = arg;
    tether_buf value = TETHER_BUF_INIT;
    for (int i = 0; i < ROUNDS && r->status == TETHER_OK; i++) {
        char text[32];
        snprintf(text, sizeof text, "%d", r->index / 2 * ROUNDS + i);
        if (r->index % 2 == 0)
            r->status =
                tether_store_queue_push(r->store, "queue", tether_bytes_str(text), LIMIT, NULL);
        else
            r->status = tether_store_queue_pop(r->store, "queue", LIMIT, &value, NULL);
        if (r->index % 2 == 1 && r->status == TETHER_OK)
            r->sums[i] = atoi(value.data);
    }
    tether_buf_fini(&value);
    return NULL;
}

static void queue_gives_each_element_to_one_popper(void **state)
{
    struct suite_store *s = *state;
    if (!s->kind->queues)
        skip(); /* queue_gives_elements_in_order checks that such calls are refused */
    struct racer racers[THREADS] = {{0}};
    race(s, queue_thread, racers);
    bool seen[THREADS / 2 * ROUNDS] = {false};
    for (int i = 1; i < THREADS; i += 2) {
        for (int k = 0; k < ROUNDS; k++) {
            assert_in_range(racers[i].sums[k], 0, THREADS / 2 * ROUNDS - 1);
            assert_false(seen[racers[i].sums[k]]);
            seen[racers[i].sums[k]] = true;
        }
    }
    int64_t len = -1;
    assert_ok(tether_store_queue_len(s->store, "queue", LIMIT, &len, err));
    assert_int_equal(len, 0);
}

static void pop_waits_when_queue_is_empty(void **state)
{
    struct suite_store *s = *state;
    if (!s->kind->queues)
        skip(); /* queue_gives_elements_in_order checks that such calls are refused */
    tether_store *store = s->store;
    SET("q", "a value beside the queue");
    struct waiting w = {.store = store, .keys = {"q"}, .by = BY_POP};
    waiting_start(&w);
    SET("q", "another value");
    assert_ok(tether_store_queue_push(store, "q", tether_bytes_str("x"), LIMIT, err));
    waiting_join(&w);
    assert_string_equal(w.values[0].data, "x");
    waiting_fini(&w);
}

/* A waiting thread does not delay another thread on the same handle. */
static void calls_are_not_delayed_when_another_thread_waits(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    struct waiting waits[4];
    for (int i = 0; i < 4; i++) {
        waits[i] = (struct waiting){.store = store, .keys = {"late"}, .n = 1, .by = BY_GET};
        waiting_start(&waits[i]);
    }
    for (int i = 0; i < 20; i++) {
        ADD("sum", 1, i + 1);
        SET("key", "value");
        EXPECT("key", "value");
        assert_false(CHECK("late"));
    }
    SET("late", "now");
    for (int i = 0; i < 4; i++) {
        waiting_join(&waits[i]);
        waiting_fini(&waits[i]);
    }
}

int suite_run_threaded(const char *kind)
{
    static const struct CMUnitTest tests[] = {
        SUITE_TEST(waits_end_when_any_change_makes_the_key_present),
        SUITE_TEST(wait_ends_when_both_keys_exist),
        SUITE_TEST(test_multi_threaded_wait),
        SUITE_TEST(test_interrupt_doesnt_break_wait),
        SUITE_TEST(concurrent_adds_are_all_counted),
        SUITE_TEST(concurrent_appends_are_all_kept),
        SUITE_TEST(one_of_concurrent_compare_sets_swaps),
        SUITE_TEST(barrier_returns_when_all_callers_have_arrived),
        SUITE_TEST(queue_gives_each_element_to_one_popper),
        SUITE_TEST(pop_waits_when_queue_is_empty),
        SUITE_TEST(calls_are_not_delayed_when_another_thread_waits),
    };
    char name[64];
    snprintf(name, sizeof name, "%s store, threads", kind);
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
