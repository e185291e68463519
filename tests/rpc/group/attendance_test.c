/* The workers of a static group come together in the store and add up their numbers. */
#include "rpc/group/attendance.h"
#include "base/clock.h"
#include "rpc/agent/internal.h"
#include "rpc/refs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/own_store.h"

#define N 3

struct rank {
    pthread_t thread;
    tether_agent *agent;
    bool shuts_down;
    const char *barrier; /* NULL: to start */
    int64_t number, sum;
    tether_status status;
    tether_error error;
};

/* A store in which reading or looking for the keys of one barrier fails. */
enum fault { NO_FAULT, GET_FAILS, CHECK_FAILS };

static tether_store *inner, *store;
static struct rank ranks[N];
static _Atomic enum fault fault;

static void on_set(const char *key);

static tether_status run_or_fail(void *userdata, struct tether__store_op *op)
{
    (void)userdata;
    enum fault by = op->kind == TETHER__STORE_GET     ? GET_FAILS
                    : op->kind == TETHER__STORE_CHECK ? CHECK_FAILS
                                                      : NO_FAULT;
    if (by != NO_FAULT && atomic_load(&fault) == by && strstr(op->keys[0], "faulty/"))
        return tether_error_set(&op->cause, TETHER_EUNAVAILABLE, "the store is broken");
    if (op->kind == TETHER__STORE_SET)
        on_set(op->keys[0]);
    return tether__store_run(inner, op);
}

static void *run(void *arg)
{
    struct rank *rank = arg;
    if (rank->shuts_down) {
        rank->status = tether_agent_shutdown(rank->agent, true, &rank->error);
        return NULL;
    }
    rank->status = rank->barrier ? tether__barrier_pass(rank->agent, rank->barrier, rank->number,
                                                        &rank->sum, &rank->error)
                                 : tether_agent_start(rank->agent, &rank->error);
    return NULL;
}

static void run_all(const char *barrier)
{
    for (int i = 0; i < N; i++) {
        ranks[i].barrier = barrier;
        ranks[i].sum = -1;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < N; i++)
        if (ranks[i].status != TETHER_OK)
            fail_msg("rank %d: %s", i, ranks[i].error.message);
}

static int setup(void **state)
{
    (void)state;
    atomic_store(&fault, NO_FAULT);
    assert_int_equal(tether_store_hash_new(&inner, NULL), TETHER_OK);
    assert_int_equal(tether_test_store_new(run_or_fail, NULL, 0, &store), TETHER_OK);
    for (int i = 0; i < N; i++) {
        ranks[i] = (struct rank){.agent = NULL};
        assert_int_equal(tether_agent_new(TETHER_AGENT_OPTS(.store = store, .rank = i,
                                                            .world_size = N, .threads = 1),
                                          &ranks[i].agent, &ranks[i].error),
                         TETHER_OK);
    }
    run_all(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        tether_agent_release(ranks[i].agent);
    store = tether_store_release(store);
    inner = tether_store_release(inner);
    return 0;
}

/* The end of a group hangs on this sum: a worker that started calls must be seen by all. */
static void every_rank_learns_the_sum_of_all_numbers(void **state)
{
    (void)state;
    static const int64_t numbers[][N] = {{0, 0, 0}, {0, 0, 5}, {100, 20, 3}};
    static const char *const barriers[] = {"a", "b", "c"};
    for (size_t w = 0; w < sizeof barriers / sizeof barriers[0]; w++) {
        int64_t sum = 0;
        for (int i = 0; i < N; i++)
            sum += ranks[i].number = numbers[w][i];
        run_all(barriers[w]);
        for (int i = 0; i < N; i++)
            assert_int_equal(ranks[i].sum, sum);
    }
}

static void barrier_has_all_when_the_last_has_come(void **state)
{
    (void)state;
    struct tether__attendance attendance;
    tether_agent *first = ranks[0].agent;
    int64_t deadline = tether__deadline_in(first->clock, 60000);
    assert_int_equal(tether__attendance_init(&attendance, first), TETHER_OK);
    tether__attendance_update(&attendance, first);
    assert_int_equal(attendance.n, N - 1);
    for (int i = 1; i < N; i++) {
        assert_false(tether__barrier_has_all(first, "over", &attendance, deadline));
        assert_int_equal(tether__barrier_arrive(ranks[i].agent, "over", 0, NULL), TETHER_OK);
    }
    assert_true(tether__barrier_has_all(first, "over", &attendance, deadline));
    assert_int_equal(tether__barrier_forget(first, "over", &attendance, deadline), TETHER_OK);
    assert_false(tether__barrier_has_all(first, "over", &attendance, deadline));
    tether__attendance_fini(&attendance);
}

static void missing_rank_is_named_when_deadline_passes(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_agent *first = ranks[0].agent;
    assert_int_equal(tether__barrier_arrive(ranks[1].agent, "late", 0, NULL), TETHER_OK);
    assert_int_equal(
        tether__barrier_await(first, "late", tether__deadline_in(first->clock, 10), NULL, &err),
        TETHER_ETIMEOUT);
    assert_memory_equal(err.message, "rank 2 did not reach 'late'", 27);
}

/* A number that cannot be read must not count as 0: the group would end with calls under way. */
static void sum_is_an_error_when_a_number_cannot_be_read(void **state)
{
    (void)state;
    tether_error err = {0};
    int64_t sum = -1;
    tether_agent *first = ranks[0].agent;
    int64_t deadline = tether__deadline_in(first->clock, 60000);
    for (int i = 1; i < N; i++)
        assert_int_equal(tether__barrier_arrive(ranks[i].agent, "faulty", 5, NULL), TETHER_OK);
    atomic_store(&fault, GET_FAILS);
    assert_int_equal(tether__barrier_await(first, "faulty", deadline, &sum, &err),
                     TETHER_EUNAVAILABLE);
    assert_non_null(strstr(err.message, "the store is broken"));
    assert_int_equal(sum, -1);
    atomic_store(&fault, NO_FAULT);
    assert_int_equal(tether__barrier_await(first, "faulty", deadline, &sum, &err), TETHER_OK);
    assert_int_equal(sum, 5 * (N - 1));
}

static void barrier_reports_store_error_when_missing_ranks_cannot_be_read(void **state)
{
    (void)state;
    tether_error err = {0};
    tether_agent *first = ranks[0].agent;
    atomic_store(&fault, CHECK_FAILS);
    assert_int_equal(
        tether__barrier_await(first, "faulty", tether__deadline_in(first->clock, 10), NULL, &err),
        TETHER_EUNAVAILABLE);
    assert_memory_equal(err.message, "waiting for all ranks at 'faulty': ", 35);
    assert_non_null(strstr(err.message, "the store is broken"));
}

/* ---- Counts of calls and of messages about references ---- */

/* Stands for the reference layer, whose messages count, too. */
static void *attach(tether_agent *agent, tether_error *reterr)
{
    (void)reterr;
    return agent;
}

static void detach(void *ext)
{
    (void)ext;
}

static void session_ended(void *ext,
                          struct tether__peer *peer,
                          uint64_t session_number,
                          struct tether__outbox_items *untold,
                          const tether_error *why)
{
    (void)ext, (void)peer, (void)session_number, (void)untold, (void)why;
}

static tether_status drain(void *ext, int64_t deadline, tether_error *reterr)
{
    (void)ext, (void)deadline, (void)reterr;
    return TETHER_OK;
}

static int64_t tick(void *ext, int64_t now)
{
    (void)ext, (void)now;
    return TETHER__NEVER;
}

static bool forget(void *ext, struct tether__peer *peer)
{
    (void)ext, (void)peer;
    return true;
}

static const struct tether__ext_ops references = {
    .attach = attach,
    .detach = detach,
    .session_ended = session_ended,
    .drain = drain,
    .tick = tick,
    .forget = forget,
};

enum { STARTS = 5 };
static atomic_bool starts_more; /* once the first rank has counted for the first barrier */
static atomic_int n_barriers;

/* The rank that sets the key has counted for this barrier, and has not for the next one. */
static void on_set(const char *key)
{
    const char *barrier = strstr(key, "/shutdown/");
    int number = 0;
    if (!barrier || sscanf(barrier, "/shutdown/%d/", &number) != 1)
        return;
    if (number + 1 > atomic_load(&n_barriers))
        atomic_store(&n_barriers, number + 1);
    if (!atomic_exchange(&starts_more, false))
        return;
    for (int i = 0; i < N; i++) {
        atomic_fetch_add(&ranks[i].agent->n_posted, STARTS);
        atomic_fetch_add(&ranks[i].agent->started_calls, STARTS);
    }
}

static int setup_with_references(void **state)
{
    tether__ext_ops = &references;
    return setup(state);
}

static int teardown_with_references(void **state)
{
    int rc = teardown(state);
    tether__ext_ops = NULL;
    return rc;
}

static void group_goes_on_to_another_barrier_when_both_counts_have_grown_alike(void **state)
{
    (void)state;
    atomic_store(&n_barriers, 0);
    atomic_store(&starts_more, true);
    for (int i = 0; i < N; i++)
        ranks[i].shuts_down = true;
    run_all(NULL);
    assert_false(atomic_load(&starts_more));
    /* one to start, one whose counts have grown, one without change */
    assert_true(atomic_load(&n_barriers) >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_rank_learns_the_sum_of_all_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(barrier_has_all_when_the_last_has_come, setup, teardown),
        cmocka_unit_test_setup_teardown(sum_is_an_error_when_a_number_cannot_be_read, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            barrier_reports_store_error_when_missing_ranks_cannot_be_read, setup, teardown),
        cmocka_unit_test_setup_teardown(
            group_goes_on_to_another_barrier_when_both_counts_have_grown_alike,
            setup_with_references, teardown_with_references),
        cmocka_unit_test_setup_teardown(missing_rank_is_named_when_deadline_passes, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
