/* The executor and the actions (seed class DistributedRendezvousOpExecutorTest). */
#include "rendezvous/elastic/sync/executor.h"

#include <stdio.h>
#include <string.h>

#include "tests/lib/heap.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

#define THIS "this_node"

struct fixture {
    struct fake_env env;
    struct fake_holder holder;
    struct tether_rdzv_settings settings;
    struct tether__rdzv_self self;
    struct tether__rdzv_executor executor;
    int64_t now;
};

static struct fixture fixture;

/* The answers of the op in order, and the arguments of its last call. */
static struct {
    enum tether__rdzv_action answers[4];
    int n;
    struct tether__rdzv_context context;
    int64_t deadline;
} script;

static enum tether__rdzv_action scripted_op(const struct tether__rdzv_context *context,
                                            int64_t deadline)
{
    script.context = *context;
    script.deadline = deadline;
    return script.answers[script.n++];
}

static int setup(void **state)
{
    memset(&fixture, 0, sizeof fixture);
    fake_env_init(&fixture.env);
    fake_holder_init(&fixture.holder, &fixture.env);
    fixture.settings = test_settings(1, 1);
    fixture.self = (struct tether__rdzv_self){node_of(THIS), -1, -1, 0};
    fixture.executor = (struct tether__rdzv_executor){
        .self = &fixture.self,
        .holder = &fixture.holder.base,
        .settings = &fixture.settings,
        .env = &fixture.env.base,
    };
    fixture.now = fake_env_now(&fixture.env);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    fake_holder_fini(&f->holder);
    return 0;
}

/* Makes the op return `action` and then FINISH. */
static tether_status run_action(struct fixture *f, enum tether__rdzv_action action)
{
    memset(f->holder.calls, 0, sizeof f->holder.calls);
    f->holder.n_calls = 0;
    script.answers[0] = action;
    script.answers[1] = TETHER__RDZV_FINISH;
    script.n = 0;
    return tether__rdzv_execute(&f->executor, scripted_op, f->now + S, NULL);
}

/* Asserts that the action, between two syncs, leaves the expected state. */
static void assert_action(struct fixture *f,
                          enum tether__rdzv_action action,
                          struct tether__rdzv_state *expected)
{
    assert_int_equal(run_action(f, action), TETHER_OK);
    assert_state_equal(&f->holder.state, expected);
    assert_string_equal(f->holder.calls, "sms");
    tether__rdzv_state_fini(expected);
}

static void test_run_passes_expected_context_and_deadline_to_state_handler(void **state)
{
    struct fixture *f = *state;
    script.answers[0] = TETHER__RDZV_FINISH;
    script.n = 0;
    assert_int_equal(tether__rdzv_execute(&f->executor, scripted_op, 3 * S, NULL), TETHER_OK);
    assert_ptr_equal(script.context.node, &f->self.node);
    assert_ptr_equal(script.context.state, &f->holder.state);
    assert_ptr_equal(script.context.settings, &f->settings);
    assert_int_equal(script.context.now, f->now);
    assert_int_equal(script.deadline, 3 * S);
}

static void test_run_keeps_alive(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected;
    tether__rdzv_state_init(&expected);
    put_heard(&expected, THIS, f->now);
    assert_action(f, TETHER__RDZV_KEEP_ALIVE, &expected);
}

static void test_run_adds_to_participants(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected;
    tether__rdzv_state_init(&expected);
    put_in(&expected.participants, THIS, 0);
    put_heard(&expected, THIS, f->now);
    f->settings.min_nodes = f->settings.max_nodes = 2;
    assert_action(f, TETHER__RDZV_ADD_TO_PARTICIPANTS, &expected);
}

static void test_run_adds_to_participants_if_node_was_in_waitlist(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected;
    put_in(&f->holder.state.wait_list, THIS, 0);
    tether__rdzv_state_init(&expected);
    put_in(&expected.participants, THIS, 0);
    put_heard(&expected, THIS, f->now);
    f->settings.min_nodes = f->settings.max_nodes = 2;
    assert_action(f, TETHER__RDZV_ADD_TO_PARTICIPANTS, &expected);
}

static void add_participants(struct fixture *f,
                             struct tether__rdzv_state *state,
                             int n,
                             bool ranked)
{
    for (int i = 0; i < n; i++) {
        char addr[24];
        int number = ranked ? i : n - i - 1; /* in reverse */
        snprintf(addr, sizeof addr, "dummy%d", number);
        put_in(&state->participants, addr, ranked ? i : 0);
        put_heard(state, addr, f->now);
    }
}

static void test_run_adds_to_participants_and_starts_last_call_if_min_nodes_is_reached(void **state)
{
    struct fixture *f = *state;
    for (int n = 0; n < 3; n++) {
        struct tether__rdzv_state expected;
        tether__rdzv_state_fini(&f->holder.state);
        add_participants(f, &f->holder.state, n, false);
        put_in(&f->holder.state.wait_list, THIS, 0);
        tether__rdzv_state_init(&expected);
        add_participants(f, &expected, n, false);
        put_in(&expected.participants, THIS, 0);
        put_heard(&expected, THIS, f->now);
        expected.deadline = f->now + f->settings.timeouts.last_call_ms * TETHER__NS_PER_MS;
        f->settings.min_nodes = n + 1;
        f->settings.max_nodes = n + 2;
        assert_action(f, TETHER__RDZV_ADD_TO_PARTICIPANTS, &expected);
    }
}

static void test_run_adds_to_participants_and_completes_rendezvous_if_max_nodes_is_reached(
    void **state)
{
    struct fixture *f = *state;
    for (int equal = 0; equal < 2; equal++) {
        for (int n = 0; n < 3; n++) {
            struct tether__rdzv_state expected;
            tether__rdzv_state_fini(&f->holder.state);
            add_participants(f, &f->holder.state, n, false);
            put_in(&f->holder.state.wait_list, THIS, 0);
            f->holder.state.deadline =
                f->now + f->settings.timeouts.last_call_ms * TETHER__NS_PER_MS;
            tether__rdzv_state_init(&expected);
            add_participants(f, &expected, n, true);
            put_in(&expected.participants, THIS, n);
            put_heard(&expected, THIS, f->now);
            expected.complete = true;
            expected.world_size = n + 1;
            f->settings.min_nodes = equal ? n + 1 : 0;
            f->settings.max_nodes = n + 1;
            assert_action(f, TETHER__RDZV_ADD_TO_PARTICIPANTS, &expected);
        }
    }
}

static void test_run_adds_to_waitlist(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected;
    tether__rdzv_state_init(&expected);
    put_in(&expected.wait_list, THIS, 0);
    put_heard(&expected, THIS, f->now);
    assert_action(f, TETHER__RDZV_ADD_TO_WAIT_LIST, &expected);
}

static void run_adds_and_removes_spare(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected;
    tether__rdzv_state_init(&expected);
    put_in(&expected.redundancy_list, THIS, 0);
    put_heard(&expected, THIS, f->now);
    assert_action(f, TETHER__RDZV_ADD_TO_REDUNDANCY_LIST, &expected);
    put_in(&expected.wait_list, THIS, 0);
    put_heard(&expected, THIS, f->now);
    assert_action(f, TETHER__RDZV_ADD_TO_WAIT_LIST, &expected);
    put_in(&f->holder.state.redundancy_list, THIS, 0);
    put_in(&expected.wait_list, THIS, 0);
    assert_action(f, TETHER__RDZV_REMOVE_FROM_REDUNDANCY_LIST, &expected);
}

static void test_run_removes_from_participants(void **state)
{
    struct fixture *f = *state;
    for (int complete = 0; complete < 2; complete++) {
        struct tether__rdzv_state expected, *actual = &f->holder.state;
        tether__rdzv_state_fini(actual);
        add_participants(f, actual, 2, false);
        put_in(&actual->participants, THIS, 0);
        put_heard(actual, THIS, f->now);
        actual->complete = complete;
        actual->deadline = complete ? TETHER__NEVER : f->now;
        actual->round = 1;
        tether__rdzv_state_init(&expected);
        add_participants(f, &expected, 2, false);
        expected.complete = complete;
        expected.deadline = complete ? TETHER__NEVER : f->now;
        expected.round = 1;
        assert_action(f, TETHER__RDZV_REMOVE_FROM_PARTICIPANTS, &expected);
    }
}

static void test_run_removes_from_participants_and_moves_to_next_round_if_node_is_last_participant(
    void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected, *actual = &f->holder.state;
    put_in(&actual->participants, THIS, 0);
    put_heard(actual, THIS, f->now);
    actual->complete = true;
    actual->world_size = 1;
    actual->round = 1;
    tether__rdzv_state_init(&expected);
    expected.round = 2;
    assert_action(f, TETHER__RDZV_REMOVE_FROM_PARTICIPANTS, &expected);
}

static void
test_run_removes_from_participants_and_clears_last_call_if_rendezvous_has_less_than_min_nodes(
    void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected, *actual = &f->holder.state;
    add_participants(f, actual, 2, false);
    put_in(&actual->participants, THIS, 0);
    put_heard(actual, THIS, f->now);
    actual->deadline = f->now;
    tether__rdzv_state_init(&expected);
    add_participants(f, &expected, 2, false);
    f->settings.min_nodes = 3;
    f->settings.max_nodes = 4;
    assert_action(f, TETHER__RDZV_REMOVE_FROM_PARTICIPANTS, &expected);
}

static void test_run_removes_from_waitlist(void **state)
{
    struct fixture *f = *state;
    struct tether__rdzv_state expected;
    put_in(&f->holder.state.wait_list, THIS, 0);
    put_heard(&f->holder.state, THIS, f->now);
    tether__rdzv_state_init(&expected);
    assert_action(f, TETHER__RDZV_REMOVE_FROM_WAIT_LIST, &expected);
}

static void test_run_marks_rendezvous_closed(void **state)
{
    struct tether__rdzv_state expected;
    tether__rdzv_state_init(&expected);
    expected.closed = true;
    assert_action(*state, TETHER__RDZV_MARK_CLOSED, &expected);
}

static void test_run_raises_error_if_rendezvous_is_closed(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(run_action(f, TETHER__RDZV_ERROR_CLOSED), TETHER_ECLOSED);
    assert_string_equal(f->holder.calls, "s");
    assert_int_equal(run_action(f, TETHER__RDZV_ERROR_GRACEFUL_EXIT), TETHER_ESHUTDOWN);
}

static void test_run_raises_error_if_operation_timed_out(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(run_action(f, TETHER__RDZV_ERROR_TIMEOUT), TETHER_ETIMEOUT);
    assert_string_equal(f->holder.calls, "s");
}

static void test_run_delays_execution_if_sync_requested(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(run_action(f, TETHER__RDZV_SYNC), TETHER_OK);
    assert_string_equal(f->holder.calls, "sps");
    assert_int_equal(f->holder.last_pause_ns, S);
}

/* A lost write is retried after a random delay. */
static void run_backs_off_after_lost_compare_and_set(void **state)
{
    struct fixture *f = *state;
    f->holder.next_sync = TETHER__RDZV_LOST;
    f->holder.dirty = true;
    assert_int_equal(run_action(f, TETHER__RDZV_MARK_CLOSED), TETHER_OK);
    assert_string_equal(f->holder.calls, "ssms");
    assert_int_equal(f->env.delays, 1);
    assert_in_range(f->env.last_delay_ns, 1, 10 * TETHER__NS_PER_MS);
}

/* A request to the leader is not repeated while it is not answered. */
static void run_waits_for_answer_of_leader(void **state)
{
    struct fixture *f = *state;
    f->holder.next_sync = TETHER__RDZV_ASKED;
    script.answers[0] = script.answers[1] = TETHER__RDZV_MARK_CLOSED;
    script.answers[2] = TETHER__RDZV_FINISH;
    script.n = 0;
    assert_int_equal(tether__rdzv_execute(&f->executor, scripted_op, f->now + S, NULL), TETHER_OK);
    assert_string_equal(f->holder.calls, "smsps");
}

static void run_ends_when_canceled(void **state)
{
    struct fixture *f = *state;
    atomic_bool cancel = true;
    f->executor.cancel = &cancel;
    assert_int_equal(run_action(f, TETHER__RDZV_SYNC), TETHER_ECANCELED);
    assert_string_equal(f->holder.calls, "s");
}

/* A spare that is let in has the full time to join. */
static void run_restarts_deadline_when_spare_is_let_in(void **state)
{
    struct fixture *f = *state;
    f->settings.max_nodes = 2;
    put_in(&f->holder.state.redundancy_list, THIS, 0);
    f->settings.timeouts.join_ms = 7000;
    script.answers[0] = TETHER__RDZV_REMOVE_FROM_REDUNDANCY_LIST;
    script.answers[1] = TETHER__RDZV_FINISH;
    script.n = 0;
    assert_int_equal(tether__rdzv_execute(&f->executor, scripted_op, f->now - S, NULL), TETHER_OK);
    assert_int_equal(script.deadline, f->now + 7 * S);
}

static tether_status act(void *userdata)
{
    (void)userdata;
    struct tether__rdzv_state state;
    struct tether_rdzv_settings settings = test_settings(1, 2);
    struct tether__rdzv_self self = {node_of(THIS), -1, -1, 0},
                             other = {node_of("dummy1"), -1, -1, 0};
    static const enum tether__rdzv_action steps[] = {TETHER__RDZV_ADD_TO_REDUNDANCY_LIST,
                                                     TETHER__RDZV_ADD_TO_WAIT_LIST,
                                                     TETHER__RDZV_ADD_TO_PARTICIPANTS};
    tether__rdzv_state_init(&state);
    tether_status st =
        tether__rdzv_apply(&state, TETHER__RDZV_ADD_TO_PARTICIPANTS, &other, &settings, 0);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(steps) && st == TETHER_OK; i++) {
        size_t before = state.participants.n + state.wait_list.n + state.redundancy_list.n;
        size_t heard = state.last_heartbeats.n;
        st = tether__rdzv_apply(&state, steps[i], &self, &settings, 0);
        if (st != TETHER_OK) { /* then nothing has changed */
            assert_int_equal(state.participants.n + state.wait_list.n + state.redundancy_list.n,
                             before);
            assert_int_equal(state.last_heartbeats.n, heard);
            assert_false(state.complete);
        }
    }
    tether__rdzv_state_fini(&state);
    return st;
}

static void actions_change_nothing_when_allocation_fails(void **state)
{
    (void)state;
    tether_test_heap_fail_each(act, NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_run_passes_expected_context_and_deadline_to_state_handler),
        TEST(test_run_keeps_alive),
        TEST(test_run_adds_to_participants),
        TEST(test_run_adds_to_participants_if_node_was_in_waitlist),
        TEST(test_run_adds_to_participants_and_starts_last_call_if_min_nodes_is_reached),
        TEST(test_run_adds_to_participants_and_completes_rendezvous_if_max_nodes_is_reached),
        TEST(test_run_adds_to_waitlist),
        TEST(run_adds_and_removes_spare),
        TEST(test_run_removes_from_participants),
        TEST(
            test_run_removes_from_participants_and_moves_to_next_round_if_node_is_last_participant),
        TEST(
            test_run_removes_from_participants_and_clears_last_call_if_rendezvous_has_less_than_min_nodes),
        TEST(test_run_removes_from_waitlist),
        TEST(test_run_marks_rendezvous_closed),
        TEST(test_run_raises_error_if_rendezvous_is_closed),
        TEST(test_run_raises_error_if_operation_timed_out),
        TEST(test_run_delays_execution_if_sync_requested),
        TEST(run_backs_off_after_lost_compare_and_set),
        TEST(run_waits_for_answer_of_leader),
        TEST(run_ends_when_canceled),
        TEST(run_restarts_deadline_when_spare_is_let_in),
        cmocka_unit_test(actions_change_nothing_when_allocation_fails),
    };
    return cmocka_run_group_tests_name("dynamic executor", tests, NULL, NULL);
}
