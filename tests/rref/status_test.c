/* Functions, serialise(), deserialise() and creations may fail with any status. The library gives
 * no status a meaning of its own: each waiting caller gets the status once, and nothing else
 * happens.
 *
 * w1 runs the functions, w0 calls, w2 is a third holder.
 */
#include <limits.h>
#include <string.h>

#include "rpc/agent/internal.h"
#include "rref/context.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

enum { TIMEOUT_MS = 600 * 1000, LEASE_MS = 30000, SOON_MS = 5000 };

#define FOR_EACH_STATUS(st) \
    for (tether_status st = TETHER_OK + 1; st <= TETHER_EINTERNAL; st = (tether_status)(st + 1))

static tether_status wanted;             /* the status that the functions below return */
static int n_serialised, n_deserialised; /* calls of the type's functions */
static int n_lost;                       /* notices that an owner was lost */
static bool serialise_fails, deserialise_fails;

/* ---- A type and functions that fail as the test says ---- */

static int object; /* the only one of its type, and never destroyed */

static tether_status picky_serialise(const void *ptr, tether_buf *ret_bytes, tether_error *reterr)
{
    (void)ptr, (void)reterr;
    n_serialised++;
    return serialise_fails ? wanted : tether_buf_printf(ret_bytes, "x");
}

static tether_status picky_deserialise(tether_bytes bytes, void **ret_object, tether_error *reterr)
{
    (void)bytes, (void)reterr;
    n_deserialised++;
    *ret_object = &object;
    return deserialise_fails ? wanted : TETHER_OK;
}

static const tether_type picky_type = {
    .name = "picky",
    .serialise = picky_serialise,
    .deserialise = picky_deserialise,
};

static tether_status give_picky(void *userdata,
                                const tether_value *arg,
                                tether_value **ret_value,
                                tether_error *reterr)
{
    (void)userdata, (void)arg;
    return tether_value_new_object(&picky_type, &object, ret_value, reterr);
}

static tether_status return_wanted(void *userdata,
                                   const tether_value *arg,
                                   tether_value **ret_value,
                                   tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    return wanted;
}

static tether_status method_returns_wanted(void *userdata,
                                           void *counter,
                                           const tether_value *arg,
                                           tether_value **ret_value,
                                           tether_error *reterr)
{
    (void)userdata, (void)counter, (void)arg, (void)ret_value, (void)reterr;
    return wanted;
}

static void register_all(tether_agent *agent)
{
    tether_error err = {0};
    cast_register(agent);
    tether_agent_register_type(agent, &picky_type, &err);
    tether_agent_register_inline(agent, "give_picky", give_picky, NULL, &err);
    tether_agent_register_inline(agent, "return_wanted", return_wanted, NULL, &err);
    tether_agent_register(agent, "return_wanted_pooled", return_wanted, NULL, &err);
    tether_agent_register_method(agent, &cast_counter_type, "fail", method_returns_wanted, true,
                                 NULL, &err);
    assert_int_equal(err.code, TETHER_OK);
}

/* ---- Fixture ---- */

static int start(void **state)
{
    static struct tether_test_world world;
    n_lost = 0;
    serialise_fails = deserialise_fails = false;
    tether_test_world_before_send = NULL;
    tether_test_world_register = register_all;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3,
                            TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS));
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    struct tether_test_world *w = *state;
    cast_drop_all();
    for (int i = 0; i < w->n;
         i++) /* a worker with a leaked call or function could not stop gracefully */
        assert_int_equal(
            atomic_load(&w->agents[i]->active_calls) + atomic_load(&w->agents[i]->running), 0);
    tether_test_world_stop(w);
    assert_int_equal(cast_n_live, 0);
    return 0;
}

/* TAKES the future: it is done soon, with this status. */
static void ends_soon(struct tether_test_world *w, tether_future *future, tether_status expected)
{
    tether_error err = {0};
    int64_t began = tether_sim_now(w->sim);
    tether_status st = tether_future_wait(future, TIMEOUT_MS, NULL, &err);
    int64_t took_ms = (tether_sim_now(w->sim) - began) / TETHER__NS_PER_MS;
    if (st != expected || took_ms > SOON_MS)
        fail_msg("%s after %lld ms instead of %s: %s", tether_status_name(st), (long long)took_ms,
                 tether_status_name(expected), err.message);
    tether_future_release(future);
}

static void on_lost(tether_rref *rref, void *userdata)
{
    (void)rref, (void)userdata;
    n_lost++;
}

static tether_value *new_picky(void)
{
    tether_value *value = NULL;
    assert_int_equal(tether_value_new_object(&picky_type, &object, &value, NULL), TETHER_OK);
    return value;
}

/* ---- Creations ---- */

/* All who wait for an object learn with which status its creation has failed. */
static void creation_failure_reaches_all_waiters_with_any_status(void **state)
{
    struct tether_test_world *w = *state;
    FOR_EACH_STATUS(st)
    {
        tether_rref *rref = tether_remote(w->agents[0], "w1", "hold", NULL, TIMEOUT_MS);
        assert_true(tether_test_world_wait(w, cast_is_held, w));
        cast_send_ok(w->agents[0], "w2", "keep", rref);
        cast_send_ok(w->agents[0], "w1", "keep", rref);
        tether_future *waiting[] = {
            tether_rref_to_here_async(rref, TIMEOUT_MS),
            tether_rref_async(rref, "add", NULL, TIMEOUT_MS),
            tether_rref_to_here_async(cast_held[2], TIMEOUT_MS),
            tether_rref_async(cast_held[2], "add", NULL, TIMEOUT_MS),
            tether_rref_to_here_async(cast_held[1], TIMEOUT_MS),
            tether_rref_async(cast_held[1], "add", NULL, TIMEOUT_MS),
        };
        tether_sim_run(w->sim, NULL, NULL, 1000); /* all of them have reached the owner */
        tether_reply_error(atomic_exchange(&w->held, NULL), st, "not today");
        for (size_t i = 0; i < TETHER__ARRAY_LEN(waiting); i++)
            ends_soon(w, waiting[i], st);
        /* Uses that begin after the failure end, too. */
        ends_soon(w, tether_rref_to_here_async(rref, TIMEOUT_MS), st);
        ends_soon(w, tether_rref_to_here_async(cast_held[2], TIMEOUT_MS), st);
        ends_soon(w, tether_rref_async(cast_held[2], "add", NULL, TIMEOUT_MS), st);
        ends_soon(w, tether_rref_to_here_async(cast_held[1], TIMEOUT_MS), st);
        ends_soon(w, tether_rref_async(cast_held[1], "add", NULL, TIMEOUT_MS), st);
        tether_rref_release(rref);
        cast_drop_all();
        cast_assert_nothing_left(w);
    }
}

static void creation_failure_of_any_status_is_not_reported_as_lost_owner(void **state)
{
    struct tether_test_world *w = *state;
    static const char *const functions[] = {"return_wanted", "return_wanted_pooled"};
    FOR_EACH_STATUS(st)
    {
        for (size_t i = 0; i < TETHER__ARRAY_LEN(functions); i++) {
            tether_error err = {0};
            wanted = st;
            tether_rref *rref = tether_remote(w->agents[0], "w1", functions[i], NULL, TIMEOUT_MS);
            assert_int_equal(tether_rref_on_owner_lost(rref, on_lost, NULL, NULL), TETHER_OK);
            ends_soon(w, tether_rref_confirmed(rref), st);
            assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_BROKEN);
            assert_int_equal(err.code, st);
            assert_int_equal(tether_rref_to_here(rref, TIMEOUT_MS, NULL, NULL), st);
            assert_int_equal(n_lost, 0);
            tether_rref_release(rref);
        }
    }
    cast_assert_nothing_left(w);
}

static void local_value_returns_any_status_of_the_failed_creation(void **state)
{
    struct tether_test_world *w = *state;
    FOR_EACH_STATUS(st)
    {
        tether_error err = {0};
        tether_value *value = NULL;
        wanted = st;
        tether_rref *rref =
            tether_remote(w->agents[0], "w0", "return_wanted_pooled", NULL, TIMEOUT_MS);
        assert_int_equal(tether_rref_local_value(rref, &value, NULL), TETHER_EBUSY);
        ends_soon(w, tether_rref_to_here_async(rref, TIMEOUT_MS), st);
        assert_int_equal(tether_rref_local_value(rref, &value, &err), st);
        assert_int_equal(err.code, st);
        assert_null(value);
        tether_rref_release(rref);
    }
    cast_assert_nothing_left(w);
}

/* The object cannot be made, and w1 has told w0 so before the request of w2 comes. */
static void third_worker_is_answered_at_once_when_it_asks_after_the_creation_failed(void **state)
{
    struct tether_test_world *w = *state;
    enum { SLOW_MS = 1000 };
    cast_call_ok(w->agents[2], "w1", "note");
    tether_rref *rref = tether_remote(w->agents[0], "w1", "hold", NULL, TIMEOUT_MS);
    assert_true(tether_test_world_wait(w, cast_is_held, w));
    tether_sim_slow(w->sim, w->agents[2], w->agents[1], SLOW_MS * TETHER__NS_PER_MS);
    tether_future *passed = cast_send_async(w->agents[0], "w2", "keep", rref, TIMEOUT_MS);
    tether_reply_error(atomic_exchange(&w->held, NULL), TETHER_EINVAL, "not today");
    ends_soon(w, tether_rref_confirmed(rref), TETHER_EINVAL);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1); /* w2 has not asked yet */
    tether_rref_release(rref);
    ends_soon(w, passed, TETHER_OK); /* the owner counts a fork, failed or not */
    ends_soon(w, tether_rref_to_here_async(cast_held[2], TIMEOUT_MS), TETHER_EINVAL);
    ends_soon(w, tether_rref_async(cast_held[2], "add", NULL, TIMEOUT_MS), TETHER_EINVAL);
    tether_sim_slow(w->sim, w->agents[2], w->agents[1], 0);
    cast_drop_all();
    cast_assert_nothing_left(w);
}

/* ---- Methods ---- */

static void method_failure_reaches_caller_with_any_status(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    assert_int_equal(tether_rref_on_owner_lost(rref, on_lost, NULL, NULL), TETHER_OK);
    FOR_EACH_STATUS(st)
    {
        wanted = st;
        ends_soon(w, tether_rref_async(rref, "fail", NULL, TIMEOUT_MS), st);
        assert_int_equal(tether_rref_sync(rref, "fail", NULL, TIMEOUT_MS, NULL, NULL), st);
        tether_rref *result = tether_rref_remote(rref, "fail", NULL, TIMEOUT_MS);
        ends_soon(w, tether_rref_confirmed(result), st);
        tether_rref_release(result);
        cast_add_ok(rref, "0", "1");
    }
    assert_int_equal(n_lost, 0);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* ---- Values ---- */

/* The call fails, once, and others between the same two workers go on. */
static void argument_that_cannot_be_read_fails_its_call_only(void **state)
{
    struct tether_test_world *w = *state;
    tether_value *arg = new_picky(), *with_ref = new_picky();
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    assert_int_equal(tether_value_attach(with_ref, rref, NULL), TETHER_OK);
    deserialise_fails = true;
    FOR_EACH_STATUS(st)
    {
        wanted = st;
        n_deserialised = 0;
        tether_future *calls[] = {
            tether_rpc_async(w->agents[0], "w1", "echo", arg, TIMEOUT_MS),
            tether_rpc_async(w->agents[0], "w1", "echo", with_ref, TIMEOUT_MS),
            tether_rpc_async(w->agents[0], "w2", "echo", with_ref, TIMEOUT_MS),
            tether_rref_async(rref, "add", arg, TIMEOUT_MS),
        };
        cast_call_ok(w->agents[0], "w1", "echo");
        for (size_t i = 0; i < TETHER__ARRAY_LEN(calls); i++)
            ends_soon(w, calls[i], st);
        assert_int_equal(n_deserialised, 4);
        tether_rref *unmade = tether_remote(w->agents[0], "w1", "make_counter", arg, TIMEOUT_MS);
        ends_soon(w, tether_rref_confirmed(unmade), st);
        tether_rref_release(unmade);
    }
    tether_value_release(arg);
    tether_value_release(with_ref);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

static void result_that_cannot_be_read_fails_its_call_only(void **state)
{
    struct tether_test_world *w = *state;
    deserialise_fails = true;
    FOR_EACH_STATUS(st)
    {
        wanted = st;
        n_deserialised = 0;
        ends_soon(w, tether_rpc_async(w->agents[0], "w1", "give_picky", NULL, TIMEOUT_MS), st);
        assert_int_equal(n_deserialised, 1);
        cast_call_ok(w->agents[0], "w1", "echo");
    }
}

static void value_that_cannot_be_written_fails_its_call_at_once(void **state)
{
    struct tether_test_world *w = *state;
    tether_value *arg = new_picky();
    serialise_fails = true;
    FOR_EACH_STATUS(st)
    {
        wanted = st;
        n_serialised = 0;
        int64_t began = tether_sim_now(w->sim);
        assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "echo", arg, TIMEOUT_MS, NULL, NULL),
                         st);
        assert_true(tether_sim_now(w->sim) == began);
        assert_int_equal(n_serialised, 1);
        ends_soon(w, tether_rpc_async(w->agents[0], "w1", "give_picky", NULL, TIMEOUT_MS), st);
    }
    tether_value_release(arg);
}

static void synchronous_call_fails_at_once_when_its_reference_is_broken(void **state)
{
    struct tether_test_world *w = *state;
    FOR_EACH_STATUS(st)
    {
        wanted = st;
        tether_rref *rref = tether_remote(w->agents[0], "w1", "return_wanted", NULL, TIMEOUT_MS);
        ends_soon(w, tether_rref_confirmed(rref), st);
        int64_t began = tether_sim_now(w->sim);
        assert_int_equal(cast_send(w->agents[0], "w2", "keep", rref, NULL), st);
        assert_true(tether_sim_now(w->sim) == began);
        tether_rref_release(rref);
    }
    cast_assert_nothing_left(w);
}

/* ---- Numbers that are no status ---- */

static const int strange[] = {-1, INT_MIN, TETHER_EINTERNAL + 1, 255, 256, 512, 900000, INT_MAX};

/* The last byte of some of these numbers is 0, so none of them may be truncated to TETHER_OK. */
static void creation_fails_when_its_function_returns_no_status(void **state)
{
    struct tether_test_world *w = *state;
    static const char *const owners[] = {"w0", "w1"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(strange); i++) {
        wanted = (tether_status)strange[i];
        for (size_t k = 0; k < TETHER__ARRAY_LEN(owners); k++) {
            tether_error err = {0};
            tether_rref *rref =
                tether_remote(w->agents[0], owners[k], "return_wanted", NULL, TIMEOUT_MS);
            ends_soon(w, tether_rref_to_here_async(rref, TIMEOUT_MS), TETHER_EREMOTE);
            assert_int_equal(tether_rref_to_here(rref, TIMEOUT_MS, NULL, &err), TETHER_EREMOTE);
            assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_BROKEN);
            assert_int_equal(err.code, TETHER_EREMOTE);
            assert_non_null(strstr(err.message, "is not a tether_status"));
            tether_rref_release(rref);
        }
        tether_future *call = tether_rpc_async(w->agents[0], "w1", "hold", NULL, TIMEOUT_MS);
        assert_true(tether_test_world_wait(w, cast_is_held, w));
        tether_reply_error(atomic_exchange(&w->held, NULL), wanted, "not today");
        ends_soon(w, call, TETHER_EREMOTE);
    }
    cast_assert_nothing_left(w);
}

static void call_fails_when_conversion_of_a_value_returns_no_status(void **state)
{
    struct tether_test_world *w = *state;
    tether_value *arg = new_picky();
    for (size_t i = 0; i < TETHER__ARRAY_LEN(strange); i++) {
        wanted = (tether_status)strange[i];
        for (int k = 0; k < 2; k++) {
            serialise_fails = k == 0;
            deserialise_fails = k == 1;
            ends_soon(w, tether_rpc_async(w->agents[0], "w1", "echo", arg, TIMEOUT_MS),
                      TETHER_EREMOTE);
            ends_soon(w, tether_rpc_async(w->agents[0], "w1", "give_picky", NULL, TIMEOUT_MS),
                      TETHER_EREMOTE);
            tether_rref *unmade = tether_remote(w->agents[0], "w1", "echo", arg, TIMEOUT_MS);
            ends_soon(w, tether_rref_to_here_async(unmade, TIMEOUT_MS), TETHER_EREMOTE);
            tether_rref_release(unmade);
        }
    }
    tether_value_release(arg);
    cast_assert_nothing_left(w);
}

static void error_has_code_and_message_when_serialise_gives_none(void **state)
{
    struct tether_test_world *w = *state;
    tether_value *arg = new_picky();
    tether_error err = {0};
    serialise_fails = true;
    wanted = TETHER_EPERM;
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "echo", arg, TIMEOUT_MS, NULL, &err),
                     TETHER_EPERM);
    assert_int_equal(err.code, TETHER_EPERM);
    assert_string_equal(err.message, "writing an object of type 'picky': not allowed");
    tether_value_release(arg);
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        THREE(creation_failure_reaches_all_waiters_with_any_status),
        THREE(creation_failure_of_any_status_is_not_reported_as_lost_owner),
        THREE(local_value_returns_any_status_of_the_failed_creation),
        THREE(third_worker_is_answered_at_once_when_it_asks_after_the_creation_failed),
        THREE(method_failure_reaches_caller_with_any_status),
        THREE(argument_that_cannot_be_read_fails_its_call_only),
        THREE(result_that_cannot_be_read_fails_its_call_only),
        THREE(value_that_cannot_be_written_fails_its_call_at_once),
        THREE(synchronous_call_fails_at_once_when_its_reference_is_broken),
        THREE(creation_fails_when_its_function_returns_no_status),
        THREE(call_fails_when_conversion_of_a_value_returns_no_status),
        THREE(error_has_code_and_message_when_serialise_gives_none),
    };
    return cmocka_run_group_tests_name("statuses", tests, NULL, NULL);
}
