/* The key-value core: behaviour that no store shows, and its costs. */
#include "rendezvous/store/kv/kv.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "tests/lib/cmocka.h"

#define B(text) tether_bytes_str(text)

/* ---- An allocator that counts bytes as the C library rounds them ---------------------------- */

static size_t live_bytes;

static void *counting_malloc(void *userdata, size_t size)
{
    (void)userdata;
    void *ptr = malloc(size);
    live_bytes += ptr ? malloc_usable_size(ptr) + sizeof(size_t) : 0;
    return ptr;
}

static void counting_free(void *userdata, void *ptr)
{
    (void)userdata;
    live_bytes -= ptr ? malloc_usable_size(ptr) + sizeof(size_t) : 0;
    free(ptr);
}

static void *counting_realloc(void *userdata, void *ptr, size_t size)
{
    (void)userdata;
    size_t before = ptr ? malloc_usable_size(ptr) + sizeof(size_t) : 0;
    void *moved = realloc(ptr, size);
    if (moved)
        live_bytes += malloc_usable_size(moved) + sizeof(size_t) - before;
    return moved;
}

/* ---- A waiter that counts ------------------------------------------------------------------- */

struct probe {
    struct tether__kv_waiter waiter;
    struct tether__kv_claim claim;
    struct tether__kv *kv;
    int calls;
    char popped[32];
    void (*then)(struct probe *probe); /* called by its ready(); NULL: nothing */
    struct probe *other;
};

static void on_ready(struct tether__kv_waiter *waiter, tether_buf *popped)
{
    struct probe *probe = tether__container_of(waiter, struct probe, waiter);
    probe->calls++;
    if (popped)
        snprintf(probe->popped, sizeof probe->popped, "%s", popped->data);
    if (probe->then)
        probe->then(probe);
}

static int setup(void **state)
{
    struct tether__kv *kv = calloc(1, sizeof *kv);
    live_bytes = 0;
    assert_int_equal(tether__kv_init(kv, 1 << 20), TETHER_OK);
    *state = kv;
    return 0;
}

static int teardown(void **state)
{
    struct tether__kv *kv = *state;
    tether__kv_fini(kv);
    tether__kv_fini(kv); /* does no harm */
    assert_int_equal(live_bytes, 0);
    free(kv);
    return 0;
}

static void set(struct tether__kv *kv, const char *key, const char *value)
{
    assert_int_equal(tether__kv_set(kv, B(key), B(value)), TETHER_OK);
}

static void wait_for(struct tether__kv *kv, struct probe *probe, const char *a, const char *b)
{
    tether_bytes keys[] = {B(a), B(b ? b : "")};
    probe->kv = kv;
    assert_int_equal(tether__kv_wait(kv, &probe->waiter, keys, b ? 2 : 1, on_ready), TETHER_OK);
}

/* ---- Waiting -------------------------------------------------------------------------------- */

static void wait_ends_once_when_all_keys_exist(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {0}, q = {0}, twice = {0};
    wait_for(kv, &p, "x", "y");
    wait_for(kv, &q, "y", NULL);
    wait_for(kv, &twice, "y", "y"); /* the same key twice */
    set(kv, "z", "");
    assert_int_equal(p.calls + q.calls + twice.calls, 0);
    set(kv, "y", "1");
    assert_int_equal(p.calls, 0);
    assert_int_equal(q.calls, 1);
    assert_int_equal(twice.calls, 1);
    set(kv, "x", "2");
    assert_int_equal(p.calls, 1);
    set(kv, "x", "3");
    set(kv, "y", "4");
    assert_int_equal(p.calls + q.calls + twice.calls, 3);
    wait_for(kv, &p, "x", "y"); /* the same waiter again: all keys exist at once */
    assert_int_equal(p.calls, 2);
    tether__kv_cancel(kv, &p.waiter); /* does nothing after ready() */
}

/* A key that is deleted during the wait is missing again. (PyTorch's server does not notice
 * that.) */
static void wait_needs_all_keys_at_the_same_time(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {0};
    wait_for(kv, &p, "x", "y");
    set(kv, "x", "1");
    assert_true(tether__kv_delete(kv, B("x")));
    set(kv, "y", "1");
    assert_int_equal(p.calls, 0);
    set(kv, "x", "again");
    assert_int_equal(p.calls, 1);
}

static void wait_counts_queue_as_present(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {0}, values = {0};
    tether_bytes keys[] = {B("q")};
    tether_buf popped = TETHER_BUF_INIT;
    wait_for(kv, &p, "q", "key"); /* does not end when the queue of that name gets an element */
    values.kv = kv;
    assert_int_equal(tether__kv_wait_values(kv, &values.waiter, keys, 1, on_ready), TETHER_OK);
    assert_int_equal(tether__kv_queue_push(kv, B("q"), B("1")), TETHER_OK);
    assert_true(tether__kv_queue_pop(kv, B("q"), &popped)); /* and absent again */
    set(kv, "key", "");
    assert_int_equal(p.calls, 0);
    assert_int_equal(tether__kv_queue_push(kv, B("q"), B("2")), TETHER_OK);
    assert_int_equal(p.calls, 1);
    assert_int_equal(values.calls, 0); /* a queue does not count as a value */
    assert_int_equal(tether__kv_count(kv), 1);
    set(kv, "q", "value");
    assert_int_equal(values.calls, 1);
    tether_buf_fini(&popped);
}

static void waiting_pops_are_served_in_order(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p[3] = {{.calls = 0}};
    char text[2] = "a";
    for (int i = 0; i < 3; i++)
        assert_int_equal(tether__kv_wait_pop(kv, &p[i].waiter, B("q"), on_ready), TETHER_OK);
    tether__kv_cancel(kv, &p[1].waiter);
    for (int i = 0; i < 3; i++, text[0]++)
        assert_int_equal(tether__kv_queue_push(kv, B("q"), B(text)), TETHER_OK);
    assert_string_equal(p[0].popped, "a");
    assert_int_equal(p[1].calls, 0);
    assert_string_equal(p[2].popped, "b");
    assert_int_equal(tether__kv_queue_len(kv, B("q")), 1);
    assert_int_equal(tether__kv_wait_pop(kv, &p[1].waiter, B("q"), on_ready), TETHER_OK);
    assert_string_equal(p[1].popped, "c");
    assert_int_equal(tether__kv_queue_len(kv, B("q")), 0);
    assert_false(tether__kv_present(kv, B("q")));
}

static void wait_turn(struct tether__kv *kv, struct probe *probe)
{
    assert_int_equal(tether__kv_wait_turn(kv, &probe->waiter, B("q"), &probe->claim, on_ready),
                     TETHER_OK);
}

static void push(struct tether__kv *kv, const char *text)
{
    assert_int_equal(tether__kv_queue_push(kv, B("q"), B(text)), TETHER_OK);
}

static void each_element_gives_one_claim(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p[3] = {{.calls = 0}}, popper = {0}, watcher = {0};
    tether_buf popped = TETHER_BUF_INIT;
    for (int i = 0; i < 3; i++)
        wait_turn(kv, &p[i]);
    push(kv, "a");
    push(kv, "b");
    assert_true(p[0].calls == 1 && p[1].calls == 1 && p[2].calls == 0);
    assert_false(tether__kv_queue_pop(kv, B("q"), &popped));
    assert_int_equal(tether__kv_wait_pop(kv, &popper.waiter, B("q"), on_ready), TETHER_OK);
    assert_int_equal(popper.calls, 0);
    assert_false(tether__kv_claim_pop(kv, &p[1].claim, B("other"), &popped));
    assert_true(tether__kv_claim_pop(kv, &p[1].claim, B("q"), &popped));
    assert_string_equal(popped.data, "a");
    tether__kv_claim_drop(kv, &p[0].claim); /* a popper takes precedence over waiters */
    assert_string_equal(popper.popped, "b");
    assert_int_equal(p[2].calls, 0);
    assert_false(tether__kv_present(kv, B("q")));

    wait_for(kv, &watcher, "q", NULL); /* a plain wait ends by any element */
    push(kv, "c");
    assert_true(p[2].calls == 1 && watcher.calls == 1);
    wait_turn(kv, &p[0]);
    assert_int_equal(p[0].calls, 1);
    tether__kv_claim_drop(kv, &p[2].claim);
    tether__kv_claim_drop(kv, &p[2].claim); /* nothing to drop */
    assert_int_equal(p[0].calls, 2);
    assert_true(tether__kv_claim_pop(kv, &p[0].claim, B("q"), &popped));
    assert_string_equal(popped.data, "c");
    tether_buf_fini(&popped);
}

static void barrier_ends_when_last_member_arrives(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p[4] = {{.calls = 0}}, watcher = {0};
    wait_for(kv, &watcher, "b", NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tether__kv_wait_barrier(kv, &p[i].waiter, B("b"), 3, on_ready), TETHER_OK);
    assert_int_equal(watcher.calls, 1); /* the count of the barrier is a key */
    tether__kv_cancel(kv, &p[0].waiter);
    assert_int_equal(p[1].calls, 0);
    assert_int_equal(tether__kv_wait_barrier(kv, &p[2].waiter, B("b"), 3, on_ready), TETHER_OK);
    assert_int_equal(p[0].calls, 0);
    assert_int_equal(p[1].calls, 1);
    assert_int_equal(p[2].calls, 1);
    assert_int_equal(tether__kv_wait_barrier(kv, &p[3].waiter, B("b"), 3, on_ready), TETHER_OK);
    assert_int_equal(p[3].calls, 1);
    set(kv, "text", "not a number");
    assert_int_equal(tether__kv_wait_barrier(kv, &p[0].waiter, B("text"), 3, on_ready),
                     TETHER_EINVAL);
    assert_int_equal(p[0].calls, 0);
}

/* Callers may give different world sizes, in any order. */
static int64_t size_of_all(int i, int n)
{
    (void)i;
    return n;
}

static int64_t size_falls(int i, int n)
{
    return 2 * n - i;
}

static int64_t size_rises(int i, int n)
{
    (void)n;
    return i + 2;
}

static void barrier_looks_at_few_members_for_each_arrival(void **state)
{
    enum { N = 16000 };
    static int64_t (*const sizes[])(int, int) = {size_of_all, size_falls, size_rises};
    struct tether__kv *kv = *state;
    struct probe *p = calloc(N, sizeof *p);
    assert_non_null(p);
    for (size_t k = 0; k < TETHER__ARRAY_LEN(sizes); k++) {
        int64_t sum;
        kv->steps = 0;
        for (int i = 0; i < N; i++) {
            p[i] = (struct probe){.kv = kv};
            assert_int_equal(
                tether__kv_wait_barrier(kv, &p[i].waiter, B("b"), sizes[k](i, N), on_ready),
                TETHER_OK);
        }
        assert_int_equal(tether__kv_add(kv, B("b"), N, &sum), TETHER_OK);
        for (int i = 0; i < N; i++)
            assert_int_equal(p[i].calls, 1);
        assert_in_range(kv->steps, N, 4 * N);
        assert_true(tether__kv_delete(kv, B("b")));
    }
    free(p);
}

static void delete_barrier(struct probe *probe)
{
    tether__kv_delete(probe->kv, B("b"));
}

static void barrier_ends_for_all_members_when_one_deletes_the_key(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = (struct probe){.kv = kv, .then = delete_barrier};
        assert_int_equal(tether__kv_wait_barrier(kv, &p[i].waiter, B("b"), 3, on_ready), TETHER_OK);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(p[i].calls, 1);
    assert_false(tether__kv_present(kv, B("b")));
}

static void change_skips_waiters_when_key_stays_present(void **state)
{
    enum { N = 1000 };
    struct tether__kv *kv = *state;
    struct probe *p = calloc(N, sizeof *p);
    assert_non_null(p);
    for (int i = 0; i < N; i++)
        wait_for(kv, &p[i], "count", "never");
    int64_t sum;
    for (int i = 0; i < N; i++)
        assert_int_equal(tether__kv_add(kv, B("count"), 1, &sum), TETHER_OK);
    assert_in_range(kv->steps, N, 2 * N);
    assert_true(tether__kv_delete(kv, B("count")));
    set(kv, "never", "");
    assert_int_equal(p[0].calls, 0); /* the deleted key is missing again */
    set(kv, "count", "");
    for (int i = 0; i < N; i++)
        assert_int_equal(p[i].calls, 1);
    free(p);
}

static void ready_is_not_called_when_wait_is_cancelled(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {0}, never_used = {0};
    set(kv, "there", ""); /* makes the table before the bytes are counted */
    size_t before = live_bytes;
    wait_for(kv, &p, "x", "y");
    tether__kv_cancel(kv, &p.waiter);
    tether__kv_cancel(kv, &p.waiter);
    tether__kv_cancel(kv, &never_used.waiter);
    /* Keys without a value and without a waiter take no memory. */
    assert_int_equal(live_bytes, before);
    set(kv, "x", "");
    set(kv, "y", "");
    assert_int_equal(p.calls, 0);
}

/* ---- ready() that starts and cancels waits -------------------------------------------------- */

static void cancel_other(struct probe *probe)
{
    tether__kv_cancel(probe->kv, &probe->other->waiter);
}

/* ready() of the first waiter cancels the second, which has a claim whose ready() has not run. */
static void claim_passes_to_next_waiter_when_wait_is_cancelled(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p[3] = {{.calls = 0}};
    tether_buf popped = TETHER_BUF_INIT;
    tether_bytes keys[] = {B("q"), B("r")}, values[] = {B("1"), B("2")};
    struct probe first = {.kv = kv, .then = cancel_other, .other = &p[1]};
    wait_for(kv, &first, "q", NULL);
    for (int i = 1; i < 3; i++)
        wait_turn(kv, &p[i]);
    push(kv, "a");
    assert_true(first.calls == 1 && p[1].calls == 0 && p[2].calls == 1);
    assert_true(tether__kv_claim_pop(kv, &p[2].claim, B("q"), &popped));
    wait_turn(kv, &p[1]);
    wait_turn(kv, &p[2]);
    assert_int_equal(tether__kv_multi_set(kv, keys, values, 2), TETHER_OK);
    assert_true(p[1].calls == 1 && p[2].calls == 2 && !tether__kv_has_claim(&p[1].claim));
    tether_buf_fini(&popped);
}

static void pop_for_other(struct probe *probe)
{
    tether__kv_wait_pop(probe->kv, &probe->other->waiter, B("q"), on_ready);
}

static void wait_again(struct probe *probe)
{
    probe->then = NULL;
    wait_for(probe->kv, probe, "y", "new");
}

static void ready_may_cancel_another_wait(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {.then = cancel_other}, q = {.then = cancel_other};
    p.other = &q;
    q.other = &p;
    wait_for(kv, &p, "x", NULL);
    wait_for(kv, &q, "x", NULL);
    set(kv, "x", ""); /* both are complete; the first ready() cancels the second */
    assert_int_equal(p.calls, 1);
    assert_int_equal(q.calls, 0);
}

static void ready_may_start_another_wait(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {.then = wait_again};
    wait_for(kv, &p, "x", NULL);
    set(kv, "x", "");
    set(kv, "y", "");
    assert_int_equal(p.calls, 1);
    set(kv, "new", "");
    assert_int_equal(p.calls, 2);
}

/* The ready() of the first waiter starts a pop for a third one. The ready() of the second cancels
 * that pop before its own ready() has run: the element must return to the queue. */
static void cancelled_pop_returns_its_element(void **state)
{
    struct tether__kv *kv = *state;
    struct probe popper = {0};
    struct probe p = {.then = pop_for_other, .other = &popper};
    struct probe q = {.then = cancel_other, .other = &popper};
    tether_buf popped = TETHER_BUF_INIT;
    assert_int_equal(tether__kv_queue_push(kv, B("q"), B("1")), TETHER_OK);
    assert_int_equal(tether__kv_queue_push(kv, B("q"), B("2")), TETHER_OK);
    wait_for(kv, &p, "x", NULL);
    wait_for(kv, &q, "x", NULL);
    set(kv, "x", "");
    assert_int_equal(p.calls, 1);
    assert_int_equal(q.calls, 1);
    assert_int_equal(popper.calls, 0);
    assert_int_equal(tether__kv_queue_len(kv, B("q")), 2);
    assert_true(tether__kv_queue_pop(kv, B("q"), &popped));
    assert_string_equal(popped.data, "1");
    tether_buf_fini(&popped);
}

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
    assert_int_equal(tether__kv_wait_pop(kv, &popper.waiter, B("q"), on_ready), TETHER_OK);
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
    wait_for(kv, &p, "k", NULL);
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
    size_t each = (live_bytes - payload) / KEYS;
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
        set(kv, key, "value");
        snprintf(key, sizeof key, "key-%d", i - 100);
        assert_int_equal(tether__kv_delete(kv, B(key)), i >= 100);
        if (live_bytes > most)
            most = live_bytes;
    }
    assert_int_equal(tether__kv_count(kv), 100);
    assert_in_range(most, 1, 64 << 10);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    static const struct tether_allocator counting = {counting_malloc, counting_realloc,
                                                     counting_free, NULL};
    tether_set_allocator(&counting);
    const struct CMUnitTest tests[] = {
        TEST(wait_ends_once_when_all_keys_exist),
        TEST(wait_needs_all_keys_at_the_same_time),
        TEST(wait_counts_queue_as_present),
        TEST(waiting_pops_are_served_in_order),
        TEST(each_element_gives_one_claim),
        TEST(claim_passes_to_next_waiter_when_wait_is_cancelled),
        TEST(barrier_ends_when_last_member_arrives),
        TEST(barrier_looks_at_few_members_for_each_arrival),
        TEST(barrier_ends_for_all_members_when_one_deletes_the_key),
        TEST(change_skips_waiters_when_key_stays_present),
        TEST(ready_is_not_called_when_wait_is_cancelled),
        TEST(ready_may_cancel_another_wait),
        TEST(ready_may_start_another_wait),
        TEST(cancelled_pop_returns_its_element),
        TEST(changes_fail_when_value_exceeds_max_value),
        TEST(changes_beyond_max_bytes_are_refused_and_change_nothing),
        TEST(set_take_moves_the_value_without_a_copy),
        TEST(keys_may_contain_any_bytes),
        TEST(key_takes_little_memory_when_there_are_a_million),
        TEST(memory_stays_bounded_when_keys_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
