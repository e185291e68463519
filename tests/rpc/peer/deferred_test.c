/* Deferred calls are flushed even if no thread waits for their results. A thread of w0 waits for a
 * reply of w1 all the time, so that calls to w1 may be deferred. */
#include <pthread.h>
#include <unistd.h>

#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/future/poller.h"
#include "rpc/peer/stream.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/world.h"

/* A timer may write deferred calls at any time, and on a busy machine the background thread may
 * lead for a while. Neither happens every time. */
enum { TRIES = 2000 };

static _Atomic int n_forwarded;

/* Makes two calls and does not wait for them, so that they are deferred. */
static void forward(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)arg;
    tether_agent *agent = userdata;
    bool is_deferred = false;
    for (int try = 0; try < TRIES && !is_deferred; try++) {
        if (try > 0)
            usleep(1000); /* lets the waiting thread lead again */
        for (int i = 0; i < 2; i++)
            tether_future_release(tether_rpc_async(agent, "w1", "note", NULL, 60000));
        is_deferred = tether__agent_has_deferred(agent);
        atomic_fetch_add(&n_forwarded, 2);
    }
    if (is_deferred)
        tether_reply_ok(reply, NULL);
    else
        tether_reply_error(reply, TETHER_EINTERNAL, "no call was deferred");
}

/* Returns whether calls are deferred now. */
static tether_status look(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg;
    bool is_deferred = tether__agent_has_deferred(userdata);
    return tether_value_printf(ret_value, reterr, "%s", is_deferred ? "deferred" : "flushed");
}

static void register_forward(tether_agent *agent)
{
    tether_status st = tether_agent_register_async(agent, "forward", forward, true, agent, NULL);
    if (st == TETHER_OK)
        st = tether_agent_register_async(agent, "forward_pooled", forward, false, agent, NULL);
    if (st == TETHER_OK)
        st = tether_agent_register(agent, "look", look, agent, NULL);
    assert_int_equal(st, TETHER_OK);
}

/* ---- A thread that waits, and so leads ---- */

struct waiter {
    struct tether_test_world world;
    pthread_t thread;
    tether_status status;
};

static void *wait_for_answer(void *arg)
{
    struct waiter *waiter = arg;
    waiter->status =
        tether_rpc_sync(waiter->world.agents[0], "w1", "hold", NULL, 60000, NULL, NULL);
    return NULL;
}

static bool leads(void *userdata)
{
    struct waiter *waiter = userdata;
    return atomic_load(&waiter->world.held) &&
           atomic_load(&waiter->world.agents[0]->local.poller.threads_lead);
}

static void begin(struct waiter *waiter)
{
    tether_test_world_register = register_forward;
    atomic_store(&n_forwarded, 0);
    /* One thread for pooled functions, so that one runs right after the other. */
    tether_test_world_start(&waiter->world, TETHER_TEST_UNIX, 2, TETHER_AGENT_OPTS(.threads = 1));
    assert_int_equal(pthread_create(&waiter->thread, NULL, wait_for_answer, waiter), 0);
    assert_true(tether_test_world_wait(&waiter->world, leads, waiter));
}

static void end(struct waiter *waiter)
{
    tether_reply_ok(atomic_exchange(&waiter->world.held, NULL), NULL);
    pthread_join(waiter->thread, NULL);
    assert_int_equal(waiter->status, TETHER_OK);
    tether_test_world_stop(&waiter->world);
    tether_test_world_register = NULL;
}

/* ---- Tests ---- */

static bool has_noted(void *userdata)
{
    return atomic_load(&((struct tether_test_world *)userdata)->n_noted) > 0;
}

static void deferred_call_is_sent_when_its_thread_does_not_wait(void **state)
{
    (void)state;
    struct waiter waiter = {.status = TETHER_EINTERNAL};
    begin(&waiter);
    tether_future *future = tether_rpc_async(waiter.world.agents[0], "w1", "note", NULL, 60000);
    assert_true(tether_test_world_wait(&waiter.world, has_noted, &waiter.world));
    tether_future_release(future);
    end(&waiter);
}

static bool has_noted_all(void *userdata)
{
    return atomic_load(&((struct tether_test_world *)userdata)->n_noted) ==
           atomic_load(&n_forwarded);
}

/* On the server's thread: when that is done with all that has come. */
static void deferred_calls_are_sent_after_the_received_batch(void **state)
{
    (void)state;
    struct waiter waiter = {.status = TETHER_EINTERNAL};
    begin(&waiter);
    assert_int_equal(
        tether_rpc_sync(waiter.world.agents[1], "w0", "forward", NULL, 60000, NULL, NULL),
        TETHER_OK);
    assert_true(tether_test_world_wait(&waiter.world, has_noted_all, &waiter.world));
    end(&waiter);
}

/* On a thread of the pool: when that is done with its function. */
static void deferred_calls_are_sent_when_a_function_returns(void **state)
{
    (void)state;
    struct waiter waiter = {.status = TETHER_EINTERNAL};
    tether_value *answer = NULL;
    begin(&waiter);
    tether_agent *caller = waiter.world.agents[1];
    tether_future *forwarded = tether_rpc_async(caller, "w0", "forward_pooled", NULL, 60000);
    assert_int_equal(tether_rpc_sync(caller, "w0", "look", NULL, 60000, &answer, NULL), TETHER_OK);
    assert_string_equal(tether_value_str(answer), "flushed");
    assert_int_equal(tether_future_wait(forwarded, 60000, NULL, NULL), TETHER_OK);
    assert_true(tether_test_world_wait(&waiter.world, has_noted_all, &waiter.world));
    tether_value_release(answer);
    tether_future_release(forwarded);
    end(&waiter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deferred_call_is_sent_when_its_thread_does_not_wait),
        cmocka_unit_test(deferred_calls_are_sent_after_the_received_batch),
        cmocka_unit_test(deferred_calls_are_sent_when_a_function_returns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
