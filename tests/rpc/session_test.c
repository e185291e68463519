/* The session: every row of its table, names, tokens, and the lease to the nanosecond. How two ends
 * find together in all orders of events is session_model_test's. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "protos/rpc.pb-c.h"
#include "rpc/session.h"
#include "rpc/wire.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

static const struct tether__self self = {
    .group = "crew",
    .name = "ada",
    .address = "127.0.0.1:1",
    .token = "secret",
    .id = 1,
    .incarnation = 10,
    .lease_ms = 3000,
    .max_message_bytes = 1 << 20,
};

static Tether__Hello proper_hello(void)
{
    Tether__Hello hello = TETHER__HELLO__INIT;
    hello.version = 1;
    hello.group = (char *)"crew";
    hello.from_name = (char *)"bob";
    hello.from_id = 2;
    hello.from_incarnation = 20;
    hello.to_name = (char *)"ada";
    hello.to_incarnation = 10;
    hello.token = (char *)"secret";
    hello.address = (char *)"127.0.0.1:2";
    hello.max_message_bytes = 1 << 20;
    return hello;
}

static struct tether__hello_result hear(struct tether__session *session,
                                        const Tether__Hello *hello,
                                        tether_error *reterr)
{
    tether_buf body = TETHER_BUF_INIT;
    assert_int_equal(tether__wire_pack(&body, &hello->base), TETHER_OK);
    struct tether__hello_result result =
        tether__session_on_hello(session, tether_buf_bytes(&body), reterr);
    tether_buf_fini(&body);
    return result;
}

/* ---- The table ---- */

#define ACCEPT TETHER__HELLO_ACCEPT
#define ANSWER TETHER__HELLO_ANSWER
#define FENCED TETHER__HELLO_FENCED
#define BY_PEER TETHER__HELLO_FENCED_BY_PEER
#define REJECT TETHER__HELLO_REJECT

static void every_row_of_the_table(void **state)
{
    (void)state;
    /* What I have: peer's incarnation, my fence, its fence, whether a stream was up. What the hello
     * names: its incarnation and fence, my incarnation and fence. What comes of it, and the numbers
     * (peer's incarnation, my fence, its fence) that I have then. */
    static const struct {
        const char *name;
        struct {
            uint64_t peer, mine, theirs;
            bool met;
        } have;
        struct {
            uint64_t from, from_fence, to, to_fence;
        } says;
        enum tether__hello_verdict verdict;
        bool up;
        struct {
            uint64_t peer, mine, theirs;
        } then;
    } rows[] = {
        {"first meeting, it knows me", {0, 0, 0, 0}, {20, 0, 10, 0}, ACCEPT, 1, {20, 0, 0}},
        {"first meeting, it knows nothing", {0, 0, 0, 0}, {20, 0, 0, 0}, ANSWER, 0, {20, 0, 0}},
        {"first meeting, knew my last start", {0, 0, 0, 0}, {20, 3, 9, 4}, ANSWER, 0, {20, 0, 0}},
        {"known from the directory", {20, 0, 0, 0}, {20, 0, 10, 0}, ACCEPT, 1, {20, 0, 0}},
        {"directory was behind", {19, 0, 0, 0}, {20, 0, 10, 0}, FENCED, 1, {20, 0, 0}},
        {"same session", {20, 1, 2, 1}, {20, 2, 10, 1}, ACCEPT, 1, {20, 1, 2}},
        {"it was restarted and knows me", {19, 4, 5, 1}, {20, 0, 10, 0}, FENCED, 1, {20, 0, 0}},
        {"it was restarted, knows nothing", {19, 4, 5, 1}, {20, 0, 0, 0}, FENCED, 0, {20, 0, 0}},
        {"it was restarted and fenced me", {19, 4, 5, 1}, {20, 1, 10, 0}, FENCED, 1, {20, 0, 1}},
        {"it gave me up", {20, 1, 2, 1}, {20, 3, 10, 1}, BY_PEER, 1, {20, 1, 3}},
        {"it gave me up twice", {20, 1, 2, 1}, {20, 4, 10, 1}, BY_PEER, 1, {20, 1, 4}},
        {"it gave me up before we met", {20, 0, 0, 0}, {20, 1, 10, 0}, ACCEPT, 1, {20, 0, 1}},
        {"both gave up", {20, 2, 2, 0}, {20, 3, 10, 1}, ANSWER, 0, {20, 2, 3}},
        {"it has not heard that I fenced it", {20, 2, 0, 0}, {20, 0, 10, 1}, ANSWER, 0, {20, 2, 0}},
        {"it has not heard of my new start", {20, 0, 0, 0}, {20, 7, 9, 8}, ANSWER, 0, {20, 0, 0}},
        {"its hello was overtaken", {20, 0, 3, 1}, {20, 2, 10, 0}, ANSWER, 0, {20, 0, 3}},
        {"it remembers a fence, I don't", {20, 0, 0, 1}, {20, 0, 10, 5}, BY_PEER, 1, {20, 5, 0}},
        {"a ghost", {21, 1, 2, 1}, {20, 9, 10, 1}, REJECT, 0, {21, 1, 2}},
        {"I am the ghost", {20, 1, 2, 1}, {20, 2, 11, 0}, REJECT, 0, {20, 1, 2}},
        {"no incarnation", {20, 1, 2, 1}, {0, 2, 10, 1}, REJECT, 0, {20, 1, 2}},
        {"an absurd count", {20, 1, 2, 1}, {20, UINT64_MAX, 10, 1}, REJECT, 0, {20, 1, 2}},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__session session;
        tether__session_init(&session, &self, "bob", 2, rows[i].have.peer);
        session.my_fence = rows[i].have.mine;
        session.peer_fence = rows[i].have.theirs;
        session.met = rows[i].have.met;
        Tether__Hello hello = proper_hello();
        hello.from_incarnation = rows[i].says.from;
        hello.from_fence = rows[i].says.from_fence;
        hello.to_incarnation = rows[i].says.to;
        hello.to_fence = rows[i].says.to_fence;
        hello.received = 42;
        tether_error err = {0};
        struct tether__hello_result result = hear(&session, &hello, &err);
        if (result.verdict != rows[i].verdict || result.up != rows[i].up ||
            session.peer_incarnation != rows[i].then.peer ||
            session.my_fence != rows[i].then.mine || session.peer_fence != rows[i].then.theirs)
            fail_msg("%s: verdict %d%s, then %lu %lu %lu: %s", rows[i].name, (int)result.verdict,
                     result.up ? " up" : "", (unsigned long)session.peer_incarnation,
                     (unsigned long)session.my_fence, (unsigned long)session.peer_fence,
                     err.message);
        assert_int_equal(result.received, result.up ? 42 : 0);
        bool changed = rows[i].have.peer != rows[i].then.peer ||
                       rows[i].have.mine != rows[i].then.mine ||
                       rows[i].have.theirs != rows[i].then.theirs;
        assert_int_equal(session.epoch > 1, changed);
        assert_int_equal(err.code != TETHER_OK, rows[i].verdict == REJECT);
    }
}

static void strangers_are_rejected(void **state)
{
    (void)state;
    char long_name[TETHER__MAX_NAME + 2], long_address[TETHER__MAX_ADDRESS + 2];
    memset(long_name, 'n', sizeof long_name - 1);
    memset(long_address, 'a', sizeof long_address - 1);
    long_name[sizeof long_name - 1] = long_address[sizeof long_address - 1] = '\0';

    enum { VERSION, GROUP, TO, FROM, TOKEN, ADDRESS, ID, MAX };
    static const char *absent = "";
    const struct {
        int field;
        const char *text;
        uint32_t number;
        tether_status status;
        bool peek_passes; /* only who knows the peer can tell */
    } rows[] = {
        {VERSION, NULL, 0, TETHER_ENOTSUP, false},
        {VERSION, NULL, 2, TETHER_ENOTSUP, false},
        {GROUP, "other", 0, TETHER_EINVAL, false},
        {GROUP, absent, 0, TETHER_EINVAL, false},
        {TO, "adam", 0, TETHER_EINVAL, false},
        {FROM, "bo", 0, TETHER_EINVAL, true},
        {FROM, "bob ", 0, TETHER_EINVAL, false},
        {FROM, absent, 0, TETHER_EINVAL, false},
        {FROM, long_name, 0, TETHER_EINVAL, false},
        {TOKEN, absent, 0, TETHER_EAUTH, false},
        {TOKEN, "secre", 0, TETHER_EAUTH, false},
        {TOKEN, "secret2", 0, TETHER_EAUTH, false},
        {TOKEN, "secretsecret", 0, TETHER_EAUTH, false},
        {TOKEN, "Secret", 0, TETHER_EAUTH, false},
        {ADDRESS, long_address, 0, TETHER_ECORRUPT, false},
        {ID, NULL, 3, TETHER_EINVAL, true},
        {MAX, NULL, 77, TETHER_EINVAL, false},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__session session;
        tether__session_init(&session, &self, "bob", 2, 20);
        struct tether__session before = session;
        Tether__Hello hello = proper_hello();
        char *text = (char *)(uintptr_t)rows[i].text;
        switch (rows[i].field) {
            case VERSION:
                hello.version = rows[i].number;
                break;
            case GROUP:
                hello.group = text;
                break;
            case TO:
                hello.to_name = text;
                break;
            case FROM:
                hello.from_name = text;
                break;
            case TOKEN:
                hello.token = text;
                break;
            case ADDRESS:
                hello.address = text;
                break;
            case ID:
                hello.from_id = rows[i].number;
                break;
            case MAX:
                hello.max_message_bytes = rows[i].number;
                break;
        }
        tether_error err = {0};
        struct tether__hello_result result = hear(&session, &hello, &err);
        assert_int_equal(result.verdict, TETHER__HELLO_REJECT);
        assert_false(result.up);
        assert_int_equal(err.code, rows[i].status);
        assert_memory_equal(&session, &before, sizeof session);

        tether_buf body = TETHER_BUF_INIT;
        assert_int_equal(tether__wire_pack(&body, &hello.base), TETHER_OK);
        struct tether__hello_peek peek;
        tether_status st = tether__hello_peek(&self, tether_buf_bytes(&body), &peek, NULL);
        assert_int_equal(st, rows[i].peek_passes ? TETHER_OK : rows[i].status);
        tether_buf_fini(&body);
    }
}

static void a_stream_given_up_is_rejected(void **state)
{
    (void)state;
    static const struct {
        uint64_t incarnation, dial;
        bool good;
    } rows[] = {
        {20, 2, true}, {20, 1, false}, {20, 2, true}, /* says hello twice on one stream */
        {20, 0, true},                                /* on one that I dialled */
        {20, 7, true}, {20, 6, false}, {21, 1, true}, /* a new start counts anew */
        {21, 2, true}, {21, 1, false},
    };
    struct tether__session session;
    tether__session_init(&session, &self, "bob", 2, 20);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        Tether__Hello hello = proper_hello();
        hello.from_incarnation = rows[i].incarnation;
        hello.dial = rows[i].dial;
        tether_buf body = TETHER_BUF_INIT;
        assert_int_equal(tether__wire_pack(&body, &hello.base), TETHER_OK);
        struct tether__session before = session;
        tether_error err = {0};
        tether_status st = tether__session_check(&session, tether_buf_bytes(&body), &err);
        assert_int_equal(st, rows[i].good ? TETHER_OK : TETHER_ECANCELED);
        assert_memory_equal(&session, &before, sizeof session); /* only asked */
        tether_buf_fini(&body);
        assert_int_equal(hear(&session, &hello, NULL).verdict != REJECT, rows[i].good);
    }
}

static void a_group_without_a_token_takes_none(void **state)
{
    (void)state;
    struct tether__self open = self;
    open.token = NULL;
    open.max_message_bytes = 0; /* not compared */
    struct tether__session session;
    tether__session_init(&session, &open, "bob", 2, 20);
    Tether__Hello hello = proper_hello();
    tether_error err = {0};
    assert_int_equal(hear(&session, &hello, &err).verdict, TETHER__HELLO_REJECT);
    assert_int_equal(err.code, TETHER_EAUTH);
    hello.token = (char *)"";
    assert_int_equal(hear(&session, &hello, &err).verdict, TETHER__HELLO_ACCEPT);
}

static void garbage_is_rejected(void **state)
{
    (void)state;
    static const char *const bytes[] = {"", "\xff", "\x12\x7f",
                                        "\x08\x01\x12\x05"
                                        "ab"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(bytes); i++) {
        struct tether__session session;
        tether__session_init(&session, &self, "bob", 2, 20);
        tether_error err = {0};
        assert_int_equal(
            tether__session_on_hello(&session, tether_bytes_str(bytes[i]), &err).verdict,
            TETHER__HELLO_REJECT);
        assert_int_not_equal(err.code, TETHER_OK);
        assert_true(strlen(err.message) > 10);
    }
}

static void a_hello_says_who_it_is_from(void **state)
{
    (void)state;
    struct tether__self bob = {.group = "crew",
                               .name = "bob",
                               .address = "unix:/x",
                               .id = 2,
                               .incarnation = 20,
                               .lease_ms = 9000,
                               .token = "secret"};
    struct tether__session session;
    tether__session_init(&session, &bob, "ada", 1, 10);
    tether__session_fence(&session);
    session.peer_fence = 7;
    tether_buf body = TETHER_BUF_INIT;
    assert_int_equal(tether__session_hello(&session, 4, 33, &body), TETHER_OK);
    struct tether__hello_peek peek;
    assert_int_equal(tether__hello_peek(&self, tether_buf_bytes(&body), &peek, NULL), TETHER_OK);
    assert_string_equal(peek.from_name, "bob");
    assert_string_equal(peek.address, "unix:/x");
    assert_int_equal(peek.from_id, 2);
    assert_int_equal(peek.from_incarnation, 20);

    Tether__Hello *hello = tether__hello__unpack(NULL, body.len, (uint8_t *)body.data);
    assert_int_equal(hello->from_fence, 1);
    assert_int_equal(hello->to_incarnation, 10);
    assert_int_equal(hello->to_fence, 7);
    assert_int_equal(hello->received, 33);
    assert_int_equal(hello->dial, 4);
    tether__hello__free_unpacked(hello, NULL);

    struct tether__session mine;
    tether__session_init(&mine, &self, "bob", 0, 0);
    tether__session_on_hello(&mine, tether_buf_bytes(&body), NULL);
    assert_int_equal(mine.lease_ms, 9000); /* the longer of both */
    assert_int_equal(mine.peer_id, 2);
    tether_buf_fini(&body);
}

static void the_directory_may_tell_of_a_restart(void **state)
{
    (void)state;
    struct tether__session session;
    tether__session_init(&session, &self, "bob", 2, 20);
    tether__session_fence(&session);
    uint64_t epoch = session.epoch;
    assert_false(tether__session_restarted(&session, 5, 20));
    assert_false(tether__session_restarted(&session, 5, 19));
    assert_int_equal(session.epoch, epoch);
    assert_true(tether__session_restarted(&session, 5, 21));
    assert_true(session.epoch > epoch);
    assert_int_equal(session.my_fence, 0);
    Tether__Hello hello = proper_hello();
    hello.from_incarnation = 21;
    hello.from_id = 5;
    assert_int_equal(hear(&session, &hello, NULL).verdict, TETHER__HELLO_ACCEPT);
}

static void names(void **state)
{
    (void)state;
    char longest[TETHER__MAX_NAME + 2];
    memset(longest, 'x', sizeof longest);
    longest[TETHER__MAX_NAME] = '\0';
    static const char *const good[] = {"a", "worker:0", "A.b_c-d", "0"};
    static const char *const bad[] = {"", "a b", "a/b", "a\n", "\xc3\xa4", "a\"b", "{"};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(good); i++)
        assert_true(tether__name_valid(good[i]));
    for (size_t i = 0; i < TETHER__ARRAY_LEN(bad); i++)
        assert_false(tether__name_valid(bad[i]));
    assert_true(tether__name_valid(longest));
    longest[TETHER__MAX_NAME] = 'x';
    longest[TETHER__MAX_NAME + 1] = '\0';
    assert_false(tether__name_valid(longest));
}

/* ---- The lease ---- */

static void the_lease_pings_by_thirds_and_ends_exactly(void **state)
{
    (void)state;
    const int64_t ms = TETHER__NS_PER_MS, start = 5000 * ms;
    struct tether__session session;
    tether__session_init(&session, &self, "bob", 2, 20);
    int64_t next;
    assert_int_equal(tether__session_tick(&session, start, &next), TETHER__LEASE_FINE);
    assert_int_equal(next, TETHER__NEVER); /* not met yet: no lease */

    static const struct {
        int64_t at_ms, minus_ns;
        bool heard; /* just before */
        enum tether__lease_verdict verdict;
        int64_t next_ms; /* after the start; -1: never */
    } rows[] = {
        {0, 0, true, TETHER__LEASE_FINE, 1000},     {1000, 1, false, TETHER__LEASE_FINE, 1000},
        {1000, 0, false, TETHER__LEASE_PING, 2000}, {1500, 0, false, TETHER__LEASE_FINE, 2000},
        {2000, 0, false, TETHER__LEASE_PING, 3000}, {2500, 0, true, TETHER__LEASE_FINE, 3500},
        {3500, 0, false, TETHER__LEASE_PING, 4500}, {4700, 0, false, TETHER__LEASE_PING, 5500},
        {5500, 1, false, TETHER__LEASE_FINE, 5500}, {5500, 0, false, TETHER__LEASE_OVER, -1},
        {5600, 0, false, TETHER__LEASE_OVER, -1},   {5700, 0, true, TETHER__LEASE_FINE, 6700},
        {99999, 0, false, TETHER__LEASE_OVER, -1},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        int64_t now = start + rows[i].at_ms * ms - rows[i].minus_ns;
        if (rows[i].heard)
            tether__session_heard(&session, now);
        assert_int_equal(tether__session_tick(&session, now, &next), rows[i].verdict);
        assert_int_equal(next, rows[i].next_ms < 0 ? TETHER__NEVER : start + rows[i].next_ms * ms);
    }
    tether__session_fence(&session);
    assert_int_equal(tether__session_tick(&session, start + 100000 * ms, &next),
                     TETHER__LEASE_FINE);
    assert_int_equal(next, TETHER__NEVER);
}

static void nobody_can_ask_for_an_endless_lease(void **state)
{
    (void)state;
    struct tether__session session;
    tether__session_init(&session, &self, "bob", 2, 20);
    Tether__Hello hello = proper_hello();
    hello.lease_ms = UINT32_MAX;
    hear(&session, &hello, NULL);
    assert_int_equal(session.lease_ms, 3600 * 1000);
    hello.lease_ms = 1;
    hear(&session, &hello, NULL);
    assert_int_equal(session.lease_ms, 3000);
}

static tether_status say_and_hear(void *userdata)
{
    (void)userdata;
    char token[2000]; /* more than the arena on the stack */
    memset(token, 't', sizeof token - 1);
    token[sizeof token - 1] = '\0';
    struct tether__self ada = self, bob = {.group = "crew",
                                           .name = "bob",
                                           .address = "b",
                                           .id = 2,
                                           .incarnation = 20,
                                           .lease_ms = 1};
    ada.token = bob.token = token;
    struct tether__session mine, theirs;
    tether__session_init(&mine, &ada, "bob", 2, 20);
    tether__session_init(&theirs, &bob, "ada", 1, 10);
    tether_buf body = TETHER_BUF_INIT;
    tether_status st = tether__session_hello(&theirs, 1, 0, &body);
    tether_error err = {0};
    if (st == TETHER_OK) {
        struct tether__hello_result result =
            tether__session_on_hello(&mine, tether_buf_bytes(&body), &err);
        st = result.verdict == TETHER__HELLO_ACCEPT ? TETHER_OK : err.code;
    }
    tether_buf_fini(&body);
    return st;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    tether_test_heap_fail_each(say_and_hear, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_table),
        cmocka_unit_test(strangers_are_rejected),
        cmocka_unit_test(a_stream_given_up_is_rejected),
        cmocka_unit_test(a_group_without_a_token_takes_none),
        cmocka_unit_test(garbage_is_rejected),
        cmocka_unit_test(a_hello_says_who_it_is_from),
        cmocka_unit_test(the_directory_may_tell_of_a_restart),
        cmocka_unit_test(names),
        cmocka_unit_test(the_lease_pings_by_thirds_and_ends_exactly),
        cmocka_unit_test(nobody_can_ask_for_an_endless_lease),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
