/* The key-value core: values and keys, their limits, and their costs. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "rendezvous/store/kv/kv.h"
#include "tests/lib/cmocka.h"
#include "tests/rendezvous/store/kv/fixture.h"

/* ---- Values --------------------------------------------------------------------------------- */

static void changes_fail_when_value_exceeds_max_value(void **state)
{
    struct tether__kv *kv = *state;
    size_t most = 1 << 20;
    char *large = calloc(1, most + 1);
    tether_bytes key = B("k"), too_big = tether_bytes_of(large, most + 1);
    tether_bytes keys[] = {B("a"), B("b")}, values[] = {B("1"), too_big};
    bool swapped;
    tether_bytes value;
    assert_int_equal(tether__kv_set(kv, key, too_big), TETHER_ETOOBIG);
    assert_int_equal(tether__kv_append(kv, key, too_big), TETHER_ETOOBIG);
    assert_int_equal(tether__kv_queue_push(kv, key, too_big), TETHER_ETOOBIG);
    assert_int_equal(tether__kv_multi_set(kv, keys, values, 2), TETHER_ETOOBIG);
    assert_int_equal(tether__kv_compare_set(kv, key, B(""), too_big, &swapped, &value),
                     TETHER_ETOOBIG);
    assert_int_equal(tether__kv_count(kv), 0);
    assert_int_equal(tether__kv_set(kv, key, tether_bytes_of(large, most)), TETHER_OK);
    assert_int_equal(tether__kv_append(kv, key, B("x")), TETHER_ETOOBIG);
    assert_int_equal(tether__kv_append(kv, key, B("")), TETHER_OK);
    free(large);
}

/* Adds as many values and elements as fit and removes them again: the count ends at 0. */
static void changes_beyond_max_bytes_are_refused_and_change_nothing(void **state)
{
    struct tether__kv *kv = *state;
    char text[1000] = "";
    tether_bytes kilobyte = tether_bytes_of(text, sizeof text);
    tether_buf popped = TETHER_BUF_INIT;
    tether_bytes keys[] = {B("c"), B("d")}, values[] = {kilobyte, kilobyte};
    struct probe popper = {0};
    int64_t sum;
    kv->max_bytes = 3000;
    assert_int_equal(tether__kv_set(kv, B("a"), kilobyte), TETHER_OK);
    assert_int_equal(kv->bytes, tether__kv_cost(1, sizeof text));
    assert_int_equal(tether__kv_queue_push(kv, B("q"), kilobyte), TETHER_OK);
    size_t before = kv->bytes;
    assert_int_equal(tether__kv_set(kv, B("b"), kilobyte), TETHER_ETOOBIG);
    assert_int_equal(tether__kv_append(kv, B("a"), kilobyte), TETHER_ETOOBIG);
    assert_int_equal(tether__kv_queue_push(kv, B("q"), kilobyte), TETHER_ETOOBIG);
    assert_int_equal(tether__kv_multi_set(kv, keys, values, 2), TETHER_ETOOBIG);
    assert_int_equal(kv->bytes, before);
    assert_int_equal(tether__kv_count(kv), 1);

    /* Replaces a value of the same size. */
    assert_int_equal(tether__kv_set(kv, B("a"), kilobyte), TETHER_OK);
    assert_int_equal(tether__kv_set(kv, B("a"), B("")), TETHER_OK);
    assert_int_equal(tether__kv_append(kv, B("a"), B("xyz")), TETHER_OK);
    assert_int_equal(tether__kv_add(kv, B("n"), 9, &sum), TETHER_OK);
    assert_int_equal(tether__kv_add(kv, B("n"), 1, &sum), TETHER_OK);
    assert_int_equal(
        kv->bytes, tether__kv_cost(1, 3) + tether__kv_cost(1, 2) + tether__kv_cost(1, sizeof text));
    kv->max_bytes = kv->bytes;
    assert_int_equal(tether__kv_add(kv, B("m"), 1, &sum), TETHER_ETOOBIG);
    assert_int_equal(tether__kv_add(kv, B("n"), 89, &sum), TETHER_OK);
    assert_int_equal(tether__kv_add(kv, B("n"), 1, &sum), TETHER_ETOOBIG); /* a third digit */
    kv->max_bytes = 10; /* far below the present bytes: changes that free memory are allowed */
    assert_int_equal(tether__kv_set(kv, B("a"), B("x")), TETHER_OK);
    kv->max_bytes = SIZE_MAX;

    assert_true(tether__kv_queue_pop(kv, B("q"), &popped));
    assert_int_equal(tether__kv_queue_push(kv, B("q"), kilobyte), TETHER_OK);
    assert_int_equal(tether__kv_wait_pop(kv, &popper.waiter, B("q"), probe_ready), TETHER_OK);
    assert_int_equal(popper.calls, 1);
    assert_true(tether__kv_delete(kv, B("a")));
    assert_true(tether__kv_delete(kv, B("n")));
    assert_int_equal(kv->bytes, 0);
    tether_buf_fini(&popped);
}

static void set_take_moves_the_value_without_a_copy(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {0};
    tether_buf value = TETHER_BUF_INIT, empty = TETHER_BUF_INIT;
    tether_bytes got;
    kv_wait_for(kv, &p, "k", NULL);
    assert_int_equal(tether_buf_assign(&value, B("moved")), TETHER_OK);
    const char *data = value.data;
    assert_int_equal(tether__kv_set_take(kv, B("k"), &value), TETHER_OK);
    assert_null(value.data);
    assert_int_equal(p.calls, 1);
    assert_true(tether__kv_get(kv, B("k"), &got));
    assert_ptr_equal(got.data, data);
    assert_int_equal(tether__kv_set_take(kv, B("e"), &empty), TETHER_OK);
    assert_true(tether__kv_get(kv, B("e"), &got));
    assert_int_equal(got.len, 0);
}

static void keys_may_contain_any_bytes(void **state)
{
    struct tether__kv *kv = *state;
    tether_bytes a = tether_bytes_of("a\0b", 3), b = tether_bytes_of("a\0c", 3), none = {NULL, 0};
    tether_bytes value;
    assert_int_equal(tether__kv_set(kv, a, B("1")), TETHER_OK);
    assert_int_equal(tether__kv_set(kv, b, B("2")), TETHER_OK);
    assert_int_equal(tether__kv_set(kv, none, B("3")), TETHER_OK);
    assert_int_equal(tether__kv_count(kv), 3);
    assert_true(tether__kv_get(kv, a, &value));
    assert_true(tether_bytes_equal(value, B("1")));
    assert_true(tether__kv_get(kv, none, &value));
    assert_true(tether_bytes_equal(value, B("3")));
}

/* ---- Cost ----------------------------------------------------------------------------------- */

static void key_takes_little_memory_when_there_are_a_million(void **state)
{
    struct tether__kv *kv = *state;
    enum { KEYS = 1000000 };
    size_t payload = 0;
    for (int i = 0; i < KEYS; i++) {
        char key[32], value[32];
        int key_len = snprintf(key, sizeof key, "key-%d", i);
        int value_len = snprintf(value, sizeof value, "value-%d", i);
        payload += (size_t)(key_len + value_len);
        assert_int_equal(tether__kv_set(kv, tether_bytes_of(key, (size_t)key_len),
                                        tether_bytes_of(value, (size_t)value_len)),
                         TETHER_OK);
    }
    size_t each = (kv_live_bytes - payload) / KEYS;
    print_message("%zu bytes per key beside key and value\n", each);
    assert_in_range(each, 1, 150);
}

/* Keys that are added and deleted leave no memory behind, also not in the table. */
static void memory_stays_bounded_when_keys_come_and_go(void **state)
{
    struct tether__kv *kv = *state;
    size_t most = 0;
    for (int i = 0; i < 200000; i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%d", i);
        kv_set(kv, key, "value");
        snprintf(key, sizeof key, "key-%d", i - 100);
        assert_int_equal(tether__kv_delete(kv, B(key)), i >= 100);
        if (kv_live_bytes > most)
            most = kv_live_bytes;
    }
    assert_int_equal(tether__kv_count(kv), 100);
    assert_in_range(most, 1, 64 << 10);
}

int main(void)
{
    tether_set_allocator(&kv_allocator);
    const struct CMUnitTest tests[] = {
        TEST(changes_fail_when_value_exceeds_max_value),
        TEST(changes_beyond_max_bytes_are_refused_and_change_nothing),
        TEST(set_take_moves_the_value_without_a_copy),
        TEST(keys_may_contain_any_bytes),
        TEST(key_takes_little_memory_when_there_are_a_million),
        TEST(memory_stays_bounded_when_keys_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
