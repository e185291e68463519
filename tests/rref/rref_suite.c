/* Remote references among three workers: made, used, passed on, let go, lost. */
#include "tests/rref/rref_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

static enum tether_test_net net;

static tether_status trace(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)userdata, (void)arg;
    char text[TETHER_TRACE_TEXT_SIZE];
    tether_trace_format(tether_trace_current(), text);
    return tether_value_printf(ret_value, reterr, "%s", text);
}

/* Creations that wait until the test answers them, by the number that is their argument. */
enum { QUEUE = 100 };
static tether_reply *queue[QUEUE];
static _Atomic int n_queued;

static void queue_up(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata;
    queue[atoi(tether_value_str(arg))] = reply;
    atomic_fetch_add(&n_queued, 1);
}

static bool queue_is_full(void *userdata)
{
    (void)userdata;
    return atomic_load(&n_queued) == QUEUE;
}

static void register_all(tether_agent *agent)
{
    cast_register(agent);
    assert_int_equal(tether_agent_register_async(agent, "queue_up", queue_up, true, NULL, NULL),
                     TETHER_OK);
    assert_int_equal(tether_agent_register_inline(agent, "trace", trace, NULL, NULL), TETHER_OK);
}

static int start_three(void **state)
{
    static struct tether_test_world world;
    tether_test_world_register = register_all;
    atomic_store(&cast_n_live, 0); /* a test that failed may have left objects behind */
    tether_test_world_start(&world, net, 3,
                            TETHER_AGENT_OPTS(.lease_ms = net == TETHER_TEST_SIM ? 3000 : 30000));
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    assert_int_equal(cast_n_live, 0); /* each test leaves no object behind */
    return 0;
}

/* ---- Tests ---- */

static void reference_can_be_created_used_and_released(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "5");
    assert_false(tether_rref_is_owner(rref));
    assert_string_equal(tether_rref_owner_name(rref), "w1");
    cast_add_ok(rref, "3", "8");
    tether_value *copy = NULL;
    assert_int_equal(tether_rref_to_here(rref, 10000, &copy, &err), TETHER_OK);
    struct cast_counter *counter = tether_value_object(copy, &cast_counter_type);
    assert_non_null(counter);
    assert_int_equal(counter->n, 8);
    tether_value_release(copy);
    tether_future *confirmed = tether_rref_confirmed(rref);
    assert_int_equal(tether_future_wait(confirmed, 10000, NULL, &err), TETHER_OK);
    tether_future_release(confirmed);
    assert_true(tether_rref_confirmed_by_owner(rref));
    assert_int_equal(cast_n_live, 1);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* A function that creates an object sees the caller's trace id, whether or not its references have
 * to be confirmed first. */
static void creation_carries_the_trace_id(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    char expected[TETHER_TRACE_TEXT_SIZE];
    tether_trace before = tether_trace_set(tether_trace_new());
    tether_trace_format(tether_trace_current(), expected);
    tether_value *arg = cast_text("with a reference");
    tether_rref *counter = cast_remote_counter(w->agents[0], "w2", "5");
    assert_int_equal(tether_value_attach(arg, counter, &err), TETHER_OK);
    tether_rref *rref = tether_remote(w->agents[0], "w1", "trace", arg, 10000);
    tether_trace_set(before);
    tether_value *value = NULL;
    assert_int_equal(tether_rref_to_here(rref, 10000, &value, &err), TETHER_OK);
    assert_string_equal(tether_value_str(value), expected);
    tether_value_release(value);
    tether_value_release(arg);
    tether_rref_release(rref);
    tether_rref_release(counter);
    cast_assert_nothing_left(w);
}

static void worker_can_create_objects_on_itself(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_value *arg = cast_text("1"), *value = NULL;
    tether_rref *rref = tether_remote(w->agents[0], "w0", "make_counter_pooled", arg, 10000);
    assert_true(tether_rref_is_owner(rref));
    cast_add_ok(rref, "1", "2"); /* waits for it to be made */
    assert_int_equal(tether_rref_local_value(rref, &value, &err), TETHER_OK);
    assert_non_null(tether_value_object(value, &cast_counter_type));
    tether_value *same = NULL;
    assert_int_equal(tether_rref_to_here(rref, 1000, &same, &err), TETHER_OK);
    assert_ptr_equal(same, value);
    tether_value_release(same);
    tether_rref_release(rref);
    tether_value_release(arg);
    cast_assert_nothing_left(w);
}

static void owner_passes_reference_to_user(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *mine = cast_own_counter(w->agents[0], 7);
    cast_send_ok(w->agents[0], "w1", "keep", mine);
    assert_true(tether_rref_equal(mine, cast_held[1]));
    assert_false(tether_rref_is_owner(cast_held[1]));
    assert_string_equal(tether_rref_type(cast_held[1]), "counter");
    tether_rref_release(mine);
    assert_int_equal(cast_n_live, 1); /* the user keeps it */
    cast_add_ok(cast_held[1], "1", "8");
    cast_call_ok(w->agents[0], "w1", "drop");
    cast_assert_nothing_left(w);
}

static void user_passes_reference_to_user(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    tether_rref_release(rref);
    cast_add_ok(cast_held[2], "1", "2");
    cast_call_ok(w->agents[0], "w2", "drop");
    cast_assert_nothing_left(w);
}

static void user_passes_reference_back_to_owner(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_send_ok(w->agents[0], "w1", "keep", rref);
    tether_rref_release(rref);
    assert_true(tether_rref_is_owner(cast_held[1]));
    cast_add_ok(cast_held[1], "4", "5");
    cast_call_ok(w->agents[0], "w1", "drop");
    cast_assert_nothing_left(w);
}

static void replies_carry_references(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_send_ok(w->agents[0], "w2", "keep", rref); /* w2 holds an object of w1's */
    tether_rref_release(rref);
    tether_value *result = NULL;
    /* user to user */
    assert_int_equal(tether_rpc_sync(w->agents[0], "w2", "give", NULL, 10000, &result, &err),
                     TETHER_OK);
    assert_int_equal(tether_value_n_rrefs(result), 1);
    cast_add_ok(tether_value_rref(result, 0), "1", "2");
    tether_value_release(result);
    /* user to owner */
    assert_int_equal(tether_rpc_sync(w->agents[1], "w2", "give", NULL, 10000, &result, &err),
                     TETHER_OK);
    assert_true(tether_rref_is_owner(tether_value_rref(result, 0)));
    cast_call_ok(w->agents[0], "w2", "drop");
    cast_add_ok(tether_value_rref(result, 0), "1", "3");
    tether_value_release(result);
    cast_assert_nothing_left(w);
}

static void reference_breaks_when_creation_fails(void **state)
{
    struct tether_test_world *w = *state;
    const struct {
        const char *to, *fn;
        tether_status status;
    } rows[] = {
        {"w1", "fail", TETHER_EINVAL},
        {"w1", "nothing", TETHER_ENOTFOUND},
        {"nobody", "make_counter", TETHER_ENOTFOUND},
        {"w0", "fail", TETHER_EINVAL},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        tether_error err = {0};
        tether_rref *rref = tether_remote(w->agents[0], rows[i].to, rows[i].fn, NULL, 5000);
        assert_int_equal(tether_rref_to_here(rref, 5000, NULL, &err), rows[i].status);
        tether_future *confirmed = tether_rref_confirmed(rref);
        tether_future_wait(confirmed, 5000, NULL, NULL);
        tether_future_release(confirmed);
        assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_BROKEN);
        assert_int_equal(err.code, rows[i].status);
        tether_rref_release(rref);
    }
    cast_assert_nothing_left(w);
}

static bool is_done(void *userdata)
{
    return tether_future_is_done(userdata);
}

static void object_is_destroyed_when_creation_returns_too_late(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = tether_remote(w->agents[0], "w1", "hold", NULL, 50);
    assert_int_equal(tether_rref_to_here(rref, 10000, NULL, &err), TETHER_ETIMEOUT);
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    tether_rref_release(rref); /* the delete is on its way before the object is there */
    assert_true(
        tether_test_world_wait(w, cast_is_held, w)); /* the call may arrive after its time */
    tether_value *late = NULL;
    assert_int_equal(cast_new_counter(0, &late, &err), TETHER_OK);
    tether_reply_ok(atomic_exchange(&w->held, NULL), late);
    tether_value_release(late);
    cast_assert_nothing_left(w);
}

/* A use of an object that is still being made waits no longer than the deadline of the creation. */
static void failed_creation_wakes_waiting_uses(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = tether_remote(w->agents[0], "w1", "hold", NULL, 100);
    tether_rref *next = tether_rref_remote(rref, "add", NULL, 60000);
    tether_future *uses[] = {
        tether_rref_to_here_async(rref, 60000),
        tether_rref_async(rref, "add", NULL, 60000),
        tether_rref_confirmed(next),
        tether_rref_to_here_async(next, 60000),
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(uses); i++) {
        assert_true(tether_test_world_wait(w, is_done, uses[i]));
        assert_int_equal(tether_future_status(uses[i], NULL), TETHER_ETIMEOUT);
        tether_future_release(uses[i]);
    }
    tether_rref_release(next);
    tether_rref_release(rref);
    assert_true(
        tether_test_world_wait(w, cast_is_held, w)); /* the call may arrive after its time */
    tether_reply_ok(atomic_exchange(&w->held, NULL), NULL);
    cast_assert_nothing_left(w);
}

/* Two uses of a reference in the queue: one fetches the object, one calls it. */
struct uses {
    tether_rref *rref;
    tether_future *futures[2];
};

static struct uses queue_and_use(tether_agent *agent, int i)
{
    char number[16];
    snprintf(number, sizeof number, "%d", i);
    tether_value *arg = cast_text(number), *one = cast_text("1");
    tether_rref *rref = tether_remote(agent, "w1", "queue_up", arg, 60000);
    struct uses uses = {
        rref, {tether_rref_to_here_async(rref, 60000), tether_rref_async(rref, "add", one, 60000)}};
    tether_value_release(one);
    tether_value_release(arg);
    return uses;
}

static void uses_end(struct tether_test_world *w, struct uses *uses, tether_status expected)
{
    for (int i = 0; i < 2; i++) {
        assert_true(tether_test_world_wait(w, is_done, uses->futures[i]));
        assert_int_equal(tether_future_status(uses->futures[i], NULL), expected);
        tether_future_release(uses->futures[i]);
    }
    tether_rref_release(uses->rref);
}

/* Among many that are being made some fail, in no order: only what uses those ends with them. */
static void failed_creation_leaves_other_waiting_uses_alone(void **state)
{
    enum { STEP = 37 }; /* has no factor in common with QUEUE: comes by all of them */
    struct tether_test_world *w = *state;
    struct uses uses[QUEUE];
    tether_value *counter = NULL;
    atomic_store(&n_queued, 0);
    for (int i = 0; i < QUEUE; i++)
        uses[i] = queue_and_use(w->agents[0], i);
    assert_true(tether_test_world_wait(w, queue_is_full, NULL));
    for (int k = 0; k < QUEUE; k++) {
        int i = k * STEP % QUEUE;
        if (i % 2)
            continue;
        tether_reply_error(queue[i], TETHER_EINVAL, "no good");
        uses_end(w, &uses[i], TETHER_EINVAL);
    }
    for (int i = 1; i < QUEUE; i += 2) {
        assert_false(tether_future_is_done(uses[i].futures[0]));
        assert_false(tether_future_is_done(uses[i].futures[1]));
        assert_int_equal(cast_new_counter(i, &counter, NULL), TETHER_OK);
        tether_reply_ok(queue[i], counter);
        tether_value_release(counter);
        uses_end(w, &uses[i], TETHER_OK);
    }
    cast_assert_nothing_left(w);
}

static void fetch_fails_when_type_has_no_serialise(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = tether_remote(w->agents[0], "w1", "make_secret", NULL, 10000);
    assert_int_equal(tether_rref_to_here(rref, 10000, NULL, &err), TETHER_ENOTSUP);
    assert_non_null(strstr(err.message, "serialise"));
    assert_int_equal(tether_rref_sync(rref, "add", NULL, 10000, NULL, &err), TETHER_ENOTFOUND);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

static void count_loss(tether_rref *rref, void *userdata)
{
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    atomic_fetch_add((_Atomic int *)userdata, 1);
}

static bool is_broken(void *userdata)
{
    return tether_rref_status(userdata, NULL) == TETHER_RREF_BROKEN;
}

static void reference_breaks_and_reports_when_owner_is_lost(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    _Atomic int n_lost = 0;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_add_ok(rref, "1", "2");
    assert_int_equal(tether_rref_on_owner_lost(rref, count_loss, &n_lost, &err), TETHER_OK);
    assert_int_equal(tether_agent_shutdown(w->agents[1], false, &err), TETHER_OK);
    assert_true(tether_test_world_wait(w, is_broken, rref));
    assert_int_equal(tether_rref_to_here(rref, 5000, NULL, &err), TETHER_EOWNERDIED);
    assert_int_equal(tether_rref_sync(rref, "add", NULL, 5000, NULL, &err), TETHER_EOWNERDIED);
    assert_int_equal(cast_send(w->agents[0], "w2", "keep", rref, &err), TETHER_EOWNERDIED);
    assert_int_equal(n_lost, 1);
    assert_int_equal(tether_rref_on_owner_lost(rref, count_loss, &n_lost, &err), TETHER_OK);
    assert_int_equal(n_lost, 2); /* at once */
    tether_rref_release(rref);
}

static void references_of_dead_worker_are_released(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *mine = cast_own_counter(w->agents[0], 7);
    cast_send_ok(w->agents[0], "w1", "keep", mine);
    assert_int_equal(tether_rref_counts(w->agents[0]).forks, 1);
    assert_int_equal(tether_agent_shutdown(w->agents[1], false, &err), TETHER_OK);
    assert_true(tether_test_world_wait(w, cast_has_no_forks, w->agents[0]));
    tether_rref_release(mine);
    assert_int_equal(cast_n_live, 0);
}

static void weak_reference_does_not_keep_object_alive(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    tether_rref_weak *weak = tether_rref_weak_new(rref);
    tether_rref *again = tether_rref_weak_lock(weak);
    assert_ptr_equal(again, rref);
    tether_rref_release(again);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
    assert_null(tether_rref_weak_lock(weak));
    tether_rref_weak_release(weak);
}

/* An object is destroyed after its last fork has gone, perhaps by another thread. */
static bool has_destroyed_its_objects(void *agent)
{
    return cast_has_no_forks(agent) && cast_n_live == 0;
}

static void shutdown_releases_leaked_references(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_add_ok(rref, "1", "2");
    assert_int_equal(tether_agent_shutdown(w->agents[0], true, &err), TETHER_OK);
    assert_int_equal(tether_rref_to_here(rref, 1000, NULL, &err), TETHER_ESHUTDOWN);
    assert_true(tether_test_world_wait(w, has_destroyed_its_objects, w->agents[1]));
    tether_rref_release(rref);
}

static void many_objects_are_all_destroyed(void **state)
{
    enum { N = 300 };
    struct tether_test_world *w = *state;
    tether_rref *rrefs[N];
    for (int i = 0; i < N; i++)
        rrefs[i] = cast_remote_counter(w->agents[i % 3],
                                       i % 3 == 0   ? "w1"
                                       : i % 3 == 1 ? "w2"
                                                    : "w0",
                                       "1");
    for (int i = 0; i < N; i += 2)
        cast_send_ok(w->agents[i % 3],
                     i % 3 == 0   ? "w2"
                     : i % 3 == 1 ? "w0"
                                  : "w1",
                     "keep", rrefs[i]);
    for (int i = 0; i < N; i++)
        tether_rref_release(rrefs[i]);
    for (int i = 0; i < 3; i++)
        cast_held[i] = tether_rref_release(cast_held[i]);
    cast_assert_nothing_left(w);
}

#define THREE(test) cmocka_unit_test_setup_teardown(test, start_three, stop)

int tether_test_rref_suite(enum tether_test_net over)
{
    const struct CMUnitTest tests[] = {
        THREE(reference_can_be_created_used_and_released),
        THREE(worker_can_create_objects_on_itself),
        THREE(creation_carries_the_trace_id),
        THREE(owner_passes_reference_to_user),
        THREE(user_passes_reference_to_user),
        THREE(user_passes_reference_back_to_owner),
        THREE(replies_carry_references),
        THREE(reference_breaks_when_creation_fails),
        THREE(object_is_destroyed_when_creation_returns_too_late),
        THREE(failed_creation_wakes_waiting_uses),
        THREE(failed_creation_leaves_other_waiting_uses_alone),
        THREE(fetch_fails_when_type_has_no_serialise),
        THREE(reference_breaks_and_reports_when_owner_is_lost),
        THREE(references_of_dead_worker_are_released),
        THREE(weak_reference_does_not_keep_object_alive),
        THREE(shutdown_releases_leaked_references),
        THREE(many_objects_are_all_destroyed),
    };
    char name[64];
    snprintf(name, sizeof name, "references over %s", tether_test_net_names[over]);
    net = over;
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
