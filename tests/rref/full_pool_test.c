/* A creation fails while the pool of its owner is full: every use that waits for the object ends,
 * with TETHER_EBUSY.
 *
 * w1 owns the object, w0 creates and uses it.
 */
#include <pthread.h>
#include <string.h>

#include "rpc/agent/internal.h"
#include "rref/context.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

enum { TIMEOUT_MS = 600 * 1000, LEASE_MS = 30000 };

static void register_for_full_pool(tether_agent *agent)
{
    cast_register(agent);
    cast_register_stay(agent, "make_pooled", false);
}

/* One function runs on the only thread of w1, another one waits for it: no third one is taken. */
static void fill_pool(struct tether_test_world *w, tether_future *ret_staying[2])
{
    ret_staying[0] = tether_rpc_async(w->agents[0], "w1", "stay", NULL, TETHER_TEST_LIMIT_MS);
    assert_true(tether_test_event_wait(&cast_entered, 1, TETHER_TEST_LIMIT_MS));
    ret_staying[1] = tether_rpc_async(w->agents[0], "w1", "stay", NULL, TETHER_TEST_LIMIT_MS);
    assert_eventually(tether__pool_stats(&w->agents[1]->pool).queued == 1);
}

/* TAKES the future. */
static void is_refused_by_full_pool(tether_future *future)
{
    tether_error err = {0};
    tether_status st = tether_future_wait(future, TETHER_TEST_LIMIT_MS, NULL, &err);
    if (st != TETHER_EBUSY)
        fail_msg("%s: %s", tether_status_name(st), err.message);
    tether_future_release(future);
}

static size_t n_waiting(tether_agent *agent)
{
    struct tether__refs *refs = tether__refs_of(agent);
    pthread_mutex_lock(&refs->mu);
    size_t n = refs->n_waiting;
    pthread_mutex_unlock(&refs->mu);
    return n;
}

/* The creation is a method that waits for its object. Its reference is passed on, others wait for
 * it, and when the method may run at last the pool is full. */
static void creation_failure_reaches_all_waiters_when_the_pool_is_full(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_future *staying[2], *fetches[3], *methods[3];
    tether_value *counter = NULL;
    tether_error err = {0};
    tether_test_event_init(&cast_entered);
    tether_test_event_init(&cast_go_on);
    tether_test_world_before_send = NULL;
    tether_test_world_register = register_for_full_pool;
    tether_test_world_start(
        &w, TETHER_TEST_UNIX, 3,
        TETHER_AGENT_OPTS(.threads = 1, .max_queued = 1, .timeout_ms = TETHER_TEST_LIMIT_MS));
    tether_rref *parent = tether_remote(w.agents[0], "w1", "hold", NULL, TETHER_TEST_LIMIT_MS);
    assert_eventually(cast_is_held(&w));
    tether_rref *rref = tether_rref_remote(parent, "make_pooled", NULL, TETHER_TEST_LIMIT_MS);
    cast_send_ok(w.agents[0], "w1", "keep", rref);
    cast_send_ok(w.agents[0], "w2", "keep", rref);
    tether_rref *const holders[] = {rref, cast_held[1], cast_held[2]};
    for (int i = 0; i < 3; i++) {
        fetches[i] = tether_rref_to_here_async(holders[i], TETHER_TEST_LIMIT_MS);
        methods[i] = tether_rref_async(holders[i], "add", NULL, TETHER_TEST_LIMIT_MS);
    }
    assert_eventually(n_waiting(w.agents[1]) == 7); /* with the creation itself */
    fill_pool(&w, staying);
    assert_int_equal(cast_new_counter(1, &counter, NULL), TETHER_OK);
    tether_reply_ok(atomic_exchange(&w.held, NULL), counter);
    tether_value_release(counter);
    for (int i = 0; i < 3; i++) {
        is_refused_by_full_pool(fetches[i]);
        is_refused_by_full_pool(methods[i]);
    }
    is_refused_by_full_pool(tether_rref_confirmed(rref));
    cast_add_ok(parent, "1", "2");
    tether_test_event_signal(&cast_go_on);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tether_future_wait(staying[i], TETHER_TEST_LIMIT_MS, NULL, NULL),
                         TETHER_OK);
        tether_future_release(staying[i]);
    }
    tether_rref_release(rref);
    tether_rref_release(parent);
    cast_drop_all();
    cast_assert_nothing_left(&w);
    for (int i = 0; i < 3; i++)
        if (tether_agent_shutdown(w.agents[i], true, &err) != TETHER_OK)
            fail_msg("w%d: %s", i, err.message);
    tether_test_world_stop(&w);
    assert_int_equal(cast_n_live, 0);
    tether_test_event_fini(&cast_go_on);
    tether_test_event_fini(&cast_entered);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_failure_reaches_all_waiters_when_the_pool_is_full),
    };
    return cmocka_run_group_tests_name("a full pool", tests, NULL, NULL);
}
