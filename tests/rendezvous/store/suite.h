/* The conformance suite of stores, which every kind of store must pass.
 *
 *     static tether_store *make(void) { ... }
 *
 *     int main(void)
 *     {
 *         return tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "hash", .make = make,
 *                                                               .queues = true, .extended = true));
 *     }
 *
 * Each test gets a new, empty store from make(). Time limits detect hangs; they do not measure
 * speed.
 */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_SUITE_H
#define TETHER_TESTS_RENDEZVOUS_STORE_SUITE_H

#include "rendezvous/store.h"

struct tether_test_store_kind {
    const char *name;
    tether_store *(*make)(void); /* returns a new, empty store; asserts success */
    /* Returns another handle on the same keys, like that of another process. NULL: use the same
     * handle. */
    tether_store *(*join)(tether_store *store);
    int own_keys;  /* the number of keys of a new store */
    bool extended; /* has atomic append, multi_get and multi_set */
    bool queues;   /* has queues and list_keys */
    bool no_list_keys;
    bool no_num_keys;
    /* Uses a dialect of PyTorch. It does not tell whether compare_set has swapped when the value
     * was the desired one already, nor a queue without a value from an empty value. */
    bool torch_wire;
};

#define TETHER_TEST_STORE_KIND(...) (&(const struct tether_test_store_kind){__VA_ARGS__})

/* Runs all tests; returns the number of failed tests, as cmocka_run_group_tests() does. */
int tether_test_store_suite(const struct tether_test_store_kind *kind);

/* Returns a prefix store over `inner`, for kinds that test a store under a prefix. */
tether_store *tether_test_store_under_prefix(tether_store *inner);

/* Whether the thread with this kernel id sleeps, which shows that its wait has begun. */
bool tether_test_thread_sleeps(int tid);

#endif
