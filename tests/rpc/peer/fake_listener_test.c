/* A hostile process listens where a worker is taken to be, and has neither the group's token nor a
 * certificate of it. None of its answers may have an effect on the workers. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/handshake.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "rpc/peer/stream.h"
#include "rpc/wire/packed.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/named.h"
#include "tests/rpc/lib/transport_node.h"

#define LIMIT TETHER_TEST_LIMIT_MS

enum { LISTENS, DONE };

/* ---- The hostile process ---- */

static void answer(struct wire *wire, Tether__Hello2 *hello2)
{
    struct tether__packed packed;
    Tether__Frame frame = TETHER__FRAME__INIT;
    hello2->version = TETHER__WIRE_VERSION;
    frame.body_case = TETHER__FRAME__BODY_HELLO2;
    frame.hello2 = hello2;
    assert_int_equal(tether__handshake_pack(&frame, &packed), TETHER_OK);
    wire_send(wire, packed.bytes.data, packed.bytes.len);
    tether__packed_fini(&packed);
}

/* Looks for the token in the first message, and says that the caller was replaced. */
static void refuse(struct node *node)
{
    for (int i = 1; i <= 2; i++) {
        struct wire *wire = node_accepted(node, i);
        wire_await_messages(wire, 1);
        assert_null(memmem(wire->last, wire->last_len, "secret", 6));
        Tether__Hello2 hello2 = TETHER__HELLO2__INIT;
        hello2.from_name = (char *)"alpha";
        hello2.from_incarnation = 1;
        hello2.refused = TETHER_EFENCED;
        hello2.reason = (char *)"replaced";
        answer(wire, &hello2);
    }
}

/* Says that it is the worker that was killed, with a guessed proof where the group has a token. */
static void pretend(struct node *node, bool guesses)
{
    uint8_t guess[TETHER__MAC_SIZE] = {7};
    struct wire *wire = node_accepted(node, 1);
    wire_await_messages(wire, 1);
    Tether__Hello2 hello2 = TETHER__HELLO2__INIT;
    hello2.from_name = (char *)"killed";
    hello2.from_incarnation = 2;
    if (guesses)
        hello2.nonce = hello2.mac = (ProtobufCBinaryData){sizeof guess, guess};
    answer(wire, &hello2);
}

TETHER_PROC_ROLE(fake_listener)
{
    static const struct tether__tls tls = {.cert_pem = cert_alpha, .key_pem = key_alpha};
    struct node node;
    bool has_tls = strcmp(self->arg, "tls") == 0;
    node_start(&node, &(struct tether__transport_opts){.listen = "127.0.0.1:0",
                                                       .tls = has_tls ? &tls : NULL});
    atomic_store(&node.mute, true);
    snprintf(self->world->page, sizeof self->world->page, "%s", node.transport->address);
    tether_test_mark(self->world, LISTENS);
    if (strcmp(self->arg, "refuse") == 0)
        refuse(&node);
    else if (strncmp(self->arg, "pretend", 7) == 0)
        pretend(&node, strcmp(self->arg, "pretend and guess") == 0);
    tether_test_await_mark(self->world, DONE, 1);
    node_stop(&node);
}

/* ---- The workers ---- */

static tether_agent *start(tether_store *store, const char *worker, const char *token)
{
    return named_start(TETHER_AGENT_OPTS(.store = store, .name = worker, .token = token,
                                         .threads = 1, .lease_ms = 2000, .no_unix_socket = true));
}

/* Two workers that know each other. */
struct scene {
    tether_store *store;
    tether_agent *alpha, *delta;
    struct tether_test_procs *procs;
    const char *listens_at; /* the hostile process does */
};

static void scene_start(struct scene *scene, const char *token, struct tether_test_procs *procs)
{
    scene->procs = procs;
    assert_int_equal(tether_store_hash_new(&scene->store, NULL), TETHER_OK);
    scene->alpha = start(scene->store, "alpha", token);
    scene->delta = start(scene->store, "delta", token);
    tether_test_await_mark(procs->world, LISTENS, 1);
    scene->listens_at = procs->world->page;
    named_call(scene->delta, "alpha");
    named_call(scene->alpha, "delta");
}

static void scene_end(struct scene *scene)
{
    tether_test_mark(scene->procs->world, DONE);
    tether_test_procs_end(scene->procs);
    tether_agent_release(scene->delta);
    tether_agent_release(scene->alpha);
    tether_store_release(scene->store);
}

/* Has the directory say that `worker` listens at `address`. */
static void publish(struct scene *scene,
                    const char *worker,
                    uint32_t id,
                    uint64_t incarnation,
                    const char *address)
{
    struct tether__worker_record record = {.id = id, .incarnation = incarnation};
    snprintf(record.name, sizeof record.name, "%s", worker);
    snprintf(record.address, sizeof record.address, "%s", address);
    assert_int_equal(
        tether__directory_publish(&scene->alpha->directory, &record, -1, NULL, NULL, LIMIT, NULL),
        TETHER_OK);
}

/* ---- Tests ---- */

static void token_is_not_sent_to_a_fake_listener(void **state)
{
    (void)state;
    struct scene scene;
    tether_error err = {0};
    scene_start(&scene, "a very long secret",
                tether_test_procs_start(fake_listener, .ranks = 1, .arg = "refuse"));
    publish(&scene, "alpha", scene.alpha->self.id, scene.alpha->self.incarnation, scene.listens_at);
    tether_agent *late = start(scene.store, "late", "a very long secret");
    assert_int_equal(tether_rpc_sync(late, "alpha", "name", NULL, LIMIT, NULL, &err), TETHER_EPERM);
    assert_false(atomic_load(&late->replaced));
    named_call(late, "delta"); /* nothing else has come of it */
    tether_agent_release(late);
    scene_end(&scene);
}

static uint32_t count_dials(struct tether__peer *peer)
{
    tether__peer_lock(peer);
    uint32_t n = (uint32_t)peer->n_dials;
    tether__peer_unlock(peer);
    return n;
}

/* Delta's stream to alpha breaks, and a process with TLS answers where alpha listened: no attempt
 * to connect succeeds, but neither the session nor the call ends. */
static void session_is_kept_when_the_listener_has_tls_and_no_proof(void **state)
{
    (void)state;
    struct scene scene;
    tether_error err = {0};
    scene_start(&scene, "sesame", tether_test_procs_start(fake_listener, .ranks = 1, .arg = "tls"));
    struct tether__peer *alpha = tether__agent_find_peer(scene.delta, "alpha");
    struct tether__worker_record right = alpha->dialer.record;
    publish(&scene, "alpha", scene.alpha->self.id, right.incarnation, scene.listens_at);
    tether__peer_lock(alpha);
    uint64_t session = alpha->session_number;
    uint32_t dials = (uint32_t)alpha->n_dials;
    snprintf(alpha->dialer.record.address, sizeof alpha->dialer.record.address, "%s",
             scene.listens_at);
    tether__stream_drop_locked(&alpha->session->out);
    tether__peer_unlock(alpha);
    tether_future *call = tether_rpc_async(scene.delta, "alpha", "name", NULL, LIMIT);
    assert_eventually(count_dials(alpha) > dials + 3); /* other calls fail after 3 */
    publish(&scene, "alpha", scene.alpha->self.id, right.incarnation, right.address);
    if (tether_future_wait(call, LIMIT, NULL, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    assert_int_equal(alpha->session_number, session);
    tether_future_release(call);
    tether__peer_release(alpha);
    scene_end(&scene);
}

/* The process has taken the address of a worker that was killed, and answers as that worker. With a
 * token the restart notices; without one no worker can prove its name, see docs/security.md. */
static void impostor_cannot_keep_a_name_when_group_has_token(void **state)
{
    (void)state;
    static const char *const tokens[] = {NULL, "sesame"};
    for (size_t t = 0; t < TETHER__ARRAY_LEN(tokens); t++) {
        struct scene scene;
        tether_agent *killed = NULL;
        tether_error err = {0};
        scene_start(&scene, tokens[t],
                    tether_test_procs_start(fake_listener, .ranks = 1,
                                            .arg = tokens[t] ? "pretend and guess" : "pretend"));
        publish(&scene, "killed", 1000050, 2, scene.listens_at);
        assert_int_equal(
            tether_agent_new(
                TETHER_AGENT_OPTS(.store = scene.store, .name = "killed", .token = tokens[t],
                                  .threads = 1, .lease_ms = 86400000, .start_timeout_ms = LIMIT),
                &killed, NULL),
            TETHER_OK);
        tether_status st = tether_agent_start(killed, &err);
        if (st != (tokens[t] ? TETHER_OK : TETHER_EEXIST))
            fail_msg("%s: %s", tether_status_name(st), err.message);
        tether_agent_release(killed);
        scene_end(&scene);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_is_not_sent_to_a_fake_listener),
        cmocka_unit_test(session_is_kept_when_the_listener_has_tls_and_no_proof),
        cmocka_unit_test(impostor_cannot_keep_a_name_when_group_has_token),
    };
    return cmocka_run_group_tests_name("fake_listener", tests, NULL, NULL);
}
