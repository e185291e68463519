/* Clients that speak only gRPC: health checks, requests that are no call or too large, and failed
 * allocations. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/rpc/transport/grpc_plain.h"

/* ---- What is not a call ---- */

static void malformed_plain_calls_are_refused(void **state)
{
    static const struct {
        const char *what, *method;
        struct {
            const char *data;
            size_t len;
        } body;
        int code;
        const char *details, *reply;
    } cases[] = {
#define BYTES(text) {text, sizeof(text) - 1}
        {"health of the server", HEALTH, BYTES(""), GRPC_STATUS_OK, "", "\x08\x01"},
        {"health of the worker", HEALTH, BYTES("\x0a\x0dtether.Worker"), GRPC_STATUS_OK, "",
         "\x08\x01"},
        {"health of another", HEALTH, BYTES("\x0a\x05other"), GRPC_STATUS_NOT_FOUND,
         "tether.Worker", NULL},
        {"malformed health", HEALTH, BYTES("\x0a\x05oth"), GRPC_STATUS_NOT_FOUND, "", NULL},
        {"health watch", "/grpc.health.v1.Health/Watch", BYTES(""), GRPC_STATUS_UNIMPLEMENTED,
         "/grpc.health.v1.Health/Watch", NULL},
        {"no such method", "/tether.Worker/Nonsense", BYTES(""), GRPC_STATUS_UNIMPLEMENTED,
         "tether.Worker/Call", NULL},
        {"malformed call", CALL, BYTES("\xff\xff\xff"), GRPC_STATUS_INVALID_ARGUMENT,
         "not a tether.UnaryCall", NULL},
        {"cut call", CALL, BYTES("\x0a\x05xy"), GRPC_STATUS_INVALID_ARGUMENT, "", NULL},
        {"length beyond reason", CALL, BYTES("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
         GRPC_STATUS_INVALID_ARGUMENT, "", NULL},
        {"unknown fields", CALL, BYTES("\x18\x01\x21________\x2d____"), GRPC_STATUS_OK, "", NULL},
    };
    struct fixture *fixture = *state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(cases); i++) {
        struct plain_request request = {
            .method = cases[i].method, .body = cases[i].body.data, .len = cases[i].body.len};
        struct plain_call done;
        plain_start(&fixture->client, &request, &done);
        plain_finish(&done);
        if (done.code != (grpc_status_code)cases[i].code || !strstr(done.details, cases[i].details))
            fail_msg("%s: %d: %s", cases[i].what, done.code, done.details);
        if (cases[i].reply) {
            assert_int_equal(done.len, strlen(cases[i].reply));
            assert_memory_equal(done.body, cases[i].reply, done.len);
        }
        plain_free(&done);
    }
}

static void plain_call_is_refused_when_it_is_too_large(void **state)
{
    struct fixture *fixture = *state;
    char *data = node_pattern(5u << 20);
    struct plain_call done;
    plain_add(fixture, NULL, data, 5u << 20, &done);
    assert_int_equal(done.code, tether_status_to_grpc(TETHER_ETOOBIG));
    assert_non_null(strstr(done.details, "over the limit of 4194304"));
    plain_free(&done);
    plain_add(fixture, NULL, data, 10, &done); /* the next is fine */
    plain_assert_payload(&done, data, 10);
    plain_free(&done);
    free(data);
}

/* A small compressed message may unpack to any size, so the worker refuses compression. */
static void plain_call_is_refused_when_it_is_compressed(void **state)
{
    struct fixture *fixture = *state;
    struct plain_client compressing;
    plain_client_init_gzip(&compressing, fixture->server.transport->address);
    char *zeros = calloc(1, 1u << 20);
    struct plain_request request = {.method = CALL};
    uint8_t *body = plain_pack("f", zeros, 1u << 20, &request.len);
    request.body = body;
    struct plain_call done;
    plain_start(&compressing, &request, &done);
    plain_finish(&done);
    assert_int_equal(done.code, GRPC_STATUS_UNIMPLEMENTED);
    plain_free(&done);
    plain_client_fini(&compressing);
    free(body);
    free(zeros);
}

/* ---- Out of memory ---- */

static tether_status call_and_health(void *userdata)
{
    (void)userdata;
    struct node server = {0};
    struct plain_client client;
    const struct tether__transport_opts opts = {.listen = "127.0.0.1:0"};
    tether_status st = node_try_start(&server, &opts, NULL);
    if (st != TETHER_OK)
        return st;
    plain_client_init(&client, server.transport->address);
    static const char *const methods[] = {CALL, HEALTH, "/no/such"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(methods); i++) {
        struct plain_request request = {.method = methods[i], .authorization = "Bearer sesame"};
        struct plain_call done;
        plain_start(&client, &request, &done);
        plain_finish(&done);
        if (done.code != (i < 2 ? GRPC_STATUS_OK : GRPC_STATUS_UNIMPLEMENTED))
            st = TETHER_ENOMEM;
        plain_free(&done);
    }
    plain_client_fini(&client);
    node_stop(&server);
    return st;
}

static void plain_calls_survive_failed_allocations(void **state)
{
    (void)state;
    tether_test_heap_fail_each(call_and_health, NULL);
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, plain_set_up, plain_tear_down)

static const struct CMUnitTest tests[] = {
    SERVED(malformed_plain_calls_are_refused),
    SERVED(plain_call_is_refused_when_it_is_too_large),
    SERVED(plain_call_is_refused_when_it_is_compressed),
    cmocka_unit_test(plain_calls_survive_failed_allocations),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
