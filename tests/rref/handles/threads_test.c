/* An agent that other threads use while it is stopped and released: every public call either works
 * or returns TETHER_ESHUTDOWN or the status of a lost peer.
 */
#include <pthread.h>
#include <string.h>

#include "rpc/agent/internal.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

enum { ROUNDS = 8, USERS = 3 };

struct crowd {
    struct tether_test_world world;
    tether_agent *agent;     /* the one that is stopped */
    _Atomic int n_rounds;    /* through all of the functions */
    _Atomic bool is_stopped; /* once more, then the threads may end */
};

static bool may_be(tether_status status)
{
    bool fine = status == TETHER_OK || status == TETHER_ESHUTDOWN || status == TETHER_EOWNERDIED ||
                status == TETHER_EUNAVAILABLE || status == TETHER_ENOTFOUND ||
                status == TETHER_EGONE || status == TETHER_EFENCED || status == TETHER_ECANCELED;
    if (!fine)
        print_error("unexpected: %s\n", tether_status_name(status));
    return fine;
}

static tether_status do_nothing(void *userdata,
                                const tether_value *arg,
                                tether_value **ret_value,
                                tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    return TETHER_OK;
}

static void answer_at_once(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    tether_reply_ok(reply, NULL);
}

static tether_status do_nothing_with(void *userdata,
                                     void *object,
                                     const tether_value *arg,
                                     tether_value **ret_value,
                                     tether_error *reterr)
{
    (void)userdata, (void)object, (void)arg, (void)ret_value, (void)reterr;
    return TETHER_OK;
}

/* The agent has been started: it takes no more functions. */
static void use_registry(tether_agent *agent)
{
    const tether_type *type = &cast_counter_type;
    assert_int_equal(tether_agent_register(agent, "late", do_nothing, NULL, NULL), TETHER_EINVAL);
    assert_int_equal(tether_agent_register_inline(agent, "late", do_nothing, NULL, NULL),
                     TETHER_EINVAL);
    assert_int_equal(tether_agent_register_async(agent, "late", answer_at_once, true, NULL, NULL),
                     TETHER_EINVAL);
    assert_int_equal(
        tether_agent_register_method(agent, type, "late", do_nothing_with, true, NULL, NULL),
        TETHER_EINVAL);
    assert_int_equal(tether_agent_register_type(agent, type, NULL), TETHER_EINVAL);
}

static void use_agent(tether_agent *agent)
{
    use_registry(agent);
    tether_worker worker, *workers = NULL;
    tether_buf text = TETHER_BUF_INIT;
    size_t n;
    assert_string_equal(tether_agent_name(agent), "w0");
    assert_int_equal(tether_agent_rank(agent), -1);
    assert_int_equal(tether_agent_world_size(agent), 0);
    (void)tether_agent_id(agent);
    assert_true(strlen(tether_agent_address(agent)) > 0);
    assert_string_equal(tether_agent_metrics_address(agent), "");
    assert_non_null(tether_store_describe(tether_agent_store(agent)));
    assert_true(may_be(tether_agent_worker(agent, "w1", &worker, NULL)));
    assert_true(may_be(tether_agent_worker_by_id(agent, 1, &worker, NULL)));
    tether_status st = tether_agent_workers(agent, &workers, &n, NULL);
    assert_true(may_be(st));
    if (st == TETHER_OK)
        tether_workers_free(workers);
    assert_true(may_be(tether_agent_metrics(agent, &text)));
    assert_true(may_be(tether_rref_dump(agent, true, &text)));
    (void)tether_rref_counts(agent);
    tether_buf_fini(&text);
}

static void use_calls(tether_agent *agent)
{
    tether_future *futures[] = {
        tether_rpc_async(agent, "w1", "echo", NULL, TETHER_TEST_LIMIT_MS),
        tether_rpc_async_with(agent, "w1", "echo_pooled", NULL, NULL),
        tether_rpc_async(agent, "w0", "echo_pooled", NULL, TETHER_TEST_LIMIT_MS),
    };
    tether_future *all = tether_future_all(futures, 3), *any = tether_future_any(futures, 3);
    assert_true(may_be(
        tether_rpc_sync(agent, "w1", "echo_pooled", NULL, TETHER_TEST_LIMIT_MS, NULL, NULL)));
    assert_true(may_be(tether_rpc_sync_with(agent, "w1", "echo", NULL, NULL, NULL, NULL)));
    assert_true(may_be(tether_future_wait(all, TETHER_TEST_LIMIT_MS, NULL, NULL)));
    assert_true(may_be(tether_future_wait(any, TETHER_TEST_LIMIT_MS, NULL, NULL)));
    for (int i = 0; i < 3; i++)
        tether_future_release(futures[i]);
    tether_future_release(all);
    tether_future_release(any);
}

static void on_lost(tether_rref *rref, void *userdata)
{
    (void)rref, (void)userdata;
}

/* Whether the object is here is known at once; it may still be in the making, or never be made. */
static void look_at_value(tether_rref *rref)
{
    tether_value *value = NULL;
    tether_status st = tether_rref_local_value(rref, &value, NULL);
    if (!tether_rref_is_owner(rref))
        assert_true(st != TETHER_OK && !value);
    else
        assert_true(st == TETHER_EBUSY || may_be(st));
    assert_true(st != TETHER_OK || value);
}

static void use_reference(tether_rref *rref)
{
    tether_value *value = NULL, *one = cast_text("1");
    tether_rref *sum_there = tether_rref_remote(rref, "add", one, TETHER_TEST_LIMIT_MS);
    tether_future *made = tether_rref_confirmed(sum_there);
    assert_true(may_be(tether_rref_on_owner_lost(rref, on_lost, NULL, NULL)));
    look_at_value(rref);
    look_at_value(sum_there);
    assert_non_null(tether_rref_type(rref));
    assert_true(may_be(tether_future_wait(made, TETHER_TEST_LIMIT_MS, NULL, NULL)));
    tether_future_release(made);
    tether_rref_release(sum_there);
    tether_future *here = tether_rref_to_here_async(rref, TETHER_TEST_LIMIT_MS);
    tether_future *sum = tether_rref_async(rref, "add", one, TETHER_TEST_LIMIT_MS);
    tether_future *confirmed = tether_rref_confirmed(rref);
    assert_true(may_be(tether_rref_to_here(rref, TETHER_TEST_LIMIT_MS, &value, NULL)));
    tether_value_release(value);
    assert_true(may_be(tether_rref_sync(rref, "add", one, TETHER_TEST_LIMIT_MS, NULL, NULL)));
    assert_true(may_be(tether_future_wait(here, TETHER_TEST_LIMIT_MS, NULL, NULL)));
    assert_true(may_be(tether_future_wait(sum, TETHER_TEST_LIMIT_MS, NULL, NULL)));
    assert_true(may_be(tether_future_wait(confirmed, TETHER_TEST_LIMIT_MS, NULL, NULL)));
    tether_future_release(here);
    tether_future_release(sum);
    tether_future_release(confirmed);
    tether_value_release(one);
    (void)tether_rref_status(rref, NULL);
    (void)tether_rref_owner(rref);
    assert_true(tether_rref_owner_name(rref)[0]);
    tether_rref_weak *weak = tether_rref_weak_new(rref);
    if (weak)
        tether_rref_release(tether_rref_weak_lock(weak));
    tether_rref_weak_release(weak);
}

static void use_references(tether_agent *agent)
{
    tether_value *value = NULL;
    tether_rref *own = NULL, *remote = cast_remote_counter(agent, "w1", "1");
    tether_rref *local = cast_remote_counter(agent, "w0", "1");
    use_reference(remote);
    use_reference(local);
    assert_int_equal(cast_new_counter(1, &value, NULL), TETHER_OK);
    if (tether_rref_new(agent, value, &own, NULL) == TETHER_OK) {
        use_reference(own);
        assert_true(may_be(cast_send(agent, "w1", "drop", own, NULL)));
    }
    tether_value_release(value);
    tether_rref_release(own);
    tether_rref_release(local);
    tether_rref_release(remote);
}

static void *use_everything(void *arg)
{
    struct crowd *crowd = arg;
    tether_agent *agent = crowd->agent; /* this thread has a handle of its own */
    for (int after = 0; after < 2; after += atomic_load(&crowd->is_stopped)) {
        use_agent(agent);
        use_calls(agent);
        use_references(agent);
        atomic_fetch_add(&crowd->n_rounds, 1);
    }
    tether_agent_release(agent);
    return NULL;
}

/* `graceful` -1: release alone. */
static void every_call_is_safe(enum tether_test_net net, int graceful)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct crowd crowd = {.n_rounds = 0};
        pthread_t users[USERS];
        tether_test_world_register = cast_register;
        tether_test_world_start(&crowd.world, net, 2,
                                TETHER_AGENT_OPTS(.shutdown_timeout_ms = 200));
        crowd.agent = crowd.world.agents[0];
        for (int i = 0; i < USERS; i++) {
            tether_agent_retain(crowd.agent);
            assert_int_equal(pthread_create(&users[i], NULL, use_everything, &crowd), 0);
        }
        assert_eventually(atomic_load(&crowd.n_rounds) >= round);
        if (graceful >= 0)
            tether_agent_shutdown(crowd.world.agents[0], graceful, NULL);
        crowd.world.agents[0] = tether_agent_release(crowd.world.agents[0]);
        atomic_store(&crowd.is_stopped, true);
        for (int i = 0; i < USERS; i++)
            pthread_join(users[i], NULL);
        tether_test_world_stop(&crowd.world);
        cast_drop_all();
    }
}

static void every_call_is_safe_when_another_thread_shuts_down(void **state)
{
    (void)state;
    every_call_is_safe(TETHER_TEST_UNIX, 0);
    every_call_is_safe(TETHER_TEST_GRPC, 0);
}

static void every_call_is_safe_when_another_thread_shuts_down_gracefully(void **state)
{
    (void)state;
    every_call_is_safe(TETHER_TEST_MIXED, 1);
}

static void every_call_is_safe_when_another_thread_releases(void **state)
{
    (void)state;
    every_call_is_safe(TETHER_TEST_UNIX, -1);
    every_call_is_safe(TETHER_TEST_GRPC, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_is_safe_when_another_thread_shuts_down),
        cmocka_unit_test(every_call_is_safe_when_another_thread_shuts_down_gracefully),
        cmocka_unit_test(every_call_is_safe_when_another_thread_releases),
    };
    return cmocka_run_group_tests_name("handles in threads", tests, NULL, NULL);
}
