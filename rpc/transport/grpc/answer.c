/* See transport/grpc/answer.h. */
#include "rpc/transport/grpc/answer.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/slice_buffer.h>
#include <stdio.h>

#include "base/alloc.h"

static void answer_unref(struct tether__grpc_answer *answer)
{
    if (atomic_fetch_sub_explicit(&answer->refs, 1, memory_order_acq_rel) != 1)
        return;
    struct tether__grpc_side *side = &answer->transport->sides[TETHER__SERVER];
    tether__grpc_unproved_call_ends(&answer->transport->unproved, answer->unproved_id,
                                    !answer->canceled);
    grpc_call_unref(answer->call);
    answer->free(answer);
    tether__grpc_side_leave(side);
}

static void on_replied(struct tether__grpc_op *op, bool ok)
{
    (void)ok; /* whether the reply was sent does not matter: a client that is gone needs none */
    answer_unref(tether__container_of(op, struct tether__grpc_answer, replied));
}

static void on_over(struct tether__grpc_op *op, bool ok)
{
    (void)ok; /* this op always succeeds */
    struct tether__grpc_answer *answer = tether__container_of(op, struct tether__grpc_answer, over);
    if (answer->canceled && answer->give_up)
        answer->give_up(answer);
    answer_unref(answer);
}

void tether__grpc_turn_away(grpc_call *call)
{
    grpc_call_cancel_with_status(call, GRPC_STATUS_UNAVAILABLE,
                                 "the worker is stopping, or out of memory", NULL);
    grpc_call_unref(call);
}

bool tether__grpc_answer_begin(struct tether__grpc_answer *answer,
                               struct tether__grpc *transport,
                               grpc_call *call)
{
    struct tether__grpc_side *side = &transport->sides[TETHER__SERVER];
    answer->transport = transport;
    answer->call = call;
    answer->replied.done = on_replied;
    answer->over.done = on_over;
    atomic_init(&answer->refs, 2);
    if (!tether__grpc_side_enter(side)) {
        tether__grpc_turn_away(call);
        return false;
    }
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &answer->canceled;
    if (!tether__grpc_start(transport, call, &op, 1, &answer->over)) {
        tether__grpc_side_leave(side);
        tether__grpc_turn_away(call);
        return false;
    }
    answer->unproved_id = tether__grpc_unproved_call_begins(&transport->unproved, call);
    return true;
}

void tether__grpc_answer_send(struct tether__grpc_answer *answer,
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

void tether__grpc_answer_error(struct tether__grpc_answer *answer,
                               tether_status status,
                               const char *error)
{
    tether__grpc_answer_send(answer, status, error, NULL, 0);
}

/* ---- Calls that need nothing but an answer ---- */

static void free_bare(struct tether__grpc_answer *answer)
{
    tether__free(answer);
}

static void answer_now(struct tether__grpc *transport,
                       grpc_call *call,
                       tether_status status,
                       const char *error,
                       struct tether__slice reply)
{
    struct tether__grpc_answer *answer = tether__calloc(1, sizeof *answer);
    if (!answer) {
        tether__grpc_turn_away(call);
        return;
    }
    answer->free = free_bare;
    if (tether__grpc_answer_begin(answer, transport, call))
        tether__grpc_answer_send(answer, status, error, &reply, 1);
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
