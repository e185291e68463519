/* Rules that hold between two steps of one message, or against a peer that breaks them. The
 * simulation cannot check these, because its events are atomic and its workers honest. The test
 * takes the place of the other thread between two steps, and forges the messages of a dishonest
 * peer.
 *
 * w1 owns, w0 creates, w2 is the third.
 */
#include <string.h>

#include "rpc/peer/connect/reach.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/limits.h"
#include "rpc/refs.h"
#include "rpc/wire/packed.h"
#include "rref/context.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

enum { LEASE_MS = 3000, LONG_LEASE_MS = 60000, TIMEOUT_MS = 20000 };

static bool no_calls; /* are handed to the lane */

static tether_status before_send(void *userdata, const char *peer, uint32_t kind)
{
    (void)userdata, (void)peer;
    return no_calls && kind == TETHER__FRAME_CALL ? TETHER_EUNAVAILABLE : TETHER_OK;
}

static int start(void **state)
{
    static struct tether_test_world world;
    no_calls = false;
    tether_test_world_before_send = before_send;
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3, TETHER_AGENT_OPTS(.lease_ms = LEASE_MS));
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    return 0;
}

/* The record that `agent` has of the worker `name`. It lives as long as the agent. */
static struct tether__peer *peer_of(tether_agent *agent, const char *name)
{
    struct tether__peer *peer = NULL;
    assert_int_equal(tether__agent_peer(agent, name, &peer, NULL), TETHER_OK);
    tether__peer_release(peer);
    return peer;
}

/* A message of `from` arrives at `agent`, as one of the session `session_number`. */
static enum tether__outcome outcome_of(tether_agent *agent,
                                       struct tether__peer *from,
                                       uint64_t session_number,
                                       uint32_t kind,
                                       const ProtobufCMessage *body)
{
    struct tether__packed packed;
    assert_int_equal(tether__pack(&packed, body), TETHER_OK);
    struct tether__inbound message = {.kind = kind, .numbered = true, .header = packed.bytes};
    enum tether__outcome outcome =
        tether__ext_ops->frame(agent->ext, from, session_number, &message, 0);
    tether__packed_fini(&packed);
    return outcome;
}

static void deliver(tether_agent *agent,
                    struct tether__peer *from,
                    uint64_t session_number,
                    uint32_t kind,
                    const ProtobufCMessage *body)
{
    assert_int_equal(outcome_of(agent, from, session_number, kind, body), TETHER__DONE);
}

/* A call that is to make the object `id`. The arrays are its memory. */
static Tether__Call creation(tether_rref_id id,
                             tether_rref_id fork,
                             uint64_t result[3],
                             uint64_t result_fork[3])
{
    Tether__Call call = TETHER__CALL__INIT;
    tether__id_to_numbers(id, result);
    tether__id_to_numbers(fork, result_fork);
    call.result = result;
    call.result_fork = result_fork;
    call.n_result = call.n_result_fork = 3;
    return call;
}

/* One id as the columns of a message. */
struct one_id {
    Tether__RefIds ids;
    uint32_t creator;
    uint64_t incarnation, counter;
};

static Tether__RefIds *ids_of(struct one_id *one, tether_rref_id id)
{
    *one = (struct one_id){TETHER__REF_IDS__INIT, id.creator, id.incarnation, id.counter};
    one->ids.n_creator = one->ids.n_incarnation = one->ids.n_counter = 1;
    one->ids.creator = &one->creator;
    one->ids.incarnation = &one->incarnation;
    one->ids.counter = &one->counter;
    return &one->ids;
}

static size_t n_forks(tether_agent *agent)
{
    return tether_rref_counts(agent).forks;
}

static void pass_time(struct tether_test_world *w, int64_t ms)
{
    tether_sim_run(w->sim, NULL, NULL, ms);
}

/* ---- Between two steps ---- */

/* w1 reads a fork-request of w2's, and the session ends before the request is applied. The forks of
 * the session have been released, so the request must not add one. */
static void fork_request_adds_no_fork_when_its_session_has_ended(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    cast_call_ok(w->agents[2], "w1", "give");
    struct tether__peer *w2 = peer_of(w->agents[1], "w2");
    uint64_t session_number = atomic_load(&w2->session_number);
    Tether__ForkRequest request = TETHER__FORK_REQUEST__INIT;
    Tether__RefId object = tether__wire_id(rref->id), fork = object;
    fork.counter += 1000;
    request.object = &object;
    request.fork = &fork;
    tether__session_fence(w2->session, "the test says so");
    deliver(w->agents[1], w2, session_number, TETHER__FRAME_FORK_REQUEST, &request.base);
    assert_int_equal(n_forks(w->agents[1]), 1); /* w0's */
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
    struct tether__peer *w1 = peer_of(ending->agent, "w1");
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
    struct tether__peer *w1 = peer_of(ends->agent, "w1");
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
    struct tether__peer *w1 = peer_of(w->agents[0], "w1");
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
    struct tether__peer *w0 = peer_of(third, "w0"), *w1 = peer_of(third, "w1");
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
    pass_time(w, 100);
    assert_int_equal(n_forks(w->agents[1]), 1); /* w0's */
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
    pass_time(&w, 1000);
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
    no_calls = true;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1000000"); /* in pieces */
    no_calls = false;
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
    struct tether__peer *w0 = peer_of(owner, "w0"), *w2 = peer_of(owner, "w2");
    uint64_t creator = atomic_load(&w0->session_number), asker = atomic_load(&w2->session_number);
    tether_rref_id id = {w->agents[0]->self.id, (uint32_t)w->agents[0]->self.incarnation, 1000};
    tether_rref_id fork_id = {id.creator, id.incarnation, 1001};
    Tether__RefId object = tether__wire_id(id), fork = tether__wire_id(fork_id);

    Tether__Announce announce = TETHER__ANNOUNCE__INIT;
    announce.result = &object;
    announce.result_fork = &fork;
    deliver(owner, w0, creator, TETHER__FRAME_ANNOUNCE, &announce.base);
    Tether__Fetch fetch = TETHER__FETCH__INIT;
    fetch.id = 1;
    fetch.object = &object;
    deliver(owner, w2, asker, TETHER__FRAME_FETCH, &fetch.base);
    struct one_id objects, forks;
    Tether__UserDelete delete = TETHER__USER_DELETE__INIT;
    delete.object = ids_of(&objects, id);
    delete.fork = ids_of(&forks, fork_id);
    deliver(owner, w0, creator, TETHER__FRAME_USER_DELETE, &delete.base);
    assert_int_equal(n_forks(owner), 0);
    assert_int_equal(tether_rref_counts(owner).pending_owners, 1);

    uint64_t result[3], result_fork[3];
    Tether__Call call = creation(id, fork_id, result, result_fork);
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

/* ---- Peers that break them ---- */

/* w2 has an object made under an id that w0 might give: w0's own creation would find it taken. */
static void object_is_not_made_when_its_id_is_of_another_worker(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *owner = w->agents[1];
    cast_call_ok(w->agents[0], "w1", "give");
    cast_call_ok(w->agents[2], "w1", "give");
    struct tether__peer *w2 = peer_of(owner, "w2");
    uint64_t session_number = atomic_load(&w2->session_number), result[3], result_fork[3];
    tether_rref_id others = {w->agents[0]->self.id, (uint32_t)w->agents[0]->self.incarnation, 1000};
    tether_rref_id own = {w->agents[2]->self.id, (uint32_t)w->agents[2]->self.incarnation, 1001};
    const tether_rref_id rows[][2] = {{others, own}, {own, others}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        Tether__Call call = creation(rows[i][0], rows[i][1], result, result_fork);
        struct tether__ref_message message = {
            .peer = w2, .session_number = session_number, .call = &call};
        tether_error err = {0};
        assert_int_not_equal(tether__ext_ops->arrived(owner->ext, &message, &err), TETHER__DONE);
        assert_int_equal(err.code, TETHER_ECORRUPT);
        assert_null(message.result);
        assert_int_equal(tether_rref_counts(owner).owners, 0);
    }
}

/* The same for a creation whose call is still to come. */
static void announce_is_refused_when_its_id_is_of_another_worker(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *owner = w->agents[1];
    cast_call_ok(w->agents[0], "w1", "give");
    cast_call_ok(w->agents[2], "w1", "give");
    struct tether__peer *w2 = peer_of(owner, "w2");
    uint64_t epoch = atomic_load(&w2->session_number);
    tether_rref_id others = {w->agents[0]->self.id, (uint32_t)w->agents[0]->self.incarnation, 1000};
    tether_rref_id own = {w->agents[2]->self.id, (uint32_t)w->agents[2]->self.incarnation, 1001};
    tether_rref_id earlier = own;
    earlier.incarnation--;
    const struct {
        tether_rref_id object, fork;
        size_t n_made;
    } rows[] = {{others, own, 0}, {own, others, 0}, {earlier, own, 0}, {own, own, 1}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        Tether__RefId object = tether__wire_id(rows[i].object),
                      fork = tether__wire_id(rows[i].fork);
        Tether__Announce announce = TETHER__ANNOUNCE__INIT;
        announce.result = &object;
        announce.result_fork = &fork;
        assert_int_equal(outcome_of(owner, w2, epoch, TETHER__FRAME_ANNOUNCE, &announce.base),
                         rows[i].n_made ? TETHER__DONE : TETHER__REFUSED);
        assert_int_equal(tether_rref_counts(owner).owners, rows[i].n_made);
        assert_int_equal(n_forks(owner), rows[i].n_made);
    }
    /* Nor has the watermark of w0 risen, so w0 makes what it likes. */
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    cast_add_ok(rref, "1", "2");
    tether_rref_release(rref);
}

static void fork_is_deleted_only_by_its_holder(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    struct tether__peer *w2 = peer_of(w->agents[1], "w2");
    struct one_id object, fork;
    Tether__UserDelete message = TETHER__USER_DELETE__INIT;
    message.object = ids_of(&object, rref->id);
    message.fork = ids_of(&fork, rref->user.fork);
    deliver(w->agents[1], w2, atomic_load(&w2->session_number), TETHER__FRAME_USER_DELETE,
            &message.base);
    assert_int_equal(n_forks(w->agents[1]), 1);
    cast_add_ok(rref, "1", "2");
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* w2 asks for a fork with the id of one that w0 holds. Both count: when w0 releases its fork, the
 * object stays for w2. */
static void fork_counts_for_each_holder_when_two_use_the_same_id(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    struct tether__refs *owner = tether__refs_of(w->agents[1]);
    struct tether__peer *w0 = peer_of(w->agents[1], "w0"), *w2 = peer_of(w->agents[1], "w2");
    struct tether__ref_session holder = {w0, atomic_load(&w0->session_number)};
    struct tether__ref_session other = {w2, atomic_load(&w2->session_number)};
    pthread_mutex_lock(&owner->mu);
    tether_rref *object = tether__owner_find_locked(owner, rref->id);
    tether_status again = tether__fork_add_locked(object, rref->user.fork, holder);
    tether_status by_other = tether__fork_add_locked(object, rref->user.fork, other);
    pthread_mutex_unlock(&owner->mu);
    assert_int_equal(again, TETHER_OK);
    assert_int_equal(by_other, TETHER_OK);
    assert_int_equal(n_forks(w->agents[1]), 2);
    struct one_id of_object, of_fork;
    Tether__UserDelete message = TETHER__USER_DELETE__INIT;
    message.object = ids_of(&of_object, rref->id);
    message.fork = ids_of(&of_fork, rref->user.fork);
    tether_rref_release(rref);
    pass_time(w, 100);
    assert_int_equal(n_forks(w->agents[1]), 1);
    deliver(w->agents[1], w2, other.number, TETHER__FRAME_USER_DELETE, &message.base);
    cast_assert_nothing_left(w);
}

/* w2 asks for objects that unknown workers are supposed to create. */
static void member_cannot_make_more_peers_than_its_budget(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *owner = w->agents[1];
    cast_call_ok(w->agents[2], "w1", "give");
    struct tether__peer *w2 = peer_of(owner, "w2");
    uint64_t session_number = atomic_load(&w2->session_number);
    size_t before = owner->n_peers;
    for (int i = 0; i < TETHER__MAX_NAMES_PER_PEER + 500; i++) {
        char name[32];
        Tether__ForkRequest request = TETHER__FORK_REQUEST__INIT;
        Tether__RefId object = {PROTOBUF_C_MESSAGE_INIT(&tether__ref_id__descriptor), 0, 900, 1};
        Tether__RefId fork = object;
        snprintf(name, sizeof name, "nobody%d", i);
        object.counter = fork.counter = (uint64_t)i + 1;
        request.id = (uint64_t)i + 1;
        request.object = &object;
        request.fork = &fork;
        request.parent = name;
        request.timeout_ms = 1;
        deliver(owner, w2, session_number, TETHER__FRAME_FORK_REQUEST, &request.base);
    }
    assert_int_equal(owner->n_peers, before + TETHER__MAX_NAMES_PER_PEER);
    tether_buf metrics = TETHER_BUF_INIT;
    assert_int_equal(tether_agent_metrics(owner, &metrics), TETHER_OK);
    assert_null(strstr(metrics.data, "nobody"));
    tether_buf_fini(&metrics);
    pass_time(w, 1000);
}

/* Fetches and fork requests of one worker, for objects that never come. */
static void waiting_requests_are_refused_beyond_the_limit_of_their_peer(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *owner = w->agents[1];
    struct tether__peer *w2 = peer_of(owner, "w2");
    struct tether__refs *refs = tether__refs_of(owner);
    uint64_t session_number = atomic_load(&w2->session_number);
    size_t limit = tether__max_held_calls(owner);
    for (size_t i = 0; i < limit + 100; i++) {
        Tether__RefId object = {PROTOBUF_C_MESSAGE_INIT(&tether__ref_id__descriptor), 0, 900, 1};
        Tether__RefId fork = object;
        Tether__ForkRequest asks = TETHER__FORK_REQUEST__INIT;
        Tether__Fetch fetches = TETHER__FETCH__INIT;
        object.counter = fork.counter = i + 1;
        asks.id = fetches.id = i + 1;
        asks.object = fetches.object = &object;
        asks.fork = &fork;
        asks.timeout_ms = fetches.timeout_ms = 10;
        if (i % 2)
            deliver(owner, w2, session_number, TETHER__FRAME_FORK_REQUEST, &asks.base);
        else
            deliver(owner, w2, session_number, TETHER__FRAME_FETCH, &fetches.base);
    }
    assert_int_equal(refs->n_waiting, limit);
    pass_time(w, 1000); /* all of them time out, and there is room again */
    assert_int_equal(refs->n_waiting, 0);
    assert_true(tether__may_wait_locked(refs, w2));
}

/* The fork of the one reference that is pinned. */
static tether_rref_id pinned(tether_agent *agent)
{
    struct tether__refs *refs = tether__refs_of(agent);
    struct tether__map_iter it = TETHER__MAP_ITER;
    assert_int_equal(tether_rref_counts(agent).pending_children, 1);
    return *(tether_rref_id *)tether__map_next(&refs->children, &it);
}

static void child_accept_counts_only_from_the_receiver(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    struct tether__peer *w1 = peer_of(w->agents[0], "w1");
    struct one_id fork;
    Tether__ChildAccept message = TETHER__CHILD_ACCEPT__INIT;
    tether_future *sent = cast_send_async(w->agents[0], "w2", "keep", rref, TIMEOUT_MS);
    message.fork = ids_of(&fork, pinned(w->agents[0]));
    deliver(w->agents[0], w1, atomic_load(&w1->session_number), TETHER__FRAME_CHILD_ACCEPT,
            &message.base);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_children, 1);
    assert_int_equal(tether_future_wait(sent, TIMEOUT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(sent);
    tether_rref_release(rref);
    cast_drop_all();
    cast_assert_nothing_left(w);
}

static void object_is_not_created_twice(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_confirmed(cast_remote_counter(w->agents[0], "w1", "1"));
    struct tether__peer *w0 = peer_of(w->agents[1], "w0");
    tether_rref_id fork = rref->user.fork;
    uint64_t result[3], result_fork[3];
    tether_error err = {0};
    fork.counter += 1000;
    Tether__Call call = creation(rref->id, fork, result, result_fork);
    struct tether__ref_message message = {
        .peer = w0, .session_number = atomic_load(&w0->session_number), .call = &call};
    assert_int_equal(tether__ext_ops->arrived(w->agents[1]->ext, &message, &err), TETHER__REFUSED);
    assert_int_equal(err.code, TETHER_EEXIST);
    assert_int_equal(n_forks(w->agents[1]), 1);
    cast_add_ok(rref, "1", "2");
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, start, stop)

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
        THREE(object_is_not_made_when_its_id_is_of_another_worker),
        THREE(announce_is_refused_when_its_id_is_of_another_worker),
        THREE(fork_is_deleted_only_by_its_holder),
        THREE(fork_counts_for_each_holder_when_two_use_the_same_id),
        THREE(member_cannot_make_more_peers_than_its_budget),
        THREE(waiting_requests_are_refused_beyond_the_limit_of_their_peer),
        THREE(child_accept_counts_only_from_the_receiver),
        THREE(object_is_not_created_twice),
    };
    return cmocka_run_group_tests_name("rules of the protocol", tests, NULL, NULL);
}
