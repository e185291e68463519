/* The calls that are in flight to a peer: a table of slots of its session, and the call object.
 *
 * A call's number is its slot and a count of all calls to the peer, in all sessions, so finding
 * it takes no search, and a reply that comes too late does not meet the slot's next user. The
 * thread that takes a call out of its slot, and no other, finishes its future: because of the
 * reply, the deadline, a cancel, or the end of the session.
 *
 * Calls that use something that may be lost are *tied* to it: chained by a hash of the use, whose
 * buckets are the slots themselves, so that ending a use does not look at all calls in flight.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/threads/work_list.h"
#include "base/trace.h"
#include "base/trace_internal.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent.h"
#include "rpc/agent/counters.h"
#include "rpc/agent/internal.h"
#include "rpc/call/budget.h"
#include "rpc/future.h"
#include "rpc/future/internal.h"
#include "rpc/group/group.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/after.h"
#include "rpc/peer/calls/dues.h"
#include "rpc/peer/calls/progress.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/table.h"
#include "rpc/serve/serve.h"
#include "rpc/value.h"
#include "rpc/wire/packed.h"
#include "rpc/wire/slice.h"
#include "rpc/wire/value_internal.h"

#define NO_SLOT UINT32_MAX

/* ---- Calls by what they use ---- */

/* The low 24 bits of a call's number are its slot. The other bits count calls and suffice for 10^12
 * of them. */
static uint32_t slot_of_id(uint64_t id)
{
    return (uint32_t)((id - 1) & (TETHER__MAX_CALLS_PER_PEER - 1));
}

static uint32_t slot_of(const struct tether__call *call)
{
    return slot_of_id(call->id);
}

/* Returns the head of the chain of calls that `use` hashes to. `n_slots` is a power of two. */
static uint32_t *chain_of(struct tether__session *session, struct tether__use use)
{
    uint64_t hash = use.low ^ use.high * UINT64_C(0x9E3779B97F4A7C15);
    return &session->slots[hash & (session->n_slots - 1)].first_tied;
}

static void chain_locked(struct tether__session *session, const struct tether__call *call)
{
    uint32_t *first = chain_of(session, call->use), slot = slot_of(call);
    session->slots[slot].prev_tied = NO_SLOT;
    session->slots[slot].next_tied = *first;
    if (*first != NO_SLOT)
        session->slots[*first].prev_tied = slot;
    *first = slot;
}

/* Unlinks a call from its chain. The chain is doubly linked because it may have thousands of calls,
 * and replies usually come for the calls at its end first. */
static void unchain_locked(struct tether__session *session, const struct tether__call *call)
{
    const struct tether__call_slot *slot = &session->slots[slot_of(call)];
    if (slot->prev_tied == NO_SLOT)
        *chain_of(session, call->use) = slot->next_tied;
    else
        session->slots[slot->prev_tied].next_tied = slot->next_tied;
    if (slot->next_tied != NO_SLOT)
        session->slots[slot->next_tied].prev_tied = slot->prev_tied;
}

static bool is_tied(const struct tether__call *call)
{
    return call->use.high != 0;
}

void tether__call_tie_locked(struct tether__call *call, struct tether__use use)
{
    if (tether__call_look_up_locked(call->peer, call->id) != call)
        return;
    call->use = use;
    chain_locked(call->peer->session, call);
}

/* ---- Slots ---- */

static uint64_t call_number(uint32_t slot, uint64_t count)
{
    return count * TETHER__MAX_CALLS_PER_PEER + slot + 1; /* never 0 */
}

/* Doubles the number of slots. All present ones must be taken. */
static tether_status grow_locked(struct tether__session *session)
{
    uint32_t before = session->n_slots, n = before ? 2 * before : 16;
    struct tether__call_slot *slots = tether__realloc(session->slots, n * sizeof *slots);
    if (!slots)
        return TETHER_ENOMEM;
    for (uint32_t i = before; i < n; i++)
        slots[i] = (struct tether__call_slot){
            .next_free = i + 1 < n ? i + 1 : NO_SLOT,
        };
    for (uint32_t i = 0; i < n; i++)
        slots[i].first_tied = NO_SLOT;
    session->first_free = before;
    session->slots = slots;
    session->n_slots = n;
    for (uint32_t i = 0; i < before; i++)
        if (is_tied(slots[i].call))
            chain_locked(session, slots[i].call);
    return TETHER_OK;
}

tether_status tether__call_put_locked(struct tether__peer *peer, struct tether__call *call)
{
    /* An agent that stops first sets its state and then ends all calls that are in slots. A call
     * that got a slot after that would never end. */
    struct tether__session *session = peer->session;
    if (tether__agent_is_parting(peer->agent))
        return TETHER_ESHUTDOWN;
    if (!peer->spare && !tether__session_make_spare_locked(peer))
        return TETHER_ENOMEM;
    if (session->first_free == NO_SLOT) {
        tether_status st = grow_locked(session);
        if (st != TETHER_OK)
            return st;
    }
    uint32_t slot = session->first_free;
    session->first_free = session->slots[slot].next_free;
    session->slots[slot].call = call;
    call->id = call_number(slot, peer->n_calls_ever++);
    session->n_calls++;
    peer->metrics.calls++;
    tether__budget_earn(&peer->budget);
    atomic_fetch_add(&call->agent->active_calls, 1);
    atomic_fetch_add(&call->agent->started_calls, 1);
    tether__call_dues_add_locked(&session->dues, call);
    return TETHER_OK;
}

struct tether__call *tether__call_look_up_locked(struct tether__peer *peer, uint64_t id)
{
    struct tether__session *session = peer->session;
    uint32_t slot = slot_of_id(id);
    struct tether__call *call = slot < session->n_slots ? session->slots[slot].call : NULL;
    return call && call->id == id ? call : NULL;
}

struct tether__call *tether__call_take_locked(struct tether__peer *peer, uint64_t id)
{
    struct tether__session *session = peer->session;
    uint32_t slot = slot_of_id(id);
    struct tether__call *call = tether__call_look_up_locked(peer, id);
    if (!call)
        return NULL;
    if (is_tied(call))
        unchain_locked(session, call);
    tether__call_dues_remove_locked(&session->dues, call);
    session->slots[slot].call = NULL;
    session->slots[slot].next_free = session->first_free;
    session->first_free = slot;
    session->n_calls--;
    return call;
}

static void send_cancel_locked(struct tether__peer *peer, uint64_t id)
{
    struct tether__packed packed;
    Tether__Cancel cancel = TETHER__CANCEL__INIT;
    cancel.id = id;
    if (tether__pack(&packed, &cancel.base) == TETHER_OK) {
        tether__stream_send_locked(&peer->session->out, TETHER__FRAME_CANCEL, packed.bytes,
                                   TETHER__SLICE_EMPTY, 0);
        tether__packed_fini(&packed);
    }
}

/* Takes a call out of its slot before its reply has come; NULL: it has ended already. If its
 * argument is still being sent in pieces, sending stops; otherwise a cancel message goes to the
 * peer. */
static struct tether__call *give_up_locked(struct tether__peer *peer, uint64_t id)
{
    struct tether__call *call = tether__call_look_up_locked(peer, id);
    if (!call)
        return NULL;
    tether__call_note_progress_locked(call);
    if (peer->is_self)
        tether__incoming_cancel_locked(peer->session, id);
    else if (tether__stream_cancel_locked(&peer->session->out, TETHER__FRAME_CALL, id))
        call->progress = "argument not sent to its end";
    else
        send_cancel_locked(peer, id);
    return tether__call_take_locked(peer, id);
}

tether_status tether__peer_silence_locked(const struct tether__peer *peer, tether_error *ret_why)
{
    if (peer->dialer.refusal.code)
        return tether_error_set(ret_why, peer->dialer.refusal.code, "worker '%s': %s", peer->name,
                                peer->dialer.refusal.message);
    return tether_error_set(ret_why, TETHER_ETIMEOUT, "%s",
                            peer->dialer.last_error[0]
                                ? peer->dialer.last_error
                                : "look with tether-inspect whether the worker is "
                                  "busy or stuck, or raise timeout_ms");
}

void tether__call_expire_locked(struct tether__peer *peer, struct tether__call *call)
{
    struct tether__failed_calls *expired = &peer->after.expired;
    if (!expired->calls.first)
        tether__peer_silence_locked(peer, &expired->error);
    tether__peer_end_call_locked(peer, &expired->calls, give_up_locked(peer, call->id));
}

void tether__calls_note_progress_locked(struct tether__session *session)
{
    session->sent = tether__sent_locked(&session->out);
    if (!session->peer->is_self)
        return;
    for (uint32_t i = 0; session->n_calls && i < session->n_slots; i++)
        if (session->slots[i].call)
            tether__call_note_progress_locked(session->slots[i].call);
}

void tether__call_schedule(const struct tether__call *call)
{
    tether__peer_schedule(call->peer, call->ask_at);
}

/* ---- The call object ---- */

static void call_destroy(tether_future *future)
{
    struct tether__call *call = tether__container_of(future, struct tether__call, future);
    tether__peer_release(call->peer);
    tether__future_fini(future); /* also gives back the future's count of the agent's memory */
    tether__free(call);
}

/* The last step of a call: from now on only the holders of its future use it. */
static void call_end(struct tether__call *call)
{
    tether_agent *agent = call->agent;
    if (atomic_fetch_sub(&agent->active_calls, 1) == 1)
        tether__condition_notify(&agent->idle);
    tether_future_release(&call->future); /* must be last: it may free the agent's memory */
}

static void run_call_callbacks(struct tether__work *work)
{
    tether_future *future = tether__container_of(work, tether_future, work);
    struct tether__call *call = tether__container_of(future, struct tether__call, future);
    tether_trace outer = tether__trace;
    tether__trace = call->trace;
    tether__future_run_callbacks(future);
    tether__trace = outer;
    tether_future_release(future);
    call_end(call);
}

void tether__call_finish(struct tether__call *call,
                         tether_status status,
                         const tether_error *error,
                         tether_value *value)
{
    tether_agent *agent = call->agent;
    struct tether__peer *peer = call->peer;
    tether__condition_notify(&peer->room); /* threads wait there for a free slot */
    if (status != TETHER_OK) {
        tether__peer_lock(peer);
        peer->metrics.errors++;
        tether__peer_unlock(peer);
    }
    tether__metrics_call(&agent->metrics, status,
                         tether__clock_now_ns(agent->clock) - call->started);

    if (call->held)
        call->held->ops->release(call->held);
    if (status != TETHER_OK) {
        tether_trace outer = tether__trace;
        tether__trace = call->trace;
        tether__log(TETHER_LOG_DEBUG, "rpc", "%s: '%s' on '%s' failed: %s", agent->name,
                    call->function, peer->name, error ? error->message : "");
        tether__trace = outer;
    }
    bool has_callbacks;
    tether__future_store(&call->future, status, error, value, &has_callbacks);
    if (has_callbacks) {
        call->future.work.run = run_call_callbacks;
        tether__work_run(&call->future.work);
    } else {
        call_end(call);
    }
}

/* Takes the call out of its slot, if it is still there, and fails it. */
void tether__call_give_up(struct tether__call *call,
                          tether_status status,
                          const tether_error *error)
{
    struct tether__peer *peer = call->peer;
    tether__peer_lock(peer);
    bool taken = tether__call_look_up_locked(peer, call->id) == call;
    if (taken)
        give_up_locked(peer, call->id);
    tether__peer_unlock(peer);
    tether_error why;
    if (taken) {
        tether__call_explain_end(call, status, error, &why);
        tether__call_finish(call, status, &why, NULL);
    }
}

static struct tether__call *find_tied_locked(struct tether__session *session,
                                             struct tether__use use)
{
    uint32_t slot = session->n_slots ? *chain_of(session, use) : NO_SLOT;
    while (slot != NO_SLOT) {
        struct tether__call *call = session->slots[slot].call;
        if (call->use.high == use.high && call->use.low == use.low)
            return call;
        slot = session->slots[slot].next_tied;
    }
    return NULL;
}

void tether__calls_end_use(struct tether__peer *peer,
                           struct tether__use use,
                           tether_status status,
                           const tether_error *error)
{
    for (;;) { /* one call at a time, since a call is finished without the lock */
        tether__peer_lock(peer);
        struct tether__call *found = find_tied_locked(peer->session, use);
        if (found)
            give_up_locked(peer, found->id);
        tether__peer_unlock(peer);
        if (!found)
            return;
        tether__call_finish(found, status, error, NULL);
    }
}

static void call_cancel(tether_future *future)
{
    struct tether__call *call = tether__container_of(future, struct tether__call, future);
    tether_error error;
    tether_error_set(&error, TETHER_ECANCELED, "call of '%s' was canceled", call->function);
    tether_future_retain(future); /* the last holder may release the future meanwhile */
    tether__call_give_up(call, TETHER_ECANCELED, &error);
    tether_future_release(future);
}

static const struct tether__future_ops call_ops = {
    .cancel = call_cancel,
    .destroy = call_destroy,
    .await = tether__call_future_await,
    .explain_wait = tether__call_explain_wait,
};

tether_status tether__call_new(tether_agent *agent,
                               struct tether__peer *peer,
                               const char *fn,
                               int64_t deadline,
                               struct tether__call **ret_call)
{
    size_t size = strlen(fn) + 1;
    struct tether__call *call = tether__malloc(sizeof *call + size);
    if (!call)
        return TETHER_ENOMEM;
    tether__future_init(&call->future, &call_ops, tether__peer_poller(peer));
    /* a second count: one is the holder's, one lasts while the call is in flight */
    tether_future_retain(&call->future);
    call->agent = agent;
    call->peer = tether__peer_retain(peer);
    call->deadline = deadline;
    call->started = tether__clock_now_ns(agent->clock);
    call->trace = tether__trace;
    call->held = NULL;
    call->use = (struct tether__use){0, 0};
    call->ask_at = tether__call_ask_at(call->started, deadline);
    call->is_due = call->is_request = false;
    call->asked_at = call->reported_at = 0;
    call->seq = 0;
    call->about_object = false;
    memcpy(call->function, fn, size);
    *ret_call = call;
    return TETHER_OK;
}

/* Frees a call that was never sent. `had_slot`: it had a slot, so it was counted in
 * agent->active_calls. */
void tether__call_abandon(struct tether__call *call, bool had_slot)
{
    if (had_slot && atomic_fetch_sub(&call->agent->active_calls, 1) == 1)
        tether__condition_notify(&call->agent->idle);
    tether_future_release(&call->future);
    tether_future_release(&call->future);
}

/* Words the error of a call that could not be sent. `len`: size of its argument. */
tether_status tether__call_explain(tether_error *reterr,
                                   tether_status status,
                                   const struct tether__peer *peer,
                                   const char *fn,
                                   size_t len)
{
    switch (status) {
        case TETHER_EBUSY:
            return tether_error_set(reterr, status,
                                    "too much in flight to worker '%s': wait for some calls to "
                                    "finish, or raise max_calls_per_peer or max_bytes_per_peer",
                                    peer->name);
        case TETHER_ETOOBIG:
            return tether_error_set(reterr, status,
                                    "%zu bytes are too many for one call of '%s' on '%s': with "
                                    "what goes with them they exceed max_message_bytes = %zu: send "
                                    "less at once, or raise it on all workers",
                                    len, fn, peer->name, peer->agent->opts.max_message_bytes);
        default:
            return tether_error_set(reterr, status, "calling '%s' on '%s': %s", fn, peer->name,
                                    tether_status_text(status));
    }
}
