/* The handler: next(), and the store that it shares (seed class DynamicRendezvousHandlerTest). */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/elastic/handler/internal.h"
#include "tests/rendezvous/elastic/handler/fixture.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

/* ---- Where workers meet --------------------------------------------------------------------- */

static void test_share_store_creates_tcp_store(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = handler_create(f);
    for (int round = 0; round < 2; round++) {
        last_hosted = NULL;
        struct tether_rdzv_info info = handler_next(rdzv);
        assert_string_equal(info.master_addr, "this_node");
        assert_int_equal(info.master_port, 54321);
        assert_non_null(last_hosted);
        assert_ptr_equal(rdzv->server, last_hosted);
        assert_string_equal(f->store.last_set,
                            round == 0 ? "tether.rendezvous.dummy_run_id.0/MASTER_PORT"
                                       : "tether.rendezvous.dummy_run_id.1/MASTER_PORT");
        tether_rdzv_info_fini(&info);
    }
    tether_rdzv_release(rdzv);
}

static void test_share_store_when_tcp_store(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = handler_create_with(f, &sharing);
    for (int round = 0; round < 2; round++) {
        struct tether_rdzv_info info = handler_next(rdzv);
        assert_string_equal(info.master_addr, "host");
        assert_int_equal(info.master_port, 54321);
        /* The rendezvous' own store is used, so there is no other server. */
        assert_null(rdzv->server);
        tether_rdzv_info_fini(&info);
    }
    tether_rdzv_release(rdzv);
}

static atomic_bool host_runs, host_may_go_on;

/* The flags are relaxed and order nothing, so that the thread sanitizer finds accesses without a
 * lock. */
static tether_status slow_host(const char *addr,
                               bool insecure,
                               int timeout_ms,
                               tether_store **ret_server,
                               uint16_t *ret_port,
                               tether_error *reterr)
{
    atomic_store_explicit(&host_runs, true, memory_order_relaxed);
    while (!atomic_load_explicit(&host_may_go_on, memory_order_relaxed))
        sched_yield();
    return host_hash_store(addr, insecure, timeout_ms, ret_server, ret_port, reterr);
}

static void *next_thread(void *arg)
{
    struct tether_rdzv_info info = handler_next(arg);
    tether_rdzv_info_fini(&info);
    return NULL;
}

static void server_has_one_owner_when_shutdown_runs_during_next(void **state)
{
    struct fixture *f = *state;
    static const struct tether__rdzv_bootstrap_ops slow = {locate_no_tcp_store, slow_host,
                                                           find_no_port};
    tether_rdzv *rdzv = handler_create_with(f, &slow);
    pthread_t thread;
    atomic_store(&host_runs, false);
    atomic_store(&host_may_go_on, false);
    assert_int_equal(pthread_create(&thread, NULL, next_thread, rdzv), 0);
    while (!atomic_load_explicit(&host_runs, memory_order_relaxed))
        sched_yield();
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    atomic_store_explicit(&host_may_go_on, true, memory_order_relaxed);
    pthread_join(thread, NULL);
    tether_rdzv_release(rdzv);
}

/* ---- next ----------------------------------------------------------------------------------- */

static void test_next_rendezvous_skews_the_first_join_attempt(void **state)
{
    struct fixture *f = *state;
    static const struct {
        int round, nodes, delays;
    } rows[] = {{0, 2, 1}, {1, 2, 0}, {0, 1, 0}}; /* a single node needs no skew */
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        tether__rdzv_state_fini(&f->holder.state);
        f->holder.state.round = (uint64_t)rows[i].round;
        f->settings.max_nodes = rows[i].nodes;
        if (rows[i].nodes > 1)
            put_in(&f->holder.state.participants, "dummy1", 0);
        f->env.delays = 0;
        tether_rdzv *rdzv = handler_create(f);
        struct tether_rdzv_info info = handler_next(rdzv);
        assert_int_equal(f->env.delays, rows[i].delays);
        tether_rdzv_info_fini(&info);
        tether_rdzv_release(rdzv);
    }
    assert_in_range(f->env.last_delay_ns, 0, 300 * TETHER__NS_PER_MS);
}

static void test_next_rendezvous_returns_expected_value(void **state)
{
    struct fixture *f = *state;
    put_in(&f->holder.state.participants, "dummy1", 0);
    put_in(&f->holder.state.participants, "dummy2", 0);
    f->settings.max_nodes = 3;
    tether_rdzv *rdzv = handler_create(f);
    struct tether_rdzv_info info = handler_next(rdzv);
    assert_int_equal(info.rank, 2);
    assert_int_equal(info.world_size, 3);
    assert_int_equal(info.round, 0);
    assert_int_equal(info.master_port, 123); /* the value that the dummy store gives for each key */

    tether_buf value = TETHER_BUF_INIT;
    assert_int_equal(tether_store_get(info.store, "dummy_key", 0, &value, NULL), TETHER_OK);
    assert_string_equal(f->store.last_get, "tether.rendezvous.dummy_run_id.0/dummy_key");
    tether_buf_fini(&value);
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

static void test_next_rendezvous_respects_the_requested_timeout(void **state)
{
    struct fixture *f = *state;
    f->holder.sync_takes_ns = 300 * TETHER__NS_PER_MS;
    f->settings.timeouts.join_ms = 200;
    tether_rdzv *rdzv = handler_create(f);
    struct tether_rdzv_info info;
    assert_int_equal(tether_rdzv_next(rdzv, &info, NULL), TETHER_ETIMEOUT);
    assert_int_equal(f->failures, 1);
    tether_rdzv_release(rdzv);
}

static void test_next_rendezvous_moves_to_next_round_if_called_repeatedly(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = handler_create(f);
    for (int i = 0; i < 4; i++) {
        struct tether_rdzv_info info = handler_next(rdzv);
        assert_int_equal(f->holder.state.round, i);
        assert_int_equal(info.round, i);
        tether_rdzv_info_fini(&info);
    }
    tether_rdzv_release(rdzv);
}

static void second_next_fails_while_first_runs(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = handler_create(f);
    struct tether_rdzv_info info;
    rdzv->joining = true; /* as if another thread were inside next() */
    assert_int_equal(tether_rdzv_next(rdzv, &info, NULL), TETHER_EBUSY);
    assert_true(rdzv->joining);
    tether_rdzv_release(rdzv);
}

/* One reported event: its text, and the sizes of the group at that time. */
struct reported {
    char text[512];
    int participants, min_nodes, max_nodes;
};

static void on_event_reported(void *userdata, const struct tether_rdzv_event *event)
{
    struct reported *reported = userdata;
    size_t len = strlen(reported->text);
    snprintf(reported->text + len, sizeof reported->text - len, "%s %s: %s\n", event->name,
             tether_rdzv_event_kind_text(event->kind), event->message);
    reported->participants = event->participants;
    reported->min_nodes = event->min_nodes;
    reported->max_nodes = event->max_nodes;
    assert_string_equal(event->run_id, "dummy_run_id");
    assert_string_equal(event->node, "this_node_1_1");
}

static void handler_reports_every_step_as_event(void **state)
{
    struct fixture *f = *state;
    struct reported reported = {.text = ""};
    f->settings.on_event = on_event_reported;
    f->settings.on_event_userdata = &reported;
    put_in(&f->holder.state.participants, "dummy1", 0);
    f->settings.max_nodes = 2;
    tether_rdzv *rdzv = handler_create(f);
    struct tether_rdzv_info info = handler_next(rdzv);
    tether__rdzv_stop_heartbeats(rdzv);
    assert_string_equal(reported.text,
                        "next init: this_node_1_1 attempts to join the next round\n"
                        "next running: this_node_1_1 joins the round\n"
                        "next succeeded: this_node_1_1 has joined round 0 as rank 1 of 2\n");
    assert_int_equal(reported.participants, 2);
    assert_int_equal(reported.min_nodes, 1);
    assert_int_equal(reported.max_nodes, 2);
    assert_string_equal(tether_rdzv_event_kind_text((tether_rdzv_event_kind)99), "?");
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, handler_setup, handler_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_share_store_creates_tcp_store),
        TEST(test_share_store_when_tcp_store),
        TEST(server_has_one_owner_when_shutdown_runs_during_next),
        TEST(test_next_rendezvous_skews_the_first_join_attempt),
        TEST(test_next_rendezvous_returns_expected_value),
        TEST(test_next_rendezvous_respects_the_requested_timeout),
        TEST(test_next_rendezvous_moves_to_next_round_if_called_repeatedly),
        TEST(second_next_fails_while_first_runs),
        TEST(handler_reports_every_step_as_event),
    };
    return cmocka_run_group_tests_name("dynamic handler", tests, NULL, NULL);
}
