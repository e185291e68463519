/* A hostile process that says that it is another worker: it speaks the wire protocol, on loopback,
 * without the group's token or a certificate. None of what it says may have an effect on the
 * workers. */
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
#include "rpc/peer/peer.h"
#include "rpc/wire/wire.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/intruder.h"
#include "tests/rpc/lib/named.h"
#include "tests/rpc/lib/transport_node.h"

#define LIMIT TETHER_TEST_LIMIT_MS

enum { SERVING, TRIED, DONE };

/* The test fills it for the hostile process: all that is known about the workers but the token. */
struct page {
    char address[256], run[TETHER__RUN_SIZE]; /* of alpha */
    uint64_t alpha_start, delta_start;
    uint32_t delta_id;
    bool has_token;
};

static struct page *page_of(struct tether_test_world *world)
{
    _Static_assert(sizeof(struct page) <= sizeof world->page, "the page is too small");
    return (struct page *)world->page;
}

/* ---- The hostile process ---- */

struct intruder {
    struct node node;
    const struct page *page;
};

/* A guessed token, where the group has one. */
static struct tether__self impostor(const struct intruder *intruder,
                                    const char *as,
                                    uint64_t incarnation)
{
    return (struct tether__self){.group = "tether",
                                 .run = intruder->page->run,
                                 .name = as,
                                 .token = intruder->page->has_token ? "guess" : NULL,
                                 .incarnation = incarnation};
}

static Tether__State state_of(const struct intruder *intruder, const struct tether__self *self)
{
    Tether__State state = TETHER__STATE__INIT;
    state.from_incarnation = self->incarnation;
    state.to_incarnation = intruder->page->alpha_start;
    state.dial = 1;
    return state;
}

static struct wire *dial_alpha(struct intruder *intruder,
                               const struct tether__self *who,
                               Tether__State *state)
{
    return intruder_dial(&intruder->node, intruder->page->address, "alpha", who, state);
}

/* Waits until it is hung up on. */
static void intrude(struct intruder *intruder, const struct tether__self *who, Tether__State *state)
{
    wire_await_closed(dial_alpha(intruder, who, state));
}

static void claim_later_starts(struct intruder *intruder)
{
    struct tether__self delta = impostor(intruder, "delta", 1000000); /* of no worker */
    Tether__State claim = state_of(intruder, &delta);
    for (int i = 0; i < 3; i++)
        intrude(intruder, &delta, &claim);
    /* Says that alpha is the one that was replaced. */
    struct tether__self eve = impostor(intruder, "eve", 5);
    claim = state_of(intruder, &eve);
    claim.to_incarnation = 1000000;
    intrude(intruder, &eve, &claim);
    claim = state_of(intruder, &eve);
    claim.refused = TETHER_EFENCED;
    claim.reason = (char *)"replaced";
    intrude(intruder, &eve, &claim);
}

#define N_STEPS 6
static const uint64_t steps[N_STEPS] = {
    UINT32_MAX,        2 * (uint64_t)UINT32_MAX, 3 * (uint64_t)UINT32_MAX,
    UINT64_C(1) << 62, UINT64_C(2) << 62,        UINT64_C(3) << 62};

/* Without a token the present start of delta is believed, see docs/security.md. */
static void name_huge_fences_and_dials(struct intruder *intruder)
{
    struct tether__self delta = impostor(intruder, "delta", intruder->page->delta_start);
    Tether__State claim = state_of(intruder, &delta);
    claim.from_id = intruder->page->delta_id;
    for (int i = 0; i < N_STEPS; i++) {
        claim.from_fence = claim.dial = steps[i];
        wire_await_either(dial_alpha(intruder, &delta, &claim), 2);
    }
}

static void say_hello_under_many_names(struct intruder *intruder)
{
    for (int i = 0; i < 100; i++) {
        char as[32];
        snprintf(as, sizeof as, "intruder%d", i);
        struct tether__self self = impostor(intruder, as, 1 + (uint64_t)i);
        Tether__State claim = state_of(intruder, &self);
        intrude(intruder, &self, &claim);
    }
}

static void be_refused_often(struct intruder *intruder)
{
    struct tether__self self = impostor(intruder, "intruder", 1);
    Tether__State claim = state_of(intruder, &self);
    for (int i = 0; i < 200; i++)
        intrude(intruder, &self, &claim);
}

/* The rest of the wire protocol, before or instead of a handshake. */
static void say_anything_but_a_handshake(struct intruder *intruder)
{
    for (int i = 0; i < 6; i++) {
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__State claim = TETHER__STATE__INIT;
        Tether__Hello2 hello2 = TETHER__HELLO2__INIT;
        Tether__Hello3 hello3 = TETHER__HELLO3__INIT;
        Tether__Call call = TETHER__CALL__INIT;
        Tether__Goodbye goodbye = TETHER__GOODBYE__INIT;
        claim.from_incarnation = 1;
        claim.to_incarnation = intruder->page->alpha_start;
        call.id = 1;
        call.function = (char *)"name";
        frame.body_case = TETHER__FRAME__BODY_STATE, frame.state = &claim;
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
        struct wire *wire = node_dial(&intruder->node, intruder->page->address);
        intruder_send(wire, &frame);
        wire_await_closed(wire);
    }
}

static const struct {
    const char *name;
    void (*run)(struct intruder *intruder);
} scripts[] = {
    {"later starts", claim_later_starts},       {"huge numbers", name_huge_fences_and_dials},
    {"many names", say_hello_under_many_names}, {"many refusals", be_refused_often},
    {"anything", say_anything_but_a_handshake},
};

/* Streams that it has got stay open until the test is done. */
TETHER_PROC_ROLE(hostile)
{
    struct intruder intruder = {.page = page_of(self->world)};
    tether_test_await_mark(self->world, SERVING, 1);
    node_start(&intruder.node, &(struct tether__transport_opts){0});
    atomic_store(&intruder.node.mute, true);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(scripts); i++)
        if (strcmp(self->arg, scripts[i].name) == 0)
            scripts[i].run(&intruder);
    tether_test_mark(self->world, TRIED);
    tether_test_await_mark(self->world, DONE, 1);
    node_stop(&intruder.node);
}

/* ---- The workers ---- */

static tether_agent *start(tether_store *store, const char *worker, const char *token)
{
    return named_start(TETHER_AGENT_OPTS(.store = store, .name = worker, .token = token,
                                         .threads = 1, .lease_ms = LIMIT, .no_unix_socket = true));
}

/* Two workers that know each other, and the hostile process. */
struct scene {
    tether_store *store;
    tether_agent *alpha, *delta;
    struct tether_test_procs *procs;
};

/* `script`: of the hostile process. */
static void scene_start(struct scene *scene, const char *token, const char *script)
{
    scene->procs =
        tether_test_procs_start(hostile, .ranks = 1, .arg = script, .timeout_ms = 2 * LIMIT);
    assert_int_equal(tether_store_hash_new(&scene->store, NULL), TETHER_OK);
    scene->alpha = start(scene->store, "alpha", token);
    scene->delta = start(scene->store, "delta", token);
    named_call(scene->delta, "alpha");
    named_call(scene->alpha, "delta");
    struct page *page = page_of(scene->procs->world);
    memcpy(page->run, scene->alpha->directory.run, sizeof page->run);
    snprintf(page->address, sizeof page->address, "%s", tether_agent_address(scene->alpha));
    page->alpha_start = scene->alpha->self.incarnation;
    page->delta_start = scene->delta->self.incarnation;
    page->delta_id = scene->delta->self.id;
    page->has_token = token;
}

/* Lets the hostile process try. */
static void let_try(struct scene *scene)
{
    tether_test_mark(scene->procs->world, SERVING);
}

static bool have_called_and_tried(struct scene *scene)
{
    bool tried = atomic_load(&scene->procs->world->marks[TRIED]) > 0;
    named_call(scene->alpha, "delta");
    named_call(scene->delta, "alpha");
    return tried;
}

/* Has the workers call each other while the hostile process tries, and once more. */
static void call_until_tried(struct scene *scene)
{
    let_try(scene);
    assert_eventually(have_called_and_tried(scene));
    assert_false(atomic_load(&scene->alpha->replaced) || atomic_load(&scene->delta->replaced));
}

static void scene_end(struct scene *scene)
{
    tether_test_mark(scene->procs->world, DONE);
    tether_test_procs_end(scene->procs);
    tether_agent_release(scene->delta);
    tether_agent_release(scene->alpha);
    tether_store_release(scene->store);
}

/* ---- Claims ---- */

static void impostor_has_no_effect_when_it_claims_a_later_start(void **state)
{
    (void)state;
    static const char *const tokens[] = {NULL, "sesame"};
    for (size_t t = 0; t < TETHER__ARRAY_LEN(tokens); t++) {
        struct scene scene;
        scene_start(&scene, tokens[t], "later starts");
        call_until_tried(&scene);
        scene_end(&scene);
    }
}

/* The numbers that alpha has for delta. */
struct numbers {
    uint64_t session, peer_fence, peer_dial;
};

static struct numbers numbers_at_alpha(const struct scene *scene)
{
    struct tether__peer *peer = tether__agent_find_peer(scene->alpha, "delta");
    assert_non_null(peer);
    tether__peer_lock(peer);
    struct numbers numbers = {peer->session_number, peer->pairing.peer_fence,
                              peer->pairing.peer_dial};
    tether__peer_unlock(peer);
    tether__peer_release(peer);
    return numbers;
}

static void impostor_has_no_effect_when_it_names_huge_fences_and_dials(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "sesame", "huge numbers");
    struct numbers before = numbers_at_alpha(&scene);
    call_until_tried(&scene);
    struct numbers after = numbers_at_alpha(&scene);
    assert_int_equal(after.session, before.session);
    assert_int_equal(after.peer_fence, before.peer_fence);
    assert_int_equal(after.peer_dial, before.peer_dial);
    scene_end(&scene);
}

static bool may_call(tether_agent *from, const char *to)
{
    return tether_rpc_sync(from, to, "name", NULL, LIMIT, NULL, NULL) == TETHER_OK;
}

/* Without a token the hostile process can end the session of alpha and delta, and take its
 * stream. The numbers go on from where it has left them. */
static void worker_recovers_when_impostor_names_huge_fences_and_dials(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, NULL, "huge numbers");
    struct numbers before = numbers_at_alpha(&scene);
    let_try(&scene);
    tether_test_await_mark(scene.procs->world, TRIED, 1);
    struct numbers after = numbers_at_alpha(&scene);
    assert_true(after.session > before.session);
    assert_in_range(after.peer_fence, steps[N_STEPS - 1], UINT64_MAX);
    assert_in_range(after.peer_dial, steps[N_STEPS - 1], UINT64_MAX);
    assert_eventually(may_call(scene.alpha, "delta"));
    assert_eventually(may_call(scene.delta, "alpha"));
    struct numbers recovered = numbers_at_alpha(&scene);
    for (int i = 0; i < 10; i++) {
        named_call(scene.alpha, "delta");
        named_call(scene.delta, "alpha");
    }
    assert_int_equal(numbers_at_alpha(&scene).session, recovered.session);
    scene_end(&scene);
}

static size_t n_peers(tether_agent *agent)
{
    pthread_mutex_lock(&agent->mu);
    size_t n = agent->n_peers;
    pthread_mutex_unlock(&agent->mu);
    return n;
}

static void unauthenticated_client_creates_no_peer_for_any_name(void **state)
{
    (void)state;
    static const char *const tokens[] = {NULL, "sesame"};
    for (size_t t = 0; t < TETHER__ARRAY_LEN(tokens); t++) {
        struct scene scene;
        scene_start(&scene, tokens[t], "many names");
        size_t before = n_peers(scene.alpha);
        call_until_tried(&scene);
        assert_int_equal(n_peers(scene.alpha), before);
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
    static atomic_int n_lines;
    struct scene scene;
    tether_set_log(TETHER_LOG_WARN, count_refusals, &n_lines);
    scene_start(&scene, "sesame", "many refusals");
    int64_t start = tether__clock_now_ns(&tether__clock_system);
    call_until_tried(&scene);
    int64_t minutes = (tether__clock_now_ns(&tether__clock_system) - start) / TETHER__LOG_PAUSE_NS;
    assert_in_range(atomic_load(&n_lines), 1, 1 + minutes);
    scene_end(&scene);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
}

static void connection_is_closed_when_first_message_is_no_handshake(void **state)
{
    (void)state;
    struct scene scene;
    scene_start(&scene, "sesame", "anything");
    call_until_tried(&scene);
    scene_end(&scene);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impostor_has_no_effect_when_it_claims_a_later_start),
        cmocka_unit_test(impostor_has_no_effect_when_it_names_huge_fences_and_dials),
        cmocka_unit_test(worker_recovers_when_impostor_names_huge_fences_and_dials),
        cmocka_unit_test(unauthenticated_client_creates_no_peer_for_any_name),
        cmocka_unit_test(log_has_one_line_when_many_streams_are_refused),
        cmocka_unit_test(connection_is_closed_when_first_message_is_no_handshake),
    };
    return cmocka_run_group_tests_name("impostor", tests, NULL, NULL);
}
