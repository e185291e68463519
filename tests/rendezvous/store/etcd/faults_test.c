/* The etcd store with faults: etcd is killed and restarted, connections are cut, endpoints fail,
 * history is compacted, allocations fail. Waiting calls still complete. */
#include <signal.h>
#include <stdio.h>

#include "tests/lib/heap.h"
#include "tests/rendezvous/store/etcd/fixture.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* ---- Waiting -------------------------------------------------------------------------------- */

static void call_get_late(struct run *run)
{
    run->status = tether_store_get(run->store, "late", LIMIT, &run->value, &run->error);
}

static void call_wait_late(struct run *run)
{
    const char *keys[] = {"early", "late"};
    run->status = tether_store_wait(run->store, keys, 2, LIMIT, &run->error);
}

static void call_pop_late(struct run *run)
{
    run->status = tether_store_queue_pop(run->store, "late", LIMIT, &run->value, &run->error);
}

static void call_barrier_late(struct run *run)
{
    run->status = tether_store_barrier(run->store, "late", 2, LIMIT, &run->error);
}

static void end_late(tether_store *store)
{
    SET("late", "value");
    assert_ok(tether_store_queue_push(store, "late", tether_bytes_str("value"), LIMIT, err));
    assert_ok(tether_store_barrier(store, "late", 2, LIMIT, err));
}

/* How often the bytes of a wait contain its key, when it reads and when it watches: as a value, as
 * a queue (first and end), as the two keys of a barrier. */
static const struct {
    void (*call)(struct run *run);
    int look, watch;
} waits[] = {
    {call_get_late, 1, 1},
    {call_wait_late, 3, 3},
    {call_pop_late, 2, 2},
    {call_barrier_late, 4, 1},
};
#define N_WAITS 4

/* Starts all kinds of waits at once; returns when each one watches. */
static void start_waits(struct world *w, struct run runs[N_WAITS])
{
    tether_store *store = w->direct;
    SET("early", "value");
    for (int i = 0; i < N_WAITS; i++) {
        runs[i] = (struct run){.store = w->store, .call = waits[i].call};
        tether_test_proxy_look_for(w->proxy, "/late");
        run_start(&runs[i]);
        assert_eventually(tether_test_proxy_seen(w->proxy) == waits[i].look + waits[i].watch);
    }
}

static void join_waits(struct run runs[N_WAITS])
{
    for (int i = 0; i < N_WAITS; i++) {
        run_join(&runs[i]);
        if (runs[i].value.data)
            assert_string_equal(runs[i].value.data, "value");
        tether_buf_fini(&runs[i].value);
    }
}

static void waits_complete_when_etcd_is_killed_meanwhile(void **state)
{
    struct world *w = *state;
    struct run runs[N_WAITS];
    start_waits(w, runs);
    tether_test_etcd_restart(etcd);
    end_late(w->direct);
    join_waits(runs);
}

/* A waiting call sees changes that happened while it was disconnected. */
static void waits_complete_when_connections_are_cut_meanwhile(void **state)
{
    struct world *w = *state;
    struct run runs[N_WAITS];
    start_waits(w, runs);
    tether_test_proxy_cut(w->proxy, true);
    end_late(w->direct);
    tether_test_proxy_cut(w->proxy, false);
    join_waits(runs);
}

/* The same, but etcd has compacted its history before the waits reconnect. */
static void waits_complete_when_history_is_compacted_meanwhile(void **state)
{
    struct world *w = *state;
    struct run runs[N_WAITS];
    start_waits(w, runs);
    tether_test_proxy_cut(w->proxy, true);
    end_late(w->direct);
    etcd_compact(w->client);
    tether_test_proxy_cut(w->proxy, false);
    join_waits(runs);
}

/* The same, but the keys are set only after the waits watch again. */
static void waits_continue_when_history_was_compacted(void **state)
{
    struct world *w = *state;
    struct run runs[N_WAITS];
    start_waits(w, runs);
    tether_test_proxy_cut(w->proxy, true);
    tether_store *store = w->direct;
    SET("other", "value");
    SET("other", "again"); /* so that the watched revision is before the compacted one */
    etcd_compact(w->client);
    tether_test_proxy_look_for(w->proxy, "/late");
    tether_test_proxy_cut(w->proxy, false);
    /* Each wait sends the watch that etcd refuses, another read (which names the barrier's key less
     * often), and a watch. */
    int named = -3;
    for (int i = 0; i < N_WAITS; i++)
        named += waits[i].look + 2 * waits[i].watch;
    assert_eventually(tether_test_proxy_seen(w->proxy) >= named);
    end_late(w->direct);
    join_waits(runs);
}

/* ---- Endpoints ------------------------------------------------------------------------------ */

static void calls_use_other_endpoint_when_one_is_down(void **state)
{
    struct world *w = *state;
    struct tether_test_proxy *second = tether_test_proxy_start(tether_test_etcd_endpoint(etcd));
    char both[80];
    snprintf(both, sizeof both, "%s,%s", tether_test_proxy_endpoint(w->proxy),
             tether_test_proxy_endpoint(second));
    tether_store *direct_store = w->store;
    w->store = etcd_store(both, w->prefix);
    struct run runs[N_WAITS];
    start_waits(w, runs);
    assert_int_equal(tether_test_proxy_connections(second), 0);
    tether_test_proxy_cut(w->proxy, true);
    tether_store *store = w->store;
    ADD("sum", 1, 1);
    end_late(w->direct);
    join_waits(runs);
    assert_true(tether_test_proxy_connections(second) > 0);

    tether_test_proxy_cut(w->proxy, false);
    tether_test_proxy_cut(second, true);
    ADD("sum", 1, 2); /* and back */

    tether_test_proxy_cut(w->proxy, true);
    tether_error error = {0};
    assert_true(etcd_is_out_of_reach(tether_store_add(store, "sum", 1, 300, NULL, &error)));
    assert_non_null(strstr(error.message, "'sum'"));
    assert_non_null(strstr(error.message, tether_test_proxy_endpoint(w->proxy)));
    const char *key = "never";
    assert_true(etcd_is_out_of_reach(tether_store_wait(store, &key, 1, 300, NULL)));

    tether_test_proxy_cut(w->proxy, false);
    ADD("sum", 1, 3);
    tether_store_release(w->store);
    w->store = direct_store;
    tether_test_proxy_free(second);
}

static void new_fails_when_no_endpoint_answers(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error error = {0};
    assert_status(tether_store_etcd_new(TETHER_STORE_ETCD_OPTS(.endpoints = "127.0.0.1:1,[::1]:1",
                                                               .timeout_ms = 20000),
                                        &store, &error),
                  TETHER_EUNAVAILABLE);
    assert_null(store);
    assert_non_null(strstr(error.message, ":1"));
}

/* Calls to a suspended server time out, and work again when it continues. */
static void calls_time_out_when_server_hangs(void **state)
{
    struct world *w = *state;
    tether_store *store = w->direct;
    tether_error error = {0};
    ADD("sum", 1, 1);
    tether_test_signal_pid(tether_test_etcd_pid(etcd), SIGSTOP);
    assert_status(tether_store_set(store, "key", tether_bytes_str("x"), 100, &error),
                  TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "may have been applied"));
    assert_status(tether_store_add(store, "sum", 1, 100, NULL, NULL), TETHER_ETIMEOUT);
    tether_test_signal_pid(tether_test_etcd_pid(etcd), SIGCONT);
    ADD("sum", 1, 2); /* the add that timed out had only read the value */
}

/* ---- Out of memory -------------------------------------------------------------------------- */

static tether_status use_store(void *userdata)
{
    const struct world *w = userdata;
    tether_store *store = NULL;
    tether_buf values[2] = {{0}};
    const char *keys[] = {"a", "b"};
    const char *absent[] = {"x", "y"};
    tether_bytes two[] = {tether_bytes_str("1"), tether_bytes_str("2")};
    tether_store_keys listed = {NULL, 0};
    tether_status st = tether_store_etcd_new(
        TETHER_STORE_ETCD_OPTS(.endpoints = tether_test_etcd_endpoint(etcd), .prefix = w->prefix),
        &store, NULL);
    if (st == TETHER_OK)
        st = tether_store_multi_set(store, keys, two, 2, LIMIT, NULL);
    if (st == TETHER_OK)
        st = tether_store_append(store, "a", two[0], LIMIT, NULL);
    if (st == TETHER_OK)
        st = tether_store_multi_get(store, keys, 2, LIMIT, values, NULL);
    if (st == TETHER_OK)
        st = tether_store_queue_push(store, "q", two[0], LIMIT, NULL);
    if (st == TETHER_OK)
        st = tether_store_queue_pop(store, "q", LIMIT, &values[0], NULL);
    if (st == TETHER_OK)
        st = tether_store_list_keys(store, LIMIT, &listed, NULL);
    if (st == TETHER_OK && tether_store_wait(store, absent, 2, 1, NULL) == TETHER_ENOMEM)
        st = TETHER_ENOMEM;
    if (st == TETHER_OK)
        st = tether_store_barrier(store, "barrier", 1, LIMIT, NULL);
    tether_store_keys_fini(&listed);
    tether_buf_fini(&values[0]);
    tether_buf_fini(&values[1]);
    tether_store_release(store);
    return st;
}

static void etcd_store_reports_failed_allocations(void **state)
{
    tether_test_heap_fail_each(use_store, *state);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    etcd = tether_test_etcd_start(NULL);
    const struct CMUnitTest tests[] = {
        WORLD_TEST(waits_complete_when_etcd_is_killed_meanwhile),
        WORLD_TEST(waits_complete_when_connections_are_cut_meanwhile),
        WORLD_TEST(waits_complete_when_history_is_compacted_meanwhile),
        WORLD_TEST(waits_continue_when_history_was_compacted),
        WORLD_TEST(calls_use_other_endpoint_when_one_is_down),
        cmocka_unit_test(new_fails_when_no_endpoint_answers),
        WORLD_TEST(calls_time_out_when_server_hangs),
        WORLD_TEST(etcd_store_reports_failed_allocations),
    };
    int failed = cmocka_run_group_tests_name("etcd store, faults", tests, NULL, NULL);
    tether_test_etcd_free(etcd);
    return failed;
}
