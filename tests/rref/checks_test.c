/* References are checked where they are used: when a call that waited goes on, before a pooled
 * function runs, when a call stays on its own worker, and when a value leaves by another agent.
 *
 * w1 owns and serves, w0 calls, w2 is the third.
 */
#include <string.h>

#include "rpc/peer/fence.h"
#include "rpc/refs.h"
#include "rref/context.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

enum { LEASE_MS = 3000, TIMEOUT_MS = 20000 };

static int start(void **state)
{
    static struct tether_test_world world;
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3, TETHER_AGENT_OPTS(.lease_ms = LEASE_MS));
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

static struct tether__peer *peer_of(tether_agent *agent, const char *name)
{
    struct tether__peer *peer = NULL;
    assert_int_equal(tether__agent_peer(agent, name, &peer, NULL), TETHER_OK);
    tether__peer_release(peer); /* peers live as long as the agent */
    return peer;
}

/* TAKES the future. */
static void ends_with(tether_future *future, tether_status expected, const char *words)
{
    tether_error err = {0};
    tether_status st = tether_future_wait(future, TIMEOUT_MS, NULL, &err);
    if (st != expected || !strstr(err.message, words))
        fail_msg("not %s '%s' but %s: %s", tether_status_name(expected), words,
                 tether_status_name(st), err.message);
    tether_future_release(future);
}

/* Adds 5 to the counter, with a reference attached to the argument. */
static tether_future *add_with(tether_rref *counter, tether_rref *attached)
{
    tether_value *arg = cast_text("5");
    assert_int_equal(tether_value_attach(arg, attached, NULL), TETHER_OK);
    tether_future *future = tether_rref_async(counter, "add", arg, TIMEOUT_MS);
    tether_value_release(arg);
    return future;
}

static bool w1_has_a_confirmed_reference(void *world)
{
    struct tether_test_world *w = world;
    return tether_rref_counts(w->agents[1]).confirmed_users == 1;
}

/* The reference is confirmed, the method waits for its object, and the reference's owner dies
 * meanwhile. The object is made: the method must not run with the broken reference. */
static void method_is_refused_when_reference_breaks_while_it_waits_for_object(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *attached = cast_confirmed(cast_remote_counter(w->agents[0], "w2", "1"));
    tether_rref *object = cast_begin_object(w, TIMEOUT_MS);
    tether_future *call = add_with(object, attached);
    assert_true(tether_test_world_wait(w, w1_has_a_confirmed_reference, w));
    tether__session_fence(peer_of(w->agents[1], "w2")->session, "the test says so");
    cast_finish_object(w);
    ends_with(call, TETHER_EOWNERDIED, "the owner of the object is lost");
    cast_add_ok(object, "0", "0"); /* it was not added */
    tether_rref_release(object);
    tether_rref_release(attached);
    cast_assert_nothing_left(w);
}

/* Fences w2 at w1 as soon as w1 has confirmed a reference, which is before the pool runs the
 * function that the reference came for. */
static void fence_when_confirmed(void *world, tether_agent *agent)
{
    struct tether_test_world *w = world;
    if (agent == w->agents[1] && w1_has_a_confirmed_reference(w))
        tether__session_fence(peer_of(agent, "w2")->session, "the test says so");
}

static void pooled_function_is_refused_when_reference_breaks_before_it_runs(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *attached = cast_confirmed(cast_remote_counter(w->agents[0], "w2", "1"));
    tether_sim_on_step(w->sim, fence_when_confirmed, w);
    tether_future *call = cast_send_async(w->agents[0], "w1", "echo_pooled", attached, TIMEOUT_MS);
    ends_with(call, TETHER_EOWNERDIED, "the owner of the object is lost");
    tether_sim_on_step(w->sim, NULL, NULL);
    tether_rref_release(attached);
    cast_assert_nothing_left(w);
}

/* w2 creates an object by a method of an object that is not made yet, passes the reference to
 * w0, and is lost. Each use by w0 ends with TETHER_ECANCELED, not with the status that w1 has
 * for w2. */
static void spawned_object_breaks_with_ecanceled_when_its_caller_is_lost(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *parent = cast_begin_object(w, TIMEOUT_MS);
    cast_send_ok(w->agents[0], "w2", "keep", parent);
    tether_rref *spawned = tether_rref_remote(cast_held[2], "add", NULL, TIMEOUT_MS);
    cast_send_ok(w->agents[2], "w0", "keep", spawned);
    tether_future *use = tether_rref_async(cast_held[0], "add", NULL, TIMEOUT_MS);
    tether_sim_run(w->sim, NULL, NULL, 100);
    tether__session_fence(peer_of(w->agents[1], "w2")->session, "the test says so");
    ends_with(use, TETHER_ECANCELED, "its caller was lost");
    tether_rref_release(spawned);
    cast_finish_object(w);
    cast_drop_all();
    tether_rref_release(parent);
    cast_assert_nothing_left(w);
}

/* References to the object break with the same words. */
static void method_says_to_make_object_anew_when_its_owner_is_lost(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *counter = cast_confirmed(cast_remote_counter(w->agents[0], "w2", "1"));
    tether_future *call = tether_rref_async(counter, "add", NULL, TIMEOUT_MS);
    tether__session_fence(peer_of(w->agents[0], "w2")->session, "the test says so");
    ends_with(call, TETHER_EOWNERDIED,
              "the owner of the object is lost (make it anew elsewhere): ");
    tether_rref_release(counter);
    cast_assert_nothing_left(w);
}

static void local_call_fails_when_attached_reference_is_broken(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *lost = cast_confirmed(cast_remote_counter(w->agents[0], "w2", "1"));
    tether_rref *own = cast_own_counter(w->agents[0], 1);
    tether__session_fence(peer_of(w->agents[0], "w2")->session, "the test says so");
    ends_with(cast_send_async(w->agents[0], "w1", "note", lost, TIMEOUT_MS), TETHER_EOWNERDIED,
              "passing on a reference: the owner of the object is lost");
    ends_with(cast_send_async(w->agents[0], "w0", "note", lost, TIMEOUT_MS), TETHER_EOWNERDIED,
              "passing on a reference: the owner of the object is lost");
    ends_with(cast_send_async(w->agents[0], "w0", "echo_pooled", lost, TIMEOUT_MS),
              TETHER_EOWNERDIED, "passing on a reference: the owner of the object is lost");
    ends_with(add_with(own, lost), TETHER_EOWNERDIED, "passing on a reference");
    assert_int_equal(w->n_noted, 0);
    cast_add_ok(own, "0", "1");
    assert_true(tether_rref_confirmed_by_owner(own));
    ends_with(tether_rref_confirmed(own), TETHER_OK, ""); /* the owner need not be asked */
    tether_rref_release(own);
    tether_rref_release(lost);
    cast_assert_nothing_left(w);
}

/* A pooled function of the caller itself waits for a thread while the reference breaks. */
static void local_pooled_function_is_refused_when_reference_breaks_before_it_runs(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *lost = cast_confirmed(cast_remote_counter(w->agents[0], "w2", "1"));
    tether_future *call = cast_send_async(w->agents[0], "w0", "echo_pooled", lost, TIMEOUT_MS);
    tether__session_fence(peer_of(w->agents[0], "w2")->session, "the test says so");
    ends_with(call, TETHER_EOWNERDIED, "the owner of the object is lost");
    tether_rref_release(lost);
    cast_assert_nothing_left(w);
}

/* w1 makes an object on itself, passes the reference to w0, and its own call times out. The
 * function ends later: w0 holds a confirmed reference, so the object must be made and stay. */
static void object_is_kept_when_local_creation_times_out_and_another_worker_holds_it(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *object = tether_remote(w->agents[1], "w1", "hold", NULL, 100);
    cast_send_ok(w->agents[1], "w0", "keep", object);
    tether_sim_run(w->sim, NULL, NULL, 200);
    cast_finish_object(w);
    cast_add_ok(cast_held[0], "5", "5");
    cast_add_ok(object, "2", "7");
    tether_rref_release(object);
    cast_add_ok(cast_held[0], "1", "8");
    assert_int_equal(cast_n_live, 1);
    cast_drop_all();
    cast_assert_nothing_left(w);
    assert_int_equal(cast_n_live, 0);
}

static void local_creation_breaks_with_etimeout_when_it_was_not_passed_on(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *object = tether_remote(w->agents[1], "w1", "hold", NULL, 100);
    assert_int_equal(tether_rref_to_here(object, TIMEOUT_MS, NULL, &err), TETHER_ETIMEOUT);
    assert_int_equal(tether_rref_status(object, NULL), TETHER_RREF_BROKEN);
    cast_finish_object(w); /* too late: no reference leads to it any more */
    assert_int_equal(cast_n_live, 0);
    assert_int_equal(tether_rref_to_here(object, TIMEOUT_MS, NULL, &err), TETHER_ETIMEOUT);
    assert_int_equal(cast_send(w->agents[1], "w0", "keep", object, &err), TETHER_ETIMEOUT);
    tether_rref_release(object);
    cast_assert_nothing_left(w);
}

/* ---- What a reference says of its object ---- */

static void reference_names_owner_and_type_when_made_by_remote(void **state)
{
    struct tether_test_world *w = *state;
    uint32_t id = tether_agent_id(w->agents[1]);
    assert_int_not_equal(id, 0);
    tether_rref *first = cast_remote_counter(w->agents[0], "w1", "1");
    assert_int_equal(tether_rref_owner(first), UINT32_MAX); /* w0 has not met w1 yet */
    cast_confirmed(first);
    assert_int_equal(tether_rref_owner(first), id);
    assert_string_equal(tether_rref_type(first), "counter");
    tether_rref *second = cast_remote_counter(w->agents[0], "w1", "2");
    assert_int_equal(tether_rref_owner(second), id); /* at once */
    cast_send_ok(w->agents[0], "w2", "keep", second);
    assert_int_equal(tether_rref_owner(cast_held[2]), id);
    tether_rref *bytes =
        cast_confirmed(tether_remote(w->agents[0], "w1", "echo", NULL, TIMEOUT_MS));
    assert_string_equal(tether_rref_type(bytes), "");
    tether_rref_release(bytes);
    tether_rref_release(second);
    tether_rref_release(first);
    cast_drop_all();
    cast_assert_nothing_left(w);
}

/* w0 passes a reference on that it has just asked for, so it cannot say who owns it. */
static void reference_names_owner_when_sender_had_not_met_it(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    assert_int_equal(tether_rref_owner(cast_held[2]), tether_agent_id(w->agents[1]));
    tether_rref_release(rref);
    cast_drop_all();
    cast_assert_nothing_left(w);
}

static void never_resume(struct tether__resume *resume, tether_status st, const tether_error *error)
{
    (void)resume, (void)st, (void)error;
    fail_msg("it should have been decided at once");
}

/* The owner knows the type of its object: a message that names another is wrong. */
static void reference_is_refused_when_its_type_is_not_that_of_the_object(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *own = cast_own_counter(w->agents[1], 1);
    cast_send_ok(w->agents[1], "w0", "keep", own);
    struct tether__peer *w0 = peer_of(w->agents[1], "w0");
    static struct tether__resume resume = {never_resume};
    const char *const types[] = {"counter", "", "secret"};
    for (size_t i = 0; i < 3; i++) {
        Tether__RefId id = tether__wire_id(tether_rref_get_id(own));
        Tether__Ref ref = TETHER__REF__INIT, *refs[] = {&ref};
        tether_error err = {0};
        tether_value *value = cast_text("take it");
        ref.id = &id;
        ref.owner_name = "w1";
        ref.owner_incarnation = w->agents[1]->self.incarnation;
        ref.type = (char *)types[i];
        struct tether__ref_message message = {.peer = w0,
                                              .session_number = atomic_load(&w0->session_number),
                                              .refs = refs,
                                              .n_refs = 1,
                                              .value = value};
        assert_int_equal(tether__ext_ops->arrived(w->agents[1]->ext, &message, NULL), TETHER__DONE);
        assert_int_equal(tether__ext_ops->confirm(message.arrival, &resume, &err),
                         i == 2 ? TETHER__REFUSED : TETHER__DONE);
        assert_int_equal(err.code, i == 2 ? TETHER_ETYPE : TETHER_OK);
        tether_value_release(value);
    }
    tether_rref_release(own);
    cast_drop_all();
    cast_assert_nothing_left(w);
}

static bool has_a_pending_future(void *agent)
{
    return tether_rref_counts(agent).pending_futures == 1;
}

/* As num_pending_futures of the seed: a fork-request, then the accept, then the delete. */
static void counts_include_protocol_messages_in_flight(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    assert_int_equal(tether_rref_counts(w->agents[2]).pending_futures, 0);
    tether_future *call = cast_send_async(w->agents[0], "w2", "keep", rref, TIMEOUT_MS);
    assert_true(tether_test_world_wait(w, has_a_pending_future, w->agents[2]));
    assert_int_equal(tether_rref_counts(w->agents[2]).pending_users, 1);
    ends_with(call, TETHER_OK, "");
    tether_sim_run(w->sim, NULL, NULL, 100);
    assert_int_equal(tether_rref_counts(w->agents[2]).pending_futures, 0);
    cast_drop_all();
    assert_int_equal(tether_rref_counts(w->agents[2]).pending_futures, 1); /* the delete */
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
    assert_int_equal(tether_rref_counts(w->agents[2]).pending_futures, 0);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_futures, 0);
}

static tether_rref *returned; /* by "give_foreign" */

static tether_status give_foreign(void *userdata,
                                  const tether_value *arg,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    (void)userdata, (void)arg;
    tether_status st = tether_value_printf(ret_value, reterr, "here");
    return st == TETHER_OK ? tether_value_attach(*ret_value, returned, reterr) : st;
}

static void register_foreign(tether_agent *agent)
{
    cast_register(agent);
    assert_int_equal(tether_agent_register_inline(agent, "give_foreign", give_foreign, NULL, NULL),
                     TETHER_OK);
}

static int start_foreign(void **state)
{
    static struct tether_test_world world;
    tether_test_world_register = register_foreign;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3, TETHER_AGENT_OPTS(.lease_ms = LEASE_MS));
    *state = &world;
    return 0;
}

/* All agents of the test are in one process. A reference of w0's must not leave by w1: its owner
 * would count a fork of w1's that w1 knows nothing of. */
static void call_is_refused_when_reference_belongs_to_another_agent(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *theirs = cast_confirmed(cast_remote_counter(w->agents[0], "w2", "1"));
    tether_rref *own = cast_own_counter(w->agents[0], 1);
    const char *words = "it belongs to another agent of this process";
    ends_with(cast_send_async(w->agents[1], "w2", "keep", theirs, TIMEOUT_MS), TETHER_EINVAL,
              words);
    ends_with(cast_send_async(w->agents[1], "w2", "keep", own, TIMEOUT_MS), TETHER_EINVAL, words);
    ends_with(cast_send_async(w->agents[1], "w1", "keep", own, TIMEOUT_MS), TETHER_EINVAL, words);
    returned = theirs;
    ends_with(tether_rpc_async(w->agents[2], "w1", "give_foreign", NULL, TIMEOUT_MS), TETHER_EINVAL,
              words);
    tether_rref_release(own);
    tether_rref_release(theirs);
    cast_assert_nothing_left(w);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        T(method_is_refused_when_reference_breaks_while_it_waits_for_object),
        T(pooled_function_is_refused_when_reference_breaks_before_it_runs),
        T(spawned_object_breaks_with_ecanceled_when_its_caller_is_lost),
        T(method_says_to_make_object_anew_when_its_owner_is_lost),
        T(local_call_fails_when_attached_reference_is_broken),
        T(local_pooled_function_is_refused_when_reference_breaks_before_it_runs),
        T(object_is_kept_when_local_creation_times_out_and_another_worker_holds_it),
        T(reference_names_owner_and_type_when_made_by_remote),
        T(reference_names_owner_when_sender_had_not_met_it),
        T(reference_is_refused_when_its_type_is_not_that_of_the_object),
        T(counts_include_protocol_messages_in_flight),
        T(local_creation_breaks_with_etimeout_when_it_was_not_passed_on),
        cmocka_unit_test_setup_teardown(call_is_refused_when_reference_belongs_to_another_agent,
                                        start_foreign, stop),
    };
    return cmocka_run_group_tests_name("references are checked", tests, NULL, NULL);
}
