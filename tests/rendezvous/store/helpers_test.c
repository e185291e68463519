/* The helpers on a store: temporary timeouts, sharing data, and barriers that name missing ranks.
 * Each rank is a thread. */
#include "rendezvous/store_helpers.h"

#include <pthread.h>
#include <stdio.h>

#include "tests/lib/heap.h"
#include "tests/rendezvous/store/suite_internal.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define WORLD 5

static int setup(void **state)
{
    tether_store *store = NULL;
    assert_ok(tether_store_hash_new(&store, err));
    *state = store;
    return 0;
}

static int teardown(void **state)
{
    tether_store_release(*state);
    return 0;
}

/* ---- Temporary timeouts --------------------------------------------------------------------- */

static tether_status get_absent_key(tether_store *store)
{
    TETHER_STORE_TIMEOUT_SCOPE(store, 20);
    tether_buf value = TETHER_BUF_INIT;
    return tether_store_get(store, "absent", TETHER_DEFAULT_MS, &value, NULL);
}

static void timeout_guard_restores_timeout(void **state)
{
    tether_store *store = *state;
    tether_store_timeout guard, inner;
    assert_ok(tether_store_set_timeout(store, 1111, err));
    assert_ok(tether_store_timeout_begin(store, 2222, &guard, err));
    assert_int_equal(tether_store_get_timeout(store), 2222);
    assert_ok(tether_store_timeout_begin(store, -1, &inner, err));
    assert_int_equal(tether_store_get_timeout(store), -1);
    tether_store_timeout_end(&inner);
    assert_int_equal(tether_store_get_timeout(store), 2222);
    tether_store_timeout_end(&guard);
    tether_store_timeout_end(&guard);
    assert_int_equal(tether_store_get_timeout(store), 1111);

    assert_status(tether_store_timeout_begin(store, -7, &guard, NULL), TETHER_EINVAL);
    tether_store_timeout_end(&guard);
    assert_int_equal(tether_store_get_timeout(store), 1111);

    assert_status(get_absent_key(store), TETHER_ETIMEOUT); /* restored on errors, too */
    assert_int_equal(tether_store_get_timeout(store), 1111);
}

/* ---- Ranks ---------------------------------------------------------------------------------- */

struct member {
    tether_store *store;
    int rank;
    pthread_t thread;
    tether_status status;
    tether_error error;
    tether_buf values[WORLD];
};

static void *synchronize(void *arg)
{
    struct member *m = arg;
    char data[32];
    snprintf(data, sizeof data, "data of %d", m->rank);
    m->status = tether_store_synchronize(m->store, tether_bytes_str(data), m->rank, WORLD, "p",
                                         LIMIT, m->values, &m->error);
    return NULL;
}

static void *barrier(void *arg)
{
    struct member *m = arg;
    m->status = tether_store_rank_barrier(m->store, m->rank, WORLD, "p", LIMIT, &m->error);
    return NULL;
}

/* Runs `run` for each rank in a thread of its own; asserts that all succeed. */
static void run_members(struct member members[WORLD], tether_store *store, void *(*run)(void *))
{
    for (int i = 0; i < WORLD; i++) {
        members[i] = (struct member){.store = store, .rank = i};
        assert_int_equal(pthread_create(&members[i].thread, NULL, run, &members[i]), 0);
    }
    for (int i = 0; i < WORLD; i++)
        pthread_join(members[i].thread, NULL);
    for (int i = 0; i < WORLD; i++)
        if (members[i].status != TETHER_OK)
            fail_msg("rank %d: %s", i, members[i].error.message);
}

static void synchronize_gives_all_values_to_each_rank(void **state)
{
    tether_store *store = *state;
    struct member members[WORLD];
    run_members(members, store, synchronize);
    for (int i = 0; i < WORLD; i++) {
        for (int k = 0; k < WORLD; k++) {
            char data[32];
            snprintf(data, sizeof data, "data of %d", k);
            assert_string_equal(members[i].values[k].data, data);
            tether_buf_fini(&members[i].values[k]);
        }
    }
    ADD("p/finished/num_members", 0, WORLD);
    EXPECT("p/finished/last_member", "<val_ignored>");
}

static void get_all_returns_on_rank_0_when_all_have_read(void **state)
{
    tether_store *store = *state;
    tether_buf values[3] = {{0}};
    SET("torchelastic/data0", "zero");
    SET("torchelastic/data1", "one");
    SET("torchelastic/data2", "two");
    const char *prefix = "torchelastic/data";
    assert_ok(tether_store_get_all(store, 1, 3, prefix, LIMIT, values, err));
    assert_string_equal(values[0].data, "zero");
    assert_string_equal(values[2].data, "two");
    /* Rank 0 waits until all ranks have read their values. If they do not, it gets no values. */
    SET("torchelastic/data0", "changed");
    tether_error error = {0};
    assert_status(tether_store_get_all(store, 0, 3, prefix, 30, values, &error), TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "finished/last_member"));
    assert_string_equal(values[0].data, "zero");
    assert_ok(tether_store_get_all(store, 2, 3, prefix, LIMIT, values, err));
    assert_string_equal(values[0].data, "changed");
    for (int i = 0; i < 3; i++)
        tether_buf_fini(&values[i]);
}

static void rank_barrier_returns_when_all_ranks_have_arrived(void **state)
{
    tether_store *store = *state;
    struct member members[WORLD];
    run_members(members, store, barrier);
    ADD("p/num_members", 0, WORLD); /* these are the keys of PyTorch's agents */
    assert_true(CHECK("p/last_member"));
}

/* The ranks arrive one after the other. Each gets an error that names the ranks that have not
 * arrived before it. */
static void rank_barrier_names_missing_ranks_when_it_times_out(void **state)
{
    tether_store *store = *state;
    static const struct {
        int rank;
        const char *error;
    } table[] = {
        {4, "on rank 4, for key prefix: p (world_size=5, missing_ranks=[0, 1, 2, 3], timeout="},
        {1, "on rank 1, for key prefix: p (world_size=5, missing_ranks=[0, 2, 3], timeout="},
        {2, "on rank 2, for key prefix: p (world_size=5, missing_ranks=[0, 3], timeout="},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        tether_error error = {0};
        assert_status(tether_store_rank_barrier(store, table[i].rank, WORLD, "p", 20, &error),
                      TETHER_ETIMEOUT);
        assert_non_null(strstr(error.message, table[i].error));
    }
}

static void rank_barrier_names_only_the_first_of_many_missing_ranks(void **state)
{
    tether_store *store = *state;
    tether_error error = {0};
    assert_status(tether_store_rank_barrier(store, 3, 10000, "many", 0, &error), TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "missing_ranks=[0, 1, 2, 4,"));
    assert_non_null(strstr(error.message, "16, ...]"));
}

static void rank_barrier_names_no_ranks_when_callers_give_none(void **state)
{
    tether_store *store = *state;
    tether_error error = {0};
    assert_status(tether_store_rank_barrier(store, -1, 2, "b", 0, &error), TETHER_ETIMEOUT);
    assert_non_null(strstr(error.message, "b/last_member"));
    assert_ok(tether_store_rank_barrier(store, -1, 2, "b", LIMIT, err));
}

static void helpers_check_their_arguments(void **state)
{
    tether_store *store = *state;
    tether_buf values[2] = {{0}};
    tether_bytes x = tether_bytes_str("x");
    assert_status(tether_store_rank_barrier(store, 2, 2, "p", LIMIT, NULL), TETHER_EINVAL);
    assert_status(tether_store_rank_barrier(store, 0, 0, "p", LIMIT, NULL), TETHER_EINVAL);
    assert_status(tether_store_rank_barrier(store, 0, 1, "", LIMIT, NULL), TETHER_EINVAL);
    assert_status(tether_store_rank_barrier(NULL, 0, 1, "p", LIMIT, NULL), TETHER_EINVAL);
    assert_status(tether_store_rank_barrier(store, 0, 1, "p", -5, NULL), TETHER_EINVAL);
    assert_status(tether_store_get_all(store, 0, INT32_MAX, "p", LIMIT, values, NULL),
                  TETHER_ETOOBIG);
    assert_status(tether_store_synchronize(store, x, -1, 2, "p", LIMIT, values, NULL),
                  TETHER_EINVAL);
    int64_t count = -1;
    assert_ok(tether_store_num_keys(store, LIMIT, &count, err));
    assert_int_equal(count, 0);
}

static tether_status use_helpers(void *userdata)
{
    (void)userdata;
    tether_store *store = NULL;
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_hash_new(&store, NULL);
    if (st == TETHER_OK)
        st = tether_store_synchronize(store, tether_bytes_str("x"), 0, 1, "p", 0, &value, NULL);
    if (st == TETHER_OK)
        st = tether_store_rank_barrier(store, 0, 1, "b", 0, NULL);
    tether_buf_fini(&value);
    tether_store_release(store);
    return st;
}

static void helpers_report_failed_allocations(void **state)
{
    (void)state;
    tether_test_heap_fail_each(use_helpers, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(timeout_guard_restores_timeout),
        TEST(synchronize_gives_all_values_to_each_rank),
        TEST(get_all_returns_on_rank_0_when_all_have_read),
        TEST(rank_barrier_returns_when_all_ranks_have_arrived),
        TEST(rank_barrier_names_missing_ranks_when_it_times_out),
        TEST(rank_barrier_names_only_the_first_of_many_missing_ranks),
        TEST(rank_barrier_names_no_ranks_when_callers_give_none),
        TEST(helpers_check_their_arguments),
        cmocka_unit_test(helpers_report_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
