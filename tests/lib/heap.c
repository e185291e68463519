/* An allocator over the C library's that counts blocks and fails on request. */
#include "tests/lib/heap.h"

#include <limits.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "tests/lib/cmocka.h"

static _Atomic long live, live_bytes, allocations;
static _Atomic long until_failure = LONG_MAX; /* allocations that still succeed */
static _Atomic bool keep_failing;
static _Atomic bool fired;

static bool should_fail(void)
{
    long left = atomic_fetch_sub(&until_failure, 1);
    if (left > 0 || (left < 0 && !atomic_load(&keep_failing)))
        return false;
    atomic_store(&fired, true);
    return true;
}

static void *count(void *ptr)
{
    if (ptr) {
        atomic_fetch_add(&allocations, 1);
        atomic_fetch_add(&live_bytes, (long)malloc_usable_size(ptr));
    }
    return ptr;
}

static void *heap_malloc(void *userdata, size_t size)
{
    (void)userdata;
    void *ptr = count(should_fail() ? NULL : malloc(size));
    if (ptr)
        atomic_fetch_add(&live, 1);
    return ptr;
}

static void *heap_realloc(void *userdata, void *ptr, size_t size)
{
    (void)userdata;
    long before = (long)malloc_usable_size(ptr);
    void *moved = count(should_fail() ? NULL : realloc(ptr, size));
    if (moved && !ptr)
        atomic_fetch_add(&live, 1);
    if (moved)
        atomic_fetch_sub(&live_bytes, before);
    return moved;
}

static void heap_free(void *userdata, void *ptr)
{
    (void)userdata;
    atomic_fetch_sub(&live_bytes, (long)malloc_usable_size(ptr));
    free(ptr);
    atomic_fetch_sub(&live, 1);
}

__attribute__((constructor)) static void become_the_allocator(void)
{
    static const struct tether_allocator heap = {heap_malloc, heap_realloc, heap_free, NULL};
    tether_set_allocator(&heap);
}

static void arm(long n, bool all_later_ones)
{
    atomic_store(&live, 0);
    atomic_store(&live_bytes, 0);
    atomic_store(&fired, false);
    atomic_store(&keep_failing, all_later_ones);
    atomic_store(&until_failure, n);
}

void tether_test_heap_fail_at(int n)
{
    arm(n, false);
}

void tether_test_heap_fail_from(int n)
{
    arm(n, true);
}

void tether_test_heap_fail_never(void)
{
    arm(LONG_MAX, false);
}

void tether_test_heap_relent(void)
{
    atomic_store(&keep_failing, false);
    atomic_store(&until_failure, LONG_MAX);
}

bool tether_test_heap_fired(void)
{
    return atomic_load(&fired);
}

long tether_test_heap_live(void)
{
    return atomic_load(&live);
}

long tether_test_heap_bytes(void)
{
    return atomic_load(&live_bytes);
}

long tether_test_heap_allocations(void)
{
    return atomic_load(&allocations);
}

static void fail_each(tether_test_scenario *scenario, void *userdata, bool all_later_ones)
{
    for (int n = 0;; n++) {
        arm(n, all_later_ones);
        tether_status st = scenario(userdata);
        bool failed_one = tether_test_heap_fired();
        long left_behind = tether_test_heap_live();
        tether_test_heap_fail_never();
        if (left_behind != 0)
            fail_msg("%ld blocks left behind after allocation %d failed", left_behind, n);
        if (st != TETHER_OK && !(failed_one && st == TETHER_ENOMEM))
            fail_msg("%s after allocation %d %s", tether_status_name(st), n,
                     failed_one ? "failed" : "and all others succeeded");
        if (!failed_one)
            return;
    }
}

void tether_test_heap_fail_each(tether_test_scenario *scenario, void *userdata)
{
    fail_each(scenario, userdata, false);
    fail_each(scenario, userdata, true);
}
