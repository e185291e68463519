/* The prefix store over a hash store, also nested. */
#include "tests/rendezvous/store/suite_internal.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static tether_store *make_hash(void)
{
    tether_store *store = NULL;
    assert_ok(tether_store_hash_new(&store, err));
    return store;
}

static tether_store *make(void)
{
    return tether_test_store_under_prefix(make_hash());
}

static tether_store *make_nested(void)
{
    return tether_test_store_under_prefix(tether_test_store_under_prefix(make()));
}

static tether_store *prefixed(const char *prefix, tether_store *inner)
{
    tether_store *store = NULL;
    assert_ok(tether_store_prefix_new(prefix, inner, &store, err));
    return store;
}

static void operations_put_the_prefix_before_keys(void **state)
{
    (void)state;
    tether_store *inner = make_hash();
    tether_store *store = prefixed("a", inner), *nested = prefixed("b", store),
                 *empty = prefixed("", inner);
    SET("key", "1");
    suite_expect(inner, "a/key", "1");
    assert_ok(tether_store_set(nested, "key", tether_bytes_str("2"), LIMIT, err));
    suite_expect(inner, "a/b/key", "2");
    EXPECT("b/key", "2");
    assert_ok(tether_store_set(empty, "key", tether_bytes_str("3"), LIMIT, err));
    suite_expect(inner, "/key", "3");
    tether_store_release(empty);
    tether_store_release(nested);
    tether_store_release(store);
    tether_store_release(inner);
}

static void test_get_underlying_store(void **state)
{
    (void)state;
    tether_store *inner = make_hash();
    tether_store *store = prefixed("a", inner), *nested = prefixed("b", store);
    assert_ptr_equal(tether_store_underlying(store), inner);
    assert_ptr_equal(tether_store_underlying(nested), store);
    assert_ptr_equal(tether_store_underlying(inner), inner);
    assert_ptr_equal(tether_store_underlying_non_prefix(nested), inner);
    assert_ptr_equal(tether_store_underlying_non_prefix(inner), inner);
    tether_store_release(store);
    tether_store_release(inner); /* `nested` holds references to both */
    assert_ok(tether_store_set(nested, "key", tether_bytes_str("x"), LIMIT, err));
    tether_store_release(nested);
}

/* Keys below "ab/" are not below "a". The listed keys have no prefix. */
static void list_keys_leaves_out_keys_of_other_prefixes(void **state)
{
    (void)state;
    tether_store *inner = make_hash();
    tether_store *a = prefixed("a", inner), *ab = prefixed("ab", inner);
    assert_ok(tether_store_set(a, "one", tether_bytes_str(""), LIMIT, err));
    assert_ok(tether_store_set(ab, "two", tether_bytes_str(""), LIMIT, err));
    assert_ok(tether_store_set(inner, "a", tether_bytes_str(""), LIMIT, err));
    assert_ok(tether_store_set(inner, "a/", tether_bytes_str(""), LIMIT, err));
    tether_store_keys keys = {NULL, 0};
    assert_ok(tether_store_list_keys(a, LIMIT, &keys, err));
    assert_int_equal(keys.count, 1);
    assert_string_equal(keys.keys[0].data, "one");
    tether_store_keys_fini(&keys);
    tether_store_release(ab);
    tether_store_release(a);
    tether_store_release(inner);
}

static void timeout_is_shared_with_the_store_below(void **state)
{
    (void)state;
    tether_store *inner = make_hash();
    tether_store *store = prefixed("a", inner);
    assert_ok(tether_store_set_timeout(store, 1234, err));
    assert_int_equal(tether_store_get_timeout(inner), 1234);
    assert_ok(tether_store_set_timeout(inner, -1, err));
    assert_int_equal(tether_store_get_timeout(store), -1);
    tether_store_release(store);
    tether_store_release(inner);
}

static void set_fails_when_prefixed_key_is_too_long(void **state)
{
    (void)state;
    tether_store *inner = make_hash(), *store = NULL;
    char text[TETHER_STORE_MAX_KEY + 1];
    memset(text, 'p', sizeof text);
    text[TETHER_STORE_MAX_KEY] = '\0';
    assert_status(tether_store_prefix_new(text, inner, &store, NULL), TETHER_ETOOBIG);
    assert_status(tether_store_prefix_new(NULL, inner, &store, NULL), TETHER_EINVAL);
    assert_status(tether_store_prefix_new("p", NULL, &store, NULL), TETHER_EINVAL);
    text[TETHER_STORE_MAX_KEY - 2] = '\0';
    store = prefixed(text, inner);
    SET("k", "fits"); /* 8190 + 1 + 1 */
    EXPECT("k", "fits");
    assert_status(tether_store_set(store, "kk", tether_bytes_str(""), LIMIT, NULL), TETHER_ETOOBIG);
    tether_store_release(store);
    tether_store_release(inner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_put_the_prefix_before_keys),
        cmocka_unit_test(test_get_underlying_store),
        cmocka_unit_test(list_keys_leaves_out_keys_of_other_prefixes),
        cmocka_unit_test(timeout_is_shared_with_the_store_below),
        cmocka_unit_test(set_fails_when_prefixed_key_is_too_long),
    };
    return tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "prefix over hash", .make = make,
                                                          .extended = true, .queues = true)) +
           tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "nested prefix over hash",
                                                          .make = make_nested, .extended = true,
                                                          .queues = true)) +
           cmocka_run_group_tests(tests, NULL, NULL);
}
