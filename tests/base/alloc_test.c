/* The allocator functions and the test heap below them. */
#include "base/alloc.h"

#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

static void heap_counts_blocks_until_they_are_freed(void **state)
{
    (void)state;
    tether_test_heap_fail_never();
    char *a = tether__malloc(10);
    char *b = tether__strdup("text");
    char *c = tether__asprintf("%d-%s", 7, "x");
    assert_int_equal(tether_test_heap_live(), 3);
    assert_string_equal(b, "text");
    assert_string_equal(c, "7-x");
    a = tether__realloc(a, 1000);
    assert_int_equal(tether_test_heap_live(), 3);
    assert_null(tether__free(a));
    assert_null(tether__free(b));
    assert_null(tether__free(c));
    assert_null(tether__free(NULL));
    assert_int_equal(tether_test_heap_live(), 0);
}

/* malloc(0) returns a block, so that NULL always means a failure. */
static void malloc_of_zero_returns_block(void **state)
{
    (void)state;
    void *blocks[] = {tether__malloc(0), tether__calloc(0, 8), tether__realloc(NULL, 0)};
    for (size_t i = 0; i < TETHER__ARRAY_LEN(blocks); i++) {
        assert_non_null(blocks[i]);
        tether__free(blocks[i]);
    }
}

static void calloc_zeroes_and_refuses_overflow(void **state)
{
    (void)state;
    unsigned char *zeros = tether__calloc(100, 3);
    for (size_t i = 0; i < 300; i++)
        assert_int_equal(zeros[i], 0);
    tether__free(zeros);
    assert_null(tether__calloc(SIZE_MAX / 2, 3));
    assert_null(tether__calloc(3, SIZE_MAX / 2));
}

static void failed_allocation_returns_null_and_changes_nothing(void **state)
{
    (void)state;
    char *text = tether__strdup("kept");
    tether_test_heap_fail_from(0);
    assert_null(tether__malloc(1));
    assert_null(tether__calloc(1, 1));
    assert_null(tether__strdup("x"));
    assert_null(tether__asprintf("x"));
    assert_null(tether__realloc(text, 100));
    assert_string_equal(text, "kept");
    assert_true(tether_test_heap_fired());
    tether_test_heap_fail_never();
    tether__free(text);
}

static void heap_fail_at_fails_one_allocation(void **state)
{
    (void)state;
    tether_test_heap_fail_at(1);
    void *first = tether__malloc(1), *second = tether__malloc(1), *third = tether__malloc(1);
    assert_non_null(first);
    assert_null(second);
    assert_non_null(third);
    assert_true(tether_test_heap_fired());
    tether__free(first);
    tether__free(third);
    tether_test_heap_fail_never();
    assert_false(tether_test_heap_fired());
}

static int times_run;

static tether_status two_allocations(void *userdata)
{
    (void)userdata;
    times_run++;
    void *first = tether__malloc(1);
    void *second = first ? tether__malloc(1) : NULL;
    tether_status st = second ? TETHER_OK : TETHER_ENOMEM;
    tether__free(second);
    tether__free(first);
    return st;
}

static void heap_fail_each_fails_every_allocation_in_turn(void **state)
{
    (void)state;
    times_run = 0;
    tether_test_heap_fail_each(two_allocations, NULL);
    assert_int_equal(times_run, 2 * 3); /* 1st, 2nd, none; alone and with all later ones */
}

static size_t own_calls;

static void *own_malloc(void *userdata, size_t size)
{
    own_calls++;
    return size <= 64 ? userdata : NULL;
}

static void *own_realloc(void *userdata, void *ptr, size_t size)
{
    own_calls++;
    return ptr && size <= 64 ? userdata : NULL;
}

static void own_free(void *userdata, void *ptr)
{
    own_calls++;
    assert_ptr_equal(ptr, userdata);
}

/* Runs last, because it replaces the test heap. */
static void set_allocator_replaces_allocator(void **state)
{
    (void)state;
    static char arena[64];
    const struct tether_allocator own = {own_malloc, own_realloc, own_free, arena};
    tether_set_allocator(&own);
    assert_ptr_equal(tether__malloc(64), arena);
    assert_null(tether__malloc(65));
    assert_ptr_equal(tether__realloc(arena, 64), arena);
    tether__free(arena);
    assert_int_equal(own_calls, 4);

    tether_set_allocator(NULL);
    char *plain = tether__strdup("from the C library again");
    assert_non_null(plain);
    tether__free(plain);
    assert_int_equal(own_calls, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heap_counts_blocks_until_they_are_freed),
        cmocka_unit_test(malloc_of_zero_returns_block),
        cmocka_unit_test(calloc_zeroes_and_refuses_overflow),
        cmocka_unit_test(failed_allocation_returns_null_and_changes_nothing),
        cmocka_unit_test(heap_fail_at_fails_one_allocation),
        cmocka_unit_test(heap_fail_each_fails_every_allocation_in_turn),
        cmocka_unit_test(set_allocator_replaces_allocator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
