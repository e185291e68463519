/* The verdict of a round: all nodes get the same one, and the first proposal wins. */
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tools/run/node/verdict.h"

static void first_proposal_wins(void **state)
{
    (void)state;
    tether_store *store = NULL;
    struct run_verdict seen = {RUN_UNDECIDED, 0, ""};
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    assert_int_equal(run_verdict_await(store, 0, &seen, NULL), TETHER_ETIMEOUT);

    struct run_verdict restart = {RUN_RESTART, 3, "rank 5 on node 1: exit 7"};
    struct run_verdict failed = {RUN_FAILED, 9, "too late"};
    assert_int_equal(run_verdict_propose(store, &restart, 1000, NULL), TETHER_OK);
    assert_int_equal(run_verdict_propose(store, &failed, 1000, NULL), TETHER_OK);
    assert_int_equal(run_verdict_await(store, 1000, &seen, NULL), TETHER_OK);
    const struct run_verdict *all[] = {&restart, &failed, &seen};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(all); i++) {
        assert_int_equal(all[i]->outcome, RUN_RESTART);
        assert_int_equal(all[i]->restarts, 3);
        assert_string_equal(all[i]->why, "rank 5 on node 1: exit 7");
    }
    tether_store_release(store);
}

static void verdict_of_another_program_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "restart", "restart x", "dance 1 now", "restart -1 x", "undecided 0 x"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(texts); i++) {
        tether_store *store = NULL;
        tether_error err = {0};
        struct run_verdict seen = {RUN_UNDECIDED, 0, ""};
        assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
        assert_int_equal(tether_store_set(store, "verdict", tether_bytes_str(texts[i]), 1000, NULL),
                         TETHER_OK);
        assert_int_equal(run_verdict_await(store, 1000, &seen, &err), TETHER_ECORRUPT);
        assert_non_null(strstr(err.message, "--rdzv-id"));
        assert_int_equal(seen.outcome, RUN_UNDECIDED);
        tether_store_release(store);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_proposal_wins),
        cmocka_unit_test(verdict_of_another_program_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
