/* Unary calls of tether.Worker/Call, for clients that speak only gRPC.
 *
 * Happy path of a call: its slot hands it over with the metadata only; admit() of the owner checks
 * the token and the certificate; then the request is read; unary() of the owner gets it;
 * reply() sends reply and status. Meanwhile we wait for the end of the call, so that a client
 * that gives up is noticed. The call is freed when both have ended.
 *
 * Failure modes: a client that is not admitted is answered before its request is read. A request
 * that is too large, missing or malformed is answered with an error; so is a call, request or
 * result for which the budget of all plain calls has no room (budget.c).
 *
 * The messages are UnaryCall and UnaryReply of protos/rpc.proto. They are read and written in place
 * rather than by protobuf-c, so that a payload is not copied.
 */
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/slice_buffer.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <string.h>

#include "base/alloc.h"
#include "base/trace_internal.h"
#include "rpc/transport/grpc/answer.h"
#include "rpc/wire/wire.h"

/* Field numbers in protos/rpc.proto. */
enum { CALL_FUNCTION = 1, CALL_PAYLOAD = 15, REPLY_PAYLOAD = 15 };

/* A call that was handed to the owner. The owner or stop() answers it: the one that sets
 * `is_answered` first. If stop() has answered, the owner may still call reply() after the
 * transport is gone. So all objects of gRPC are freed with the answer, and the memory when the
 * owner is done, too. */
struct unary {
    struct tether__unary base;
    struct tether__grpc_answer answer;
    struct tether__grpc_op read;
    struct tether__list node; /* a node of the transport's list `unanswered`; under transport->mu */
    atomic_bool is_answered;
    atomic_uint holders;       /* counts the answer, and the owner once it has the call */
    grpc_byte_buffer *request; /* the request while gRPC reads it; NULL: none */
    /* the request's bytes, into which function and payload point until the owner answers */
    struct tether__slice body;
    struct tether__grpc_charge charge;
    struct tether__grpc_names names;
    char *peer; /* allocated by gRPC */
};

static void unary_let_go(struct unary *unary)
{
    if (atomic_fetch_sub_explicit(&unary->holders, 1, memory_order_acq_rel) != 1)
        return;
    tether__slice_release(unary->body);
    gpr_free(unary->peer);
    tether__free(unary);
}

static void unary_answered(struct tether__grpc_answer *answer)
{
    struct unary *unary = tether__container_of(answer, struct unary, answer);
    tether__grpc_names_fini(&unary->names);
    tether__grpc_budget_leave(answer->transport, &unary->charge);
    unary_let_go(unary);
}

static void unary_give_up(struct tether__grpc_answer *answer)
{
    atomic_store(&tether__container_of(answer, struct unary, answer)->base.canceled, true);
}

static int64_t deadline_of(gpr_timespec deadline)
{
    gpr_timespec left = gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC),
                                     gpr_now(GPR_CLOCK_MONOTONIC));
    if (gpr_time_cmp(left, gpr_time_from_hours(24 * 365, GPR_TIMESPAN)) > 0)
        return TETHER__NEVER;
    return tether__clock_now_ns(&tether__clock_system) + left.tv_sec * TETHER__NS_PER_S +
           left.tv_nsec;
}

/* The token in "authorization: Bearer <token>"; empty when there is none. */
static tether_bytes bearer_in(const grpc_metadata_array *metadata)
{
    static const char scheme[] = "Bearer ";
    const size_t scheme_len = sizeof scheme - 1;
    for (size_t i = 0; i < metadata->count; i++) {
        const grpc_metadata *entry = &metadata->metadata[i];
        const uint8_t *value = GRPC_SLICE_START_PTR(entry->value);
        size_t len = GRPC_SLICE_LENGTH(entry->value);
        if (grpc_slice_str_cmp(entry->key, "authorization") == 0 && len > scheme_len &&
            memcmp(value, scheme, scheme_len) == 0)
            return tether_bytes_of(value + scheme_len, len - scheme_len);
    }
    return tether_bytes_of(NULL, 0);
}

static tether_trace trace_in(const grpc_metadata_array *metadata)
{
    for (size_t i = 0; i < metadata->count; i++) {
        const grpc_metadata *entry = &metadata->metadata[i];
        if (grpc_slice_str_cmp(entry->key, "traceparent") == 0)
            return tether__trace_from_parent((const char *)GRPC_SLICE_START_PTR(entry->value),
                                             GRPC_SLICE_LENGTH(entry->value));
    }
    return TETHER_TRACE_NONE;
}

/* Parses the request in the body; the fields point into it. */
static bool parse_call(struct unary *unary)
{
    struct tether__wire_reader reader = tether__wire_reader(unary->body.data, unary->body.len);
    struct tether__wire_field field;
    enum tether__wire_read read;
    while ((read = tether__wire_next(&reader, &field)) == TETHER__WIRE_FIELD) {
        if (field.type != TETHER__WIRE_BYTES)
            continue;
        if (field.number == CALL_FUNCTION)
            unary->base.function = tether_bytes_of(field.data, field.len);
        else if (field.number == CALL_PAYLOAD)
            unary->base.payload = (struct tether__slice){field.data, field.len, unary->body.owner};
    }
    return read == TETHER__WIRE_END;
}

/* Returns true for the one caller that has to answer the call. */
static bool take_unanswered(struct unary *unary)
{
    return !atomic_exchange(&unary->is_answered, true);
}

/* Takes the call out of `unanswered`. The transport still exists, because it waits for calls
 * without an answer. */
static void unlist(struct unary *unary)
{
    struct tether__grpc *transport = unary->answer.transport;
    pthread_mutex_lock(&transport->mu);
    tether__list_remove(&unary->node);
    pthread_mutex_unlock(&transport->mu);
}

/* Sends a result. TAKES a retain of `payload`. */
static void send_result(struct unary *unary,
                        tether_status status,
                        const char *error,
                        struct tether__slice payload)
{
    uint8_t head[16];
    struct tether__wire_writer writer = tether__wire_writer(head, sizeof head);
    tether__wire_put_bytes_head(&writer, REPLY_PAYLOAD, payload.len);
    const struct tether__slice pieces[] = {{head, (size_t)(writer.at - head), NULL}, payload};
    tether_error cause;
    if (tether__grpc_budget_result(unary->answer.transport, &unary->charge, payload.len, &cause) ==
        TETHER_OK) {
        tether__grpc_answer_send(&unary->answer, status, error, pieces, 2);
    } else {
        tether__slice_release(payload);
        tether__grpc_answer_error(&unary->answer, cause.code, cause.message);
    }
}

static void unary_reply(struct tether__unary *base,
                        tether_status status,
                        const char *error,
                        struct tether__slice payload)
{
    struct unary *unary = tether__container_of(base, struct unary, base);
    struct tether__slice body = unary->body;
    unary->body = TETHER__SLICE_EMPTY;
    if (take_unanswered(unary)) {
        unlist(unary);
        send_result(unary, status, error, payload);
    } else {
        tether__slice_release(payload); /* stop() has answered the call already */
    }
    tether__slice_release(body);
    unary_let_go(unary);
}

/* Returns the next call without an answer; the caller of this function has to answer it. */
static struct unary *next_unanswered(struct tether__grpc *transport)
{
    struct unary *unary = NULL;
    pthread_mutex_lock(&transport->mu);
    for (struct tether__list *node;
         !unary && (node = tether__list_pop_front(&transport->unanswered));) {
        unary = tether__list_entry(node, struct unary, node);
        /* the owner is answering this call now, so skip it */
        if (!take_unanswered(unary))
            unary = NULL;
    }
    pthread_mutex_unlock(&transport->mu);
    return unary;
}

void tether__grpc_answer_all(struct tether__grpc *transport)
{
    for (struct unary *unary; (unary = next_unanswered(transport));) {
        atomic_store(&unary->base.canceled, true);
        tether__grpc_answer_error(&unary->answer, TETHER_ESHUTDOWN, "this worker is shutting down");
    }
}

/* Adds the call to `unanswered`, so that the owner must answer it. False: the transport is
 * stopping. */
static bool hand_to_owner(struct tether__grpc *transport, struct unary *unary)
{
    pthread_mutex_lock(&transport->mu);
    bool stopping = transport->stopping;
    if (!stopping) {
        tether__list_push_back(&transport->unanswered, &unary->node);
        atomic_fetch_add_explicit(&unary->holders, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&transport->mu);
    return !stopping;
}

/* Checks size and budget of the request, and adds it to the budget. False: `ret_cause` says why it
 * is refused. */
static bool may_take(struct unary *unary, const grpc_byte_buffer *request, tether_error *ret_cause)
{
    struct tether__grpc *transport = unary->answer.transport;
    size_t len = request->data.raw.slice_buffer.length;
    tether_status st = tether__grpc_budget_request(transport, &unary->charge, len, ret_cause);
    bool is_too_large =
        tether__grpc_is_too_large(request, transport->max_unary_bytes, "a client", ret_cause);
    return st == TETHER_OK && !is_too_large;
}

/* Hands the request to the owner. TAKES `request` (NULL: the client sent none). */
static void serve(struct unary *unary, grpc_byte_buffer *request)
{
    struct tether__grpc *transport = unary->answer.transport;
    tether_error cause;
    if (!request) {
        tether__grpc_budget_leave(transport, &unary->charge);
        tether__grpc_answer_error(&unary->answer, TETHER_EINVAL, "the call came without a request");
    } else if (!may_take(unary, request, &cause)) {
        grpc_byte_buffer_destroy(request);
        tether__grpc_answer_error(&unary->answer, cause.code, cause.message);
    } else if (!tether__grpc_receive(transport, request, NULL, &unary->body)) {
        tether__grpc_answer_error(&unary->answer, TETHER_ENOMEM, "the worker is out of memory");
    } else if (!parse_call(unary)) {
        tether__grpc_answer_error(&unary->answer, TETHER_EINVAL,
                                  "the request is not a tether.UnaryCall");
    } else if (!hand_to_owner(transport, unary)) {
        tether__grpc_answer_error(&unary->answer, TETHER_ESHUTDOWN, "this worker is shutting down");
    } else {
        transport->events->unary(transport->userdata, &unary->base);
    }
}

static void on_read(struct tether__grpc_op *op, bool ok)
{
    struct unary *unary = tether__container_of(op, struct unary, read);
    grpc_byte_buffer *request = unary->request;
    (void)ok; /* false if the call was cancelled; then `request` is NULL, which serve() handles */
    unary->request = NULL;
    serve(unary, request);
}

static void read_request(struct unary *unary)
{
    struct tether__grpc *transport = unary->answer.transport;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &unary->request;
    unary->read.done = on_read;
    if (!tether__grpc_start(transport, unary->answer.call, &op, 1, &unary->read)) {
        tether__grpc_budget_leave(transport, &unary->charge);
        tether__grpc_answer_error(&unary->answer, TETHER_EUNAVAILABLE, "the worker is stopping");
    }
}

void tether__grpc_unary(struct tether__grpc *transport,
                        grpc_call *call,
                        const grpc_metadata_array *metadata,
                        gpr_timespec deadline)
{
    const struct tether__transport_events *events = transport->events;
    struct unary *unary = tether__calloc(1, sizeof *unary);
    tether_error error = {0};
    bool is_proved = false;
    if (!unary) {
        tether__grpc_turn_away(call);
        return;
    }
    unary->body = TETHER__SLICE_EMPTY;
    unary->answer.free = unary_answered;
    unary->answer.give_up = unary_give_up;
    unary->base.transport = &transport->base;
    unary->base.reply = unary_reply;
    tether__list_init(&unary->node);
    tether__grpc_charge_init(&unary->charge);
    atomic_init(&unary->holders, 1);
    unary->base.deadline = deadline_of(deadline);
    unary->base.trace = trace_in(metadata);
    unary->base.peer = unary->peer = tether__grpc_peer_of(call);
    unary->base.cert_names = tether__grpc_names_init(&unary->names, call);
    if (!tether__grpc_answer_begin(&unary->answer, transport, call)) {
        unary_answered(&unary->answer);
        return;
    }
    if (!events->unary)
        tether__grpc_answer_error(&unary->answer, TETHER_ENOTSUP,
                                  "this worker takes no plain gRPC calls");
    else if (events->admit &&
             events->admit(transport->userdata, bearer_in(metadata), unary->base.cert_names,
                           &is_proved, &error) != TETHER_OK)
        tether__grpc_answer_error(&unary->answer, error.code, error.message);
    else {
        if (is_proved)
            tether__grpc_unproved_remove(&transport->unproved, unary->answer.unproved_id);
        else
            tether__grpc_unproved_used(&transport->unproved, unary->answer.unproved_id);
        if (tether__grpc_budget_enter(transport, &unary->charge, call, &error) == TETHER_OK)
            read_request(unary);
        else
            tether__grpc_answer_error(&unary->answer, error.code, error.message);
    }
}
