/* Deadlines of calls: a tick looks at those that are due and at no others, and it ends or asks
 * about a limited number of calls under one hold of the peer's lock.
 *
 * The peer is in the simulation, and w0 has not met it: nothing runs between the steps of a test.
 */
#include <stdlib.h>

#include "rpc/agent/internal.h"
#include "rpc/future/internal.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/timers.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/world.h"

enum { N = 10000, MOST_AT_ONCE = 128, TIMEOUT_MS = 1000 };

struct fixture {
    struct tether_test_world world;
    struct tether__peer *peer;
    struct tether__call *calls[N];
    int64_t now;
};

static int start(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    tether_test_world_start(&fixture->world, TETHER_TEST_SIM, 2, NULL);
    tether_agent *agent = fixture->world.agents[0];
    assert_int_equal(tether__agent_peer(agent, "w1", &fixture->peer, NULL), TETHER_OK);
    fixture->now = tether__clock_now_ns(agent->clock);
    *state = fixture;
    return 0;
}

static int stop(void **state)
{
    struct fixture *fixture = *state;
    tether__peer_release(fixture->peer);
    tether_test_world_stop(&fixture->world);
    free(fixture);
    return 0;
}

static struct tether__call *put_call(struct tether__peer *peer, int64_t deadline)
{
    struct tether__call *call;
    assert_int_equal(tether__call_new(peer->agent, peer, "f", deadline, &call), TETHER_OK);
    tether__peer_lock(peer);
    assert_int_equal(tether__call_put_locked(peer, call), TETHER_OK);
    tether__peer_unlock(peer);
    return call;
}

static void put_calls(struct fixture *fixture, int64_t apart_ns)
{
    for (int i = 0; i < N; i++) {
        int64_t deadline = fixture->now + TIMEOUT_MS * TETHER__NS_PER_MS + i * apart_ns;
        fixture->calls[i] = put_call(fixture->peer, deadline);
    }
}

static void release_calls(struct fixture *fixture)
{
    for (int i = 0; i < N; i++)
        tether_future_release(&fixture->calls[i]->future);
}

static int64_t tick(struct fixture *fixture, int64_t at)
{
    bool idle_is_over;
    return tether__peer_tick(fixture->peer, at, &idle_is_over);
}

/* Runs the timers until none is due at `at`. */
static void tick_until_done(struct fixture *fixture, int64_t at)
{
    for (int i = 0; i < N && tick(fixture, at) <= at; i++)
        ;
}

static int count_ended(const struct fixture *fixture)
{
    int n = 0;
    for (int i = 0; i < N; i++)
        n += tether_future_is_done(&fixture->calls[i]->future);
    return n;
}

static int count_asked(const struct fixture *fixture)
{
    int n = 0;
    for (int i = 0; i < N; i++)
        n += fixture->calls[i]->is_due;
    return n;
}

static void tick_ends_some_calls_when_many_have_one_deadline(void **state)
{
    struct fixture *fixture = *state;
    int64_t deadline = fixture->now + TIMEOUT_MS * TETHER__NS_PER_MS;
    put_calls(fixture, 0);
    for (int ended = 0, ticks = 0; ended < N; ticks++) {
        int64_t next = tick(fixture, deadline);
        int now_ended = count_ended(fixture);
        assert_in_range(now_ended - ended, 0, MOST_AT_ONCE);
        assert_in_range(ticks, 0, 4 * N / 64);
        assert_true(now_ended == N || next <= deadline); /* the next tick is due at once */
        ended = now_ended;
    }
    for (int i = 0; i < N; i++) {
        tether_error error;
        assert_int_equal(tether__future_result(&fixture->calls[i]->future, NULL, &error),
                         TETHER_ETIMEOUT);
    }
    release_calls(fixture);
}

static void tick_asks_about_some_calls_when_many_have_one_deadline(void **state)
{
    struct fixture *fixture = *state;
    int64_t ask_at = fixture->now + 900 * TETHER__NS_PER_MS;
    put_calls(fixture, 0);
    for (int asked = 0, ticks = 0; asked < N; ticks++) {
        tick(fixture, ask_at);
        int now_asked = count_asked(fixture);
        assert_in_range(now_asked - asked, 0, MOST_AT_ONCE);
        assert_in_range(ticks, 0, 4 * N / 64);
        asked = now_asked;
    }
    assert_int_equal(count_ended(fixture), 0);
    tick_until_done(fixture, ask_at + 200 * TETHER__NS_PER_MS);
    assert_int_equal(count_ended(fixture), N);
    release_calls(fixture);
}

/* The slots of calls that are not due hold another call meanwhile, which a scan would ask about. */
static void tick_leaves_other_calls_alone_when_one_is_due(void **state)
{
    struct fixture *fixture = *state;
    const int64_t apart = TETHER__NS_PER_MS, first = TIMEOUT_MS * TETHER__NS_PER_MS;
    struct tether__call decoy = {.peer = fixture->peer, .deadline = TETHER__NEVER};
    put_calls(fixture, apart);
    tick_until_done(fixture, fixture->now + 880 * TETHER__NS_PER_MS); /* all are in order now */
    struct tether__call_slot *slots = fixture->peer->session->slots;
    for (int i = 1; i < N; i++) {
        assert_ptr_equal(slots[i].call, fixture->calls[i]);
        slots[i].call = &decoy;
    }
    tick_until_done(fixture, fixture->now + first);
    for (int i = 1; i < N; i++)
        slots[i].call = fixture->calls[i];
    assert_false(decoy.is_due);
    assert_int_equal(count_ended(fixture), 1);
    assert_true(tether_future_is_done(&fixture->calls[0]->future));
    tick_until_done(fixture, fixture->now + first + N * apart);
    assert_int_equal(count_ended(fixture), N);
    release_calls(fixture);
}

static void calls_expire_at_their_own_deadlines_when_these_come_in_any_order(void **state)
{
    struct fixture *fixture = *state;
    const int64_t first = fixture->now + TIMEOUT_MS * TETHER__NS_PER_MS;
    unsigned order = 1;
    for (int i = 0; i < N; i++) {
        order = (order * 7 + 3) % N; /* some deadlines come more than once, or never */
        fixture->calls[i] = put_call(
            fixture->peer, i % 10 ? first + (int64_t)order * TETHER__NS_PER_MS : TETHER__NEVER);
        if (i == N / 2)
            tick_until_done(fixture, first - 200 * TETHER__NS_PER_MS); /* some are in order */
    }
    for (int ms = 0; ms <= N; ms += 500) {
        int64_t now = first + ms * TETHER__NS_PER_MS;
        tick_until_done(fixture, now);
        for (int i = 0; i < N; i++)
            assert_int_equal(tether_future_is_done(&fixture->calls[i]->future),
                             fixture->calls[i]->deadline <= now);
    }
    tether__session_fence(fixture->peer->session, "the test ends");
    tick_until_done(fixture, first);
    assert_int_equal(count_ended(fixture), N);
    release_calls(fixture);
}

/* Some calls have been put in order, some have not. */
static void tick_ends_nothing_when_all_calls_were_taken_out(void **state)
{
    struct fixture *fixture = *state;
    put_calls(fixture, 1);
    tick(fixture, fixture->now + 880 * TETHER__NS_PER_MS);
    for (int i = 0; i < N; i++) {
        tether__peer_lock(fixture->peer);
        assert_ptr_equal(tether__call_take_locked(fixture->peer, fixture->calls[i]->id),
                         fixture->calls[i]);
        tether__peer_unlock(fixture->peer);
        tether__call_abandon(fixture->calls[i], true);
    }
    tick_until_done(fixture, fixture->now + 2 * TIMEOUT_MS * TETHER__NS_PER_MS);
    assert_int_equal(fixture->peer->session->dues.next, TETHER__NEVER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tick_ends_some_calls_when_many_have_one_deadline, start,
                                        stop),
        cmocka_unit_test_setup_teardown(tick_asks_about_some_calls_when_many_have_one_deadline,
                                        start, stop),
        cmocka_unit_test_setup_teardown(tick_leaves_other_calls_alone_when_one_is_due, start, stop),
        cmocka_unit_test_setup_teardown(
            calls_expire_at_their_own_deadlines_when_these_come_in_any_order, start, stop),
        cmocka_unit_test_setup_teardown(tick_ends_nothing_when_all_calls_were_taken_out, start,
                                        stop),
    };
    return cmocka_run_group_tests_name("deadlines of calls", tests, NULL, NULL);
}
