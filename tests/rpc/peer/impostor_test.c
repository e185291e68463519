/* Programs that say that they are somebody else: hostile diallers that speak the wire
 * protocol, on loopback, without the group's token or a certificate. None of what they say may have
 * an effect on the workers. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/log_limit.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/handshake.h"
#include "rpc/handshake/pairing.h"
#include "rpc/wire/packed.h"
#include "rpc/wire/wire.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/transport_node.h"

#define LIMIT TETHER_TEST_LIMIT_MS

static tether_status name(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg;
    return tether_value_printf(ret_value, reterr, "%s", tether_agent_name(userdata));
}

static tether_agent *start(tether_store *store, const char *worker, const char *token)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    if (tether_agent_new(TETHER_AGENT_OPTS(.store = store, .name = worker, .token = token,
                                           .threads = 1, .lease_ms = 2000, .no_unix_socket = true),
                         &agent, &err) != TETHER_OK ||
        tether_agent_register_inline(agent, "name", name, agent, &err) != TETHER_OK ||
        tether_agent_start(agent, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return agent;
}

static void call_ok(tether_agent *from, const char *to)
{
    tether_error err = {0};
    tether_value *value = NULL;
    if (tether_rpc_sync(from, to, "name", NULL, LIMIT, &value, &err) != TETHER_OK)
        fail_msg("%s calls %s: %s", tether_agent_name(from), to, err.message);
    assert_string_equal(tether_value_str(value), to);
    tether_value_release(value);
}

/* Two workers that know each other, and a intruder who knows all but the token. */
struct scene {
    tether_store *store;
    tether_agent *alpha, *delta;
    struct node intruder;
    char run[TETHER__RUN_SIZE];
};

static void scene_start(struct scene *scene, const char *token, const char *listen)
{
    assert_int_equal(tether_store_hash_new(&scene->store, NULL), TETHER_OK);
    scene->alpha = start(scene->store, "alpha", token);
    scene->delta = start(scene->store, "delta", token);
    memcpy(scene->run, scene->alpha->directory.run, sizeof scene->run);
    node_start(&scene->intruder, &(struct tether__transport_opts){.listen = listen});
    atomic_store(&scene->intruder.mute, true);
    call_ok(scene->delta, "alpha");
    call_ok(scene->alpha, "delta");
}

static void scene_end(struct scene *scene)
{
    node_stop(&scene->intruder);
    tether_agent_release(scene->delta);
    tether_agent_release(scene->alpha);
    tether_store_release(scene->store);
}

static void send_frame(struct wire *wire, Tether__Frame *frame)
{
    struct tether__packed packed;
    assert_int_equal(tether__handshake_pack(frame, &packed), TETHER_OK);
    wire_send(wire, packed.bytes.data, packed.bytes.len);
    tether__packed_fini(&packed);
}

/* Dials `to` as `who`, sends `state` if it is let in that far, and waits until it is hung up on. */
static void intrude(struct scene *scene,
                    tether_agent *to,
                    const struct tether__self *who,
                    Tether__State *state)
{
    struct tether__handshake handshake;
    uint8_t nonce[TETHER__NONCE_SIZE] = {9};
    Tether__Frame frame = TETHER__FRAME__INIT;
    tether__handshake_init(&handshake, who, true, tether_agent_name(to), who->token ? nonce : NULL);
    Tether__Hello1 hello1 = tether__handshake_begin(&handshake);
    struct wire *wire = node_dial(&scene->intruder, tether_agent_address(to));
    frame.body_case = TETHER__FRAME__BODY_HELLO1;
    frame.hello1 = &hello1;
    send_frame(wire, &frame);
    if (wire_await_either(wire, 1) == TETHER_OK) {
        const Tether__Frame *answer = NULL;
        TETHER__ARENA(arena, 1024);
        struct tether__slice message = {(uint8_t *)wire->last, wire->last_len, NULL};
        assert_int_equal(tether__handshake_read(message, &arena, &answer, NULL), TETHER_OK);
        if (answer->body_case == TETHER__FRAME__BODY_HELLO2)
            tether__handshake_on_hello2(&handshake, answer->hello2, NULL);
        tether__arena_fini(&arena);
        Tether__Hello3 hello3 = tether__handshake_finish(&handshake, state);
        frame.body_case = TETHER__FRAME__BODY_HELLO3;
        frame.hello3 = &hello3;
        send_frame(wire, &frame);
    }
    wire_await_closed(wire);
}

static struct tether__self impostor(struct scene *scene, const char *as, uint64_t incarnation)
{
    return (struct tether__self){
        .group = "tether", .run = scene->run, .name = as, .incarnation = incarnation};
}

static Tether__State state_of(const struct tether__self *self, tether_agent *to)
{
    Tether__State state = TETHER__STATE__INIT;
    state.from_incarnation = self->incarnation;
    state.to_incarnation = to->self.incarnation;
    state.dial = 1;
    return state;
}

/* The two workers go on calling each other, whatever the impostor claims. */
static void impostor_has_no_effect_when_it_claims_a_later_start(void **state)
{
    (void)state;
    static const char *const tokens[] = {NULL, "sesame"};
    for (size_t t = 0; t < TETHER__ARRAY_LEN(tokens); t++) {
        struct scene scene;
        scene_start(&scene, tokens[t], NULL);
        /* A guessed token, a start that nobody has drawn. */
        struct tether__self delta = impostor(&scene, "delta", 1000000);
        Tether__State said = state_of(&delta, scene.alpha);
        delta.token = tokens[t] ? "guess" : NULL;
        for (int i = 0; i < 3; i++)
            intrude(&scene, scene.alpha, &delta, &said);
        call_ok(scene.alpha, "delta");
        call_ok(scene.delta, "alpha");
        /* Says that alpha is the one that was replaced. */
        struct tether__self eve = impostor(&scene, "eve", 5);
        eve.token = delta.token;
        said = state_of(&eve, scene.alpha);
        said.to_incarnation = 1000000;
        intrude(&scene, scene.alpha, &eve, &said);
        said = state_of(&eve, scene.alpha);
        said.refused = TETHER_EFENCED;
        said.reason = (char *)"replaced";
        intrude(&scene, scene.alpha, &eve, &said);
        call_ok(scene.alpha, "delta");
        call_ok(scene.delta, "alpha");
        assert_false(atomic_load(&scene.alpha->replaced));
        scene_end(&scene);
    }
}

static size_t n_peers(tether_agent *agent)
{
    pthread_mutex_lock(&agent->mu);
    size_t n = agent->n_peers;
    pthread_mutex_unlock(&agent->mu);
    return n;
}

static void stranger_makes_no_peer_whatever_its_name(void **state)
{
    (void)state;
    static const char *const tokens[] = {NULL, "sesame"};
    for (size_t t = 0; t < TETHER__ARRAY_LEN(tokens); t++) {
        struct scene scene;
        scene_start(&scene, tokens[t], NULL);
        size_t before = n_peers(scene.alpha);
        for (int i = 0; i < 100; i++) {
            char as[32];
            snprintf(as, sizeof as, "intruder%d", i);
            struct tether__self self = impostor(&scene, as, 1 + (uint64_t)i);
            self.token = tokens[t] ? "guess" : NULL;
            Tether__State said = state_of(&self, scene.alpha);
            intrude(&scene, scene.alpha, &self, &said);
        }
        assert_int_equal(n_peers(scene.alpha), before);
        call_ok(scene.delta, "alpha");
        scene_end(&scene);
    }
}

static void count_refusals(void *userdata,
                           tether_log_level level,
                           const char *area,
                           const char *message)
{
    atomic_int *n = userdata;
    (void)level, (void)area;
    if (strstr(message, "refused a stream"))
        atomic_fetch_add(n, 1);
}

static void log_has_one_line_when_many_streams_are_refused(void **state)
{
    (void)state;
    enum { MANY = 200 };
    static atomic_int n_lines;
    struct scene scene;
    tether_set_log(TETHER_LOG_WARN, count_refusals, &n_lines);
    scene_start(&scene, "sesame", NULL);
    struct tether__self self = impostor(&scene, "intruder", 1);
    Tether__State said = state_of(&self, scene.alpha);
    self.token = "guess";
    int64_t start = tether__clock_now_ns(&tether__clock_system);
    for (int i = 0; i < MANY; i++)
        intrude(&scene, scene.alpha, &self, &said);
    int64_t minutes = (tether__clock_now_ns(&tether__clock_system) - start) / TETHER__LOG_PAUSE_NS;
    assert_in_range(atomic_load(&n_lines), 1, 1 + minutes);
    scene_end(&scene);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
}

static void publish(struct scene *scene,
                    tether_agent *worker,
                    uint64_t incarnation,
                    const char *address)
{
    struct tether__worker_record record = {.id = worker->self.id, .incarnation = incarnation};
    snprintf(record.name, sizeof record.name, "%s", tether_agent_name(worker));
    snprintf(record.address, sizeof record.address, "%s", address);
    assert_int_equal(
        tether__directory_publish(&scene->alpha->directory, &record, -1, NULL, NULL, LIMIT, NULL),
        TETHER_OK);
}

/* Has the directory say that `worker` listens where the intruder does. */
static void misdirect(struct scene *scene, tether_agent *worker, uint64_t incarnation)
{
    publish(scene, worker, incarnation, scene->intruder.transport->address);
}

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

/* A nonce that comes twice would let somebody on the path repeat an old proof. */
static void every_handshake_has_a_random_nonce(void **state)
{
    (void)state;
    struct scene scene;
    struct nonces dialled = {.n = 0}, accepted = {.n = 0};
    scene_start(&scene, "sesame", "127.0.0.1:0");
    struct tether__self eve = impostor(&scene, "eve", 5);
    eve.token = "guess";
    for (size_t i = 0; i < TETHER__ARRAY_LEN(accepted.bytes); i++) {
        struct tether__handshake handshake;
        uint8_t nonce[TETHER__NONCE_SIZE] = {9};
        Tether__Frame frame = TETHER__FRAME__INIT;
        tether__handshake_init(&handshake, &eve, true, "alpha", nonce);
        Tether__Hello1 hello1 = tether__handshake_begin(&handshake);
        struct wire *wire = node_dial(&scene.intruder, tether_agent_address(scene.alpha));
        frame.body_case = TETHER__FRAME__BODY_HELLO1;
        frame.hello1 = &hello1;
        send_frame(wire, &frame);
        wire_await_messages(wire, 1);
        note_nonce(&accepted, wire);
        wire_close(wire, false);
    }
    misdirect(&scene, scene.alpha, scene.alpha->self.incarnation);
    tether_agent *late = start(scene.store, "late", "sesame");
    tether_future *call = tether_rpc_async(late, "alpha", "name", NULL, LIMIT);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(dialled.bytes); i++) {
        struct wire *wire = node_accepted(&scene.intruder, (int)i + 1);
        wire_await_messages(wire, 1);
        note_nonce(&dialled, wire);
        wire_close(wire, false);
    }
    expect_fresh_nonces(&accepted);
    expect_fresh_nonces(&dialled);
    tether_agent_release(late);
    tether_future_release(call);
    scene_end(&scene);
}

/* A worker of an earlier run still listens where one of this run is taken to be. */
static void workers_of_different_runs_never_talk(void **state)
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
        struct tether__worker_record record = {.incarnation = 77};
        snprintf(record.name, sizeof record.name, "ps");
        snprintf(record.address, sizeof record.address, "%s", tether_agent_address(leftover));
        assert_int_equal(
            tether__directory_publish(&caller->directory, &record, -1, NULL, NULL, LIMIT, NULL),
            TETHER_OK);
        tether_error err = {0};
        tether_status st = tether_rpc_sync(caller, "ps", "name", NULL, LIMIT, NULL, &err);
        assert_int_equal(st, TETHER_EPERM);
        assert_non_null(strstr(err.message, "another run"));
        assert_false(atomic_load(&leftover->replaced) || atomic_load(&caller->replaced));
        call_ok(friend, "ps"); /* those of the first run go on */
        tether_agent_release(caller);
        tether_agent_release(friend);
        tether_agent_release(leftover);
        tether_store_release(second);
        tether_store_release(first);
    }
}

/* The rest of the wire protocol, before or instead of a handshake. */
static void anything_but_a_handshake_is_hung_up_on(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "sesame", NULL);
    for (int i = 0; i < 6; i++) {
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__State said = TETHER__STATE__INIT;
        Tether__Hello2 hello2 = TETHER__HELLO2__INIT;
        Tether__Hello3 hello3 = TETHER__HELLO3__INIT;
        Tether__Call call = TETHER__CALL__INIT;
        Tether__Goodbye goodbye = TETHER__GOODBYE__INIT;
        said.from_incarnation = 1;
        said.to_incarnation = scene.alpha->self.incarnation;
        call.id = 1;
        call.function = (char *)"name";
        frame.body_case = TETHER__FRAME__BODY_STATE, frame.state = &said;
        if (i == 1)
            frame.body_case = TETHER__FRAME__BODY_HELLO2, frame.hello2 = &hello2;
        if (i == 2)
            frame.body_case = TETHER__FRAME__BODY_HELLO3, frame.hello3 = &hello3;
        if (i == 3)
            frame.seq = 1, frame.body_case = TETHER__FRAME__BODY_CALL, frame.call = &call;
        if (i == 4)
            frame.body_case = TETHER__FRAME__BODY_GOODBYE, frame.goodbye = &goodbye;
        char large[TETHER__MAX_HELLO_BYTES + 100];
        memset(large, 'x', sizeof large);
        if (i == 5)
            frame.payload = (ProtobufCBinaryData){sizeof large, (uint8_t *)large};
        struct wire *wire = node_dial(&scene.intruder, tether_agent_address(scene.alpha));
        send_frame(wire, &frame);
        wire_await_closed(wire);
    }
    call_ok(scene.delta, "alpha");
    call_ok(scene.alpha, "delta");
    scene_end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impostor_has_no_effect_when_it_claims_a_later_start),
        cmocka_unit_test(stranger_makes_no_peer_whatever_its_name),
        cmocka_unit_test(log_has_one_line_when_many_streams_are_refused),
        cmocka_unit_test(every_handshake_has_a_random_nonce),
        cmocka_unit_test(workers_of_different_runs_never_talk),
        cmocka_unit_test(anything_but_a_handshake_is_hung_up_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
