/* How calls arrive: from a peer on its lane, from a client that speaks only gRPC (unary), or from
 * this worker itself (local).
 *
 * Happy path: the message is unpacked into an *incoming* call on the stack and handed to run.c. A
 * call that carries references, or is about an object, is kept instead and *waits* until the
 * references are confirmed and the object is made; then it goes on, on the thread that confirmed.
 *
 * Failure modes: a call that is refused, or whose references are refused, is answered with an error
 * and not run. References of a refused call are confirmed first all the same; that includes a call
 * for which there is no room to wait (max_calls_per_peer, max_bytes_per_peer). Out of memory: the
 * peer sends a call with references again; any other call is answered with TETHER_ENOMEM.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "protos/rpc.pb-c.h"
#include "rpc/agent/internal.h"
#include "rpc/call/call.h"
#include "rpc/group/group.h"
#include "rpc/peer/admission/accept.h"
#include "rpc/peer/calls/slots.h"
#include "rpc/peer/limits.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/serve/incoming.h"
#include "rpc/serve/serve.h"
#include "rpc/transport/transport.h"
#include "rpc/wire/call_header.h"
#include "rpc/wire/value_internal.h"
#include "rpc/wire/wire.h"

/* ---- Calls that wait ---- */

/* Notes why the call must not run. It is answered with that once its references are confirmed. */
static void refuse(struct tether__incoming *incoming,
                   tether_status status,
                   const tether_error *error)
{
    incoming->refusal = status;
    incoming->why_refused = tether__malloc(sizeof *error);
    if (incoming->why_refused)
        *incoming->why_refused = *error;
}

/* Whether one more call of the peer, with `len` bytes, may wait here. If none waits, any length
 * may. */
static bool has_room_locked(const struct tether__session *session, size_t len)
{
    const tether_agent *agent = session->peer->agent;
    const struct tether_agent_opts *opts = &agent->opts;
    size_t used = session->waiting_bytes;
    return session->n_waiting < (uint32_t)opts->max_calls_per_peer &&
           session->held_bytes <= tether__max_held_bytes(agent) + len &&
           (used == 0 ||
            (used <= opts->max_bytes_per_peer && len <= opts->max_bytes_per_peer - used));
}

/* Counts a call that may have to wait, or refuses it if too many wait already. */
static void begin_waiting(struct tether__incoming *incoming, size_t len)
{
    struct tether__session *session = incoming->session;
    tether__peer_lock(session->peer);
    uint32_t n = session->n_waiting;
    size_t bytes = session->waiting_bytes;
    incoming->waits = has_room_locked(session, len);
    if (incoming->waits) {
        incoming->waiting_bytes = len;
        session->n_waiting++;
        session->waiting_bytes += len;
    }
    tether__peer_unlock(session->peer);
    if (incoming->waits)
        return;
    tether_error error;
    tether_error_set(&error, TETHER_EBUSY,
                     "%u calls from this caller, of %zu bytes, wait there for references: wait for "
                     "some to finish, or raise max_calls_per_peer or max_bytes_per_peer there",
                     n, bytes);
    refuse(incoming, TETHER_EBUSY, &error);
}

static void end_waiting(struct tether__incoming *incoming)
{
    struct tether__session *session = incoming->session;
    if (!incoming->waits)
        return;
    tether__peer_lock(session->peer);
    session->n_waiting--;
    session->waiting_bytes -= incoming->waiting_bytes;
    incoming->waits = false;
    tether__peer_unlock(session->peer);
}

/* Answers a call that has waited, without running it. */
static void answer_waiting(struct tether__incoming *incoming,
                           tether_status status,
                           const tether_error *error)
{
    end_waiting(incoming);
    tether__incoming_answer(incoming, status, error ? error->message : tether_status_text(status),
                            NULL);
}

/* Continues a call whose references are confirmed: finds its object, then runs its function. */
static void go_on(struct tether__incoming *incoming)
{
    tether_error error = {0};
    enum tether__outcome outcome = TETHER__DONE;
    if (incoming->has_target && !incoming->object)
        outcome = tether__ext_ops->find_target(incoming->agent->ext, incoming->peer,
                                               incoming->session->number, &incoming->target,
                                               incoming->owner_incarnation, incoming->deadline,
                                               &incoming->resume, &incoming->object, &error);
    if (outcome == TETHER__DONE) {
        end_waiting(incoming);
        if (incoming->object)
            tether__incoming_set_method(incoming);
        tether__incoming_run(incoming);
    } else if (outcome != TETHER__WAITS) {
        answer_waiting(incoming, error.code, &error);
    }
}

static void resume(struct tether__resume *waiting, tether_status status, const tether_error *error)
{
    struct tether__incoming *incoming =
        tether__container_of(waiting, struct tether__incoming, resume);
    if (status == TETHER_OK && incoming->refusal != TETHER_OK) {
        status = incoming->refusal;
        error = incoming->why_refused;
    }
    if (status == TETHER_OK)
        go_on(incoming);
    else
        answer_waiting(incoming, status, error);
}

/* Reads the argument. If the call is refused, makes an empty value for its references, which must
 * be confirmed in any case. Returns DONE or NO_MEMORY. */
static enum tether__outcome read_argument(struct tether__incoming *incoming,
                                          const Tether__Call *call,
                                          struct tether__slice payload)
{
    if (!payload.len && !call->n_ref && !call->type[0])
        return TETHER__DONE;
    tether_error error = {0};
    tether_value *arg = NULL;
    enum tether__outcome outcome = TETHER__DONE;
    if (incoming->refusal == TETHER_OK)
        outcome = tether__value_received(
            payload, tether__registry_find_type(&incoming->agent->registry, call->type), &arg,
            &error);
    if (outcome == TETHER__REFUSED)
        refuse(incoming, error.code, &error);
    if (incoming->refusal != TETHER_OK)
        outcome = tether__outcome_of(tether_value_new(tether_bytes_of(NULL, 0), &arg, NULL));
    if (arg)
        incoming->arg = arg;
    return outcome;
}

/* Receives a call that carries references, creates an object, or is about one. Steps that need
 * memory come first: if one fails, nothing was done, and the peer sends the call again, so no
 * reference is lost. */
static enum tether__outcome dispatch_with_refs(struct tether__incoming *on_stack,
                                               const Tether__Call *call,
                                               struct tether__slice payload)
{
    void *ext = on_stack->agent->ext;
    tether_error error = {0};
    if (!ext) {
        tether__incoming_answer(on_stack, TETHER_ENOTSUP,
                                "this worker was built without references (rref/rref.h)", NULL);
        return TETHER__DONE;
    }
    on_stack->resume.run = resume;
    struct tether__incoming *incoming;
    tether_status st = tether__incoming_keep(on_stack, true, &incoming);
    if (st == TETHER_ENOMEM) {
        tether__session_release(on_stack->session);
        return TETHER__NO_MEMORY;
    }
    if (st != TETHER_OK) {
        tether__incoming_answer_unkept(on_stack, st);
        return TETHER__DONE;
    }
    if (call->n_ref || call->target)
        begin_waiting(incoming, incoming->held_bytes);
    enum tether__outcome outcome = read_argument(incoming, call, payload);
    struct tether__ref_message message = {.peer = incoming->peer,
                                          .session_number = incoming->session->number,
                                          .refs = call->ref,
                                          .n_refs = call->n_ref,
                                          .value = incoming->arg,
                                          .call = call};
    if (outcome == TETHER__DONE && (call->n_ref || call->n_result)) {
        outcome = tether__ext_ops->arrived(ext, &message, &error);
        incoming->result = message.result;
        incoming->held = message.held;
        incoming->has_result = outcome == TETHER__DONE && call->n_result;
    }
    if (outcome == TETHER__NO_MEMORY) {
        end_waiting(incoming);
        tether__incoming_forget(incoming);
        return outcome;
    }
    if (call->target) {
        incoming->has_target = true;
        incoming->target = *call->target;
        incoming->owner_incarnation = call->owner_incarnation;
    }
    if (outcome == TETHER__REFUSED && incoming->refusal == TETHER_OK)
        refuse(incoming, error.code, &error);
    outcome = message.arrival ? tether__ext_ops->confirm(message.arrival, &incoming->resume, &error)
                              : TETHER__DONE;
    if (outcome != TETHER__WAITS)
        resume(&incoming->resume, outcome == TETHER__DONE ? TETHER_OK : error.code, &error);
    return TETHER__DONE;
}

/* Receives a remote() call of an inline function without references. It does not have to wait, so
 * it is not kept. */
static enum tether__outcome dispatch_making(struct tether__incoming *incoming,
                                            const Tether__Call *call,
                                            struct tether__slice payload)
{
    tether_error error = {0};
    enum tether__outcome outcome = read_argument(incoming, call, payload);
    struct tether__ref_message message = {
        .peer = incoming->peer, .session_number = incoming->session->number, .call = call};
    if (outcome == TETHER__DONE)
        outcome = tether__ext_ops->arrived(incoming->agent->ext, &message, &error);
    incoming->result = message.result;
    if (outcome == TETHER__NO_MEMORY) {
        if (incoming->arg != tether__empty_value())
            tether_value_release(incoming->arg);
        tether__session_release(incoming->session);
        return outcome;
    }
    incoming->has_result = outcome == TETHER__DONE;
    if (outcome == TETHER__DONE)
        tether__incoming_run(incoming);
    else
        tether__incoming_answer(incoming, error.code, error.message, NULL);
    return TETHER__DONE;
}

static bool makes_inline(const struct tether__incoming *incoming, const Tether__Call *call)
{
    const struct tether__function *function = incoming->function;
    return incoming->agent->ext && function && function->run_inline && !function->async_fn &&
           call->n_result && !call->n_ref && !call->target && !call->type[0];
}

/* Counts a call in agent->running before its flag `leaving` is read. A leaving worker sets the flag
 * first and then reads the count, so either the call sees the flag or the worker sees the call. A
 * kept call is counted a second time. */
static void enter(tether_agent *agent)
{
    atomic_fetch_add(&agent->running, 1);
}

static void leave(tether_agent *agent)
{
    if (atomic_fetch_sub(&agent->running, 1) == 1)
        tether__condition_notify(&agent->idle);
}

enum tether__outcome tether__dispatch_call(struct tether__session *session,
                                           const struct tether__inbound *message,
                                           size_t unread)
{
    TETHER__ARENA(arena, 512);
    const Tether__Call *call;
    struct tether__peer *peer = session->peer;
    enter(peer->agent);
    enum tether__outcome outcome =
        tether__outcome_of_unpacking(tether__call_header_unpack(message->header, &arena, &call));
    if (outcome == TETHER__DONE) {
        struct tether__incoming incoming = {
            .id = call->id,
            .agent = peer->agent,
            .session = tether__session_retain(session),
            .peer = peer,
            .arg = tether__empty_value(),
            .deadline = call->timeout_ms
                            ? tether__deadline_in(peer->agent->clock, (int)call->timeout_ms)
                            : TETHER__NEVER,
            .unread = unread,
            .held_bytes = message->payload.len + call->n_ref * TETHER__REF_BYTES,
        };
        if (call->trace.len == sizeof incoming.trace.bytes)
            memcpy(incoming.trace.bytes, call->trace.data, sizeof incoming.trace.bytes);
        tether__incoming_set_function(&incoming, call->function, strlen(call->function));
        if (peer->is_observer && (call->n_ref || call->n_result))
            tether__incoming_answer(&incoming, TETHER_EPERM,
                                    "an observer neither makes nor holds references", NULL);
        else if (makes_inline(&incoming, call))
            outcome = dispatch_making(&incoming, call, message->payload);
        else if (call->n_ref || call->target || call->n_result || call->type[0])
            outcome = dispatch_with_refs(&incoming, call, message->payload);
        else if (message->payload.len &&
                 tether__value_from_slice(message->payload, &incoming.arg) != TETHER_OK)
            tether__incoming_answer(&incoming, TETHER_ENOMEM, "no memory for the argument", NULL);
        else
            tether__incoming_run(&incoming);
    }
    leave(peer->agent);
    tether__arena_fini(&arena);
    return outcome;
}

enum tether__outcome tether__dispatch_cancel(struct tether__session *session,
                                             const struct tether__inbound *message)
{
    TETHER__ARENA(arena, 64);
    const Tether__Cancel *cancel;
    enum tether__outcome outcome = tether__outcome_of_unpacking(tether__wire_unpack(
        &tether__cancel__descriptor, message->header, &arena, (const void **)&cancel));
    if (outcome == TETHER__DONE) {
        tether__peer_lock(session->peer);
        tether__incoming_cancel_locked(session, cancel->id);
        tether__stream_cancel_locked(&session->in, TETHER__FRAME_REPLY, cancel->id);
        tether__peer_unlock(session->peer);
    }
    tether__arena_fini(&arena);
    return outcome;
}

void tether__dispatch_local(struct tether__session *session,
                            struct tether__call *call,
                            const struct tether__call_target *target,
                            const tether_value *arg)
{
    struct tether__incoming incoming = {
        .id = call->id,
        .agent = call->agent,
        .session = session,
        .peer = call->peer,
        .local = call,
        .arg = arg ? tether_value_retain((tether_value *)arg) : tether__empty_value(),
        .object = tether_value_retain(target ? target->local_object : NULL),
        .has_result = target && target->result_here,
        .result = target ? target->result_here : NULL,
        .deadline = call->deadline,
        .trace = call->trace,
        .resume = {resume},
    };
    tether__incoming_set_function(&incoming, call->function, strlen(call->function));
    if (!target || !target->target || incoming.object) {
        if (incoming.object)
            tether__incoming_set_method(&incoming);
        tether__incoming_run(&incoming);
        return;
    }
    incoming.has_target = true; /* the object is still being made */
    incoming.target = *target->target;
    struct tether__incoming *on_heap;
    tether_status st = tether__incoming_keep(&incoming, false, &on_heap);
    if (st == TETHER_OK)
        go_on(on_heap);
    else
        tether__incoming_answer_unkept(&incoming, st);
}

/* Compares digests, so that neither length nor time reveals anything about the token. */
static bool token_fits(const tether_agent *agent, tether_bytes token)
{
    const char *want = agent->opts.token;
    uint8_t digests[2][SHA256_DIGEST_LENGTH];
    if (!want)
        return true;
    return EVP_Digest(want, strlen(want), digests[0], NULL, EVP_sha256(), NULL) &&
           EVP_Digest(token.data, token.len, digests[1], NULL, EVP_sha256(), NULL) &&
           CRYPTO_memcmp(digests[0], digests[1], sizeof digests[0]) == 0;
}

/* Whether a plain gRPC client is among the allowed_peers. Its only names are those in its
 * certificate. */
static bool has_allowed_name(const tether_agent *agent, const char *const *cert_names)
{
    if (!agent->opts.allowed_peers)
        return true;
    for (; cert_names && *cert_names; cert_names++)
        if (tether__name_is_allowed(agent, *cert_names))
            return true;
    return false;
}

tether_status tether__dispatch_admit(tether_agent *agent,
                                     tether_bytes token,
                                     const char *const *cert_names,
                                     bool *ret_proved,
                                     tether_error *reterr)
{
    if (!token_fits(agent, token))
        return tether_error_set(
            reterr, TETHER_EAUTH,
            token.len ? "the token is not that of this group: send the right one as metadata, "
                        "'authorization: Bearer <token>'"
                      : "this group has a token: send it as metadata, 'authorization: Bearer "
                        "<token>'");
    if (!has_allowed_name(agent, cert_names))
        return tether_error_set(reterr, TETHER_EPERM,
                                "none of the names in your certificate is among the allowed_peers");
    *ret_proved = agent->opts.token || cert_names;
    return TETHER_OK;
}

void tether__dispatch_unary(tether_agent *agent, struct tether__unary *unary)
{
    struct tether__incoming incoming = {
        .agent = agent,
        .unary = unary,
        .arg = tether__empty_value(),
        .deadline = unary->deadline,
        .trace = unary->trace,
    };
    enter(agent);
    tether__incoming_set_function(&incoming, unary->function.data, unary->function.len);
    if (atomic_load(&agent->state) >= TETHER__AGENT_STOPPING)
        tether__incoming_answer(&incoming, TETHER_ESHUTDOWN, "this worker is not serving", NULL);
    else if (unary->payload.len &&
             tether__value_from_slice(unary->payload, &incoming.arg) != TETHER_OK)
        tether__incoming_answer(&incoming, TETHER_ENOMEM, "no memory for the argument", NULL);
    else
        tether__incoming_run(&incoming);
    leave(agent);
}
