/* The hash store: the conformance suite, and failing allocations. */
#include "tests/lib/heap.h"
#include "tests/rendezvous/store/suite_internal.h"

static tether_store *make(void)
{
    tether_store *store = NULL;
    assert_ok(tether_store_hash_new(&store, err));
    return store;
}

/* Calls many operations; returns the first error. */
static tether_status use_store(void *userdata)
{
    (void)userdata;
    tether_store *store = NULL;
    tether_buf values[2] = {{0}};
    const char *keys[] = {"a", "b"};
    tether_bytes two[] = {tether_bytes_str("1"), tether_bytes_str("2")};
    tether_store_keys listed = {NULL, 0};
    tether_bytes more = tether_bytes_str("more than what fits into what was there before");
    tether_status st = tether_store_hash_new(&store, NULL);
    if (st == TETHER_OK)
        st = tether_store_multi_set(store, keys, two, 2, 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_add(store, "sum", 5, 0, NULL, NULL);
    if (st == TETHER_OK)
        st = tether_store_append(store, "a", more, 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_compare_set(store, "c", tether_bytes_str(""), more, 0, NULL, &values[0],
                                      NULL);
    if (st == TETHER_OK)
        st = tether_store_multi_get(store, keys, 2, 0, values, NULL);
    if (st == TETHER_OK)
        st = tether_store_queue_push(store, "q", more, 0, NULL);
    if (st == TETHER_OK)
        st = tether_store_queue_pop(store, "q", 0, &values[0], NULL);
    if (st == TETHER_OK)
        st = tether_store_list_keys(store, 0, &listed, NULL);
    if (st == TETHER_OK &&
        tether_store_wait(store, (const char *[]){"x", "y"}, 2, 0, NULL) == TETHER_ENOMEM)
        st = TETHER_ENOMEM;
    if (st == TETHER_OK)
        st = tether_store_barrier(store, "barrier", 1, 0, NULL);
    tether_store_keys_fini(&listed);
    tether_buf_fini(&values[0]);
    tether_buf_fini(&values[1]);
    tether_store_release(store);
    return st;
}

static void hash_store_reports_failed_allocations(void **state)
{
    (void)state;
    tether_test_heap_fail_each(use_store, NULL);
}

/* A multi_set that fails for lack of memory changes no key. */
static void multi_set_sets_all_keys_or_none(void **state)
{
    (void)state;
    const char *keys[] = {"a", "b", "c", "a"};
    tether_bytes values[] = {tether_bytes_str("1"), tether_bytes_str("2"), tether_bytes_str("3"),
                             tether_bytes_str("4")};
    for (int n = 0;; n++) {
        tether_store *store = make();
        SET("b", "before");
        tether_test_heap_fail_at(n);
        tether_status st = tether_store_multi_set(store, keys, values, 4, 0, NULL);
        bool fired = tether_test_heap_fired();
        tether_test_heap_fail_never();
        int64_t count = 0;
        assert_ok(tether_store_num_keys(store, 0, &count, err));
        assert_int_equal(count, fired ? 1 : 3);
        EXPECT("b", fired ? "before" : "2");
        assert_status(st, fired ? TETHER_ENOMEM : TETHER_OK);
        if (!fired)
            EXPECT("a", "4");
        tether_store_release(store);
        if (!fired)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_store_reports_failed_allocations),
        cmocka_unit_test(multi_set_sets_all_keys_or_none),
    };
    return tether_test_store_suite(TETHER_TEST_STORE_KIND(.name = "hash", .make = make,
                                                          .extended = true, .queues = true)) +
           cmocka_run_group_tests(tests, NULL, NULL);
}
