/* The key-value core with an allocator that counts bytes and waiters that count calls. */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_KV_FIXTURE_H
#define TETHER_TESTS_RENDEZVOUS_STORE_KV_FIXTURE_H

#include "base/alloc.h"
#include "rendezvous/store/kv/kv.h"
#include "tests/lib/cmocka.h"

#define B(text) tether_bytes_str(text)

/* A waiter that counts. */
struct probe {
    struct tether__kv_waiter waiter;
    struct tether__kv_claim claim;
    struct tether__kv *kv;
    int calls;
    char popped[32];
    void (*then)(struct probe *probe); /* called by its ready(); NULL: nothing */
    struct probe *other;
};

#define TEST(name) cmocka_unit_test_setup_teardown(name, kv_setup, kv_teardown)

/* The bytes that live through the allocator, as the C library rounds them. */
extern const struct tether_allocator kv_allocator;
extern size_t kv_live_bytes;

/* *state is an empty core, whose memory the teardown checks. */
int kv_setup(void **state);
int kv_teardown(void **state);

void kv_set(struct tether__kv *kv, const char *key, const char *value);

/* Waits for `a`, and for `b` when it is not NULL. */
void kv_wait_for(struct tether__kv *kv, struct probe *probe, const char *a, const char *b);

/* The ready() of a probe: counts the call, and keeps the element that came with it. */
void probe_ready(struct tether__kv_waiter *waiter, tether_buf *popped);

#endif
