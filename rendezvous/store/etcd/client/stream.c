/* A two-way stream, driven by the one thread that owns it, with one send or one receive at a time.
 * The status is requested at the start, as gRPC demands, and arrives at the end: after the initial
 * metadata and all messages have been read, also if etcd has ended the stream before. */
#include "base/alloc.h"
#include "rendezvous/store/etcd/client/grpc.h"

struct tether__etcd_stream {
    const struct tether__etcd_method *method;
    grpc_completion_queue *cq;
    grpc_call *call;
    bool receiving_started, over;
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
};

/* Starts one batch and waits for it; the address of its ops serves as its tag. */
static bool run_batch(struct tether__etcd_stream *stream, grpc_op *ops, size_t n)
{
    return grpc_call_start_batch(stream->call, ops, n, ops, NULL) == GRPC_CALL_OK &&
           tether__etcd_pluck(stream->cq, ops);
}

/* Reads one message, which the caller destroys. NULL: the stream has ended. */
static grpc_byte_buffer *read_message(struct tether__etcd_stream *stream)
{
    grpc_byte_buffer *in = NULL;
    grpc_op ops[2] = {
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &in},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &stream->initial},
    };
    bool received = run_batch(stream, ops, stream->receiving_started ? 1 : 2);
    stream->receiving_started = true;
    if (received)
        return in;
    grpc_byte_buffer_destroy(in);
    return NULL;
}

/* The stream has ended: its status says why. Drops the messages that have not been read, because
 * gRPC holds the status back until then. The caller opens another stream, which repeats them. */
static bool end(struct tether__etcd_stream *stream, struct tether__etcd_try *try)
{
    for (grpc_byte_buffer *in; !stream->over && (in = read_message(stream));)
        grpc_byte_buffer_destroy(in);
    if (!stream->over)
        tether__etcd_pluck(stream->cq, stream);
    stream->over = true;
    /* etcd ends a stream with OK only when it shuts down, so report it as unavailable */
    if (stream->code == GRPC_STATUS_OK)
        stream->code = GRPC_STATUS_UNAVAILABLE;
    tether__etcd_try_fail(try, stream->code, stream->details);
    return false;
}

struct tether__etcd_stream *tether__etcd_stream_open(struct tether__etcd_channel *channel,
                                                     const struct tether__etcd_method *method,
                                                     struct tether__etcd_try *try)
{
    bool has_token;
    grpc_slice token;
    try->endpoint = atomic_load(&channel->current);
    if (!tether__etcd_auth_begin(channel, try, &has_token, &token))
        return NULL;
    struct tether__etcd_stream *stream = tether__calloc(1, sizeof *stream);
    if (!stream) {
        if (has_token)
            grpc_slice_unref(token);
        tether__etcd_try_fail_locally(try, TETHER_ENOMEM);
        return NULL;
    }
    stream->method = method;
    stream->details = grpc_empty_slice();
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    stream->cq = grpc_completion_queue_create_for_pluck(NULL);
    stream->call = grpc_channel_create_call(channel->endpoints[try->endpoint].channel, NULL,
                                            GRPC_PROPAGATE_DEFAULTS, stream->cq,
                                            grpc_slice_from_static_string(method->path), NULL,
                                            tether__etcd_gpr_deadline(try->deadline), NULL);

    grpc_op at_end = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                      .data.recv_status_on_client = {.trailing_metadata = &stream->trailing,
                                                     .status = &stream->code,
                                                     .status_details = &stream->details}};
    grpc_call_start_batch(stream->call, &at_end, 1, stream, NULL);

    /* A member without a leader would keep the stream open and send nothing; with this header it
     * ends the stream. */
    grpc_metadata sent[] = {
        {.key = grpc_slice_from_static_string("hasleader"),
         .value = grpc_slice_from_static_string("true")},
        {.key = grpc_slice_from_static_string("token")},
    };
    if (has_token)
        sent[1].value = token;
    grpc_op start = {
        .op = GRPC_OP_SEND_INITIAL_METADATA,
        .data.send_initial_metadata = {.count = has_token ? 2 : 1, .metadata = sent},
    };
    bool started = run_batch(stream, &start, 1);
    if (has_token)
        grpc_slice_unref(token);
    if (!started) {
        end(stream, try);
        return tether__etcd_stream_free(stream);
    }
    return stream;
}

bool tether__etcd_stream_send(struct tether__etcd_stream *stream,
                              const ProtobufCMessage *request,
                              struct tether__etcd_try *try)
{
    grpc_byte_buffer *out = tether__etcd_pack(request);
    grpc_op send = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = out};
    bool sent = run_batch(stream, &send, 1);
    grpc_byte_buffer_destroy(out);
    return sent || end(stream, try);
}

bool tether__etcd_stream_recv(struct tether__etcd_stream *stream,
                              struct tether__etcd_try *try,
                              ProtobufCMessage **ret_reply)
{
    grpc_byte_buffer *in = read_message(stream);
    if (!in)
        return end(stream, try);
    ProtobufCMessage *reply = tether__etcd_unpack(in, stream->method->reply, try);
    grpc_byte_buffer_destroy(in);
    if (!reply)
        return false;
    *ret_reply = reply;
    return true;
}

struct tether__etcd_stream *tether__etcd_stream_free(struct tether__etcd_stream *stream)
{
    if (!stream)
        return NULL;
    if (!stream->over) {
        grpc_call_cancel(stream->call, NULL);
        tether__etcd_pluck(stream->cq, stream);
    }
    grpc_call_unref(stream->call);
    tether__etcd_cq_free(stream->cq);
    grpc_slice_unref(stream->details);
    grpc_metadata_array_destroy(&stream->trailing);
    grpc_metadata_array_destroy(&stream->initial);
    tether__free(stream);
    return NULL;
}
