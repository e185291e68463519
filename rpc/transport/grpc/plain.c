/* For clients that speak only gRPC: tether.Worker/Call and the standard health check.
 *
 * Happy path of a call: its slot hands it over with the metadata only; admit() of the owner checks
 * the token and the certificate; then the request is read; unary() of the owner gets it;
 * reply() sends reply and status. Meanwhile we wait for the end of the call, so that a client
 * that gives up is noticed. The call is freed when both have ended.
 *
 * Failure modes: a client that is not admitted is answered before its request is read. A request
 * that is too large, missing or malformed is answered with an error.
 *
 * The messages are UnaryCall and UnaryReply of protos/rpc.proto. They are read and written in place
 * rather than by protobuf-c, so that a payload is not copied.
 */
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/slice_buffer.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/trace_internal.h"
#include "rpc/transport/grpc/grpc.h"
#include "rpc/wire/wire.h"

/* ---- A call that is answered once ---- */

struct answer {
    struct tether__grpc *transport;
    grpc_call *call;
    uint64_t unproved_id; /* of the connection; 0: its client has shown who it is */
    struct tether__grpc_op replied, over;
    atomic_uint refs; /* one for each op, also while it is not started */
    int canceled;
    /* Hears that the call is over, when `canceled`; and frees what the answer is part of. */
    void (*give_up)(struct answer *answer);
    void (*free)(struct answer *answer);
};

static void answer_unref(struct answer *answer)
{
    if (atomic_fetch_sub_explicit(&answer->refs, 1, memory_order_acq_rel) != 1)
        return;
    struct tether__grpc_side *side = &answer->transport->sides[TETHER__SERVER];
    tether__grpc_unproved_call_ends(&answer->transport->unproved, answer->unproved_id);
    grpc_call_unref(answer->call);
    answer->free(answer);
    tether__grpc_side_leave(side);
}

static void on_replied(struct tether__grpc_op *op, bool ok)
{
    (void)ok; /* a client that is gone needs no reply */
    answer_unref(tether__container_of(op, struct answer, replied));
}

static void on_over(struct tether__grpc_op *op, bool ok)
{
    (void)ok; /* always true */
    struct answer *answer = tether__container_of(op, struct answer, over);
    if (answer->canceled && answer->give_up)
        answer->give_up(answer);
    answer_unref(answer);
}

/* Without memory, or while stopping, all that can be done for a caller. TAKES `call`. */
static void turn_away(grpc_call *call)
{
    grpc_call_cancel_with_status(call, GRPC_STATUS_UNAVAILABLE,
                                 "the worker is stopping, or out of memory", NULL);
    grpc_call_unref(call);
}

/* TAKES `call` and begins to watch it. False: it was turned away, and free() will not be called. */
static bool answer_begin(struct answer *answer, struct tether__grpc *transport, grpc_call *call)
{
    struct tether__grpc_side *side = &transport->sides[TETHER__SERVER];
    answer->transport = transport;
    answer->call = call;
    answer->replied.done = on_replied;
    answer->over.done = on_over;
    atomic_init(&answer->refs, 2);
    if (!tether__grpc_side_enter(side)) {
        turn_away(call);
        return false;
    }
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &answer->canceled;
    if (!tether__grpc_start(transport, call, &op, 1, &answer->over)) {
        tether__grpc_side_leave(side);
        turn_away(call);
        return false;
    }
    answer->unproved_id = tether__grpc_unproved_call_begins(&transport->unproved, call);
    return true;
}

/* Replies with `message` when `status` is TETHER_OK, else with `error`. Any thread. TAKES a retain
 * of each piece. */
static void answer_send(struct answer *answer,
                        tether_status status,
                        const char *error,
                        const struct tether__slice *pieces,
                        size_t n)
{
    grpc_byte_buffer message = {.type = GRPC_BB_RAW};
    grpc_slice_buffer_init(&message.data.raw.slice_buffer);
    tether__grpc_gather(answer->transport, &message.data.raw.slice_buffer, pieces, n);

    char number[16];
    snprintf(number, sizeof number, "%d", status);
    grpc_metadata trailing = {.key = grpc_slice_from_static_string("tether-status"),
                              .value = grpc_slice_from_copied_string(number)};
    grpc_slice details = grpc_slice_from_copied_string(error ? error : tether_status_text(status));

    grpc_op ops[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}};
    size_t n_ops = 1;
    if (status == TETHER_OK) {
        ops[n_ops].op = GRPC_OP_SEND_MESSAGE;
        ops[n_ops++].data.send_message.send_message = &message;
    }
    ops[n_ops].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[n_ops].data.send_status_from_server.status = tether_status_to_grpc(status);
    if (status != TETHER_OK) {
        ops[n_ops].data.send_status_from_server.status_details = &details;
        ops[n_ops].data.send_status_from_server.trailing_metadata = &trailing;
        ops[n_ops].data.send_status_from_server.trailing_metadata_count = 1;
    }
    if (!tether__grpc_start(answer->transport, answer->call, ops, n_ops + 1, &answer->replied)) {
        grpc_call_cancel(answer->call, NULL);
        answer_unref(answer);
    }
    grpc_slice_unref(details);
    grpc_slice_unref(trailing.value);
    grpc_slice_buffer_destroy(&message.data.raw.slice_buffer);
}

static void answer_error(struct answer *answer, tether_status status, const char *error)
{
    answer_send(answer, status, error, NULL, 0);
}

/* ---- Calls that need nothing but an answer ---- */

static void free_bare(struct answer *answer)
{
    tether__free(answer);
}

static void answer_now(struct tether__grpc *transport,
                       grpc_call *call,
                       tether_status status,
                       const char *error,
                       struct tether__slice reply)
{
    struct answer *answer = tether__calloc(1, sizeof *answer);
    if (!answer) {
        turn_away(call);
        return;
    }
    answer->free = free_bare;
    if (answer_begin(answer, transport, call))
        answer_send(answer, status, error, &reply, 1);
    else
        tether__free(answer);
}

void tether__grpc_refuse(struct tether__grpc *transport,
                         grpc_call *call,
                         tether_status status,
                         const char *error)
{
    answer_now(transport, call, status, error, TETHER__SLICE_EMPTY);
}

/* Whether the request is over the limit; then `ret_cause` says so. */
static bool is_too_large(const struct tether__grpc *transport,
                         const grpc_byte_buffer *request,
                         tether_error *ret_cause)
{
    return tether__grpc_is_too_large(request, transport->max_unary_bytes, "a client", ret_cause);
}

/* ---- tether.Worker/Call ---- */

/* Field numbers in protos/rpc.proto. */
enum { CALL_FUNCTION = 1, CALL_PAYLOAD = 15, REPLY_PAYLOAD = 15 };

/* A call that its owner has. Whoever sets `is_answered` answers: the owner, or stop() in its place.
 * The owner may then come late, when the transport is gone: so what is gRPC's goes with the answer,
 * and the memory when the owner is through too. */
struct unary {
    struct tether__unary base;
    struct answer answer;
    struct tether__grpc_op read;
    struct tether__list node; /* under transport->mu, while it is unanswered */
    atomic_bool is_answered;
    atomic_uint holders;       /* the answer, and the owner once it has the call */
    grpc_byte_buffer *request; /* while it is being read; NULL: none */
    struct tether__slice body; /* function and payload point into it */
    struct tether__grpc_names names;
    char *peer; /* gRPC's memory */
};

static void unary_let_go(struct unary *unary)
{
    if (atomic_fetch_sub_explicit(&unary->holders, 1, memory_order_acq_rel) != 1)
        return;
    tether__slice_release(unary->body);
    gpr_free(unary->peer);
    tether__free(unary);
}

static void unary_answered(struct answer *answer)
{
    struct unary *unary = tether__container_of(answer, struct unary, answer);
    tether__grpc_names_fini(&unary->names);
    unary_let_go(unary);
}

static void unary_give_up(struct answer *answer)
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

/* Points the fields into the body. */
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

/* Whether it is for the caller to answer. */
static bool take_unanswered(struct unary *unary)
{
    return !atomic_exchange(&unary->is_answered, true);
}

/* The transport is there as long as the call is not answered. */
static void unlist(struct unary *unary)
{
    struct tether__grpc *transport = unary->answer.transport;
    pthread_mutex_lock(&transport->mu);
    tether__list_remove(&unary->node);
    pthread_mutex_unlock(&transport->mu);
}

static void unary_reply(struct tether__unary *base,
                        tether_status status,
                        const char *error,
                        struct tether__slice payload)
{
    struct unary *unary = tether__container_of(base, struct unary, base);
    uint8_t head[16];
    struct tether__wire_writer writer = tether__wire_writer(head, sizeof head);
    tether__wire_put_bytes_head(&writer, REPLY_PAYLOAD, payload.len);
    const struct tether__slice pieces[] = {{head, (size_t)(writer.at - head), NULL}, payload};
    if (take_unanswered(unary)) {
        unlist(unary);
        answer_send(&unary->answer, status, error, pieces, 2);
    } else {
        tether__slice_release(payload); /* too late: stop() has answered */
    }
    unary_let_go(unary);
}

/* The next that nobody has answered; from here on it is for the caller to do so. */
static struct unary *next_unanswered(struct tether__grpc *transport)
{
    struct unary *unary = NULL;
    pthread_mutex_lock(&transport->mu);
    for (struct tether__list *node;
         !unary && (node = tether__list_pop_front(&transport->unanswered));) {
        unary = tether__list_entry(node, struct unary, node);
        if (!take_unanswered(unary))
            unary = NULL; /* its owner is at it */
    }
    pthread_mutex_unlock(&transport->mu);
    return unary;
}

void tether__grpc_answer_all(struct tether__grpc *transport)
{
    for (struct unary *unary; (unary = next_unanswered(transport));) {
        atomic_store(&unary->base.canceled, true);
        answer_error(&unary->answer, TETHER_ESHUTDOWN, "this worker is shutting down");
    }
}

/* From here on the owner is to answer; false: the transport is stopping. */
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

/* Hands the request over. TAKES `request` (NULL: the client sent none). */
static void serve(struct unary *unary, grpc_byte_buffer *request)
{
    struct tether__grpc *transport = unary->answer.transport;
    struct tether__grpc_received *no_spare = NULL;
    tether_error cause;
    if (!request) {
        answer_error(&unary->answer, TETHER_EINVAL, "the call came without a request");
    } else if (is_too_large(transport, request, &cause)) {
        grpc_byte_buffer_destroy(request);
        answer_error(&unary->answer, cause.code, cause.message);
    } else if (!tether__grpc_receive(transport, request, &no_spare, &unary->body)) {
        answer_error(&unary->answer, TETHER_ENOMEM, "the worker is out of memory");
    } else if (!parse_call(unary)) {
        answer_error(&unary->answer, TETHER_EINVAL, "the request is not a tether.UnaryCall");
    } else if (!hand_to_owner(transport, unary)) {
        answer_error(&unary->answer, TETHER_ESHUTDOWN, "this worker is shutting down");
    } else {
        transport->events->unary(transport->userdata, &unary->base);
    }
}

static void on_read(struct tether__grpc_op *op, bool ok)
{
    struct unary *unary = tether__container_of(op, struct unary, read);
    grpc_byte_buffer *request = unary->request;
    (void)ok; /* false: the call was cancelled, and there is no request */
    unary->request = NULL;
    serve(unary, request);
}

static void read_request(struct unary *unary)
{
    struct tether__grpc *transport = unary->answer.transport;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &unary->request;
    unary->read.done = on_read;
    if (!tether__grpc_start(transport, unary->answer.call, &op, 1, &unary->read))
        answer_error(&unary->answer, TETHER_EUNAVAILABLE, "the worker is stopping");
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
        turn_away(call);
        return;
    }
    unary->body = TETHER__SLICE_EMPTY;
    unary->answer.free = unary_answered;
    unary->answer.give_up = unary_give_up;
    unary->base.transport = &transport->base;
    unary->base.reply = unary_reply;
    tether__list_init(&unary->node);
    atomic_init(&unary->holders, 1);
    unary->base.deadline = deadline_of(deadline);
    unary->base.trace = trace_in(metadata);
    unary->base.peer = unary->peer = tether__grpc_peer_of(call);
    unary->base.cert_names = tether__grpc_names_init(&unary->names, call);
    if (!answer_begin(&unary->answer, transport, call)) {
        unary_answered(&unary->answer);
        return;
    }
    if (!events->unary)
        answer_error(&unary->answer, TETHER_ENOTSUP, "this worker takes no plain gRPC calls");
    else if (events->admit &&
             events->admit(transport->userdata, bearer_in(metadata), unary->base.cert_names,
                           &is_proved, &error) != TETHER_OK)
        answer_error(&unary->answer, error.code, error.message);
    else {
        if (is_proved)
            tether__grpc_unproved_remove(&transport->unproved, unary->answer.unproved_id);
        else
            tether__grpc_unproved_used(&transport->unproved, unary->answer.unproved_id);
        read_request(unary);
    }
}

/* ---- grpc.health.v1.Health/Check ---- */

/* HealthCheckRequest{service: ""} asks for the server as a whole. */
static bool asks_for_us(struct tether__slice request)
{
    struct tether__wire_reader reader = tether__wire_reader(request.data, request.len);
    struct tether__wire_field field;
    enum tether__wire_read read;
    tether_bytes service = tether_bytes_of(NULL, 0);
    while ((read = tether__wire_next(&reader, &field)) == TETHER__WIRE_FIELD)
        if (field.number == 1 && field.type == TETHER__WIRE_BYTES)
            service = tether_bytes_of(field.data, field.len);
    bool known = service.len == 0 || tether_bytes_equal(service, tether_bytes_str("tether.Worker"));
    return known && read == TETHER__WIRE_END;
}

struct health {
    struct answer answer;
    struct tether__grpc_op read;
    grpc_byte_buffer *request;
};

static void health_free(struct answer *answer)
{
    tether__free(tether__container_of(answer, struct health, answer));
}

/* TAKES `request`. */
static void answer_health(struct answer *answer, grpc_byte_buffer *request)
{
    /* HealthCheckResponse{status: SERVING} and NOT_SERVING */
    static const uint8_t serving[] = {1 << 3, 1}, not_serving[] = {1 << 3, 2};
    struct tether__grpc *transport = answer->transport;
    const struct tether__transport_events *events = transport->events;
    bool serves = !events->is_serving || events->is_serving(transport->userdata);
    struct tether__grpc_received *no_spare = NULL;
    struct tether__slice body, reply = {serves ? serving : not_serving, sizeof serving, NULL};
    tether_error cause;
    if (is_too_large(transport, request, &cause)) {
        grpc_byte_buffer_destroy(request);
        answer_error(answer, cause.code, cause.message);
    } else if (!tether__grpc_receive(transport, request, &no_spare, &body)) {
        answer_error(answer, TETHER_ENOMEM, "the worker is out of memory");
    } else {
        if (asks_for_us(body))
            answer_send(answer, TETHER_OK, NULL, &reply, 1);
        else
            answer_error(answer, TETHER_ENOTFOUND, "the only service here is tether.Worker");
        tether__slice_release(body);
    }
}

static void on_health_read(struct tether__grpc_op *op, bool ok)
{
    struct health *health = tether__container_of(op, struct health, read);
    grpc_byte_buffer *request = health->request;
    (void)ok; /* false: the call was cancelled, and there is no request */
    if (request)
        answer_health(&health->answer, request);
    else
        answer_error(&health->answer, TETHER_EINVAL, "the call came without a request");
}

/* gRPC could hand the call over together with its request. It would then keep calls whose request
 * never comes, and nobody would count them. */
void tether__grpc_health(struct tether__grpc *transport, grpc_call *call)
{
    struct health *health = tether__calloc(1, sizeof *health);
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    if (!health) {
        turn_away(call);
        return;
    }
    health->answer.free = health_free;
    health->read.done = on_health_read;
    op.data.recv_message.recv_message = &health->request;
    if (!answer_begin(&health->answer, transport, call))
        tether__free(health);
    else if (!tether__grpc_start(transport, call, &op, 1, &health->read))
        answer_error(&health->answer, TETHER_EUNAVAILABLE, "the worker is stopping");
}
