/* Chains whose length a program or a peer chooses: no path of the library may call itself once for
 * each reference, waiting request, call, future or value. All of it runs on a thread with a stack
 * of 256 KiB, workers and simulated network included, so any such path overflows it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

/* Sanitizers have larger frames, and memory that the others do not need. The simulation's queue of
 * pooled functions is a sorted list, so there are fewer of these. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { N_OBJECTS = 50000, N_WAITING = 4000, N_POOLED = 2000, STACK_BYTES = 1024 * 1024 };
#else
enum { N_OBJECTS = 1000000, N_WAITING = 1000000, N_POOLED = 8000, STACK_BYTES = 256 * 1024 };
#endif
enum { TIMEOUT_MS = 3600 * 1000, LEASE_MS = 30000 };

/* ---- Objects, each of which holds the one before ---- */

struct node {
    tether_rref *before;
    tether_value *inner;
};

static int n_nodes; /* that exist */

static void node_destroy(void *object)
{
    struct node *node = object;
    tether_rref_release(node->before);
    tether_value_release(node->inner);
    free(node);
    n_nodes--;
}

static const tether_type node_type = {.name = "node", .destroy = node_destroy};

/* TAKES both. */
static tether_value *new_node(tether_rref *before, tether_value *inner)
{
    tether_value *value = NULL;
    struct node *node = malloc(sizeof *node);
    assert_non_null(node);
    *node = (struct node){before, inner};
    assert_int_equal(tether_value_new_object(&node_type, node, &value, NULL), TETHER_OK);
    n_nodes++;
    return value;
}

/* ---- Functions ---- */

static tether_status node_next(void *userdata,
                               void *object,
                               const tether_value *arg,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    (void)userdata, (void)object, (void)arg, (void)reterr;
    *ret_value = new_node(NULL, NULL);
    return TETHER_OK;
}

static void add_functions(tether_agent *agent)
{
    cast_register(agent);
    assert_int_equal(
        tether_agent_register_method(agent, &node_type, "next", node_next, true, NULL, NULL),
        TETHER_OK);
    assert_int_equal(
        tether_agent_register_method(agent, &node_type, "pooled", node_next, false, NULL, NULL),
        TETHER_OK);
}

/* ---- Fixture ---- */

static int start(void **state)
{
    static struct tether_test_world world;
    n_nodes = 0;
    tether_test_world_register = add_functions;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2,
                            TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS,
                                              .max_calls_per_peer = 2 * N_WAITING,
                                              .max_bytes_per_peer = (size_t)1 << 40));
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    assert_int_equal(n_nodes, 0);
    return 0;
}

static bool is_settled(void *rref)
{
    return tether_rref_status(rref, NULL) != TETHER_RREF_PENDING;
}

static void finish_held(struct tether_test_world *w, tether_status status)
{
    tether_reply *reply = atomic_exchange(&w->held, NULL);
    if (status != TETHER_OK) {
        tether_reply_error(reply, status, "no object today");
        return;
    }
    tether_value *node = new_node(NULL, NULL);
    tether_reply_ok(reply, node);
    tether_value_release(node);
}

/* ---- Releasing ---- */

static tether_rref *new_list(tether_agent *agent)
{
    tether_rref *head = NULL;
    for (int i = 0; i < N_OBJECTS; i++) {
        tether_value *value = new_node(head, NULL);
        assert_int_equal(tether_rref_new(agent, value, &head, NULL), TETHER_OK);
        tether_value_release(value);
    }
    return head;
}

static void release_destroys_a_list_of_objects_when_its_head_is_released(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *head = new_list(w->agents[0]);
    assert_int_equal(n_nodes, N_OBJECTS);
    tether_rref_release(head);
    assert_int_equal(n_nodes, 0);
}

static bool has_no_nodes(void *unused)
{
    (void)unused;
    return n_nodes == 0;
}

static void owner_destroys_a_list_of_objects_when_another_worker_releases_its_head(void **state)
{
    struct tether_test_world *w = *state;
    atomic_store(&cast_held[1], new_list(w->agents[1]));
    cast_call_ok(w->agents[0], "w1", "echo");
    tether_value *reply = NULL;
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "give", NULL, TIMEOUT_MS, &reply, NULL),
                     TETHER_OK);
    cast_call_ok(w->agents[0], "w1", "drop");
    assert_int_equal(n_nodes, N_OBJECTS);
    tether_value_release(reply);
    assert_true(tether_test_world_wait(w, has_no_nodes, NULL));
}

static void release_destroys_a_list_of_values_when_its_head_is_released(void **state)
{
    (void)state;
    tether_value *head = NULL;
    for (int i = 0; i < N_OBJECTS; i++)
        head = new_node(NULL, head);
    tether_value_release(head);
    assert_int_equal(n_nodes, 0);
}

/* Each object of the list is plain bytes with the reference to the one before attached. */
static void release_frees_a_list_of_attached_references(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *head = NULL;
    for (int i = 0; i < N_OBJECTS; i++) {
        tether_value *value = NULL;
        assert_int_equal(tether_value_new(tether_bytes_str("x"), &value, NULL), TETHER_OK);
        if (head)
            assert_int_equal(tether_value_attach(value, head, NULL), TETHER_OK);
        tether_rref_release(head);
        assert_int_equal(tether_rref_new(w->agents[0], value, &head, NULL), TETHER_OK);
        tether_value_release(value);
    }
    tether_rref_release(head);
    cast_assert_nothing_left(w);
}

/* ---- Pipelines: each object is made by a method of the one before ---- */

/* The last object of a pipeline that begins with an object that is not made yet. */
static tether_rref *begin_pipeline(struct tether_test_world *w,
                                   const char *to,
                                   const char *method,
                                   int n)
{
    tether_rref *rref = tether_remote(w->agents[0], to, "hold", NULL, TIMEOUT_MS);
    assert_true(tether_test_world_wait(w, cast_is_held, w));
    for (int i = 0; i < n; i++) {
        tether_rref *next = tether_rref_remote(rref, method, NULL, TIMEOUT_MS);
        tether_rref_release(rref);
        rref = next;
    }
    return rref;
}

static void pipeline_ends_with(struct tether_test_world *w,
                               const char *to,
                               const char *method,
                               int n,
                               tether_status status)
{
    tether_error err = {0};
    tether_rref *last = begin_pipeline(w, to, method, n);
    finish_held(w, status);
    tether_future *ready = status == TETHER_OK ? tether_rref_to_here_async(last, TIMEOUT_MS)
                                               : tether_rref_confirmed(last);
    tether_status st = tether_future_wait(ready, TIMEOUT_MS, NULL, &err);
    assert_int_equal(st, status == TETHER_OK ? TETHER_ENOTSUP : status); /* nodes stay there */
    tether_future_release(ready);
    tether_rref_release(last);
    cast_assert_nothing_left(w);
}

static void pipeline_runs_when_its_first_object_is_made(void **state)
{
    pipeline_ends_with(*state, "w1", "next", N_WAITING, TETHER_OK);
}

static void pipeline_of_pooled_methods_runs_when_its_first_object_is_made(void **state)
{
    pipeline_ends_with(*state, "w1", "pooled", N_POOLED, TETHER_OK);
}

static void pipeline_fails_when_its_first_object_cannot_be_made(void **state)
{
    pipeline_ends_with(*state, "w1", "next", N_POOLED, TETHER_EREMOTE);
    pipeline_ends_with(*state, "w1", "pooled", N_POOLED, TETHER_EREMOTE);
}

static void pipeline_on_the_worker_itself_fails_when_its_first_object_cannot_be_made(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *last = begin_pipeline(w, "w0", "next", N_POOLED);
    finish_held(w, TETHER_EREMOTE);
    assert_true(tether_test_world_wait(w, is_settled, last));
    tether_future *future = tether_rref_to_here_async(last, TIMEOUT_MS);
    assert_int_equal(tether_future_status(future, NULL), TETHER_EREMOTE);
    tether_future_release(future);
    tether_rref_release(last);
    cast_assert_nothing_left(w);
}

/* The caller learns of the first failure only, and fails what is tied to it. */
static void caller_fails_a_pipeline_when_its_first_creation_times_out(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = tether_remote(w->agents[0], "w1", "hold", NULL, 1000);
    for (int i = 0; i < N_POOLED; i++) {
        tether_rref *next = tether_rref_remote(rref, "next", NULL, TIMEOUT_MS);
        tether_rref_release(rref);
        rref = next;
    }
    assert_true(tether_test_world_wait(w, is_settled, rref));
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    tether_rref_release(rref);
    finish_held(w, TETHER_OK);
    cast_assert_nothing_left(w);
}

/* ---- Futures ---- */

static void finish_next(tether_future *future, void *userdata)
{
    (void)future;
    tether_future_finish(userdata, TETHER_OK, NULL, NULL);
    tether_future_release(userdata);
}

static void callbacks_run_when_each_finishes_the_next_future(void **state)
{
    (void)state;
    tether_future *last = tether_future_new(), *first = tether_future_retain(last);
    for (int i = 0; i < N_OBJECTS; i++) {
        tether_future *before = tether_future_new();
        assert_non_null(before);
        assert_int_equal(tether_future_then(before, finish_next, first), TETHER_OK);
        first = before;
    }
    tether_future_finish(first, TETHER_OK, NULL, NULL);
    assert_true(tether_future_is_done(last));
    tether_future_release(first);
    tether_future_release(last);
}

static void groups_are_done_when_each_is_a_member_of_the_next(void **state)
{
    (void)state;
    tether_future *first = tether_future_new(), *group = tether_future_retain(first);
    for (int i = 0; i < N_OBJECTS / 10; i++) {
        tether_future *outer = tether_future_all(&group, 1);
        tether_future_release(group);
        group = outer;
    }
    tether_future_finish(first, TETHER_OK, NULL, NULL);
    assert_true(tether_future_is_done(group));
    tether_future_release(first);
    tether_future_release(group);
}

struct loop {
    tether_agent *agent;
    int left;
};

/* A callback that makes the next call, which is done when it attaches to it: inline, to itself. */
static void call_again(tether_future *future, void *userdata)
{
    struct loop *loop = userdata;
    (void)future;
    if (loop->left-- == 0)
        return;
    tether_future *next = tether_rpc_async(loop->agent, "w0", "echo", NULL, TIMEOUT_MS);
    assert_true(tether_future_is_done(next));
    assert_int_equal(tether_future_then(next, call_again, loop), TETHER_OK);
    tether_future_release(next);
}

static void callbacks_do_not_overflow_stack_when_each_makes_a_call_that_is_done_at_once(
    void **state)
{
    struct tether_test_world *w = *state;
    struct loop loop = {w->agents[0], N_OBJECTS / 10};
    call_again(NULL, &loop);
    assert_int_equal(loop.left, -1);
}

#define TWO(name) cmocka_unit_test_setup_teardown(name, start, stop)

static void *run_all(void *ret_failed)
{
    const struct CMUnitTest tests[] = {
        TWO(release_destroys_a_list_of_objects_when_its_head_is_released),
        TWO(owner_destroys_a_list_of_objects_when_another_worker_releases_its_head),
        TWO(release_destroys_a_list_of_values_when_its_head_is_released),
        TWO(release_frees_a_list_of_attached_references),
        TWO(pipeline_runs_when_its_first_object_is_made),
        TWO(pipeline_of_pooled_methods_runs_when_its_first_object_is_made),
        TWO(pipeline_fails_when_its_first_object_cannot_be_made),
        TWO(pipeline_on_the_worker_itself_fails_when_its_first_object_cannot_be_made),
        TWO(caller_fails_a_pipeline_when_its_first_creation_times_out),
        TWO(callbacks_run_when_each_finishes_the_next_future),
        TWO(groups_are_done_when_each_is_a_member_of_the_next),
        TWO(callbacks_do_not_overflow_stack_when_each_makes_a_call_that_is_done_at_once),
    };
    *(int *)ret_failed = cmocka_run_group_tests_name("depth", tests, NULL, NULL);
    return NULL;
}

int main(void)
{
    int failed = 1;
    pthread_t thread;
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0 || pthread_attr_setstacksize(&attr, STACK_BYTES) != 0 ||
        pthread_create(&thread, &attr, run_all, &failed) != 0)
        return 1;
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    return failed;
}
