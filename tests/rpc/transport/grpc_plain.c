#include "tests/rpc/transport/grpc_plain.h"

#include <stdlib.h>

#include "protos/rpc.pb-c.h"
#include "tests/lib/cmocka.h"

int plain_set_up(void **state)
{
    static struct fixture fixture;
    node_start(&fixture.server, &(struct tether__transport_opts){.listen = "127.0.0.1:0"});
    plain_client_init(&fixture.client, fixture.server.transport->address);
    *state = &fixture;
    return 0;
}

int plain_tear_down(void **state)
{
    struct fixture *fixture = *state;
    plain_client_fini(&fixture->client);
    node_stop(&fixture->server);
    return 0;
}

uint8_t *plain_pack(const char *function, const void *payload, size_t len, size_t *ret_len)
{
    Tether__UnaryCall call = TETHER__UNARY_CALL__INIT;
    call.function = (char *)function;
    call.payload.data = (uint8_t *)payload;
    call.payload.len = len;
    uint8_t *body = malloc(tether__unary_call__get_packed_size(&call) + 1);
    assert_non_null(body);
    *ret_len = tether__unary_call__pack(&call, body);
    return body;
}

void plain_add(struct fixture *fixture,
               const char *authorization,
               const void *payload,
               size_t len,
               struct plain_call *ret_done)
{
    struct plain_request request = {.method = CALL, .authorization = authorization};
    uint8_t *body = plain_pack("add", payload, len, &request.len);
    request.body = body;
    plain_start(&fixture->client, &request, ret_done);
    plain_finish(ret_done);
    free(body);
}

void plain_assert_payload(const struct plain_call *done, const void *payload, size_t len)
{
    if (done->code != GRPC_STATUS_OK)
        fail_msg("gRPC status %d: %s", done->code, done->details);
    Tether__UnaryReply *reply = tether__unary_reply__unpack(NULL, done->len, (uint8_t *)done->body);
    assert_non_null(reply);
    assert_int_equal(reply->payload.len, len);
    if (len)
        assert_memory_equal(reply->payload.data, payload, len);
    tether__unary_reply__free_unpacked(reply, NULL);
}
