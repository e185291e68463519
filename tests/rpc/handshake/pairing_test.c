/* The session: every row of its table, names, and the lease to the nanosecond. How two ends
 * find together in all orders of events is pairing_model_test's. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "rpc/handshake/pairing.h"
#include "tests/lib/cmocka.h"

static const struct tether__self self = {
    .name = "ada",
    .id = 1,
    .incarnation = 10,
    .lease_ms = 3000,
    .max_message_bytes = 1 << 20,
};

static Tether__State proper_state(void)
{
    Tether__State state = TETHER__STATE__INIT;
    state.from_id = 2;
    state.from_incarnation = 20;
    state.to_incarnation = 10;
    state.max_message_bytes = 1 << 20;
    return state;
}

/* ---- The table ---- */

#define ACCEPT TETHER__STATE_ACCEPT
#define ANSWER TETHER__STATE_ANSWER
#define FENCED TETHER__STATE_FENCED
#define BY_PEER TETHER__STATE_FENCED_BY_PEER
#define REJECT TETHER__STATE_REJECT

static void hello_verdict_follows_every_row_of_the_table(void **state)
{
    (void)state;
    /* State before: peer's incarnation, my fence, its fence, whether a stream was up. The hello:
     * its incarnation and fence, my incarnation and fence. Then the verdict, and the state
     * afterwards (peer's incarnation, my fence, its fence). */
    static const struct {
        const char *name;
        struct {
            uint64_t peer, mine, theirs;
            bool met;
        } have;
        struct {
            uint64_t from, from_fence, to, to_fence;
        } says;
        enum tether__state_verdict verdict;
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
        {"a stale incarnation", {21, 1, 2, 1}, {20, 9, 10, 1}, REJECT, 0, {21, 1, 2}},
        {"my incarnation is stale", {20, 1, 2, 1}, {20, 2, 11, 0}, REJECT, 0, {20, 1, 2}},
        {"no incarnation", {20, 1, 2, 1}, {0, 2, 10, 1}, REJECT, 0, {20, 1, 2}},
        {"a huge count", {20, 1, 2, 1}, {20, INT64_MAX, 10, 1}, BY_PEER, 1, {20, 1, INT64_MAX}},
        {"a count far behind", {20, 1, 2, 1}, {20, UINT64_MAX, 10, 1}, ANSWER, 0, {20, 1, 2}},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__pairing pairing;
        tether__pairing_init(&pairing, &self, "bob", 2, rows[i].have.peer);
        pairing.my_fence = rows[i].have.mine;
        pairing.peer_fence = rows[i].have.theirs;
        pairing.met = rows[i].have.met;
        Tether__State peer_state = proper_state();
        peer_state.from_incarnation = rows[i].says.from;
        peer_state.from_fence = rows[i].says.from_fence;
        peer_state.to_incarnation = rows[i].says.to;
        peer_state.to_fence = rows[i].says.to_fence;
        peer_state.received = 42;
        tether_error err = {0};
        struct tether__state_result result = tether__pairing_on_state(&pairing, &peer_state, &err);
        if (result.verdict != rows[i].verdict || result.up != rows[i].up ||
            pairing.peer_incarnation != rows[i].then.peer ||
            pairing.my_fence != rows[i].then.mine || pairing.peer_fence != rows[i].then.theirs)
            fail_msg("%s: verdict %d%s, then %lu %lu %lu: %s", rows[i].name, (int)result.verdict,
                     result.up ? " up" : "", (unsigned long)pairing.peer_incarnation,
                     (unsigned long)pairing.my_fence, (unsigned long)pairing.peer_fence,
                     err.message);
        assert_int_equal(result.received, result.up ? 42 : 0);
        bool changed = rows[i].have.peer != rows[i].then.peer ||
                       rows[i].have.mine != rows[i].then.mine ||
                       rows[i].have.theirs != rows[i].then.theirs;
        assert_int_equal(pairing.version > 1, changed);
        assert_int_equal(err.code != TETHER_OK, rows[i].verdict == REJECT);
    }
}

static void state_is_rejected_when_it_cannot_be_the_peers(void **state)
{
    (void)state;
    const struct {
        uint64_t from, from_fence, to_fence, max, dial;
        uint32_t id;
        tether_status status;
    } rows[] = {
        {0, 0, 0, 1 << 20, 0, 2, TETHER_ECORRUPT},
        {19, 0, 0, 1 << 20, 0, 2, TETHER_EFENCED},
        {20, 0, 0, 1 << 20, 0, 3, TETHER_EINVAL},
        {20, 0, 0, 77, 0, 2, TETHER_EINVAL},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__pairing pairing;
        tether__pairing_init(&pairing, &self, "bob", 2, 20);
        struct tether__pairing before = pairing;
        Tether__State peer_state = proper_state();
        peer_state.from_incarnation = rows[i].from;
        peer_state.from_fence = rows[i].from_fence;
        peer_state.to_fence = rows[i].to_fence;
        peer_state.max_message_bytes = rows[i].max;
        peer_state.dial = rows[i].dial;
        peer_state.from_id = rows[i].id;
        tether_error err = {0};
        struct tether__state_result result = tether__pairing_on_state(&pairing, &peer_state, &err);
        assert_int_equal(result.verdict, TETHER__STATE_REJECT);
        assert_false(result.up);
        assert_int_equal(err.code, rows[i].status);
        assert_memory_equal(&pairing, &before, sizeof pairing);
        assert_int_equal(tether__pairing_check(&pairing, &peer_state, NULL), rows[i].status);
    }
}

/* A refused worker distinguishes only some statuses; all others become TETHER_EPERM. */
static void refusal_keeps_its_status_when_the_protocol_allows_it(void **state)
{
    (void)state;
    static const struct {
        int32_t says;
        tether_status status;
        bool refused, replaced;
    } rows[] = {
        {TETHER_EAUTH, TETHER_EAUTH, true, false},
        {TETHER_EPERM, TETHER_EPERM, true, false},
        {TETHER_EFENCED, TETHER_EFENCED, false, true},
        {TETHER_ECANCELED, TETHER_ECANCELED, false, false},
        {TETHER_EINVAL, TETHER_EPERM, true, false},
        {-1, TETHER_EPERM, true, false},
        {INT32_MAX, TETHER_EPERM, true, false},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__pairing pairing;
        tether__pairing_init(&pairing, &self, "bob", 2, 20);
        Tether__State peer_state = proper_state();
        peer_state.refused = rows[i].says;
        peer_state.reason = (char *)"not today";
        tether_error err = {0};
        struct tether__state_result result = tether__pairing_on_state(&pairing, &peer_state, &err);
        assert_int_equal(result.verdict, TETHER__STATE_REJECT);
        assert_int_equal(err.code, rows[i].status);
        assert_non_null(strstr(err.message, "it refuses this worker: not today"));
        assert_int_equal(result.refused, rows[i].refused);
        assert_int_equal(result.replaced, rows[i].replaced);
    }
}

/* An impostor of bob may have sent a high dial number. The refusal tells bob that number, and bob
 * continues above it.
 */
static void dial_number_is_raised_when_a_refusal_tells_a_higher_one(void **state)
{
    (void)state;
    Tether__State refusal = TETHER__STATE__INIT;
    refusal.refused = TETHER_ECANCELED;
    refusal.dial = 900;
    assert_int_equal(tether__pairing_next_dial(3, &refusal), 900);
    assert_int_equal(tether__pairing_next_dial(901, &refusal), 901);
    refusal.dial = UINT64_C(1) << 62;
    assert_int_equal(tether__pairing_next_dial(3, &refusal), UINT64_C(1) << 62);
    refusal.dial = UINT64_MAX; /* so far ahead that it counts as an earlier number */
    assert_int_equal(tether__pairing_next_dial(3, &refusal), 3);
    assert_int_equal(tether__pairing_next_dial(UINT64_MAX - 1, &refusal), UINT64_MAX);
    refusal.dial = 900;
    refusal.refused = TETHER_EPERM;
    assert_int_equal(tether__pairing_next_dial(3, &refusal), 3);
}

static void stream_is_rejected_when_given_up(void **state)
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
    struct tether__pairing pairing;
    tether__pairing_init(&pairing, &self, "bob", 2, 20);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        Tether__State peer_state = proper_state();
        peer_state.from_incarnation = rows[i].incarnation;
        peer_state.dial = rows[i].dial;
        struct tether__pairing before = pairing;
        tether_error err = {0};
        tether_status st = tether__pairing_check(&pairing, &peer_state, &err);
        assert_int_equal(st, rows[i].good ? TETHER_OK : TETHER_ECANCELED);
        assert_memory_equal(&pairing, &before, sizeof pairing); /* only asked */
        assert_int_equal(tether__pairing_on_state(&pairing, &peer_state, NULL).verdict != REJECT,
                         rows[i].good);
    }
}

static const uint64_t any_numbers[] = {0,
                                       1,
                                       UINT64_C(1) << 32,
                                       (UINT64_C(1) << 63) - 1,
                                       UINT64_C(1) << 63,
                                       (UINT64_C(1) << 63) + 1,
                                       UINT64_MAX - 1,
                                       UINT64_MAX};

/* An impostor of bob has named any number; bob's own dial has any number, too. */
static void dial_is_accepted_in_two_tries_when_impostor_has_named_any_number(void **state)
{
    (void)state;
    for (size_t t = 0; t < TETHER__ARRAY_LEN(any_numbers); t++)
        for (size_t b = 0; b < TETHER__ARRAY_LEN(any_numbers); b++) {
            struct tether__pairing pairing;
            Tether__State claim = proper_state(), refusal = TETHER__STATE__INIT;
            tether__pairing_init(&pairing, &self, "bob", 2, 20);
            pairing.peer_dial = any_numbers[t];
            claim.dial = any_numbers[b];
            if (tether__pairing_check(&pairing, &claim, NULL) != TETHER_OK) {
                refusal.refused = TETHER_ECANCELED;
                refusal.dial = pairing.peer_dial;
                claim.dial = tether__pairing_next_dial(claim.dial, &refusal) + 1;
            }
            assert_int_not_equal(tether__pairing_on_state(&pairing, &claim, NULL).verdict, REJECT);
        }
}

/* Both ends send their states in turn, from counts that an impostor has sent them: both are up
 * after as many states as in a fence. */
static void fence_counts_are_agreed_on_when_impostor_has_named_any_counts(void **state)
{
    (void)state;
    const struct tether__self bob = {.name = "bob", .id = 2, .incarnation = 20, .lease_ms = 3000};
    const size_t n = TETHER__ARRAY_LEN(any_numbers);
    for (size_t i = 0; i < n * n * n * n; i++) {
        struct tether__pairing here, there;
        tether__pairing_init(&here, &self, "bob", 2, 20);
        tether__pairing_init(&there, &bob, "ada", 1, 10);
        here.my_fence = any_numbers[i % n];
        here.peer_fence = any_numbers[i / n % n];
        there.my_fence = any_numbers[i / n / n % n];
        there.peer_fence = any_numbers[i / n / n / n];
        bool is_up_here = false, is_up_there = false;
        for (int n_states = 0; n_states < 6 && !(is_up_here && is_up_there); n_states++) {
            bool from_here = n_states % 2 == 0;
            Tether__State sent = tether__pairing_state(from_here ? &here : &there, 0, 0);
            struct tether__state_result result =
                tether__pairing_on_state(from_here ? &there : &here, &sent, NULL);
            assert_int_not_equal(result.verdict, REJECT);
            *(from_here ? &is_up_there : &is_up_here) = result.up;
        }
        assert_true(is_up_here && is_up_there);
        assert_int_equal(here.my_fence, there.peer_fence);
        assert_int_equal(here.peer_fence, there.my_fence);
    }
}

static void state_contains_the_numbers_of_its_sender(void **state)
{
    (void)state;
    struct tether__self bob = {.name = "bob", .id = 2, .incarnation = 20, .lease_ms = 9000};
    struct tether__pairing pairing, mine;
    tether__pairing_init(&pairing, &bob, "ada", 1, 10);
    tether__pairing_fence(&pairing);
    pairing.peer_fence = 7;
    Tether__State peer_state = tether__pairing_state(&pairing, 4, 33);
    assert_int_equal(peer_state.from_incarnation, 20);
    assert_int_equal(peer_state.from_fence, 1);
    assert_int_equal(peer_state.to_incarnation, 10);
    assert_int_equal(peer_state.to_fence, 7);
    assert_int_equal(peer_state.received, 33);
    assert_int_equal(peer_state.dial, 4);
    tether__pairing_init(&mine, &self, "bob", 0, 0);
    tether__pairing_on_state(&mine, &peer_state, NULL);
    assert_int_equal(mine.lease_ms, 9000); /* the longer of both */
    assert_int_equal(mine.peer_id, 2);
}

static void pairing_takes_restart_from_directory(void **state)
{
    (void)state;
    struct tether__pairing pairing;
    tether__pairing_init(&pairing, &self, "bob", 2, 20);
    tether__pairing_fence(&pairing);
    uint64_t version = pairing.version;
    assert_false(tether__pairing_restarted(&pairing, 5, 20));
    assert_false(tether__pairing_restarted(&pairing, 5, 19));
    assert_int_equal(pairing.version, version);
    assert_true(tether__pairing_restarted(&pairing, 5, 21));
    assert_true(pairing.version > version);
    assert_int_equal(pairing.my_fence, 0);
    Tether__State peer_state = proper_state();
    peer_state.from_incarnation = 21;
    peer_state.from_id = 5;
    assert_int_equal(tether__pairing_on_state(&pairing, &peer_state, NULL).verdict,
                     TETHER__STATE_ACCEPT);
}

static void worker_names_are_validated(void **state)
{
    (void)state;
    char longest[TETHER__MAX_NAME + 2];
    memset(longest, 'x', sizeof longest);
    longest[TETHER__MAX_NAME] = '\0';
    static const char *const good[] = {"a", "worker:0", "A.b_c-d", "0", "AZaz09"};
    static const char *const bad[] = {"",  "a b", "a/b", "a\n", "\xc3\xa4", "a\"b",
                                      "{", "[",   "`",   "@",   "/"};
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

static void lease_sends_pings_by_thirds_and_ends_on_time(void **state)
{
    (void)state;
    const int64_t ms = TETHER__NS_PER_MS, start = 5000 * ms;
    struct tether__pairing pairing;
    tether__pairing_init(&pairing, &self, "bob", 2, 20);
    int64_t next;
    assert_int_equal(tether__pairing_tick(&pairing, start, &next), TETHER__LEASE_FINE);
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
            tether__pairing_heard(&pairing, now);
        assert_int_equal(tether__pairing_tick(&pairing, now, &next), rows[i].verdict);
        assert_int_equal(next, rows[i].next_ms < 0 ? TETHER__NEVER : start + rows[i].next_ms * ms);
    }
    tether__pairing_fence(&pairing);
    assert_int_equal(tether__pairing_tick(&pairing, start + 100000 * ms, &next),
                     TETHER__LEASE_FINE);
    assert_int_equal(next, TETHER__NEVER);
}

static uint32_t lease_of(struct tether__pairing *pairing, uint32_t peers_lease_ms)
{
    Tether__State peer_state = proper_state();
    peer_state.lease_ms = peers_lease_ms;
    tether__pairing_on_state(pairing, &peer_state, NULL);
    return pairing->lease_ms;
}

static void lease_is_the_longer_of_both_up_to_the_bound_of_the_option(void **state)
{
    (void)state;
    struct tether__pairing pairing;
    tether__pairing_init(&pairing, &self, "bob", 2, 20);
    assert_int_equal(lease_of(&pairing, 24 * 3600 * 1000), 24 * 3600 * 1000);
    assert_int_equal(lease_of(&pairing, 24 * 3600 * 1000 + 1), 24 * 3600 * 1000);
    assert_int_equal(lease_of(&pairing, UINT32_MAX), 24 * 3600 * 1000);
    assert_int_equal(lease_of(&pairing, 1), 3000);
}

static void both_ends_have_the_same_lease_when_one_has_the_longest(void **state)
{
    (void)state;
    const struct tether__self patient = {.group = self.group,
                                         .run = self.run,
                                         .name = "bob",
                                         .address = self.address,
                                         .token = self.token,
                                         .id = 2,
                                         .incarnation = 20,
                                         .lease_ms = 24 * 3600 * 1000};
    struct tether__pairing here, there;
    tether__pairing_init(&here, &self, "bob", 2, 20);
    tether__pairing_init(&there, &patient, "alice", 1, 10);
    for (int i = 0; i < 2; i++) {
        Tether__State from_here = tether__pairing_state(&here, 0, 0);
        Tether__State from_there = tether__pairing_state(&there, 0, 0);
        tether_error err = {0};
        if (tether__pairing_on_state(&here, &from_there, &err).verdict == TETHER__STATE_REJECT ||
            tether__pairing_on_state(&there, &from_here, &err).verdict == TETHER__STATE_REJECT)
            fail_msg("%s", err.message);
    }
    assert_int_equal(here.lease_ms, patient.lease_ms);
    assert_int_equal(there.lease_ms, patient.lease_ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_verdict_follows_every_row_of_the_table),
        cmocka_unit_test(state_is_rejected_when_it_cannot_be_the_peers),
        cmocka_unit_test(refusal_keeps_its_status_when_the_protocol_allows_it),
        cmocka_unit_test(dial_number_is_raised_when_a_refusal_tells_a_higher_one),
        cmocka_unit_test(stream_is_rejected_when_given_up),
        cmocka_unit_test(dial_is_accepted_in_two_tries_when_impostor_has_named_any_number),
        cmocka_unit_test(fence_counts_are_agreed_on_when_impostor_has_named_any_counts),
        cmocka_unit_test(state_contains_the_numbers_of_its_sender),
        cmocka_unit_test(pairing_takes_restart_from_directory),
        cmocka_unit_test(worker_names_are_validated),
        cmocka_unit_test(lease_sends_pings_by_thirds_and_ends_on_time),
        cmocka_unit_test(lease_is_the_longer_of_both_up_to_the_bound_of_the_option),
        cmocka_unit_test(both_ends_have_the_same_lease_when_one_has_the_longest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
