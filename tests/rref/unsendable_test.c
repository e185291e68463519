/* Control messages that can never be sent: the session ends instead of trying for ever. And the
 * options that keep it from coming to that.
 */
#include <stdio.h>
#include <string.h>

#include "rpc/agent/internal.h"
#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/peer.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

static void session_is_fenced_when_a_delete_can_never_be_sent(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 2, TETHER_AGENT_OPTS(.lease_ms = 1000));
    tether_rref *rref = cast_remote_counter(world.agents[0], "w1", "1");
    assert_int_equal(tether_rref_to_here(rref, 10000, NULL, NULL), TETHER_OK);
    assert_int_equal(tether_rref_counts(world.agents[1]).forks, 1);
    world.agents[0]->lane_limits.max_message_bytes = 5;
    tether_rref_release(rref);
    assert_true(tether_test_world_wait(&world, cast_has_no_forks, world.agents[1]));
    world.agents[0]->lane_limits.max_message_bytes = tether__lane_default_limits.max_message_bytes;
    tether_test_world_stop(&world);
    cast_drop_all();
}

static tether_agent *accepting; /* the worker whose accepts are too long */
static int n_accepts_tried;

static tether_status no_room_for_accepts(void *userdata, const char *peer, uint32_t kind)
{
    (void)userdata, (void)peer;
    if (accepting && kind == TETHER__FRAME_CHILD_ACCEPT) {
        n_accepts_tried++;
        accepting->lane_limits.max_message_bytes = 5;
    }
    return TETHER_OK;
}

static bool has_no_pins(void *agent)
{
    return tether_rref_counts(agent).pending_children == 0;
}

/* w0 passes an object of w1 on to w2, which cannot say that it has accepted it. Without the fence
 * w0 would keep the reference for ever. */
static void session_is_fenced_when_an_accept_can_never_be_sent(void **state)
{
    (void)state;
    struct tether_test_world world;
    n_accepts_tried = 0;
    tether_test_world_register = cast_register;
    tether_test_world_before_send = no_room_for_accepts;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3, TETHER_AGENT_OPTS(.lease_ms = 1000));
    struct tether__peer *parent = NULL;
    tether_rref *rref = cast_remote_counter(world.agents[0], "w1", "1");
    cast_call_ok(world.agents[2], "w0", "note");
    assert_int_equal(tether__agent_peer(world.agents[2], "w0", &parent, NULL), TETHER_OK);
    uint64_t session = atomic_load(&parent->session_number);
    accepting = world.agents[2];
    tether_future *passed = cast_send_async(world.agents[0], "w2", "keep", rref, 10000);
    assert_int_equal(tether_rref_counts(world.agents[0]).pending_children, 1);
    assert_true(tether_test_world_wait(&world, has_no_pins, world.agents[0]));
    assert_int_equal(n_accepts_tried, 1);
    assert_true(atomic_load(&parent->session_number) > session);
    accepting->lane_limits.max_message_bytes = tether__lane_default_limits.max_message_bytes;
    accepting = NULL;
    tether_test_world_before_send = NULL;
    cast_send_ok(world.agents[0], "w2", "keep", rref); /* the next session is a good one */
    tether_future_release(passed);
    tether__peer_release(parent);
    tether_rref_release(rref);
    cast_drop_all();
    cast_assert_nothing_left(&world);
    tether_test_world_stop(&world);
}

static void refused(struct tether_agent_opts opts, const char *says)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    opts.name = "w";
    assert_int_equal(tether_agent_new(&opts, &agent, &err), TETHER_EINVAL);
    if (!strstr(err.message, says))
        fail_msg("\"%s\" does not say \"%s\"", err.message, says);
}

static void option_is_refused_when_it_is_out_of_bounds(void **state)
{
    (void)state;
    refused(*TETHER_AGENT_OPTS(.lease_ms = 1), "lease_ms is 1: give 100 to 86400000");
    refused(*TETHER_AGENT_OPTS(.lease_ms = 99), "lease_ms is 99");
    refused(*TETHER_AGENT_OPTS(.lease_ms = 86400001), "lease_ms is 86400001");
    refused(*TETHER_AGENT_OPTS(.lease_ms = 2000000000), "lease_ms is 2000000000");
    refused(*TETHER_AGENT_OPTS(.max_message_bytes = 1000), "give at least 65536");
    refused(*TETHER_AGENT_OPTS(.max_calls_per_peer = 1 << 30), "give at most 16777216");
    refused(*TETHER_AGENT_OPTS(.timeout_ms = -7), "timeout_ms is -7");
}

static void option_is_taken_when_it_is_at_its_bounds(void **state)
{
    (void)state;
    char name[TETHER__OBSERVER_NAME_SIZE + 1];
    memset(name, 'x', sizeof name);
    name[TETHER__OBSERVER_NAME_SIZE - 1] = '\0';
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    struct tether_agent_opts taken[] = {
        *TETHER_AGENT_OPTS(.name = "w", .store = store, .lease_ms = 100),
        *TETHER_AGENT_OPTS(.name = "w", .store = store, .lease_ms = 86400000),
        *TETHER_AGENT_OPTS(.name = "w", .store = store, .max_message_bytes = 65536),
        *TETHER_AGENT_OPTS(.name = "w", .store = store, .max_calls_per_peer = 16777216),
        *TETHER_AGENT_OPTS(.name = name, .store = store, .observe = true),
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(taken); i++) {
        tether_agent *agent = NULL;
        tether_error err = {0};
        if (tether_agent_new(&taken[i], &agent, &err) != TETHER_OK)
            fail_msg("%zu: %s", i, err.message);
        tether_agent_release(agent);
    }
    name[TETHER__OBSERVER_NAME_SIZE - 1] = 'x';
    name[TETHER__OBSERVER_NAME_SIZE] = '\0';
    tether_agent *agent = NULL;
    assert_int_equal(
        tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store, .observe = true), &agent,
                         NULL),
        TETHER_EINVAL);
    tether_store_release(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(session_is_fenced_when_a_delete_can_never_be_sent),
        cmocka_unit_test(session_is_fenced_when_an_accept_can_never_be_sent),
        cmocka_unit_test(option_is_refused_when_it_is_out_of_bounds),
        cmocka_unit_test(option_is_taken_when_it_is_at_its_bounds),
    };
    return cmocka_run_group_tests_name("unsendable", tests, NULL, NULL);
}
