/* An object whose type is not registered at the worker that fetches it. */
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

static void to_here_gives_the_bytes_when_type_is_not_registered(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_value *value = NULL;
    tether_error err = {0};
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 1, NULL);
    tether_test_world_register = NULL;
    tether_test_world_start_one(&world, 1, NULL);
    world.n = 2;
    tether_rref *rref = cast_remote_counter(world.agents[1], "w0", "42");
    if (tether_rref_to_here(rref, 5000, &value, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    assert_null(tether_value_type(value));
    assert_string_equal(tether_value_str(value), "42");
    assert_string_equal(tether_rref_type(rref), "counter");
    tether_value_release(value);
    tether_rref_release(rref);
    tether_test_world_stop(&world);
}

static void to_here_gives_an_object_when_type_is_registered(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_value *value = NULL;
    tether_error err = {0};
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_rref *rref = cast_remote_counter(world.agents[1], "w0", "42");
    if (tether_rref_to_here(rref, 5000, &value, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    assert_ptr_equal(tether_value_type(value), &cast_counter_type);
    tether_value_release(value);
    tether_rref_release(rref);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(to_here_gives_the_bytes_when_type_is_not_registered),
        cmocka_unit_test(to_here_gives_an_object_when_type_is_registered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
