/* Calls of clients that speak only gRPC, to an agent: as large as any other call may be, with the
 * trace id that they sent, and a clear word on what is too large. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "base/status.h"
#include "base/trace.h"
#include "protos/rpc.pb-c.h"
#include "rendezvous/store.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/value.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/plain_client.h"

#define MIB ((size_t)1024 * 1024)
#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"

/* ---- A worker ---- */

static tether_status length(void *userdata,
                            const tether_value *arg,
                            tether_value **ret_value,
                            tether_error *reterr)
{
    (void)userdata;
    return tether_value_printf(ret_value, reterr, "%zu", tether_value_bytes(arg).len);
}

/* As many bytes as its argument says. */
static tether_status zeros(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)userdata;
    size_t len = strtoul(tether_value_str(arg), NULL, 10);
    char *bytes = calloc(1, len);
    tether_status st = tether_value_new(tether_bytes_of(bytes, len), ret_value, reterr);
    free(bytes);
    return st;
}

static tether_status trace(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)userdata, (void)arg;
    char text[TETHER_TRACE_TEXT_SIZE];
    tether_trace_format(tether_trace_current(), text);
    return tether_value_printf(ret_value, reterr, "%s", text);
}

struct scene {
    tether_store *store;
    tether_agent *agent;
    struct plain_client client;
    struct tether_test_event called, go_on;
    tether_reply *held;
};

/* Keeps its reply handle. */
static void hold(void *userdata, const tether_value *arg, tether_reply *reply)
{
    struct scene *scene = userdata;
    (void)arg;
    scene->held = reply;
    tether_test_event_signal(&scene->called);
}

static tether_status stay(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    struct scene *scene = userdata;
    (void)arg, (void)ret_value, (void)reterr;
    tether_test_event_signal(&scene->called);
    assert_true(tether_test_event_wait(&scene->go_on, 1, TETHER_TEST_LIMIT_MS));
    return TETHER_OK;
}

static void scene_start(struct scene *scene, size_t max_message_bytes)
{
    tether_error err = {0};
    assert_int_equal(tether_store_hash_new(&scene->store, &err), TETHER_OK);
    const struct tether_agent_opts *opts =
        TETHER_AGENT_OPTS(.name = "w", .store = scene->store,
                          .max_message_bytes = max_message_bytes);
    assert_int_equal(tether_agent_new(opts, &scene->agent, &err), TETHER_OK);
    tether_agent_register_inline(scene->agent, "length", length, NULL, NULL);
    tether_agent_register(scene->agent, "zeros", zeros, NULL, NULL);
    tether_agent_register(scene->agent, "trace", trace, NULL, NULL);
    tether_agent_register_async(scene->agent, "hold", hold, false, scene, NULL);
    tether_agent_register(scene->agent, "stay", stay, scene, NULL);
    tether_test_event_init(&scene->called);
    tether_test_event_init(&scene->go_on);
    if (tether_agent_start(scene->agent, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    plain_client_init(&scene->client, tether_agent_address(scene->agent));
}

static void scene_end(struct scene *scene)
{
    plain_client_fini(&scene->client);
    tether_agent_release(scene->agent);
    tether_store_release(scene->store);
    tether_test_event_fini(&scene->go_on);
    tether_test_event_fini(&scene->called);
}

static void start_call(struct scene *scene,
                       const char *function,
                       const void *payload,
                       size_t len,
                       const char *traceparent,
                       struct plain_call *ret_call)
{
    Tether__UnaryCall message = TETHER__UNARY_CALL__INIT;
    message.function = (char *)function;
    message.payload = (ProtobufCBinaryData){len, (uint8_t *)payload};
    uint8_t *body = malloc(tether__unary_call__get_packed_size(&message));
    struct plain_request request = {.method = "/tether.Worker/Call",
                                    .body = body,
                                    .len = tether__unary_call__pack(&message, body),
                                    .traceparent = traceparent};
    plain_start(&scene->client, &request, ret_call);
    free(body);
}

static void call(struct scene *scene,
                 const char *function,
                 const void *payload,
                 size_t len,
                 const char *traceparent,
                 struct plain_call *ret_call)
{
    start_call(scene, function, payload, len, traceparent, ret_call);
    plain_finish(ret_call);
}

/* Returns the answer of the health check: 1 SERVING, 2 NOT_SERVING; 0: none. */
static int health(struct scene *scene)
{
    struct plain_call done;
    plain_start(
        &scene->client,
        &(struct plain_request){.method = "/grpc.health.v1.Health/Check", .body = "", .len = 0},
        &done);
    plain_finish(&done);
    int status = done.code == GRPC_STATUS_OK && done.len == 2 ? done.body[1] : 0;
    plain_free(&done);
    return status;
}

/* ---- Tests ---- */

/* The transport answers in the function's place; the function may still answer, much later. */
static void agent_stops_when_a_plain_call_is_unanswered(void **state)
{
    (void)state;
    struct scene scene;
    struct plain_call held;
    scene_start(&scene, 0);
    start_call(&scene, "hold", "x", 1, NULL, &held);
    assert_true(tether_test_event_wait(&scene.called, 1, TETHER_TEST_LIMIT_MS));
    scene.agent = tether_agent_release(scene.agent);
    plain_finish(&held);
    assert_int_not_equal(held.code, GRPC_STATUS_OK);
    assert_true(tether_reply_is_cancelled(scene.held));
    (void)tether_reply_trace(scene.held);
    tether_reply_ok(scene.held, NULL);
    plain_free(&held);
    scene_end(&scene);
}

static void *shut_down(void *agent)
{
    assert_int_equal(tether_agent_shutdown(agent, false, NULL), TETHER_OK);
    return NULL;
}

/* A function holds the shutdown up, so there is time to ask. */
static void health_says_not_serving_when_the_agent_stops(void **state)
{
    (void)state;
    struct scene scene;
    struct plain_call staying, refused;
    pthread_t stopper;
    scene_start(&scene, 0);
    assert_int_equal(health(&scene), 1);
    start_call(&scene, "stay", "x", 1, NULL, &staying);
    assert_true(tether_test_event_wait(&scene.called, 1, TETHER_TEST_LIMIT_MS));
    assert_int_equal(pthread_create(&stopper, NULL, shut_down, scene.agent), 0);
    assert_eventually(atomic_load(&scene.agent->state) == TETHER__AGENT_STOPPED);
    assert_int_equal(health(&scene), 2);
    call(&scene, "length", "x", 1, NULL, &refused);
    assert_int_equal(refused.code, tether_status_to_grpc(TETHER_ESHUTDOWN));
    plain_free(&refused);
    tether_test_event_signal(&scene.go_on);
    pthread_join(stopper, NULL);
    plain_finish(&staying);
    plain_free(&staying);
    scene_end(&scene);
}

static void plain_call_arguments_are_accepted_up_to_the_limit(void **state)
{
    (void)state;
    static const struct {
        size_t limit, len;
        const char *error; /* NULL: it goes through */
    } rows[] = {
        {0, 600000, NULL},
        {0, 20 * MIB, NULL},
        {3 * MIB, 3 * MIB - 100, NULL},
        {3 * MIB, 3 * MIB, "over the limit of 3145728"}, /* its name counts, too */
        {3 * MIB, 10 * MIB, "over the limit of 3145728"},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct scene scene;
        struct plain_call done;
        scene_start(&scene, rows[i].limit);
        char *bytes = calloc(1, rows[i].len), digits[24];
        call(&scene, "length", bytes, rows[i].len, NULL, &done);
        free(bytes);
        if (rows[i].error) {
            if (done.code != tether_status_to_grpc(TETHER_ETOOBIG))
                fail_msg("%zu: %d: %s", rows[i].len, done.code, done.details);
            assert_non_null(strstr(done.details, rows[i].error));
        } else {
            if (done.code != GRPC_STATUS_OK)
                fail_msg("%zu: %d: %s", rows[i].len, done.code, done.details);
            int n = snprintf(digits, sizeof digits, "%zu", rows[i].len);
            assert_memory_equal(done.body + done.len - n, digits, (size_t)n);
        }
        plain_free(&done);
        scene_end(&scene);
    }
}

static void plain_call_results_are_sent_up_to_the_limit(void **state)
{
    (void)state;
    struct scene scene;
    struct plain_call done;
    scene_start(&scene, 2 * MIB);
    call(&scene, "zeros", "2000000", 7, NULL, &done);
    assert_int_equal(done.code, GRPC_STATUS_OK);
    assert_true(done.len > 2000000);
    plain_free(&done);
    call(&scene, "zeros", "5000000", 7, NULL, &done);
    assert_int_equal(done.code, tether_status_to_grpc(TETHER_ETOOBIG));
    assert_non_null(strstr(done.details, "the result of 5000000 bytes is over the limit"));
    plain_free(&done);
    scene_end(&scene);
}

static void plain_call_passes_on_its_trace_id(void **state)
{
    (void)state;
    struct scene scene;
    struct plain_call done;
    scene_start(&scene, 0);
    call(&scene, "trace", "", 0, "00-" TRACE "-00f067aa0ba902b7-01", &done);
    assert_int_equal(done.code, GRPC_STATUS_OK);
    assert_memory_equal(done.body + done.len - 32, TRACE, 32);
    plain_free(&done);
    scene_end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_call_arguments_are_accepted_up_to_the_limit),
        cmocka_unit_test(plain_call_results_are_sent_up_to_the_limit),
        cmocka_unit_test(plain_call_passes_on_its_trace_id),
        cmocka_unit_test(agent_stops_when_a_plain_call_is_unanswered),
        cmocka_unit_test(health_says_not_serving_when_the_agent_stops),
    };
    return cmocka_run_group_tests_name("plain clients of an agent", tests, NULL, NULL);
}
