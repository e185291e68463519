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
 * Each test gets a store of its own from make(), new and empty. Limits on time are those of a hang,
 * never of speed.
 */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_SUITE_H
#define TETHER_TESTS_RENDEZVOUS_STORE_SUITE_H

#include "rendezvous/store.h"

struct tether_test_store_kind {
    const char *name;
    tether_store *(*make)(void); /* a new and empty store; asserts that it could */
    /* Another handle on the same keys, as another process would have; NULL: the same one again. */
    tether_store *(*join)(tether_store *store);
    int own_keys;  /* how many keys a new store has by itself */
    bool extended; /* has append, multi_get and multi_set itself: atomic */
    bool queues;   /* has queues and list_keys */
    bool no_list_keys;
    bool no_num_keys;
    /* Spoken over PyTorch's wire, which does not tell whether compare_set has swapped when the
     * value is the desired one anyway, nor a queue without a value from an empty value. */
    bool torch_wire;
};

#define TETHER_TEST_STORE_KIND(...) (&(const struct tether_test_store_kind){__VA_ARGS__})

/* Runs everything; what cmocka_run_group_tests() returns, the number of tests that failed. */
int tether_test_store_suite(const struct tether_test_store_kind *kind);

/* A prefix store over a store that make() of another kind made: for the kind "prefix over it". */
tether_store *tether_test_store_under_prefix(tether_store *inner);

/* Whether the thread with this kernel id sleeps: so a test knows that a wait has begun. */
bool tether_test_thread_sleeps(int tid);

#endif
