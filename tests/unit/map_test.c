/* The map: the plain contract, growth and shrinking, keys that collide, walks that delete, memory
 * per key, and every allocation failing. (tests/fuzz/map_fuzz_test.c tries any order of steps.)
 */
#include "base/map.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

static void assert_put(struct tether__map *map, void *key)
{
    assert_int_equal(tether__map_put(map, key), TETHER_OK);
}

static uint64_t *numbers(size_t n)
{
    uint64_t *keys = calloc(n, sizeof *keys);
    for (size_t i = 0; i < n; i++)
        keys[i] = i;
    return keys;
}

static void keys_go_in_are_found_and_come_out(void **state)
{
    (void)state;
    struct tether__map map;
    assert_int_equal(tether__map_init(&map, &tether__map_u64), TETHER_OK);
    uint64_t one = 1, two = 2, also_one = 1;
    assert_null(tether__map_get(&map, &one));
    assert_null(tether__map_del(&map, &one));
    assert_put(&map, &one);
    assert_put(&map, &two);
    assert_int_equal(tether__map_put(&map, &also_one), TETHER_EEXIST);
    assert_ptr_equal(tether__map_get(&map, &also_one), &one);
    assert_int_equal(tether__map_count(&map), 2);
    assert_ptr_equal(tether__map_del(&map, &also_one), &one);
    assert_null(tether__map_get(&map, &one));
    assert_ptr_equal(tether__map_get(&map, &two), &two);
    assert_int_equal(tether__map_count(&map), 1);
    tether__map_fini(&map);
}

static void keys_can_be_bytes(void **state)
{
    (void)state;
    struct tether__map map;
    tether__map_init(&map, &tether__map_bytes);
    tether_bytes keys[] = {tether_bytes_str(""), tether_bytes_str("a"), tether_bytes_of("a\0", 2),
                           tether_bytes_of("a\0b", 3)};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(keys); i++)
        assert_put(&map, &keys[i]);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(keys); i++)
        assert_ptr_equal(tether__map_get(&map, &keys[i]), &keys[i]);
    tether_bytes nothing = tether_bytes_of(NULL, 0), absent = tether_bytes_str("b");
    assert_ptr_equal(tether__map_get(&map, &nothing), &keys[0]);
    assert_null(tether__map_get(&map, &absent));
    tether__map_fini(&map);
}

static void zeroed_memory_is_an_empty_map(void **state)
{
    (void)state;
    struct tether__map map = {0};
    struct tether__map_iter it = TETHER__MAP_ITER;
    uint64_t key = 1;
    assert_null(tether__map_get(&map, &key));
    assert_null(tether__map_next(&map, &it));
    assert_int_equal(tether__map_count(&map), 0);
    tether__map_fini(&map);
}

static size_t table_bytes;

static void *measured_malloc(void *userdata, size_t size)
{
    (void)userdata;
    table_bytes = size; /* the map has one block at rest, two while it grows */
    return malloc(size);
}

static void measured_free(void *userdata, void *ptr)
{
    (void)userdata;
    free(ptr);
}

/* At rest a key costs at most 40 bytes, and while the table grows half as much again. */
static void a_key_costs_little_memory_at_every_size(void **state)
{
    (void)state;
    const struct tether_allocator measured = {measured_malloc, NULL, measured_free, NULL};
    tether_set_allocator(&measured);
    size_t n = 1000000, bytes_before = 0;
    uint64_t *keys = numbers(n);
    struct tether__map map;
    tether__map_init(&map, &tether__map_u64);
    for (size_t i = 0; i < n; i++) {
        bytes_before = table_bytes;
        assert_put(&map, &keys[i]);
        if (i >= 64 && table_bytes != bytes_before)
            assert_in_range(table_bytes + bytes_before, 1, (i + 1) * 64);
    }
    assert_in_range(table_bytes, 1, n * 40);

    /* It gives the memory back: first as it shrinks and is used, then for good. */
    size_t full = table_bytes;
    for (size_t i = 1000; i < n; i++)
        assert_ptr_equal(tether__map_del(&map, &keys[i]), &keys[i]);
    for (size_t i = 1000; i < 1020; i++)
        assert_put(&map, &keys[i]);
    assert_in_range(table_bytes, 1, full / 100);
    for (size_t i = 0; i < 1020; i++)
        assert_ptr_equal(tether__map_del(&map, &keys[i]), &keys[i]);
    assert_null(map.slots);
    tether__map_fini(&map);
    free(keys);
    tether_set_allocator(NULL);
}

static unsigned long same_hash(const void *key, unsigned long seed)
{
    (void)key, (void)seed;
    return 0xfffffffffffffff0; /* near the end of every table, so that the cluster wraps round */
}

static bool equal_numbers(const void *a, const void *b)
{
    return *(const uint64_t *)a == *(const uint64_t *)b;
}

static const struct tether__map_type all_collide = {same_hash, equal_numbers};

/* Takes keys out while it walks: those for which key % modulus == 0. */
static void walk_and_delete(struct tether__map *map, uint64_t modulus)
{
    size_t before = tether__map_count(map), seen = 0, gone = 0;
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (uint64_t *key; (key = tether__map_next(map, &it)); seen++) {
        if (*key % modulus != 0)
            continue;
        assert_ptr_equal(tether__map_del(map, key), key);
        gone++;
    }
    assert_int_equal(seen, before); /* each once, none forgotten */
    assert_int_equal(tether__map_count(map), before - gone);
}

static void a_walk_sees_each_key_once_while_it_deletes(void **state)
{
    (void)state;
    const struct tether__map_type *types[] = {&tether__map_u64, &all_collide};
    const size_t sizes[] = {0, 1, 5, 11, 12, 13, 100, 1000};
    const uint64_t moduli[] = {1, 2, 3, 7};
    uint64_t *keys = numbers(1000);
    for (size_t t = 0; t < TETHER__ARRAY_LEN(types); t++)
        for (size_t s = 0; s < TETHER__ARRAY_LEN(sizes); s++)
            for (size_t m = 0; m < TETHER__ARRAY_LEN(moduli); m++) {
                struct tether__map map;
                tether__map_init(&map, types[t]);
                for (size_t i = 0; i < sizes[s]; i++)
                    assert_put(&map, &keys[i]);
                walk_and_delete(&map, moduli[m]);
                for (size_t i = 0; i < sizes[s]; i++)
                    assert_ptr_equal(tether__map_get(&map, &keys[i]),
                                     i % moduli[m] == 0 ? NULL : &keys[i]);
                walk_and_delete(&map, 1);
                tether__map_fini(&map);
            }
    free(keys);
}

static void churn_leaves_the_table_as_it_was(void **state)
{
    (void)state;
    enum { LIVE = 700 };
    uint64_t *keys = numbers(100 * LIVE);
    struct tether__map map;
    tether__map_init(&map, &tether__map_u64);
    for (size_t i = 0; i < LIVE; i++)
        assert_put(&map, &keys[i]);
    size_t slots = map.mask;
    for (size_t i = LIVE; i < (size_t)100 * LIVE; i++) {
        assert_ptr_equal(tether__map_del(&map, &keys[i - LIVE]), &keys[i - LIVE]);
        assert_put(&map, &keys[i]);
    }
    assert_int_equal(map.mask, slots);
    assert_int_equal(tether__map_count(&map), LIVE);
    tether__map_fini(&map);
    free(keys);
}

/* A put that fails for want of memory leaves the map as it was. */
static tether_status fill_and_drop(void *userdata)
{
    uint64_t *keys = userdata;
    struct tether__map map;
    tether__map_init(&map, &tether__map_u64);
    tether_status st = TETHER_OK;
    size_t n = 0;
    while (st == TETHER_OK && n < 1000) {
        st = tether__map_put(&map, &keys[n]);
        n += st == TETHER_OK;
    }
    assert_int_equal(tether__map_count(&map), n);
    for (size_t i = 0; i < 1000; i++)
        assert_ptr_equal(tether__map_get(&map, &keys[i]), i < n ? &keys[i] : NULL);
    for (size_t i = 0; i + 10 < n; i++)
        assert_ptr_equal(tether__map_del(&map, &keys[i]), &keys[i]);
    if (st == TETHER_OK) /* here the table shrinks, or has no memory to shrink with: no matter */
        st = tether__map_put(&map, &keys[0]);
    tether__map_fini(&map);
    return st;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    uint64_t *keys = numbers(1000);
    tether_test_heap_fail_each(fill_and_drop, keys);
    free(keys);
}

static void the_seed_changes_the_hash(void **state)
{
    (void)state;
    assert_int_equal(tether__hash("key", 3, 1), tether__hash("key", 3, 1));
    assert_int_not_equal(tether__hash("key", 3, 1), tether__hash("key", 3, 2));
    assert_int_not_equal(tether__hash("key", 3, 1), tether__hash("kez", 3, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_go_in_are_found_and_come_out),
        cmocka_unit_test(keys_can_be_bytes),
        cmocka_unit_test(zeroed_memory_is_an_empty_map),
        cmocka_unit_test(a_walk_sees_each_key_once_while_it_deletes),
        cmocka_unit_test(churn_leaves_the_table_as_it_was),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(the_seed_changes_the_hash),
        cmocka_unit_test(a_key_costs_little_memory_at_every_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
