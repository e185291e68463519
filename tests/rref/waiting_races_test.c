/* Method calls that wait for their object at its owner, while a thread of the pool makes it and
 * lets the calls go on, and the receiving thread takes in more of them. For the thread sanitizer.
 */
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/cast.h"

enum { ROUNDS = 100, CALLS = 8 };

static tether_status make_nothing(void *userdata,
                                  const tether_value *arg,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value;
    return tether_error_set(reterr, TETHER_EINVAL, "there is nothing to make");
}

static void register_makers(tether_agent *agent)
{
    cast_register(agent);
    assert_int_equal(tether_agent_register(agent, "make_nothing", make_nothing, NULL, NULL),
                     TETHER_OK);
}

/* Calls a method of an object that `creator` has only begun to make. */
static void call_early(struct tether_test_world *world, const char *creator, tether_status expected)
{
    tether_future *calls[CALLS];
    tether_error err = {0};
    tether_rref *rref = tether_remote(world->agents[0], "w1", creator, NULL, TETHER_TEST_LIMIT_MS);
    for (int i = 0; i < CALLS; i++)
        calls[i] = tether_rref_async(rref, "add", NULL, TETHER_TEST_LIMIT_MS);
    for (int i = 0; i < CALLS; i++) {
        if (tether_future_wait(calls[i], TETHER_TEST_LIMIT_MS, NULL, &err) != expected)
            fail_msg("%s", err.message);
        tether_future_release(calls[i]);
    }
    tether_rref_release(rref);
}

/* The caller ends its calls itself when it hears that the creation has failed. The owner may still
 * have them to answer then, so its counts can lag behind. */
static bool nothing_waits(struct tether__peer *peer)
{
    tether__peer_lock(peer);
    bool none = peer->session->n_waiting == 0 && peer->session->waiting_bytes == 0;
    tether__peer_unlock(peer);
    return none;
}

static void calls_are_counted_when_object_is_made_while_more_arrive(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_register = register_makers;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 2, NULL);
    tether_test_world_register = NULL;
    for (int round = 0; round < ROUNDS; round++) {
        call_early(&world, "make_counter_pooled", TETHER_OK);
        call_early(&world, "make_nothing", TETHER_EINVAL);
    }
    struct tether__peer *peer = tether__agent_find_peer(world.agents[1], "w0");
    assert_eventually(nothing_waits(peer));
    tether__peer_release(peer);
    tether_test_world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_counted_when_object_is_made_while_more_arrive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
