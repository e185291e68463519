/* Calls with one request and one reply, which the calling thread drives on its own completion
 * queue, and the conversion of messages for gRPC. */
#include "protos/etcd.pb-c.h"
#include "rendezvous/store/etcd/client/grpc.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>

const struct tether__etcd_method tether__etcd_txn = {
    "/etcdserverpb.KV/Txn",
    &etcdserverpb__txn_response__descriptor,
};
const struct tether__etcd_method tether__etcd_watch_stream = {
    "/etcdserverpb.Watch/Watch",
    &etcdserverpb__watch_response__descriptor,
};
const struct tether__etcd_method tether__etcd_lease_grant_call = {
    "/etcdserverpb.Lease/LeaseGrant",
    &etcdserverpb__lease_grant_response__descriptor,
};
/* gRPC declares this method as a stream. After one request etcd sends one reply and ends the
 * stream. */
const struct tether__etcd_method tether__etcd_lease_keepalive_call = {
    "/etcdserverpb.Lease/LeaseKeepAlive",
    &etcdserverpb__lease_keep_alive_response__descriptor,
};
const struct tether__etcd_method tether__etcd_lease_revoke_call = {
    "/etcdserverpb.Lease/LeaseRevoke",
    &etcdserverpb__lease_revoke_response__descriptor,
};
const struct tether__etcd_method tether__etcd_authenticate = {
    "/etcdserverpb.Auth/Authenticate",
    &etcdserverpb__authenticate_response__descriptor,
};

/* ---- Messages ------------------------------------------------------------------------------- */

grpc_byte_buffer *tether__etcd_pack(const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

ProtobufCMessage *tether__etcd_unpack(grpc_byte_buffer *buffer,
                                      const ProtobufCMessageDescriptor *type,
                                      struct tether__etcd_try *try)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
        tether__etcd_try_fail_locally(try, TETHER_ECORRUPT);
        return NULL;
    }
    grpc_slice whole = grpc_byte_buffer_reader_readall(&reader);
    ProtobufCMessage *message = NULL;
    tether_status st = tether__pb_unpack(
        type, tether_bytes_of(GRPC_SLICE_START_PTR(whole), GRPC_SLICE_LENGTH(whole)), &message);
    grpc_slice_unref(whole);
    grpc_byte_buffer_reader_destroy(&reader);
    if (st != TETHER_OK)
        tether__etcd_try_fail_locally(try, st);
    return message;
}

/* ---- Waiting -------------------------------------------------------------------------------- */

gpr_timespec tether__etcd_gpr_deadline(int64_t deadline)
{
    if (deadline == TETHER__NEVER)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    int64_t left = deadline - tether__clock_now_ns(&tether__clock_system);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left, GPR_TIMESPAN));
}

bool tether__etcd_pluck(grpc_completion_queue *cq, void *tag)
{
    return grpc_completion_queue_pluck(cq, tag, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).success;
}

void tether__etcd_cq_free(grpc_completion_queue *cq)
{
    grpc_completion_queue_shutdown(cq);
    grpc_completion_queue_destroy(cq);
}

/* ---- Calls ---------------------------------------------------------------------------------- */

ProtobufCMessage *tether__etcd_attempt(struct tether__etcd_channel *channel,
                                       const struct tether__etcd_method *method,
                                       const ProtobufCMessage *request,
                                       const grpc_slice *token,
                                       struct tether__etcd_try *try)
{
    grpc_metadata sent = {.key = grpc_slice_from_static_string("token")};
    if (token)
        sent.value = *token;
    grpc_metadata_array initial, trailing;
    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
    grpc_byte_buffer *out = tether__etcd_pack(request), *in = NULL;
    grpc_status_code code = GRPC_STATUS_UNKNOWN;
    grpc_slice details = grpc_empty_slice();
    grpc_completion_queue *cq = grpc_completion_queue_create_for_pluck(NULL);
    grpc_call *call = grpc_channel_create_call(channel->endpoints[try->endpoint].channel, NULL,
                                               GRPC_PROPAGATE_DEFAULTS, cq,
                                               grpc_slice_from_static_string(method->path), NULL,
                                               tether__etcd_gpr_deadline(try->deadline), NULL);

    grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA,
         .data.send_initial_metadata = {.count = token ? 1 : 0, .metadata = &sent}},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = out},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &in},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &trailing,
                                        .status = &code,
                                        .status_details = &details}},
    };
    if (grpc_call_start_batch(call, ops, TETHER__ARRAY_LEN(ops), call, NULL) == GRPC_CALL_OK)
        tether__etcd_pluck(cq, call);

    ProtobufCMessage *reply = NULL;
    if (code != GRPC_STATUS_OK)
        tether__etcd_try_fail(try, code, details);
    else if (!in)
        tether__etcd_try_fail_locally(try, TETHER_ECORRUPT);
    else
        reply = tether__etcd_unpack(in, method->reply, try);

    grpc_call_unref(call);
    tether__etcd_cq_free(cq);
    grpc_slice_unref(details);
    grpc_byte_buffer_destroy(in);
    grpc_byte_buffer_destroy(out);
    grpc_metadata_array_destroy(&trailing);
    grpc_metadata_array_destroy(&initial);
    return reply;
}

static ProtobufCMessage *attempt_with_token(struct tether__etcd_channel *channel,
                                            const struct tether__etcd_method *method,
                                            const ProtobufCMessage *request,
                                            struct tether__etcd_try *try)
{
    bool has_token;
    grpc_slice token;
    try->endpoint = atomic_load(&channel->current);
    if (!tether__etcd_auth_begin(channel, try, &has_token, &token))
        return NULL;
    ProtobufCMessage *reply =
        tether__etcd_attempt(channel, method, request, has_token ? &token : NULL, try);
    if (has_token)
        grpc_slice_unref(token);
    return reply;
}

tether_status tether__etcd_call(struct tether__etcd_channel *channel,
                                const struct tether__etcd_method *method,
                                const ProtobufCMessage *request,
                                int64_t deadline,
                                bool *ret_in_doubt,
                                ProtobufCMessage **ret_reply,
                                tether_error *reterr)
{
    struct tether__etcd_try try = TETHER__ETCD_TRY(deadline);
    ProtobufCMessage *reply;
    do {
        reply = attempt_with_token(channel, method, request, &try);
    } while (!reply && tether__etcd_try_again(channel, &try));

    if (ret_in_doubt)
        *ret_in_doubt = try.in_doubt;
    if (!reply)
        return tether__etcd_try_error(channel, &try, reterr);
    *ret_reply = reply;
    return TETHER_OK;
}

void tether__etcd_call_once(struct tether__etcd_channel *channel,
                            const struct tether__etcd_method *method,
                            const ProtobufCMessage *request,
                            int64_t deadline)
{
    struct tether__etcd_try try = TETHER__ETCD_TRY(deadline);
    tether__pb_free(attempt_with_token(channel, method, request, &try));
}
