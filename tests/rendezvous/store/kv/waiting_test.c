/* The key-value core: waits, pops and barriers. */
#include <stdlib.h>

#include "base/alloc.h"
#include "rendezvous/store/kv/kv.h"
#include "tests/lib/cmocka.h"
#include "tests/rendezvous/store/kv/fixture.h"

/* ---- Waiting -------------------------------------------------------------------------------- */

static void wait_ends_once_when_all_keys_exist(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {0}, q = {0}, twice = {0};
    kv_wait_for(kv, &p, "x", "y");
    kv_wait_for(kv, &q, "y", NULL);
    kv_wait_for(kv, &twice, "y", "y"); /* the same key twice */
    kv_set(kv, "z", "");
    assert_int_equal(p.calls + q.calls + twice.calls, 0);
    kv_set(kv, "y", "1");
    assert_int_equal(p.calls, 0);
    assert_int_equal(q.calls, 1);
    assert_int_equal(twice.calls, 1);
    kv_set(kv, "x", "2");
    assert_int_equal(p.calls, 1);
    kv_set(kv, "x", "3");
    kv_set(kv, "y", "4");
    assert_int_equal(p.calls + q.calls + twice.calls, 3);
    kv_wait_for(kv, &p, "x", "y"); /* the same waiter again: all keys exist at once */
    assert_int_equal(p.calls, 2);
    tether__kv_cancel(kv, &p.waiter); /* does nothing after ready() */
}

/* A key that is deleted during the wait is missing again. (PyTorch's server does not notice
 * that.) */
static void wait_needs_all_keys_at_the_same_time(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {0};
    kv_wait_for(kv, &p, "x", "y");
    kv_set(kv, "x", "1");
    assert_true(tether__kv_delete(kv, B("x")));
    kv_set(kv, "y", "1");
    assert_int_equal(p.calls, 0);
    kv_set(kv, "x", "again");
    assert_int_equal(p.calls, 1);
}

static void wait_counts_queue_as_present(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {0}, values = {0};
    tether_bytes keys[] = {B("q")};
    tether_buf popped = TETHER_BUF_INIT;
    kv_wait_for(kv, &p, "q", "key"); /* does not end when the queue of that name gets an element */
    values.kv = kv;
    assert_int_equal(
        tether__kv_wait(kv, &values.waiter, TETHER__KV_WANT_VALUE, keys, 1, probe_ready),
        TETHER_OK);
    assert_int_equal(tether__kv_queue_push(kv, B("q"), B("1")), TETHER_OK);
    assert_true(tether__kv_queue_pop(kv, B("q"), &popped)); /* and absent again */
    kv_set(kv, "key", "");
    assert_int_equal(p.calls, 0);
    assert_int_equal(tether__kv_queue_push(kv, B("q"), B("2")), TETHER_OK);
    assert_int_equal(p.calls, 1);
    assert_int_equal(values.calls, 0); /* a queue does not count as a value */
    assert_int_equal(tether__kv_count(kv), 1);
    kv_set(kv, "q", "value");
    assert_int_equal(values.calls, 1);
    tether_buf_fini(&popped);
}

static void waiting_pops_are_served_in_order(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p[3] = {{.calls = 0}};
    char text[2] = "a";
    for (int i = 0; i < 3; i++)
        assert_int_equal(tether__kv_wait_pop(kv, &p[i].waiter, B("q"), probe_ready), TETHER_OK);
    tether__kv_cancel(kv, &p[1].waiter);
    for (int i = 0; i < 3; i++, text[0]++)
        assert_int_equal(tether__kv_queue_push(kv, B("q"), B(text)), TETHER_OK);
    assert_string_equal(p[0].popped, "a");
    assert_int_equal(p[1].calls, 0);
    assert_string_equal(p[2].popped, "b");
    assert_int_equal(tether__kv_queue_len(kv, B("q")), 1);
    assert_int_equal(tether__kv_wait_pop(kv, &p[1].waiter, B("q"), probe_ready), TETHER_OK);
    assert_string_equal(p[1].popped, "c");
    assert_int_equal(tether__kv_queue_len(kv, B("q")), 0);
    assert_false(tether__kv_present(kv, B("q")));
}

static void wait_turn(struct tether__kv *kv, struct probe *probe)
{
    assert_int_equal(tether__kv_wait_turn(kv, &probe->waiter, B("q"), &probe->claim, probe_ready),
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
    assert_int_equal(tether__kv_wait_pop(kv, &popper.waiter, B("q"), probe_ready), TETHER_OK);
    assert_int_equal(popper.calls, 0);
    assert_false(tether__kv_claim_pop(kv, &p[1].claim, B("other"), &popped));
    assert_true(tether__kv_claim_pop(kv, &p[1].claim, B("q"), &popped));
    assert_string_equal(popped.data, "a");
    tether__kv_claim_drop(kv, &p[0].claim); /* a popper takes precedence over waiters */
    assert_string_equal(popper.popped, "b");
    assert_int_equal(p[2].calls, 0);
    assert_false(tether__kv_present(kv, B("q")));

    kv_wait_for(kv, &watcher, "q", NULL); /* a plain wait ends by any element */
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
    kv_wait_for(kv, &watcher, "b", NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tether__kv_wait_barrier(kv, &p[i].waiter, B("b"), 3, probe_ready),
                         TETHER_OK);
    assert_int_equal(watcher.calls, 1); /* the count of the barrier is a key */
    tether__kv_cancel(kv, &p[0].waiter);
    assert_int_equal(p[1].calls, 0);
    assert_int_equal(tether__kv_wait_barrier(kv, &p[2].waiter, B("b"), 3, probe_ready), TETHER_OK);
    assert_int_equal(p[0].calls, 0);
    assert_int_equal(p[1].calls, 1);
    assert_int_equal(p[2].calls, 1);
    assert_int_equal(tether__kv_wait_barrier(kv, &p[3].waiter, B("b"), 3, probe_ready), TETHER_OK);
    assert_int_equal(p[3].calls, 1);
    kv_set(kv, "text", "not a number");
    assert_int_equal(tether__kv_wait_barrier(kv, &p[0].waiter, B("text"), 3, probe_ready),
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
                tether__kv_wait_barrier(kv, &p[i].waiter, B("b"), sizes[k](i, N), probe_ready),
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
        assert_int_equal(tether__kv_wait_barrier(kv, &p[i].waiter, B("b"), 3, probe_ready),
                         TETHER_OK);
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
        kv_wait_for(kv, &p[i], "count", "never");
    int64_t sum;
    for (int i = 0; i < N; i++)
        assert_int_equal(tether__kv_add(kv, B("count"), 1, &sum), TETHER_OK);
    assert_in_range(kv->steps, N, 2 * N);
    assert_true(tether__kv_delete(kv, B("count")));
    kv_set(kv, "never", "");
    assert_int_equal(p[0].calls, 0); /* the deleted key is missing again */
    kv_set(kv, "count", "");
    for (int i = 0; i < N; i++)
        assert_int_equal(p[i].calls, 1);
    free(p);
}

static void ready_is_not_called_when_wait_is_cancelled(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {0}, never_used = {0};
    kv_set(kv, "there", ""); /* makes the table before the bytes are counted */
    size_t before = kv_live_bytes;
    kv_wait_for(kv, &p, "x", "y");
    tether__kv_cancel(kv, &p.waiter);
    tether__kv_cancel(kv, &p.waiter);
    tether__kv_cancel(kv, &never_used.waiter);
    /* Keys without a value and without a waiter take no memory. */
    assert_int_equal(kv_live_bytes, before);
    kv_set(kv, "x", "");
    kv_set(kv, "y", "");
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
    kv_wait_for(kv, &first, "q", NULL);
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
    tether__kv_wait_pop(probe->kv, &probe->other->waiter, B("q"), probe_ready);
}

static void wait_again(struct probe *probe)
{
    probe->then = NULL;
    kv_wait_for(probe->kv, probe, "y", "new");
}

static void ready_may_cancel_another_wait(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {.then = cancel_other}, q = {.then = cancel_other};
    p.other = &q;
    q.other = &p;
    kv_wait_for(kv, &p, "x", NULL);
    kv_wait_for(kv, &q, "x", NULL);
    kv_set(kv, "x", ""); /* both are complete; the first ready() cancels the second */
    assert_int_equal(p.calls, 1);
    assert_int_equal(q.calls, 0);
}

static void ready_may_start_another_wait(void **state)
{
    struct tether__kv *kv = *state;
    struct probe p = {.then = wait_again};
    kv_wait_for(kv, &p, "x", NULL);
    kv_set(kv, "x", "");
    kv_set(kv, "y", "");
    assert_int_equal(p.calls, 1);
    kv_set(kv, "new", "");
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
    kv_wait_for(kv, &p, "x", NULL);
    kv_wait_for(kv, &q, "x", NULL);
    kv_set(kv, "x", "");
    assert_int_equal(p.calls, 1);
    assert_int_equal(q.calls, 1);
    assert_int_equal(popper.calls, 0);
    assert_int_equal(tether__kv_queue_len(kv, B("q")), 2);
    assert_true(tether__kv_queue_pop(kv, B("q"), &popped));
    assert_string_equal(popped.data, "1");
    tether_buf_fini(&popped);
}

int main(void)
{
    tether_set_allocator(&kv_allocator);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
