/* Shutdown and release of an agent that another call, callback or thread uses at the same time.
 */
#include <pthread.h>
#include <string.h>

#include "rpc/agent/internal.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

/* ---- The last handle, while a call is inside ---- */

struct scene {
    struct tether_test_world world;
    pthread_t threads[2];
    tether_status status[2];
    tether_error error[2];
    _Atomic int n_done;
};

static void *wait_for_answer(void *arg)
{
    struct scene *scene = arg;
    scene->status[0] = tether_rpc_sync(scene->world.agents[0], "w1", "hold", NULL,
                                       TETHER_TEST_LIMIT_MS, NULL, &scene->error[0]);
    atomic_fetch_add(&scene->n_done, 1);
    return NULL;
}

/* The thread has no handle: release() waits until it is out. */
static void release_waits_for_a_call_that_has_begun(void **state)
{
    (void)state;
    struct scene scene = {.n_done = 0};
    tether_test_world_start(&scene.world, TETHER_TEST_UNIX, 2, NULL);
    assert_int_equal(pthread_create(&scene.threads[0], NULL, wait_for_answer, &scene), 0);
    assert_eventually(atomic_load(&scene.world.n_held) == 1);
    scene.world.agents[0] = tether_agent_release(scene.world.agents[0]);
    pthread_join(scene.threads[0], NULL);
    assert_int_equal(scene.status[0], TETHER_ESHUTDOWN);
    tether_test_world_stop(&scene.world);
}

/* ---- Two at once ---- */

static void *shut_down_gracefully(void *arg)
{
    struct scene *scene = arg;
    int i = atomic_load(&scene->n_done) ? 1 : 0;
    scene->status[i] = tether_agent_shutdown(scene->world.agents[0], true, &scene->error[i]);
    atomic_fetch_add(&scene->n_done, 1);
    return NULL;
}

/* The first cannot be graceful: a call is never answered. */
static void second_shutdown_returns_the_result_of_the_first(void **state)
{
    (void)state;
    struct scene scene = {.n_done = 0};
    tether_test_world_start(&scene.world, TETHER_TEST_UNIX, 2,
                            TETHER_AGENT_OPTS(.shutdown_timeout_ms = 300));
    tether_agent *agent = scene.world.agents[0];
    tether_future *call = tether_rpc_async(agent, "w1", "hold", NULL, TETHER_TEST_LIMIT_MS);
    assert_eventually(atomic_load(&scene.world.n_held) == 1);
    assert_int_equal(pthread_create(&scene.threads[0], NULL, shut_down_gracefully, &scene), 0);
    assert_eventually(atomic_load(&agent->state) >= TETHER__AGENT_STOPPING);
    tether_error error = {0};
    assert_int_equal(tether_agent_shutdown(agent, true, &error), TETHER_ETIMEOUT);
    assert_int_equal(atomic_load(&agent->state), TETHER__AGENT_STOPPED);
    pthread_join(scene.threads[0], NULL);
    assert_int_equal(scene.status[0], TETHER_ETIMEOUT);
    assert_string_equal(error.message, scene.error[0].message);
    assert_int_equal(tether_agent_shutdown(agent, true, NULL), TETHER_ETIMEOUT); /* still */
    tether_future_release(call);
    tether_test_world_stop(&scene.world);
}

/* Nothing else would end the first: a call is never answered, and there is no limit on time. */
static void ungraceful_shutdown_cuts_a_graceful_one_short(void **state)
{
    (void)state;
    struct scene scene = {.n_done = 0};
    tether_test_world_start(&scene.world, TETHER_TEST_UNIX, 2,
                            TETHER_AGENT_OPTS(.shutdown_timeout_ms = 3600 * 1000));
    tether_agent *agent = scene.world.agents[0];
    tether_future *call = tether_rpc_async(agent, "w1", "hold", NULL, -1);
    assert_eventually(atomic_load(&scene.world.n_held) == 1);
    assert_int_equal(pthread_create(&scene.threads[0], NULL, shut_down_gracefully, &scene), 0);
    assert_eventually(atomic_load(&agent->state) >= TETHER__AGENT_STOPPING);
    assert_int_equal(tether_agent_shutdown(agent, false, NULL), TETHER_ESHUTDOWN);
    pthread_join(scene.threads[0], NULL);
    assert_int_equal(scene.status[0], TETHER_ESHUTDOWN);
    tether_future_release(call);
    tether_test_world_stop(&scene.world);
}

static void shutdown_goes_on_when_another_thread_releases(void **state)
{
    (void)state;
    struct scene scene = {.n_done = 0};
    tether_test_world_start(&scene.world, TETHER_TEST_UNIX, 2,
                            TETHER_AGENT_OPTS(.shutdown_timeout_ms = 3600 * 1000));
    tether_agent *agent = scene.world.agents[0];
    tether_future *call = tether_rpc_async(agent, "w1", "hold", NULL, TETHER_TEST_LIMIT_MS);
    assert_eventually(atomic_load(&scene.world.n_held) == 1);
    assert_int_equal(pthread_create(&scene.threads[0], NULL, shut_down_gracefully, &scene), 0);
    assert_eventually(atomic_load(&agent->state) >= TETHER__AGENT_STOPPING);
    tether_agent_release(agent);
    pthread_join(scene.threads[0], NULL);
    scene.world.agents[0] = NULL;
    assert_int_equal(scene.status[0], TETHER_ESHUTDOWN);
    assert_int_equal(tether_future_status(call, NULL), TETHER_ESHUTDOWN);
    tether_future_release(call);
    tether_test_world_stop(&scene.world);
}

/* ---- While it starts ---- */

static void *start_alone(void *arg)
{
    struct scene *scene = arg;
    scene->status[0] = tether_agent_start(scene->world.agents[0], &scene->error[0]);
    return NULL;
}

static void start_says_that_the_agent_was_released_meanwhile(void **state)
{
    (void)state;
    struct scene scene = {.n_done = 0};
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    tether_agent *agent = NULL;
    assert_int_equal(tether_agent_new(TETHER_AGENT_OPTS(.store = store, .rank = 0, .world_size = 2,
                                                        .start_timeout_ms = 300),
                                      &agent, NULL),
                     TETHER_OK);
    scene.world.agents[0] = agent;
    tether_agent_retain(agent);
    assert_int_equal(pthread_create(&scene.threads[0], NULL, start_alone, &scene), 0);
    /* no other worker joins */
    assert_eventually(atomic_load(&agent->state) == TETHER__AGENT_JOINING);
    assert_int_equal(tether_agent_shutdown(agent, false, NULL), TETHER_EINVAL);
    tether_agent_release(agent);
    tether_agent_release(agent);
    pthread_join(scene.threads[0], NULL);
    assert_int_equal(scene.status[0], TETHER_ESHUTDOWN);
    tether_store_release(store);
}

/* ---- After the goodbye ---- */

static void register_stay(tether_agent *agent)
{
    cast_register(agent);
    cast_register_stay(agent, "make_another", true);
}

static void *shut_down_at_once(void *arg)
{
    struct scene *scene = arg;
    scene->status[0] = tether_agent_shutdown(scene->world.agents[0], false, &scene->error[0]);
    return NULL;
}

/* TAKES the reference. */
static void is_not_made(tether_rref *rref)
{
    tether_future *made = tether_rref_confirmed(rref);
    assert_int_not_equal(tether_future_wait(made, TETHER_TEST_LIMIT_MS, NULL, NULL), TETHER_OK);
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    tether_future_release(made);
    tether_rref_release(rref);
}

/* A function holds the shutdown of w0 up, so w0 still listens. w1 has known it, w2 is new. */
static void makes_no_object_after_its_goodbye(enum tether_test_net net)
{
    enum { SHORT_MS = 300 };
    static const char *const functions[] = {"make_counter", "make_counter_pooled"};
    struct scene scene = {.n_done = 0};
    tether_test_event_init(&cast_entered);
    tether_test_event_init(&cast_go_on);
    tether_test_world_register = register_stay;
    tether_test_world_start(&scene.world, net, 2, NULL);
    tether_agent **agents = scene.world.agents;
    tether_rref *parent = cast_remote_counter(agents[1], "w0", "1");
    cast_add_ok(parent, "1", "2");
    tether_future *staying = tether_rpc_async(agents[1], "w0", "stay", NULL, TETHER_TEST_LIMIT_MS);
    assert_true(tether_test_event_wait(&cast_entered, 1, TETHER_TEST_LIMIT_MS));
    assert_int_equal(pthread_create(&scene.threads[0], NULL, shut_down_at_once, &scene), 0);
    assert_eventually(atomic_load(&agents[0]->state) == TETHER__AGENT_STOPPED);
    scene.world.n = 3;
    tether_test_world_start_one(&scene.world, 2, NULL);
    assert_eventually(atomic_load(&cast_n_live) == 0); /* the goodbye has ended all sessions */
    for (int i = 1; i < 3; i++)
        for (size_t f = 0; f < TETHER__ARRAY_LEN(functions); f++)
            is_not_made(tether_remote(agents[i], "w0", functions[f], NULL, SHORT_MS));
    is_not_made(tether_rref_remote(parent, "make_another", NULL, SHORT_MS));
    for (size_t f = 0; f < TETHER__ARRAY_LEN(functions); f++) /* nor its own */
        is_not_made(tether_remote(agents[0], "w0", functions[f], NULL, SHORT_MS));
    tether_value *value = NULL;
    tether_rref *own = NULL;
    assert_int_equal(cast_new_counter(1, &value, NULL), TETHER_OK);
    assert_int_equal(tether_rref_new(agents[0], value, &own, NULL), TETHER_ESHUTDOWN);
    tether_value_release(value);
    assert_int_equal(atomic_load(&cast_n_live), 0);
    tether_test_event_signal(&cast_go_on);
    pthread_join(scene.threads[0], NULL);
    assert_int_equal(scene.status[0], TETHER_OK);
    tether_future_release(staying);
    tether_rref_release(parent);
    tether_test_world_stop(&scene.world);
    assert_int_equal(atomic_load(&cast_n_live), 0);
    tether_test_event_fini(&cast_go_on);
    tether_test_event_fini(&cast_entered);
}

static void objects_are_not_created_after_the_goodbye(void **state)
{
    (void)state;
    makes_no_object_after_its_goodbye(TETHER_TEST_UNIX);
    makes_no_object_after_its_goodbye(TETHER_TEST_GRPC);
}

/* ---- In its own functions ---- */

static void release_in_callback(tether_future *future, void *arg)
{
    struct scene *scene = arg;
    (void)future;
    assert_int_equal(tether_agent_shutdown(scene->world.agents[0], false, NULL), TETHER_EDEADLK);
    scene->world.agents[0] = tether_agent_release(scene->world.agents[0]);
    atomic_fetch_add(&scene->n_done, 1);
}

/* Another thread stops it: the call of the second worker, which it serves, fails. */
static void release_in_a_callback_stops_the_agent_later(void **state)
{
    (void)state;
    struct scene scene = {.n_done = 0};
    tether_test_world_start(&scene.world, TETHER_TEST_UNIX, 2, NULL);
    tether_future *held =
        tether_rpc_async(scene.world.agents[1], "w0", "hold", NULL, TETHER_TEST_LIMIT_MS);
    assert_eventually(atomic_load(&scene.world.n_held) == 1);
    tether_future *call =
        tether_rpc_async(scene.world.agents[0], "w1", "echo", NULL, TETHER_TEST_LIMIT_MS);
    assert_int_equal(tether_future_then(call, release_in_callback, &scene), TETHER_OK);
    assert_int_equal(tether_future_wait(held, TETHER_TEST_LIMIT_MS, NULL, NULL),
                     TETHER_EUNAVAILABLE);
    assert_eventually(atomic_load(&scene.n_done) == 1); /* it may be in the callback still */
    tether_future_release(call);
    tether_future_release(held);
    tether_test_world_stop(&scene.world);
}

static tether_agent *to_be_shut_down;
static tether_status status_in_serialise;

static tether_status shut_down_in_serialise(const void *object,
                                            tether_buf *ret_bytes,
                                            tether_error *reterr)
{
    (void)object, (void)reterr;
    status_in_serialise = tether_agent_shutdown(to_be_shut_down, false, NULL);
    return tether_buf_assign(ret_bytes, tether_bytes_str("x"));
}

static void keep(void *object)
{
    (void)object;
}

static const tether_type restless_type = {.name = "restless",
                                          .destroy = keep,
                                          .serialise = shut_down_in_serialise};

static void shutdown_inside_a_call_of_the_same_thread_is_refused(void **state)
{
    (void)state;
    struct scene scene = {.n_done = 0};
    tether_value *value = NULL;
    tether_test_world_start(&scene.world, TETHER_TEST_UNIX, 2, NULL);
    to_be_shut_down = scene.world.agents[0];
    assert_int_equal(tether_value_new_object(&restless_type, &scene, &value, NULL), TETHER_OK);
    assert_int_equal(tether_rpc_sync(scene.world.agents[0], "w1", "echo", value,
                                     TETHER_TEST_LIMIT_MS, NULL, NULL),
                     TETHER_OK);
    assert_int_equal(status_in_serialise, TETHER_EDEADLK);
    tether_value_release(value);
    tether_test_world_stop(&scene.world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_waits_for_a_call_that_has_begun),
        cmocka_unit_test(second_shutdown_returns_the_result_of_the_first),
        cmocka_unit_test(ungraceful_shutdown_cuts_a_graceful_one_short),
        cmocka_unit_test(shutdown_goes_on_when_another_thread_releases),
        cmocka_unit_test(start_says_that_the_agent_was_released_meanwhile),
        cmocka_unit_test(objects_are_not_created_after_the_goodbye),
        cmocka_unit_test(release_in_a_callback_stops_the_agent_later),
        cmocka_unit_test(shutdown_inside_a_call_of_the_same_thread_is_refused),
    };
    return cmocka_run_group_tests_name("handles", tests, NULL, NULL);
}
