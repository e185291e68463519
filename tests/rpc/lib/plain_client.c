/* Unary calls on gRPC C-core, and a thread that polls. */
#include "tests/rpc/lib/plain_client.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads/handover.h"
#include "net/grpc_init.h"
#include "tests/lib/cmocka.h"

static gpr_timespec in_ms(int ms)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

static void *poll_main(void *queue)
{
    grpc_event event;
    while ((event = grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL))
               .type == GRPC_OP_COMPLETE) {
        struct plain_call *call = event.tag;
        tether__take_over(call);
        tether_test_event_signal(&call->done);
    }
    return NULL;
}

static void init(struct plain_client *client,
                 const char *address,
                 grpc_channel_credentials *credentials,
                 grpc_channel_args *args)
{
    client->channel = grpc_channel_create(address, credentials, args);
    grpc_channel_credentials_release(credentials);
    client->queue = grpc_completion_queue_create_for_next(NULL);
    assert_int_equal(pthread_create(&client->poller, NULL, poll_main, client->queue), 0);
}

void plain_client_init(struct plain_client *client, const char *address)
{
    /* Else the window of a reply that is not read grows, until the reply fits. */
    grpc_arg arg = {GRPC_ARG_INTEGER, GRPC_ARG_HTTP2_BDP_PROBE, {.integer = 0}};
    tether__grpc_init(0);
    init(client, address, grpc_insecure_credentials_create(), &(grpc_channel_args){1, &arg});
}

void plain_client_init_gzip(struct plain_client *client, const char *address)
{
    grpc_arg arg = {GRPC_ARG_INTEGER,
                    GRPC_COMPRESSION_CHANNEL_DEFAULT_ALGORITHM,
                    {.integer = GRPC_COMPRESS_GZIP}};
    tether__grpc_init(0);
    init(client, address, grpc_insecure_credentials_create(), &(grpc_channel_args){1, &arg});
}

void plain_client_init_tls(struct plain_client *client,
                           const char *address,
                           const char *ca,
                           const char *cert,
                           const char *key)
{
    grpc_ssl_pem_key_cert_pair pair = {key, cert};
    tether__grpc_init(0);
    init(client, address, grpc_ssl_credentials_create(ca, &pair, NULL, NULL), NULL);
}

void plain_client_fini(struct plain_client *client)
{
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->queue);
    pthread_join(client->poller, NULL);
    grpc_completion_queue_destroy(client->queue);
    grpc_shutdown_blocking();
}

static void add_metadata(grpc_metadata *metadata, size_t *n, const char *key, const char *value)
{
    if (value)
        metadata[(*n)++] = (grpc_metadata){.key = grpc_slice_from_static_string(key),
                                           .value = grpc_slice_from_copied_string(value)};
}

void plain_start(struct plain_client *client,
                 const struct plain_request *request,
                 struct plain_call *ret_call)
{
    struct plain_call *call = ret_call;
    memset(call, 0, sizeof *call);
    tether_test_event_init(&call->done);
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->call = grpc_channel_create_call(
        client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->queue,
        grpc_slice_from_static_string(request->method), NULL,
        in_ms(request->timeout_ms ? request->timeout_ms : TETHER_TEST_LIMIT_MS), NULL);

    grpc_slice slice = request->body_is_static
                           ? grpc_slice_from_static_buffer(request->body, request->len)
                           : grpc_slice_from_copied_buffer(request->body, request->len);
    grpc_byte_buffer *body = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_metadata metadata[2];
    size_t n_metadata = 0;
    add_metadata(metadata, &n_metadata, "authorization", request->authorization);
    add_metadata(metadata, &n_metadata, "traceparent", request->traceparent);
    grpc_op ops[6] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}};
    ops[0].data.send_initial_metadata.metadata = metadata;
    ops[0].data.send_initial_metadata.count = n_metadata;
    size_t n = 1;
    if (!request->keeps_back) {
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = body;
        ops[n++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    }
    ops[n].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[n++].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    if (!request->does_not_read) {
        ops[n].op = GRPC_OP_RECV_MESSAGE;
        ops[n++].data.recv_message.recv_message = &call->message;
    }
    ops[n].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[n].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[n].data.recv_status_on_client.status = &call->code;
    ops[n++].data.recv_status_on_client.status_details = &call->details_slice;
    tether__hand_over(call);
    assert_int_equal(grpc_call_start_batch(call->call, ops, n, call, NULL), GRPC_CALL_OK);
    for (size_t i = 0; i < n_metadata; i++)
        grpc_slice_unref(metadata[i].value);
    grpc_byte_buffer_destroy(body);
    grpc_slice_unref(slice);
}

bool plain_has_ended(struct plain_call *call)
{
    return tether_test_event_wait(&call->done, 1, 0);
}

void plain_cancel(struct plain_call *call)
{
    grpc_call_cancel(call->call, NULL);
}

static void take_message(struct plain_call *call)
{
    grpc_byte_buffer_reader reader;
    assert_int_equal(grpc_byte_buffer_reader_init(&reader, call->message), 1);
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    call->len = GRPC_SLICE_LENGTH(all);
    call->body = malloc(call->len + 1);
    assert_non_null(call->body);
    memcpy(call->body, GRPC_SLICE_START_PTR(all), call->len);
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(call->message);
}

static void print_slice(char *text, size_t size, grpc_slice slice)
{
    snprintf(text, size, "%.*s", (int)GRPC_SLICE_LENGTH(slice),
             (const char *)GRPC_SLICE_START_PTR(slice));
}

void plain_finish(struct plain_call *call)
{
    assert_true(tether_test_event_wait(&call->done, 1, 2 * TETHER_TEST_LIMIT_MS));
    if (call->message)
        take_message(call);
    print_slice(call->details, sizeof call->details, call->details_slice);
    for (size_t i = 0; i < call->trailing.count; i++)
        if (grpc_slice_str_cmp(call->trailing.metadata[i].key, "tether-status") == 0)
            print_slice(call->tether_status, sizeof call->tether_status,
                        call->trailing.metadata[i].value);
}

void plain_free(struct plain_call *call)
{
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details_slice);
    grpc_call_unref(call->call);
    tether_test_event_fini(&call->done);
    free(call->body);
}
