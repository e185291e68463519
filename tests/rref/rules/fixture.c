/* See fixture.h. */
#include "tests/rref/rules/fixture.h"

#include "rpc/wire/packed.h"
#include "tests/lib/cmocka.h"

bool rules_no_calls;

static tether_status before_send(void *userdata, const char *peer, uint32_t kind)
{
    (void)userdata, (void)peer;
    return rules_no_calls && kind == TETHER__FRAME_CALL ? TETHER_EUNAVAILABLE : TETHER_OK;
}

int rules_start(void **state)
{
    static struct tether_test_world world;
    rules_no_calls = false;
    tether_test_world_before_send = before_send;
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3, TETHER_AGENT_OPTS(.lease_ms = LEASE_MS));
    *state = &world;
    return 0;
}

int rules_stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    return 0;
}

struct tether__peer *rules_peer(tether_agent *agent, const char *name)
{
    struct tether__peer *peer = NULL;
    assert_int_equal(tether__agent_peer(agent, name, &peer, NULL), TETHER_OK);
    tether__peer_release(peer);
    return peer;
}

enum tether__outcome rules_outcome(tether_agent *agent,
                                   struct tether__peer *from,
                                   uint64_t session_number,
                                   uint32_t kind,
                                   const ProtobufCMessage *body)
{
    struct tether__packed packed;
    assert_int_equal(tether__pack(&packed, body), TETHER_OK);
    struct tether__inbound message = {.kind = kind, .numbered = true, .header = packed.bytes};
    enum tether__outcome outcome =
        tether__ext_ops->frame(agent->ext, from, session_number, &message, 0);
    tether__packed_fini(&packed);
    return outcome;
}

void rules_deliver(tether_agent *agent,
                   struct tether__peer *from,
                   uint64_t session_number,
                   uint32_t kind,
                   const ProtobufCMessage *body)
{
    assert_int_equal(rules_outcome(agent, from, session_number, kind, body), TETHER__DONE);
}

Tether__Call rules_creation(tether_rref_id id,
                            tether_rref_id fork,
                            uint64_t result[3],
                            uint64_t result_fork[3])
{
    Tether__Call call = TETHER__CALL__INIT;
    tether__id_to_numbers(id, result);
    tether__id_to_numbers(fork, result_fork);
    call.result = result;
    call.result_fork = result_fork;
    call.n_result = call.n_result_fork = 3;
    return call;
}

Tether__RefIds *rules_ids(struct rules_id *one, tether_rref_id id)
{
    *one = (struct rules_id){TETHER__REF_IDS__INIT, id.creator, id.incarnation, id.counter};
    one->ids.n_creator = one->ids.n_incarnation = one->ids.n_counter = 1;
    one->ids.creator = &one->creator;
    one->ids.incarnation = &one->incarnation;
    one->ids.counter = &one->counter;
    return &one->ids;
}

size_t rules_n_forks(tether_agent *agent)
{
    return tether_rref_counts(agent).forks;
}

void rules_pass_time(struct tether_test_world *w, int64_t ms)
{
    tether_sim_run(w->sim, NULL, NULL, ms);
}
