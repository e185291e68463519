/* Calls that wait to be written with others leave, even if nobody who made them waits. A thread of
 * w0 waits for an answer of w1's all the time, so that calls to w1 may be held back. */
#include <pthread.h>

#include "rpc/agent_internal.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/world.h"

/* Makes two calls of its own, inline on the server's thread: they leave together, when that is done
 * with all that has come. */
static void forward(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)arg;
    tether_agent *agent = userdata;
    for (int i = 0; i < 2; i++)
        tether_future_release(tether_rpc_async(agent, "w1", "note", NULL, 60000));
    assert_true(tether__agent_has_unflushed(agent));
    tether_reply_ok(reply, NULL);
}

static void register_forward(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_async(agent, "forward", forward, true, agent, NULL),
                     TETHER_OK);
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
           atomic_load(&waiter->world.agents[0]->near.progress.threads_lead);
}

static void begin(struct waiter *waiter)
{
    tether_test_world_register = register_forward;
    tether_test_world_start(&waiter->world, TETHER_TEST_UNIX, 2, NULL);
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

static void leaves_though_its_thread_does_not_wait(void **state)
{
    (void)state;
    struct waiter waiter = {.status = TETHER_EINTERNAL};
    begin(&waiter);
    tether_future *future = tether_rpc_async(waiter.world.agents[0], "w1", "note", NULL, 60000);
    assert_true(tether_test_world_wait(&waiter.world, has_noted, &waiter.world));
    tether_future_release(future);
    end(&waiter);
}

static bool has_noted_both(void *userdata)
{
    return atomic_load(&((struct tether_test_world *)userdata)->n_noted) == 2;
}

static void leave_together_behind_what_has_come(void **state)
{
    (void)state;
    struct waiter waiter = {.status = TETHER_EINTERNAL};
    begin(&waiter);
    assert_int_equal(
        tether_rpc_sync(waiter.world.agents[1], "w0", "forward", NULL, 60000, NULL, NULL),
        TETHER_OK);
    assert_true(tether_test_world_wait(&waiter.world, has_noted_both, &waiter.world));
    end(&waiter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_though_its_thread_does_not_wait),
        cmocka_unit_test(leave_together_behind_what_has_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
