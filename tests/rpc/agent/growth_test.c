/* Nothing grows with the number of calls made, however they end: after a hundred thousand the two
 * workers, both in this process, hold what they held after the first few thousand. */
#include <stdio.h>
#include <stdlib.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/world.h"

enum { WINDOW = 40, WARM_UP = 4000, MAX_HELD = 4 * WINDOW };

/* ---- A function that never answers by itself ---- */

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static tether_reply *held[MAX_HELD]; /* under mu */

/* Answers those whose callers have given up, and keeps `reply`, unless it is NULL. */
static void sweep(tether_reply *reply)
{
    tether_reply *over[MAX_HELD];
    size_t n = 0;
    pthread_mutex_lock(&mu);
    for (size_t i = 0; i < MAX_HELD; i++) {
        if (held[i] && tether_reply_is_cancelled(held[i])) {
            over[n++] = held[i];
            held[i] = NULL;
        }
        if (!held[i] && reply) {
            held[i] = reply;
            reply = NULL;
        }
    }
    pthread_mutex_unlock(&mu);
    assert_null(reply); /* there is room for more than are ever in flight */
    for (size_t i = 0; i < n; i++)
        tether_reply_ok(over[i], NULL);
}

static bool none_held(void *userdata)
{
    (void)userdata;
    sweep(NULL);
    bool none = true;
    pthread_mutex_lock(&mu);
    for (size_t i = 0; i < MAX_HELD; i++)
        none = none && !held[i];
    pthread_mutex_unlock(&mu);
    return none;
}

static void keep(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    sweep(reply);
}

static void register_keep(tether_agent *agent)
{
    assert_int_equal(tether_agent_register_async(agent, "keep", keep, true, NULL, NULL), TETHER_OK);
}

/* ---- Calls ---- */

/* The ways in which a call may go. */
static const struct way {
    const char *fn;
    size_t size;
    int timeout_ms;
    bool cancel;
    tether_status status;
} ways[] = {
    {"echo", 10, 10000, false, TETHER_OK},     {"echo_pooled", 300, 10000, false, TETHER_OK},
    {"echo", 20000, 10000, false, TETHER_OK},  {"echo", 10, 10000, false, TETHER_OK},
    {"fail", 10, 10000, false, TETHER_EINVAL}, {"nothing", 10, 10000, false, TETHER_ENOTFOUND},
    {"keep", 10, 5, false, TETHER_ETIMEOUT},   {"keep", 10, 10000, true, TETHER_ECANCELED},
};
_Static_assert(WINDOW % TETHER__ARRAY_LEN(ways) == 0, "a slot of the window has its way");

static tether_future *start(struct tether_test_world *w, const struct way *way)
{
    static const char bytes[20000];
    tether_value *arg = NULL;
    assert_int_equal(tether_value_new(tether_bytes_of(bytes, way->size), &arg, NULL), TETHER_OK);
    tether_future *future = tether_rpc_async(w->agents[0], "w1", way->fn, arg, way->timeout_ms);
    tether_value_release(arg);
    return future;
}

static void finish(tether_future *future, const struct way *way)
{
    tether_error err = {0};
    if (way->cancel)
        tether_future_cancel(future);
    tether_status st = tether_future_wait(future, -1, NULL, &err);
    if (st != way->status)
        fail_msg("'%s': %s: %s", way->fn, tether_status_name(st), err.message);
    tether_future_release(future);
}

static void call_many(struct tether_test_world *w, int n)
{
    tether_future *calls[WINDOW] = {0};
    for (int i = 0; i < n + WINDOW; i++) {
        const struct way *way = &ways[(size_t)i % TETHER__ARRAY_LEN(ways)];
        tether_future **call = &calls[i % WINDOW];
        if (*call)
            finish(*call, way);
        *call = i < n ? start(w, way) : NULL;
    }
    assert_true(tether_test_world_wait(w, none_held, NULL));
}

/* ---- What is held ---- */

/* Buffers are cached, and their number depends on how calls were batched. They are few; a leak in
 * each call would leave many. */
static bool is_as_before(long blocks, long bytes)
{
    return tether_test_heap_live() <= blocks + 50 && tether_test_heap_bytes() <= bytes + 256 * 1024;
}

static void leaves_nothing(enum tether_test_net net, int n)
{
    struct tether_test_world w;
    tether_test_world_start(&w, net, 2, NULL);
    call_many(&w, WARM_UP);
    long blocks = tether_test_heap_live(), bytes = tether_test_heap_bytes();
    call_many(&w, n);
    if (w.sim && !is_as_before(blocks, bytes))
        fail_msg("after %d calls %ld blocks and %ld bytes more than before", n,
                 tether_test_heap_live() - blocks, tether_test_heap_bytes() - bytes);
    assert_eventually(is_as_before(blocks, bytes));
    tether_test_world_stop(&w);
}

static void memory_does_not_grow_with_simulated_calls(void **state)
{
    (void)state;
    leaves_nothing(TETHER_TEST_SIM, 100000);
}

static void memory_does_not_grow_with_grpc_calls(void **state)
{
    (void)state;
    leaves_nothing(TETHER_TEST_GRPC, 20000);
}

static void memory_does_not_grow_with_unix_calls(void **state)
{
    (void)state;
    leaves_nothing(TETHER_TEST_UNIX, 20000);
}

int main(void)
{
    tether_test_world_register = register_keep;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_does_not_grow_with_simulated_calls),
        cmocka_unit_test(memory_does_not_grow_with_grpc_calls),
        cmocka_unit_test(memory_does_not_grow_with_unix_calls),
    };
    return cmocka_run_group_tests_name("growth", tests, NULL, NULL);
}
