/* User-defined stores: the suite on one with the needed functions only, so that all others are
 * emulated. Then the emulations in situations in which PyTorch's fail. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/heap.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/user_store.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static tether_store *make(void)
{
    return user_store_new(NULL);
}

static tether_store *make_under_prefix(void)
{
    return tether_test_store_under_prefix(make());
}

/* ---- As in test_store.py -------------------------------------------------------------------- */

/* PythonStoreTest: there C++ calls a Python store; here the library calls this one. */
static void test_set_get(void **state)
{
    (void)state;
    tether_store *store = make();
    ADD("key", 1, 1);
    ADD("key", 2, 3);
    ADD("key", 3, 6);
    SET("key0", "value0");
    ADD("key3", 1, 1);
    SET("key1", "value1");
    ADD("key3", 2, 3);
    SET("key2", "value2");
    for (int i = 3, sum = 3; i <= 6; i++)
        ADD("key3", i, sum += i);
    EXPECT("key", "6");
    EXPECT("key0", "value0");
    EXPECT("key1", "value1");
    EXPECT("key2", "value2");
    EXPECT("key3", "21");
    tether_store_release(store);
}

/* A store must have the needed functions. Others that it lacks and that have no emulation fail with
 * an error that says so. */
static void test_optional_methods_fail(void **state)
{
    (void)state;
    tether_store *store = NULL;
    tether_error error = {0};
    struct tether_store_ops ops = user_store_ops;
    ops.get = NULL;
    assert_status(tether_store_new(&ops, NULL, "no get", &store, &error), TETHER_EINVAL);
    assert_non_null(strstr(error.message, "get"));
    ops = user_store_ops;
    ops.size = 8;
    assert_status(tether_store_new(&ops, NULL, "older than any", &store, NULL), TETHER_EINVAL);
    assert_status(tether_store_new(NULL, NULL, "nothing", &store, NULL), TETHER_EINVAL);
    assert_status(tether_store_new(&user_store_ops, NULL, NULL, &store, NULL), TETHER_EINVAL);

    store = make();
    tether_buf value = TETHER_BUF_INIT;
    tether_store_keys keys;
    int64_t n;
    assert_false(tether_store_has_extended_api(store));
    assert_status(tether_store_queue_pop(store, "foo", 0, &value, &error), TETHER_ENOTSUP);
    assert_non_null(strstr(error.message, "no queues"));
    assert_non_null(strstr(error.message, "user's store"));
    assert_status(tether_store_list_keys(store, 0, &keys, NULL), TETHER_ENOTSUP);
    assert_status(tether_store_num_keys(store, 0, &n, NULL), TETHER_ENOTSUP);
    tether_store_release(store);
}

static void test_has_extended_api_passthrough(void **state)
{
    (void)state;
    tether_store *store = make_under_prefix();
    tether_buf value = TETHER_BUF_INIT;
    tether_error error = {0};
    assert_false(tether_store_has_extended_api(store));
    assert_status(tether_store_queue_pop(store, "foo", 0, &value, &error), TETHER_ENOTSUP);
    assert_non_null(strstr(error.message, "test_prefix/foo"));
    assert_non_null(strstr(error.message, "no queues"));
    assert_null(strstr(error.message, "queue_pop 'foo'")); /* named once, whole */
    tether_store_release(store);
}

/* A store whose extended functions record their arguments. */
struct dummy {
    char asked[256];
};

static tether_status dummy_append(void *impl,
                                  const char *key,
                                  tether_bytes value,
                                  int timeout_ms,
                                  tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct dummy *dummy = impl;
    snprintf(dummy->asked, sizeof dummy->asked, "append %s %.*s", key, (int)value.len,
             (const char *)value.data);
    return TETHER_OK;
}

static tether_status dummy_multi_get(void *impl,
                                     const char *const *keys,
                                     size_t n,
                                     int timeout_ms,
                                     tether_buf *ret_values,
                                     tether_error *reterr)
{
    (void)timeout_ms, (void)reterr;
    struct dummy *dummy = impl;
    snprintf(dummy->asked, sizeof dummy->asked, "multi_get %s %s", keys[0], n == 2 ? keys[1] : "");
    for (size_t i = 0; i < n; i++)
        if (tether_buf_assign(&ret_values[i], tether_bytes_of(&"xy"[i], 1)) != TETHER_OK)
            return TETHER_ENOMEM;
    return TETHER_OK;
}

static tether_status dummy_multi_set(void *impl,
                                     const char *const *keys,
                                     const tether_bytes *values,
                                     size_t n,
                                     int timeout_ms,
                                     tether_error *reterr)
{
    (void)timeout_ms, (void)reterr, (void)n;
    struct dummy *dummy = impl;
    snprintf(dummy->asked, sizeof dummy->asked, "multi_set %s=%.*s %s=%.*s", keys[0],
             (int)values[0].len, (const char *)values[0].data, keys[1], (int)values[1].len,
             (const char *)values[1].data);
    return TETHER_OK;
}

static void dummy_destroy(void *impl)
{
    (void)impl;
}

/* Returns the prefix store "p" over a dummy. */
static tether_store *dummy_under_p(struct dummy *dummy)
{
    struct tether_store_ops ops = user_store_ops;
    ops.append = dummy_append;
    ops.multi_get = dummy_multi_get;
    ops.multi_set = dummy_multi_set;
    ops.destroy = dummy_destroy;
    tether_store *inner = NULL, *store = NULL;
    assert_ok(tether_store_new(&ops, dummy, "dummy", &inner, err));
    assert_ptr_equal(tether_store_impl(inner, &ops), dummy);
    assert_null(tether_store_impl(inner, &user_store_ops));
    assert_ok(tether_store_prefix_new("p", inner, &store, err));
    tether_store_release(inner);
    return store;
}

static void test_has_extended_api_roundtrip(void **state)
{
    (void)state;
    struct dummy dummy = {""};
    tether_store *store = dummy_under_p(&dummy);
    assert_true(tether_store_has_extended_api(store));
    tether_store_release(store);
}

static void test_append_roundtrip(void **state)
{
    (void)state;
    struct dummy dummy = {""};
    tether_store *store = dummy_under_p(&dummy);
    assert_ok(tether_store_append(store, "foo", tether_bytes_str("bar"), LIMIT, err));
    assert_string_equal(dummy.asked, "append p/foo bar");
    tether_store_release(store);
}

static void test_multi_get_roundtrip(void **state)
{
    (void)state;
    struct dummy dummy = {""};
    tether_store *store = dummy_under_p(&dummy);
    const char *keys[] = {"foo", "bar"};
    tether_buf values[2] = {{0}};
    assert_ok(tether_store_multi_get(store, keys, 2, LIMIT, values, err));
    assert_string_equal(dummy.asked, "multi_get p/foo p/bar");
    assert_string_equal(values[0].data, "x");
    assert_string_equal(values[1].data, "y");
    tether_buf_fini(&values[0]);
    tether_buf_fini(&values[1]);
    tether_store_release(store);
}

static void test_multi_set_roundtrip(void **state)
{
    (void)state;
    struct dummy dummy = {""};
    tether_store *store = dummy_under_p(&dummy);
    const char *keys[] = {"foo", "bar"};
    tether_bytes values[] = {tether_bytes_str("x"), tether_bytes_str("y")};
    assert_ok(tether_store_multi_set(store, keys, values, 2, LIMIT, err));
    assert_string_equal(dummy.asked, "multi_set p/foo=x p/bar=y");
    tether_store_release(store);
}

static void test_extended_methods_fallbacks(void **state)
{
    (void)state;
    tether_store *store = make_under_prefix();
    assert_false(tether_store_has_extended_api(store));
    assert_ok(tether_store_append(store, "foo", tether_bytes_str("po"), LIMIT, err));
    assert_ok(tether_store_append(store, "foo", tether_bytes_str("tato"), LIMIT, err));
    EXPECT("foo", "potato");

    const char *keys[] = {"a", "b", "foo"};
    tether_bytes two[] = {tether_bytes_str("c"), tether_bytes_str("d")};
    tether_buf values[3] = {{0}};
    assert_ok(tether_store_multi_set(store, keys, two, 2, LIMIT, err));
    assert_ok(tether_store_multi_get(store, keys, 3, LIMIT, values, err));
    static const char *const expected[] = {"c", "d", "potato"};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(values[i].data, expected[i]);
        tether_buf_fini(&values[i]);
    }
    tether_store_release(store);
}

/* ---- Races of the emulations ---------------------------------------------------------------- */

/* Before each compare_set, another caller writes the same value as this caller. */
static void write_same_value(struct user_store *user, const char *key)
{
    static const char *const others[] = {"b", "bb", "bbb"};
    if (user->meddled < 3)
        user_store_put(user, key, others[user->meddled++]);
}

static void append_is_not_lost_when_another_caller_writes_the_same_value(void **state)
{
    (void)state;
    struct user_store *user;
    tether_store *store = user_store_new(&user);
    user->before_swap = write_same_value;
    assert_ok(tether_store_append(store, "log", tether_bytes_str("b"), LIMIT, err));
    EXPECT("log", "bbbb");
    tether_store_release(store);
}

/* Deletes the key before the compare_set, which then gives the expected value and writes
 * nothing. */
static void delete_key(struct user_store *user, const char *key)
{
    if (user->meddled++ == 1)
        user_store_put(user, key, NULL);
}

static void append_succeeds_when_key_is_deleted_meanwhile(void **state)
{
    (void)state;
    struct user_store *user;
    tether_store *store = user_store_new(&user);
    SET("log", "old");
    user->before_swap = delete_key;
    assert_ok(tether_store_append(store, "log", tether_bytes_str("new"), LIMIT, err));
    EXPECT("log", "new");
    assert_int_equal(user->meddled, 3);
    tether_store_release(store);
}

/* Changes the value before each compare_set, so that no attempt succeeds. */
static void change_always(struct user_store *user, const char *key)
{
    char text[32];
    snprintf(text, sizeof text, "%d", user->meddled++);
    user_store_put(user, key, text);
}

static void append_times_out_when_others_always_change_the_key(void **state)
{
    (void)state;
    struct user_store *user;
    tether_store *store = user_store_new(&user);
    tether_error error = {0};
    user->before_swap = change_always;
    assert_status(tether_store_append(store, "log", tether_bytes_str("x"), 30, &error),
                  TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "others changed the value"));
    assert_in_range(user->meddled, 2, INT32_MAX);
    tether_store_release(store);
}

/* The caller that completed the count died before it set the key; the next caller sets it. */
static void barrier_ends_when_last_member_died_after_counting(void **state)
{
    (void)state;
    tether_store *store = make();
    ADD("b/num_members", 2, 2);
    assert_ok(tether_store_barrier(store, "b", 2, 0, err));
    tether_store_release(store);
}

static void barrier_fails_when_its_keys_become_too_long(void **state)
{
    (void)state;
    tether_store *store = make();
    char key[TETHER_STORE_MAX_KEY + 1];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    assert_status(tether_store_barrier(store, key, 1, 0, NULL), TETHER_ETOOBIG);
    tether_store_release(store);
}

static tether_status failing_get(void *impl,
                                 const char *key,
                                 int timeout_ms,
                                 tether_buf *ret_value,
                                 tether_error *reterr)
{
    (void)impl, (void)key, (void)timeout_ms, (void)ret_value;
    return tether_error_set(reterr, TETHER_EUNAVAILABLE, "the cable is out");
}

/* The error has the user's cause after the call, the key, the store and the time. */
static void errors_of_user_store_name_call_key_and_store(void **state)
{
    (void)state;
    struct tether_store_ops ops = user_store_ops;
    tether_store *store = NULL;
    tether_buf value = TETHER_BUF_INIT;
    tether_error error = {0};
    ops.get = failing_get;
    ops.destroy = dummy_destroy;
    assert_ok(tether_store_new(&ops, NULL, "store in the cellar", &store, err));
    assert_status(tether_store_get(store, "lamp\n", 100, &value, &error), TETHER_EUNAVAILABLE);
    assert_int_equal(error.code, TETHER_EUNAVAILABLE);
    char rest[64] = "";
    int ms = -1;
    assert_int_equal(
        sscanf(error.message, "get 'lamp?' on store in the cellar failed after %d ms: %63[^\n]",
               &ms, rest),
        2);
    assert_string_equal(rest, "the cable is out");
    tether_store_release(store);
}

static tether_status get_without_status(void *impl,
                                        const char *key,
                                        int timeout_ms,
                                        tether_buf *ret_value,
                                        tether_error *reterr)
{
    (void)impl, (void)timeout_ms, (void)ret_value, (void)reterr;
    return (tether_status)atoi(key);
}

static void call_fails_when_user_store_returns_no_status(void **state)
{
    (void)state;
    static const char *const numbers[] = {"256", "-1", "26", "-256"};
    struct tether_store_ops ops = user_store_ops;
    tether_store *store = NULL;
    tether_buf value = TETHER_BUF_INIT;
    ops.get = get_without_status;
    ops.destroy = dummy_destroy;
    assert_ok(tether_store_new(&ops, NULL, "store in the cellar", &store, err));
    for (size_t i = 0; i < TETHER__ARRAY_LEN(numbers); i++)
        assert_status(tether_store_get(store, numbers[i], 100, &value, NULL), TETHER_EREMOTE);
    tether_store_release(store);
}

static tether_status use_store(void *userdata)
{
    (void)userdata;
    tether_store *inner = user_store_new(NULL), *store = NULL;
    tether_buf values[2] = {{0}};
    const char *keys[] = {"a", "b"};
    tether_bytes two[] = {tether_bytes_str("1"), tether_bytes_str("2")};
    tether_status st = inner ? TETHER_OK : TETHER_ENOMEM;
    if (st == TETHER_OK)
        st = tether_store_prefix_new("p", inner, &store, NULL);
    tether_store_release(inner);
    if (st == TETHER_OK)
        st = tether_store_multi_set(store, keys, two, 2, 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_append(store, "a", two[0], 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_multi_get(store, keys, 2, 0, values, NULL);
    if (st == TETHER_OK)
        st = tether_store_try_get(store, "a", 0, &values[0], NULL);
    if (st == TETHER_OK)
        st = tether_store_barrier(store, "barrier", 1, 0, NULL);
    tether_buf_fini(&values[0]);
    tether_buf_fini(&values[1]);
    tether_store_release(store);
    return st;
}

static void emulations_report_failed_allocations(void **state)
{
    (void)state;
    tether_test_heap_fail_each(use_store, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_get),
        cmocka_unit_test(test_optional_methods_fail),
        cmocka_unit_test(test_has_extended_api_passthrough),
        cmocka_unit_test(test_has_extended_api_roundtrip),
        cmocka_unit_test(test_append_roundtrip),
        cmocka_unit_test(test_multi_get_roundtrip),
        cmocka_unit_test(test_multi_set_roundtrip),
        cmocka_unit_test(test_extended_methods_fallbacks),
        cmocka_unit_test(append_is_not_lost_when_another_caller_writes_the_same_value),
        cmocka_unit_test(append_succeeds_when_key_is_deleted_meanwhile),
        cmocka_unit_test(append_times_out_when_others_always_change_the_key),
        cmocka_unit_test(barrier_ends_when_last_member_died_after_counting),
        cmocka_unit_test(barrier_fails_when_its_keys_become_too_long),
        cmocka_unit_test(errors_of_user_store_name_call_key_and_store),
        cmocka_unit_test(call_fails_when_user_store_returns_no_status),
        cmocka_unit_test(emulations_report_failed_allocations),
    };
    return tether_test_store_suite(
               TETHER_TEST_STORE_KIND(.name = "user-defined", .make = make, .no_num_keys = true)) +
           tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "prefix over user-defined",
                                                          .make = make_under_prefix,
                                                          .no_num_keys = true)) +
           cmocka_run_group_tests(tests, NULL, NULL);
}
