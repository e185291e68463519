/* A peer that is near in one moment and far in the next: each is polled by a thread of its own, but
 * what it says is still heard one at a time, in order.
 */
#include <string.h>

#include "rpc/agent_internal.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/world.h"

static struct tether_test_event entered, go_on;
static _Atomic bool second_ran;

static tether_status first(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)userdata, (void)arg;
    tether_test_event_signal(&entered);
    assert_true(tether_test_event_wait(&go_on, 1, TETHER_TEST_LIMIT_MS));
    return tether_value_printf(ret_value, reterr, atomic_load(&second_ran) ? "second" : "first");
}

static tether_status second(void *userdata,
                            const tether_value *arg,
                            tether_value **ret_value,
                            tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    atomic_store(&second_ran, true);
    return TETHER_OK;
}

static void register_both(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_inline(agent, "first", first, NULL, NULL), TETHER_OK);
    assert_int_equal(tether_agent_register_inline(agent, "second", second, NULL, NULL), TETHER_OK);
}

/* The near conn is gone, and the next one is a far one. */
static uint64_t go_far(struct tether__peer *peer)
{
    pthread_mutex_lock(&peer->mu);
    uint64_t dials = peer->out.dial;
    tether__link_drop_locked(&peer->out);
    peer->near_failed = true;
    tether__peer_connect_locked(peer);
    int64_t due = peer->next_dial;
    pthread_mutex_unlock(&peer->mu);
    tether__agent_kick(peer->agent, due);
    return dials;
}

static uint64_t dials_of(struct tether__peer *peer)
{
    pthread_mutex_lock(&peer->mu);
    uint64_t dials = peer->out.dial;
    pthread_mutex_unlock(&peer->mu);
    return dials;
}

static void calls_do_not_overtake_each_other(void **state)
{
    (void)state;
    struct tether_test_world w;
    struct tether__peer *peer = NULL;
    tether_value *value = NULL;
    tether_test_event_init(&entered);
    tether_test_event_init(&go_on);
    tether_test_world_register = register_both;
    tether_test_world_start(&w, TETHER_TEST_UNIX, 2, NULL);
    assert_int_equal(tether__agent_peer(w.agents[0], "w1", &peer, NULL), TETHER_OK);

    tether_future *one = tether_rpc_async(w.agents[0], "w1", "first", NULL, TETHER_TEST_LIMIT_MS);
    assert_true(tether_test_event_wait(&entered, 1, TETHER_TEST_LIMIT_MS));
    uint64_t before = go_far(peer);
    tether_future *two = tether_rpc_async(w.agents[0], "w1", "second", NULL, TETHER_TEST_LIMIT_MS);
    /* The far one is sent away, and another dialled. */
    assert_eventually(atomic_load(&second_ran) || dials_of(peer) >= before + 2);
    tether_test_event_signal(&go_on);

    assert_int_equal(tether_future_wait(one, TETHER_TEST_LIMIT_MS, &value, NULL), TETHER_OK);
    assert_string_equal(tether_value_str(value), "first");
    assert_int_equal(tether_future_wait(two, TETHER_TEST_LIMIT_MS, NULL, NULL), TETHER_OK);

    tether_value_release(value);
    tether_future_release(one);
    tether_future_release(two);
    tether__peer_release(peer);
    tether_test_world_stop(&w);
    tether_test_world_register = NULL;
    tether_test_event_fini(&go_on);
    tether_test_event_fini(&entered);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_do_not_overtake_each_other),
    };
    return cmocka_run_group_tests_name("switching", tests, NULL, NULL);
}
