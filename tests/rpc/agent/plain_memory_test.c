/* An unauthenticated gRPC client can cost a worker a fixed amount of memory, and disturbs no other
 * call. The client is a process of its own that speaks real gRPC. */
#include <grpc/slice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "protos/rpc.pb-c.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/echo.h"
#include "tests/rpc/lib/plain_client.h"

#define MIB ((size_t)1024 * 1024)
#define FLOOD_BYTES (1000 * MIB)
#define MAX_GROWTH_KB (400 * 1024L) /* docs/security.md promises 256 MiB, and small change */

enum { SERVING, FLOODED, MEASURED };
enum { WORKER, CLIENT, N_RANKS };

static long peak_kb(void)
{
    char line[128];
    long kb = -1;
    FILE *file = fopen("/proc/self/status", "re");
    assert_non_null(file);
    while (kb < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &kb) != 1)
            kb = -1;
    fclose(file);
    assert_true(kb > 0);
    return kb;
}

static void expect_call(struct plain_client *client, const char *authorization, int code)
{
    Tether__UnaryCall message = TETHER__UNARY_CALL__INIT;
    uint8_t body[64];
    struct plain_call call;
    message.function = (char *)"echo";
    plain_start(client,
                &(struct plain_request){.method = "/tether.Worker/Call",
                                        .body = body,
                                        .len = tether__unary_call__pack(&message, body),
                                        .authorization = authorization},
                &call);
    plain_finish(&call);
    if (call.code != (grpc_status_code)code)
        fail_msg("gRPC status %d: %s", call.code, call.details);
    plain_free(&call);
}

static void run_worker(struct tether_test_world *world)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    if (tether_agent_new(TETHER_AGENT_OPTS(.name = "w", .store = store, .token = "sesame",
                                           .no_unix_socket = true),
                         &agent, &err) ||
        tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    struct plain_client friend;
    plain_client_init(&friend, tether_agent_address(agent));
    expect_call(&friend, "Bearer sesame", GRPC_STATUS_OK);
    long before = peak_kb();
    snprintf(world->page, sizeof world->page, "%s", tether_agent_address(agent));
    tether_test_mark(world, SERVING);
    tether_test_await_mark(world, FLOODED, 1);
    expect_call(&friend, "Bearer sesame", GRPC_STATUS_OK);
    long grown = peak_kb() - before;
    if (grown > MAX_GROWTH_KB)
        fail_msg("the worker grew by %ld kB", grown);
    plain_client_fini(&friend);
    tether_agent_release(agent);
    tether_store_release(store);
}

static void run_client(struct tether_test_world *world, const char *method)
{
    struct plain_client client;
    struct plain_call call;
    tether_test_await_mark(world, SERVING, 1);
    /* Never written to: the pages of the flood cost this process nothing. */
    void *zeros = mmap(NULL, FLOOD_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(zeros, MAP_FAILED);
    plain_client_init(&client, world->page);
    plain_start(&client,
                &(struct plain_request){
                    .method = method, .body = zeros, .len = FLOOD_BYTES, .body_is_static = true},
                &call);
    plain_finish(&call);
    assert_int_not_equal(call.code, GRPC_STATUS_OK);
    plain_free(&call);
    expect_call(&client, NULL, GRPC_STATUS_UNAUTHENTICATED);
    expect_call(&client, "Bearer guess", GRPC_STATUS_UNAUTHENTICATED);
    expect_call(&client, "sesame", GRPC_STATUS_UNAUTHENTICATED);
    plain_client_fini(&client);
    munmap(zeros, FLOOD_BYTES);
    tether_test_mark(world, FLOODED);
}

TETHER_PROC_TEST(worker_memory_is_bounded_when_unauthenticated_client_calls_with_huge_message,
                 .ranks = N_RANKS)
{
    if (rank == WORKER)
        run_worker(self->world);
    else
        run_client(self->world, "/tether.Worker/Call");
}

TETHER_PROC_TEST(worker_memory_is_bounded_when_unauthenticated_client_opens_lane_with_huge_message,
                 .ranks = N_RANKS)
{
    if (rank == WORKER)
        run_worker(self->world);
    else
        run_client(self->world, "/tether.Worker/Lane");
}

TETHER_PROC_TEST(worker_memory_is_bounded_when_unauthenticated_client_asks_health_with_huge_message,
                 .ranks = N_RANKS)
{
    if (rank == WORKER)
        run_worker(self->world);
    else
        run_client(self->world, "/grpc.health.v1.Health/Check");
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            worker_memory_is_bounded_when_unauthenticated_client_calls_with_huge_message),
        cmocka_unit_test(
            worker_memory_is_bounded_when_unauthenticated_client_opens_lane_with_huge_message),
        cmocka_unit_test(
            worker_memory_is_bounded_when_unauthenticated_client_asks_health_with_huge_message),
    };
    return cmocka_run_group_tests_name("plain_memory", tests, NULL, NULL);
}
