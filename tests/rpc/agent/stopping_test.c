/* An agent that is stopped while other threads of the program are in the middle of a call: they
 * are let out first, and none of them waits for an answer that cannot come.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "rpc/agent/internal.h"
#include "rpc/future/poller.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/world.h"

struct scene {
    struct tether_test_world world;
    struct tether_test_event entered, go_on, stopped;
    _Atomic bool has_stopped;
    pthread_t stopper, caller;
    tether_status status; /* of the call */
};

static void scene_start(struct scene *scene, enum tether_test_net net)
{
    memset(scene, 0, sizeof *scene);
    tether_test_event_init(&scene->entered);
    tether_test_event_init(&scene->go_on);
    tether_test_event_init(&scene->stopped);
    tether_test_world_start(&scene->world, net, 2, NULL);
}

static void scene_end(struct scene *scene)
{
    tether_test_world_stop(&scene->world);
    tether_test_event_fini(&scene->stopped);
    tether_test_event_fini(&scene->go_on);
    tether_test_event_fini(&scene->entered);
}

static void *stop(void *arg)
{
    struct scene *scene = arg;
    assert_int_equal(tether_agent_shutdown(scene->world.agents[0], false, NULL), TETHER_OK);
    atomic_store(&scene->has_stopped, true);
    tether_test_event_signal(&scene->stopped);
    return NULL;
}

/* ---- A callback on a thread that polls ---- */

static void dawdle(tether_future *future, void *arg)
{
    struct scene *scene = arg;
    (void)future;
    tether_test_event_signal(&scene->entered);
    assert_true(tether_test_event_wait(&scene->go_on, 1, TETHER_TEST_LIMIT_MS));
}

static void *await_held_call(void *arg)
{
    struct scene *scene = arg;
    tether_future *call =
        tether_rpc_async(scene->world.agents[0], "w1", "hold", NULL, TETHER_TEST_LIMIT_MS);
    assert_int_equal(tether_future_then(call, dawdle, scene), TETHER_OK);
    scene->status = tether_future_wait(call, TETHER_TEST_LIMIT_MS, NULL, NULL);
    tether_future_release(call);
    return NULL;
}

static bool thread_leads(struct tether__poller *poller)
{
    pthread_mutex_lock(&poller->mu);
    bool leads = poller->led && !poller->background_leads;
    pthread_mutex_unlock(&poller->mu);
    return leads;
}

/* The thread that polls is in a callback: until it is out, its transport stays. */
static void shutdown_waits_for_polling_threads(enum tether_test_net net)
{
    struct scene scene;
    scene_start(&scene, net);
    tether_agent *agent = scene.world.agents[0];
    assert_int_equal(pthread_create(&scene.caller, NULL, await_held_call, &scene), 0);
    assert_eventually(thread_leads(agent->timers) && atomic_load(&scene.world.n_held) == 1);
    tether_reply_ok(atomic_exchange(&scene.world.held, NULL), NULL);
    assert_true(tether_test_event_wait(&scene.entered, 1, TETHER_TEST_LIMIT_MS));

    assert_int_equal(pthread_create(&scene.stopper, NULL, stop, &scene), 0);
    assert_eventually(atomic_load(&agent->timers->stopping));
    for (int i = 0; i < 20; i++) /* shutdown() would have returned by then */
        tether_test_nap(0);
    assert_false(atomic_load(&scene.has_stopped));
    tether_test_event_signal(&scene.go_on);

    pthread_join(scene.caller, NULL);
    pthread_join(scene.stopper, NULL);
    assert_int_equal(scene.status, TETHER_OK);
    scene_end(&scene);
}

/* ---- A call that is made meanwhile ---- */

static struct scene *slow_scene;

/* Writing the argument takes until the worker has stopped: only the threads inside calls are still
 * waited for. */
static tether_status write_slowly(const void *object, tether_buf *ret_bytes, tether_error *reterr)
{
    (void)object, (void)reterr;
    tether_test_event_signal(&slow_scene->entered);
    assert_eventually(atomic_load(&slow_scene->world.agents[0]->state) == TETHER__AGENT_STOPPED);
    return tether_buf_assign(ret_bytes, tether_bytes_str("late"));
}

static void keep(void *object)
{
    (void)object;
}

static const tether_type slow_type = {.name = "slow", .destroy = keep, .serialise = write_slowly};

static void *call_slowly(void *arg)
{
    struct scene *scene = arg;
    tether_value *value = NULL;
    assert_int_equal(tether_value_new_object(&slow_type, scene, &value, NULL), TETHER_OK);
    scene->status = tether_rpc_sync(scene->world.agents[0], "w1", "echo", value,
                                    TETHER_TEST_LIMIT_MS, NULL, NULL);
    tether_value_release(value);
    return NULL;
}

/* The call was accepted before the shutdown, and is sent after it began. */
static void call_fails_when_it_is_made_during_shutdown(enum tether_test_net net)
{
    struct scene scene;
    scene_start(&scene, net);
    slow_scene = &scene;
    assert_int_equal(pthread_create(&scene.caller, NULL, call_slowly, &scene), 0);
    assert_true(tether_test_event_wait(&scene.entered, 1, TETHER_TEST_LIMIT_MS));
    assert_int_equal(pthread_create(&scene.stopper, NULL, stop, &scene), 0);
    pthread_join(scene.caller, NULL);
    pthread_join(scene.stopper, NULL);
    assert_int_equal(scene.status, TETHER_ESHUTDOWN);
    scene_end(&scene);
}

/* ---- After the goodbye ---- */

static struct scene *parting_scene;

static tether_status stay(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    tether_test_event_signal(&parting_scene->entered);
    assert_true(tether_test_event_wait(&parting_scene->go_on, 1, TETHER_TEST_LIMIT_MS));
    return TETHER_OK;
}

static void register_stay(tether_agent *agent)
{
    assert_int_equal(tether_agent_register(agent, "stay", stay, NULL, NULL), TETHER_OK);
}

/* A function holds the shutdown up: its worker listens, and its name is in the store. Neither who
 * has known it nor a newcomer gets anything run there. */
static void stopped_worker_serves_no_calls_after_its_goodbye(enum tether_test_net net)
{
    struct scene scene;
    parting_scene = &scene;
    tether_test_world_register = register_stay;
    scene_start(&scene, net);
    tether_future *staying =
        tether_rpc_async(scene.world.agents[1], "w0", "stay", NULL, TETHER_TEST_LIMIT_MS);
    assert_true(tether_test_event_wait(&scene.entered, 1, TETHER_TEST_LIMIT_MS));
    assert_int_equal(pthread_create(&scene.stopper, NULL, stop, &scene), 0);
    assert_eventually(atomic_load(&scene.world.agents[0]->state) == TETHER__AGENT_STOPPED);
    scene.world.n = 3;
    tether_test_world_start_one(&scene.world, 2, NULL);
    for (int i = 1; i < 3; i++)
        assert_int_not_equal(
            tether_rpc_sync(scene.world.agents[i], "w0", "note", NULL, 300, NULL, NULL), TETHER_OK);
    assert_int_equal(atomic_load(&scene.world.n_noted), 0);
    assert_false(atomic_load(&scene.has_stopped));
    tether_test_event_signal(&scene.go_on);
    pthread_join(scene.stopper, NULL);
    tether_future_release(staying);
    tether_test_world_register = NULL;
    scene_end(&scene);
}

/* ---- At any moment ---- */

enum { ROUNDS = 12, CALLERS = 3 };

struct crowd {
    struct tether_test_world world;
    _Atomic int n_calls;
};

static bool may_be(tether_status status)
{
    return status == TETHER_OK || status == TETHER_ESHUTDOWN;
}

/* Calls, waiting or not, until the agent is no more. */
static void *call_on_and_on(void *arg)
{
    struct crowd *crowd = arg;
    tether_agent *agent = crowd->world.agents[0];
    tether_status st = TETHER_OK;
    for (int i = 0; st == TETHER_OK; i++) {
        const char *to = i % 3 ? "w1" : "w2";
        tether_future *call = tether_rpc_async(agent, to, "echo", NULL, TETHER_TEST_LIMIT_MS);
        st = tether_rpc_sync(agent, to, "echo_pooled", NULL, TETHER_TEST_LIMIT_MS, NULL, NULL);
        assert_true(may_be(st));
        st = tether_future_wait(call, TETHER_TEST_LIMIT_MS, NULL, NULL);
        assert_true(may_be(st));
        tether_future_release(call);
        atomic_fetch_add(&crowd->n_calls, 1);
    }
    return NULL;
}

static void agent_can_be_stopped_at_any_moment(enum tether_test_net net)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct crowd crowd = {.n_calls = 0};
        pthread_t callers[CALLERS];
        tether_test_world_start(&crowd.world, net, 3, NULL);
        for (int i = 0; i < CALLERS; i++)
            assert_int_equal(pthread_create(&callers[i], NULL, call_on_and_on, &crowd), 0);
        assert_eventually(atomic_load(&crowd.n_calls) >= round);
        assert_int_equal(tether_agent_shutdown(crowd.world.agents[0], false, NULL), TETHER_OK);
        for (int i = 0; i < CALLERS; i++)
            pthread_join(callers[i], NULL);
        tether_test_world_stop(&crowd.world);
    }
}

/* ---- What is left of it ---- */

static void accessors_work_after_shutdown(enum tether_test_net net)
{
    struct scene scene;
    scene_start(&scene, net);
    char before[256];
    snprintf(before, sizeof before, "%s", tether_agent_address(scene.world.agents[0]));
    assert_int_equal(tether_agent_shutdown(scene.world.agents[0], true, NULL), TETHER_OK);
    assert_string_equal(tether_agent_address(scene.world.agents[0]), before);
    scene_end(&scene);
}

#define BY_BOTH(name)                        \
    static void name##_network(void **state) \
    {                                        \
        (void)state;                         \
        name(TETHER_TEST_GRPC);              \
    }                                        \
    static void name##_local(void **state)   \
    {                                        \
        (void)state;                         \
        name(TETHER_TEST_UNIX);              \
    }

BY_BOTH(shutdown_waits_for_polling_threads)
BY_BOTH(call_fails_when_it_is_made_during_shutdown)
BY_BOTH(stopped_worker_serves_no_calls_after_its_goodbye)
BY_BOTH(agent_can_be_stopped_at_any_moment)
BY_BOTH(accessors_work_after_shutdown)

static void agent_can_be_stopped_at_any_moment_over_local_and_network(void **state)
{
    (void)state;
    agent_can_be_stopped_at_any_moment(TETHER_TEST_MIXED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shutdown_waits_for_polling_threads_network),
        cmocka_unit_test(shutdown_waits_for_polling_threads_local),
        cmocka_unit_test(call_fails_when_it_is_made_during_shutdown_network),
        cmocka_unit_test(call_fails_when_it_is_made_during_shutdown_local),
        cmocka_unit_test(stopped_worker_serves_no_calls_after_its_goodbye_network),
        cmocka_unit_test(stopped_worker_serves_no_calls_after_its_goodbye_local),
        cmocka_unit_test(agent_can_be_stopped_at_any_moment_network),
        cmocka_unit_test(agent_can_be_stopped_at_any_moment_local),
        cmocka_unit_test(agent_can_be_stopped_at_any_moment_over_local_and_network),
        cmocka_unit_test(accessors_work_after_shutdown_network),
        cmocka_unit_test(accessors_work_after_shutdown_local),
    };
    return cmocka_run_group_tests_name("stopping", tests, NULL, NULL);
}
