/* Requests of the reference layer: frames that are answered like calls. An attempt to queue one
 * that fails may be repeated (retry.h). */
#include "base/alloc.h"
#include "rpc/agent.h"
#include "rpc/call/call.h"
#include "rpc/call/retry.h"
#include "rpc/future.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/after.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/timers.h"
#include "rpc/wire/outcome.h"
#include "rpc/wire/packed.h"
#include "rpc/wire/slice.h"

/* The data that each attempt to send the request needs. */
struct request {
    uint64_t id;
    uint32_t kind;
    tether__call_pack *pack;
    void *userdata;
};

static enum tether__attempt_result attempt_locked(void *userdata,
                                                  struct tether__peer *peer,
                                                  tether_status *ret_why)
{
    struct request *request = userdata;
    struct tether__call *call = tether__call_look_up_locked(peer, request->id);
    if (!call) { /* the session has ended, or the deadline is over */
        tether__free(request);
        return TETHER__ATTEMPT_ENDED;
    }
    peer->session->bound = true;
    tether_status st = tether__peer_may_send(peer, request->kind);
    enum tether__outcome packing = TETHER__DONE;
    struct tether__packed packed;
    if (st == TETHER_OK) {
        int64_t now = tether__stream_now(&peer->session->out);
        packing = request->pack(request->userdata, request->id,
                                tether__call_wire_timeout(now, call->deadline), &packed);
        st = packing == TETHER__DONE        ? TETHER_OK
             : packing == TETHER__NO_MEMORY ? TETHER_ENOMEM
                                            : TETHER_EFENCED;
    }
    if (st == TETHER_OK) {
        st = tether__stream_send_locked(&peer->session->out, request->kind, packed.bytes,
                                        TETHER__SLICE_EMPTY, 0);
        tether__packed_fini(&packed);
    }
    if (st == TETHER_OK) {
        call->seq = peer->session->out.lane.next_seq - 1;
        if (!peer->session->out.conn)
            tether__peer_connect_locked(peer);
        tether__free(request);
        return TETHER__ATTEMPT_SENT;
    }
    *ret_why = st;
    return packing == TETHER__REFUSED ? TETHER__ATTEMPT_REFUSE : TETHER__ATTEMPT_FAILED;
}

static void give_up_request(void *userdata, struct tether__peer *peer, tether_status status)
{
    struct request *request = userdata;
    tether__peer_lock(peer);
    struct tether__call *call = tether__call_take_locked(peer, request->id);
    tether__peer_unlock(peer);
    if (call) {
        tether_error error;
        tether__call_explain(&error, status, peer, call->function, 0);
        call->future.unanswered = true;
        tether__call_finish(call, status, &error, NULL);
    }
    tether__free(request);
}

tether_status tether__call_request(struct tether__peer *peer,
                                   uint32_t kind,
                                   const char *label,
                                   bool must_arrive,
                                   int64_t deadline,
                                   tether__call_pack *pack,
                                   void *userdata,
                                   tether_future **ret_future,
                                   tether_error *reterr)
{
    tether_agent *agent = peer->agent;
    struct tether__call *call;
    struct request *request = tether__malloc(sizeof *request);
    if (!request || tether__call_new(agent, peer, label, deadline, &call) != TETHER_OK) {
        tether__free(request);
        return tether__call_explain(reterr, TETHER_ENOMEM, peer, label, 0);
    }
    call->is_request = true;
    call->about_object = kind == TETHER__FRAME_FETCH;
    tether_error why = {0};
    tether__peer_lock(peer);
    tether_status st = tether__peer_admit_locked(peer, &why);
    if (st != TETHER_OK && call->about_object)
        st = why.code = TETHER_EOWNERDIED;
    if (st == TETHER_OK)
        st = tether__call_put_locked(peer, call);
    bool in_slot = st == TETHER_OK;
    if (in_slot) {
        *request = (struct request){call->id, kind, pack, userdata};
        must_arrive &= attempt_locked(request, peer, &st) != TETHER__ATTEMPT_REFUSE;
    }
    if (in_slot && st != TETHER_OK && !must_arrive)
        tether__call_take_locked(peer, call->id);
    if (st == TETHER_OK || (in_slot && must_arrive))
        tether__peer_wake_at_locked(peer, deadline);
    tether__peer_unlock(peer);
    if (in_slot && st != TETHER_OK && must_arrive) {
        st = tether__retry_later(peer, st, attempt_locked, give_up_request, request);
        if (st != TETHER_OK) {
            tether__peer_lock(peer);
            if (!tether__call_take_locked(peer, call->id)) {
                st = TETHER_OK; /* a fence has taken the call meanwhile and finishes it */
                tether__free(request);
            }
            tether__peer_unlock(peer);
        }
    }
    if (st != TETHER_OK) {
        tether__free(request);
        tether__call_abandon(call, in_slot);
        if (why.code != TETHER_OK)
            return tether_error_set(reterr, st, "%s: %s", label, why.message);
        return tether__call_explain(reterr, st, peer, label, 0);
    }
    *ret_future = &call->future;
    return TETHER_OK;
}
