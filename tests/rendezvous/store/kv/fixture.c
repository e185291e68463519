#include "tests/rendezvous/store/kv/fixture.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "rendezvous/store/kv/kv.h"
#include "tests/lib/cmocka.h"

size_t kv_live_bytes;

static void *counting_malloc(void *userdata, size_t size)
{
    (void)userdata;
    void *ptr = malloc(size);
    kv_live_bytes += ptr ? malloc_usable_size(ptr) + sizeof(size_t) : 0;
    return ptr;
}

static void counting_free(void *userdata, void *ptr)
{
    (void)userdata;
    kv_live_bytes -= ptr ? malloc_usable_size(ptr) + sizeof(size_t) : 0;
    free(ptr);
}

static void *counting_realloc(void *userdata, void *ptr, size_t size)
{
    (void)userdata;
    size_t before = ptr ? malloc_usable_size(ptr) + sizeof(size_t) : 0;
    void *moved = realloc(ptr, size);
    if (moved)
        kv_live_bytes += malloc_usable_size(moved) + sizeof(size_t) - before;
    return moved;
}

const struct tether_allocator kv_allocator = {counting_malloc, counting_realloc, counting_free,
                                              NULL};

void probe_ready(struct tether__kv_waiter *waiter, tether_buf *popped)
{
    struct probe *probe = tether__container_of(waiter, struct probe, waiter);
    probe->calls++;
    if (popped)
        snprintf(probe->popped, sizeof probe->popped, "%s", popped->data);
    if (probe->then)
        probe->then(probe);
}

int kv_setup(void **state)
{
    struct tether__kv *kv = calloc(1, sizeof *kv);
    kv_live_bytes = 0;
    assert_int_equal(tether__kv_init(kv, 1 << 20), TETHER_OK);
    *state = kv;
    return 0;
}

int kv_teardown(void **state)
{
    struct tether__kv *kv = *state;
    tether__kv_fini(kv);
    tether__kv_fini(kv); /* does no harm */
    assert_int_equal(kv_live_bytes, 0);
    free(kv);
    return 0;
}

void kv_set(struct tether__kv *kv, const char *key, const char *value)
{
    assert_int_equal(tether__kv_set(kv, B(key), B(value)), TETHER_OK);
}

void kv_wait_for(struct tether__kv *kv, struct probe *probe, const char *a, const char *b)
{
    tether_bytes keys[] = {B(a), B(b ? b : "")};
    probe->kv = kv;
    assert_int_equal(
        tether__kv_wait(kv, &probe->waiter, TETHER__KV_WANT_ANY, keys, b ? 2 : 1, probe_ready),
        TETHER_OK);
}
