/* The functions of rpc for the reference layer that take locks or send. See refs_api.h. */
#include "rpc/refs_api.h"

#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/session.h"

void tether__peer_next_session(struct tether__peer *peer,
                               uint64_t *ret_start,
                               uint64_t *ret_made_in)
{
    tether__peer_lock(peer);
    *ret_start = peer->pairing.peer_incarnation;
    *ret_made_in = 1 + tether__pairing_fences(&peer->pairing);
    tether__peer_unlock(peer);
}

void tether__peer_watch(struct tether__peer *peer, uint64_t start)
{
    tether__peer_lock(peer);
    if (!peer->pairing.watching)
        tether__peer_connect_locked(peer);
    else if (peer->pairing.peer_incarnation && peer->pairing.peer_incarnation < start)
        tether__peer_look_up_locked(peer);
    tether__peer_unlock(peer);
}

tether_status tether__peer_queue_locked(struct tether__peer *peer,
                                        uint32_t kind,
                                        tether_bytes header)
{
    return tether__lane_send(&peer->session->out.lane, kind, header, TETHER__SLICE_EMPTY, 0);
}

void tether__call_tie(struct tether__call *call, struct tether__use use)
{
    tether__peer_lock(call->peer);
    tether__call_tie_locked(call, use);
    tether__peer_unlock(call->peer);
}
