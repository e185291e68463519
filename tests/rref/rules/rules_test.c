/* Rules that hold between two steps of one message. The simulation cannot check these, because its
 * events are atomic. The test takes the place of the other thread between two steps.
 *
 * w1 owns, w0 creates, w2 is the third.
 */
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/fence.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/rules/fixture.h"

/* w1 reads a fork-request of w2's, and the session ends before the request is applied. The forks of
 * the session have been released, so the request must not add one. */
static void fork_request_adds_no_fork_when_its_session_has_ended(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    cast_call_ok(w->agents[2], "w1", "give");
    struct tether__peer *w2 = rules_peer(w->agents[1], "w2");
    uint64_t session_number = atomic_load(&w2->session_number);
    Tether__ForkRequest request = TETHER__FORK_REQUEST__INIT;
    Tether__RefId object = tether__wire_id(rref->id), fork = object;
    fork.counter += 1000;
    request.object = &object;
    request.fork = &fork;
    tether__session_fence(w2->session, "the test says so");
    rules_deliver(w->agents[1], w2, session_number, TETHER__FRAME_FORK_REQUEST, &request.base);
    assert_int_equal(rules_n_forks(w->agents[1]), 1); /* w0's */
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* An item of the work list: the session ends, and what follows from that waits for the item's end.
 */
struct ending {
    struct tether__work work;
    tether_agent *agent;
    tether_rref *rref;
};

static void end_session_and_send(struct tether__work *work)
{
    struct ending *ending = tether__container_of(work, struct ending, work);
    struct tether__peer *w1 = rules_peer(ending->agent, "w1");
    tether__peer_lock(w1);
    tether__peer_give_up_locked(w1, TETHER_EUNAVAILABLE, "the test says so");
    tether__peer_unlock(w1);
    assert_int_equal(tether_rref_status(ending->rref, NULL), TETHER_RREF_CONFIRMED);
    assert_int_equal(cast_send(ending->agent, "w1", "keep", ending->rref, NULL), TETHER_EOWNERDIED);
}

/* The session with the owner is over, but the reference has not been broken yet when it is sent
 * back: the owner would not know it. */
static void reference_breaks_when_it_is_sent_after_its_session_ended(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    struct ending ending = {{.run = end_session_and_send}, w->agents[0], rref};
    tether__work_run(&ending.work);
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

struct two_ends {
    struct tether__work work;
    tether_agent *agent;
    tether_future *calls[2];
};

static void end_two_sessions(struct tether__work *work)
{
    struct two_ends *ends = tether__container_of(work, struct two_ends, work);
    struct tether__peer *w1 = rules_peer(ends->agent, "w1");
    for (int i = 0; i < 2; i++) {
        ends->calls[i] = tether_rpc_async(ends->agent, "w1", "keep", NULL, LONG_LEASE_MS);
        tether__peer_lock(w1);
        tether__peer_give_up_locked(w1, TETHER_EUNAVAILABLE, i ? "second" : "first");
        tether__peer_unlock(w1);
    }
    assert_false(tether_future_is_done(ends->calls[0]) || tether_future_is_done(ends->calls[1]));
}

/* The work of the first unlock has not run yet when the second session ends. */
static void calls_of_both_sessions_fail_when_two_end_one_after_the_other(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    struct two_ends ends = {{.run = end_two_sessions}, w->agents[0], {NULL}};
    tether__work_run(&ends.work);
    for (int i = 0; i < 2; i++) {
        assert_true(tether_future_is_done(ends.calls[i]));
        assert_int_equal(tether_future_status(ends.calls[i], NULL), TETHER_EUNAVAILABLE);
        tether_future_release(ends.calls[i]);
    }
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* A look-up is under way when a refused connection shows that the worker is dead. A call that is
 * made before the store answers begins no attempt of its own. */
static void call_fails_when_the_worker_died_during_a_look_up(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    struct tether__peer *w1 = rules_peer(w->agents[0], "w1");
    tether_error error;
    tether_error_set(&error, TETHER_EUNAVAILABLE, "the store does not answer");
    tether__peer_lock(w1);
    tether__dialer_asked(&w1->dialer);
    tether__outage_begin(&w1->outage, TETHER__DEAD, tether__peer_known_start_locked(w1),
                         "the test says so", tether__clock_now_ns(w1->agent->clock));
    tether__peer_give_up_locked(w1, TETHER_EUNAVAILABLE, "the test says so");
    tether__peer_unlock(w1);
    tether_future *call = tether_rpc_async(w->agents[0], "w1", "keep", NULL, LONG_LEASE_MS);
    assert_false(tether_future_is_done(call));
    tether__peer_found(w1, NULL, TETHER_EUNAVAILABLE, &error);
    assert_true(tether_future_is_done(call));
    assert_int_equal(tether_future_status(call, NULL), TETHER_EUNAVAILABLE);
    tether_future_release(call);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

static void resume_never(struct tether__resume *resume,
                         tether_status status,
                         const tether_error *error)
{
    (void)resume, (void)status, (void)error;
    fail_msg("it was asked after all");
}

/* w2 is given a reference, and its session with the owner ends before w2 requests a fork. The
 * reference is broken, so w2 must not request a fork that it would never return. */
static void fork_request_is_not_sent_when_reference_is_broken(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    cast_call_ok(w->agents[2], "w1", "give");
    cast_call_ok(w->agents[2], "w0", "give");
    tether_agent *third = w->agents[2];
    struct tether__peer *w0 = rules_peer(third, "w0"), *w1 = rules_peer(third, "w1");
    Tether__RefId object = tether__wire_id(rref->id), fork = object;
    fork.counter += 1000;
    Tether__Ref ref = TETHER__REF__INIT, *refs[] = {&ref};
    ref.id = &object;
    ref.fork = &fork;
    ref.owner_name = "w1";
    ref.owner_incarnation = w->agents[1]->self.incarnation;

    tether_value *value = cast_text("take it");
    struct tether__ref_message message = {.peer = w0,
                                          .session_number = atomic_load(&w0->session_number),
                                          .refs = refs,
                                          .n_refs = 1,
                                          .value = value};
    static struct tether__resume resume = {resume_never};
    assert_int_equal(tether__ext_ops->arrived(third->ext, &message, NULL), TETHER__DONE);
    tether__session_fence(w1->session, "the test says so");
    tether_error err = {0};
    assert_int_equal(tether__ext_ops->confirm(message.arrival, &resume, &err), TETHER__REFUSED);
    assert_int_equal(err.code, TETHER_EOWNERDIED);
    tether_value_release(value);
    rules_pass_time(w, 100);
    assert_int_equal(rules_n_forks(w->agents[1]), 1); /* w0's */
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* Two references come with one call. One is confirmed and then lost with its owner, w1, before the
 * other, which w3 has yet to make, is confirmed: the function does not run. */
static void broken_reference_fails_call_that_waits_for_confirmations(void **state)
{
    struct tether_test_world w;
    tether_value *arg = cast_text("two");
    (void)state;
    tether_test_world_register = cast_register;
    tether_test_world_start(&w, TETHER_TEST_SIM, 0, NULL);
    for (w.n = 0; w.n < 4; w.n++)
        tether_test_world_start_one(
            &w, w.n,
            TETHER_AGENT_OPTS(.lease_ms = w.n == 1 || w.n == 2 ? LEASE_MS : LONG_LEASE_MS));
    tether_rref *lost = cast_confirmed(cast_remote_counter(w.agents[0], "w1", "1"));
    cast_call_ok(w.agents[0], "w3", "give");
    tether_sim_slow(w.sim, w.agents[0], w.agents[3], 3 * LEASE_MS * TETHER__NS_PER_MS);
    tether_rref *late = cast_remote_counter(w.agents[0], "w3", "1");
    assert_int_equal(tether_value_attach(arg, lost, NULL), TETHER_OK);
    assert_int_equal(tether_value_attach(arg, late, NULL), TETHER_OK);
    tether_future *call = tether_rpc_async(w.agents[0], "w2", "note", arg, LONG_LEASE_MS);
    rules_pass_time(&w, 1000);
    assert_int_equal(tether_rref_counts(w.agents[2]).confirmed_users, 1);
    assert_int_equal(tether_rref_counts(w.agents[2]).pending_users, 1);
    tether_sim_kill(w.sim, w.agents[1]);
    assert_int_equal(tether_future_wait(call, LONG_LEASE_MS, NULL, NULL), TETHER_EOWNERDIED);
    assert_int_equal(w.n_noted, 0);
    tether_future_release(call);
    tether_value_release(arg);
    tether_rref_release(late);
    tether_rref_release(lost);
    tether_test_world_stop(&w);
}

/* The announcement is queued, but its call fails: the owner has entered an object that will never
 * be made. */
static void announced_object_is_removed_when_its_call_is_not_queued(void **state)
{
    struct tether_test_world *w = *state;
    cast_call_ok(w->agents[0], "w1", "give");
    w->agents[0]->lane_limits.inline_bytes = w->agents[0]->lane_limits.fragment_bytes = 5;
    rules_no_calls = true;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1000000"); /* in pieces */
    rules_no_calls = false;
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    cast_call_ok(w->agents[0], "w1", "give"); /* this call's frame also sends the announcement */
    assert_int_equal(tether_rref_counts(w->agents[1]).owners, 1);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* A creation is announced and its call still in flight. w2 asks for a copy of the object. Then
 * the creator, the last holder, releases its reference. The object is still made, and w2 gets
 * its copy. */
static void fetch_gets_object_when_creator_releases_it_before_creation(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *owner = w->agents[1];
    cast_call_ok(w->agents[0], "w1", "give");
    cast_call_ok(w->agents[2], "w1", "give");
    struct tether__peer *w0 = rules_peer(owner, "w0"), *w2 = rules_peer(owner, "w2");
    uint64_t creator = atomic_load(&w0->session_number), asker = atomic_load(&w2->session_number);
    tether_rref_id id = {w->agents[0]->self.id, (uint32_t)w->agents[0]->self.incarnation, 1000};
    tether_rref_id fork_id = {id.creator, id.incarnation, 1001};
    Tether__RefId object = tether__wire_id(id), fork = tether__wire_id(fork_id);

    Tether__Announce announce = TETHER__ANNOUNCE__INIT;
    announce.result = &object;
    announce.result_fork = &fork;
    rules_deliver(owner, w0, creator, TETHER__FRAME_ANNOUNCE, &announce.base);
    Tether__Fetch fetch = TETHER__FETCH__INIT;
    fetch.id = 1;
    fetch.object = &object;
    rules_deliver(owner, w2, asker, TETHER__FRAME_FETCH, &fetch.base);
    struct rules_id objects, forks;
    Tether__UserDelete delete = TETHER__USER_DELETE__INIT;
    delete.object = rules_ids(&objects, id);
    delete.fork = rules_ids(&forks, fork_id);
    rules_deliver(owner, w0, creator, TETHER__FRAME_USER_DELETE, &delete.base);
    assert_int_equal(rules_n_forks(owner), 0);
    assert_int_equal(tether_rref_counts(owner).pending_owners, 1);

    uint64_t result[3], result_fork[3];
    Tether__Call call = rules_creation(id, fork_id, result, result_fork);
    struct tether__ref_message message = {.peer = w0, .session_number = creator, .call = &call};
    tether_value *counter = NULL;
    call.announced = true;
    assert_int_equal(tether__ext_ops->arrived(owner->ext, &message, NULL), TETHER__DONE);
    assert_non_null(message.result); /* w2's request still needs the object */
    assert_int_equal(cast_new_counter(1, &counter, NULL), TETHER_OK);
    tether__ext_ops->remote_done(message.result, TETHER_OK, "", counter);
    tether_value_release(counter);
    cast_assert_nothing_left(w);
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, rules_start, rules_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        THREE(fork_request_adds_no_fork_when_its_session_has_ended),
        THREE(reference_breaks_when_it_is_sent_after_its_session_ended),
        THREE(calls_of_both_sessions_fail_when_two_end_one_after_the_other),
        THREE(call_fails_when_the_worker_died_during_a_look_up),
        THREE(fork_request_is_not_sent_when_reference_is_broken),
        cmocka_unit_test(broken_reference_fails_call_that_waits_for_confirmations),
        THREE(announced_object_is_removed_when_its_call_is_not_queued),
        THREE(fetch_gets_object_when_creator_releases_it_before_creation),
    };
    return cmocka_run_group_tests_name("rules of the protocol", tests, NULL, NULL);
}
