/* The orders of events in which the model (tests/model) found errors of the protocol, on the
 * simulated network. w1 owns, w0 creates, and passes its references to w2. */
#include <stdio.h>

#include "rpc/agent/internal.h"
#include "rpc/peer/peer.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

#define LEASE_MS 3000
#define TIMEOUT_MS 20000
#define MS TETHER__NS_PER_MS

static int n_held;

static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    n_held++;
    return TETHER_OK;
}

/* Makes an object on its caller, and returns the reference without waiting for it. */
static tether_status make_on_caller(void *userdata,
                                    const tether_value *arg,
                                    tether_value **ret_value,
                                    tether_error *reterr)
{
    tether_rref *rref = tether_remote(userdata, tether_caller_name(), "echo", arg, 10000);
    tether_status st = tether_value_printf(ret_value, reterr, "here");
    if (st == TETHER_OK)
        st = tether_value_attach(*ret_value, rref, reterr);
    tether_rref_release(rref);
    return st;
}

static void register_all(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_inline(agent, "keep", keep, NULL, NULL), TETHER_OK);
    assert_int_equal(
        tether_agent_register_inline(agent, "make_on_caller", make_on_caller, agent, NULL),
        TETHER_OK);
}

static int start(void **state)
{
    static struct tether_test_world world;
    n_held = 0;
    tether_test_world_register = register_all;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3,
                            TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS));
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    tether_test_world_stop(*state);
    return 0;
}

static tether_status call(struct tether_test_world *w, int from, const char *to)
{
    return tether_rpc_sync(w->agents[from], to, "echo", NULL, 10000, NULL, NULL);
}

static bool all_are_idle(void *userdata)
{
    struct tether_test_world *w = userdata;
    return cast_is_idle(w->agents[0]) && cast_is_idle(w->agents[1]) && cast_is_idle(w->agents[2]);
}

static bool others_are_idle(void *userdata)
{
    struct tether_test_world *w = userdata;
    return cast_is_idle(w->agents[1]) && cast_is_idle(w->agents[2]);
}

static bool a_request_waits(void *userdata)
{
    struct tether_test_world *w = userdata;
    return tether_rref_counts(w->agents[1]).pending_owners == 1;
}

/* w0 makes an object on w1 and passes it to w2 before w1 has heard of it. */
static tether_future *pass_on_unmade(struct tether_test_world *w, tether_rref **ret_rref)
{
    *ret_rref = tether_remote(w->agents[0], "w1", "echo", NULL, 60000);
    tether_future *future = cast_send_async(w->agents[0], "w2", "keep", *ret_rref, 60000);
    assert_true(tether_sim_run(w->sim, a_request_waits, w, TIMEOUT_MS));
    return future;
}

static void object_is_not_kept_when_creator_dies_before_it_is_made(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref;
    assert_int_equal(call(w, 0, "w1"), TETHER_OK);
    tether_sim_part(w->sim, w->agents[0], w->agents[1], true);
    tether_future *future = pass_on_unmade(w, &rref);
    tether_sim_kill(w->sim, w->agents[0]);
    assert_true(tether_sim_run(w->sim, others_are_idle, w, 2 * LEASE_MS));
    assert_int_equal(n_held, 0);
    tether_future_release(future);
    tether_rref_release(rref);
}

/* w1 has never met w0, but w2 tells it whose object it waits for: w1 looks for w0 and gives up. */
static void waiting_use_fails_when_object_is_never_made(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref;
    tether_sim_part(w->sim, w->agents[0], w->agents[1], true);
    tether_future *future = pass_on_unmade(w, &rref);
    assert_true(tether_sim_run(w->sim, others_are_idle, w, LEASE_MS + 1000));
    assert_int_equal(n_held, 0);
    assert_int_equal(tether_future_wait(future, 1000, NULL, NULL), TETHER_EGONE);
    tether_future_release(future);
    tether_rref_release(rref);
}

/* w0 has yet to dial w1 for the call, but answers on the stream that is there: the reference on
 * what this returns is to an object that w1 does not have yet. */
static tether_value *get_before_it_is_made(struct tether_test_world *w)
{
    tether_error err = {0};
    tether_value *arg = NULL, *result = NULL, *object = NULL;
    assert_int_equal(tether_value_printf(&arg, &err, "hello"), TETHER_OK);
    tether_status st =
        tether_rpc_sync(w->agents[1], "w0", "make_on_caller", arg, 10000, &result, &err);
    if (st != TETHER_OK)
        fail_msg("%s", err.message);
    tether_value_release(arg);
    assert_true(tether_rref_is_owner(tether_value_rref(result, 0)));
    assert_int_equal(tether_rref_local_value(tether_value_rref(result, 0), &object, NULL),
                     TETHER_EBUSY);
    return result;
}

static void reference_may_reach_owner_before_its_object(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_value *result = get_before_it_is_made(w), *object = NULL;
    tether_rref *rref = tether_value_rref(result, 0);
    assert_int_equal(tether_rref_to_here(rref, 10000, &object, &err), TETHER_OK);
    assert_string_equal(tether_value_str(object), "hello");
    tether_value_release(object);
    tether_value_release(result);
    assert_true(tether_sim_run(w->sim, all_are_idle, w, 1000));
}

/* As above, but w0 dies before it has dialled w1: the waiting caller gets an error. */
static void reference_breaks_when_its_object_never_reaches_owner(void **state)
{
    struct tether_test_world *w = *state;
    tether_value *result = get_before_it_is_made(w);
    tether_future *future = tether_rref_to_here_async(tether_value_rref(result, 0), TIMEOUT_MS);
    tether_sim_kill(w->sim, w->agents[0]);
    assert_int_equal(tether_future_wait(future, TIMEOUT_MS, NULL, NULL), TETHER_EGONE);
    tether_future_release(future);
    tether_value_release(result);
    assert_true(tether_sim_run(w->sim, others_are_idle, w, 1000));
}

/* w2 waits for a fork, at most TIMEOUT_MS and twice its lease; the request is so long on its way
 * that the owner would still have it when the object comes at last. */
static void holder_gets_no_fork_when_it_has_given_up(void **state)
{
    struct tether_test_world w;
    (void)state;
    tether_test_world_register = register_all;
    tether_test_world_start(&w, TETHER_TEST_SIM, 2,
                            TETHER_AGENT_OPTS(.lease_ms = 60000, .timeout_ms = TIMEOUT_MS));
    tether_test_world_start_one(&w, 2,
                                TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS));
    w.n = 3;
    n_held = 0;
    assert_int_equal(call(&w, 0, "w1"), TETHER_OK);
    assert_int_equal(call(&w, 2, "w1"), TETHER_OK);
    tether_sim_slow(w.sim, w.agents[0], w.agents[1], 28000 * MS);
    tether_sim_slow(w.sim, w.agents[2], w.agents[1], 10000 * MS);
    tether_rref *rref;
    tether_future *future = pass_on_unmade(&w, &rref);
    tether_rref_release(rref);
    tether_sim_slow(w.sim, w.agents[2], w.agents[1], 0);
    assert_int_equal(tether_future_wait(future, 60000, NULL, NULL), TETHER_ETIMEOUT);
    assert_int_equal(tether_rref_counts(w.agents[1]).owners, 0); /* it has not come yet */
    tether_future_release(future);
    assert_true(tether_sim_run(w.sim, all_are_idle, &w, 60000));
    assert_int_equal(n_held, 0);
    tether_test_world_stop(&w);
}

/* w1 has looked for w0 in vain before there was one, and given it up: that says nothing about the
 * sessions with the start that it finds when w2 asks. */
static void request_waits_when_creator_was_once_not_in_directory(void **state)
{
    struct tether_test_world w;
    (void)state;
    const struct tether_agent_opts *opts =
        TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS);
    tether_test_world_register = register_all;
    tether_test_world_start(&w, TETHER_TEST_SIM, 0, opts);
    tether_test_world_start_one(&w, 1, opts);
    tether_test_world_start_one(&w, 2, opts);
    assert_int_equal(call(&w, 1, "w0"), TETHER_ENOTFOUND);
    tether_test_world_start_one(&w, 0, opts);
    w.n = 3;
    n_held = 0;
    tether_sim_slow(w.sim, w.agents[0], w.agents[1], 500 * MS);
    tether_rref *rref;
    tether_future *future = pass_on_unmade(&w, &rref);
    assert_int_equal(tether_future_wait(future, TIMEOUT_MS, NULL, NULL), TETHER_OK);
    assert_int_equal(n_held, 1);
    tether_future_release(future);
    tether_rref_release(rref);
    assert_true(tether_sim_run(w.sim, all_are_idle, &w, 10000));
    tether_test_world_stop(&w);
}

/* How often w1 has given w0 up, which it does each time that the directory does not have it. */
static uint64_t times_given_up(struct tether_test_world *w)
{
    struct tether__peer *w0;
    assert_int_equal(tether__agent_peer(w->agents[1], "w0", &w0, NULL), TETHER_OK);
    uint64_t n = w0->metrics.fences;
    tether__peer_release(w0);
    return n;
}

static bool w0_was_given_up(void *userdata)
{
    return times_given_up(userdata) > 0;
}

/* w0 has given w1 up again and again, and w1 knows nothing of that: the object is to come in a
 * session that is far ahead. Then w0 leaves. w1 does not ask the directory for it time after time.
 */
static void request_is_refused_when_creator_has_left(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref;
    tether_sim_part(w->sim, w->agents[0], w->agents[1], true);
    for (int i = 0; i < 8; i++)
        assert_int_equal(call(w, 0, "w1"), TETHER_EUNAVAILABLE);
    tether_future *future = pass_on_unmade(w, &rref);
    w->agents[0] = tether_agent_release(w->agents[0]);
    assert_true(tether_sim_run(w->sim, others_are_idle, w, LEASE_MS + 1000));
    assert_int_equal(times_given_up(w), 2); /* a look each */
    assert_int_equal(n_held, 0);
    tether_future_release(future);
    tether_rref_release(rref);
}

/* The first look may be out of date: here w0 is back at the second. */
static void request_waits_when_creator_is_back_at_second_look(void **state)
{
    struct tether_test_world *w = *state;
    tether_store *store = w->agents[1]->directory.store;
    tether_buf record = TETHER_BUF_INIT;
    bool deleted;
    tether_rref *rref;
    assert_int_equal(tether_store_try_get(store, "worker/w0", 0, &record, NULL), TETHER_OK);
    assert_int_equal(tether_store_delete(store, "worker/w0", 0, &deleted, NULL), TETHER_OK);
    tether_sim_slow(w->sim, w->agents[0], w->agents[1], 500 * MS);
    tether_future *future = pass_on_unmade(w, &rref);
    assert_true(tether_sim_run(w->sim, w0_was_given_up, w, 100));
    assert_int_equal(tether_store_set(store, "worker/w0", tether_buf_bytes(&record), 0, NULL),
                     TETHER_OK);
    assert_int_equal(tether_future_wait(future, TIMEOUT_MS, NULL, NULL), TETHER_OK);
    assert_int_equal(n_held, 1);
    tether_buf_fini(&record);
    tether_future_release(future);
    tether_rref_release(rref);
    assert_true(tether_sim_run(w->sim, all_are_idle, w, 10000));
}

/* w1 has a session with a former start of w0, which is paused. The present start makes an object on
 * w1, but its call does not get there, passes it to w2 and leaves. w1 must look for the present
 * start in the directory although its session with the former one stands. */
static void request_is_refused_when_later_start_of_its_creator_has_left(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref;
    assert_int_equal(call(w, 1, "w0"), TETHER_OK);
    tether_agent *former = w->agents[0];
    tether_sim_pause(w->sim, former, true);
    tether_test_world_start_one(w, 0,
                                TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS));
    tether_sim_part(w->sim, w->agents[0], w->agents[1], true);
    tether_future *future = pass_on_unmade(w, &rref);
    tether_agent *present = w->agents[0];
    assert_int_equal(tether_agent_shutdown(present, false, NULL), TETHER_OK);
    assert_true(tether_sim_run(w->sim, others_are_idle, w, LEASE_MS / 3));
    assert_int_equal(n_held, 0);
    tether_future_release(future);
    tether_rref_release(rref);
    tether_sim_kill(w->sim, former);
    tether_agent_release(former);
}

/* As before, but the present start of w0 gets through in the end. */
static void request_is_answered_when_later_start_of_its_creator_makes_the_object(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref;
    assert_int_equal(call(w, 1, "w0"), TETHER_OK);
    tether_agent *former = w->agents[0];
    tether_sim_pause(w->sim, former, true);
    tether_test_world_start_one(w, 0,
                                TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS));
    tether_sim_slow(w->sim, w->agents[0], w->agents[1], 500 * MS);
    tether_future *future = pass_on_unmade(w, &rref);
    assert_int_equal(tether_future_wait(future, TIMEOUT_MS, NULL, NULL), TETHER_OK);
    assert_int_equal(n_held, 1);
    tether_future_release(future);
    tether_rref_release(rref);
    assert_true(tether_sim_run(w->sim, all_are_idle, w, 10000));
    tether_sim_kill(w->sim, former);
    tether_agent_release(former);
}

/* w0 makes an object on w1. */
static tether_rref *make_confirmed(struct tether_test_world *w)
{
    return cast_confirmed(tether_remote(w->agents[0], "w1", "echo", NULL, 60000));
}

/* Starts w0 a second time while its first start is paused; the first one goes on then. */
static tether_agent *start_successor(struct tether_test_world *w)
{
    tether_agent *former = w->agents[0];
    tether_sim_pause(w->sim, former, true);
    tether_test_world_start_one(w, 0,
                                TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS));
    return former;
}

/* A start of w0 passes its reference to w2, which has never dialled w0, and releases it: from now
 * on only the pin for w2 keeps the object, until w2 has said that it has the reference. */
static void pass_on_and_release(struct tether_test_world *w, tether_agent *by, tether_rref *rref)
{
    assert_int_equal(cast_send(by, "w2", "keep", rref, NULL), TETHER_OK);
    tether_rref_release(rref);
    assert_int_equal(tether_rref_counts(w->agents[1]).owners, 1);
}

/* The directory has no record of w0 any more, so w2 cannot dial the first start. That start looks
 * into the directory once in a lease, and registers again. */
static void object_is_destroyed_when_successor_of_its_holder_has_left(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = make_confirmed(w);
    tether_agent *former = start_successor(w);
    assert_int_equal(tether_agent_shutdown(w->agents[0], true, NULL), TETHER_OK);
    tether_sim_pause(w->sim, former, false);
    pass_on_and_release(w, former, rref);
    assert_true(tether_sim_run(w->sim, others_are_idle, w, LEASE_MS + 1000));
    assert_true(cast_is_idle(former));
    assert_int_equal(call(w, 2, "w0"), TETHER_OK);
    tether_sim_kill(w->sim, former);
    tether_agent_release(former);
}

/* The directory has the later start: the first one finds out that it was replaced, and leaves. */
static void object_is_destroyed_when_its_holder_finds_its_successor(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = make_confirmed(w);
    tether_agent *former = start_successor(w);
    tether_sim_pause(w->sim, former, false);
    assert_int_equal(tether_rref_counts(w->agents[1]).owners, 1);
    assert_true(tether_sim_run(w->sim, others_are_idle, w, LEASE_MS + 1000));
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    tether_rref_release(rref);
    tether_sim_kill(w->sim, former);
    tether_agent_release(former);
}

static void empty_store(struct tether_test_world *w)
{
    static const char *const keys[] = {"run",       "starts",    "names",
                                       "worker/w0", "worker/w1", "worker/w2"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(keys); i++) {
        char key[32];
        snprintf(key, sizeof key, "tether/%s", keys[i]);
        tether_store_delete(w->store, key, 0, NULL, NULL);
    }
}

static bool directory_has_present_w0(void *userdata)
{
    struct tether_test_world *w = userdata;
    tether_worker found;
    return tether_agent_worker(w->agents[2], "w0", &found, NULL) == TETHER_OK &&
           found.incarnation == w->agents[0]->self.incarnation;
}

/* The store comes back empty, and the first start of w0 is the only worker that runs then. */
static void lose_keys_when_only(struct tether_test_world *w, tether_agent *former)
{
    for (int i = 0; i < 3; i++)
        tether_sim_pause(w->sim, w->agents[i], true);
    empty_store(w);
    tether_sim_pause(w->sim, former, false);
    tether_sim_run(w->sim, NULL, NULL, LEASE_MS + 1000);
    for (int i = 0; i < 3; i++)
        tether_sim_pause(w->sim, w->agents[i], false);
}

static void replaced_start_does_not_register_when_store_comes_back_empty(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *former = start_successor(w);
    tether_sim_pause(w->sim, former, false);
    tether_sim_run(w->sim, NULL, NULL, LEASE_MS + 1000);
    assert_true(former->replaced);
    lose_keys_when_only(w, former);
    tether_worker found;
    assert_int_not_equal(tether_agent_worker(former, "w0", &found, NULL), TETHER_OK);
    assert_true(tether_sim_run(w->sim, directory_has_present_w0, w, LEASE_MS + 1000));
    tether_sim_kill(w->sim, former);
    tether_agent_release(former);
}

static void present_start_registers_again_when_stale_start_has_put_its_record_back(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *former = start_successor(w);
    lose_keys_when_only(w, former);
    tether_worker found;
    assert_int_equal(tether_agent_worker(former, "w0", &found, NULL), TETHER_OK);
    assert_int_equal(found.incarnation, former->self.incarnation);
    assert_true(tether_sim_run(w->sim, directory_has_present_w0, w, LEASE_MS + 1000));
    tether_sim_run(w->sim, NULL, NULL, LEASE_MS + 1000);
    assert_true(former->replaced);
    tether_sim_kill(w->sim, former);
    tether_agent_release(former);
}

/* w2 has never dialled w0, and has to, before w0 can leave: it has a reference of w0's to accept.
 */
static void leaving_worker_registers_again_when_store_comes_back_empty(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = make_confirmed(w);
    assert_int_equal(call(w, 0, "w2"), TETHER_OK);
    assert_int_equal(call(w, 2, "w1"), TETHER_OK);
    empty_store(w);
    pass_on_and_release(w, w->agents[0], rref);
    assert_int_equal(tether_agent_shutdown(w->agents[0], true, NULL), TETHER_OK);
    assert_true(tether_sim_run(w->sim, others_are_idle, w, 1000));
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        THREE(object_is_not_kept_when_creator_dies_before_it_is_made),
        THREE(waiting_use_fails_when_object_is_never_made),
        THREE(reference_may_reach_owner_before_its_object),
        THREE(reference_breaks_when_its_object_never_reaches_owner),
        cmocka_unit_test(holder_gets_no_fork_when_it_has_given_up),
        cmocka_unit_test(request_waits_when_creator_was_once_not_in_directory),
        THREE(request_is_refused_when_creator_has_left),
        THREE(request_waits_when_creator_is_back_at_second_look),
        THREE(request_is_refused_when_later_start_of_its_creator_has_left),
        THREE(request_is_answered_when_later_start_of_its_creator_makes_the_object),
        THREE(object_is_destroyed_when_successor_of_its_holder_has_left),
        THREE(object_is_destroyed_when_its_holder_finds_its_successor),
        THREE(replaced_start_does_not_register_when_store_comes_back_empty),
        THREE(present_start_registers_again_when_stale_start_has_put_its_record_back),
        THREE(leaving_worker_registers_again_when_store_comes_back_empty),
    };
    return cmocka_run_group_tests_name("races that the model found", tests, NULL, NULL);
}
