/* A graceful shutdown reports leaks (rref/drain.c), and nothing that is not a leak.
 *
 * In the simulation w0 creates, w1 and w2 own, in a dynamic group. The last test runs a static
 * group of real agents.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "rref/context.h"
#include "rref/hooks.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

enum { LEASE_MS = 3000, TIMEOUT_MS = 20000 };

/* ---- Objects that hold a reference ---- */

struct node {
    tether_rref *other;
};

static _Atomic int slow_destructors; /* how many destructors are to take long */

static void destroy_node(void *object)
{
    struct node *node = object;
    if (atomic_fetch_sub(&slow_destructors, 1) > 0)
        usleep(500000); /* longer than all agents of an idle machine take to leave */
    tether_rref_release(node->other);
    atomic_fetch_sub(&cast_n_live, 1);
    free(node);
}

static const tether_type node_type = {.name = "node", .destroy = destroy_node};

static tether_status make_node(void *userdata,
                               const tether_value *arg,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    (void)userdata;
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        abort();
    /* NULL: the argument has no reference */
    node->other = tether_rref_retain(tether_value_rref(arg, 0));
    atomic_fetch_add(&cast_n_live, 1);
    return tether_value_new_object(&node_type, node, ret_value, reterr);
}

static tether_status confirm_and_add(void *userdata,
                                     const tether_value *arg,
                                     tether_value **ret_value,
                                     tether_error *reterr);

static void register_all(tether_agent *agent)
{
    cast_register(agent);
    assert_int_equal(tether_agent_register_inline(agent, "make_node", make_node, NULL, NULL),
                     TETHER_OK);
    assert_int_equal(tether_agent_register_inline(agent, "swap", confirm_and_add, agent, NULL),
                     TETHER_OK);
    assert_int_equal(tether_agent_register_type(agent, &node_type, NULL), TETHER_OK);
}

static int start(void **state)
{
    static struct tether_test_world world;
    tether_test_world_before_send = NULL;
    tether_test_world_register = register_all;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3,
                            TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS,
                                              .shutdown_timeout_ms = 10000, .fail_on_leaks = true));
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    assert_int_equal(cast_n_live, 0);
    return 0;
}

/* A node on `to` that holds a reference to a counter on `on`. */
static tether_rref *node_that_refers(tether_agent *agent, const char *to, const char *on)
{
    tether_rref *counter = cast_remote_counter(agent, on, "1");
    tether_value *arg = cast_text("");
    assert_int_equal(tether_value_attach(arg, counter, NULL), TETHER_OK);
    tether_rref *node = tether_remote(agent, to, "make_node", arg, TIMEOUT_MS);
    tether_value_release(arg);
    cast_confirmed(node);
    tether_rref_release(counter);
    return node;
}

static void shutdown_ok(tether_agent *agent)
{
    tether_error err = {0};
    tether_status st = tether_agent_shutdown(agent, true, &err);
    if (st != TETHER_OK)
        fail_msg("%s: %s", tether_status_name(st), err.message);
}

static void shutdown_leaks(tether_agent *agent, const char *words)
{
    tether_error err = {0};
    assert_int_equal(tether_agent_shutdown(agent, true, &err), TETHER_ELEAK);
    if (!strstr(err.message, words))
        fail_msg("'%s' is not in '%s'", words, err.message);
}

/* ---- Leaks ---- */

static void shutdown_reports_no_leak_when_the_holding_object_is_being_released(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *node = node_that_refers(w->agents[0], "w1", "w2");
    tether_rref_release(node);
    /* The release of the node is on its way: until it comes, the node holds a reference. */
    assert_int_equal(tether_rref_counts(w->agents[1]).confirmed_users, 1);
    shutdown_ok(w->agents[1]);
    shutdown_ok(w->agents[0]);
    shutdown_ok(w->agents[2]);
}

static void shutdown_reports_a_leak_when_a_confirmed_reference_is_held(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    shutdown_leaks(w->agents[0], "1 references were never released");
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_RELEASED);
    tether_rref_release(rref);
}

/* ---- Pending references ---- */

static char logged[4096]; /* the last warning about leaks */

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)level, (void)area;
    if (strstr(message, "never released"))
        snprintf(logged, sizeof logged, "%s", message);
}

static tether_rref *pending[2];

/* A reference of `agent` to an object of w1 that no message will confirm. */
static void add_pending(tether_agent *agent, int i)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether__peer *peer = NULL;
    assert_int_equal(tether__agent_peer(agent, "w1", &peer, NULL), TETHER_OK);
    tether__peer_release(peer);
    pending[i] = tether__rref_alloc(refs, false, (tether_rref_id){7, 4000000000U, 1});
    pending[i]->user.fork = (tether_rref_id){7, 4000000000U, 2 + (uint64_t)i};
    pending[i]->user.owner =
        (struct tether__ref_session){tether__peer_retain(peer), peer->session_number};
    pthread_mutex_lock(&refs->mu);
    assert_int_equal(tether__user_add_locked(pending[i]), TETHER_OK);
    pthread_mutex_unlock(&refs->mu);
}

/* The shutdown waits for its confirmation as long as it may, and then reports it with the rest. */
static void shutdown_times_out_and_logs_the_leak_when_a_pending_reference_is_held(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    cast_call_ok(w->agents[0], "w1", "note"); /* so that the two workers are connected */
    add_pending(w->agents[0], 0);
    logged[0] = '\0';
    tether_set_log(TETHER_LOG_WARN, on_log, NULL);
    tether_status st = tether_agent_shutdown(w->agents[0], true, &err);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    assert_int_equal(st, TETHER_ETIMEOUT);
    assert_non_null(strstr(err.message, "1 references were not confirmed"));
    assert_non_null(strstr(logged, "1 references were never released"));
    assert_non_null(strstr(logged, "of 'w1' made at"));
    tether_rref_release(pending[0]);
}

static bool is_broken(void *rref)
{
    return tether_rref_status(rref, NULL) == TETHER_RREF_BROKEN;
}

static void shutdown_reports_a_leak_when_a_broken_reference_is_held(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    tether_sim_kill(w->sim, w->agents[1]);
    assert_true(tether_test_world_wait(w, is_broken, rref));
    shutdown_leaks(w->agents[0], "of 'w1' made at");
    tether_rref_release(rref);
}

static void shutdown_reports_a_leak_when_a_reference_to_an_own_object_is_held(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_own_counter(w->agents[0], 1),
                *passed = cast_own_counter(w->agents[0], 2);
    tether_rref *released = cast_own_counter(w->agents[0], 3);
    cast_send_ok(w->agents[0], "w1", "keep", passed);
    tether_rref_release(passed); /* only w1 has it now: it may keep it */
    tether_rref_release(released);
    shutdown_leaks(w->agents[0], "1 references were never released");
    tether_rref_release(rref);
}

static void shutdown_reports_no_leak_when_all_is_released(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_own_counter(w->agents[0], 1);
    tether_rref *remote = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    tether_rref *here = cast_remote_counter(w->agents[0], "w0", "1");
    tether_rref_release(rref);
    tether_rref_release(remote);
    tether_rref_release(here);
    shutdown_ok(w->agents[0]);
}

/* ---- A reference that comes while shutdown waits for another ---- */

/* Runs on w0: the first reference goes, so that nothing is pending, and at once another comes. */
static tether_status confirm_and_add(void *userdata,
                                     const tether_value *arg,
                                     tether_value **ret_value,
                                     tether_error *reterr)
{
    (void)arg, (void)ret_value, (void)reterr;
    tether_rref_release(pending[0]);
    add_pending(userdata, 1);
    return TETHER_OK;
}

static void drain_does_not_time_out_when_a_reference_comes_after_the_last_is_confirmed(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    cast_call_ok(w->agents[1], "w0", "note");
    add_pending(w->agents[0], 0);
    tether_future *swap = tether_rpc_async(w->agents[1], "w0", "swap", NULL, TIMEOUT_MS);
    tether_status st = tether__refs_drain(tether__refs_of(w->agents[0]),
                                          tether__deadline_in(w->agents[0]->clock, 5000), &err);
    if (st != TETHER_ELEAK) /* the second one is pending, and still held */
        fail_msg("%s: %s", tether_status_name(st), err.message);
    assert_int_equal(tether_future_wait(swap, TIMEOUT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(swap);
    tether_rref_release(pending[1]);
}

/* ---- A static group ---- */

enum { N = 3, ROUNDS = 10 };

struct mate {
    tether_store *store;
    int rank;
    tether_status status;
    tether_error error;
    pthread_t thread;
};

static void *mate_main(void *arg)
{
    struct mate *mate = arg;
    tether_agent *agent = NULL;
    char name[8];
    snprintf(name, sizeof name, "w%d", mate->rank);
    mate->status = tether_agent_new(
        TETHER_AGENT_OPTS(.name = name, .store = mate->store, .rank = mate->rank, .world_size = N,
                          .threads = 2, .fail_on_leaks = true, .shutdown_timeout_ms = 60000),
        &agent, &mate->error);
    if (mate->status != TETHER_OK)
        return NULL;
    register_all(agent);
    mate->status = tether_agent_start(agent, &mate->error);
    if (mate->status == TETHER_OK && mate->rank == 0)
        for (int i = 0; i < 20; i++)
            tether_rref_release(node_that_refers(agent, "w1", "w2"));
    if (mate->status == TETHER_OK)
        mate->status = tether_agent_shutdown(agent, true, &mate->error);
    tether_agent_release(agent);
    return NULL;
}

static void run_static_groups(int rounds)
{
    for (int round = 0; round < rounds; round++) {
        struct mate mates[N];
        tether_store *store = NULL;
        assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
        for (int i = 0; i < N; i++) {
            mates[i] = (struct mate){.store = store, .rank = i};
            pthread_create(&mates[i].thread, NULL, mate_main, &mates[i]);
        }
        for (int i = 0; i < N; i++)
            pthread_join(mates[i].thread, NULL);
        for (int i = 0; i < N; i++)
            if (mates[i].status != TETHER_OK)
                fail_msg("w%d: %s: %s", i, tether_status_name(mates[i].status),
                         mates[i].error.message);
        tether_store_release(store);
        assert_int_equal(cast_n_live, 0);
    }
}

static void static_group_reports_no_leak_when_holding_objects_are_being_released(void **state)
{
    (void)state;
    atomic_store(&slow_destructors, 0);
    run_static_groups(ROUNDS);
}

static void static_group_reports_no_leak_when_destructors_of_holding_objects_are_slow(void **state)
{
    (void)state;
    atomic_store(&slow_destructors, 1);
    run_static_groups(1);
    assert_true(atomic_load(&slow_destructors) < 1);
}

/* ---- Objects that are made while the agent stops ---- */

enum { CREATORS = 2, STOPS = 30 };

struct creator {
    tether_agent *agent;
    _Atomic int n_made;
};

static void *make_until_shutdown(void *arg)
{
    struct creator *creator = arg;
    tether_status st = TETHER_OK;
    while (st == TETHER_OK) {
        tether_rref *rref = NULL;
        tether_value *value = NULL;
        assert_int_equal(cast_new_counter(1, &value, NULL), TETHER_OK);
        st = tether_rref_new(creator->agent, value, &rref, NULL);
        tether_value_release(value);
        if (st == TETHER_OK)
            assert_true(tether_rref_is_owner(rref));
        atomic_fetch_add(&creator->n_made, st == TETHER_OK);
        tether_rref_release(rref);
    }
    assert_int_equal(st, TETHER_ESHUTDOWN);
    tether_agent_release(creator->agent);
    return NULL;
}

static void references_are_made_or_refused_when_another_thread_shuts_down(void **state)
{
    (void)state;
    tether_test_world_register = cast_register;
    for (int round = 0; round < STOPS; round++) {
        struct tether_test_world world;
        struct creator creators[CREATORS] = {{0}};
        pthread_t threads[CREATORS];
        tether_test_world_start(&world, TETHER_TEST_UNIX, 1,
                                TETHER_AGENT_OPTS(.shutdown_timeout_ms = 200));
        for (int i = 0; i < CREATORS; i++) {
            creators[i].agent = tether_agent_retain(world.agents[0]);
            assert_int_equal(pthread_create(&threads[i], NULL, make_until_shutdown, &creators[i]),
                             0);
        }
        assert_eventually(atomic_load(&creators[0].n_made) > round);
        tether_agent_shutdown(world.agents[0], round % 2, NULL);
        world.agents[0] = tether_agent_release(world.agents[0]);
        for (int i = 0; i < CREATORS; i++)
            pthread_join(threads[i], NULL);
        tether_test_world_stop(&world);
        assert_int_equal(atomic_load(&cast_n_live), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_are_made_or_refused_when_another_thread_shuts_down),
        cmocka_unit_test_setup_teardown(
            shutdown_reports_no_leak_when_the_holding_object_is_being_released, start, stop),
        cmocka_unit_test_setup_teardown(shutdown_reports_a_leak_when_a_confirmed_reference_is_held,
                                        start, stop),
        cmocka_unit_test_setup_teardown(
            shutdown_times_out_and_logs_the_leak_when_a_pending_reference_is_held, start, stop),
        cmocka_unit_test_setup_teardown(shutdown_reports_a_leak_when_a_broken_reference_is_held,
                                        start, stop),
        cmocka_unit_test_setup_teardown(
            shutdown_reports_a_leak_when_a_reference_to_an_own_object_is_held, start, stop),
        cmocka_unit_test_setup_teardown(shutdown_reports_no_leak_when_all_is_released, start, stop),
        cmocka_unit_test_setup_teardown(
            drain_does_not_time_out_when_a_reference_comes_after_the_last_is_confirmed, start,
            stop),
        cmocka_unit_test(static_group_reports_no_leak_when_holding_objects_are_being_released),
        cmocka_unit_test(static_group_reports_no_leak_when_destructors_of_holding_objects_are_slow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
