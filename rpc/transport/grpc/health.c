/* The standard health check, grpc.health.v1.Health/Check. Any client may ask. */
#include "base/alloc.h"
#include "rpc/transport/grpc/answer.h"
#include "rpc/wire/wire.h"

/* Returns whether the request asks for the server as a whole: HealthCheckRequest{service: ""}. */
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
    struct tether__grpc_answer answer;
    struct tether__grpc_op read;
    grpc_byte_buffer *request;
};

static void health_free(struct tether__grpc_answer *answer)
{
    tether__free(tether__container_of(answer, struct health, answer));
}

/* Parses the request and answers. TAKES `request`. */
static void answer_health(struct tether__grpc_answer *answer, grpc_byte_buffer *request)
{
    /* HealthCheckResponse{status: SERVING} and NOT_SERVING */
    static const uint8_t serving[] = {1 << 3, 1}, not_serving[] = {1 << 3, 2};
    struct tether__grpc *transport = answer->transport;
    const struct tether__transport_events *events = transport->events;
    bool serves = !events->is_serving || events->is_serving(transport->userdata);
    struct tether__grpc_received *no_spare = NULL;
    struct tether__slice body, reply = {serves ? serving : not_serving, sizeof serving, NULL};
    tether_error cause;
    if (tether__grpc_is_too_large(request, transport->max_unary_bytes, "a client", &cause)) {
        grpc_byte_buffer_destroy(request);
        tether__grpc_answer_error(answer, cause.code, cause.message);
    } else if (!tether__grpc_receive(transport, request, &no_spare, &body)) {
        tether__grpc_answer_error(answer, TETHER_ENOMEM, "the worker is out of memory");
    } else {
        if (asks_for_us(body))
            tether__grpc_answer_send(answer, TETHER_OK, NULL, &reply, 1);
        else
            tether__grpc_answer_error(answer, TETHER_ENOTFOUND,
                                      "the only service here is tether.Worker");
        tether__slice_release(body);
    }
}

static void on_health_read(struct tether__grpc_op *op, bool ok)
{
    struct health *health = tether__container_of(op, struct health, read);
    grpc_byte_buffer *request = health->request;
    /* false if the call was cancelled; then there is no request, which the callee checks */
    (void)ok;
    if (request)
        answer_health(&health->answer, request);
    else
        tether__grpc_answer_error(&health->answer, TETHER_EINVAL,
                                  "the call came without a request");
}

/* gRPC could hand the call over together with its request. It would then hold calls whose request
 * never arrives, and no limit would count them. */
void tether__grpc_health(struct tether__grpc *transport, grpc_call *call)
{
    struct health *health = tether__calloc(1, sizeof *health);
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    if (!health) {
        tether__grpc_turn_away(call);
        return;
    }
    health->answer.free = health_free;
    health->read.done = on_health_read;
    op.data.recv_message.recv_message = &health->request;
    if (!tether__grpc_answer_begin(&health->answer, transport, call))
        tether__free(health);
    else if (!tether__grpc_start(transport, call, &op, 1, &health->read))
        tether__grpc_answer_error(&health->answer, TETHER_EUNAVAILABLE, "the worker is stopping");
}
