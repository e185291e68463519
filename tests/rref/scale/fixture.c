/* See fixture.h. */
#include "tests/rref/scale/fixture.h"

#include <stdlib.h>

#include "rpc/peer/session.h"
#include "rref/hooks.h"
#include "tests/lib/cmocka.h"

enum { LEASE_MS = 60000 };

int scale_start(void **state)
{
    static struct tether_test_world world;
    tether_test_world_before_send = NULL;
    tether_test_world_register = cast_register;
    tether_test_world_start(&world, TETHER_TEST_SIM, 3,
                            TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .max_calls_per_peer = 100000,
                                              .shutdown_timeout_ms = 60000));
    *state = &world;
    return 0;
}

int scale_start_connected(void **state)
{
    scale_start(state);
    struct tether_test_world *world = *state;
    cast_call_ok(world->agents[0], "w1", "note");
    cast_call_ok(world->agents[2], "w1", "note");
    return 0;
}

int scale_stop(void **state)
{
    cast_drop_all();
    tether_test_world_stop(*state);
    assert_int_equal(cast_n_live, 0);
    return 0;
}

struct tether__peer *scale_peer(tether_agent *agent, const char *name)
{
    struct tether__peer *peer = NULL;
    assert_int_equal(tether__agent_peer(agent, name, &peer, NULL), TETHER_OK);
    tether__peer_release(peer);
    return peer;
}

struct tether__ref_session scale_session(tether_agent *agent, const char *name)
{
    struct tether__peer *peer = scale_peer(agent, name);
    return (struct tether__ref_session){peer, atomic_load(&peer->session_number)};
}

tether_rref_id scale_id(size_t i)
{
    return (tether_rref_id){7, 4000000000U, 1 + i};
}

tether_rref **scale_hold_many(tether_agent *agent,
                              struct tether__ref_session owner,
                              size_t n,
                              bool known_to_owner)
{
    struct tether__refs *refs = tether__refs_of(agent);
    tether_rref **rrefs = calloc(n, sizeof *rrefs);
    assert_non_null(rrefs);
    for (size_t i = 0; i < n; i++) {
        assert_non_null(rrefs[i] = tether__rref_alloc(refs, false, scale_id(2 * i)));
        rrefs[i]->user.fork = scale_id(2 * i + 1);
        rrefs[i]->user.owner = owner;
        tether__peer_retain(owner.peer);
        rrefs[i]->state = TETHER_RREF_CONFIRMED;
        rrefs[i]->known_to_owner = known_to_owner;
        pthread_mutex_lock(&refs->mu);
        assert_int_equal(tether__user_add_locked(rrefs[i]), TETHER_OK);
        pthread_mutex_unlock(&refs->mu);
    }
    return rrefs;
}

void scale_release_held(tether_rref **rrefs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tether_rref_release(rrefs[i]);
    free(rrefs);
}

void scale_end_session(struct tether__refs *refs, struct tether__peer *peer, uint64_t number)
{
    static const tether_error lost = {TETHER_EUNAVAILABLE, "lost"};
    struct tether__outbox_items untold;
    tether__outbox_items_init(&untold);
    tether__refs_session_ended(refs, peer, number, &untold, &lost);
}

void scale_revive_sessions(struct tether__peer *peer)
{
    struct tether__ref_peer *ref_peer = tether__ref_peer_find_locked(peer);
    ref_peer->first_session = 0;
}

static size_t n_gathered(const struct tether__peer *peer, int turn)
{
    size_t n = 0;
    const struct tether__outbox_item *item = peer->session->outbox.gathered[turn].first;
    for (; item; item = item->next)
        n++;
    return n;
}

size_t scale_n_deletes(const struct tether__peer *peer)
{
    return n_gathered(peer, TETHER__OUTBOX_LATER);
}

size_t scale_n_accepts(const struct tether__peer *peer)
{
    return n_gathered(peer, TETHER__OUTBOX_SOONER);
}

bool scale_has_sent_notices(void *peer)
{
    return scale_n_deletes(peer) == 0 && scale_n_accepts(peer) == 0;
}
