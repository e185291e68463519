/* Decides which peer a dialler is once its handshake is finished, and whether to admit it.
 *
 * Failure modes: a start that only the dialler itself vouches for (no token, no certificate, no
 * kernel credentials), or whose number another peer has, is looked up in the directory: the conn is
 * closed, and the next one finds the answer there. A stale start never replaces the stream of a
 * later one.
 */
#include <stdio.h>

#include "base/status.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/handshake.h"
#include "rpc/handshake/pairing.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/admission/starts.h"
#include "rpc/peer/fence.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"

/* How many observers may look at this worker at once. */
#define MAX_OBSERVERS 16

/* ---- Observers ---- */

/* Whether an observer with this start number may use the place: it has used it before, or no
 * observer is connected there. Unlike for workers, a higher start number gives no precedence,
 * because observers take theirs from their own clocks. */
static bool is_place_free_locked(const struct tether__peer *place, uint64_t start)
{
    return tether__peer_known_start_locked(place) == start || !place->session->in.conn;
}

/* Finds one of MAX_OBSERVERS places for an observer; `*ret_peer` is retained. Places are reused, so
 * that observers that come and go do not fill the table of peers. The observer must have proved its
 * identity if the group has a token or certificates. */
static tether_status find_place(tether_agent *agent,
                                uint64_t start,
                                bool proved,
                                struct tether__peer **ret_peer,
                                tether_error *reterr)
{
    if (!proved && (agent->self.token || agent->opts.tls_cert_pem))
        return tether_error_set(reterr, TETHER_EAUTH, "an observer has not shown who it is");
    struct tether__peer *found = NULL;
    bool is_own = false;
    for (int i = 0; i < MAX_OBSERVERS && !is_own; i++) {
        struct tether__peer *peer;
        char name[32];
        snprintf(name, sizeof name, TETHER__OBSERVER_PREFIX "%d", i);
        tether_status st = tether__agent_peer(agent, name, &peer, reterr);
        if (st != TETHER_OK) {
            tether__peer_release(found);
            return st;
        }
        tether__peer_lock(peer);
        is_own = tether__peer_known_start_locked(peer) == start;
        bool is_free = is_place_free_locked(peer, start);
        tether__peer_unlock(peer);
        struct tether__peer *other = is_own || (is_free && !found) ? found : peer;
        found = other == peer ? found : peer;
        tether__peer_release(other);
    }
    if (!found)
        return tether_error_set(reterr, TETHER_EBUSY, "%d observers look at worker '%s' already",
                                MAX_OBSERVERS, agent->name);
    *ret_peer = found;
    return TETHER_OK;
}

/* Ends the session of the previous observer at this place and forgets its start number, which may
 * be higher. False: another observer has taken the place meanwhile. */
static bool clear_place_locked(struct tether__peer *place, uint64_t start, tether_error *ret_why)
{
    if (!is_place_free_locked(place, start)) {
        tether_error_set(ret_why, TETHER_EUNAVAILABLE, "another observer was faster");
        return false;
    }
    uint64_t known = tether__peer_known_start_locked(place);
    if (known && known != start) {
        tether__peer_end_session_locked(place, TETHER_EUNAVAILABLE, "the observer has gone");
        tether__pairing_forget(&place->pairing);
    }
    return true;
}

/* ---- Workers ---- */

static bool has_place(struct tether__peer *peer)
{
    tether__peer_lock(peer);
    bool has_place = peer->dialer.record.name[0] || peer->is_unlisted;
    tether__peer_unlock(peer);
    return has_place;
}

/* Gives the peer, whose claim is believed, the place that was taken for it; gives the place back if
 * the peer needs none. */
static void give_place(struct tether__peer *peer)
{
    tether__peer_lock(peer);
    if (peer->dialer.record.name[0] || peer->is_unlisted)
        tether__agent_return_place(peer->agent);
    else
        peer->is_unlisted = true;
    tether__peer_unlock(peer);
}

tether_status tether__admit_peer(tether_agent *agent,
                                 const struct tether__handshake *handshake,
                                 bool is_proved,
                                 struct tether__peer **ret_peer,
                                 uint64_t *ret_known,
                                 tether_error *reterr)
{
    const char *name = handshake->peer_name;
    uint64_t claimed = handshake->peer_incarnation;
    if (tether__name_is_observer(name))
        return find_place(agent, claimed, is_proved, ret_peer, reterr);
    struct tether__peer *peer = tether__agent_find_peer(agent, name);
    *ret_known = peer ? tether__peer_known_start(peer) : 0;
    tether_status st = TETHER_OK;
    /* If the peer was dropped from the table, a later start may have been forgotten: ask the
     * directory. */
    bool is_forgotten = !*ret_known && claimed <= atomic_load(&agent->self.forgotten_start);
    bool proved = is_proved && !is_forgotten;
    /* When no place is left, treat the claim as unproved, so that the directory must confirm it. */
    bool had_place = peer && has_place(peer);
    bool takes_place = proved && !had_place && tether__agent_take_place(agent);
    proved &= had_place || takes_place;
    switch (tether__handshake_belief(proved, claimed, *ret_known)) {
        case TETHER__BELIEVED:
            if (!peer)
                st = tether__agent_peer(agent, name, &peer, reterr);
            if (st == TETHER_OK && takes_place) {
                give_place(peer);
                takes_place = false;
            }
            break;
        case TETHER__UNCONFIRMED:
            tether__agent_confirm(agent, name, claimed);
            st = tether_error_set(
                reterr, TETHER_EUNAVAILABLE,
                "start %llu of worker '%s' is not confirmed yet: this worker looks it up "
                "in the store now, dial again",
                (unsigned long long)claimed, name);
            break;
        case TETHER__STALE:
            st =
                tether_error_set(reterr, TETHER_EFENCED,
                                 "worker '%s', started as %llu, has been replaced by a later "
                                 "start (%llu)",
                                 name, (unsigned long long)claimed, (unsigned long long)*ret_known);
            break;
    }
    if (takes_place)
        tether__agent_return_place(agent);
    if (st != TETHER_OK && peer)
        tether__peer_release(peer);
    if (st == TETHER_OK)
        *ret_peer = peer;
    return st;
}

/* ---- Workers and observers ---- */

/* Takes the start number for the peer. If another peer holds the number and the directory has not
 * confirmed this claim, asks the directory and returns false. */
static bool take_start_locked(struct tether__peer *peer, uint64_t start, tether_error *ret_why)
{
    /* observers create no objects, so their start numbers need not be unique */
    if (peer->is_observer)
        return true;
    tether_status st = tether__start_take_locked(peer, start, ret_why);
    if (st == TETHER_EUNAVAILABLE)
        tether__agent_confirm(peer->agent, peer->name, start);
    return st == TETHER_OK;
}

bool tether__admit_locked(struct tether__peer *peer,
                          const Tether__State *state,
                          tether_error *ret_why)
{
    uint64_t start = state->from_incarnation;
    if (peer->is_observer && !clear_place_locked(peer, start, ret_why))
        return false;
    return tether__pairing_check(&peer->pairing, state, ret_why) == TETHER_OK &&
           tether__session_may_begin_locked(peer, ret_why) &&
           take_start_locked(peer, start, ret_why);
}
