/* An agent that other threads use while it is stopped and released: every public call either works
 * or says TETHER_ESHUTDOWN, and what outlives the agent is safe to use.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "rpc/agent/internal.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

/* ---- Everything, from several threads ---- */

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
    assert_eventually(atomic_load(&agent->state) ==
                      TETHER__AGENT_JOINING); /* no other worker joins */
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

/* ---- What outlives it ---- */

static void store_is_lent_until_the_agent_is_released(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 2, NULL);
    tether_store *store = tether_agent_store(world.agents[0]);
    assert_int_equal(tether_agent_shutdown(world.agents[0], true, NULL), TETHER_OK);
    assert_ptr_equal(tether_agent_store(world.agents[0]), store);
    assert_ptr_equal(store, world.store);
    tether_worker worker;
    assert_int_equal(tether_agent_worker(world.agents[0], "w1", &worker, NULL), TETHER_ESHUTDOWN);
    tether_test_world_stop(&world);
}

static void reference_is_safe_after_its_agent_was_released(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 2, NULL);
    tether_rref *remote = cast_remote_counter(world.agents[0], "w1", "5");
    tether_rref *own = cast_own_counter(world.agents[0], 5);
    assert_int_equal(tether_rref_to_here(remote, TETHER_TEST_LIMIT_MS, NULL, NULL), TETHER_OK);
    const char *name = tether_rref_owner_name(remote);
    world.agents[0] = tether_agent_release(world.agents[0]);

    assert_string_equal(name, "w1");
    assert_string_equal(tether_rref_owner_name(remote), "w1");
    assert_string_equal(tether_rref_owner_name(own), "w0");
    tether_error error = {0};
    tether_rref *derived = tether_rref_remote(remote, "add", NULL, TETHER_TEST_LIMIT_MS);
    assert_int_equal(tether_rref_status(derived, &error), TETHER_RREF_BROKEN);
    assert_int_equal(tether_rref_to_here(derived, 0, NULL, &error), TETHER_ESHUTDOWN);
    assert_int_equal(error.code, TETHER_ESHUTDOWN);
    assert_int_equal(tether_rref_sync(remote, "add", NULL, 0, NULL, NULL), TETHER_ESHUTDOWN);
    assert_int_equal(tether_rref_to_here(remote, 0, NULL, NULL), TETHER_ESHUTDOWN);
    assert_int_equal(tether_rref_to_here(own, 0, NULL, NULL), TETHER_ESHUTDOWN);
    tether_rref_release(derived);
    tether_rref_release(own);
    tether_rref_release(remote);
    tether_test_world_stop(&world);
}

/* The reply is dropped, because the agent that would send it is gone. */
static void reply_after_the_agent_was_released_is_dropped(void **state)
{
    (void)state;
    for (int net = TETHER_TEST_GRPC; net <= TETHER_TEST_UNIX; net++) {
        struct tether_test_world world;
        tether_test_world_start(&world, net, 2, NULL);
        tether_future *call =
            tether_rpc_async(world.agents[0], "w1", "hold", NULL, TETHER_TEST_LIMIT_MS);
        assert_eventually(atomic_load(&world.n_held) == 1);
        world.agents[1] = tether_agent_release(world.agents[1]);
        tether_reply *late = atomic_exchange(&world.held, NULL);
        assert_true(tether_reply_is_cancelled(late));
        tether_reply_ok(late, NULL);
        assert_int_equal(tether_future_wait(call, TETHER_TEST_LIMIT_MS, NULL, NULL),
                         TETHER_EUNAVAILABLE);
        tether_future_release(call);
        tether_test_world_stop(&world);
    }
}

static void reply_to_oneself_after_the_agent_was_released_is_dropped(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 1, NULL);
    tether_future *call =
        tether_rpc_async(world.agents[0], "w0", "hold", NULL, TETHER_TEST_LIMIT_MS);
    assert_eventually(atomic_load(&world.n_held) == 1);
    world.agents[0] = tether_agent_release(world.agents[0]);
    tether_reply_error(atomic_exchange(&world.held, NULL), TETHER_EINVAL, "late");
    assert_int_equal(tether_future_status(call, NULL), TETHER_ESHUTDOWN);
    tether_future_release(call);
    tether_test_world_stop(&world);
}

/* The group borrows the poller of the first member, and so keeps it. */
static void group_of_two_agents_futures_outlives_the_first_agent(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_MIXED, 3, NULL);
    tether_future *futures[] = {
        tether_rpc_async(world.agents[0], "w2", "echo", NULL, TETHER_TEST_LIMIT_MS),
        tether_rpc_async(world.agents[1], "w2", "hold", NULL, TETHER_TEST_LIMIT_MS),
    };
    tether_future *all = tether_future_all(futures, 2);
    assert_int_equal(tether_future_wait(futures[0], TETHER_TEST_LIMIT_MS, NULL, NULL), TETHER_OK);
    assert_eventually(atomic_load(&world.n_held) == 1);
    tether_future_release(futures[0]);
    world.agents[0] = tether_agent_release(world.agents[0]);
    assert_int_equal(tether_future_wait(all, 0, NULL, NULL), TETHER_ETIMEOUT);
    tether_reply_ok(atomic_exchange(&world.held, NULL), NULL);
    assert_int_equal(tether_future_wait(all, TETHER_TEST_LIMIT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(futures[1]);
    tether_future_release(all);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_is_safe_when_another_thread_shuts_down),
        cmocka_unit_test(every_call_is_safe_when_another_thread_shuts_down_gracefully),
        cmocka_unit_test(every_call_is_safe_when_another_thread_releases),
        cmocka_unit_test(release_waits_for_a_call_that_has_begun),
        cmocka_unit_test(second_shutdown_returns_the_result_of_the_first),
        cmocka_unit_test(ungraceful_shutdown_cuts_a_graceful_one_short),
        cmocka_unit_test(shutdown_goes_on_when_another_thread_releases),
        cmocka_unit_test(start_says_that_the_agent_was_released_meanwhile),
        cmocka_unit_test(objects_are_not_created_after_the_goodbye),
        cmocka_unit_test(release_in_a_callback_stops_the_agent_later),
        cmocka_unit_test(shutdown_inside_a_call_of_the_same_thread_is_refused),
        cmocka_unit_test(store_is_lent_until_the_agent_is_released),
        cmocka_unit_test(reference_is_safe_after_its_agent_was_released),
        cmocka_unit_test(reply_after_the_agent_was_released_is_dropped),
        cmocka_unit_test(reply_to_oneself_after_the_agent_was_released_is_dropped),
        cmocka_unit_test(group_of_two_agents_futures_outlives_the_first_agent),
    };
    return cmocka_run_group_tests_name("handles", tests, NULL, NULL);
}
