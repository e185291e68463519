/* Futures on their own, without an agent. */
#include "rpc/future.h"

#include <stdio.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

static tether_value *text(const char *words)
{
    tether_value *value = NULL;
    assert_int_equal(tether_value_printf(&value, NULL, "%s", words), TETHER_OK);
    return value;
}

/* Each callback writes its letter; userdata points to it. */
static char written[8];

static void write_letter(tether_future *future, void *userdata)
{
    assert_true(tether_future_is_done(future));
    strncat(written, userdata, 1);
}

static int setup(void **state)
{
    (void)state;
    written[0] = '\0';
    tether_test_heap_fail_never();
    return 0;
}

/* Every test releases all that it has made. */
static int teardown(void **state)
{
    (void)state;
    assert_int_equal(tether_test_heap_live(), 0);
    return 0;
}

static void finish_changes_nothing_when_future_is_done(void **state)
{
    (void)state;
    tether_error why, err = {0};
    tether_value *one = text("one"), *two = text("two"), *got = NULL;
    tether_future *future = tether_future_new();
    tether_error_set(&why, TETHER_EIO, "too late");
    assert_int_equal(tether_future_then(future, write_letter, (void *)"a"), TETHER_OK);
    assert_int_equal(tether_future_status(future, NULL), TETHER_EBUSY);
    assert_true(tether_future_finish(future, TETHER_OK, NULL, one));
    assert_false(tether_future_finish(future, TETHER_OK, NULL, two));
    assert_false(tether_future_finish(future, TETHER_EIO, &why, NULL));
    assert_int_equal(tether_future_wait(future, 0, &got, &err), TETHER_OK);
    assert_string_equal(tether_value_str(got), "one");
    assert_string_equal(written, "a");
    tether_value_release(got);
    tether_value_release(two);
    tether_value_release(one);
    tether_future_release(future);
}

static void callbacks_run_once_and_in_order(void **state)
{
    (void)state;
    tether_future *future = tether_future_new();
    for (const char *letter = "abcd"; *letter; letter++)
        assert_int_equal(tether_future_then(future, write_letter, (void *)letter), TETHER_OK);
    assert_string_equal(written, "");
    assert_true(tether_future_finish(future, TETHER_OK, NULL, NULL));
    assert_string_equal(written, "abcd");
    assert_int_equal(tether_future_then(future, write_letter, (void *)"e"), TETHER_OK);
    assert_string_equal(written, "abcde");
    tether_future_release(future);
}

static void all_is_done_with_the_last_member_or_the_first_error(void **state)
{
    (void)state;
    for (int failing = 0; failing < 2; failing++) {
        tether_future *members[3];
        tether_error why, err = {0};
        tether_error_set(&why, TETHER_EIO, "the disk is full");
        for (int i = 0; i < 3; i++)
            members[i] = tether_future_new();
        tether_future *all = tether_future_all(members, 3);
        assert_true(tether_future_finish(members[2], TETHER_OK, NULL, NULL));
        assert_true(tether_future_finish(members[0], failing ? TETHER_EIO : TETHER_OK, &why, NULL));
        assert_int_equal(tether_future_is_done(all), failing);
        assert_true(tether_future_finish(members[1], TETHER_OK, NULL, NULL));
        assert_int_equal(tether_future_wait(all, 0, NULL, &err), failing ? TETHER_EIO : TETHER_OK);
        assert_string_equal(err.message, failing ? "the disk is full" : "");
        for (int i = 0; i < 3; i++)
            tether_future_release(members[i]);
        tether_future_release(all);
    }
}

static void any_is_done_with_the_first_member(void **state)
{
    (void)state;
    tether_future *members[2] = {tether_future_new(), tether_future_new()};
    tether_value *one = text("one"), *two = text("two"), *got = NULL;
    tether_future *any = tether_future_any(members, 2);
    assert_false(tether_future_is_done(any));
    assert_true(tether_future_finish(members[1], TETHER_OK, NULL, two));
    assert_true(tether_future_finish(members[0], TETHER_OK, NULL, one));
    assert_int_equal(tether_future_wait(any, 0, &got, NULL), TETHER_OK);
    assert_string_equal(tether_value_str(got), "two");
    tether_value_release(got);
    tether_value_release(one);
    tether_value_release(two);
    tether_future_release(members[0]);
    tether_future_release(members[1]);
    tether_future_release(any);
}

static void groups_of_no_futures_are_done_at_once(void **state)
{
    (void)state;
    tether_future *all = tether_future_all(NULL, 0), *any = tether_future_any(NULL, 0);
    assert_int_equal(tether_future_status(all, NULL), TETHER_OK);
    assert_int_equal(tether_future_status(any, NULL), TETHER_EINVAL);
    tether_future_release(all);
    tether_future_release(any);
}

static tether_status make_group(void *userdata)
{
    (void)userdata;
    tether_future *members[3] = {tether_future_new(), tether_future_new(), tether_future_new()};
    tether_status st = members[0] && members[1] && members[2] ? TETHER_OK : TETHER_ENOMEM;
    if (st == TETHER_OK) {
        tether_future *all = tether_future_all(members, 3), *any = tether_future_any(members, 3);
        for (int i = 0; i < 3; i++)
            tether_future_finish(members[i], TETHER_OK, NULL, NULL);
        st = tether_future_status(all, NULL);
        if (st == TETHER_OK)
            st = tether_future_status(any, NULL);
        tether_future_release(all);
        tether_future_release(any);
    }
    for (int i = 0; i < 3; i++)
        tether_future_release(members[i]);
    return st;
}

static void number_that_is_no_status_is_a_failure(void **state)
{
    (void)state;
    tether_future *future = tether_future_new();
    assert_true(tether_future_finish(future, (tether_status)256, NULL, NULL));
    assert_int_equal(tether_future_wait(future, 0, NULL, NULL), TETHER_EREMOTE);
    tether_future_release(future);
}

static void groups_are_done_when_allocations_fail(void **state)
{
    (void)state;
    tether_test_heap_fail_each(make_group, NULL);
}

#define FUTURE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FUTURE(finish_changes_nothing_when_future_is_done),
        FUTURE(callbacks_run_once_and_in_order),
        FUTURE(all_is_done_with_the_last_member_or_the_first_error),
        FUTURE(any_is_done_with_the_first_member),
        FUTURE(groups_of_no_futures_are_done_at_once),
        FUTURE(groups_are_done_when_allocations_fail),
        cmocka_unit_test(number_that_is_no_status_is_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
