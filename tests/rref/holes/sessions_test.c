/* Holes 7 to 10 of the protocol that this one is modelled on: crashes, failed messages and
 * restarts. holes_test.c has the first six, and says how to read the comments.
 */
#include <string.h>

#include "rpc/peer/calls/slots.h"
#include "rpc/wire/packed.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/holes/fixture.h"

/* ---- 7 ---- */

/* There: a fork named the worker that had created it, not its holder, and nothing removed it when a
 * user crashed.
 *
 * Here: a fork names its holder in one session. When that session ends because heartbeats are
 * missing, the fork is removed; an object without forks is destroyed within a lease and a
 * second. */
static void hole_07_forks_are_removed_when_user_crashes(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    holes_pass_time(w, SOON_MS);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 2);
    tether_sim_kill(w->sim, w->agents[0]); /* it made the fork that w2 holds */
    holes_pass_time(w, LEASE_MS + 1000);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    cast_add_ok(cast_held[2], "1", "2"); /* the object and w2's fork still exist */
    tether_sim_kill(w->sim, w->agents[2]);
    assert_true(tether_sim_run(w->sim, holes_w1_is_idle, w, LEASE_MS + 1000));
    tether_rref_release(rref);
}

/* ---- 8 ---- */

/* There: an owner that passed on its object entered the fork when it packed the message. When the
 * message then could not be sent, the fork stayed.
 *
 * Here: the owner removes a fork whose message was not queued. A fork whose message was queued and
 * never applied ends with the session of its receiver. A receiver that does not want the reference
 * returns it. */
static void hole_08_fork_is_removed_when_its_message_fails(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *mine = cast_own_counter(w->agents[0], 7);

    holes_fault.kind = TETHER__FRAME_CALL; /* the network does not take it */
    holes_fault.left = 1;
    assert_int_equal(cast_send(w->agents[0], "w1", "keep", mine, &err), TETHER_EUNAVAILABLE);
    assert_int_equal(tether_rref_counts(w->agents[0]).forks, 0);

    w->agents[0]->lane_limits.max_message_bytes = 20; /* the lane does not */
    assert_int_equal(cast_send(w->agents[0], "w1", "keep", mine, &err), TETHER_ETOOBIG);
    assert_int_equal(tether_rref_counts(w->agents[0]).forks, 0);
    w->agents[0]->lane_limits.max_message_bytes = tether__lane_default_limits.max_message_bytes;

    assert_int_equal(cast_send(w->agents[0], "w1", "no_such_function", mine, &err),
                     TETHER_ENOTFOUND);
    holes_assert_soon(w, cast_has_no_forks, w->agents[0]);

    assert_int_equal(cast_send(w->agents[0], "nobody", "keep", mine, &err), TETHER_ENOTFOUND);
    holes_assert_soon(w, cast_has_no_forks, w->agents[0]);

    tether_sim_kill(w->sim, w->agents[2]);
    tether_future *future = cast_send_async(w->agents[0], "w2", "keep", mine, 60000);
    assert_int_equal(tether_rref_counts(w->agents[0]).forks, 1); /* the message may still arrive */
    assert_true(tether_sim_run(w->sim, cast_has_no_forks, w->agents[0], LEASE_MS + 1000));
    assert_int_equal(tether_future_wait(future, 1000, NULL, &err), TETHER_EUNAVAILABLE);
    tether_future_release(future);

    tether_rref_release(mine);
    assert_int_equal(cast_n_live, 0);
    assert_int_equal(cast_n_keeps, 0);
}

/* In a reply: its caller has given up before it comes. */
static void hole_08_fork_is_removed_when_its_reply_is_not_awaited(void **state)
{
    struct tether_test_world *w = *state;
    cast_held[1] = cast_own_counter(w->agents[1], 7);
    cast_call_ok(w->agents[0], "w1", "echo");
    tether_sim_slow(w->sim, w->agents[1], w->agents[0], 1000 * MS);
    assert_int_equal(tether_rpc_sync(w->agents[0], "w1", "give", NULL, 100, NULL, NULL),
                     TETHER_ETIMEOUT);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    assert_true(tether_sim_run(w->sim, cast_has_no_forks, w->agents[1], 2000));
    cast_held[1] = tether_rref_release(cast_held[1]);
    cast_assert_nothing_left(w);
}

/* ---- 9 ---- */

/* There: the process had one context of references, and its flag "destroyed" stayed true: the
 * second agent of a process never sent a delete.
 *
 * Here: each agent has its own context. References of an earlier agent can be released, but not
 * used. */
static void hole_09_references_work_when_a_process_starts_a_second_agent(void **state)
{
    (void)state;
    tether_rref *of_before = NULL;
    for (int life = 1; life <= 3; life++) {
        struct tether_test_world w;
        void *fixture = &w;
        memset(&holes_fault, 0, sizeof holes_fault);
        tether_test_world_register = holes_register;
        tether_test_world_before_send = holes_before_send;
        tether_test_world_start(&w, TETHER_TEST_SIM, 3, holes_options());
        tether_rref *rref = cast_remote_counter(w.agents[0], "w1", "1");
        cast_send_ok(w.agents[0], "w2", "keep", rref);
        cast_call_ok(w.agents[0], "w2", "drop");
        tether_rref_release(rref);
        cast_assert_nothing_left(&w);
        assert_int_equal(holes_fault.n_deletes, 2);
        if (of_before) {
            assert_int_equal(tether_rref_to_here(of_before, 1000, NULL, NULL), TETHER_ESHUTDOWN);
            of_before = tether_rref_release(of_before);
        }
        of_before = cast_remote_counter(w.agents[1], "w2", "1");
        holes_assert_confirmed(of_before);
        holes_leave_ok(&w, 0);
        assert_int_equal(tether_agent_shutdown(w.agents[1], true, NULL), TETHER_ELEAK);
        holes_leave_ok(&w, 2); /* does not wait for the reference that w1 leaked */
        assert_int_equal(cast_n_live, 0);
        holes_stop(&fixture);
    }
    tether_rref_release(of_before);
}

/* ---- 10 ---- */

static void assert_value(tether_rref *rref, int n)
{
    tether_value *value = NULL;
    assert_int_equal(tether_rref_to_here(rref, 10000, &value, NULL), TETHER_OK);
    assert_int_equal(((struct cast_counter *)tether_value_object(value, &cast_counter_type))->n, n);
    tether_value_release(value);
}

/* Kills a worker and starts it anew. Gives what is left of the former holes_start. */
static tether_agent *start_again(struct tether_test_world *w, int i)
{
    tether_agent *former = w->agents[i];
    tether_sim_kill(w->sim, former);
    tether_test_world_start_one(w, i, holes_options());
    return former;
}

/* There: a worker that was started again counted its ids from 0, so that a reference, or a late
 * delete, of its former start could mean an object of the new one.
 *
 * Here: an id has the creator's incarnation in it, and a request names the start of the owner that
 * it means. */
static void hole_10_ids_differ_when_a_creator_restarts(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *before = cast_remote_counter(w->agents[0], "w1", "100");
    cast_send_ok(w->agents[0], "w2", "keep", before);
    tether_rref_id old_id = tether_rref_get_id(before);
    tether_rref_release(before);
    tether_agent *former_w0 = start_again(w, 0), *former_w1;

    tether_rref *after = cast_remote_counter(w->agents[0], "w1", "200");
    tether_rref_id new_id = tether_rref_get_id(after);
    assert_int_equal(new_id.creator, old_id.creator);
    assert_int_equal(new_id.counter, old_id.counter);
    assert_int_not_equal(new_id.incarnation, old_id.incarnation);
    assert_value(after, 200);
    assert_value(cast_held[2], 100);
    /* its delete names the object of the old start */
    cast_held[2] = tether_rref_release(cast_held[2]);
    holes_pass_time(w, LEASE_MS + 1000);
    assert_int_equal(tether_rref_counts(w->agents[1]).forks, 1);
    assert_value(after, 200);

    /* The owner is started again, and its new objects are not the one that `after` refers to. */
    former_w1 = start_again(w, 1);
    assert_true(tether_sim_run(w->sim, holes_is_broken, after, LEASE_MS + 1000));
    tether_rref *newer = cast_remote_counter(w->agents[0], "w1", "300");
    assert_value(newer, 300);
    assert_int_equal(tether_rref_to_here(after, 10000, NULL, NULL), TETHER_EOWNERDIED);
    tether_rref_release(after);
    holes_pass_time(w, SOON_MS);
    assert_value(newer, 300);
    tether_rref_release(newer);
    /* release it last, because a killed process sends no goodbye */
    tether_agent_release(former_w0);
    tether_agent_release(former_w1);
    cast_assert_nothing_left(w);
}

/* w2 has met the new start of w1, w0 has not, and passes on what it had of the old one. */
static void hole_10_reference_breaks_when_its_owner_restarts(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    holes_assert_confirmed(rref);
    tether_sim_pause(w->sim, w->agents[0], true); /* it must not hear of it yet */
    tether_agent *former_w1 = start_again(w, 1);
    cast_call_ok(w->agents[2], "w1", "echo");
    tether_sim_pause(w->sim, w->agents[0], false);
    int64_t began = holes_now_ms(w);
    assert_int_equal(cast_send(w->agents[0], "w2", "keep", rref, NULL), TETHER_EGONE);
    /* the request fails without waiting for the object */
    assert_in_range(holes_now_ms(w) - began, 0, SOON_MS);
    assert_int_equal(cast_n_keeps, 0);
    tether_rref_release(rref);
    tether_agent_release(former_w1);
}

#define THREE(name) cmocka_unit_test_setup_teardown(name, holes_start, holes_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        THREE(hole_07_forks_are_removed_when_user_crashes),
        THREE(hole_08_fork_is_removed_when_its_message_fails),
        THREE(hole_08_fork_is_removed_when_its_reply_is_not_awaited),
        cmocka_unit_test(hole_09_references_work_when_a_process_starts_a_second_agent),
        THREE(hole_10_ids_differ_when_a_creator_restarts),
        THREE(hole_10_reference_breaks_when_its_owner_restarts),
    };
    return cmocka_run_group_tests_name("holes 7 to 10", tests, NULL, NULL);
}
