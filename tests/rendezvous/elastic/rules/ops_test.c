/* The decisions (seed classes TestRendezvousExitOp, ...JoinOp, ...CloseOp and ...KeepAliveOp).
 *
 * The situation is that of the seeds: the time is 10 s, this node is "this_node", "dummy1" is a
 * participant, a round has one or two nodes, heartbeats are due every 30 s, the deadline is now.
 */
#include "rendezvous/elastic/rules/ops.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

#define NOW (10 * S)
#define INTERVAL (30 * S)
#define THIS "this_node"

struct situation {
    struct tether__rdzv_state state;
    struct tether_rdzv_settings settings;
    int64_t deadline;
};

static int setup(void **state)
{
    static struct situation situation;
    tether__rdzv_state_init(&situation.state);
    put_in(&situation.state.participants, "dummy1", 1);
    situation.settings = test_settings(1, 2);
    situation.deadline = NOW;
    *state = &situation;
    return 0;
}

static int teardown(void **state)
{
    struct situation *situation = *state;
    tether__rdzv_state_fini(&situation->state);
    return 0;
}

static void assert_action(struct situation *situation,
                          tether__rdzv_op *op,
                          enum tether__rdzv_action expected)
{
    struct tether__rdzv_node node = node_of(THIS);
    struct tether__rdzv_context context = {&node, &situation->state, &situation->settings, NOW};
    enum tether__rdzv_action action = op(&context, situation->deadline);
    if (action != expected)
        fail_msg("the node %s; expected: %s", tether__rdzv_action_text(action),
                 tether__rdzv_action_text(expected));
}

/* ---- Exit ----------------------------------------------------------------------------------- */

static void exit_removes_from_participants_if_node_is_participant(void **state)
{
    struct situation *situation = *state;
    put_in(&situation->state.participants, THIS, 1);
    assert_action(situation, tether__rdzv_exit_op, TETHER__RDZV_REMOVE_FROM_PARTICIPANTS);
}

static void exit_raises_timeout_if_deadline_exceeded(void **state)
{
    struct situation *situation = *state;
    situation->deadline = 0;
    put_in(&situation->state.participants, THIS, 1);
    assert_action(situation, tether__rdzv_exit_op, TETHER__RDZV_ERROR_TIMEOUT);
}

static void exit_finishes_if_node_is_not_participant(void **state)
{
    assert_action(*state, tether__rdzv_exit_op, TETHER__RDZV_FINISH);
}

/* ---- Join ----------------------------------------------------------------------------------- */

static void join_raises_closed_if_rendezvous_is_closed(void **state)
{
    struct situation *situation = *state;
    situation->state.closed = true;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ERROR_CLOSED);
}

static void join_exits_gracefully_if_rendezvous_is_closed_and_node_is_redundant(void **state)
{
    struct situation *situation = *state;
    situation->state.closed = true;
    put_in(&situation->state.redundancy_list, THIS, 0);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ERROR_GRACEFUL_EXIT);
}

static void join_finishes_if_rendezvous_is_complete_and_node_is_participant(void **state)
{
    struct situation *situation = *state;
    put_in(&situation->state.participants, THIS, 0);
    situation->state.complete = true;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_FINISH);
}

static void assert_waits_rendezvous_completion(struct situation *situation)
{
    put_heard(&situation->state, THIS, NOW - INTERVAL);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_KEEP_ALIVE);
    put_heard(&situation->state, THIS, NOW - INTERVAL + S);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_SYNC);
}

static void join_treats_as_redundancy_if_rendezvous_is_complete(void **state)
{
    struct situation *situation = *state;
    situation->settings.max_nodes = 1;
    situation->state.complete = true;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ADD_TO_REDUNDANCY_LIST);
}

static void join_waits_next_round_if_complete_and_node_is_redundant(void **state)
{
    struct situation *situation = *state;
    put_in(&situation->state.redundancy_list, THIS, 0);
    situation->settings.max_nodes = 1;
    situation->state.complete = true;
    assert_waits_rendezvous_completion(situation);
}

static void join_stops_being_redundant_when_there_is_room(void **state)
{
    struct situation *situation = *state;
    put_in(&situation->state.redundancy_list, THIS, 0);
    situation->state.complete = true;
    situation->deadline = 0;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_REMOVE_FROM_REDUNDANCY_LIST);
}

static void join_waits_next_round_if_complete_and_node_is_in_wait_list(void **state)
{
    struct situation *situation = *state;
    put_in(&situation->state.wait_list, THIS, 0);
    situation->state.complete = true;
    assert_waits_rendezvous_completion(situation);
}

static void join_adds_to_wait_list_if_complete_and_there_is_room(void **state)
{
    struct situation *situation = *state;
    situation->state.complete = true;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ADD_TO_WAIT_LIST);
}

static void join_waits_rendezvous_to_complete_if_node_is_participant(void **state)
{
    struct situation *situation = *state;
    situation->settings.max_nodes = 3;
    put_in(&situation->state.participants, THIS, 0);
    situation->state.deadline = NOW;
    assert_waits_rendezvous_completion(situation);
}

static void join_marks_complete_if_node_is_participant_and_last_call_is_over(void **state)
{
    struct situation *situation = *state;
    situation->settings.max_nodes = 3;
    put_in(&situation->state.participants, THIS, 0);
    situation->state.deadline = NOW - S;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_MARK_COMPLETE);
}

static void join_adds_to_participants(void **state)
{
    assert_action(*state, tether__rdzv_join_op, TETHER__RDZV_ADD_TO_PARTICIPANTS);
}

static void join_raises_timeout_if_deadline_exceeded(void **state)
{
    struct situation *situation = *state;
    situation->deadline = 0;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ERROR_TIMEOUT);
}

static void join_raises_timeout_if_rollback_is_over_and_node_is_participant(void **state)
{
    struct situation *situation = *state;
    situation->deadline = 0;
    put_in(&situation->state.participants, THIS, 0);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ERROR_TIMEOUT);
}

static void join_raises_timeout_if_rollback_is_over_and_node_is_in_wait_list(void **state)
{
    struct situation *situation = *state;
    situation->deadline = 0;
    put_in(&situation->state.wait_list, THIS, 0);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ERROR_TIMEOUT);
}

static void join_removes_from_participants_if_timed_out_but_rollback_is_not_over(void **state)
{
    struct situation *situation = *state;
    situation->deadline = 5 * S;
    put_in(&situation->state.participants, THIS, 0);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_REMOVE_FROM_PARTICIPANTS);
}

static void join_removes_from_wait_list_if_timed_out_but_rollback_is_not_over(void **state)
{
    struct situation *situation = *state;
    situation->deadline = 5 * S;
    put_in(&situation->state.wait_list, THIS, 0);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_REMOVE_FROM_WAIT_LIST);
}

static void join_has_no_timeout_for_redundant_node(void **state)
{
    struct situation *situation = *state;
    situation->settings.max_nodes = 1;
    situation->deadline = 0;
    situation->state.complete = true;
    put_in(&situation->state.redundancy_list, THIS, 0);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_SYNC);
}

static void join_keeps_redundant_node_alive(void **state)
{
    struct situation *situation = *state;
    situation->deadline = 0;
    situation->settings.max_nodes = 1;
    situation->state.complete = true;
    put_in(&situation->state.redundancy_list, THIS, 0);
    put_heard(&situation->state, THIS, NOW - INTERVAL);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_KEEP_ALIVE);
}

/* The decisions on a partial state, which only counts the other nodes, are the same. */
static void join_decides_alike_on_a_partial_state(void **test_state)
{
    struct situation *situation = *test_state;
    struct tether__rdzv_state *state = &situation->state;
    tether__rdzv_state_fini(state);
    state->others.participants = 1;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ADD_TO_PARTICIPANTS);
    state->complete = true;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ADD_TO_WAIT_LIST);
    state->others.participants = 2;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_ADD_TO_REDUNDANCY_LIST);
    put_in(&state->redundancy_list, THIS, 0);
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_SYNC);
    state->others.participants = 1;
    assert_action(situation, tether__rdzv_join_op, TETHER__RDZV_REMOVE_FROM_REDUNDANCY_LIST);
}

/* ---- Close ---------------------------------------------------------------------------------- */

static void close_finishes_if_rendezvous_is_closed(void **state)
{
    struct situation *situation = *state;
    situation->state.closed = true;
    assert_action(situation, tether__rdzv_close_op, TETHER__RDZV_FINISH);
}

static void close_raises_timeout_if_deadline_exceeded(void **state)
{
    struct situation *situation = *state;
    situation->deadline = 0;
    assert_action(situation, tether__rdzv_close_op, TETHER__RDZV_ERROR_TIMEOUT);
}

static void close_marks_rendezvous_closed(void **state)
{
    assert_action(*state, tether__rdzv_close_op, TETHER__RDZV_MARK_CLOSED);
}

/* ---- Keep-alive ----------------------------------------------------------------------------- */

static void keep_alive_updates_if_needed(void **state)
{
    struct situation *situation = *state;
    for (int late = 0; late < 2; late++) {
        put_heard(&situation->state, THIS, NOW - INTERVAL - late * S);
        assert_action(situation, tether__rdzv_keep_alive_op, TETHER__RDZV_KEEP_ALIVE);
    }
}

static void keep_alive_raises_timeout_if_deadline_exceeded(void **state)
{
    struct situation *situation = *state;
    situation->deadline = 0;
    put_heard(&situation->state, THIS, NOW - INTERVAL);
    assert_action(situation, tether__rdzv_keep_alive_op, TETHER__RDZV_ERROR_TIMEOUT);
}

static void keep_alive_finishes_if_no_update_is_needed(void **state)
{
    struct situation *situation = *state;
    put_heard(&situation->state, THIS, NOW - INTERVAL + S);
    assert_action(situation, tether__rdzv_keep_alive_op, TETHER__RDZV_FINISH);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(exit_removes_from_participants_if_node_is_participant),
        TEST(exit_raises_timeout_if_deadline_exceeded),
        TEST(exit_finishes_if_node_is_not_participant),
        TEST(join_raises_closed_if_rendezvous_is_closed),
        TEST(join_exits_gracefully_if_rendezvous_is_closed_and_node_is_redundant),
        TEST(join_finishes_if_rendezvous_is_complete_and_node_is_participant),
        TEST(join_treats_as_redundancy_if_rendezvous_is_complete),
        TEST(join_waits_next_round_if_complete_and_node_is_redundant),
        TEST(join_stops_being_redundant_when_there_is_room),
        TEST(join_waits_next_round_if_complete_and_node_is_in_wait_list),
        TEST(join_adds_to_wait_list_if_complete_and_there_is_room),
        TEST(join_waits_rendezvous_to_complete_if_node_is_participant),
        TEST(join_marks_complete_if_node_is_participant_and_last_call_is_over),
        TEST(join_adds_to_participants),
        TEST(join_raises_timeout_if_deadline_exceeded),
        TEST(join_raises_timeout_if_rollback_is_over_and_node_is_participant),
        TEST(join_raises_timeout_if_rollback_is_over_and_node_is_in_wait_list),
        TEST(join_removes_from_participants_if_timed_out_but_rollback_is_not_over),
        TEST(join_removes_from_wait_list_if_timed_out_but_rollback_is_not_over),
        TEST(join_has_no_timeout_for_redundant_node),
        TEST(join_keeps_redundant_node_alive),
        TEST(join_decides_alike_on_a_partial_state),
        TEST(close_finishes_if_rendezvous_is_closed),
        TEST(close_raises_timeout_if_deadline_exceeded),
        TEST(close_marks_rendezvous_closed),
        TEST(keep_alive_updates_if_needed),
        TEST(keep_alive_raises_timeout_if_deadline_exceeded),
        TEST(keep_alive_finishes_if_no_update_is_needed),
    };
    return cmocka_run_group_tests_name("dynamic ops", tests, NULL, NULL);
}
