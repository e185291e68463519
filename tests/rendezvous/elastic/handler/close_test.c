/* The handler: closed rendezvous, waiting nodes, members, and shutting down (seed class
 * DynamicRendezvousHandlerTest). */
#include "rendezvous/elastic/handler/internal.h"
#include "tests/rendezvous/elastic/handler/fixture.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

/* ---- Closed --------------------------------------------------------------------------------- */

static void test_is_closed_returns_expected_value(void **state)
{
    struct fixture *f = *state;
    for (int closed = 0; closed < 2; closed++) {
        f->holder.state.closed = closed;
        f->holder.syncs = 0;
        tether_rdzv *rdzv = handler_create(f);
        bool answer = !closed;
        assert_int_equal(tether_rdzv_is_closed(rdzv, &answer, NULL), TETHER_OK);
        assert_int_equal(answer, closed);
        assert_int_equal(f->holder.syncs, 1);
        tether_rdzv_release(rdzv);
    }
}

static void test_is_closed_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EIO;
    tether_rdzv *rdzv = handler_create(f);
    bool closed = true;
    tether_error err = {0};
    assert_int_equal(tether_rdzv_is_closed(rdzv, &closed, &err), TETHER_EIO);
    assert_string_equal(err.message, "test error");
    assert_true(closed); /* set on success only */
    assert_int_equal(f->failures, 1);
    assert_string_equal(f->last_event, "is_closed");
    tether_rdzv_release(rdzv);
}

static void test_set_closed_closes_rendezvous(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = handler_create(f);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_OK);
    assert_true(f->holder.state.closed);
    tether_rdzv_release(rdzv);
}

static void test_set_closed_respects_the_requested_timeout(void **state)
{
    struct fixture *f = *state;
    f->holder.sync_takes_ns = 300 * TETHER__NS_PER_MS;
    f->settings.timeouts.close_ms = 200;
    tether_rdzv *rdzv = handler_create(f);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_ETIMEOUT);
    tether_rdzv_release(rdzv);
}

static void test_set_closed_can_be_called_multiple_times(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = handler_create(f);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_OK);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_OK);
    assert_true(f->holder.state.closed);
    tether_rdzv_release(rdzv);
}

static void test_set_closed_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EUNAVAILABLE;
    tether_rdzv *rdzv = handler_create(f);
    assert_int_equal(tether_rdzv_set_closed(rdzv, NULL), TETHER_EUNAVAILABLE);
    assert_int_equal(f->failures, 1);
    assert_string_equal(f->last_event, "set_closed");
    tether_rdzv_release(rdzv);
}

/* ---- Waiting nodes, and members ------------------------------------------------------------- */

static void test_num_nodes_waiting_returns_expected_value(void **state)
{
    struct fixture *f = *state;
    put_in(&f->holder.state.wait_list, "dummy1", 0);
    put_in(&f->holder.state.wait_list, "dummy2", 0);
    tether_rdzv *rdzv = handler_create(f);
    int count = 0;
    assert_int_equal(tether_rdzv_num_nodes_waiting(rdzv, &count, NULL), TETHER_OK);
    assert_int_equal(count, 2);
    assert_int_equal(f->holder.syncs, 1);

    /* A second call at once makes no request to the store. */
    assert_int_equal(tether_rdzv_num_nodes_waiting(rdzv, &count, NULL), TETHER_OK);
    assert_int_equal(f->holder.syncs, 1);
    tether_test_clock_advance_ms(&f->env.clock, 1000);
    assert_int_equal(tether_rdzv_num_nodes_waiting(rdzv, &count, NULL), TETHER_OK);
    assert_int_equal(f->holder.syncs, 2);
    tether_rdzv_release(rdzv);
}

static void test_num_nodes_waiting_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_ETIMEOUT;
    tether_rdzv *rdzv = handler_create(f);
    int count = -1;
    assert_int_equal(tether_rdzv_num_nodes_waiting(rdzv, &count, NULL), TETHER_ETIMEOUT);
    assert_int_equal(count, -1);
    assert_int_equal(f->failures, 1);
    tether_rdzv_release(rdzv);
}

/* All reasons to call next() again. */
static void members_reports_change_of_group(void **state)
{
    struct fixture *f = *state;
    put_in(&f->holder.state.participants, "dummy1", 0);
    f->settings.min_nodes = f->settings.max_nodes = 2;
    tether_rdzv *rdzv = handler_create(f);
    struct tether_rdzv_members members;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_false(members.changed); /* not joined yet */
    struct tether_rdzv_info info = handler_next(rdzv);
    tether__rdzv_stop_heartbeats(rdzv);

    struct tether__rdzv_state *seen = &f->holder.state;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_false(members.changed);
    assert_int_equal(members.world_size, 2);
    assert_int_equal(members.participants, 2);

    put_in(&seen->wait_list, "newcomer", 0);
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_true(members.changed);
    assert_int_equal(members.waiting, 1);
    struct tether__rdzv_node newcomer = node_of("newcomer"), peer = node_of("dummy1");
    tether__rdzv_roster_remove(&seen->wait_list, &newcomer);

    tether__rdzv_roster_remove(&seen->participants, &peer);
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_true(members.changed);
    assert_int_equal(members.participants, 1);
    put_in(&seen->participants, "dummy1", 0);

    seen->closed = true;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_true(members.changed && members.closed);
    seen->closed = false;

    seen->round++;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_true(members.changed);
    seen->round--;
    assert_int_equal(tether_rdzv_members(rdzv, &members, NULL), TETHER_OK);
    assert_false(members.changed);
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

/* ---- Shutting down -------------------------------------------------------------------------- */

static void test_shutdown_closes_rendezvous_and_returns_true(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = handler_create(f);
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    assert_true(f->holder.state.closed);
    tether_rdzv_release(rdzv);
}

static void test_shutdown_returns_false_if_rendezvous_cannot_be_closed(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EUNAVAILABLE;
    tether_rdzv *rdzv = handler_create(f);
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_EUNAVAILABLE);
    tether_rdzv_release(rdzv);
}

static void test_shutdown_can_be_called_multiple_times(void **state)
{
    struct fixture *f = *state;
    tether_rdzv *rdzv = handler_create(f);
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    assert_int_equal(tether_rdzv_shutdown(rdzv, NULL), TETHER_OK);
    assert_true(f->holder.state.closed);
    tether_rdzv_release(rdzv);
}

static void test_shutdown_records_and_raises_exceptions(void **state)
{
    struct fixture *f = *state;
    f->holder.fail = TETHER_EINTERNAL;
    tether_rdzv *rdzv = handler_create(f);
    tether_error err = {0};
    assert_int_equal(tether_rdzv_shutdown(rdzv, &err), TETHER_EINTERNAL);
    assert_string_equal(err.message, "test error");
    assert_int_equal(f->failures, 1);
    tether_rdzv_release(rdzv);
}

/* leave() must not close the job. */
static void leave_removes_only_this_node(void **state)
{
    struct fixture *f = *state;
    put_in(&f->holder.state.participants, "dummy1", 0);
    f->settings.max_nodes = 2;
    tether_rdzv *rdzv = handler_create(f);
    struct tether_rdzv_info info = handler_next(rdzv);
    assert_int_equal(tether_rdzv_leave(rdzv, NULL), TETHER_OK);
    assert_int_equal(f->holder.state.participants.n, 1);
    assert_false(f->holder.state.closed);
    assert_false(rdzv->beating);
    tether_rdzv_info_fini(&info);
    tether_rdzv_release(rdzv);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, handler_setup, handler_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_is_closed_returns_expected_value),
        TEST(test_is_closed_records_and_raises_exceptions),
        TEST(test_set_closed_closes_rendezvous),
        TEST(test_set_closed_respects_the_requested_timeout),
        TEST(test_set_closed_can_be_called_multiple_times),
        TEST(test_set_closed_records_and_raises_exceptions),
        TEST(test_num_nodes_waiting_returns_expected_value),
        TEST(test_num_nodes_waiting_records_and_raises_exceptions),
        TEST(members_reports_change_of_group),
        TEST(test_shutdown_closes_rendezvous_and_returns_true),
        TEST(test_shutdown_returns_false_if_rendezvous_cannot_be_closed),
        TEST(test_shutdown_can_be_called_multiple_times),
        TEST(test_shutdown_records_and_raises_exceptions),
        TEST(leave_removes_only_this_node),
    };
    return cmocka_run_group_tests_name("dynamic handler", tests, NULL, NULL);
}
