/* Node descriptions, their generator, and lists of them (seed classes NodeDescTest and
 * NodeDescGeneratorTest). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/lib/heap.h"
#include "tests/rendezvous/elastic/lib/fixture.h"

static void test_repr(void **state)
{
    (void)state;
    struct tether__rdzv_node node = {"dummy_fqdn", 3, 5};
    char text[TETHER__RDZV_NODE_TEXT];
    assert_string_equal(tether__rdzv_node_format(&node, text), "dummy_fqdn_3_5");
}

/* The seed uses a hash set; this test finds both nodes in a roster. */
static void test_hash(void **state)
{
    (void)state;
    struct tether__rdzv_node a = {"dummy_fqdn", 2, 4}, b = {"dummy_fqdn", 3, 5},
                             c = {"dummy_fqdn", 3, 4};
    struct tether__rdzv_roster roster = {0};
    assert_non_null(tether__rdzv_roster_add(&roster, &b));
    assert_non_null(tether__rdzv_roster_add(&roster, &a));
    assert_non_null(tether__rdzv_roster_add(&roster, &a));
    assert_int_equal(roster.n, 2);
    assert_ptr_equal(tether__rdzv_roster_find(&roster, &a), roster.members[0]);
    assert_ptr_equal(tether__rdzv_roster_find(&roster, &b), roster.members[1]);
    assert_null(tether__rdzv_roster_find(&roster, &c));
    tether__rdzv_roster_fini(&roster);
}

static void test_generate(void **state)
{
    (void)state;
    struct tether__rdzv_node_generator generator = {0};
    char *fqdn = NULL;
    assert_int_equal(tether__rdzv_full_host_name(&fqdn, NULL), TETHER_OK);
    for (int local_id = 0; local_id < 4; local_id++) {
        char expected[TETHER__RDZV_NODE_TEXT], actual[TETHER__RDZV_NODE_TEXT];
        struct tether__rdzv_node node;
        assert_int_equal(tether__rdzv_node_generate(&generator, NULL, &node, NULL), TETHER_OK);
        snprintf(expected, sizeof expected, "%s_%d_%d", fqdn, (int)getpid(), local_id);
        assert_string_equal(tether__rdzv_node_format(&node, actual), expected);
        tether__free((char *)node.addr);
    }
    tether__free(fqdn);
}

static void generate_refuses_unusable_address(void **state)
{
    (void)state;
    struct tether__rdzv_node_generator generator = {0};
    struct tether__rdzv_node node;
    tether_error err;
    char long_addr[TETHER__RDZV_ADDR_MAX + 2];
    memset(long_addr, 'x', sizeof long_addr);
    long_addr[sizeof long_addr - 1] = '\0';
    assert_int_equal(tether__rdzv_node_generate(&generator, "", &node, &err), TETHER_EINVAL);
    assert_int_equal(tether__rdzv_node_generate(&generator, long_addr, &node, &err), TETHER_EINVAL);
    assert_int_equal(tether__rdzv_node_generate(&generator, long_addr + 1, &node, &err), TETHER_OK);
    assert_int_equal(node.local_id, 0);
    tether__free((char *)node.addr);
}

static void nodes_are_ordered_by_address_then_pid_then_local_id(void **state)
{
    (void)state;
    static const struct tether__rdzv_node nodes[] = {
        {"a", 9, 9}, {"a10", 1, 1}, {"a2", 1, 1}, {"b", 2, 7}, {"b", 10, 0}, {"b", 10, 1},
    };
    int n = (int)TETHER__ARRAY_LEN(nodes);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            int order = tether__rdzv_node_compare(&nodes[i], &nodes[j]);
            assert_int_equal((order > 0) - (order < 0), (i > j) - (i < j));
        }
    }
}

/* Any order of adding gives the sorted list; any order of removing empties it. */
static void roster_stays_sorted(void **state)
{
    (void)state;
    enum { N = 200 };
    struct tether__rdzv_roster roster = {0}, other = {0};
    char addr[16];
    for (int i = 0; i < N; i++) {
        snprintf(addr, sizeof addr, "n%03d", i * 67 % N);
        put_in(&roster, addr, i);
        put_in(&other, addr, i);
    }
    assert_int_equal(roster.n, N);
    for (int i = 0; i < N; i++) {
        snprintf(addr, sizeof addr, "n%03d", i);
        assert_string_equal(roster.members[i]->node.addr, addr);
    }
    for (int i = 0; i < N; i++) {
        snprintf(addr, sizeof addr, "n%03d", i * 41 % N);
        struct tether__rdzv_node node = node_of(addr);
        assert_true(tether__rdzv_roster_remove(&roster, &node));
        assert_false(tether__rdzv_roster_remove(&roster, &node));
    }
    assert_int_equal(roster.n, 0);

    struct tether__rdzv_node node = node_of("n007");
    int rank = tether__rdzv_roster_find(&other, &node)->rank;
    assert_int_equal(tether__rdzv_roster_move(&roster, &other, &node), TETHER_OK);
    assert_int_equal(tether__rdzv_roster_move(&roster, &other, &node), TETHER_ENOTFOUND);
    assert_int_equal(roster.members[0]->rank, rank);
    assert_int_equal(other.n, N - 1);
    tether__rdzv_roster_fini(&roster);
    tether__rdzv_roster_fini(&other);
}

static tether_status use_roster(void *userdata)
{
    (void)userdata;
    struct tether__rdzv_roster a = {0}, b = {0};
    struct tether__rdzv_node one = node_of("one"), two = node_of("two");
    tether_status st = TETHER_ENOMEM;
    if (tether__rdzv_roster_add(&a, &one) && tether__rdzv_roster_add(&a, &two))
        st = tether__rdzv_roster_move(&b, &a, &one);
    tether__rdzv_roster_fini(&a);
    tether__rdzv_roster_fini(&b);
    return st;
}

static void roster_is_unchanged_when_allocation_fails(void **state)
{
    (void)state;
    tether_test_heap_fail_each(use_roster, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repr),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(generate_refuses_unusable_address),
        cmocka_unit_test(nodes_are_ordered_by_address_then_pid_then_local_id),
        cmocka_unit_test(roster_stays_sorted),
        cmocka_unit_test(roster_is_unchanged_when_allocation_fails),
    };
    return cmocka_run_group_tests_name("dynamic node", tests, NULL, NULL);
}
