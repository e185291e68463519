/* The first six of the eleven holes that are known in the protocol that this one is modelled on
 * (torch.distributed.rpc), each made to happen over the simulated network. Each test would fail
 * there; the comment above it says what happened, and what holds here.
 *
 * w1 owns, w0 creates, w2 is passed what w0 has created, unless a test says otherwise. Time is
 * virtual: the waits cost nothing, and how long something takes is exact.
 */
#include <string.h>

#include "rpc/peer/calls/slots.h"
#include "rpc/wire/packed.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/holes/fixture.h"

/* ---- 1 ---- */

static bool one_call_is_held(void *userdata)
{
    return ((struct tether_test_world *)userdata)->n_held == 1;
}

/* There: remote() timed out while its function ran, and the user released the reference. The delete
 * reached an owner that had no entry yet; then the function returned, and the owner entered the
 * object with a fork that no message would ever delete. Both shutdowns waited 100 s and failed.
 *
 * Here: the owner enters object and fork when the call arrives, before the function runs. The
 * delete finds its fork, and the object is destroyed as soon as the function returns it. */
static void hole_01_object_is_destroyed_when_delete_overtakes_its_creation(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = tether_remote(w->agents[0], "w1", "hold", NULL, 500);
    holes_assert_soon(w, one_call_is_held, w);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    assert_int_equal(tether_rref_to_here(rref, 10000, NULL, NULL), TETHER_ETIMEOUT);
    assert_in_range(holes_now_ms(w), 500, 600); /* the waiting caller is woken */
    tether_rref_release(rref);
    holes_assert_soon(w, cast_has_no_forks, w->agents[1]);
    tether_value *late = NULL;
    assert_int_equal(cast_new_counter(1, &late, NULL), TETHER_OK);
    tether_reply_ok(atomic_exchange(&w->held, NULL), late);
    tether_value_release(late);
    assert_int_equal(cast_n_live, 0); /* at once */
    cast_assert_nothing_left(w);
    holes_leave_ok(w, 0);
    holes_leave_ok(w, 1);
}

/* The same where the call itself is overtaken: its argument goes in pieces, behind which small
 * messages need not wait. An announce goes ahead, in order. */
static void hole_01_object_is_destroyed_when_delete_overtakes_a_large_creation(void **state)
{
    struct tether_test_world *w = *state;
    char words[2000];
    memset(words, '1', sizeof words - 1);
    words[sizeof words - 1] = '\0';
    cast_call_ok(w->agents[0], "w1", "echo");
    tether_value *arg = cast_text(words);
    tether_sim_part(w->sim, w->agents[0], w->agents[1], true);
    tether_rref *rref = tether_remote(w->agents[0], "w1", "make_counter", arg, 100);
    assert_int_equal(tether_rref_to_here(rref, 10000, NULL, NULL), TETHER_ETIMEOUT);
    tether_rref_release(rref); /* small: it goes before the last piece */
    tether_value_release(arg);
    tether_sim_part(w->sim, w->agents[0], w->agents[1], false);
    cast_call_ok(w->agents[0], "w1", "echo");
    holes_pass_time(w, 1000);
    cast_assert_nothing_left(w);
}

/* ---- 2 ---- */

/* There: a repeated fork-request that arrived after the user-delete of the same fork created a fork
 * without a holder, so the object was never destroyed.
 *
 * Here: each message has a number in its lane, and is applied once. The copies below arrive and
 * have no effect. */
static void hole_02_fork_request_adds_no_fork_when_repeated_after_delete(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    holes_assert_confirmed(rref);
    cast_call_ok(w->agents[2], "w1", "echo"); /* they know each other */
    tether_sim_duplicate(w->sim, 1, 500 * MS);
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 2);
    cast_call_ok(w->agents[0], "w2", "drop");
    holes_pass_time(w, 50); /* the delete is quicker than the copies */
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    int before = tether_sim_faults(w->sim)->duplicated;
    holes_pass_time(w, 1000);
    assert_true(tether_sim_faults(w->sim)->duplicated > before);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    assert_int_equal(cast_n_keeps, 1);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* ---- 3 ---- */

static enum tether__outcome pack_fetch(void *userdata,
                                       uint64_t id,
                                       uint32_t timeout_ms,
                                       struct tether__packed *ret_packed)
{
    Tether__Fetch message = TETHER__FETCH__INIT;
    message.id = id;
    message.object = userdata;
    message.timeout_ms = timeout_ms;
    return tether__outcome_of(tether__pack(ret_packed, &message.base));
}

static enum tether__outcome pack_fork_request(void *userdata,
                                              uint64_t id,
                                              uint32_t timeout_ms,
                                              struct tether__packed *ret_packed)
{
    Tether__ForkRequest message = TETHER__FORK_REQUEST__INIT;
    Tether__RefId fork = TETHER__REF_ID__INIT;
    fork.incarnation = fork.counter = 12345;
    message.id = id;
    message.object = userdata;
    message.fork = &fork;
    message.timeout_ms = timeout_ms;
    return tether__outcome_of(tether__pack(ret_packed, &message.base));
}

/* Asks w1 about an object as no program of ours would; says how it went and how long it took. */
static tether_status ask(struct tether_test_world *w,
                         uint32_t kind,
                         tether_rref_id object,
                         int timeout_ms,
                         int64_t *ret_took_ms)
{
    struct tether__peer *owner;
    tether_future *future = NULL;
    struct tether__call *call = NULL;
    Tether__RefId id = tether__wire_id(object);
    int64_t deadline = tether__call_deadline(w->agents[0], timeout_ms);
    int64_t began = holes_now_ms(w);
    assert_int_equal(tether__agent_peer(w->agents[0], "w1", &owner, NULL), TETHER_OK);
    if (kind == TETHER__FRAME_CALL) { /* a method */
        struct tether__call_target target = {.target = &id};
        assert_int_equal(
            tether__call_start(w->agents[0], owner, "add", &target, NULL, deadline, &call, NULL),
            TETHER_OK);
        future = &call->future;
    } else {
        assert_int_equal(
            tether__call_request(owner, kind, "late", false, deadline,
                                 kind == TETHER__FRAME_FETCH ? pack_fetch : pack_fork_request, &id,
                                 &future, NULL),
            TETHER_OK);
    }
    tether__peer_release(owner);
    tether_status st = tether_future_wait(future, 60000, NULL, NULL);
    tether_future_release(future);
    *ret_took_ms = holes_now_ms(w) - began;
    return st;
}

/* There: a request for a destroyed object looked like one for an object that was still to be
 * created, and waited for ever.
 *
 * Here: the owner knows how far each creator's counter has come. It answers TETHER_EGONE at once
 * for a destroyed object, and lets a request for an object that may still be created wait until the
 * deadline of the request. */
static void hole_03_request_fails_at_once_when_object_is_destroyed(void **state)
{
    struct tether_test_world *w = *state;
    static const uint32_t kinds[] = {TETHER__FRAME_FETCH, TETHER__FRAME_FORK_REQUEST,
                                     TETHER__FRAME_CALL};
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "7");
    tether_rref_id gone = tether_rref_get_id(rref), to_come = gone;
    to_come.counter += 1000;

    /* A fetch that was sent before the delete finds its object. */
    tether_future *fetch = tether_rref_to_here_async(rref, 10000);
    tether_rref_release(rref);
    assert_int_equal(tether_future_wait(fetch, 10000, NULL, NULL), TETHER_OK);
    tether_future_release(fetch);
    cast_assert_nothing_left(w);

    for (size_t i = 0; i < TETHER__ARRAY_LEN(kinds); i++) {
        int64_t took_ms;
        assert_int_equal(ask(w, kinds[i], gone, 10000, &took_ms), TETHER_EGONE);
        assert_in_range(took_ms, 0, SOON_MS);
        assert_int_equal(ask(w, kinds[i], to_come, 1500, &took_ms), TETHER_ETIMEOUT);
        assert_in_range(took_ms, 1400, 1500 + SOON_MS);
        holes_pass_time(w, SOON_MS);
        assert_int_equal(tether_rref_counts(w->agents[1]).pending_owners, 0);
    }
    cast_assert_nothing_left(w);
}

/* ---- 4 ---- */

/* There: when the last attempt of a fork-request had failed, an exception left a callback that did
 * not expect it, and the process of the child was aborted.
 *
 * Here: the call that brought the reference fails with TETHER_EOWNERDIED before its function runs,
 * the parent is told all the same, and the worker goes on. */
static void hole_04_call_fails_when_fork_request_is_never_delivered(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    holes_assert_confirmed(rref);
    holes_fault.kind = TETHER__FRAME_FORK_REQUEST;
    holes_fault.left = 1000;
    tether_future *future = cast_send_async(w->agents[0], "w2", "keep", rref, 60000);
    assert_int_equal(tether_future_wait(future, 60000, NULL, &err), TETHER_EOWNERDIED);
    tether_future_release(future);
    assert_int_equal(holes_fault.left, 1000 - 6);
    assert_int_equal(cast_n_keeps, 0);
    holes_pass_time(w, SOON_MS);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_children, 0);
    assert_true(cast_is_idle(w->agents[2]));
    holes_fault.left = 0;
    cast_send_ok(w->agents[0], "w2", "keep", rref); /* the failure has no other effect */
    cast_add_ok(cast_held[2], "1", "2");
    cast_call_ok(w->agents[0], "w2", "drop");
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
}

/* ---- 5 ---- */

/* Passes w0's reference to w2, whose accepts do not get through, and releases it. */
static void pass_without_accept(struct tether_test_world *w, int failures)
{
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    holes_assert_confirmed(rref);
    holes_fault.kind = TETHER__FRAME_CHILD_ACCEPT;
    holes_fault.left = failures;
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    tether_rref_release(rref);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_children, 1);
}

static bool w0_is_idle(void *userdata)
{
    return cast_is_idle(((struct tether_test_world *)userdata)->agents[0]);
}

/* There: after five retries the accept was lost for good; the parent kept its pin, and with it the
 * object, for ever.
 *
 * Here: it is tried for as long as the session stands; and when the session ends, since the child
 * died or is cut off, the pin ends with it. */
static void hole_05_parent_keeps_reference_when_accept_is_lost_repeatedly(void **state)
{
    struct tether_test_world *w = *state;
    pass_without_accept(w, 20);
    cast_call_ok(w->agents[0], "w2", "drop");
    holes_pass_time(w, 10000);
    assert_int_equal(tether_rref_counts(w->agents[0]).pending_children, 1);
    assert_int_equal(cast_n_live, 1); /* pinned, not forgotten */
    assert_true(tether_sim_run(w->sim, cast_nothing_is_left, w, 120000));
    assert_int_equal(holes_fault.left, 0);
}

static void hole_05_parent_releases_reference_when_accepting_child_dies(void **state)
{
    struct tether_test_world *w = *state;
    pass_without_accept(w, INT32_MAX);
    tether_sim_kill(w->sim, w->agents[2]);
    assert_true(tether_sim_run(w->sim, w0_is_idle, w, LEASE_MS + 1000));
    assert_true(tether_sim_run(w->sim, holes_w1_is_idle, w, LEASE_MS + 1000));
}

static void hole_05_parent_releases_reference_when_accepting_child_is_cut_off(void **state)
{
    struct tether_test_world *w = *state;
    pass_without_accept(w, INT32_MAX);
    tether_sim_part(w->sim, w->agents[0], w->agents[2], true);
    assert_true(tether_sim_run(w->sim, w0_is_idle, w, LEASE_MS + 1000));
    cast_add_ok(cast_held[2], "1", "2"); /* the child's reference has a fork of its own */
    tether_sim_heal(w->sim);
    cast_held[2] = tether_rref_release(cast_held[2]);
    holes_fault.left = 0;
    cast_assert_nothing_left(w);
}

/* ---- 6 ---- */

/* There: remote() to a peer that was dead failed with an error that the code did not count among
 * those of a network, so the reference stayed among the pending ones for ever.
 *
 * Here: every failure of a creation breaks its reference, with the cause. Waiting callers are
 * woken, and nothing stays pending. */
static void hole_06_reference_breaks_when_creation_is_sent_to_a_dead_worker(void **state)
{
    struct tether_test_world *w = *state;
    cast_call_ok(w->agents[0], "w1", "echo");
    tether_rref *running = tether_remote(w->agents[0], "w1", "hold", NULL, 60000);
    holes_assert_soon(w, one_call_is_held, w);
    tether_sim_kill(w->sim, w->agents[1]); /* while a function of ours runs there */
    tether_sim_kill(w->sim, w->agents[2]); /* which we have never met */
    const struct {
        const char *to;
        tether_status status;
    } rows[] = {
        {"w1", TETHER_EOWNERDIED},
        {"w2", TETHER_EOWNERDIED},
        {"nobody", TETHER_ENOTFOUND},
    };
    int64_t began = holes_now_ms(w);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        tether_rref *rref = tether_remote(w->agents[0], rows[i].to, "make_counter", NULL, 60000);
        tether_future *confirmed = tether_rref_confirmed(rref);
        assert_int_equal(tether_future_wait(confirmed, 60000, NULL, NULL), rows[i].status);
        assert_int_equal(tether_rref_to_here(rref, 60000, NULL, NULL), rows[i].status);
        assert_int_equal(tether_rref_counts(w->agents[0]).pending_users, 0);
        tether_future_release(confirmed);
        tether_rref_release(rref);
    }
    /* the two fences follow each other */
    assert_in_range(holes_now_ms(w) - began, 0, 2 * (LEASE_MS + 1000));
    assert_true(holes_is_broken(running));
    tether_rref_release(running);
    assert_true(cast_is_idle(w->agents[0]));
    holes_leave_ok(w, 0);
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, holes_start, holes_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        THREE(hole_01_object_is_destroyed_when_delete_overtakes_its_creation),
        THREE(hole_01_object_is_destroyed_when_delete_overtakes_a_large_creation),
        THREE(hole_02_fork_request_adds_no_fork_when_repeated_after_delete),
        THREE(hole_03_request_fails_at_once_when_object_is_destroyed),
        THREE(hole_04_call_fails_when_fork_request_is_never_delivered),
        THREE(hole_05_parent_keeps_reference_when_accept_is_lost_repeatedly),
        THREE(hole_05_parent_releases_reference_when_accepting_child_dies),
        THREE(hole_05_parent_releases_reference_when_accepting_child_is_cut_off),
        THREE(hole_06_reference_breaks_when_creation_is_sent_to_a_dead_worker),
    };
    return cmocka_run_group_tests_name("holes 1 to 6", tests, NULL, NULL);
}
