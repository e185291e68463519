/* A peer that is local in one moment and network in the next: each is polled by a thread of its
 * own, but what it says is still heard one at a time, in order.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/peer/connect/reach.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/world.h"

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

/* The conn that there is breaks; the next one is a network one, or a local one. */
static uint64_t switch_to(struct tether__peer *peer, bool network)
{
    tether__peer_lock(peer);
    uint64_t dials = peer->n_dials;
    tether__stream_drop_locked(&peer->session->out);
    peer->dialer.route = network ? TETHER__NETWORK_ROUTE : TETHER__LOCAL_ROUTE;
    tether__peer_connect_locked(peer);
    tether__peer_unlock(peer);
    return dials;
}

static uint64_t dials_of(struct tether__peer *peer)
{
    tether__peer_lock(peer);
    uint64_t dials = peer->n_dials;
    tether__peer_unlock(peer);
    return dials;
}

static void calls_keep_their_order_when_the_transport_changes(void **state)
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
    uint64_t before = switch_to(peer, true);
    tether_future *two = tether_rpc_async(w.agents[0], "w1", "second", NULL, TETHER_TEST_LIMIT_MS);
    /* The network one is sent away, and another dialled. */
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

/* ---- To and fro, while calls are made ---- */

enum { SWITCHES = 40, UNDER_WAY = 16 };

static _Atomic int n_counted, n_out_of_order;
static _Atomic bool is_counting;

/* Its argument is how often it was called before. */
static tether_status count(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)userdata, (void)ret_value, (void)reterr;
    bool overlaps = atomic_exchange(&is_counting, true);
    int before = atomic_fetch_add(&n_counted, 1);
    if (overlaps || atoi(tether_value_str(arg)) != before)
        atomic_fetch_add(&n_out_of_order, 1);
    atomic_store(&is_counting, false);
    return TETHER_OK;
}

static void register_count(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_inline(agent, "count", count, NULL, NULL), TETHER_OK);
}

struct caller {
    tether_agent *agent;
    _Atomic bool stop;
    int n_calls, n_failed;
};

static tether_future *call_count(struct caller *caller)
{
    tether_value *number = NULL;
    assert_int_equal(tether_value_printf(&number, NULL, "%d", caller->n_calls++), TETHER_OK);
    tether_future *call =
        tether_rpc_async(caller->agent, "w1", "count", number, TETHER_TEST_LIMIT_MS);
    tether_value_release(number);
    return call;
}

static void *keep_calling(void *arg)
{
    struct caller *caller = arg;
    while (!atomic_load(&caller->stop)) {
        tether_future *calls[UNDER_WAY];
        for (int i = 0; i < UNDER_WAY; i++)
            calls[i] = call_count(caller);
        for (int i = 0; i < UNDER_WAY; i++) {
            caller->n_failed +=
                tether_future_wait(calls[i], TETHER_TEST_LIMIT_MS, NULL, NULL) != TETHER_OK;
            tether_future_release(calls[i]);
        }
    }
    return NULL;
}

static void calls_arrive_once_and_in_order_when_the_transport_changes(void **state)
{
    (void)state;
    struct tether_test_world w;
    struct tether__peer *peer = NULL;
    pthread_t thread;
    tether_test_world_register = register_count;
    tether_test_world_start(&w, TETHER_TEST_UNIX, 2, NULL);
    assert_int_equal(tether__agent_peer(w.agents[0], "w1", &peer, NULL), TETHER_OK);
    struct caller caller = {.agent = w.agents[0]};
    assert_int_equal(pthread_create(&thread, NULL, keep_calling, &caller), 0);
    for (int i = 0; i < SWITCHES; i++) {
        int before = atomic_load(&n_counted);
        assert_eventually(atomic_load(&n_counted) > before);
        switch_to(peer, i % 2 == 0);
    }
    atomic_store(&caller.stop, true);
    pthread_join(thread, NULL);

    assert_int_equal(caller.n_failed, 0);
    assert_int_equal(atomic_load(&n_counted), caller.n_calls);
    assert_int_equal(atomic_load(&n_out_of_order), 0);
    tether__peer_release(peer);
    tether_test_world_stop(&w);
    tether_test_world_register = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_keep_their_order_when_the_transport_changes),
        cmocka_unit_test(calls_arrive_once_and_in_order_when_the_transport_changes),
    };
    return cmocka_run_group_tests_name("switching", tests, NULL, NULL);
}
