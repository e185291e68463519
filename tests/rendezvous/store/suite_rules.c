/* The store suite: the rules of each operation that PyTorch's test_store.py does not check. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/rendezvous/store/suite_internal.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static void add_fails_when_value_is_no_whole_number(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    ADD("n", INT64_MAX, INT64_MAX);
    assert_status(tether_store_add(store, "n", 1, LIMIT, NULL, NULL), TETHER_EINVAL);
    EXPECT("n", "9223372036854775807");
    ADD("n", -1, INT64_MAX - 1);
    ADD("m", INT64_MIN, INT64_MIN);
    assert_status(tether_store_add(store, "m", -1, LIMIT, NULL, NULL), TETHER_EINVAL);
    ADD("m", INT64_MAX, -1);
    ADD("m", 0, -1);
    SET("given", "-41");
    ADD("given", 42, 1);

    static const char *const bad[] = {"",     "-",   "12xyz", " 7", "7 ",  "+7",
                                      "0x10", "1.5", "--1",   "x",  "1\n", "9223372036854775808"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t sum = 77;
        tether_error error = {0};
        SET("bad", bad[i]);
        assert_status(tether_store_add(store, "bad", 1, LIMIT, &sum, &error), TETHER_EINVAL);
        assert_non_null(strstr(error.message, "'"));
        assert_int_equal(sum, 77);
        EXPECT("bad", bad[i]);
    }
}

static void values_may_contain_any_bytes(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    tether_buf got = TETHER_BUF_INIT;
    char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    tether_bytes value = tether_bytes_of(all, sizeof all);
    assert_ok(tether_store_set(store, "all", value, LIMIT, err));
    assert_ok(tether_store_get(store, "all", LIMIT, &got, err));
    assert_true(tether_bytes_equal(tether_buf_bytes(&got), value));

    size_t large_len = 1 << 20;
    char *large = malloc(large_len);
    for (size_t i = 0; i < large_len; i++)
        large[i] = (char)(i * 31 >> 3);
    value = tether_bytes_of(large, large_len);
    assert_ok(tether_store_set(store, "large", value, LIMIT, err));
    assert_ok(tether_store_get(store, "large", LIMIT, &got, err));
    assert_true(tether_bytes_equal(tether_buf_bytes(&got), value));
    free(large);

    SET("large", ""); /* an empty value replaces a large one completely */
    EXPECT("large", "");
    assert_ok(tether_store_set(store, "null", tether_bytes_of(NULL, 0), LIMIT, err));
    EXPECT("null", "");
    tether_buf_fini(&got);
}

static void operations_check_their_arguments(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    tether_buf value = TETHER_BUF_INIT;
    tether_bytes x = tether_bytes_str("x");
    char *key = malloc(TETHER_STORE_MAX_KEY + 2);
    memset(key, 'k', TETHER_STORE_MAX_KEY + 1);
    key[TETHER_STORE_MAX_KEY + 1] = '\0';
    tether_error error = {0};
    assert_status(tether_store_set(store, key, x, LIMIT, &error), TETHER_ETOOBIG);
    assert_non_null(strstr(error.message, "8192"));
    assert_status(tether_store_set(store, "", x, LIMIT, NULL), TETHER_EINVAL);
    assert_status(tether_store_set(store, NULL, x, LIMIT, NULL), TETHER_EINVAL);
    assert_status(tether_store_set(store, "k", tether_bytes_of(NULL, 1), LIMIT, NULL),
                  TETHER_EINVAL);
    assert_status(tether_store_set(store, "k", x, -3, NULL), TETHER_EINVAL);
    assert_status(tether_store_get(store, "k", LIMIT, NULL, NULL), TETHER_EINVAL);
    assert_status(tether_store_get(NULL, "k", LIMIT, &value, NULL), TETHER_EINVAL);
    assert_status(tether_store_barrier(store, "k", 0, LIMIT, NULL), TETHER_EINVAL);
    assert_status(tether_store_wait(store, NULL, 1, LIMIT, NULL), TETHER_EINVAL);
    assert_status(tether_store_set_timeout(store, -2, NULL), TETHER_EINVAL);

    const char **many = malloc((TETHER_STORE_MAX_KEYS_PER_CALL + 1) * sizeof *many);
    for (int i = 0; i <= TETHER_STORE_MAX_KEYS_PER_CALL; i++)
        many[i] = "k";
    assert_status(tether_store_wait(store, many, TETHER_STORE_MAX_KEYS_PER_CALL + 1, 0, NULL),
                  TETHER_ETOOBIG);
    bool ready = true;
    many[1] = NULL;
    assert_status(tether_store_check(store, many, 2, LIMIT, &ready, NULL), TETHER_EINVAL);
    suite_expect_num_keys(s, 0); /* the failed calls have changed nothing */

    key[TETHER_STORE_MAX_KEY - 64] = '\0'; /* leaves room for a prefix */
    assert_ok(tether_store_set(store, key, x, LIMIT, err));
    EXPECT(key, "x");
    free(many);
    free(key);
}

static void wait_and_check_succeed_when_no_keys_are_given(void **state)
{
    struct suite_store *s = *state;
    bool ready = false;
    assert_ok(tether_store_check(s->store, NULL, 0, 0, &ready, err));
    assert_true(ready);
    assert_ok(tether_store_wait(s->store, NULL, 0, 0, err));
}

static void try_get_fails_at_once_when_key_is_absent(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    tether_buf value = TETHER_BUF_INIT;
    tether_error error = {0};
    assert_status(tether_store_try_get(store, "absent", LIMIT, &value, &error), TETHER_ENOTFOUND);
    assert_non_null(strstr(error.message, "'"));
    assert_null(value.data);
    SET("there", "here");
    assert_ok(tether_store_try_get(store, "there", LIMIT, &value, err));
    assert_string_equal(value.data, "here");
    SET("there", "");
    assert_ok(tether_store_try_get(store, "there", 0, &value, err));
    assert_int_equal(value.len, 0);
    tether_buf_fini(&value);
}

static void operations_fail_when_timeout_has_passed(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    tether_buf value = TETHER_BUF_INIT;
    tether_error error = {0};
    const char *keys[] = {"present", "absent"};
    SET("present", "x");
    /* Polling finds an existing key. */
    assert_ok(tether_store_get(store, "present", 0, &value, err));
    assert_ok(tether_store_wait(store, keys, 1, 0, err));
    assert_status(tether_store_get(store, "absent", 0, &value, NULL), TETHER_ETIMEOUT);
    assert_status(tether_store_wait(store, keys, 2, 0, NULL), TETHER_ETIMEOUT);
    assert_status(tether_store_wait(store, keys, 2, 30, NULL), TETHER_ETIMEOUT);
    assert_status(tether_store_barrier(store, "barrier", 2, 30, NULL), TETHER_ETIMEOUT);

    assert_ok(tether_store_set_timeout(store, 30, err));
    assert_int_equal(tether_store_get_timeout(store), 30);
    assert_status(tether_store_get(store, "absent", TETHER_DEFAULT_MS, &value, &error),
                  TETHER_ETIMEOUT);
    /* "get 'absent' on <description>: timeout after 30 ms" */
    assert_non_null(strstr(error.message, "get"));
    assert_non_null(strstr(error.message, "absent'"));
    assert_non_null(strstr(error.message, " ms"));
    const char *where = tether_store_describe(tether_store_underlying_non_prefix(store));
    size_t len = strlen(where); /* a long description is cut in the middle */
    assert_non_null(strstr(error.message, len > 50 ? where + len - 50 : where));

    assert_string_equal(value.data, "x"); /* unchanged by the failed calls */
    SET("absent", "came");                /* and the store is still usable */
    EXPECT("absent", "came");
    assert_ok(tether_store_get(store, "absent", TETHER_DEFAULT_MS, &value, err));
    assert_ok(tether_store_set_timeout(store, -1, err));
    assert_ok(tether_store_get(store, "absent", TETHER_DEFAULT_MS, &value, err));
    tether_buf_fini(&value);
}

static void new_store_has_the_default_timeout(void **state)
{
    struct suite_store *s = *state;
    tether_store *other = s->kind->make();
    assert_int_equal(tether_store_get_timeout(other), TETHER_STORE_DEFAULT_TIMEOUT_MS);
    tether_store_release(other);
}

static void changes_are_visible_through_another_handle(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store, *other = suite_join(s);
    char key[32];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "key%d", i);
        SET(key, "a");
        suite_expect(other, key, "a");
        assert_ok(tether_store_append(other, key, tether_bytes_str("b"), LIMIT, err));
        EXPECT(key, "ab");
        suite_delete_key(store, key, true);
        assert_false(suite_check(other, key));
        suite_add(other, "sum", 1, 2 * i + 1);
        ADD("sum", 1, 2 * i + 2);
    }
    tether_store_release(other);
}

static void list_keys_gives_all_keys(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    tether_store_keys keys = {NULL, 0};
    if (!s->kind->queues || s->kind->no_list_keys) {
        assert_status(tether_store_list_keys(store, LIMIT, &keys, NULL), TETHER_ENOTSUP);
        return;
    }
    SET("one", "1");
    SET("two", "2");
    SET("gone", "");
    suite_delete_key(store, "gone", true);
    assert_ok(tether_store_list_keys(store, LIMIT, &keys, err));
    int found = 0;
    for (size_t i = 0; i < keys.count; i++) {
        assert_int_equal(strlen(keys.keys[i].data), keys.keys[i].len);
        assert_string_not_equal(keys.keys[i].data, "gone");
        found += !strcmp(keys.keys[i].data, "one") || !strcmp(keys.keys[i].data, "two");
    }
    assert_int_equal(found, 2);
    assert_in_range(keys.count, 2, (unsigned)(2 + s->kind->own_keys));
    tether_store_keys_fini(&keys);
}

static void queue_gives_elements_in_order(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    tether_buf value = TETHER_BUF_INIT;
    tether_error error = {0};
    int64_t len = -1;
    if (!s->kind->queues) {
        tether_bytes x = tether_bytes_str("x");
        assert_status(tether_store_queue_push(store, "q", x, LIMIT, NULL), TETHER_ENOTSUP);
        assert_status(tether_store_queue_pop(store, "q", LIMIT, &value, NULL), TETHER_ENOTSUP);
        assert_status(tether_store_queue_len(store, "q", LIMIT, &len, NULL), TETHER_ENOTSUP);
        return;
    }
    assert_status(tether_store_queue_pop(store, "q", 0, &value, &error), TETHER_ENOTFOUND);
    assert_non_null(strstr(error.message, "queue is empty"));
    assert_status(tether_store_queue_pop(store, "q", 30, &value, NULL), TETHER_ETIMEOUT);
    assert_ok(tether_store_queue_len(store, "q", LIMIT, &len, err));
    assert_int_equal(len, 0);
    assert_false(CHECK("q"));

    static const char *const items[] = {"first", "", "third"};
    for (int i = 0; i < 3; i++)
        assert_ok(tether_store_queue_push(store, "q", tether_bytes_str(items[i]), LIMIT, err));
    assert_ok(tether_store_queue_len(store, "q", LIMIT, &len, err));
    assert_int_equal(len, 3);
    assert_true(CHECK("q"));
    const char *key = "q";
    assert_ok(tether_store_wait(store, &key, 1, 0, err));
    suite_expect_num_keys(s, 0); /* a queue does not count as a key */
    if (!s->kind->torch_wire) {
        assert_status(tether_store_get(store, "q", 0, &value, NULL), TETHER_ETIMEOUT);
        assert_status(tether_store_try_get(store, "q", LIMIT, &value, NULL), TETHER_ENOTFOUND);
    }
    SET("q", "value");
    for (int i = 0; i < 3; i++) {
        assert_ok(tether_store_queue_pop(store, "q", LIMIT, &value, err));
        assert_string_equal(value.data, items[i]);
    }
    assert_status(tether_store_queue_pop(store, "q", 0, &value, NULL), TETHER_ENOTFOUND);
    EXPECT("q", "value");
    tether_buf_fini(&value);
}

static void barrier_returns_at_once_when_world_size_is_one(void **state)
{
    struct suite_store *s = *state;
    assert_ok(tether_store_barrier(s->store, "alone", 1, 0, err));
    assert_ok(tether_store_barrier(s->store, "alone", 1, 0, err)); /* passed: stays open */
}

static void accessors_return_store_and_stores_below(void **state)
{
    struct suite_store *s = *state;
    tether_store *store = s->store;
    assert_ptr_equal(tether_store_retain(store), store);
    assert_null(tether_store_release(store));
    assert_null(tether_store_release(NULL));
    assert_in_range(strlen(tether_store_describe(store)), 1, 4096);
    tether_store *prefixed = tether_test_store_under_prefix(tether_store_retain(store));
    assert_ptr_equal(tether_store_underlying(prefixed), store);
    assert_ptr_equal(tether_store_underlying_non_prefix(prefixed),
                     tether_store_underlying_non_prefix(store));
    assert_int_equal(tether_store_has_extended_api(prefixed), s->kind->extended);
    tether_store_release(prefixed);
}

int suite_run_rules(const char *kind)
{
    static const struct CMUnitTest tests[] = {
        SUITE_TEST(add_fails_when_value_is_no_whole_number),
        SUITE_TEST(values_may_contain_any_bytes),
        SUITE_TEST(operations_check_their_arguments),
        SUITE_TEST(wait_and_check_succeed_when_no_keys_are_given),
        SUITE_TEST(try_get_fails_at_once_when_key_is_absent),
        SUITE_TEST(operations_fail_when_timeout_has_passed),
        SUITE_TEST(new_store_has_the_default_timeout),
        SUITE_TEST(changes_are_visible_through_another_handle),
        SUITE_TEST(list_keys_gives_all_keys),
        SUITE_TEST(queue_gives_elements_in_order),
        SUITE_TEST(barrier_returns_at_once_when_world_size_is_one),
        SUITE_TEST(accessors_return_store_and_stores_below),
    };
    char name[64];
    snprintf(name, sizeof name, "%s store, rules", kind);
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
