/* The map: look-ups, growth and shrinking, collisions, iteration with deletes, memory per key, and
 * failing allocations. (tests/fuzz/map_fuzz_test.c tries any order of steps.)
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

static void put_get_and_del_find_keys(void **state)
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

static void map_accepts_bytes_as_keys(void **state)
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

static void zeroed_map_is_empty(void **state)
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

static size_t live_bytes;

static void *measured_malloc(void *userdata, size_t size)
{
    (void)userdata;
    size_t *block = malloc(size + 16);
    if (!block)
        return NULL;
    *block = size;
    live_bytes += size;
    return (char *)block + 16;
}

static void measured_free(void *userdata, void *ptr)
{
    (void)userdata;
    size_t *block = (size_t *)(void *)((char *)ptr - 16);
    live_bytes -= *block;
    free(block);
}

/* A key takes at most 40 bytes at rest, and 64 while the table grows. */
static void map_needs_little_memory_per_key_at_every_size(void **state)
{
    (void)state;
    const struct tether_allocator measured = {measured_malloc, NULL, measured_free, NULL};
    tether_set_allocator(&measured);
    size_t n = 1000000;
    uint64_t *keys = numbers(n);
    struct tether__map map;
    tether__map_init(&map, &tether__map_u64);
    for (size_t i = 0; i < n; i++) {
        assert_put(&map, &keys[i]);
        if (i >= 64)
            assert_in_range(live_bytes, 1, (i + 1) * 64);
    }
    assert_in_range(live_bytes, 1, n * 40);

    /* The map frees memory while it shrinks, and the rest at the end. */
    size_t full = live_bytes;
    for (size_t i = 1000; i < n; i++)
        assert_ptr_equal(tether__map_del(&map, &keys[i]), &keys[i]);
    for (size_t i = 0; i < n / 10; i++) {
        assert_put(&map, &keys[1000 + i % 20]);
        assert_ptr_equal(tether__map_del(&map, &keys[1000 + i % 20]), &keys[1000 + i % 20]);
    }
    assert_in_range(live_bytes, 1, full / 100);
    for (size_t i = 0; i < 1000; i++)
        assert_ptr_equal(tether__map_del(&map, &keys[i]), &keys[i]);
    assert_null(map.table.slots);
    assert_int_equal(live_bytes, 0);
    tether__map_fini(&map);
    free(keys);
    tether_set_allocator(NULL);
}

/* The progress of a change of size, in slots. */
struct progress {
    const void *table, *next, *old;
    size_t done;
};

static struct progress progress_of(const struct tether__map *map)
{
    return (struct progress){map->table.slots, map->next.slots, map->old.slots, map->done};
}

/* Puts `key` and asserts that few slots were cleared or moved for it. */
static void assert_short_put(struct tether__map *map, uint64_t *key)
{
    enum { FEW = 1024 }; /* a step is 80 slots, and it continues to the end of a cluster */
    struct progress before = progress_of(map);
    bool large = map->table.mask >= 4096;
    assert_put(map, key);
    struct progress after = progress_of(map);
    if (!large)
        return;
    if (after.table != before.table)
        /* The change of size has started and is not complete. */
        assert_ptr_equal(after.old, before.table);
    bool begun = (after.next && !before.next) || (after.old && !before.old);
    assert_in_range(after.done - (begun ? 0 : before.done), 0, FEW);
}

static void put_moves_few_keys_when_table_grows_or_shrinks(void **state)
{
    (void)state;
    size_t n = 300000;
    uint64_t *keys = numbers(n);
    struct tether__map map;
    tether__map_init(&map, &tether__map_u64);
    for (size_t i = 0; i < n; i++)
        assert_short_put(&map, &keys[i]);
    size_t mask = map.table.mask;
    for (size_t i = 100; i < n; i++)
        assert_ptr_equal(tether__map_del(&map, &keys[i]), &keys[i]);
    for (size_t i = 100; i < n / 10; i++)
        assert_short_put(&map, &keys[i]);
    assert_in_range(map.table.mask, 1, mask / 4);
    for (size_t i = 0; i < n; i++)
        assert_ptr_equal(tether__map_get(&map, &keys[i]), i < n / 10 ? &keys[i] : NULL);
    tether__map_fini(&map);
    free(keys);
}

/* Random puts and deletes at sizes at which the table grows and shrinks step by step. */
static void keys_are_found_while_table_changes_size(void **state)
{
    (void)state;
    enum { N = 20000 };
    uint64_t *keys = numbers(N), random = 1;
    bool *present = calloc(N, sizeof *present);
    struct tether__map map;
    tether__map_init(&map, &tether__map_u64);
    size_t count = 0;
    for (size_t i = 0; i < (size_t)60 * N; i++) {
        random = random * 6364136223846793005U + 1442695040888963407U;
        size_t k = (random >> 33) % N;
        bool grow = i / (2 * N) % 2 == 0; /* first most steps add a key, then most delete one */
        if ((random >> 20) % 16 == 0 ? grow : !grow) {
            assert_ptr_equal(tether__map_del(&map, &keys[k]), present[k] ? &keys[k] : NULL);
            count -= present[k];
            present[k] = false;
        } else {
            assert_int_equal(tether__map_put(&map, &keys[k]),
                             present[k] ? TETHER_EEXIST : TETHER_OK);
            count += !present[k];
            present[k] = true;
        }
        size_t other = (random >> 10) % N;
        assert_ptr_equal(tether__map_get(&map, &keys[other]), present[other] ? &keys[other] : NULL);
        assert_int_equal(tether__map_count(&map), count);
        if (i % 5000 == 0) {
            size_t seen = 0;
            struct tether__map_iter it = TETHER__MAP_ITER;
            for (uint64_t *key; (key = tether__map_next(&map, &it)); seen++)
                assert_true(present[*key]);
            assert_int_equal(seen, count);
        }
    }
    tether__map_fini(&map);
    free(keys);
    free(present);
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

/* Iterates, and deletes the keys for which key % modulus == 0. */
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
    assert_int_equal(seen, before); /* each key was visited once */
    assert_int_equal(tether__map_count(map), before - gone);
}

static void iteration_visits_each_key_once_while_deleting(void **state)
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

static void count_visit(void *key, void *userdata)
{
    ((unsigned char *)userdata)[*(uint64_t *)key]++;
}

/* Keys below `n_stay` stay in the map; others are added and deleted between the slices. */
static void scan_while_map_changes(const struct tether__map_type *type, size_t n_stay, size_t n)
{
    uint64_t *keys = numbers(n + 1);
    unsigned char *visits = calloc(n + 1, 1);
    struct tether__map map;
    unsigned long cursor = 0;
    tether__map_init(&map, type);
    for (size_t i = 0; i < n_stay; i++)
        assert_put(&map, &keys[i]);
    for (size_t i = n_stay; tether__map_scan(&map, &cursor, 16, count_visit, visits);)
        for (size_t end = i + 50 < n ? i + 50 : n; i < end; i++) {
            assert_put(&map, &keys[i]);
            if (i % 3 == 0)
                assert_ptr_equal(tether__map_del(&map, &keys[i]), &keys[i]);
        }
    for (size_t i = 0; i < n; i++)
        assert_in_range(visits[i], i < n_stay ? 1 : 0, 1);
    tether__map_fini(&map);
    free(keys);
    free(visits);
}

static void scan_visits_each_key_once_when_map_changes_between_slices(void **state)
{
    (void)state;
    scan_while_map_changes(&tether__map_u64, 0, 0);
    scan_while_map_changes(&tether__map_u64, 10, 10);
    scan_while_map_changes(&tether__map_u64, 700, 20000);
    scan_while_map_changes(&tether__map_u64, 5000, 100000);
    scan_while_map_changes(&all_collide, 100, 500);
}

static void table_keeps_its_size_under_churn(void **state)
{
    (void)state;
    enum { LIVE = 700 };
    uint64_t *keys = numbers(100 * LIVE);
    struct tether__map map;
    tether__map_init(&map, &tether__map_u64);
    for (size_t i = 0; i < LIVE; i++)
        assert_put(&map, &keys[i]);
    size_t slots = map.table.mask;
    for (size_t i = LIVE; i < (size_t)100 * LIVE; i++) {
        assert_ptr_equal(tether__map_del(&map, &keys[i - LIVE]), &keys[i - LIVE]);
        assert_put(&map, &keys[i]);
    }
    assert_int_equal(map.table.mask, slots);
    assert_int_equal(tether__map_count(&map), LIVE);
    tether__map_fini(&map);
    free(keys);
}

/* A put that fails for lack of memory leaves the map unchanged. */
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
    if (st == TETHER_OK) /* the table shrinks, unless there is no memory to do so: both are fine */
        st = tether__map_put(&map, &keys[0]);
    tether__map_fini(&map);
    return st;
}

static void map_is_unchanged_when_allocation_fails(void **state)
{
    (void)state;
    uint64_t *keys = numbers(1000);
    tether_test_heap_fail_each(fill_and_drop, keys);
    free(keys);
}

static void seed_changes_hash(void **state)
{
    (void)state;
    assert_int_equal(tether__hash("key", 3, 1), tether__hash("key", 3, 1));
    assert_int_not_equal(tether__hash("key", 3, 1), tether__hash("key", 3, 2));
    assert_int_not_equal(tether__hash("key", 3, 1), tether__hash("kez", 3, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_get_and_del_find_keys),
        cmocka_unit_test(map_accepts_bytes_as_keys),
        cmocka_unit_test(zeroed_map_is_empty),
        cmocka_unit_test(iteration_visits_each_key_once_while_deleting),
        cmocka_unit_test(scan_visits_each_key_once_when_map_changes_between_slices),
        cmocka_unit_test(put_moves_few_keys_when_table_grows_or_shrinks),
        cmocka_unit_test(keys_are_found_while_table_changes_size),
        cmocka_unit_test(table_keeps_its_size_under_churn),
        cmocka_unit_test(map_is_unchanged_when_allocation_fails),
        cmocka_unit_test(seed_changes_hash),
        cmocka_unit_test(map_needs_little_memory_per_key_at_every_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
