/* The state: its encoded size, malformed bytes, and the assignment of ranks (seed class
 * RendezvousStateTest). */
#include <stdio.h>
#include <string.h>

#include "rendezvous/elastic/rules/codec.h"
#include "tests/lib/heap.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

static void test_encoded_size_is_within_expected_limit(void **test_state)
{
    (void)test_state;
    static const struct {
        int num_nodes;
        size_t max_bytes;
    } limits[] = {{5, 2 << 10}, {50, 16 << 10}, {500, 160 << 10}, {5000, 1600 << 10}};
    struct tether__rdzv_state state;
    tether__rdzv_state_init(&state);
    state.round = 1;
    state.complete = true;
    state.deadline = 77 * S;
    state.closed = true;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(limits); i++) {
        for (int n = 0; n < limits[i].num_nodes; n++) {
            char running[64], waiting[64];
            snprintf(running, sizeof running, "dummy%d.dummy1-dummy1-dummy1-dummy1.com", n);
            snprintf(waiting, sizeof waiting, "dummy%d.dummy2-dummy2-dummy2-dummy2.com", n);
            struct tether__rdzv_node a = {running, 12345, n}, b = {waiting, 67890, n};
            struct tether__rdzv_member *member = tether__rdzv_roster_add(&state.participants, &a);
            assert_non_null(member);
            member->rank = n;
            assert_non_null(tether__rdzv_roster_add(&state.wait_list, &b));
        }
        tether_buf bytes = TETHER_BUF_INIT;
        assert_int_equal(tether__rdzv_state_encode(&state, 0, &bytes, NULL), TETHER_OK);
        if (bytes.len > limits[i].max_bytes)
            fail_msg("%d nodes of each kind take %zu bytes", limits[i].num_nodes, bytes.len);
        print_message("%d nodes of each kind: %zu bytes of %zu\n", limits[i].num_nodes, bytes.len,
                      limits[i].max_bytes);
        tether_buf_fini(&bytes);
    }
    tether__rdzv_state_fini(&state);
}

static void fill(struct tether__rdzv_state *state)
{
    tether__rdzv_state_init(state);
    state->round = 7;
    state->complete = true;
    state->closed = true;
    state->world_size = 3;
    state->deadline = 12 * S;
    state->last_calls = 9;
    state->term = 4;
    state->applied = 1234;
    put_in(&state->participants, "dummy1", 1);
    put_in(&state->participants, "dummy2", 0);
    put_in(&state->wait_list, "dummy3", 0);
    put_in(&state->redundancy_list, "dummy4", 0);
    state->participants.members[0]->hint = 0;
    state->participants.members[1]->previous = 5;
}

static void decoded_state_equals_encoded_state(void **test_state)
{
    (void)test_state;
    struct tether__rdzv_state state, copy;
    tether_buf bytes = TETHER_BUF_INIT;
    fill(&state);
    /* Encoded at 10 s with 2 s left, decoded at 100 s on another clock: 2 s are left there too. */
    assert_int_equal(tether__rdzv_state_encode(&state, 10 * S, &bytes, NULL), TETHER_OK);
    assert_int_equal(tether__rdzv_state_decode(tether_buf_bytes(&bytes), 100 * S, &copy, NULL),
                     TETHER_OK);
    state.deadline = 102 * S;
    assert_state_equal(&copy, &state);
    assert_int_equal(copy.last_calls, 9);
    assert_int_equal(copy.term, 4);
    assert_int_equal(copy.applied, 1234);
    assert_int_equal(copy.participants.members[0]->hint, 0);
    assert_int_equal(copy.participants.members[0]->previous, -1);
    assert_int_equal(copy.participants.members[1]->hint, -1);
    assert_int_equal(copy.participants.members[1]->previous, 5);
    tether__rdzv_state_fini(&state);
    tether__rdzv_state_fini(&copy);
    tether_buf_fini(&bytes);
}

static void assert_corrupt(tether_bytes bytes)
{
    struct tether__rdzv_state state;
    tether_error err = {0};
    assert_int_equal(tether__rdzv_state_decode(bytes, 0, &state, &err), TETHER_ECORRUPT);
    assert_non_null(strstr(err.message, "the rendezvous state "));
}

/* The decoder refuses other bytes, and every prefix of an encoded state. */
static void decode_refuses_malformed_bytes(void **test_state)
{
    (void)test_state;
    struct tether__rdzv_state state;
    tether_buf bytes = TETHER_BUF_INIT;
    assert_corrupt(tether_bytes_str("corrupt_state"));
    assert_corrupt(tether_bytes_str(""));
    assert_corrupt(tether_bytes_str("gASVAAAAAAAAAACMFnRvcmNo"));
    fill(&state);
    assert_int_equal(tether__rdzv_state_encode(&state, 0, &bytes, NULL), TETHER_OK);
    for (size_t len = 0; len < bytes.len; len++) {
        struct tether__rdzv_state cut;
        tether_status st =
            tether__rdzv_state_decode(tether_bytes_of(bytes.data, len), 0, &cut, NULL);
        if (st == TETHER_OK) /* a cut between two fields gives a valid, smaller state */
            tether__rdzv_state_fini(&cut);
        else
            assert_int_equal(st, TETHER_ECORRUPT);
    }
    bytes.data[6] = 99; /* the version */
    tether_error err = {0};
    struct tether__rdzv_state later;
    assert_int_equal(tether__rdzv_state_decode(tether_buf_bytes(&bytes), 0, &later, &err),
                     TETHER_ECORRUPT);
    assert_non_null(strstr(err.message, "version 99"));
    tether__rdzv_state_fini(&state);
    tether_buf_fini(&bytes);
}

/* Members in their order, the ranks that each prefers, and the rank that it gets. */
static void ranks_follow_hints_then_previous_ranks_then_order(void **test_state)
{
    (void)test_state;
    static const struct {
        const char *what;
        struct {
            int hint, previous, rank;
        } nodes[5];
        int n;
    } cases[] = {
        {"no preferences: in order", {{-1, -1, 0}, {-1, -1, 1}, {-1, -1, 2}}, 3},
        {"every node keeps its rank", {{-1, 2, 2}, {-1, 0, 0}, {-1, 1, 1}}, 3},
        {"a hint wins over a previous rank", {{-1, 0, 1}, {0, -1, 0}, {-1, 2, 2}}, 3},
        {"one of four left: nodes keep ranks that exist", {{-1, 0, 0}, {-1, 2, 2}, {-1, 3, 1}}, 3},
        {"a rank that is too high now is given up", {{-1, 4, 1}, {-1, 0, 0}}, 2},
        {"two with one hint: the first in order gets it", {{1, -1, 1}, {1, -1, 0}}, 2},
        {"a newcomer fills the gap", {{-1, 3, 3}, {-1, -1, 1}, {-1, 0, 0}, {-1, 2, 2}}, 4},
        {"a hint that is too high is ignored", {{7, -1, 0}, {-1, 1, 1}}, 2},
    };
    for (size_t c = 0; c < TETHER__ARRAY_LEN(cases); c++) {
        struct tether__rdzv_state state;
        tether__rdzv_state_init(&state);
        for (int i = 0; i < cases[c].n; i++) {
            char addr[16];
            snprintf(addr, sizeof addr, "n%d", i);
            put_in(&state.participants, addr, 0);
            state.participants.members[i]->hint = cases[c].nodes[i].hint;
            state.participants.members[i]->previous = cases[c].nodes[i].previous;
        }
        bool same = true;
        assert_int_equal(tether__rdzv_state_complete(&state), TETHER_OK);
        for (int i = 0; i < cases[c].n; i++)
            same &= state.participants.members[i]->rank == cases[c].nodes[i].rank;
        if (!same)
            fail_msg("%s: ranks %d %d ...", cases[c].what, state.participants.members[0]->rank,
                     state.participants.members[1]->rank);
        assert_int_equal(state.world_size, cases[c].n);
        tether__rdzv_state_fini(&state);
    }
}

static tether_status encode_and_decode(void *userdata)
{
    (void)userdata;
    struct tether__rdzv_state state, copy;
    struct tether__rdzv_node node = node_of("dummy1");
    tether_buf bytes = TETHER_BUF_INIT;
    tether__rdzv_state_init(&state);
    tether_status st = TETHER_ENOMEM;
    if (tether__rdzv_roster_add(&state.participants, &node) &&
        tether__rdzv_roster_add(&state.wait_list, &node))
        st = tether__rdzv_state_encode(&state, 0, &bytes, NULL);
    if (st == TETHER_OK)
        st = tether__rdzv_state_decode(tether_buf_bytes(&bytes), 0, &copy, NULL);
    if (st == TETHER_OK) {
        st = tether__rdzv_state_complete(&copy);
        tether__rdzv_state_fini(&copy);
    }
    tether__rdzv_state_fini(&state);
    tether_buf_fini(&bytes);
    return st;
}

static void codec_reports_failed_allocations(void **test_state)
{
    (void)test_state;
    tether_test_heap_fail_each(encode_and_decode, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoded_size_is_within_expected_limit),
        cmocka_unit_test(decoded_state_equals_encoded_state),
        cmocka_unit_test(decode_refuses_malformed_bytes),
        cmocka_unit_test(ranks_follow_hints_then_previous_ranks_then_order),
        cmocka_unit_test(codec_reports_failed_allocations),
    };
    return cmocka_run_group_tests_name("dynamic state", tests, NULL, NULL);
}
