/* The store suite: the tests of PyTorch's test_store.py, which check the same and more. */
#include "tests/rendezvous/store/suite.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "tests/rendezvous/store/suite_internal.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static const struct tether_test_store_kind *current;

int suite_setup(void **state)
{
    struct suite_store *s = calloc(1, sizeof *s);
    s->kind = current;
    s->store = current->make();
    *state = s;
    return s->store ? 0 : -1;
}

int suite_teardown(void **state)
{
    struct suite_store *s = *state;
    tether_store_release(s->store);
    free(s);
    return 0;
}

tether_store *suite_join(const struct suite_store *s)
{
    return s->kind->join ? s->kind->join(s->store) : tether_store_retain(s->store);
}

void suite_expect(tether_store *store, const char *key, const char *text)
{
    tether_buf value = TETHER_BUF_INIT;
    assert_ok(tether_store_get(store, key, LIMIT, &value, err));
    assert_int_equal(value.len, strlen(text));
    assert_string_equal(value.data, text);
    tether_buf_fini(&value);
}

void suite_add(tether_store *store, const char *key, int64_t delta, int64_t sum)
{
    int64_t got = 0;
    assert_ok(tether_store_add(store, key, delta, LIMIT, &got, err));
    assert_int_equal(got, sum);
}

bool suite_check(tether_store *store, const char *key)
{
    bool ready = false;
    assert_ok(tether_store_check(store, &key, 1, LIMIT, &ready, err));
    return ready;
}

void suite_expect_num_keys(const struct suite_store *s, int n)
{
    int64_t count = -1;
    if (s->kind->no_num_keys) {
        assert_status(tether_store_num_keys(s->store, LIMIT, &count, NULL), TETHER_ENOTSUP);
        return;
    }
    assert_ok(tether_store_num_keys(s->store, LIMIT, &count, err));
    assert_int_equal(count, n + s->kind->own_keys);
}

void suite_delete_key(tether_store *store, const char *key, bool was_there)
{
    bool deleted = !was_there;
    assert_ok(tether_store_delete(store, key, LIMIT, &deleted, err));
    assert_int_equal(deleted, was_there);
}

/* Runs compare_set and asserts whether it swapped, and the value that it gave. */
static void compare_set(tether_store *store,
                        const char *key,
                        const char *expected,
                        const char *desired,
                        bool swaps,
                        const char *answer)
{
    bool swapped = !swaps;
    tether_buf value = TETHER_BUF_INIT;
    assert_ok(tether_store_compare_set(store, key, tether_bytes_str(expected),
                                       tether_bytes_str(desired), LIMIT, &swapped, &value, err));
    assert_int_equal(swapped, swaps);
    assert_int_equal(value.len, strlen(answer));
    assert_string_equal(value.data, answer);
    tether_buf_fini(&value);
}

static void test_set_get_check(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
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
    suite_expect_num_keys(s, 5);
    EXPECT("key", "6");
    EXPECT("key0", "value0");
    EXPECT("key1", "value1");
    EXPECT("key2", "value2");
    EXPECT("key3", "21");
    assert_true(CHECK("key3"));
    assert_false(CHECK("Randomkey3"));

    SET("-key3", "7");
    EXPECT("-key3", "7");
    suite_delete_key(store, "-key3", true);
    EXPECT("key3", "21"); /* a store that marks deletions by "-" could confuse these */
    suite_expect_num_keys(s, 5);
}

static void test_compare_set(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    compare_set(store, "cs_key0", "wrong_old_value", "new_value0", false, "wrong_old_value");
    assert_false(CHECK("cs_key0"));
    SET("cs_key0", "value0");
    EXPECT("cs_key0", "value0");
    compare_set(store, "cs_key0", "wrong_old_value", "new_value0", false, "value0");
    EXPECT("cs_key0", "value0");
    compare_set(store, "cs_key0", "value0", "new_value0", true, "new_value0");
    EXPECT("cs_key0", "new_value0");
    compare_set(store, "cs_key1", "", "new_value1", true, "new_value1");
    EXPECT("cs_key1", "new_value1");

    compare_set(store, "cs_key1", "", "other", false, "new_value1"); /* no longer absent */
    SET("cs_key2", "");
    /* An empty value equals an absent one. */
    compare_set(store, "cs_key2", "", "filled", true, "filled");
    compare_set(store, "cs_key2", "filled", "filled", true, "filled");
    compare_set(store, "cs_key2", "filled", "", true, "");
    assert_true(CHECK("cs_key2"));
    compare_set(store, "cs_key3", "", "", true, ""); /* creates it, empty */
    assert_true(CHECK("cs_key3"));
    assert_ok(tether_store_compare_set(store, "cs_key2", tether_bytes_str(""),
                                       tether_bytes_str("x"), LIMIT, NULL, NULL, err));
    EXPECT("cs_key2", "x");
}

static void test_simple_wait(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    const char *bad = "bad_key", *good = "good_key";
    tether_error error = {0};
    int64_t start = tether__clock_now_ms(&tether__clock_system);
    assert_status(tether_store_wait(store, &bad, 1, 250, &error), TETHER_ETIMEOUT);
    int64_t waited = tether__clock_now_ms(&tether__clock_system) - start;
    assert_in_range(waited, 249, LIMIT);
    assert_int_equal(error.code, TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "timeout"));
    assert_non_null(strstr(error.message, "bad_key"));
    ADD("good_key", 1, 1);
    assert_ok(tether_store_wait(store, &good, 1, LIMIT, err));
}

static void test_append(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    assert_int_equal(tether_store_has_extended_api(store), s->kind->extended);
    SET("foo", "po");
    assert_ok(tether_store_append(store, "foo", tether_bytes_str("tato"), LIMIT, err));
    assert_ok(tether_store_append(store, "bar", tether_bytes_str("po"), LIMIT, err));
    assert_ok(tether_store_append(store, "bar", tether_bytes_str("tato"), LIMIT, err));
    EXPECT("foo", "potato");
    EXPECT("bar", "potato");

    /* PyTorch's emulation loses these appends: of text equal to the whole value, and of no
     * bytes. */
    SET("twice", "po");
    assert_ok(tether_store_append(store, "twice", tether_bytes_str("po"), LIMIT, err));
    EXPECT("twice", "popo");
    assert_ok(tether_store_append(store, "twice", tether_bytes_str(""), LIMIT, err));
    EXPECT("twice", "popo");
    assert_ok(tether_store_append(store, "empty", tether_bytes_str(""), LIMIT, err));
    EXPECT("empty", "");
    assert_ok(tether_store_append(store, "foo", tether_bytes_str("es"), 0, err)); /* polls */
    EXPECT("foo", "potatoes");
}

static void test_multi_set(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    const char *keys[] = {"foo", "bar"};
    tether_bytes values[] = {tether_bytes_str("po"), tether_bytes_str("tato")};
    assert_ok(tether_store_multi_set(store, keys, values, 2, LIMIT, err));
    EXPECT("foo", "po");
    EXPECT("bar", "tato");
    values[0] = tether_bytes_str("");
    assert_ok(tether_store_multi_set(store, keys, values, 1, LIMIT, err));
    EXPECT("foo", "");
    assert_ok(tether_store_multi_set(store, NULL, NULL, 0, LIMIT, err));
    assert_status(tether_store_multi_set(store, keys, NULL, 2, LIMIT, NULL), TETHER_EINVAL);
}

static void test_multi_get(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    const char *keys[] = {"foo", "bar", "foo"};
    tether_buf values[3] = {{0}};
    SET("foo", "po");
    SET("bar", "tato");
    assert_ok(tether_store_multi_get(store, keys, 3, LIMIT, values, err));
    assert_string_equal(values[0].data, "po");
    assert_string_equal(values[1].data, "tato");
    assert_string_equal(values[2].data, "po");

    const char *missing[] = {"foo", "missing"};
    SET("foo", "changed");
    assert_status(tether_store_multi_get(store, missing, 2, 0, values, NULL), TETHER_ETIMEOUT);
    assert_string_equal(values[0].data, "po"); /* set on success only */
    assert_ok(tether_store_multi_get(store, NULL, 0, LIMIT, NULL, err));
    for (int i = 0; i < 3; i++)
        tether_buf_fini(&values[i]);
}

static void test_numkeys_delkeys(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    suite_expect_num_keys(s, 0);
    ADD("key", 1, 1);
    ADD("key", 2, 3);
    ADD("key", 3, 6);
    SET("key0", "value0");
    ADD("key3", 1, 1);
    SET("key1", "value1");
    suite_expect_num_keys(s, 4);
    suite_delete_key(store, "key", true);
    suite_delete_key(store, "key", false);
    suite_expect_num_keys(s, 3);
    assert_ok(tether_store_set_timeout(store, 50, err));
    tether_buf value = TETHER_BUF_INIT;
    assert_status(tether_store_get(store, "key", TETHER_DEFAULT_MS, &value, NULL), TETHER_ETIMEOUT);
    suite_delete_key(store, "key0", true);
    suite_delete_key(store, "key3", true);
    suite_expect_num_keys(s, 1);
    SET("key4", "value2");
    suite_expect_num_keys(s, 2);
    EXPECT("key1", "value1");
    EXPECT("key4", "value2");
    ADD("key", 5, 5); /* a deleted number counts from zero */
    tether_buf_fini(&value);
}

tether_store *tether_test_store_under_prefix(tether_store *inner)
{
    tether_store *store = NULL;
    assert_ok(tether_store_prefix_new("test_prefix", inner, &store, err));
    tether_store_release(inner);
    return store;
}

int tether_test_store_suite(const struct tether_test_store_kind *kind)
{
    static const struct CMUnitTest tests[] = {
        SUITE_TEST(test_set_get_check),   SUITE_TEST(test_compare_set),
        SUITE_TEST(test_simple_wait),     SUITE_TEST(test_append),
        SUITE_TEST(test_multi_set),       SUITE_TEST(test_multi_get),
        SUITE_TEST(test_numkeys_delkeys),
    };
    char name[64];
    snprintf(name, sizeof name, "%s store", kind->name);
    current = kind;
    return cmocka_run_group_tests_name(name, tests, NULL, NULL) + suite_run_rules(kind->name) +
           suite_run_threaded(kind->name);
}
