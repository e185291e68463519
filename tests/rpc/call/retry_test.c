/* Control messages that are tried again: a tick costs as much as the retries that are due, and
 * retries that wait for the budget of their peer cost no more than one of them does.
 *
 * The peers are in the simulation, and w0 has not met them: nothing runs between the steps of a
 * test. The test itself is the clock of the timers.
 */
#include "rpc/call/retry.h"

#include <stdlib.h>
#include <time.h>

#include "rpc/agent/internal.h"
#include "rpc/call/budget.h"
#include "rpc/peer/peer.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/world.h"

enum { FEW = 100, MANY = 16000, MOST = 16000, ATTEMPTS = 5, MOST_TIMES = 6 };

/* A message; `result` is what becomes of its next attempt. */
struct message {
    struct fixture *fixture;
    enum tether__attempt_result result;
    int n_attempts, n_given_up;
    int place; /* the number of its last attempt among those of all messages; 0: none */
};

struct fixture {
    struct tether_test_world world;
    struct tether__peer *peers[2]; /* w1, w2 */
    int64_t now;
    int n_attempts; /* of all messages */
    struct message messages[MOST];
};

static int start(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    tether_test_world_start(&fixture->world, TETHER_TEST_SIM, 3, NULL);
    tether_agent *agent = fixture->world.agents[0];
    assert_int_equal(tether__agent_peer(agent, "w1", &fixture->peers[0], NULL), TETHER_OK);
    assert_int_equal(tether__agent_peer(agent, "w2", &fixture->peers[1], NULL), TETHER_OK);
    fixture->now = tether__clock_now_ns(agent->clock);
    *state = fixture;
    return 0;
}

static int stop(void **state)
{
    struct fixture *fixture = *state;
    tether__peer_release(fixture->peers[0]);
    tether__peer_release(fixture->peers[1]);
    tether_test_world_stop(&fixture->world);
    free(fixture);
    return 0;
}

static enum tether__attempt_result attempt(void *userdata,
                                           struct tether__peer *peer,
                                           tether_status *ret_why)
{
    struct message *message = userdata;
    (void)peer;
    message->n_attempts++;
    message->place = ++message->fixture->n_attempts;
    *ret_why = TETHER_ENOMEM;
    return message->result;
}

static void give_up(void *userdata, struct tether__peer *peer, tether_status status)
{
    struct message *message = userdata;
    (void)peer, (void)status;
    message->n_given_up++;
}

/* The first attempt of message `i` has failed. */
static struct message *fail_first(struct fixture *fixture, size_t i, struct tether__peer *peer)
{
    struct message *message = &fixture->messages[i];
    *message = (struct message){.fixture = fixture, .result = TETHER__ATTEMPT_SENT};
    assert_int_equal(tether__retry_later(peer, TETHER_ENOMEM, attempt, give_up, message),
                     TETHER_OK);
    return message;
}

static int64_t tick(struct fixture *fixture, int64_t at)
{
    return tether__retries_tick(fixture->world.agents[0], at);
}

/* Runs the timers until none is due at `at`. */
static int64_t tick_until_done(struct fixture *fixture, int64_t at)
{
    int64_t next = at;
    for (int i = 0; next <= at && i < MOST; i++)
        next = tick(fixture, at);
    assert_true(next > at);
    return next;
}

static void empty_budget(struct tether__peer *peer, int64_t now)
{
    peer->budget = (struct tether__budget){0, now};
}

static int64_t after_ms(const struct fixture *fixture, int64_t ms)
{
    return fixture->now + ms * TETHER__NS_PER_MS;
}

/* ---- Order ---- */

static void retries_run_in_the_order_of_their_due_times(void **state)
{
    struct fixture *fixture = *state;
    struct message *again = fail_first(fixture, 0, fixture->peers[0]);
    again->result = TETHER__ATTEMPT_FAILED;
    assert_int_equal(tick(fixture, after_ms(fixture, 999)), after_ms(fixture, 1000));
    assert_int_equal(again->n_attempts, 0);
    assert_int_equal(tick(fixture, after_ms(fixture, 1000)), after_ms(fixture, 2000));
    struct message *fresh = fail_first(fixture, 1, fixture->peers[0]); /* due at 1000 */
    again->result = TETHER__ATTEMPT_SENT;
    assert_int_equal(tick(fixture, after_ms(fixture, 2000)), TETHER__NEVER);
    assert_int_equal(fresh->place, 2);
    assert_int_equal(again->place, 3);
}

/* ---- The budget ---- */

static void retries_keep_their_order_when_they_wait_for_the_budget(void **state)
{
    struct fixture *fixture = *state;
    struct tether__peer *peer = fixture->peers[0];
    enum { N = 20 };
    for (size_t i = 0; i < N; i++) {
        fail_first(fixture, i, peer);
        tether_sim_run(fixture->world.sim, NULL, NULL, 1);
    }
    fixture->now = tether__clock_now_ns(peer->agent->clock);
    empty_budget(peer, after_ms(fixture, 1000));
    int64_t next = tick_until_done(fixture, after_ms(fixture, 1000));
    assert_int_equal(next, after_ms(fixture, 11000)); /* a token comes every ten seconds */
    assert_int_equal(peer->metrics.retries_put_off, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(fixture->n_attempts, i);
        next = tick_until_done(fixture, next);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(fixture->messages[i].place, i + 1);
    assert_int_equal(next, TETHER__NEVER);
    assert_int_equal(peer->metrics.retries, N);
}

static void retries_of_one_peer_do_not_wait_for_the_budget_of_another(void **state)
{
    struct fixture *fixture = *state;
    for (size_t i = 0; i < 10; i++)
        fail_first(fixture, i, fixture->peers[i % 2]);
    empty_budget(fixture->peers[0], after_ms(fixture, 1000));
    tick_until_done(fixture, after_ms(fixture, 1000));
    for (int i = 0; i < 10; i++)
        assert_int_equal(fixture->messages[i].n_attempts, i % 2);
    tick_until_done(fixture, after_ms(fixture, 3600000));
    for (int i = 0; i < 10; i++)
        assert_int_equal(fixture->messages[i].n_attempts, 1);
}

static void ended_requests_leave_when_the_budget_has_one_token(void **state)
{
    struct fixture *fixture = *state;
    for (size_t i = 0; i < FEW; i++)
        fail_first(fixture, i, fixture->peers[0])->result = TETHER__ATTEMPT_ENDED;
    empty_budget(fixture->peers[0], after_ms(fixture, 1000));
    int64_t next = tick_until_done(fixture, after_ms(fixture, 1000));
    assert_int_equal(fixture->n_attempts, 0);
    assert_int_equal(tick_until_done(fixture, next), TETHER__NEVER);
    assert_int_equal(fixture->n_attempts, FEW);
}

static void all_retries_are_given_up_when_the_agent_stops(void **state)
{
    struct fixture *fixture = *state;
    for (size_t i = 0; i < FEW; i++)
        fail_first(fixture, i, fixture->peers[i % 2]);
    empty_budget(fixture->peers[0], after_ms(fixture, 1000));
    for (size_t i = 0; i < FEW; i++)
        fixture->messages[i].result = TETHER__ATTEMPT_FAILED;
    tick_until_done(fixture, after_ms(fixture, 1000)); /* w2's budget has some tokens */
    tether__retries_fini(fixture->world.agents[0]);
    for (int i = 0; i < FEW; i++)
        assert_int_equal(fixture->messages[i].n_given_up, 1);
}

/* ---- Cost ---- */

static double cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* The cost of each of `n` retries until all have been sent: they become due at once, and the budget
 * has a token for one of them at a time. */
static double cost_of_one_of(struct fixture *fixture, size_t n)
{
    struct tether__peer *peer = fixture->peers[0];
    fixture->n_attempts = 0;
    for (size_t i = 0; i < n; i++)
        fail_first(fixture, i, peer);
    empty_budget(peer, after_ms(fixture, 1000));
    double before = cpu_ns();
    for (int64_t next = after_ms(fixture, 1000); next != TETHER__NEVER;)
        next = tick(fixture, next);
    double cost = (cpu_ns() - before) / (double)n;
    assert_int_equal(fixture->n_attempts, n);
    return cost;
}

static void retry_cost_is_constant_when_many_wait_for_the_budget(void **state)
{
    double of_few = 0, of_many = 0;
    for (int i = 0; i < ATTEMPTS; i++) {
        of_few = cost_of_one_of(*state, FEW);
        of_many = cost_of_one_of(*state, MANY);
        if (of_many < MOST_TIMES * of_few + 100)
            return;
    }
    fail_msg("%.0f ns for one of %d, %.0f ns for one of %d", of_few, FEW, of_many, MANY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(retries_run_in_the_order_of_their_due_times, start, stop),
        cmocka_unit_test_setup_teardown(retries_keep_their_order_when_they_wait_for_the_budget,
                                        start, stop),
        cmocka_unit_test_setup_teardown(retries_of_one_peer_do_not_wait_for_the_budget_of_another,
                                        start, stop),
        cmocka_unit_test_setup_teardown(ended_requests_leave_when_the_budget_has_one_token, start,
                                        stop),
        cmocka_unit_test_setup_teardown(all_retries_are_given_up_when_the_agent_stops, start, stop),
        cmocka_unit_test_setup_teardown(retry_cost_is_constant_when_many_wait_for_the_budget, start,
                                        stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
