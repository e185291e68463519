/* Calls that we make: from rpc_sync / rpc_async to the reply.
 *
 * Happy path: the call gets a slot in its peer's table, its number is slot and generation; header
 * and argument go into the lane; the reply names the number, empties the slot and finishes the
 * future. The thread that waits is usually the one that polls, so nobody is woken.
 *
 * Failure modes: the deadline (the waiting thread or the background one takes the call out and
 * tells the peer), cancel, a fence (all calls of the peer), shutdown. Whoever empties the slot
 * finishes the future: exactly once. A reply that finds its slot empty or with a new generation is
 * dropped.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent_internal.h"
#include "rpc/packed.h"
#include "rpc/value_internal.h"
#include "rpc/wire.h"

/* ---- The table of calls in flight ---- */

static uint64_t call_number(uint32_t slot, uint32_t generation)
{
    return ((uint64_t)generation << 32 | slot) + 1; /* never 0 */
}

static tether_status slot_take_locked(struct tether__peer *peer, struct tether__call *call)
{
    if (peer->first_free == UINT32_MAX) {
        uint32_t n = peer->n_slots ? 2 * peer->n_slots : 16;
        struct tether__call_slot *slots = tether__realloc(peer->slots, n * sizeof *slots);
        if (!slots)
            return TETHER_ENOMEM;
        for (uint32_t i = peer->n_slots; i < n; i++)
            slots[i] = (struct tether__call_slot){NULL, (uint32_t)peer->session_epoch << 20,
                                                  i + 1 < n ? i + 1 : UINT32_MAX};
        peer->first_free = peer->n_slots;
        peer->slots = slots;
        peer->n_slots = n;
    }
    uint32_t slot = peer->first_free;
    peer->first_free = peer->slots[slot].next_free;
    peer->slots[slot].call = call;
    call->id = call_number(slot, ++peer->slots[slot].generation);
    peer->n_calls++;
    atomic_fetch_add(&call->agent->active_calls, 1);
    atomic_fetch_add(&call->agent->started_calls, 1);
    if (call->deadline < peer->calls_due)
        peer->calls_due = call->deadline;
    return TETHER_OK;
}

static struct tether__call *call_peek_locked(struct tether__peer *peer, uint64_t id)
{
    uint32_t slot = (uint32_t)(id - 1);
    struct tether__call *call = slot < peer->n_slots ? peer->slots[slot].call : NULL;
    return call && call->id == id ? call : NULL;
}

struct tether__call *tether__call_take_locked(struct tether__peer *peer, uint64_t id)
{
    uint32_t slot = (uint32_t)(id - 1);
    struct tether__call *call = call_peek_locked(peer, id);
    if (!call)
        return NULL;
    peer->slots[slot].call = NULL;
    peer->slots[slot].next_free = peer->first_free;
    peer->first_free = slot;
    peer->n_calls--;
    return call;
}

static void send_cancel_locked(struct tether__peer *peer, uint64_t id)
{
    struct tether__packed packed;
    Tether__Cancel cancel = TETHER__CANCEL__INIT;
    cancel.id = id;
    if (tether__pack(&packed, &cancel.base) == TETHER_OK) {
        tether__link_send_locked(&peer->out, TETHER__FRAME_CANCEL, packed.bytes,
                                 TETHER__SLICE_EMPTY, NULL);
        tether__packed_fini(&packed);
    }
}

int64_t tether__calls_expire_locked(struct tether__peer *peer,
                                    int64_t now,
                                    struct tether__aftermath *ret_aftermath)
{
    int64_t next = TETHER__NEVER;
    size_t n = 0;
    for (uint32_t i = 0; i < peer->n_slots; i++)
        if (peer->slots[i].call && peer->slots[i].call->deadline <= now)
            n++;
    if (n)
        ret_aftermath->calls = tether__malloc(n * sizeof *ret_aftermath->calls);
    for (uint32_t i = 0; i < peer->n_slots; i++) {
        struct tether__call *call = peer->slots[i].call;
        if (!call)
            continue;
        if (call->deadline > now || !ret_aftermath->calls) {
            if (call->deadline < next)
                next = call->deadline;
            continue;
        }
        send_cancel_locked(peer, call->id);
        ret_aftermath->calls[ret_aftermath->n_calls++] = tether__call_take_locked(peer, call->id);
    }
    ret_aftermath->status = TETHER_ETIMEOUT;
    tether_error_set(&ret_aftermath->error, TETHER_ETIMEOUT,
                     "worker '%s' did not answer in time%s%s", peer->name,
                     peer->last_error[0] ? ": " : "", peer->last_error);
    /* Out of memory: try again in a moment. */
    return next <= now ? now + 10 * TETHER__NS_PER_MS : next;
}

/* ---- The call object ---- */

static void call_destroy(tether_future *future)
{
    tether__future_fini(future);
    tether__free(tether__container_of(future, struct tether__call, future));
}

void tether__call_finish(struct tether__call *call,
                         tether_status status,
                         const tether_error *error,
                         tether_value *value)
{
    tether_agent *agent = call->agent;
    struct tether__peer *peer = call->peer;
    tether_future *room = NULL;
    pthread_mutex_lock(&peer->mu);
    if (peer->room) {
        room = peer->room;
        peer->room = NULL;
    }
    peer->metrics.calls++;
    peer->metrics.errors += status != TETHER_OK;
    pthread_mutex_unlock(&peer->mu);
    tether__metrics_call(&agent->metrics, status,
                         tether__clock_now_ns(agent->clock) - call->started);

    tether_future_finish(&call->future, status, error, value); /* runs the callbacks */
    tether_future_release(&call->future);
    if (room) {
        tether_future_finish(room, TETHER_OK, NULL, NULL);
        tether_future_release(room);
    }
    tether__peer_release(peer);
    if (atomic_fetch_sub(&agent->active_calls, 1) == 1)
        tether__agent_tell_idle(agent);
}

/* Takes the call out of its slot, if it is still there, and fails it. */
static void give_up(struct tether__call *call, tether_status status, const tether_error *error)
{
    struct tether__peer *peer = call->peer;
    pthread_mutex_lock(&peer->mu);
    struct tether__call *taken = tether__call_take_locked(peer, call->id);
    if (taken && !peer->is_self)
        send_cancel_locked(peer, call->id);
    pthread_mutex_unlock(&peer->mu);
    if (taken)
        tether__call_finish(call, status, error, NULL);
}

static void call_cancel(tether_future *future)
{
    struct tether__call *call = tether__container_of(future, struct tether__call, future);
    tether_error error;
    tether_error_set(&error, TETHER_ECANCELED, "call of '%s' was canceled", call->function);
    tether_future_retain(future); /* the last holder may let go while we are at it */
    give_up(call, TETHER_ECANCELED, &error);
    tether_future_release(future);
}

static const struct tether__future_ops call_ops = {call_cancel, call_destroy};

/* ---- Making one ---- */

int64_t tether__call_deadline(tether_agent *agent, int timeout_ms)
{
    if (timeout_ms != TETHER_DEFAULT_MS)
        return tether__deadline_in(agent->clock, timeout_ms);
    int64_t deadline = tether__deadline_in(agent->clock, agent->opts.timeout_ms);
    if (tether__current.incoming) { /* no longer than our own caller waits */
        int64_t outer = tether__incoming_deadline(tether__current.incoming);
        if (outer < deadline)
            deadline = outer;
    }
    return deadline;
}

static uint32_t wire_timeout(tether_agent *agent, int64_t deadline)
{
    int left = tether__deadline_left_ms(agent->clock, deadline);
    return left < 0 ? 0 : left == 0 ? 1 : (uint32_t)left;
}

/* Queues the call's frame; the references that ride on `arg` are forked for this peer. */
static tether_status send_call_locked(struct tether__call *call,
                                      const struct tether__call_target *target,
                                      const tether_value *arg,
                                      tether_error *reterr)
{
    struct tether__peer *peer = call->peer;
    tether_status may = tether__peer_may_send(peer, TETHER__FRAME_CALL);
    if (may != TETHER_OK)
        return may;
    struct tether__packed packed;
    struct tether__ref_pack pack = {0};
    Tether__Call header = TETHER__CALL__INIT;
    header.id = call->id;
    header.function = call->function;
    header.timeout_ms = wire_timeout(call->agent, call->deadline);
    if (target) {
        header.target = target->target;
        header.result = target->result;
        header.result_fork = target->result_fork;
        header.owner_incarnation = target->owner_incarnation;
        header.site = (char *)(target->site ? target->site : "");
        header.type = (char *)(target->arg_type ? target->arg_type : "");
    }
    if (tether__value_n_riders(arg)) {
        tether_status st =
            tether__ext_ops->pack_locked(call->agent->ext, peer, arg, false, &pack, reterr);
        if (st != TETHER_OK)
            return st;
        header.n_ref = pack.n;
        header.ref = pack.refs;
    }
    tether_status st = tether__pack(&packed, &header.base);
    if (st == TETHER_OK) {
        st = tether__lane_send(&peer->out.lane, TETHER__FRAME_CALL, packed.bytes,
                               tether__value_slice((tether_value *)arg), NULL);
        tether__packed_fini(&packed);
        if (st == TETHER_OK)
            tether__link_flush_soon_locked(&peer->out);
    }
    if (pack.n && st != TETHER_OK)
        tether__ext_ops->undo_locked(call->agent->ext, peer, &pack);
    else if (pack.n)
        tether__ext_ops->pack_fini(&pack);
    return st;
}

/* "worker 'x': function 'f': what" */
static tether_status explain(tether_error *reterr,
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
                                    "%zu bytes are too many for one call of '%s' on '%s': the "
                                    "limit is max_message_bytes = %zu",
                                    len, fn, peer->name, peer->agent->opts.max_message_bytes);
        default:
            return tether_error_set(reterr, status, "calling '%s' on '%s': %s", fn, peer->name,
                                    tether_status_text(status));
    }
}

static tether_status call_new(tether_agent *agent,
                              struct tether__peer *peer,
                              const char *fn,
                              int64_t deadline,
                              struct tether__call **ret_call)
{
    size_t size = strlen(fn) + 1;
    struct tether__call *call = tether__malloc(sizeof *call + size);
    if (!call)
        return TETHER_ENOMEM;
    tether__future_init(&call->future, &call_ops, &agent->progress);
    tether_future_retain(&call->future); /* one for the holder, one while it is in flight */
    call->agent = agent;
    call->peer = tether__peer_retain(peer);
    call->deadline = deadline;
    call->started = tether__clock_now_ns(agent->clock);
    memcpy(call->function, fn, size);
    *ret_call = call;
    return TETHER_OK;
}

/* A call that was never on its way. `had_slot`: it was counted. */
static void call_abandon(struct tether__call *call, bool had_slot)
{
    if (had_slot && atomic_fetch_sub(&call->agent->active_calls, 1) == 1)
        tether__agent_tell_idle(call->agent);
    tether__peer_release(call->peer);
    tether_future_release(&call->future);
    tether_future_release(&call->future);
}

tether_status tether__call_start(tether_agent *agent,
                                 struct tether__peer *peer,
                                 const char *fn,
                                 const struct tether__call_target *target,
                                 const tether_value *arg,
                                 int64_t deadline,
                                 struct tether__call **ret_call,
                                 tether_error *reterr)
{
    struct tether__call *call;
    tether_value *sent = NULL;
    struct tether__call_target typed = target ? *target : (struct tether__call_target){0};
    tether_error why = {0};
    if (!peer->is_self) {
        tether_status st = tether__value_to_send(arg, &sent, reterr);
        if (st != TETHER_OK)
            return st;
        typed.arg_type = arg && arg->type ? arg->type->name : NULL;
    }
    size_t len = tether_value_bytes(sent).len;
    if (call_new(agent, peer, fn, deadline, &call) != TETHER_OK) {
        tether_value_release(sent);
        return explain(reterr, TETHER_ENOMEM, peer, fn, 0);
    }

    pthread_mutex_lock(&peer->mu);
    tether_status st = peer->n_calls < (uint32_t)agent->opts.max_calls_per_peer
                           ? slot_take_locked(peer, call)
                           : TETHER_EBUSY;
    bool in_slot = st == TETHER_OK;
    if (in_slot && !peer->is_self) {
        if (target && target->prepare_locked)
            st = target->prepare_locked(target->prepare_userdata, peer, &typed);
        if (st == TETHER_OK)
            st = send_call_locked(call, target || typed.arg_type ? &typed : NULL, sent, &why);
        if (st != TETHER_OK)
            tether__call_take_locked(peer, call->id);
        else if (!peer->out.conn)
            tether__peer_connect_locked(peer);
    }
    int64_t due = peer->next_dial;
    pthread_mutex_unlock(&peer->mu);

    tether_value_release(sent);
    if (st != TETHER_OK) {
        call_abandon(call, in_slot);
        if (why.code != st)
            return explain(reterr, st, peer, fn, len);
        return tether_error_set(reterr, st, "%s", why.message);
    }
    tether__progress_kick(&agent->progress, due);
    *ret_call = call;
    if (peer->is_self)
        tether__dispatch_local(call, target, arg);
    return TETHER_OK;
}

/* "#7" or a name. Static groups know all their names; others may be looked up later. */
tether_status tether__agent_resolve(tether_agent *agent,
                                    const char *to,
                                    struct tether__peer **ret_peer,
                                    tether_error *reterr)
{
    if (!to || !*to || strlen(to) > TETHER_MAX_WORKER_NAME)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a call needs the name of a worker (1 to %d characters)",
                                TETHER_MAX_WORKER_NAME);
    if (to[0] != '#')
        return tether__agent_peer(agent, to, ret_peer, reterr);
    char *end;
    unsigned long id = strtoul(to + 1, &end, 10);
    struct tether__peer *found = NULL;
    pthread_mutex_lock(&agent->mu);
    for (size_t i = 0; i < agent->n_peers && !found && *end == '\0' && to[1]; i++) {
        struct tether__peer *peer = agent->peers[i];
        pthread_mutex_lock(&peer->mu);
        if (peer->record.name[0] && peer->record.id == id)
            found = tether__peer_retain(peer);
        pthread_mutex_unlock(&peer->mu);
    }
    pthread_mutex_unlock(&agent->mu);
    if (!found)
        return tether_error_set(reterr, TETHER_ENOTFOUND, "no worker with id '%s' is known",
                                to + 1);
    *ret_peer = found;
    return TETHER_OK;
}

tether_status tether__call_check(tether_agent *agent, const char *fn, tether_error *reterr)
{
    size_t len = fn ? strlen(fn) : 0;
    if (len == 0 || len > TETHER__MAX_FUNCTION_NAME)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a call needs the name of a function (1 to %d characters)",
                                TETHER__MAX_FUNCTION_NAME);
    int state = atomic_load(&agent->state);
    if (state == TETHER__AGENT_NEW || state == TETHER__AGENT_STARTING)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the agent has not started: call tether_agent_start() first");
    if (state == TETHER__AGENT_STOPPED)
        return tether_error_set(reterr, TETHER_ESHUTDOWN, "this worker has shut down");
    return TETHER_OK;
}

static tether_future *failed_future(tether_status status, const tether_error *error)
{
    tether_future *future = tether_future_new();
    if (!future)
        return tether__future_no_memory();
    tether_future_finish(future, status, error, NULL);
    return future;
}

tether_future *tether_rpc_async(tether_agent *agent,
                                const char *to,
                                const char *fn,
                                const tether_value *arg,
                                int timeout_ms)
{
    tether_error error = {0};
    struct tether__peer *peer = NULL;
    struct tether__call *call = NULL;
    tether_status st = tether__call_check(agent, fn, &error);
    if (st == TETHER_OK)
        st = tether__agent_resolve(agent, to, &peer, &error);
    if (st == TETHER_OK) {
        int64_t deadline = tether__call_deadline(agent, timeout_ms);
        st = tether__call_start(agent, peer, fn, NULL, arg, deadline, &call, &error);
        if (st == TETHER_OK) /* nobody may be waiting when it passes */
            tether__progress_kick(&agent->progress, deadline);
    }
    if (peer)
        tether__peer_release(peer);
    return st == TETHER_OK ? &call->future : failed_future(st, &error);
}

/* Waits until a call of this peer is done, so that there may be room for another. */
static void wait_for_room(struct tether__peer *peer, int64_t deadline)
{
    pthread_mutex_lock(&peer->mu);
    if (!peer->room && (peer->room = tether_future_new()))
        peer->room->progress = &peer->agent->progress;
    tether_future *room = tether_future_retain(peer->room);
    pthread_mutex_unlock(&peer->mu);
    if (room)
        tether__future_await(room, deadline);
    tether_future_release(room);
}

tether_status tether_rpc_sync(tether_agent *agent,
                              const char *to,
                              const char *fn,
                              const tether_value *arg,
                              int timeout_ms,
                              tether_value **ret_value,
                              tether_error *reterr)
{
    if (tether__current.must_not_block)
        return tether_error_set(reterr, TETHER_EDEADLK,
                                "calling '%s' here would block the thread that brings the answer: "
                                "use tether_rpc_async(), or register the function as pooled",
                                fn ? fn : "");
    tether_error error = {0};
    struct tether__peer *peer = NULL;
    struct tether__call *call = NULL;
    tether_status st = tether__call_check(agent, fn, &error);
    if (st == TETHER_OK)
        st = tether__agent_resolve(agent, to, &peer, &error);
    int64_t deadline = tether__call_deadline(agent, timeout_ms);
    while (st == TETHER_OK) {
        st = tether__call_start(agent, peer, fn, NULL, arg, deadline, &call, &error);
        if (st != TETHER_EBUSY || tether__clock_now_ns(agent->clock) >= deadline)
            break;
        wait_for_room(peer, deadline);
        st = TETHER_OK;
    }
    if (st == TETHER_OK) {
        if (!tether__future_await(&call->future, deadline)) {
            tether_error_set(&error, TETHER_ETIMEOUT, "worker '%s' did not answer '%s' in time",
                             peer->name, fn);
            give_up(call, TETHER_ETIMEOUT, &error);
            tether__future_await(&call->future, TETHER__NEVER); /* whoever took it finishes it */
        }
        st = tether__future_result(&call->future, ret_value, &error);
        tether_future_release(&call->future);
    }
    if (peer)
        tether__peer_release(peer);
    if (st != TETHER_OK && reterr)
        *reterr = error;
    return st;
}

/* ---- Requests of the extension's own ---- */

/* What it takes to try again. */
struct request {
    uint64_t id;
    uint32_t kind;
    tether__call_pack *pack;
    void *userdata;
};

static tether_status attempt_locked(void *userdata, struct tether__peer *peer)
{
    struct request *request = userdata;
    struct tether__call *call = call_peek_locked(peer, request->id);
    if (!call) { /* it was fenced or has run out of time meanwhile */
        tether__free(request);
        return TETHER_ECANCELED;
    }
    tether_status st = tether__peer_may_send(peer, request->kind);
    struct tether__packed packed;
    if (st == TETHER_OK)
        st = request->pack(request->userdata, request->id,
                           wire_timeout(call->agent, call->deadline), &packed);
    if (st == TETHER_OK) {
        st = tether__link_send_locked(&peer->out, request->kind, packed.bytes, TETHER__SLICE_EMPTY,
                                      NULL);
        tether__packed_fini(&packed);
    }
    if (st == TETHER_OK) {
        if (!peer->out.conn)
            tether__peer_connect_locked(peer);
        tether__progress_kick(&call->agent->progress, peer->next_dial);
        tether__free(request);
    }
    return st;
}

static void give_up_request(void *userdata, struct tether__peer *peer, tether_status status)
{
    struct request *request = userdata;
    pthread_mutex_lock(&peer->mu);
    struct tether__call *call = tether__call_take_locked(peer, request->id);
    pthread_mutex_unlock(&peer->mu);
    if (call) {
        tether_error error;
        explain(&error, status, peer, call->function, 0);
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
    if (!request || call_new(agent, peer, label, deadline, &call) != TETHER_OK) {
        tether__free(request);
        return explain(reterr, TETHER_ENOMEM, peer, label, 0);
    }
    pthread_mutex_lock(&peer->mu);
    tether_status st = slot_take_locked(peer, call);
    bool in_slot = st == TETHER_OK;
    if (in_slot) {
        *request = (struct request){call->id, kind, pack, userdata};
        st = attempt_locked(request, peer);
    }
    if (in_slot && st != TETHER_OK && !must_arrive)
        tether__call_take_locked(peer, call->id);
    int64_t due = peer->next_dial < deadline ? peer->next_dial : deadline;
    pthread_mutex_unlock(&peer->mu);
    if (in_slot && st != TETHER_OK && must_arrive) {
        st = tether__retry_later(peer, st, attempt_locked, give_up_request, request);
        if (st != TETHER_OK) {
            pthread_mutex_lock(&peer->mu);
            if (!tether__call_take_locked(peer, call->id))
                st = TETHER_OK; /* a fence was quicker, and has finished it */
            pthread_mutex_unlock(&peer->mu);
        }
    }
    if (st != TETHER_OK) {
        tether__free(request);
        call_abandon(call, in_slot);
        return explain(reterr, st, peer, label, 0);
    }
    tether__progress_kick(&agent->progress, due);
    *ret_future = &call->future;
    return TETHER_OK;
}

/* ---- The reply ---- */

/* A reply that waits for its references to be confirmed. */
struct waiting_reply {
    struct tether__resume resume;
    struct tether__call *call; /* NULL: it came too late, nobody wants it */
    tether_value *value;
};

static void finish_reply(struct tether__resume *resume,
                         tether_status status,
                         const tether_error *error)
{
    struct waiting_reply *reply = tether__container_of(resume, struct waiting_reply, resume);
    if (reply->call)
        tether__call_finish(reply->call, status, error, status == TETHER_OK ? reply->value : NULL);
    tether_value_release(reply->value);
    tether__free(reply);
}

/* References in a reply belong to us now, whether or not anybody still waits for it. */
static void take_refs(struct tether__peer *peer,
                      struct tether__call *call,
                      const Tether__Reply *reply,
                      tether_value *value)
{
    tether_error error = {0};
    struct waiting_reply *waiting = tether__malloc(sizeof *waiting);
    if (!waiting || !peer->agent->ext) {
        tether__free(waiting);
        tether_error_set(&error, TETHER_ENOMEM, "no memory for the references that came");
        if (call)
            tether__call_finish(call, TETHER_ENOMEM, &error, NULL);
        tether_value_release(value);
        return;
    }
    *waiting = (struct waiting_reply){{finish_reply}, call, value};
    tether_status st = tether__ext_ops->arrived(peer->agent->ext, peer, reply->ref, reply->n_ref,
                                                true, value, &waiting->resume, &error);
    if (st != TETHER_EBUSY)
        finish_reply(&waiting->resume, st, &error);
}

static void finish_with_value(struct tether__peer *peer,
                              struct tether__call *call,
                              const Tether__Reply *reply,
                              struct tether__slice payload)
{
    tether_value *value = NULL;
    tether_error error = {0};
    tether_status st = TETHER_OK;
    if (payload.len || reply->n_ref || reply->type[0])
        st = tether__value_received(payload,
                                    tether__registry_find_type(&peer->agent->registry, reply->type),
                                    &value, &error);
    if (st == TETHER_OK && reply->n_ref) {
        take_refs(peer, call, reply, value);
        return;
    }
    if (call)
        tether__call_finish(call, st, &error, value);
    tether_value_release(value);
}

void tether__call_on_reply(struct tether__peer *peer, const struct tether__inbound *message)
{
    TETHER__ARENA(arena, 512);
    const Tether__Reply *reply;
    if (tether__wire_unpack(&tether__reply__descriptor, message->header, &arena,
                            (const void **)&reply) == TETHER_OK) {
        pthread_mutex_lock(&peer->mu);
        struct tether__call *call = tether__call_take_locked(peer, reply->id);
        pthread_mutex_unlock(&peer->mu);
        if (reply->status == TETHER_OK) {
            finish_with_value(peer, call, reply, message->payload);
        } else if (call) {
            tether_error error;
            tether_error_set(&error, (tether_status)reply->status, "worker '%s', function '%s': %s",
                             peer->name, call->function, reply->error);
            tether__call_finish(call, (tether_status)reply->status, &error, NULL);
        }
    }
    tether__arena_fini(&arena);
}
