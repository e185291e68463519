/* The words of the error when an object is not made in time: which worker, how long it took, and
 * what the object waits for. Runs over the simulation. */
#include <string.h>

#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/errors.h"
#include "tests/rref/cast.h"

static int start(void **state)
{
    static struct tether_test_world world;
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    return 0;
}

/* A reference of w0 to an object whose function does not return. */
static tether_rref *begin_object(struct tether_test_world *w, const char *owner)
{
    return tether_remote(w->agents[0], owner, "hold", NULL, 60000);
}

static void end_object(struct tether_test_world *w, tether_rref *rref)
{
    tether_reply_ok(atomic_exchange(&w->held, NULL), NULL);
    assert_int_equal(tether_rref_to_here(rref, 5000, NULL, NULL), TETHER_OK);
    tether_rref_release(rref);
}

static void fetch_of_own_object_says_that_function_runs_when_it_times_out(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = begin_object(w, "w0");
    assert_int_equal(tether_rref_to_here(rref, 300, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err,
                "an object of worker 'w0' timed out after 300 ms (its function has not "
                "returned): look with tether-inspect");
    end_object(w, rref);
}

static void fetch_of_own_object_says_that_function_runs_when_its_deadline_is_over(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = begin_object(w, "w0");
    tether_future *fetch = tether_rref_to_here_async(rref, 300);
    assert_int_equal(tether_future_wait(fetch, 100, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err, "of worker 'w0' timed out after 100 ms (its function has not returned): ");
    assert_int_equal(tether_future_wait(fetch, 5000, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err, "of worker 'w0' timed out after 300 ms (its function has not returned): ");
    tether_future_release(fetch);
    end_object(w, rref);
}

/* No tick is due before the deadline of the fetch, so the timers have to be told of it. */
static void fetch_of_own_object_ends_on_time_when_nothing_else_is_due(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = begin_object(w, "w0");
    tether_sim_run(w->sim, NULL, NULL, 2000); /* timers of the start come first */
    int64_t began = tether_sim_now(w->sim);
    tether_future *fetch = tether_rref_to_here_async(rref, 300);
    assert_int_equal(tether_future_wait(fetch, 60000, NULL, NULL), TETHER_ETIMEOUT);
    assert_in_range((tether_sim_now(w->sim) - began) / 1000000, 300, 301);
    tether_future_release(fetch);
    end_object(w, rref);
}

static void fetch_says_how_far_it_came_when_object_of_other_worker_is_late(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = begin_object(w, "w1");
    assert_int_equal(tether_rref_to_here(rref, 300, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err, "calling 'to_here' on worker 'w1' timed out after 300 ms (arrived there): ");
    end_object(w, rref);
}

static void fetch_says_that_there_is_no_connection_when_owner_is_cut_off(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = begin_object(w, "w1");
    assert_int_equal(tether_rref_to_here(rref, 300, NULL, &err), TETHER_ETIMEOUT);
    tether_sim_part(w->sim, w->agents[0], w->agents[1], true);
    assert_int_equal(tether_rref_to_here(rref, 300, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err, "'to_here' on worker 'w1' timed out after 300 ms (not sent, no connection)");
    tether_sim_part(w->sim, w->agents[0], w->agents[1], false);
    end_object(w, rref);
}

/* The owner's deadline is over before the answer to its caller can arrive in time. */
static void owner_says_what_object_waits_for_when_caller_waits_for_it(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = begin_object(w, "w0");
    assert_int_equal(tether_rref_sync(rref, "add", NULL, 300, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err, "'w0'");
    assert_says(&err, " timed out after 300 ms (");
    end_object(w, rref);
}

static void timeout_tells_that_method_waits_for_its_object(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = begin_object(w, "w1");
    assert_int_equal(tether_rref_sync(rref, "add", NULL, 2000, NULL, &err), TETHER_ETIMEOUT);
    assert_says(&err,
                "calling 'add' on worker 'w1' timed out after 2000 ms (waited for references "
                "or its object there ");
    end_object(w, rref);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        CASE(fetch_of_own_object_says_that_function_runs_when_it_times_out),
        CASE(fetch_of_own_object_says_that_function_runs_when_its_deadline_is_over),
        CASE(fetch_of_own_object_ends_on_time_when_nothing_else_is_due),
        CASE(fetch_says_how_far_it_came_when_object_of_other_worker_is_late),
        CASE(fetch_says_that_there_is_no_connection_when_owner_is_cut_off),
        CASE(owner_says_what_object_waits_for_when_caller_waits_for_it),
        CASE(timeout_tells_that_method_waits_for_its_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
