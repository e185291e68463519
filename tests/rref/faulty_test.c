/* The faulty agent: chosen kinds of messages fail a chosen number of times, and every reference is
 * still confirmed, passed on and collected. In virtual time, so the waits cost nothing. */
#include <string.h>

#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/world.h"

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

static tether_rref *kept;

static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)ret_value, (void)reterr;
    tether_rref_release(kept);
    kept = tether_rref_retain(tether_value_rref(arg, 0));
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
    tether_test_world_start(w, true, 3, NULL);
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
    kept = tether_rref_release(kept);
    *ret_took_ms = tether__clock_now_ms(&tether_sim_clock(w->sim)->base) - begin;
    return st;
}

static void every_kind_gets_through(void **state)
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

static void waits_as_long_as_the_modelled_system(void **state)
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

static void gives_up_with_an_error(void **state)
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
    assert_null(kept); /* the function did not run */
    assert_true(tether_sim_run(w.sim, nothing_is_left, &w, 20000));
    tether_test_world_stop(&w);
}

static void a_failed_call_breaks_the_reference(void **state)
{
    (void)state;
    struct tether_test_world w;
    tether_error err = {0};
    start(&w);
    fault.kind = TETHER__FRAME_CALL;
    fault.left = 1;
    tether_rref *rref = tether_remote(w.agents[0], "w1", "echo", NULL, 1000);
    assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_BROKEN);
    assert_int_equal(tether_rref_to_here(rref, 1000, NULL, &err), TETHER_EOWNERDIED);
    tether_rref_release(rref);
    assert_true(tether_sim_run(w.sim, nothing_is_left, &w, 20000));
    tether_test_world_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_gets_through),
        cmocka_unit_test(waits_as_long_as_the_modelled_system),
        cmocka_unit_test(gives_up_with_an_error),
        cmocka_unit_test(a_failed_call_breaks_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
