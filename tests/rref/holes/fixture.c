/* See fixture.h. */
#include "tests/rref/holes/fixture.h"

#include <string.h>

#include "tests/lib/cmocka.h"

void (*holes_register_more)(tether_agent *agent);
struct holes_fault holes_fault;

tether_status holes_before_send(void *userdata, const char *peer, uint32_t kind)
{
    (void)userdata, (void)peer;
    holes_fault.n_deletes += kind == TETHER__FRAME_USER_DELETE;
    if (kind != holes_fault.kind || holes_fault.left == 0)
        return TETHER_OK;
    holes_fault.left--;
    return TETHER_EUNAVAILABLE;
}

void holes_register(tether_agent *agent)
{
    cast_register(agent);
    if (holes_register_more)
        holes_register_more(agent);
    agent->lane_limits.inline_bytes = 100; /* so that a value of some hundred bytes is large */
    agent->lane_limits.fragment_bytes = 300;
}

const struct tether_agent_opts *holes_options(void)
{
    static struct tether_agent_opts opts;
    opts = *TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = TIMEOUT_MS,
                              .shutdown_timeout_ms = 10000, .fail_on_leaks = true);
    return &opts;
}

int holes_start(void **state)
{
    static struct tether_test_world world;
    memset(&holes_fault, 0, sizeof holes_fault);
    cast_n_keeps = 0;
    tether_test_world_register = holes_register;
    tether_test_world_before_send = holes_before_send;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3, holes_options());
    *state = &world;
    return 0;
}

int holes_stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    assert_int_equal(cast_n_live, 0); /* each test leaves no object behind */
    return 0;
}

int64_t holes_now_ms(struct tether_test_world *w)
{
    return tether_sim_now(w->sim) / MS;
}

void holes_pass_time(struct tether_test_world *w, int64_t ms)
{
    tether_sim_run(w->sim, NULL, NULL, ms);
}

void holes_assert_soon(struct tether_test_world *w, bool (*done)(void *userdata), void *userdata)
{
    assert_true(tether_sim_run(w->sim, done, userdata, SOON_MS));
}

/* Everything is released within a lease and a second, at the workers that live. */
bool holes_w1_is_idle(void *userdata)
{
    struct tether_test_world *w = userdata;
    return cast_is_idle(w->agents[1]) && cast_n_live == 0;
}

bool holes_is_broken(void *userdata)
{
    return tether_rref_status(userdata, NULL) == TETHER_RREF_BROKEN;
}

void holes_assert_confirmed(tether_rref *rref)
{
    tether_future *future = tether_rref_confirmed(rref);
    assert_int_equal(tether_future_wait(future, 10000, NULL, NULL), TETHER_OK);
    tether_future_release(future);
}

void holes_leave_ok(struct tether_test_world *w, int i)
{
    tether_error err = {0};
    int64_t began = holes_now_ms(w);
    if (tether_agent_shutdown(w->agents[i], true, &err) != TETHER_OK)
        fail_msg("w%d: %s", i, err.message);
    assert_in_range(holes_now_ms(w) - began, 0, 1000);
}
