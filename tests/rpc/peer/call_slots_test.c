/* Call ids: no id is used twice, also across sessions. */
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/world.h"

static uint64_t put_and_take(tether_agent *agent, struct tether__peer *peer)
{
    struct tether__call *call;
    assert_int_equal(tether__call_new(agent, peer, "f", TETHER__NEVER, &call), TETHER_OK);
    tether__peer_lock(peer);
    assert_int_equal(tether__call_put_locked(peer, call), TETHER_OK);
    uint64_t id = call->id;
    assert_ptr_equal(tether__call_look_up_locked(peer, id), call);
    assert_ptr_equal(tether__call_take_locked(peer, id), call);
    assert_null(tether__call_look_up_locked(peer, id));
    tether__peer_unlock(peer);
    tether__call_abandon(call, true);
    return id;
}

/* 2^20 synchronous calls take some seconds and use one slot. */
static void call_number_is_not_given_again_when_a_slot_is_used_often(void **state)
{
    (void)state;
    struct tether_test_world world;
    struct tether__peer *peer;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_agent *agent = world.agents[0];
    assert_int_equal(tether__agent_peer(agent, "w1", &peer, NULL), TETHER_OK);
    uint64_t last = 0;
    for (int i = 0; i < (1 << 20) + 1; i++) {
        uint64_t id = put_and_take(agent, peer);
        assert_true(id > last);
        last = id;
    }
    tether__session_fence(peer->session, "the test wants another session");
    assert_true(put_and_take(agent, peer) > last);
    tether__peer_release(peer);
    tether_test_world_stop(&world);
}

/* A call that has ended gives up: the call that has its slot now stays. */
static void give_up_leaves_the_next_call_of_the_slot_alone(void **state)
{
    (void)state;
    struct tether_test_world world;
    struct tether__peer *peer;
    struct tether__call *ended, *next;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, NULL);
    tether_agent *agent = world.agents[0];
    assert_int_equal(tether__agent_peer(agent, "w1", &peer, NULL), TETHER_OK);
    assert_int_equal(tether__call_new(agent, peer, "f", TETHER__NEVER, &ended), TETHER_OK);
    assert_int_equal(tether__call_new(agent, peer, "f", TETHER__NEVER, &next), TETHER_OK);
    tether__peer_lock(peer);
    assert_int_equal(tether__call_put_locked(peer, ended), TETHER_OK);
    assert_ptr_equal(tether__call_take_locked(peer, ended->id), ended);
    assert_int_equal(tether__call_put_locked(peer, next), TETHER_OK);
    tether__peer_unlock(peer);
    ended->id = next->id; /* as if numbers came again */
    tether__call_give_up(ended, TETHER_ECANCELED, NULL);
    assert_false(tether_future_is_done(&ended->future));
    tether__peer_lock(peer);
    assert_ptr_equal(tether__call_take_locked(peer, next->id), next);
    tether__peer_unlock(peer);
    tether__call_abandon(ended, true);
    tether__call_abandon(next, true);
    tether__peer_release(peer);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(call_number_is_not_given_again_when_a_slot_is_used_often),
        cmocka_unit_test(give_up_leaves_the_next_call_of_the_slot_alone),
    };
    return cmocka_run_group_tests_name("call table", tests, NULL, NULL);
}
