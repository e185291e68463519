/* Rules that hold against a peer that breaks them. The simulation cannot check these, because its
 * workers are honest. The test forges the messages of a dishonest peer.
 *
 * w1 owns, w0 creates, w2 is the third.
 */
#include <stdio.h>
#include <string.h>

#include "rpc/peer/limits.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/rules/fixture.h"

/* w2 has an object made under an id that w0 might give: w0's own creation would find it taken. */
static void object_is_not_made_when_its_id_is_of_another_worker(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *owner = w->agents[1];
    cast_call_ok(w->agents[0], "w1", "give");
    cast_call_ok(w->agents[2], "w1", "give");
    struct tether__peer *w2 = rules_peer(owner, "w2");
    uint64_t session_number = atomic_load(&w2->session_number), result[3], result_fork[3];
    tether_rref_id others = {w->agents[0]->self.id, (uint32_t)w->agents[0]->self.incarnation, 1000};
    tether_rref_id own = {w->agents[2]->self.id, (uint32_t)w->agents[2]->self.incarnation, 1001};
    const tether_rref_id rows[][2] = {{others, own}, {own, others}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        Tether__Call call = rules_creation(rows[i][0], rows[i][1], result, result_fork);
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
    struct tether__peer *w2 = rules_peer(owner, "w2");
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
        assert_int_equal(rules_outcome(owner, w2, epoch, TETHER__FRAME_ANNOUNCE, &announce.base),
                         rows[i].n_made ? TETHER__DONE : TETHER__REFUSED);
        assert_int_equal(tether_rref_counts(owner).owners, rows[i].n_made);
        assert_int_equal(rules_n_forks(owner), rows[i].n_made);
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
    struct tether__peer *w2 = rules_peer(w->agents[1], "w2");
    struct rules_id object, fork;
    Tether__UserDelete message = TETHER__USER_DELETE__INIT;
    message.object = rules_ids(&object, rref->id);
    message.fork = rules_ids(&fork, rref->user.fork);
    rules_deliver(w->agents[1], w2, atomic_load(&w2->session_number), TETHER__FRAME_USER_DELETE,
                  &message.base);
    assert_int_equal(rules_n_forks(w->agents[1]), 1);
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
    struct tether__peer *w0 = rules_peer(w->agents[1], "w0"), *w2 = rules_peer(w->agents[1], "w2");
    struct tether__ref_session holder = {w0, atomic_load(&w0->session_number)};
    struct tether__ref_session other = {w2, atomic_load(&w2->session_number)};
    pthread_mutex_lock(&owner->mu);
    tether_rref *object = tether__owner_find_locked(owner, rref->id);
    tether_status again = tether__fork_add_locked(object, rref->user.fork, holder);
    tether_status by_other = tether__fork_add_locked(object, rref->user.fork, other);
    pthread_mutex_unlock(&owner->mu);
    assert_int_equal(again, TETHER_OK);
    assert_int_equal(by_other, TETHER_OK);
    assert_int_equal(rules_n_forks(w->agents[1]), 2);
    struct rules_id of_object, of_fork;
    Tether__UserDelete message = TETHER__USER_DELETE__INIT;
    message.object = rules_ids(&of_object, rref->id);
    message.fork = rules_ids(&of_fork, rref->user.fork);
    tether_rref_release(rref);
    rules_pass_time(w, 100);
    assert_int_equal(rules_n_forks(w->agents[1]), 1);
    rules_deliver(w->agents[1], w2, other.number, TETHER__FRAME_USER_DELETE, &message.base);
    cast_assert_nothing_left(w);
}

/* w2 asks for objects that unknown workers are supposed to create. */
static void member_cannot_make_more_peers_than_its_budget(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *owner = w->agents[1];
    cast_call_ok(w->agents[2], "w1", "give");
    struct tether__peer *w2 = rules_peer(owner, "w2");
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
        rules_deliver(owner, w2, session_number, TETHER__FRAME_FORK_REQUEST, &request.base);
    }
    assert_int_equal(owner->n_peers, before + TETHER__MAX_NAMES_PER_PEER);
    tether_buf metrics = TETHER_BUF_INIT;
    assert_int_equal(tether_agent_metrics(owner, &metrics), TETHER_OK);
    assert_null(strstr(metrics.data, "nobody"));
    tether_buf_fini(&metrics);
    rules_pass_time(w, 1000);
}

/* Fetches and fork requests of one worker, for objects that never come. */
static void waiting_requests_are_refused_beyond_the_limit_of_their_peer(void **state)
{
    struct tether_test_world *w = *state;
    tether_agent *owner = w->agents[1];
    struct tether__peer *w2 = rules_peer(owner, "w2");
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
            rules_deliver(owner, w2, session_number, TETHER__FRAME_FORK_REQUEST, &asks.base);
        else
            rules_deliver(owner, w2, session_number, TETHER__FRAME_FETCH, &fetches.base);
    }
    assert_int_equal(refs->n_waiting, limit);
    rules_pass_time(w, 1000); /* all of them time out, and there is room again */
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
    struct tether__peer *w1 = rules_peer(w->agents[0], "w1");
    struct rules_id fork;
    Tether__ChildAccept message = TETHER__CHILD_ACCEPT__INIT;
    tether_future *sent = cast_send_async(w->agents[0], "w2", "keep", rref, TIMEOUT_MS);
    message.fork = rules_ids(&fork, pinned(w->agents[0]));
    rules_deliver(w->agents[0], w1, atomic_load(&w1->session_number), TETHER__FRAME_CHILD_ACCEPT,
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
    struct tether__peer *w0 = rules_peer(w->agents[1], "w0");
    tether_rref_id fork = rref->user.fork;
    uint64_t result[3], result_fork[3];
    tether_error err = {0};
    fork.counter += 1000;
    Tether__Call call = rules_creation(rref->id, fork, result, result_fork);
    struct tether__ref_message message = {
        .peer = w0, .session_number = atomic_load(&w0->session_number), .call = &call};
    assert_int_equal(tether__ext_ops->arrived(w->agents[1]->ext, &message, &err), TETHER__REFUSED);
    assert_int_equal(err.code, TETHER_EEXIST);
    assert_int_equal(rules_n_forks(w->agents[1]), 1);
    cast_add_ok(rref, "1", "2");
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, rules_start, rules_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        THREE(object_is_not_made_when_its_id_is_of_another_worker),
        THREE(announce_is_refused_when_its_id_is_of_another_worker),
        THREE(fork_is_deleted_only_by_its_holder),
        THREE(fork_counts_for_each_holder_when_two_use_the_same_id),
        THREE(member_cannot_make_more_peers_than_its_budget),
        THREE(waiting_requests_are_refused_beyond_the_limit_of_their_peer),
        THREE(child_accept_counts_only_from_the_receiver),
        THREE(object_is_not_created_twice),
    };
    return cmocka_run_group_tests_name("rules against a dishonest peer", tests, NULL, NULL);
}
