/* The faulty agent: chosen kinds of messages fail a chosen number of times, and every reference is
 * still confirmed, passed on and collected. In virtual time, so the waits cost nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/call/budget.h"
#include "rpc/call/retry.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/world.h"

static struct {
    uint32_t kind;
    int left; /* how many more attempts fail */
    int n_asked;
} fault;

static tether_status before_send(void *userdata, const char *peer, uint32_t kind)
{
    (void)userdata, (void)peer;
    if (kind != fault.kind)
        return TETHER_OK;
    fault.n_asked++;
    if (fault.left == 0)
        return TETHER_OK;
    fault.left--;
    return TETHER_EUNAVAILABLE;
}

static tether_rref *held;

static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)ret_value, (void)reterr;
    tether_rref_release(held);
    held = tether_rref_retain(tether_value_rref(arg, 0));
    return TETHER_OK;
}

static void register_keep(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_inline(agent, "keep", keep, NULL, NULL), TETHER_OK);
}

static void start(struct tether_test_world *w)
{
    fault.left = fault.n_asked = 0;
    fault.kind = 0;
    tether_test_world_register = register_keep;
    tether_test_world_before_send = before_send;
    tether_test_world_start(w, TETHER_TEST_SIM, 3, NULL);
}

static bool nothing_is_left(void *userdata)
{
    struct tether_test_world *w = userdata;
    for (int i = 0; i < w->n; i++) {
        struct tether_rref_counts c = tether_rref_counts(w->agents[i]);
        if (c.owners || c.forks || c.pending_users || c.confirmed_users || c.pending_children)
            return false;
    }
    return true;
}

/* w0 makes an object on w1 and passes it to w2; all let go. */
static tether_status pass_and_drop(struct tether_test_world *w, int64_t *ret_took_ms)
{
    tether_error err = {0};
    tether_value *arg = NULL;
    int64_t begin = tether__clock_now_ms(&tether_sim_clock(w->sim)->base);
    tether_rref *rref = tether_remote(w->agents[0], "w1", "echo", NULL, 60000);
    assert_int_equal(tether_value_printf(&arg, &err, "take it"), TETHER_OK);
    assert_int_equal(tether_value_attach(arg, rref, &err), TETHER_OK);
    tether_status st = tether_rpc_sync(w->agents[0], "w2", "keep", arg, 60000, NULL, &err);
    tether_value_release(arg);
    tether_rref_release(rref);
    held = tether_rref_release(held);
    *ret_took_ms = tether__clock_now_ms(&tether_sim_clock(w->sim)->base) - begin;
    return st;
}

static void every_kind_of_message_is_delivered_by_retries(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {TETHER__FRAME_FORK_REQUEST, TETHER__FRAME_CHILD_ACCEPT,
                                     TETHER__FRAME_USER_DELETE};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(kinds); i++) {
        struct tether_test_world w;
        int64_t took_ms;
        start(&w);
        fault.kind = kinds[i];
        fault.left = 3;
        assert_int_equal(pass_and_drop(&w, &took_ms), TETHER_OK);
        assert_true(tether_sim_run(w.sim, nothing_is_left, &w, 20000));
        assert_int_equal(fault.left, 0);
        tether_test_world_stop(&w);
    }
}

static void retry_waits_match_the_reference_system(void **state)
{
    (void)state;
    static const int expected[] = {1000, 1000, 1500, 2250, 3375, -1};
    for (int i = 0; i < 6; i++)
        assert_int_equal(tether__retry_delay_ms(&tether__retry_defaults, i), expected[i]);
    struct tether_test_world w;
    int64_t took_ms;
    start(&w);
    fault.kind = TETHER__FRAME_FORK_REQUEST;
    fault.left = 3;
    assert_int_equal(pass_and_drop(&w, &took_ms), TETHER_OK);
    assert_in_range(took_ms, 3500, 3600); /* 1000 + 1000 + 1500 */
    assert_int_equal(fault.n_asked, 4);
    tether_test_world_stop(&w);
}

static void retries_end_with_an_error_after_their_limit(void **state)
{
    (void)state;
    struct tether_test_world w;
    int64_t took_ms;
    start(&w);
    fault.kind = TETHER__FRAME_FORK_REQUEST;
    fault.left = 100;
    assert_int_equal(pass_and_drop(&w, &took_ms), TETHER_EOWNERDIED);
    assert_int_equal(fault.n_asked, 6); /* the first and five more */
    assert_in_range(took_ms, 9125, 9225);
    assert_null(held); /* the function did not run */
    assert_true(tether_sim_run(w.sim, nothing_is_left, &w, 20000));
    tether_test_world_stop(&w);
}

static void failed_call_breaks_its_reference(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_error err = {0};
    start(&w);
    fault.kind = TETHER__FRAME_CALL;
    fault.left = 1;
    tether_rref *rref = tether_remote(w.agents[0], "w1", "echo", NULL, 1000);
    assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_BROKEN);
    assert_int_equal(tether_rref_to_here(rref, 1000, NULL, &err), TETHER_EUNAVAILABLE);
    tether_rref_release(rref);
    assert_true(tether_sim_run(w.sim, nothing_is_left, &w, 20000));
    tether_test_world_stop(&w);
}

/* ---- The budget ---- */

/* 0 for a worker that others have named, and that was never looked up. */
static uint64_t metric(tether_agent *agent, const char *name, const char *peer)
{
    char line[96];
    tether_buf text = TETHER_BUF_INIT;
    snprintf(line, sizeof line, "\ntether_peer_%s_total{peer=\"%s\"} ", name, peer);
    assert_int_equal(tether_agent_metrics(agent, &text), TETHER_OK);
    const char *found = strstr(text.data, line);
    uint64_t value = found ? strtoull(found + strlen(line), NULL, 10) : 0;
    tether_buf_fini(&text);
    return value;
}

/* Passes objects on to w2, which asks w1 for each: the owner. */
enum { CROWD = 14 };

static tether_future *pass_on(struct tether_test_world *w, tether_rref *rref)
{
    tether_value *arg = NULL;
    tether_error err = {0};
    assert_int_equal(tether_value_printf(&arg, &err, "take it"), TETHER_OK);
    assert_int_equal(tether_value_attach(arg, rref, &err), TETHER_OK);
    tether_future *future = tether_rpc_async(w->agents[0], "w2", "keep", arg, -1);
    tether_value_release(arg);
    return future;
}

/* The first attempt of each request has failed, the second is yet to come. */
static void pass_on_a_crowd(struct tether_test_world *w,
                            tether_rref *ret_rrefs[CROWD],
                            tether_future *ret_passed[CROWD])
{
    for (int i = 0; i < CROWD; i++) {
        ret_rrefs[i] = tether_remote(w->agents[0], "w1", "echo", NULL, 60000);
        assert_int_equal(tether_rref_to_here(ret_rrefs[i], 60000, NULL, NULL), TETHER_OK);
    }
    fault.kind = TETHER__FRAME_FORK_REQUEST;
    fault.left = CROWD;
    for (int i = 0; i < CROWD; i++)
        ret_passed[i] = pass_on(w, ret_rrefs[i]);
    tether_sim_run(w->sim, NULL, NULL, 900);
    assert_int_equal(fault.n_asked, CROWD);
}

/* Fourteen requests fail at once. Each would be tried again after a second; the budget lets through
 * what it has, and the others as it fills. None is lost. */
static void retries_are_a_share_of_calls(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_future *passed[CROWD];
    tether_rref *rrefs[CROWD];
    start(&w);
    pass_on_a_crowd(&w, rrefs, passed);
    tether_sim_run(w.sim, NULL, NULL, 1000);
    assert_int_equal(metric(w.agents[2], "retries", "w1"), 10); /* a full bucket */
    assert_int_equal(metric(w.agents[2], "retries_put_off", "w1"), CROWD - 10);
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(tether_future_wait(passed[i], -1, NULL, NULL), TETHER_OK);
        tether_future_release(passed[i]);
        tether_rref_release(rrefs[i]);
    }
    assert_int_equal(metric(w.agents[2], "retries", "w1"), CROWD);
    assert_int_equal(fault.n_asked, 2 * CROWD);
    held = tether_rref_release(held);
    assert_true(tether_sim_run(w.sim, nothing_is_left, &w, 60000));
    tether_test_world_stop(&w);
}

/* The session ends before they are tried again: that costs nothing, and none is put off. */
static void retry_costs_nothing_when_session_ends_first(void **state)
{
    (void)state;
    struct tether_test_world w;
    struct tether__peer *owner;
    tether_future *passed[CROWD];
    tether_rref *rrefs[CROWD];
    start(&w);
    pass_on_a_crowd(&w, rrefs, passed);
    assert_int_equal(tether__agent_peer(w.agents[2], "w1", &owner, NULL), TETHER_OK);
    tether__session_fence(owner->session, "the test wants it");
    tether__peer_release(owner);
    tether_sim_run(w.sim, NULL, NULL, 1000);
    assert_int_equal(fault.n_asked, CROWD);
    assert_int_equal(metric(w.agents[2], "retries", "w1"), 0);
    assert_int_equal(metric(w.agents[2], "retries_put_off", "w1"), 0);
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(tether_future_wait(passed[i], -1, NULL, NULL), TETHER_EOWNERDIED);
        tether_future_release(passed[i]);
        tether_rref_release(rrefs[i]);
    }
    assert_true(tether_sim_run(w.sim, nothing_is_left, &w, 60000));
    tether_test_world_stop(&w);
}

/* No more than 10 + a tenth of the calls + one in ten seconds, however often it is asked. */
static void retry_budget_earns_and_spends_exactly(void **state)
{
    (void)state;
    static const struct {
        int calls, seconds, retries;
    } rows[] = {{0, 0, 10},  {9, 0, 10},     {10, 0, 11},    {1000, 0, 110}, {0, 9, 10},
                {0, 10, 11}, {0, 1000, 110}, {100, 100, 30}, {55, 45, 20},   {1000000, 0, 100010}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__budget budget;
        const int64_t end = rows[i].seconds * TETHER__NS_PER_S;
        int64_t now = 0, retries = 0, again;
        tether__budget_init(&budget, now);
        while (!tether__budget_spend(&budget, now))
            retries++;
        for (int n = 0; n < rows[i].calls; n++) {
            tether__budget_earn(&budget);
            if (!tether__budget_spend(&budget, now))
                retries++;
        }
        for (; (again = tether__budget_spend(&budget, now)) <= end; retries += !again) {
            assert_true(!again || again > now);
            now = again ? again : now;
        }
        assert_int_equal(retries, rows[i].retries);
    }
    struct tether__budget budget; /* a full budget does not overflow */
    tether__budget_init(&budget, 0);
    for (int n = 0; n < 1000; n++)
        tether__budget_earn(&budget);
    for (int n = 0; n < 10; n++)
        assert_int_equal(tether__budget_spend(&budget, 1000 * TETHER__NS_PER_S), 0);
    assert_true(tether__budget_spend(&budget, 1000 * TETHER__NS_PER_S) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_message_is_delivered_by_retries),
        cmocka_unit_test(retry_waits_match_the_reference_system),
        cmocka_unit_test(retries_end_with_an_error_after_their_limit),
        cmocka_unit_test(failed_call_breaks_its_reference),
        cmocka_unit_test(retries_are_a_share_of_calls),
        cmocka_unit_test(retry_costs_nothing_when_session_ends_first),
        cmocka_unit_test(retry_budget_earns_and_spends_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
