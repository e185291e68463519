/* Handshakes are fresh: each has a random nonce, and a worker of an earlier run is refused. */
#include <stdio.h>
#include <string.h>

#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/handshake.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/intruder.h"
#include "tests/rpc/lib/named.h"
#include "tests/rpc/lib/transport_node.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static tether_agent *start(tether_store *store, const char *worker, const char *token)
{
    return named_start(TETHER_AGENT_OPTS(.store = store, .name = worker, .token = token,
                                         .threads = 1, .lease_ms = LIMIT, .no_unix_socket = true));
}

/* Says in the directory of `agent` that the worker of this record listens at `address`. */
static void publish(tether_agent *agent, struct tether__worker_record record, const char *address)
{
    snprintf(record.address, sizeof record.address, "%s", address);
    assert_int_equal(
        tether__directory_publish(&agent->directory, &record, -1, NULL, NULL, LIMIT, NULL),
        TETHER_OK);
}

/* ---- Nonces ---- */

/* The nonces that one end of the handshakes has sent. */
struct nonces {
    uint8_t bytes[4][TETHER__NONCE_SIZE];
    size_t n;
};

static void note_nonce(struct nonces *nonces, const struct wire *wire)
{
    const Tether__Frame *frame = NULL;
    TETHER__ARENA(arena, 1024);
    struct tether__slice message = {(uint8_t *)wire->last, wire->last_len, NULL};
    assert_int_equal(tether__handshake_read(message, &arena, &frame, NULL), TETHER_OK);
    ProtobufCBinaryData nonce = frame->body_case == TETHER__FRAME__BODY_HELLO1
                                    ? frame->hello1->nonce
                                    : frame->hello2->nonce;
    assert_int_equal(nonce.len, TETHER__NONCE_SIZE);
    memcpy(nonces->bytes[nonces->n++], nonce.data, nonce.len);
    tether__arena_fini(&arena);
}

/* Random bytes are all equal at one place with a probability of 1 in 2^24. */
static void expect_fresh_nonces(const struct nonces *nonces)
{
    size_t equal = 0;
    assert_int_equal(nonces->n, TETHER__ARRAY_LEN(nonces->bytes));
    for (size_t i = 0; i < TETHER__NONCE_SIZE; i++) {
        bool same = true;
        for (size_t k = 1; k < nonces->n; k++)
            same = same && nonces->bytes[k][i] == nonces->bytes[0][i];
        equal += same;
    }
    assert_true(equal < 4);
}

/* A repeated nonce would let an attacker on the path replay an old proof. */
static void every_handshake_has_a_random_nonce(void **state)
{
    (void)state;
    struct node node;
    struct nonces dialled = {.n = 0}, accepted = {.n = 0};
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    tether_agent *alpha = start(store, "alpha", "sesame");
    node_start(&node, &(struct tether__transport_opts){.listen = "127.0.0.1:0"});
    atomic_store(&node.mute, true);
    struct tether__self eve = {.group = "tether",
                               .run = alpha->directory.run,
                               .name = "eve",
                               .token = "guess",
                               .incarnation = 5};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(accepted.bytes); i++) {
        struct tether__handshake handshake;
        uint8_t nonce[TETHER__NONCE_SIZE] = {9};
        Tether__Frame frame = TETHER__FRAME__INIT;
        tether__handshake_init(&handshake, &eve, true, "alpha", nonce);
        Tether__Hello1 hello1 = tether__handshake_begin(&handshake);
        struct wire *wire = node_dial(&node, tether_agent_address(alpha));
        frame.body_case = TETHER__FRAME__BODY_HELLO1;
        frame.hello1 = &hello1;
        intruder_send(wire, &frame);
        wire_await_messages(wire, 1);
        note_nonce(&accepted, wire);
        wire_close(wire, false);
    }
    struct tether__worker_record record = {
        .name = "alpha", .id = alpha->self.id, .incarnation = alpha->self.incarnation};
    publish(alpha, record, node.transport->address);
    tether_agent *late = start(store, "late", "sesame");
    tether_future *call = tether_rpc_async(late, "alpha", "name", NULL, LIMIT);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(dialled.bytes); i++) {
        struct wire *wire = node_accepted(&node, (int)i + 1);
        wire_await_messages(wire, 1);
        note_nonce(&dialled, wire);
        wire_close(wire, false);
    }
    expect_fresh_nonces(&accepted);
    expect_fresh_nonces(&dialled);
    tether_agent_release(late);
    tether_future_release(call);
    node_stop(&node);
    tether_agent_release(alpha);
    tether_store_release(store);
}

/* ---- Runs ---- */

/* A worker of an earlier run still listens where one of this run is taken to be. */
static void workers_of_different_runs_never_connect(void **state)
{
    (void)state;
    static const char *const tokens[] = {NULL, "sesame"};
    for (size_t t = 0; t < TETHER__ARRAY_LEN(tokens); t++) {
        tether_store *first = NULL, *second = NULL;
        assert_int_equal(tether_store_hash_new(&first, NULL), TETHER_OK);
        assert_int_equal(tether_store_hash_new(&second, NULL), TETHER_OK);
        tether_agent *leftover = start(first, "ps", tokens[t]);
        tether_agent *friend = start(first, "friend", tokens[t]);
        tether_agent *caller = start(second, "caller", tokens[t]);
        struct tether__worker_record record = {.name = "ps", .incarnation = 77};
        publish(caller, record, tether_agent_address(leftover));
        tether_error err = {0};
        tether_status st = tether_rpc_sync(caller, "ps", "name", NULL, LIMIT, NULL, &err);
        assert_int_equal(st, TETHER_EPERM);
        assert_non_null(strstr(err.message, "another run"));
        assert_false(atomic_load(&leftover->replaced) || atomic_load(&caller->replaced));
        named_call(friend, "ps"); /* those of the first run go on */
        tether_agent_release(caller);
        tether_agent_release(friend);
        tether_agent_release(leftover);
        tether_store_release(second);
        tether_store_release(first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_handshake_has_a_random_nonce),
        cmocka_unit_test(workers_of_different_runs_never_connect),
    };
    return cmocka_run_group_tests_name("freshness", tests, NULL, NULL);
}
