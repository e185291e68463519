/* Workers that have the local route start gRPC late: with the first peer of another host that they
 * dial, or the first connection to their address.
 *
 * All workers run in this process. w1 has no local route, so it stands for a worker of another
 * host.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "rpc/agent/internal.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/plain_client.h"
#include "tests/rpc/lib/world.h"

enum { THREADS = 8, ROUNDS = 10, MAX_ALLOCATIONS = 400 };

/* The head of what each gRPC client sends first. */
static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";

static tether_status echo(tether_agent *agent, const char *to, int timeout_ms, tether_error *reterr)
{
    return tether_rpc_sync(agent, to, "echo", NULL, timeout_ms, NULL, reterr);
}

static void assert_calls(tether_agent *agent, const char *to)
{
    tether_error err = {0};
    if (echo(agent, to, TETHER_TEST_LIMIT_MS, &err) != TETHER_OK)
        fail_msg("%s", err.message);
}

static void assert_serves_plain_client(tether_agent *agent)
{
    struct plain_client client;
    struct plain_call call;
    plain_client_init(&client, tether_agent_address(agent));
    plain_start(&client,
                &(struct plain_request){.method = "/grpc.health.v1.Health/Check", .body = ""},
                &call);
    plain_finish(&call);
    if (call.code != GRPC_STATUS_OK)
        fail_msg("%d: %s", call.code, call.details);
    plain_free(&call);
    plain_client_fini(&client);
}

/* A TCP connection to the agent's address that has said nothing yet. */
static int connect_to(tether_agent *agent)
{
    const struct timeval limit = {.tv_sec = TETHER_TEST_LIMIT_MS / 1000};
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_port = htons((uint16_t)atoi(strrchr(tether_agent_address(agent), ':') + 1));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    return fd;
}

static void say_preface(int fd)
{
    assert_int_equal(send(fd, preface, sizeof preface - 1, MSG_NOSIGNAL), sizeof preface - 1);
}

/* ---- Nothing needs it ---- */

static void network_does_not_run_while_calls_are_local(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 2, NULL);
    assert_calls(world.agents[0], "w1");
    assert_calls(world.agents[1], "w0");
    assert_false(tether__network_runs(world.agents[0]));
    assert_false(tether__network_runs(world.agents[1]));
    tether_test_world_stop(&world);
}

static void network_does_not_run_after_connection_that_says_nothing(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 1, NULL);
    int silent = connect_to(world.agents[0]), wrong = connect_to(world.agents[0]);
    assert_int_equal(send(wrong, "\x16\3\1\0\1\1", 6, MSG_NOSIGNAL), 6); /* TLS: told its mistake */
    char byte;
    assert_int_equal(recv(wrong, &byte, 1, 0), 1);
    assert_false(tether__network_runs(world.agents[0]));
    close(silent);
    close(wrong);
    tether_test_world_stop(&world);
}

/* ---- The first that needs it ---- */

struct local_calls {
    tether_agent *agent;
    struct tether_test_event begun;
    _Atomic bool enough;
    _Atomic int n_failed;
};

static void *call_locally(void *arg)
{
    struct local_calls *calls = arg;
    while (!atomic_load(&calls->enough)) {
        if (echo(calls->agent, "w2", TETHER_TEST_LIMIT_MS, NULL) != TETHER_OK)
            atomic_fetch_add(&calls->n_failed, 1);
        tether_test_event_signal(&calls->begun);
    }
    return NULL;
}

static void first_network_peer_starts_network_while_local_calls_go_on(void **state)
{
    (void)state;
    struct tether_test_world world;
    pthread_t thread;
    tether_test_world_start(&world, TETHER_TEST_MIXED, 3, NULL);
    struct local_calls calls = {.agent = world.agents[0]};
    tether_test_event_init(&calls.begun);
    assert_int_equal(pthread_create(&thread, NULL, call_locally, &calls), 0);
    assert_true(tether_test_event_wait(&calls.begun, 1, TETHER_TEST_LIMIT_MS));
    assert_false(tether__network_runs(world.agents[0]));
    assert_calls(world.agents[0], "w1");
    assert_true(tether__network_runs(world.agents[0]));
    atomic_store(&calls.enough, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(calls.n_failed, 0);
    assert_false(tether__network_runs(world.agents[2]));
    tether_test_event_fini(&calls.begun);
    tether_test_world_stop(&world);
}

static void first_plain_client_starts_network(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 1, NULL);
    assert_false(tether__network_runs(world.agents[0]));
    assert_serves_plain_client(world.agents[0]);
    assert_true(tether__network_runs(world.agents[0]));
    assert_serves_plain_client(world.agents[0]);
    tether_test_world_stop(&world);
}

static void first_dial_of_network_peer_starts_network(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_world_start(&world, TETHER_TEST_MIXED, 2, NULL);
    assert_false(tether__network_runs(world.agents[0]));
    assert_calls(world.agents[1], "w0");
    assert_true(tether__network_runs(world.agents[0]));
    tether_test_world_stop(&world);
}

/* ---- Many at once ---- */

struct at_once {
    struct tether_test_world *world;
    pthread_barrier_t *barrier;
    int i;
};

static void *need_network(void *arg)
{
    struct at_once *self = arg;
    pthread_barrier_wait(self->barrier);
    if (self->i % 3 == 0)
        assert_calls(self->world->agents[0], "w1");
    else if (self->i % 3 == 1)
        assert_calls(self->world->agents[1], "w0");
    else
        assert_serves_plain_client(self->world->agents[0]);
    return NULL;
}

static void network_starts_once_when_dials_and_clients_come_at_once(void **state)
{
    (void)state;
    struct tether_test_world world;
    pthread_barrier_t barrier;
    pthread_t threads[THREADS];
    struct at_once selves[THREADS];
    tether_test_world_start(&world, TETHER_TEST_MIXED, 2, NULL);
    assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        selves[i] = (struct at_once){&world, &barrier, i};
        assert_int_equal(pthread_create(&threads[i], NULL, need_network, &selves[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(tether__network_runs(world.agents[0]));
    pthread_barrier_destroy(&barrier);
    tether_test_world_stop(&world);
}

/* ---- Shutdown meanwhile ---- */

/* Whether a start is under way, or over. */
static bool has_begun_to_start(tether_agent *agent)
{
    if (tether__network_runs(agent) || pthread_mutex_trylock(&agent->network_start.mu) != 0)
        return true;
    pthread_mutex_unlock(&agent->network_start.mu);
    return false;
}

static void worker_stops_while_dial_starts_network(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct tether_test_world world;
        tether_error err = {0};
        tether_test_world_start(&world, TETHER_TEST_MIXED, 2, NULL);
        tether_future *call =
            tether_rpc_async(world.agents[0], "w1", "echo", NULL, TETHER_TEST_LIMIT_MS);
        for (int tries = 0; round % 2 && !has_begun_to_start(world.agents[0]);)
            assert_true(tether_test_nap(tries++));
        assert_int_equal(tether_agent_shutdown(world.agents[0], false, &err), TETHER_OK);
        tether_status st = tether_future_wait(call, TETHER_TEST_LIMIT_MS, NULL, &err);
        if (st != TETHER_OK && st != TETHER_ESHUTDOWN)
            fail_msg("%s: %s", tether_status_name(st), err.message);
        tether_future_release(call);
        tether_test_world_stop(&world);
    }
}

static void worker_stops_while_client_starts_network(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct tether_test_world world;
        char bytes[4096];
        tether_test_world_start(&world, TETHER_TEST_UNIX, 1, NULL);
        int fd = connect_to(world.agents[0]);
        say_preface(fd);
        for (int tries = 0; round % 2 && !has_begun_to_start(world.agents[0]);)
            assert_true(tether_test_nap(tries++));
        tether_test_world_stop(&world);
        while (recv(fd, bytes, sizeof bytes, 0) > 0) /* until the worker has closed it */
            ;
        close(fd);
    }
}

/* ---- An inline function ---- */

static struct tether_test_event inline_begun, inline_may_end;

static tether_status hold_inline(void *userdata,
                                 const tether_value *arg,
                                 tether_value **ret_result,
                                 tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_result, (void)reterr;
    tether_test_event_signal(&inline_begun);
    tether_test_event_wait(&inline_may_end, 1, TETHER_TEST_LIMIT_MS);
    return TETHER_OK;
}

static void register_hold_inline(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_inline(agent, "hold_inline", hold_inline, NULL, NULL),
                     TETHER_OK);
}

static void client_is_served_while_inline_function_of_local_peer_runs(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_test_event_init(&inline_begun);
    tether_test_event_init(&inline_may_end);
    tether_test_world_register = register_hold_inline;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 2, NULL);
    tether_test_world_register = NULL;
    tether_future *held =
        tether_rpc_async(world.agents[1], "w0", "hold_inline", NULL, TETHER_TEST_LIMIT_MS);
    assert_true(tether_test_event_wait(&inline_begun, 1, TETHER_TEST_LIMIT_MS));
    assert_serves_plain_client(world.agents[0]);
    tether_test_event_signal(&inline_may_end);
    assert_int_equal(tether_future_wait(held, TETHER_TEST_LIMIT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(held);
    tether_test_world_stop(&world);
    tether_test_event_fini(&inline_begun);
    tether_test_event_fini(&inline_may_end);
}

/* ---- It cannot start ---- */

static struct rlimit limit_descriptors(int more)
{
    struct rlimit before, low;
    int next = dup(STDERR_FILENO);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = (rlim_t)(next + more);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    return before;
}

static void client_is_closed_when_network_cannot_start(void **state)
{
    (void)state;
    struct tether_test_world world;
    char byte;
    tether_test_world_start(&world, TETHER_TEST_UNIX, 1, NULL);
    int fd = connect_to(world.agents[0]);
    struct rlimit before = limit_descriptors(4);
    say_preface(fd);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    assert_false(tether__network_runs(world.agents[0]));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_serves_plain_client(world.agents[0]);
    close(fd);
    tether_test_world_stop(&world);
}

static void count_failures(void *userdata,
                           tether_log_level level,
                           const char *module,
                           const char *message)
{
    (void)level, (void)module;
    if (strstr(message, "gRPC cannot start"))
        atomic_fetch_add((_Atomic int *)userdata, 1);
}

static void clients_cannot_flood_log_when_network_cannot_start(void **state)
{
    (void)state;
    enum { CLIENTS = 4 };
    struct tether_test_world world;
    _Atomic int n_logged = 0;
    char byte;
    int fds[CLIENTS];
    tether_test_world_start(&world, TETHER_TEST_UNIX, 1, NULL);
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = connect_to(world.agents[0]);
    struct rlimit before = limit_descriptors(4);
    tether_set_log(TETHER_LOG_WARN, count_failures, &n_logged);
    for (int i = 0; i < CLIENTS; i++) {
        say_preface(fds[i]);
        assert_true(recv(fds[i], &byte, 1, 0) <= 0);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    tether_test_world_stop(&world);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    assert_int_equal(n_logged, 1);
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
}

static void call_tells_why_network_cannot_start(void **state)
{
    (void)state;
    struct tether_test_world world;
    tether_error err = {0};
    tether_test_world_start(&world, TETHER_TEST_MIXED, 2, NULL);
    struct rlimit before = limit_descriptors(4);
    assert_int_not_equal(echo(world.agents[0], "w1", 300, &err), TETHER_OK);
    assert_non_null(strstr(err.message, "too many open files"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_calls(world.agents[0], "w1");
    tether_test_world_stop(&world);
}

static void call_succeeds_after_any_allocation_of_start_has_failed(void **state)
{
    (void)state;
    bool fired = true;
    for (int n = 0; fired && n < MAX_ALLOCATIONS; n += 1 + n / 16) {
        struct tether_test_world world;
        tether_test_world_start(&world, TETHER_TEST_MIXED, 2, NULL);
        tether_test_heap_fail_at(n);
        echo(world.agents[0], "w1", 100, NULL);
        fired = tether_test_heap_fired();
        tether_test_heap_fail_never();
        assert_calls(world.agents[0], "w1");
        tether_test_world_stop(&world);
    }
    assert_false(fired);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(network_does_not_run_while_calls_are_local),
        cmocka_unit_test(network_does_not_run_after_connection_that_says_nothing),
        cmocka_unit_test(first_network_peer_starts_network_while_local_calls_go_on),
        cmocka_unit_test(first_plain_client_starts_network),
        cmocka_unit_test(first_dial_of_network_peer_starts_network),
        cmocka_unit_test(network_starts_once_when_dials_and_clients_come_at_once),
        cmocka_unit_test(worker_stops_while_dial_starts_network),
        cmocka_unit_test(worker_stops_while_client_starts_network),
        cmocka_unit_test(client_is_served_while_inline_function_of_local_peer_runs),
        cmocka_unit_test(client_is_closed_when_network_cannot_start),
        cmocka_unit_test(clients_cannot_flood_log_when_network_cannot_start),
        cmocka_unit_test(call_tells_why_network_cannot_start),
        cmocka_unit_test(call_succeeds_after_any_allocation_of_start_has_failed),
    };
    return cmocka_run_group_tests_name("late start", tests, NULL, NULL);
}
