/* Shared by the files of the store suite. */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_SUITE_INTERNAL_H
#define TETHER_TESTS_RENDEZVOUS_STORE_SUITE_INTERNAL_H

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rendezvous/store/suite.h"

/* The state of one test. */
struct suite_store {
    const struct tether_test_store_kind *kind;
    tether_store *store;
};

int suite_setup(void **state);
int suite_teardown(void **state);

/* Returns another handle on the keys of the test's store. */
tether_store *suite_join(const struct suite_store *s);

#define SUITE_TEST(name) cmocka_unit_test_setup_teardown(name, suite_setup, suite_teardown)

/* The tests of the rules of each operation (suite_rules.c). */
int suite_run_rules(const char *kind);

/* The tests that need threads (suite_threads.c). */
int suite_run_threaded(const char *name);

/* Short forms of operations on the variable `store`, with the timeout TETHER_TEST_LIMIT_MS. */
#define assert_ok(call)                                                               \
    do {                                                                              \
        tether_error error_ = {0};                                                    \
        tether_error *err = &error_;                                                  \
        tether_status status_ = (call);                                               \
        if (status_ != TETHER_OK)                                                     \
            fail_msg("%s: %s: %s", #call, tether_status_name(status_), err->message); \
    } while (0)

#define assert_status(call, expected) \
    assert_string_equal(tether_status_name(call), tether_status_name(expected))

#define SET(key, text) \
    assert_ok(tether_store_set(store, key, tether_bytes_str(text), TETHER_TEST_LIMIT_MS, err))

/* Asserts that the value at `key` is `text`. */
void suite_expect(tether_store *store, const char *key, const char *text);
#define EXPECT(key, text) suite_expect(store, key, text)

/* Adds `delta` and asserts the sum. */
void suite_add(tether_store *store, const char *key, int64_t delta, int64_t sum);
#define ADD(key, delta, sum) suite_add(store, key, delta, sum)

bool suite_check(tether_store *store, const char *key);
#define CHECK(key) suite_check(store, key)

/* Asserts that the test has `n` keys, beside the keys of the store itself. */
void suite_expect_num_keys(const struct suite_store *s, int n);

/* Deletes the key and asserts whether it was there. */
void suite_delete_key(tether_store *store, const char *key, bool was_there);

#endif
