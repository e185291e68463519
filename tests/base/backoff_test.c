/* Waits between attempts. */
#include "base/backoff.h"

#include "base/clock.h"
#include "tests/lib/cmocka.h"

#define FIRST_NS (10 * TETHER__NS_PER_MS)
#define LONGEST_NS (75 * TETHER__NS_PER_MS)

static void backoff_doubles_up_to_its_limit(void **state)
{
    (void)state;
    const int64_t steps[] = {FIRST_NS, 2 * FIRST_NS, 4 * FIRST_NS, LONGEST_NS, LONGEST_NS};
    for (unsigned round = 0; round < TETHER__ARRAY_LEN(steps); round++) {
        for (int i = 0; i < 100; i++) {
            int64_t wait = tether__backoff_ns(round, FIRST_NS, LONGEST_NS);
            assert_true(wait >= steps[round] / 2);
            assert_true(wait <= steps[round]);
        }
    }
}

static void backoff_stays_at_its_limit_in_any_later_round(void **state)
{
    (void)state;
    const unsigned rounds[] = {19, 20, 21, 63, 64, UINT32_MAX};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rounds); i++) {
        int64_t wait = tether__backoff_ns(rounds[i], FIRST_NS, LONGEST_NS);
        assert_true(wait >= LONGEST_NS / 2);
        assert_true(wait <= LONGEST_NS);
    }
}

static void backoff_differs_between_callers(void **state)
{
    (void)state;
    int64_t first = tether__backoff_ns(0, FIRST_NS, LONGEST_NS);
    bool differs = false;
    for (int i = 0; i < 100; i++)
        differs |= tether__backoff_ns(0, FIRST_NS, LONGEST_NS) != first;
    assert_true(differs);
}

static void backoff_gives_up_when_deadline_has_passed(void **state)
{
    (void)state;
    assert_false(tether__backoff_sleep(0, FIRST_NS, LONGEST_NS, 0));
    assert_false(tether__backoff_sleep(0, TETHER__NS_PER_S * 3600, TETHER__NS_PER_S * 3600,
                                       tether__clock_now_ns(&tether__clock_system)));
}

static void backoff_sleep_ends_at_the_deadline(void **state)
{
    (void)state;
    /* Without the limit this would sleep for at least half an hour. */
    int64_t deadline = tether__deadline_in(&tether__clock_system, 1);
    assert_true(
        tether__backoff_sleep(0, TETHER__NS_PER_S * 3600, TETHER__NS_PER_S * 3600, deadline));
    assert_int_equal(tether__deadline_left_ms(&tether__clock_system, deadline), 0);
}

static void slice_is_in_proportion_to_elapsed_time_within_its_limits(void **state)
{
    (void)state;
    const int64_t elapsed[] = {-1, 0, 32 * FIRST_NS, 64 * FIRST_NS, 32 * LONGEST_NS, INT64_MAX};
    const int64_t slices[] = {FIRST_NS, FIRST_NS, FIRST_NS, 2 * FIRST_NS, LONGEST_NS, LONGEST_NS};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(elapsed); i++)
        assert_int_equal(tether__backoff_slice_ns(elapsed[i], FIRST_NS, LONGEST_NS), slices[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backoff_doubles_up_to_its_limit),
        cmocka_unit_test(backoff_stays_at_its_limit_in_any_later_round),
        cmocka_unit_test(backoff_differs_between_callers),
        cmocka_unit_test(backoff_gives_up_when_deadline_has_passed),
        cmocka_unit_test(backoff_sleep_ends_at_the_deadline),
        cmocka_unit_test(slice_is_in_proportion_to_elapsed_time_within_its_limits),
    };
    return cmocka_run_group_tests_name("backoff", tests, NULL, NULL);
}
