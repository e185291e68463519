/* The handshake between two ends in memory: which peers are accepted, the fields that each proof is
 * bound to, and attackers that see every message and may change, repeat and reflect it. */
#include <stdio.h>
#include <string.h>

#include "rpc/handshake/handshake.h"
#include "rpc/wire/packed.h"
#include "tests/lib/cmocka.h"

#define RUN "0123456789abcdef0123456789abcdef"
#define OTHER_RUN "fedcba9876543210fedcba9876543210"

static struct tether__self worker(const char *name, uint64_t incarnation, const char *token)
{
    return (struct tether__self){
        .group = "crew", .run = RUN, .name = name, .incarnation = incarnation, .token = token};
}

/* Both ends of one stream. */
struct pair {
    struct tether__self ada, bob; /* ada dials bob */
    struct tether__handshake dialler, listener;
    Tether__Hello1 hello1;
    Tether__Hello2 hello2;
    Tether__Hello3 hello3;
    Tether__State state;
    tether_error err;
};

static void pair_init(struct pair *pair, const char *token, uint8_t seed)
{
    uint8_t nonce_d[TETHER__NONCE_SIZE], nonce_l[TETHER__NONCE_SIZE];
    memset(nonce_d, seed, sizeof nonce_d);
    memset(nonce_l, 0x80 | seed, sizeof nonce_l);
    memset(pair, 0, sizeof *pair);
    pair->ada = worker("ada", 7, token);
    pair->bob = worker("bob", 9, token);
    tether__handshake_init(&pair->dialler, &pair->ada, true, "bob", token ? nonce_d : NULL);
    tether__handshake_init(&pair->listener, &pair->bob, false, "", token ? nonce_l : NULL);
    tether__state__init(&pair->state);
    pair->state.from_incarnation = 7;
}

static tether_status step1(struct pair *pair)
{
    pair->hello1 = tether__handshake_begin(&pair->dialler);
    return tether__handshake_on_hello1(&pair->listener, &pair->hello1, &pair->hello2, &pair->err);
}

static tether_status step2(struct pair *pair)
{
    return tether__handshake_on_hello2(&pair->dialler, &pair->hello2, &pair->err);
}

static tether_status step3(struct pair *pair)
{
    pair->hello3 = tether__handshake_finish(&pair->dialler, &pair->state);
    return tether__handshake_on_hello3(&pair->listener, &pair->hello3, &pair->err);
}

static void both_ends_are_proved_when_they_have_the_same_token(void **state)
{
    (void)state;
    static const char *const tokens[] = {"sesame", NULL};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(tokens); i++) {
        struct pair pair;
        pair_init(&pair, tokens[i], 1);
        assert_int_equal(step1(&pair), TETHER_OK);
        assert_int_equal(step2(&pair), TETHER_OK);
        assert_int_equal(step3(&pair), TETHER_OK);
        assert_int_equal(pair.dialler.proved, tokens[i] != NULL);
        assert_int_equal(pair.listener.proved, tokens[i] != NULL);
        assert_string_equal(pair.listener.peer_name, "ada");
        assert_int_equal(pair.listener.peer_incarnation, 7);
        assert_int_equal(pair.dialler.peer_incarnation, 9);
        assert_int_equal(pair.hello3.mac.len, tokens[i] ? TETHER__MAC_SIZE : 0);
    }
}

static void hello1_is_refused_when_it_is_not_for_this_worker(void **state)
{
    (void)state;
    enum { VERSION, GROUP, RUN_ID, FROM, INCARNATION, TO, NONCE };
    static const struct {
        int field;
        const char *text;
        tether_status status;
    } rows[] = {
        {VERSION, "", TETHER_ENOTSUP},      {GROUP, "other", TETHER_EINVAL},
        {GROUP, "", TETHER_EINVAL},         {RUN_ID, OTHER_RUN, TETHER_EINVAL},
        {RUN_ID, "", TETHER_EINVAL},        {FROM, "", TETHER_EINVAL},
        {FROM, "a\nb", TETHER_EINVAL},      {FROM, "bob", TETHER_EINVAL},
        {INCARNATION, "", TETHER_ECORRUPT}, {TO, "adam", TETHER_EINVAL},
        {NONCE, "", TETHER_EAUTH},          {NONCE, "short", TETHER_ECORRUPT},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct pair pair;
        pair_init(&pair, "sesame", 1);
        char *text = (char *)(uintptr_t)rows[i].text;
        pair.hello1 = tether__handshake_begin(&pair.dialler);
        switch (rows[i].field) {
            case VERSION:
                pair.hello1.version = 1;
                break;
            case GROUP:
                pair.hello1.group = text;
                break;
            case RUN_ID:
                pair.hello1.run = text;
                break;
            case FROM:
                pair.hello1.from_name = text;
                break;
            case INCARNATION:
                pair.hello1.from_incarnation = 0;
                break;
            case TO:
                pair.hello1.to_name = text;
                break;
            case NONCE:
                pair.hello1.nonce = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
                break;
        }
        tether_status st =
            tether__handshake_on_hello1(&pair.listener, &pair.hello1, &pair.hello2, &pair.err);
        if (st != rows[i].status)
            fail_msg("row %zu: %s: %s", i, tether_status_name(st), pair.err.message);
        assert_true(strlen(pair.err.message) > 10);
        assert_int_equal(pair.hello2.mac.len, 0); /* a refused dialler gets no proof */
        assert_int_not_equal(step3(&pair), TETHER_OK);
    }
}

static void token_mismatch_is_noticed_at_both_ends(void **state)
{
    (void)state;
    static const struct {
        const char *ada, *bob;
    } rows[] = {{"sesame", "sesamE"}, {"sesame", "sesamesesame"}, {"sesame", NULL}, {NULL, "x"}};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct pair pair;
        pair_init(&pair, "sesame", 1);
        pair.ada.token = rows[i].ada;
        pair.bob.token = rows[i].bob;
        tether_status st = step1(&pair);
        if (!rows[i].ada || !rows[i].bob) {
            assert_int_equal(st, TETHER_EAUTH);
            continue;
        }
        assert_int_equal(st, TETHER_OK);
        assert_int_equal(step2(&pair), TETHER_EAUTH);
        assert_false(pair.dialler.proved);
        assert_int_equal(step3(&pair), TETHER_EAUTH);
        assert_false(pair.listener.proved);
    }
}

/* Each thing that the proofs are bound to is changed on its way, or was different at one end. */
static void proof_fails_when_a_bound_field_differs(void **state)
{
    (void)state;
    enum { FROM_START, TO_START, FROM_NAME, TO_NAME, RUN_ID, NONCE_D, NONCE_L, CASES };
    for (int i = 0; i < CASES; i++) {
        struct pair pair;
        uint8_t other[TETHER__NONCE_SIZE] = {5};
        pair_init(&pair, "sesame", 1);
        if (i == TO_NAME) /* a third worker answers, and is said to be bob */
            pair.bob.name = "cat";
        if (i == RUN_ID)
            pair.bob.run = OTHER_RUN;
        pair.hello1 = tether__handshake_begin(&pair.dialler);
        pair.hello1.to_name = (char *)(uintptr_t)pair.bob.name;
        pair.hello1.run = (char *)(uintptr_t)pair.bob.run;
        if (i == FROM_START)
            pair.hello1.from_incarnation = 1000;
        if (i == FROM_NAME)
            pair.hello1.from_name = (char *)"eve";
        if (i == NONCE_D)
            pair.hello1.nonce.data = other;
        assert_int_equal(
            tether__handshake_on_hello1(&pair.listener, &pair.hello1, &pair.hello2, &pair.err),
            TETHER_OK);
        pair.hello2.from_name = (char *)"bob";
        if (i == TO_START)
            pair.hello2.from_incarnation = 1000;
        if (i == NONCE_L)
            pair.hello2.nonce.data = other;
        assert_int_equal(step2(&pair), TETHER_EAUTH);
        pair.state.from_incarnation = pair.listener.peer_incarnation;
        assert_int_equal(step3(&pair), TETHER_EAUTH);
        assert_false(pair.dialler.proved || pair.listener.proved);
    }
}

static void proof_fails_when_it_is_of_an_earlier_stream(void **state)
{
    (void)state;
    struct pair first, second;
    pair_init(&first, "sesame", 1);
    assert_int_equal(step1(&first), TETHER_OK);
    assert_int_equal(step2(&first), TETHER_OK);
    assert_int_equal(step3(&first), TETHER_OK);
    /* The listener is new, the dialler's part is repeated. */
    pair_init(&second, "sesame", 2);
    assert_int_equal(
        tether__handshake_on_hello1(&second.listener, &first.hello1, &second.hello2, NULL),
        TETHER_OK);
    assert_int_equal(tether__handshake_on_hello3(&second.listener, &first.hello3, NULL),
                     TETHER_EAUTH);
    /* The dialler is new, the listener's part is repeated. */
    pair_init(&second, "sesame", 2);
    tether__handshake_begin(&second.dialler);
    assert_int_equal(tether__handshake_on_hello2(&second.dialler, &first.hello2, NULL),
                     TETHER_EAUTH);
}

/* An attacker has bob prove what ada asks, by dialling bob itself, or sends back what it was sent.
 */
static void proof_fails_when_it_is_reflected(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, "sesame", 1);
    assert_int_equal(step1(&pair), TETHER_OK);
    Tether__Hello3 reflected = TETHER__HELLO3__INIT;
    reflected.mac = pair.hello2.mac;
    reflected.state = &pair.state;
    assert_int_equal(tether__handshake_on_hello3(&pair.listener, &reflected, NULL), TETHER_EAUTH);
    /* The attacker reflects the dialler's own nonce. */
    pair_init(&pair, "sesame", 1);
    pair.hello1 = tether__handshake_begin(&pair.dialler);
    tether__hello2__init(&pair.hello2);
    pair.hello2.version = TETHER__WIRE_VERSION;
    pair.hello2.from_name = (char *)"bob";
    pair.hello2.from_incarnation = 7;
    pair.hello2.nonce = pair.hello1.nonce;
    assert_int_equal(step2(&pair), TETHER_EAUTH);
}

/* A state for another start than the one that was proved. */
static void hello3_is_refused_when_its_state_is_of_another_start(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, "sesame", 1);
    assert_int_equal(step1(&pair), TETHER_OK);
    assert_int_equal(step2(&pair), TETHER_OK);
    pair.state.from_incarnation = 8;
    assert_int_equal(step3(&pair), TETHER_ECORRUPT);
}

static void refusal_is_the_workers_own_only_with_its_proof(void **state)
{
    (void)state;
    for (int with_mac = 0; with_mac < 2; with_mac++) {
        struct pair pair;
        pair_init(&pair, "sesame", 1);
        assert_int_equal(step1(&pair), TETHER_OK);
        if (!with_mac)
            pair.hello2.mac.len = 0;
        pair.hello2.refused = TETHER_EFENCED; /* which is not taken from a Hello2 */
        pair.hello2.reason = (char *)"no";
        assert_int_equal(step2(&pair), TETHER_EPERM);
        assert_int_equal(pair.dialler.proved, with_mac);
    }
}

static void messages_out_of_turn_are_refused(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, NULL, 0);
    Tether__Hello2 hello2 = TETHER__HELLO2__INIT;
    Tether__Hello3 hello3 = TETHER__HELLO3__INIT;
    assert_int_equal(tether__handshake_on_hello3(&pair.listener, &hello3, NULL), TETHER_ECORRUPT);
    assert_int_equal(tether__handshake_on_hello2(&pair.dialler, &hello2, NULL), TETHER_ECORRUPT);
    assert_int_equal(step1(&pair), TETHER_OK);
    assert_int_equal(step1(&pair), TETHER_ECORRUPT); /* a second Hello1 */
}

/* The token is in no message, and no message is longer than the limit. */
static void token_never_travels(void **state)
{
    (void)state;
    static const char token[] = "a rather long token that would be found";
    struct pair pair;
    pair_init(&pair, token, 1);
    assert_int_equal(step1(&pair), TETHER_OK);
    assert_int_equal(step2(&pair), TETHER_OK);
    assert_int_equal(step3(&pair), TETHER_OK);
    Tether__Frame frames[3];
    for (int i = 0; i < 3; i++)
        tether__frame__init(&frames[i]);
    frames[0].body_case = TETHER__FRAME__BODY_HELLO1, frames[0].hello1 = &pair.hello1;
    frames[1].body_case = TETHER__FRAME__BODY_HELLO2, frames[1].hello2 = &pair.hello2;
    frames[2].body_case = TETHER__FRAME__BODY_HELLO3, frames[2].hello3 = &pair.hello3;
    for (int i = 0; i < 3; i++) {
        struct tether__packed packed;
        const Tether__Frame *read = NULL;
        TETHER__ARENA(arena, 1024);
        assert_int_equal(tether__handshake_pack(&frames[i], &packed), TETHER_OK);
        assert_null(memmem(packed.bytes.data, packed.bytes.len, "long token", 10));
        struct tether__slice message = {packed.bytes.data, packed.bytes.len, NULL};
        assert_int_equal(tether__handshake_read(message, &arena, &read, NULL), TETHER_OK);
        assert_int_equal(read->body_case, frames[i].body_case);
        tether__arena_fini(&arena);
        tether__packed_fini(&packed);
    }
}

static void long_and_malformed_messages_are_refused(void **state)
{
    (void)state;
    static uint8_t bytes[TETHER__MAX_HELLO_BYTES + 1];
    const Tether__Frame *frame = NULL;
    for (size_t len = 0; len <= sizeof bytes; len += len < 64 ? 1 : 4033) {
        TETHER__ARENA(arena, 1024);
        memset(bytes, (int)len, sizeof bytes);
        tether_error err = {0};
        struct tether__slice message = {bytes, len, NULL};
        assert_int_equal(tether__handshake_read(message, &arena, &frame, &err), TETHER_ECORRUPT);
        assert_true(strlen(err.message) > 10);
        tether__arena_fini(&arena);
    }
}

static void higher_start_is_believed_only_with_proof(void **state)
{
    (void)state;
    static const struct {
        bool proved;
        uint64_t claimed, known;
        enum tether__belief belief;
    } rows[] = {
        {true, 5, 0, TETHER__BELIEVED},     {true, 5, 5, TETHER__BELIEVED},
        {true, 6, 5, TETHER__BELIEVED},     {true, 4, 5, TETHER__STALE},
        {false, 5, 5, TETHER__BELIEVED},    {false, 5, 0, TETHER__UNCONFIRMED},
        {false, 6, 5, TETHER__UNCONFIRMED}, {false, 4, 5, TETHER__STALE},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++)
        assert_int_equal(tether__handshake_belief(rows[i].proved, rows[i].claimed, rows[i].known),
                         rows[i].belief);
}

/* The store draws 32 bits, and no number twice. Observers have their clocks' numbers. */
static void start_is_refused_when_no_worker_can_have_it(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t start;
        tether_status status;
    } rows[] = {
        {"ada", UINT32_MAX, TETHER_OK},
        {"ada", (uint64_t)UINT32_MAX + 1, TETHER_ECORRUPT},
        {"ada", UINT64_C(1) << 60, TETHER_ECORRUPT},
        {"ada", 9, TETHER_EINVAL}, /* bob's own */
        {"observer:ada.1", UINT64_MAX, TETHER_OK},
        {"observer:ada.1", 0, TETHER_ECORRUPT},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct pair pair;
        pair_init(&pair, NULL, 1);
        pair.ada.name = rows[i].name;
        pair.ada.incarnation = rows[i].start;
        assert_int_equal(step1(&pair), rows[i].status);
    }
    for (size_t i = 0; i < 3; i++) {
        struct pair pair;
        pair_init(&pair, NULL, 1);
        assert_int_equal(step1(&pair), TETHER_OK);
        pair.hello2.from_incarnation = rows[i].start;
        assert_int_equal(step2(&pair), rows[i].status);
    }
    struct pair pair;
    pair_init(&pair, NULL, 1);
    assert_int_equal(step1(&pair), TETHER_OK);
    pair.hello2.from_incarnation = pair.ada.incarnation;
    assert_int_equal(step2(&pair), TETHER_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_are_proved_when_they_have_the_same_token),
        cmocka_unit_test(hello1_is_refused_when_it_is_not_for_this_worker),
        cmocka_unit_test(token_mismatch_is_noticed_at_both_ends),
        cmocka_unit_test(proof_fails_when_a_bound_field_differs),
        cmocka_unit_test(proof_fails_when_it_is_of_an_earlier_stream),
        cmocka_unit_test(proof_fails_when_it_is_reflected),
        cmocka_unit_test(hello3_is_refused_when_its_state_is_of_another_start),
        cmocka_unit_test(refusal_is_the_workers_own_only_with_its_proof),
        cmocka_unit_test(messages_out_of_turn_are_refused),
        cmocka_unit_test(token_never_travels),
        cmocka_unit_test(long_and_malformed_messages_are_refused),
        cmocka_unit_test(higher_start_is_believed_only_with_proof),
        cmocka_unit_test(start_is_refused_when_no_worker_can_have_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
