/* Clients that speak only gRPC and that may call: all together they have one small budget for
 * requests, results and calls, with a token or in a group that has none. The client is a process of
 * its own that speaks real gRPC; meanwhile a worker of the group goes on calling. */
#include <grpc/slice.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "protos/rpc.pb-c.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/echo.h"
#include "tests/rpc/lib/plain_client.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define MAX_BYTES (16 * MIB)         /* max_bytes_per_peer */
#define LARGE (MAX_BYTES - 16 * KIB) /* of a request or a result: two of them fit */
#define N_LARGE 30
#define SMALL (15 * KIB)
#define N_SMALL 8
#define MAX_QUEUED 64
#define MAX_CALLS (MAX_QUEUED / 4) /* docs/security.md */
#define N_CALLS 60                 /* a connection may have 100 at once */
#define MAX_GROWTH_KB (160 * 1024L)

enum { SERVING, TAKEN, ATTACKED, RELEASED, CHECKED };
enum { WORKER, CLIENT, N_RANKS };

/* ---- The worker ---- */

static struct tether_test_world *world;
static tether_reply *held[N_CALLS];
static atomic_int n_held;

/* Asynchronous: answers when the test says so. */
static void hold(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    int i = atomic_fetch_add(&n_held, 1);
    assert_in_range(i, 0, N_CALLS - 1);
    held[i] = reply;
    tether_test_mark(world, TAKEN);
}

static tether_status make(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg;
    static const uint8_t bytes[LARGE] = {1};
    tether_status st = tether_value_new(tether_bytes_of(bytes, LARGE), ret_value, reterr);
    tether_test_mark(world, TAKEN);
    return st;
}

static tether_status drop(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    return TETHER_OK;
}

struct group {
    tether_store *store;
    tether_agent *worker, *friend;
    pthread_t thread;
    atomic_bool stop;
    int n_calls;
    char failure[256];
};

static tether_agent *start(tether_store *store, const char *name, const char *token)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    if (tether_agent_new(
            TETHER_AGENT_OPTS(.name = name, .store = store, .token = token, .no_unix_socket = true,
                              .max_queued = MAX_QUEUED, .max_bytes_per_peer = MAX_BYTES),
            &agent, &err) ||
        tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_register_inline(agent, "drop", drop, NULL, &err) ||
        tether_agent_register_inline(agent, "make", make, NULL, &err) ||
        tether_agent_register_async(agent, "hold", hold, true, NULL, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    return agent;
}

static void *go_on_calling(void *arg)
{
    struct group *group = arg;
    tether_error err = {0};
    while (!group->failure[0] && !atomic_load(&group->stop)) {
        if (tether_rpc_sync(group->friend, "w", "echo", NULL, LIMIT, NULL, &err))
            snprintf(group->failure, sizeof group->failure, "%s", err.message);
        group->n_calls++;
        tether_test_nap(0);
    }
    return NULL;
}

static long peak_kb(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
}

static void run_worker(const char *token)
{
    struct group group = {.store = NULL};
    assert_int_equal(tether_store_hash_new(&group.store, NULL), TETHER_OK);
    group.worker = start(group.store, "w", token);
    group.friend = start(group.store, "friend", token);
    assert_int_equal(pthread_create(&group.thread, NULL, go_on_calling, &group), 0);
    long before = peak_kb();
    snprintf(world->page, sizeof world->page, "%s", tether_agent_address(group.worker));
    tether_test_mark(world, SERVING);
    tether_test_await_mark(world, ATTACKED, 1);
    long grown = peak_kb() - before;
    print_message("the worker grew by %ld kB\n", grown);
    for (int i = 0; i < atomic_load(&n_held); i++)
        tether_reply_ok(held[i], NULL);
    tether_test_mark(world, RELEASED);
    tether_test_await_mark(world, CHECKED, 1);
    atomic_store(&group.stop, true);
    pthread_join(group.thread, NULL);
    if (group.failure[0])
        fail_msg("a call of the group failed: %s", group.failure);
    assert_int_not_equal(group.n_calls, 0);
    tether_agent_release(group.friend);
    tether_agent_release(group.worker);
    tether_store_release(group.store);
    /* Sanitizers keep memory that was freed. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_in_range(grown, 0, MAX_GROWTH_KB);
#endif
}

/* ---- The client ---- */

struct attacker {
    struct plain_client client;
    const char *authorization;
    uint8_t *body; /* room for a large request */
    struct plain_call calls[N_CALLS];
    int n;
};

/* The payload is `payload_len` zeros. They take no memory here, since nothing writes to them. */
static void begin_call(struct attacker *attacker,
                       const char *function,
                       size_t payload_len,
                       const struct plain_request *how,
                       struct plain_call *ret_call)
{
    Tether__UnaryCall message = TETHER__UNARY_CALL__INIT;
    struct plain_request request = *how;
    request.timeout_ms = 5 * LIMIT; /* calls are held for as long as the attack takes */
    uint8_t *at = attacker->body;
    message.function = (char *)function;
    at += tether__unary_call__pack(&message, at);
    if (payload_len) {
        *at++ = 15 << 3 | 2;
        size_t left = payload_len;
        for (; left >= 128; left >>= 7)
            *at++ = (uint8_t)(left | 128);
        *at++ = (uint8_t)left;
    }
    request.method = "/tether.Worker/Call";
    request.body = attacker->body;
    request.len = (size_t)(at - attacker->body) + payload_len;
    request.authorization = attacker->authorization;
    plain_start(&attacker->client, &request, ret_call);
}

static void expect_call(struct attacker *attacker, const char *function, size_t payload_len)
{
    struct plain_call call;
    begin_call(attacker, function, payload_len, &(struct plain_request){.method = NULL}, &call);
    plain_finish(&call);
    if (call.code != GRPC_STATUS_OK)
        fail_msg("'%s' failed: %s", function, call.details);
    plain_free(&call);
}

static int n_taken(void)
{
    return atomic_load(&world->marks[TAKEN]);
}

/* Makes `n` calls, one after the other: each is taken or refused before the next one. */
static void call_many(struct attacker *attacker,
                      int n,
                      const char *function,
                      size_t payload_len,
                      bool reads)
{
    const struct plain_request how = {.body_is_static = true, .does_not_read = !reads};
    for (int i = 0; i < n; i++) {
        int taken = n_taken();
        struct plain_call *call = &attacker->calls[attacker->n++];
        begin_call(attacker, function, payload_len, &how, call);
        assert_eventually(n_taken() > taken || plain_has_ended(call));
    }
}

static int n_ended(struct attacker *attacker)
{
    int n = 0;
    for (int i = 0; i < attacker->n; i++)
        n += plain_has_ended(&attacker->calls[i]);
    return n;
}

/* Each call that has ended was refused, and the client is told which limit it was. */
static void expect_refusals(struct attacker *attacker, int n, const char *option)
{
    assert_int_equal(n_ended(attacker), n);
    for (int i = 0; i < attacker->n; i++) {
        struct plain_call *call = &attacker->calls[i];
        if (!plain_has_ended(call))
            continue;
        plain_finish(call);
        if (call->code != GRPC_STATUS_RESOURCE_EXHAUSTED || !strstr(call->details, option))
            fail_msg("gRPC status %d: %s", call->code, call->details);
    }
}

static void end_calls(struct attacker *attacker)
{
    for (int i = 0; i < attacker->n; i++) {
        plain_cancel(&attacker->calls[i]);
        plain_finish(&attacker->calls[i]);
        plain_free(&attacker->calls[i]);
    }
    attacker->n = 0;
}

static void run_client(const char *token, void (*attack)(struct attacker *attacker))
{
    static struct attacker attacker;
    char authorization[64] = "";
    snprintf(authorization, sizeof authorization, "Bearer %s", token ? token : "");
    attacker.authorization = token ? authorization : NULL;
    attacker.body =
        mmap(NULL, MAX_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(attacker.body, MAP_FAILED);
    tether_test_await_mark(world, SERVING, 1);
    plain_client_init(&attacker.client, world->page);
    attack(&attacker);
    tether_test_mark(world, ATTACKED);
    tether_test_await_mark(world, RELEASED, 1);
    end_calls(&attacker);
    /* the whole budget is free again */
    for (int i = 0; i < 2 * MAX_CALLS; i++)
        expect_call(&attacker, "drop", i < 4 ? LARGE : 0);
    tether_test_mark(world, CHECKED);
    plain_client_fini(&attacker.client);
    munmap(attacker.body, MAX_BYTES);
}

#define ATTACK(name, token, attack)          \
    TETHER_PROC_TEST(name, .ranks = N_RANKS) \
    {                                        \
        world = self->world;                 \
        if (rank == WORKER)                  \
            run_worker(token);               \
        else                                 \
            run_client(token, attack);       \
    }

/* ---- Attacks ---- */

static void hold_large_requests(struct attacker *attacker)
{
    call_many(attacker, N_LARGE, "hold", LARGE, true);
    expect_refusals(attacker, N_LARGE - 2, "max_bytes_per_peer");
    call_many(attacker, N_SMALL, "hold", SMALL, true);
    expect_refusals(attacker, N_LARGE - 2, "max_bytes_per_peer"); /* small ones always fit */
}

ATTACK(requests_of_plain_clients_are_bounded_when_they_have_the_token,
       "sesame",
       hold_large_requests)
ATTACK(requests_of_plain_clients_are_bounded_when_group_has_no_token, NULL, hold_large_requests)

static void leave_results_unread(struct attacker *attacker)
{
    call_many(attacker, N_LARGE, "make", 0, false);
    /* A result that was made and found no room is refused a moment later. */
    assert_eventually(n_ended(attacker) == N_LARGE - 2);
    expect_refusals(attacker, N_LARGE - 2, "max_bytes_per_peer");
}

ATTACK(results_for_plain_clients_are_bounded_when_they_are_not_read, NULL, leave_results_unread)

static void hold_many_calls(struct attacker *attacker)
{
    call_many(attacker, N_CALLS, "hold", 0, true);
    expect_refusals(attacker, N_CALLS - MAX_CALLS, "max_queued");
}

ATTACK(calls_of_plain_clients_are_bounded_when_they_are_not_answered, NULL, hold_many_calls)

/* The oldest calls make room. */
static void send_no_requests(struct attacker *attacker)
{
    const struct plain_request how = {.keeps_back = true};
    for (int i = 0; i < N_CALLS; i++)
        begin_call(attacker, "drop", 0, &how, &attacker->calls[attacker->n++]);
    assert_eventually(n_ended(attacker) == N_CALLS - MAX_CALLS);
    expect_refusals(attacker, N_CALLS - MAX_CALLS, "max_queued");
    expect_call(attacker, "echo", 0);
}

ATTACK(calls_of_plain_clients_are_bounded_when_their_requests_do_not_come, NULL, send_no_requests)

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_plain_clients_are_bounded_when_they_have_the_token),
        cmocka_unit_test(requests_of_plain_clients_are_bounded_when_group_has_no_token),
        cmocka_unit_test(results_for_plain_clients_are_bounded_when_they_are_not_read),
        cmocka_unit_test(calls_of_plain_clients_are_bounded_when_they_are_not_answered),
        cmocka_unit_test(calls_of_plain_clients_are_bounded_when_their_requests_do_not_come),
    };
    return cmocka_run_group_tests_name("plain budget", tests, NULL, NULL);
}
