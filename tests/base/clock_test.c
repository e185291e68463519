/* Deadlines on a clock that the test sets, and the system clock. */
#include "base/clock.h"

#include <limits.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/fake_clock.h"

static void fake_clock_moves_only_when_told(void **state)
{
    (void)state;
    struct tether_test_clock clock = TETHER_TEST_CLOCK_INIT;
    int64_t start = tether__clock_now_ns(&clock.base);
    assert_int_equal(tether__clock_now_ns(&clock.base), start);
    tether_test_clock_advance_ms(&clock, 5);
    tether_test_clock_advance_ns(&clock, 1);
    assert_int_equal(tether__clock_now_ns(&clock.base), start + 5000001);
    assert_int_equal(tether__clock_now_ms(&clock.base), (start + 5000001) / 1000000);
}

static void deadline_left_counts_down_and_rounds_up(void **state)
{
    (void)state;
    struct tether_test_clock clock = TETHER_TEST_CLOCK_INIT;
    int64_t deadline = tether__deadline_in(&clock.base, 10);
    assert_int_equal(tether__deadline_left_ms(&clock.base, deadline), 10);
    tether_test_clock_advance_ns(&clock, 1);
    assert_int_equal(tether__deadline_left_ms(&clock.base, deadline), 10);
    tether_test_clock_advance_ms(&clock, 9);
    assert_int_equal(tether__deadline_left_ms(&clock.base, deadline), 1);
    tether_test_clock_advance_ns(&clock, 999998);
    assert_int_equal(tether__deadline_left_ms(&clock.base, deadline), 1);
    tether_test_clock_advance_ns(&clock, 1);
    assert_int_equal(tether__deadline_left_ms(&clock.base, deadline), 0);
    tether_test_clock_advance_ms(&clock, 1000);
    assert_int_equal(tether__deadline_left_ms(&clock.base, deadline), 0);
}

static void deadline_of_zero_is_now_and_negative_is_never(void **state)
{
    (void)state;
    struct tether_test_clock clock = TETHER_TEST_CLOCK_INIT;
    assert_int_equal(tether__deadline_in(&clock.base, 0), tether__clock_now_ns(&clock.base));
    assert_int_equal(tether__deadline_in(&clock.base, -1), TETHER__NEVER);
    assert_int_equal(tether__deadline_in(&clock.base, INT_MIN), TETHER__NEVER);
    assert_int_equal(tether__deadline_left_ms(&clock.base, TETHER__NEVER), -1);
}

static void deadline_saturates_when_far(void **state)
{
    (void)state;
    struct tether_test_clock clock = TETHER_TEST_CLOCK_INIT;
    assert_int_equal(tether__deadline_left_ms(&clock.base, TETHER__NEVER - 1), INT_MAX);
    int64_t longest = tether__deadline_in(&clock.base, INT_MAX);
    assert_int_equal(tether__deadline_left_ms(&clock.base, longest), INT_MAX);
    atomic_store(&clock.ns, INT64_MAX - 5);
    assert_int_equal(tether__deadline_in(&clock.base, 1), TETHER__NEVER);
}

static void system_clock_goes_forward(void **state)
{
    (void)state;
    int64_t before = tether__clock_now_ns(&tether__clock_system);
    for (int i = 0; i < 1000; i++) {
        int64_t now = tether__clock_now_ns(&tether__clock_system);
        assert_true(now >= before);
        before = now;
    }
    assert_true(before > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fake_clock_moves_only_when_told),
        cmocka_unit_test(deadline_left_counts_down_and_rounds_up),
        cmocka_unit_test(deadline_of_zero_is_now_and_negative_is_never),
        cmocka_unit_test(deadline_saturates_when_far),
        cmocka_unit_test(system_clock_goes_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
