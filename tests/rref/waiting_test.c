/* Calls that wait at their receiver for references, or for an object to be made: how many, and how
 * much, one caller may have there. w1 has little room, w0 calls it, w2 owns what is passed on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

enum { MAX_CALLS = 4, MAX_BYTES = 100000, TIMEOUT_MS = 60000, LEASE_MS = 30000 };

static tether_reply *replies[2 * MAX_CALLS + 1];
static int n_replies;

/* Answers when the test says so. */
static void answer_later(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    assert_true(n_replies < 2 * MAX_CALLS + 1);
    replies[n_replies++] = reply;
}

static void register_all(tether_agent *agent)
{
    cast_register(agent);
    assert_int_equal(
        tether_agent_register_async(agent, "answer_later", answer_later, true, NULL, NULL),
        TETHER_OK);
}

static int start(void **state)
{
    static struct tether_test_world world;
    tether_test_world_register = register_all;
    tether_test_world_start(&world, TETHER_TEST_SIM, 1, TETHER_AGENT_OPTS(.lease_ms = LEASE_MS));
    tether_test_world_start_one(
        &world, 1,
        TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .max_calls_per_peer = MAX_CALLS,
                          .max_bytes_per_peer = MAX_BYTES));
    tether_test_world_start_one(&world, 2, TETHER_AGENT_OPTS(.lease_ms = LEASE_MS));
    world.n = 3;
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    assert_int_equal(cast_n_live, 0);
    return 0;
}

static bool is_done(void *future)
{
    return tether_future_is_done(future);
}

/* TAKES the future. */
static void ends_with(tether_future *future, tether_status expected, const char *words)
{
    tether_error err = {0};
    tether_status st = tether_future_wait(future, TIMEOUT_MS, NULL, &err);
    if (st != expected || !strstr(err.message, words))
        fail_msg("not %s but %s: %s", tether_status_name(expected), tether_status_name(st),
                 err.message);
    tether_future_release(future);
}

static bool has_arrived(void *userdata)
{
    (void)userdata;
    return n_replies > 0;
}

static bool nothing_waits(void *agent)
{
    return tether_rref_counts(agent).pending_owners == 0;
}

/* A method call with an argument of `len` bytes. */
static tether_future *add(tether_rref *rref, size_t len)
{
    char *text = calloc(1, len + 1);
    assert_non_null(text);
    memset(text, '0', len);
    tether_value *arg = cast_text(text);
    tether_future *future = tether_rref_async(rref, "add", arg, TIMEOUT_MS);
    tether_value_release(arg);
    free(text);
    return future;
}

static void calls_that_wait_for_an_object_are_bounded(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_begin_object(w, TIMEOUT_MS);
    for (int round = 0; round < 2; round++) { /* calls that ended free their places for others */
        tether_future *waiting[MAX_CALLS];
        if (round > 0) {
            tether_rref_release(rref);
            rref = cast_begin_object(w, TIMEOUT_MS);
        }
        for (int i = 0; i < MAX_CALLS; i++)
            waiting[i] = add(rref, 1);
        ends_with(add(rref, 1), TETHER_EBUSY, "4 calls from this caller");
        cast_finish_object(w);
        for (int i = 0; i < MAX_CALLS; i++)
            ends_with(waiting[i], TETHER_OK, "");
    }
    for (int i = 0; i < 2 * MAX_CALLS; i++) /* those that need not wait */
        ends_with(add(rref, 1), TETHER_OK, "");
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* A caller with a higher limit of its own cannot have more unfinished calls than twice ours. */
static void call_is_refused_when_too_many_of_its_caller_are_unfinished(void **state)
{
    struct tether_test_world *w = *state;
    tether_future *calls[2 * MAX_CALLS];
    n_replies = 0;
    for (int i = 0; i < 2 * MAX_CALLS; i++)
        calls[i] = tether_rpc_async(w->agents[0], "w1", "answer_later", NULL, TIMEOUT_MS);
    ends_with(tether_rpc_async(w->agents[0], "w1", "answer_later", NULL, TIMEOUT_MS), TETHER_EBUSY,
              "max_calls_per_peer");
    assert_int_equal(n_replies, 2 * MAX_CALLS);
    for (int i = 0; i < 2 * MAX_CALLS; i++) {
        tether_reply_ok(replies[i], NULL);
        ends_with(calls[i], TETHER_OK, "");
    }
    n_replies = 0;
    calls[0] = tether_rpc_async(w->agents[0], "w1", "answer_later", NULL, TIMEOUT_MS);
    assert_true(tether_sim_run(w->sim, has_arrived, NULL, TIMEOUT_MS));
    tether_reply_ok(replies[0], NULL);
    ends_with(calls[0], TETHER_OK, "");
}

/* Calls that end before their object is there leave their room to others, too. */
static void waiting_calls_give_their_room_back_when_they_time_out(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_begin_object(w, TIMEOUT_MS);
    tether_future *waiting[MAX_CALLS];
    tether_value *one = cast_text("1");
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MAX_CALLS; i++)
            waiting[i] = tether_rref_async(rref, "add", one, 1000);
        for (int i = 0; i < MAX_CALLS; i++)
            ends_with(waiting[i], TETHER_ETIMEOUT, "");
        assert_true(tether_test_world_wait(w, nothing_waits, w->agents[1]));
    }
    waiting[0] = tether_rref_async(rref, "add", one, TIMEOUT_MS);
    cast_finish_object(w);
    ends_with(waiting[0], TETHER_OK, "");
    tether_value_release(one);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* The owner must not keep fetches whose callers have given up. */
static void waiting_fetch_ends_at_its_owner_when_it_times_out(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_begin_object(w, TIMEOUT_MS);
    for (int i = 0; i < MAX_CALLS; i++)
        ends_with(tether_rref_to_here_async(rref, 1000), TETHER_ETIMEOUT, "");
    assert_true(tether_test_world_wait(w, nothing_waits, w->agents[1]));
    cast_finish_object(w);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

static void bytes_of_calls_that_wait_for_an_object_are_bounded(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_begin_object(w, TIMEOUT_MS);
    tether_future *first = add(rref, MAX_BYTES - 10);
    ends_with(add(rref, 11), TETHER_EBUSY, "max_bytes_per_peer");
    tether_future *small = add(rref, 10);
    cast_finish_object(w);
    ends_with(first, TETHER_OK, "");
    ends_with(small, TETHER_OK, "");
    tether_rref_release(rref);
    rref = cast_begin_object(w, TIMEOUT_MS);
    first = add(rref, 2 * MAX_BYTES); /* one of any size may, when it is alone */
    ends_with(add(rref, 1), TETHER_EBUSY, "max_bytes_per_peer");
    cast_finish_object(w);
    ends_with(first, TETHER_OK, "");
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

static bool all_requests_wait(void *world)
{
    struct tether_test_world *w = world;
    return tether_rref_counts(w->agents[2]).pending_owners == MAX_CALLS + 2;
}

/* w0 passes w1 a reference to an object that w2 has not heard of yet. Calls that are refused wait
 * for their references too, without argument, and give them back. */
static void refused_call_releases_its_references(void **state)
{
    struct tether_test_world *w = *state;
    tether_future *sent[MAX_CALLS + 2];
    assert_int_equal(tether_rpc_sync(w->agents[0], "w2", "echo", NULL, TIMEOUT_MS, NULL, NULL),
                     TETHER_OK);
    tether_sim_slow(w->sim, w->agents[0], w->agents[2], 2000 * TETHER__NS_PER_MS);
    tether_rref *rref = cast_remote_counter(w->agents[0], "w2", "7");
    for (int i = 0; i < MAX_CALLS + 2; i++)
        sent[i] = cast_send_async(w->agents[0], "w1", "keep", rref, TIMEOUT_MS);
    assert_true(tether_sim_run(w->sim, all_requests_wait, w, 1000));
    int keeps = atomic_load(&cast_n_keeps);
    for (int i = 0; i < MAX_CALLS + 2; i++) {
        assert_true(tether_test_world_wait(w, is_done, sent[i]));
        ends_with(sent[i], i < MAX_CALLS ? TETHER_OK : TETHER_EBUSY,
                  i < MAX_CALLS ? "" : "max_calls_per_peer");
    }
    assert_int_equal(atomic_load(&cast_n_keeps), keeps + MAX_CALLS);
    tether_rref_release(rref);
    cast_drop_all();
    cast_assert_nothing_left(w);
}

/* As before, but what is refused was to make an object: its reference breaks. */
static void refused_creation_breaks_its_reference(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *unmade = cast_begin_object(w, TIMEOUT_MS), *results[MAX_CALLS + 1];
    tether_value *one = cast_text("1");
    for (int i = 0; i <= MAX_CALLS; i++)
        results[i] = tether_rref_remote(unmade, "add", one, TIMEOUT_MS);
    ends_with(tether_rref_confirmed(results[MAX_CALLS]), TETHER_EBUSY, "max_calls_per_peer");
    cast_finish_object(w);
    for (int i = 0; i <= MAX_CALLS; i++) {
        if (i < MAX_CALLS)
            ends_with(tether_rref_confirmed(results[i]), TETHER_OK, "");
        tether_rref_release(results[i]);
    }
    tether_value_release(one);
    tether_rref_release(unmade);
    cast_assert_nothing_left(w);
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        THREE(calls_that_wait_for_an_object_are_bounded),
        THREE(call_is_refused_when_too_many_of_its_caller_are_unfinished),
        THREE(waiting_calls_give_their_room_back_when_they_time_out),
        THREE(waiting_fetch_ends_at_its_owner_when_it_times_out),
        THREE(bytes_of_calls_that_wait_for_an_object_are_bounded),
        THREE(refused_call_releases_its_references),
        THREE(refused_creation_breaks_its_reference),
    };
    return cmocka_run_group_tests_name("calls that wait", tests, NULL, NULL);
}
