/* The argument of a call has no reference: tether_value_rref() gives the function NULL, and every
 * operation on NULL returns an error instead of crashing the process.
 */
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

static void on_lost(tether_rref *rref, void *userdata)
{
    (void)rref, (void)userdata;
    fail_msg("there is no owner that could be lost");
}

/* Waits for the future, releases it, and gives its status. */
static tether_status take(tether_future *future)
{
    tether_status st = tether_future_wait(future, TETHER_TEST_LIMIT_MS, NULL, NULL);
    tether_future_release(future);
    return st;
}

/* As in the guide: it uses the reference that should have come along. */
static tether_status audit(void *userdata,
                           const tether_value *arg,
                           tether_value **ret,
                           tether_error *err)
{
    (void)userdata;
    tether_rref *account = tether_value_rref(arg, 0);
    return tether_rref_sync(account, "add", NULL, TETHER_DEFAULT_MS, ret, err);
}

static void register_audit(tether_agent *agent)
{
    assert_int_equal(tether_agent_register(agent, "audit", audit, NULL, NULL), TETHER_OK);
}

static void function_survives_a_caller_that_attaches_no_reference(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_register = register_audit;
    tether_test_world_start(&world, TETHER_TEST_MIXED, 2, NULL);
    tether_error err = {0};
    assert_int_equal(
        tether_rpc_sync(world.agents[0], "w1", "audit", NULL, TETHER_TEST_LIMIT_MS, NULL, &err),
        TETHER_EINVAL);
    assert_non_null(strstr(err.message, "the reference is NULL"));
    tether_test_world_stop(&world);
}

static void every_use_of_no_reference_is_an_invalid_argument(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_value *value = NULL;
    assert_int_equal(tether_rref_to_here(NULL, 0, &value, &err), TETHER_EINVAL);
    assert_int_equal(tether_rref_local_value(NULL, &value, &err), TETHER_EINVAL);
    assert_int_equal(tether_rref_sync(NULL, "add", NULL, 0, &value, &err), TETHER_EINVAL);
    assert_int_equal(tether_rref_on_owner_lost(NULL, on_lost, NULL, &err), TETHER_EINVAL);
    assert_int_equal(take(tether_rref_to_here_async(NULL, 0)), TETHER_EINVAL);
    assert_int_equal(take(tether_rref_async(NULL, "add", NULL, 0)), TETHER_EINVAL);
    assert_int_equal(take(tether_rref_confirmed(NULL)), TETHER_EINVAL);
    assert_null(value);
    value = cast_text("route");
    assert_int_equal(tether_value_attach(value, NULL, &err), TETHER_EINVAL);
    assert_int_equal(tether_value_n_rrefs(value), 0);
    tether_value_release(value);
}

static void method_that_keeps_its_result_gives_a_broken_reference(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_rref *result = tether_rref_remote(NULL, "add", NULL, 0);
    assert_non_null(result);
    assert_int_equal(tether_rref_status(result, &err), TETHER_RREF_BROKEN);
    assert_int_equal(err.code, TETHER_EINVAL);
    assert_int_equal(tether_rref_to_here(result, 0, NULL, &err), TETHER_EINVAL);
    tether_rref *further = tether_rref_remote(result, "add", NULL, 0);
    assert_int_equal(tether_rref_status(further, &err), TETHER_RREF_BROKEN);
    assert_null(tether_rref_release(tether_rref_retain(further)));
    assert_null(tether_rref_release(further));
    assert_null(tether_rref_release(result));
}

static void accessors_accept_null_references(void **state)
{
    (void)state;
    tether_error err = {0};
    assert_int_equal(tether_rref_status(NULL, &err), TETHER_RREF_BROKEN);
    assert_int_equal(err.code, TETHER_EINVAL);
    assert_false(tether_rref_is_owner(NULL));
    assert_int_equal(tether_rref_owner(NULL), UINT32_MAX);
    assert_string_equal(tether_rref_owner_name(NULL), "?");
    assert_string_equal(tether_rref_type(NULL), "");
    assert_int_equal(tether_rref_get_id(NULL).counter, 0);
    assert_true(tether_rref_equal(NULL, NULL));
    assert_false(tether_rref_confirmed_by_owner(NULL));
    assert_null(tether_rref_weak_new(NULL));
    assert_null(tether_rref_weak_lock(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(function_survives_a_caller_that_attaches_no_reference),
        cmocka_unit_test(every_use_of_no_reference_is_an_invalid_argument),
        cmocka_unit_test(method_that_keeps_its_result_gives_a_broken_reference),
        cmocka_unit_test(accessors_accept_null_references),
    };
    return cmocka_run_group_tests_name("no_reference", tests, NULL, NULL);
}
