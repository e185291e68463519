/* Where destructors, serialise() and deserialise() of user objects run, and what they may do there.
 * Over unix sockets: the threads that receive and have timers are real. w1 owns, w0 is the other.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

enum { TIMEOUT_MS = 60000, SHORT_MS = 20 };

static struct tether_test_event began, may_go_on;
static struct tether_test_world *the_world;
static _Atomic int n_destroyed;
static _Atomic int shutdown_status, call_status; /* statuses, in a destructor; -1: did not run */
static _Atomic int serialise_status, deserialise_status;

static _Atomic int n_callers_seen; /* by user code that runs for no caller */

static int object; /* of all values here */

/* ---- Types ---- */

static void destroy_slowly(void *ptr)
{
    (void)ptr;
    tether_test_event_signal(&began);
    tether_test_event_wait(&may_go_on, 1, TETHER_TEST_LIMIT_MS);
    atomic_fetch_add(&n_destroyed, 1);
}

static const tether_type slow_type = {.name = "slow", .destroy = destroy_slowly};

/* Calls another worker, and tries to end its own. */
static void destroy_with_calls(void *ptr)
{
    (void)ptr;
    tether_agent *agent = the_world->agents[1];
    shutdown_status = tether_agent_shutdown(agent, false, NULL);
    call_status = tether_rpc_sync(agent, "w0", "echo", NULL, TIMEOUT_MS, NULL, NULL);
    atomic_fetch_add(&n_destroyed, 1);
}

static const tether_type calling_type = {.name = "calling", .destroy = destroy_with_calls};

static tether_status serialise(const void *ptr, tether_buf *ret_bytes, tether_error *reterr)
{
    (void)ptr, (void)reterr;
    serialise_status =
        tether_rpc_sync(the_world->agents[0], "w1", "echo", NULL, TIMEOUT_MS, NULL, NULL);
    return tether_buf_printf(ret_bytes, "x");
}

static tether_status deserialise(tether_bytes bytes, void **ret_object, tether_error *reterr)
{
    (void)bytes, (void)reterr;
    deserialise_status =
        tether_rpc_sync(the_world->agents[1], "w0", "echo", NULL, TIMEOUT_MS, NULL, NULL);
    *ret_object = &object;
    return TETHER_OK;
}

static const tether_type copied_type = {
    .name = "copied",
    .serialise = serialise,
    .deserialise = deserialise,
};

/* ---- User code on the thread of a function ---- */

static void look_for_caller(void)
{
    if (tether_caller_name() || tether_caller_time_left_ms() != -1 || tether_caller_has_cancelled())
        atomic_fetch_add(&n_callers_seen, 1);
}

static void look_when_destroyed(void *ptr)
{
    (void)ptr;
    look_for_caller();
    atomic_fetch_add(&n_destroyed, 1);
}

static tether_status look_when_serialised(const void *ptr,
                                          tether_buf *ret_bytes,
                                          tether_error *reterr)
{
    (void)ptr, (void)reterr;
    look_for_caller();
    serialise_status = TETHER_OK;
    return tether_buf_printf(ret_bytes, "x");
}

static tether_status look_when_deserialised(tether_bytes bytes,
                                            void **ret_object,
                                            tether_error *reterr)
{
    (void)bytes, (void)reterr;
    look_for_caller();
    deserialise_status = TETHER_OK;
    *ret_object = &object;
    return TETHER_OK;
}

static const tether_type looking_type = {
    .name = "looking",
    .destroy = look_when_destroyed,
    .serialise = look_when_serialised,
    .deserialise = look_when_deserialised,
};

static tether_value *new_value(const tether_type *type)
{
    tether_value *value = NULL;
    assert_int_equal(tether_value_new_object(type, &object, &value, NULL), TETHER_OK);
    return value;
}

static tether_status make(void *type,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg;
    return tether_value_new_object(type, &object, ret_value, reterr);
}

/* Runs on w1: sends a copy of an object to w0, which sends one back, and destroys the object. */
static tether_status use_and_destroy(void *agent,
                                     const tether_value *arg,
                                     tether_value **ret_value,
                                     tether_error *reterr)
{
    (void)arg, (void)ret_value;
    tether_value *value = new_value(&looking_type), *copy = NULL;
    tether_status st = tether_rpc_sync(agent, "w0", "echo", value, TIMEOUT_MS, &copy, reterr);
    tether_value_release(copy);
    tether_value_release(value);
    if (st == TETHER_OK && !tether_caller_name()) /* it still has its own */
        st = tether_error_set(reterr, TETHER_EINTERNAL, "the function has no caller any more");
    return st;
}

static void register_all(tether_agent *agent)
{
    tether_error err = {0};
    tether_agent_register_type(agent, &looking_type, &err);
    tether_agent_register(agent, "use_and_destroy", use_and_destroy, agent, &err);
    tether_agent_register_inline(agent, "make_slow", make, (void *)&slow_type, &err);
    tether_agent_register_inline(agent, "make_calling", make, (void *)&calling_type, &err);
    tether_agent_register_type(agent, &copied_type, &err);
    assert_int_equal(err.code, TETHER_OK);
}

/* ---- Fixture ---- */

static int start(void **state)
{
    static struct tether_test_world world;
    the_world = &world;
    n_destroyed = n_callers_seen = 0;
    shutdown_status = call_status = serialise_status = deserialise_status = -1;
    tether_test_event_init(&began);
    tether_test_event_init(&may_go_on);
    tether_test_world_register = register_all;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 2, NULL);
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    tether_test_event_signal(&may_go_on);
    tether_test_world_stop(*state);
    tether_test_event_fini(&began);
    tether_test_event_fini(&may_go_on);
    return 0;
}

/* w0 makes an object on w1 and releases it: w1 destroys it when it receives that. */
static void make_and_release(struct tether_test_world *w, const char *function)
{
    tether_rref *rref = tether_remote(w->agents[0], "w1", function, NULL, TIMEOUT_MS);
    tether_future *made = tether_rref_confirmed(rref);
    assert_int_equal(tether_future_wait(made, TIMEOUT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(made);
    tether_rref_release(rref);
}

static bool has_begun(void)
{
    return tether_test_event_wait(&began, 1, TETHER_TEST_LIMIT_MS);
}

/* ---- Tests ---- */

static void inline_call_is_answered_while_a_slow_destructor_runs(void **state)
{
    struct tether_test_world *w = *state;
    make_and_release(w, "make_slow");
    assert_true(has_begun());
    cast_call_ok(w->agents[0], "w1", "echo");
    assert_int_equal(n_destroyed, 0);
    tether_test_event_signal(&may_go_on);
    assert_eventually(n_destroyed == 1);
}

static void release_value(tether_future *future, void *value)
{
    (void)future;
    tether_value_release(value);
}

static void answer_held(struct tether_test_world *w)
{
    assert_eventually(atomic_load(&w->held));
    tether_reply_ok(atomic_exchange(&w->held, NULL), NULL);
}

static void timers_go_on_while_a_slow_destructor_runs(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *agent = w->agents[1];
    /* The thread that has the timers ends this call, and releases the object. */
    tether_future *first = tether_rpc_async(agent, "w0", "hold", NULL, SHORT_MS);
    tether_future_then(first, release_value, new_value(&slow_type));
    tether_future_release(first);
    assert_true(has_begun());
    answer_held(w);
    tether_future *second = tether_rpc_async(agent, "w0", "echo_pooled", NULL, TIMEOUT_MS);
    assert_int_equal(tether_future_wait(second, TIMEOUT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(second);
    tether_rref *unmade = tether_remote(agent, "w0", "hold", NULL, SHORT_MS);
    assert_eventually(tether_rref_status(unmade, NULL) == TETHER_RREF_BROKEN);
    tether_rref_release(unmade);
    assert_int_equal(n_destroyed, 0);
    tether_test_event_signal(&may_go_on);
    answer_held(w);
}

static void destructor_may_block_but_not_shut_down(void **state)
{
    struct tether_test_world *w = *state;
    make_and_release(w, "make_calling");
    assert_eventually(n_destroyed == 1);
    assert_int_equal(shutdown_status, TETHER_EDEADLK);
    assert_int_equal(call_status, TETHER_OK);
    tether_value_release(new_value(&calling_type)); /* and on a thread of the program's */
    assert_int_equal(n_destroyed, 2);
    assert_int_equal(shutdown_status, TETHER_EDEADLK);
    assert_int_equal(call_status, TETHER_OK);
}

static void shutdown_waits_for_destructors_of_released_objects(void **state)
{
    struct tether_test_world *w = *state;
    make_and_release(w, "make_slow");
    assert_true(has_begun());
    tether_test_event_signal(&may_go_on);
    assert_int_equal(tether_agent_shutdown(w->agents[1], false, NULL), TETHER_OK);
    assert_int_equal(n_destroyed, 1);
}

static void serialise_and_deserialise_must_not_block(void **state)
{
    struct tether_test_world *w = *state;
    tether_value *value = new_value(&copied_type);
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "note", value, TIMEOUT_MS, NULL, NULL),
                     TETHER_OK);
    assert_int_equal(serialise_status, TETHER_EDEADLK);
    assert_int_equal(deserialise_status, TETHER_EDEADLK);
    tether_value_release(value);
}

static void user_code_on_the_thread_of_a_function_has_no_caller(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_status st =
        tether_rpc_sync(w->agents[0], "w1", "use_and_destroy", NULL, TIMEOUT_MS, NULL, &err);
    if (st != TETHER_OK)
        fail_msg("%s", err.message);
    assert_int_equal(serialise_status, TETHER_OK); /* it has run */
    assert_int_equal(deserialise_status, TETHER_OK);
    assert_eventually(n_destroyed >= 2); /* the object, and its copy */
    assert_int_equal(n_callers_seen, 0);
}

#define TWO(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TWO(inline_call_is_answered_while_a_slow_destructor_runs),
        TWO(timers_go_on_while_a_slow_destructor_runs),
        TWO(destructor_may_block_but_not_shut_down),
        TWO(shutdown_waits_for_destructors_of_released_objects),
        TWO(user_code_on_the_thread_of_a_function_has_no_caller),
        TWO(serialise_and_deserialise_must_not_block),
    };
    return cmocka_run_group_tests_name("destructors", tests, NULL, NULL);
}
