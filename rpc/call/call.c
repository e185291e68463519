/* Calls that this worker makes: from tether_rpc_sync() and tether_rpc_async() to the reply.
 *
 * Happy path: the call gets a slot in its peer's table, its number is slot and generation; header
 * and argument go into the lane; the reply names the number, empties the slot and finishes the
 * future. The thread that waits is usually the one that polls, so no thread is woken.
 *
 * Failure modes: the deadline (the waiting thread or the background one takes the call out and
 * tells the peer), cancel, a fence (all calls of the peer), shutdown. The thread that empties the
 * slot finishes the future: exactly once. A reply that finds its slot empty or with a new
 * generation is dropped.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status_internal.h"
#include "base/threads/pool.h"
#include "base/threads/state.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/call/call.h"
#include "rpc/future.h"
#include "rpc/future/condition.h"
#include "rpc/future/internal.h"
#include "rpc/handshake/pairing.h"
#include "rpc/lane/lane.h"
#include "rpc/peer/admission/confirm.h"
#include "rpc/peer/calls/progress.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/connect/reach.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/peer/table.h"
#include "rpc/peer/timers.h"
#include "rpc/refs.h"
#include "rpc/serve/registry.h"
#include "rpc/serve/serve.h"
#include "rpc/wire/call_header.h"
#include "rpc/wire/value_internal.h"

int64_t tether__call_deadline(tether_agent *agent, int timeout_ms)
{
    if (timeout_ms != TETHER_DEFAULT_MS)
        return tether__deadline_in(agent->clock, timeout_ms);
    int64_t deadline = tether__deadline_in(agent->clock, agent->opts.timeout_ms);
    /* this thread runs a function: no longer than its caller waits */
    if (tether__thread_state.incoming) {
        int64_t outer = tether__incoming_deadline(tether__thread_state.incoming);
        if (outer < deadline)
            deadline = outer;
    }
    return deadline;
}

uint32_t tether__call_wire_timeout(int64_t now, int64_t deadline)
{
    int left = tether__deadline_left_ms_at(now, deadline);
    return left < 0 ? 0 : left == 0 ? 1 : (uint32_t)left;
}

/* Queues the call's frame; the references that are attached to `arg` are forked for this peer. */
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
    /* The call has just started, so do not read the clock again. */
    header.timeout_ms = tether__call_wire_timeout(call->started, call->deadline);
    if (tether__trace_is_set(&call->trace))
        header.trace = (ProtobufCBinaryData){sizeof call->trace.bytes, call->trace.bytes};
    if (target) {
        header.target = target->target;
        header.n_result = target->makes ? TETHER__ARRAY_LEN(target->result) : 0;
        header.result = (uint64_t *)target->result;
        header.n_result_fork = header.n_result;
        header.result_fork = (uint64_t *)target->result_fork;
        header.owner_incarnation = target->owner_incarnation;
        header.announced = target->announced;
        header.site = (char *)(target->site ? target->site : "");
        header.type = (char *)(target->arg_type ? target->arg_type : "");
    }
    if (tether__value_n_attached(arg)) {
        bool in_pieces =
            tether__lane_in_pieces(&peer->session->out.lane, tether_value_bytes(arg).len);
        tether_status st =
            tether__ext_ops->encode_locked(call->agent->ext, peer, arg, in_pieces, &pack, reterr);
        if (st != TETHER_OK)
            return st;
        header.n_ref = pack.n;
        header.ref = pack.refs;
    }
    tether_status st = tether__call_header_pack(&packed, &header);
    if (st == TETHER_OK) {
        /* References, and the object that a call makes, count from the moment that the call is
         * queued: such a call must arrive, so that they can be released. */
        bool may_be_cancelled = !pack.n && !(target && target->makes);
        st = tether__lane_send(&peer->session->out.lane, TETHER__FRAME_CALL, packed.bytes,
                               tether__value_slice((tether_value *)arg),
                               may_be_cancelled ? call->id : 0);
        tether__packed_fini(&packed);
        if (st == TETHER_OK)
            call->seq = target && target->in_pieces ? TETHER__SEQ_OF_PIECES
                                                    : peer->session->out.lane.next_seq - 1;
        if (st == TETHER_OK)
            tether__stream_flush_soon_locked(&peer->session->out, target && target->makes);
    }
    if (pack.n)
        tether__ext_ops->encode_end_locked(call->agent->ext, peer, &pack, st == TETHER_OK);
    return st;
}

/* Whether a call with `len` bytes may be sent now. If no bytes are unacknowledged, any length may.
 */
static bool has_room_locked(const struct tether__peer *peer, size_t len)
{
    const struct tether_agent_opts *opts = &peer->agent->opts;
    size_t used = peer->session->out.lane.unacked_bytes;
    return peer->session->n_calls < (uint32_t)opts->max_calls_per_peer &&
           (used == 0 ||
            (used <= opts->max_bytes_per_peer && len <= opts->max_bytes_per_peer - used));
}

/* Starts a call like tether__call_start(). `*ret_no_room`: it failed only because too much is in
 * flight. */
static tether_status start_if_room(tether_agent *agent,
                                   struct tether__peer *peer,
                                   const char *fn,
                                   const struct tether__call_target *target,
                                   const tether_value *arg,
                                   int64_t deadline,
                                   struct tether__call **ret_call,
                                   bool *ret_no_room,
                                   tether_error *reterr)
{
    struct tether__call *call;
    tether_value *sent = NULL;
    struct tether__call_target typed = target ? *target : (struct tether__call_target){0};
    tether_error why;
    tether__error_init(&why);
    *ret_no_room = false;
    if (!peer->is_self) {
        tether_status st = tether__value_to_send(arg, &sent, reterr);
        if (st != TETHER_OK)
            return st;
        typed.arg_type = arg && arg->type ? arg->type->name : NULL;
    } else if (tether__value_n_attached(arg)) { /* refused like a call to another worker */
        tether_status st = tether__ext_ops->check(agent->ext, arg, true, reterr);
        if (st != TETHER_OK)
            return st;
    }
    size_t len = tether_value_bytes(sent).len;
    if (tether__call_new(agent, peer, fn, deadline, &call) != TETHER_OK) {
        tether_value_release(sent);
        return tether__call_explain(reterr, TETHER_ENOMEM, peer, fn, 0);
    }
    call->about_object = typed.target != NULL;
    call->result = typed.result_there;

    tether__peer_lock(peer);
    tether_status st = tether__peer_admit_locked(peer, &why);
    if (st != TETHER_OK && call->about_object)
        st = why.code = TETHER_EOWNERDIED;
    *ret_no_room = st == TETHER_OK && !has_room_locked(peer, len);
    if (st == TETHER_OK)
        st = *ret_no_room ? TETHER_EBUSY : tether__call_put_locked(peer, call);
    bool in_slot = st == TETHER_OK;
    typed.in_pieces = tether__lane_in_pieces(&peer->session->out.lane, len);
    if (target || tether__value_n_attached(arg))
        peer->session->bound = true;
    if (in_slot && !peer->is_self) {
        if (target && target->prepare_locked)
            st = target->prepare_locked(target->prepare_userdata, peer, &typed);
        if (st == TETHER_OK)
            st = send_call_locked(call, target || typed.arg_type || typed.in_pieces ? &typed : NULL,
                                  sent, &why);
        if (st != TETHER_OK)
            tether__call_take_locked(peer, call->id);
        else if (!peer->session->out.conn)
            tether__peer_connect_locked(peer);
        if (st == TETHER_OK && typed.in_pieces && typed.about) {
            call->held = typed.about;
            call->held->ops->retain(call->held);
        }
    }
    struct tether__session *own =
        in_slot && peer->is_self ? tether__session_retain(peer->session) : NULL;
    tether__peer_unlock(peer);

    tether_value_release(sent);
    if (st != TETHER_OK) {
        tether__call_abandon(call, in_slot);
        if (why.code != st)
            return tether__call_explain(reterr, st, peer, fn, len);
        if (!in_slot)
            return tether_error_set(reterr, st, "calling '%.60s' failed at once (not sent): %s", fn,
                                    why.message);
        return tether_error_set(reterr, st, "%s", why.message);
    }
    *ret_call = call;
    if (own)
        tether__dispatch_local(own, call, target, arg);
    return TETHER_OK;
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
    bool no_room;
    return start_if_room(agent, peer, fn, target, arg, deadline, ret_call, &no_room, reterr);
}

/* Finds the peer for "#7", an id, or for a name. A name that is not known yet is looked up in the
 * directory later. */
tether_status tether__agent_resolve(tether_agent *agent,
                                    const char *to,
                                    struct tether__peer **ret_peer,
                                    tether_error *reterr)
{
    if (!to || !*to || strlen(to) > TETHER_MAX_WORKER_NAME)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a call needs the name of a worker (1 to %d characters)",
                                TETHER_MAX_WORKER_NAME);
    if (tether__name_is_observer(to))
        return tether_error_set(reterr, TETHER_ENOTFOUND,
                                "'%.40s' looks at this group and cannot be called", to);
    if (to[0] != '#')
        return tether__agent_peer(agent, to, ret_peer, reterr);
    char *end;
    unsigned long id = strtoul(to + 1, &end, 10);
    bool is_number = *end == '\0' && to[1];
    struct tether__peer *found = NULL, *peer;
    for (uint64_t at = 0; is_number && !found && (peer = tether__agent_next_peer(agent, &at));) {
        tether__peer_lock(peer);
        bool has_id = peer->dialer.record.name[0] && peer->dialer.record.id == id;
        tether__peer_unlock(peer);
        if (has_id)
            found = peer;
        else
            tether__peer_release(peer);
    }
    if (!found)
        return tether_error_set(
            reterr, TETHER_ENOTFOUND,
            "no worker with id '%.20s' is known here: use its name, or look it up "
            "with tether_agent_worker_by_id()",
            to + 1);
    *ret_peer = found;
    return TETHER_OK;
}

tether_status tether__call_check(tether_agent *agent,
                                 const char *fn,
                                 int timeout_ms,
                                 tether_error *reterr)
{
    tether_status st = tether__timeout_check(timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    size_t len = fn ? strlen(fn) : 0;
    if (len == 0 || len > TETHER__MAX_FUNCTION_NAME)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the name of a function is missing or too long: give 1 to %d "
                                "characters",
                                TETHER__MAX_FUNCTION_NAME);
    int state = atomic_load(&agent->state);
    if (state == TETHER__AGENT_NEW || state == TETHER__AGENT_STARTING)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the agent has not started: call tether_agent_start() first");
    if (state >= TETHER__AGENT_PARTING)
        return tether__agent_has_stopped(fn, reterr);
    if (atomic_load(&agent->replaced))
        return tether_error_set(reterr, TETHER_EFENCED, TETHER__REPLACED);
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

/* Copies the options that exist in the caller's version of the struct, and replaces zeros by
 * defaults. */
static struct tether_call_opts given_opts(const struct tether_call_opts *opts)
{
    struct tether_call_opts own = {0};
    if (opts)
        memcpy(&own, opts, opts->size < sizeof own ? opts->size : sizeof own);
    if (own.timeout_ms == 0)
        own.timeout_ms = TETHER_DEFAULT_MS;
    if (!tether__trace_is_set(&own.trace))
        own.trace = tether__trace;
    return own;
}

tether_future *tether_rpc_async(tether_agent *agent,
                                const char *to,
                                const char *fn,
                                const tether_value *arg,
                                int timeout_ms)
{
    tether_error error;
    struct tether__peer *peer = NULL;
    struct tether__call *call = NULL;
    tether__error_init(&error);
    if (!tether__agent_enter(agent))
        return failed_future(tether__agent_has_stopped(fn, &error), &error);
    tether_status st = tether__call_check(agent, fn, timeout_ms, &error);
    if (st == TETHER_OK)
        st = tether__agent_resolve(agent, to, &peer, &error);
    if (st == TETHER_OK) {
        int64_t deadline = tether__call_deadline(agent, timeout_ms);
        st = tether__call_start(agent, peer, fn, NULL, arg, deadline, &call, &error);
        if (st == TETHER_OK) /* the timers must end the call: no thread may be waiting for it */
            tether__call_schedule(call);
    }
    if (peer)
        tether__peer_release(peer);
    tether__agent_exit(agent);
    return st == TETHER_OK ? &call->future : failed_future(st, &error);
}

tether_future *tether_rpc_async_with(tether_agent *agent,
                                     const char *to,
                                     const char *fn,
                                     const tether_value *arg,
                                     const struct tether_call_opts *opts)
{
    struct tether_call_opts own = given_opts(opts);
    tether_trace outer = tether_trace_set(own.trace);
    tether_future *future = tether_rpc_async(agent, to, fn, arg, own.timeout_ms);
    tether__trace = outer;
    return future;
}

/* A synchronous call that may have to wait for room. */
struct attempt {
    tether_agent *agent;
    struct tether__peer *peer;
    const char *fn;
    const tether_value *arg;
    int64_t deadline;
    struct tether__call *call;
    tether_status status;
    tether_error *error;
};

/* Tries to start the call. False: too much is in flight, so try again later. */
static bool try_to_start(void *userdata)
{
    struct attempt *attempt = userdata;
    bool no_room;
    attempt->status = start_if_room(attempt->agent, attempt->peer, attempt->fn, NULL, attempt->arg,
                                    attempt->deadline, &attempt->call, &no_room, attempt->error);
    return !no_room;
}

/* How long after it was full the pool still counts as full: calls that time out together have just
 * freed its threads. */
#define FULL_LATELY_NS (100 * TETHER__NS_PER_MS)

/* Explains a timeout of a call that a pooled function has made, if the pool was full. A function
 * that waits for a call keeps its thread. If all threads are kept and the calls need threads of the
 * same pool, all of them time out. */
static void tell_of_full_pool(tether_agent *agent, tether_error *error)
{
    struct tether__pool_stats pool = tether__pool_stats(&agent->pool);
    int64_t now = tether__clock_now_ns(&tether__clock_system);
    if (!tether__thread_state.incoming || !pool.last_full || now - pool.last_full > FULL_LATELY_NS)
        return;
    char before[TETHER_ERROR_MESSAGE_SIZE];
    memcpy(before, error->message, sizeof before);
    tether_error_set(error, error->code,
                     "all %zu threads of worker '%s' are in functions and calls wait for one: "
                     "functions that wait for each other use up the pool, raise `threads` or do "
                     "not wait in them: %s",
                     pool.threads, agent->name, before);
}

/* Waits for the answer. False: there was none by the deadline. */
static bool await_answer(struct tether__call *call)
{
    if (tether__future_await(&call->future, call->ask_at))
        return true;
    tether__call_ask(call);
    return tether__future_await(&call->future, call->deadline);
}

tether_status tether__call_wait(struct tether__call *call,
                                tether_value **ret_value,
                                tether_error *reterr)
{
    if (!await_answer(call)) {
        tether_error why;
        tether__peer_lock(call->peer);
        tether_status st = tether__peer_silence_locked(call->peer, &why);
        tether__peer_unlock(call->peer);
        tether__call_give_up(call, st, &why);
        /* Another thread may have taken the call just before: wait until it has finished it. */
        tether__future_await(&call->future, TETHER__NEVER);
    }
    return tether__future_result(&call->future, ret_value, reterr);
}

tether_status tether_rpc_sync(tether_agent *agent,
                              const char *to,
                              const char *fn,
                              const tether_value *arg,
                              int timeout_ms,
                              tether_value **ret_value,
                              tether_error *reterr)
{
    if (tether__thread_state.must_not_block)
        return tether_error_set(reterr, TETHER_EDEADLK,
                                "calling '%s' here would block the thread that brings the answer: "
                                "use tether_rpc_async(), or register the function as pooled",
                                fn ? fn : "");
    tether_error error;
    struct tether__peer *peer = NULL;
    tether__error_init(&error);
    if (!tether__agent_enter(agent))
        return tether__agent_has_stopped(fn, reterr);
    tether_status st = tether__call_check(agent, fn, timeout_ms, &error);
    if (st == TETHER_OK)
        st = tether__agent_resolve(agent, to, &peer, &error);
    int64_t deadline = tether__call_deadline(agent, timeout_ms);
    struct attempt attempt = {agent, peer, fn, arg, deadline, .error = &error};
    if (st == TETHER_OK) {
        tether__condition_wait(&peer->room, tether__peer_poller(peer), try_to_start, &attempt,
                               deadline);
        st = attempt.status;
    }
    if (st == TETHER_OK) {
        st = tether__call_wait(attempt.call, ret_value, &error);
        tether_future_release(&attempt.call->future);
    }
    if (peer)
        tether__peer_release(peer);
    if (st == TETHER_ETIMEOUT)
        tell_of_full_pool(agent, &error);
    tether__agent_exit(agent);
    if (st != TETHER_OK && reterr)
        *reterr = error;
    return st;
}

tether_status tether_rpc_sync_with(tether_agent *agent,
                                   const char *to,
                                   const char *fn,
                                   const tether_value *arg,
                                   const struct tether_call_opts *opts,
                                   tether_value **ret_value,
                                   tether_error *reterr)
{
    struct tether_call_opts own = given_opts(opts);
    /* restored below: callbacks that run on this thread meanwhile change the trace id */
    tether_trace outer = tether_trace_set(own.trace);
    tether_status st = tether_rpc_sync(agent, to, fn, arg, own.timeout_ms, ret_value, reterr);
    tether__trace = outer;
    return st;
}
