/* References when there is no memory. A sequence of typical operations runs over the simulated
 * network, each time with its first, second, third … allocation failing, alone or with all that
 * follow for a while.
 *
 * Nothing crashes and nothing hangs. A failing operation returns TETHER_ENOMEM, or the status for a
 * peer that ended the session because it had no memory to answer. When memory is back and a lease
 * has passed, all tables are empty, every object is destroyed, every block is free, and the workers
 * serve each other as before.
 *
 *   TETHER_ALLOCATION=242 begins with that one
 */
#include <stdlib.h>
#include <string.h>

#include "rref/context.h"
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/rref/cast.h"

#define LEASE_MS 1000
#define CALL_MS 3000

/* ---- One step after the other ---- */

struct day {
    struct tether_test_world world;
    tether_rref *made, *own;
    int step; /* for messages */
};

static void judge(struct day *day, tether_status st, const tether_error *err)
{
    switch (st) {
        case TETHER_OK:
            return;
        case TETHER_ENOMEM:
        case TETHER_EUNAVAILABLE: /* the peer had no memory, and ended the session */
        case TETHER_EFENCED:
        case TETHER_EOWNERDIED:
        case TETHER_EGONE:
        case TETHER_ETIMEOUT: /* or this worker ended it, and the peer has not noticed yet */
            if (tether_test_heap_fired())
                return;
            break;
        default:
            break;
    }
    tether_test_heap_relent();
    fail_msg("step %d: %s: %s", day->step, tether_status_name(st), err->message);
}

/* Calls `fn`, with a reference (NULL: none) on an argument of `len` bytes, and looks at what comes
 * back. */
static void call(struct day *day,
                 int from,
                 const char *to,
                 const char *fn,
                 tether_rref *rref,
                 size_t len)
{
    char bytes[1000];
    tether_error err = {0};
    tether_value *arg = NULL, *result = NULL;
    memset(bytes, '1', sizeof bytes);
    tether_status st = tether_value_new(tether_bytes_of(bytes, len), &arg, &err);
    if (st == TETHER_OK && rref)
        st = tether_value_attach(arg, rref, &err);
    if (st == TETHER_OK)
        st = tether_rpc_sync(day->world.agents[from], to, fn, arg, CALL_MS, &result, &err);
    if (st == TETHER_OK && tether_value_n_rrefs(result))
        judge(day, tether_rref_to_here(tether_value_rref(result, 0), CALL_MS, NULL, &err), &err);
    tether_value_release(arg);
    tether_value_release(result);
    judge(day, st, &err);
    day->step++;
}

static void method(struct day *day, tether_rref *rref)
{
    tether_error err = {0};
    tether_value *arg = NULL, *result = NULL;
    tether_status st = tether_value_printf(&arg, &err, "2");
    if (st == TETHER_OK)
        st = tether_rref_sync(rref, "add", arg, CALL_MS, &result, &err);
    tether_value_release(arg);
    tether_value_release(result);
    judge(day, st, &err);
    day->step++;
}

static void fetch(struct day *day, tether_rref *rref)
{
    tether_error err = {0};
    tether_value *copy = NULL;
    tether_status st = tether_rref_to_here(rref, CALL_MS, &copy, &err);
    if (st == TETHER_OK)
        assert_non_null(tether_value_object(copy, &cast_counter_type));
    tether_value_release(copy);
    judge(day, st, &err);
    day->step++;
}

static void create(struct day *day)
{
    tether_error err = {0};
    tether_value *object = NULL;
    day->made = tether_remote(day->world.agents[0], "w1", "make_counter", NULL, CALL_MS);
    assert_non_null(day->made);
    tether_status st = cast_new_counter(1, &object, &err);
    if (st == TETHER_OK)
        st = tether_rref_new(day->world.agents[0], object, &day->own, &err);
    tether_value_release(object);
    judge(day, st, &err);
    day->step++;
}

/* w1 and w2 lose sight of each other for longer than a lease. */
static void fence(struct day *day)
{
    struct tether_test_world *w = &day->world;
    tether_sim_part(w->sim, w->agents[1], w->agents[2], true);
    tether_sim_run(w->sim, NULL, NULL, 2 * LEASE_MS);
    tether_sim_part(w->sim, w->agents[1], w->agents[2], false);
    day->step++;
}

static void drop(struct day *day)
{
    day->made = tether_rref_release(day->made);
    day->own = tether_rref_release(day->own);
    cast_drop_all();
    day->step++;
}

static void ignore_loss(tether_rref *rref, void *userdata)
{
    (void)rref, (void)userdata;
}

static void live_through(struct day *day)
{
    tether_error err = {0};
    create(day);
    judge(day, tether_rref_on_owner_lost(day->made, ignore_loss, NULL, &err), &err);
    method(day, day->made); /* before it is known to be made */
    fetch(day, day->made);
    call(day, 0, "w2", "keep", day->made, 1); /* user to user */
    if (cast_held[2])
        method(day, cast_held[2]);
    call(day, 0, "w2", "give", NULL, 0);        /* and back, in a reply */
    call(day, 1, "w2", "give", NULL, 0);        /* to its owner, in a reply */
    call(day, 0, "w1", "keep", day->made, 1);   /* to its owner */
    call(day, 0, "w1", "keep", day->made, 900); /* in pieces */
    call(day, 0, "w2", "keep", day->made, 900);
    if (day->own) {
        call(day, 0, "w1", "keep", day->own, 1); /* owner to user */
        call(day, 0, "w2", "keep", day->own, 900);
        call(day, 2, "w1", "keep", cast_held[2] ? cast_held[2] : NULL, 1);
    }
    call(day, 0, "w2", "keep", day->made, 1);
    fence(day); /* w2's references to objects of w1 break */
    drop(day);
}

/* ---- The sequence, with each allocation failing in turn ---- */

static void register_all(tether_agent *agent)
{
    cast_register(agent);
    agent->lane_limits.inline_bytes = 100;
    agent->lane_limits.fragment_bytes = 300;
}

static void start(struct day *day)
{
    memset(day, 0, sizeof *day);
    tether_test_world_register = register_all;
    tether_test_world_start(&day->world, TETHER_TEST_SIM, 3,
                            TETHER_AGENT_OPTS(.lease_ms = LEASE_MS, .timeout_ms = CALL_MS));
}

/* The world has recovered: every worker can create, pass on and release references. */
static void assert_healthy(struct tether_test_world *w)
{
    for (int i = 0; i < w->n; i++) {
        char owner[8], user[8];
        snprintf(owner, sizeof owner, "w%d", (i + 1) % w->n);
        snprintf(user, sizeof user, "w%d", (i + 2) % w->n);
        tether_rref *rref = cast_remote_counter(w->agents[i], owner, "5");
        cast_add_ok(rref, "1", "6");
        cast_send_ok(w->agents[i], user, "keep", rref);
        tether_rref_release(rref);
        cast_add_ok(cast_held[(i + 2) % w->n], "1", "7");
        cast_drop_all();
    }
    cast_assert_nothing_left(w);
}

/* Whether an allocation has failed. */
static bool run_with_failure(void (*arm)(int n), int n)
{
    static struct day day;
    tether_test_heap_fail_never();
    start(&day);
    long before = tether_test_heap_live();
    arm(n);
    live_through(&day);
    bool fired = tether_test_heap_fired();
    tether_test_heap_relent();
    tether_sim_run(day.world.sim, NULL, NULL, 2 * LEASE_MS + CALL_MS + 1000);
    for (int i = 0; i < day.world.n; i++)
        if (!cast_is_idle(day.world.agents[i]) || cast_n_live)
            print_message("after allocation %d failed:\n", n);
    cast_assert_nothing_left(&day.world);
    assert_healthy(&day.world);
    tether_test_world_stop(&day.world);
    long left = before + tether_test_heap_live();
    if (left != 0)
        fail_msg("%ld blocks left behind after allocation %d failed", left, n);
    tether_test_heap_fail_never();
    return fired;
}

static int first(void)
{
    const char *text = getenv("TETHER_ALLOCATION");
    return text ? atoi(text) : 0;
}

static void workers_recover_when_any_allocation_fails(void **state)
{
    (void)state;
    int n = first();
    while (run_with_failure(tether_test_heap_fail_at, n))
        n++;
    print_message("%d allocations\n", n);
    assert_true(n > 100);
}

static void workers_recover_when_all_allocations_fail_for_a_while(void **state)
{
    (void)state;
    for (int n = first(); run_with_failure(tether_test_heap_fail_from, n); n++)
        ;
}

static size_t count_of(const char *text, char c)
{
    size_t n = 0;
    for (; *text; text++)
        n += *text == c;
    return n;
}

static void dump_fails_as_a_whole_when_an_allocation_fails(void **state)
{
    (void)state;
    enum { OBJECTS = 100 };
    static struct day day;
    tether_rref *rrefs[OBJECTS];
    tether_test_heap_fail_never();
    start(&day);
    for (int i = 0; i < OBJECTS; i++) {
        rrefs[i] = cast_remote_counter(day.world.agents[0], "w1", "1");
        cast_add_ok(rrefs[i], "1", "2");
    }
    tether_status st = TETHER_ENOMEM;
    int n = 0;
    for (; st == TETHER_ENOMEM; n++) {
        tether_buf text = TETHER_BUF_INIT;
        tether_test_heap_fail_at(n);
        st = tether_rref_dump(day.world.agents[0], true, &text);
        bool fired = tether_test_heap_fired();
        tether_test_heap_fail_never();
        assert_int_equal(st, fired ? TETHER_ENOMEM : TETHER_OK); /* never a text with a hole */
        if (st == TETHER_OK) {
            assert_int_equal(count_of(text.data, '{'), 1 + OBJECTS);
            assert_int_equal(count_of(text.data, '}'), 1 + OBJECTS);
            assert_null(strstr(text.data, "}{")); /* a comma between any two */
        }
        tether_buf_fini(&text);
    }
    assert_true(n > 2);
    for (int i = 0; i < OBJECTS; i++)
        tether_rref_release(rrefs[i]);
    cast_assert_nothing_left(&day.world);
    tether_test_world_stop(&day.world);
}

/* A sender keeps a reference that it passed on until the receiver accepts it. Without the record of
 * that, the sender could release the reference too early. */
static void passed_reference_is_remembered_when_allocations_fail(void **state)
{
    (void)state;
    static struct day day;
    bool fired = true;
    tether_test_heap_fail_never();
    start(&day);
    struct tether_test_world *w = &day.world;
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    cast_add_ok(rref, "1", "2");
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    cast_drop_all();
    tether_sim_run(w->sim, NULL, NULL, 500);
    int n = 0;
    for (; fired; n++) {
        tether_value *arg = cast_text("");
        assert_int_equal(tether_value_attach(arg, rref, NULL), TETHER_OK);
        tether_test_heap_fail_at(n);
        tether_future *sent = tether_rpc_async(w->agents[0], "w2", "keep", arg, CALL_MS);
        fired = tether_test_heap_fired();
        tether_test_heap_relent();
        tether_value_release(arg);
        bool has_failed = tether_future_is_done(sent);
        if (has_failed)
            assert_int_equal(tether_future_status(sent, NULL), TETHER_ENOMEM);
        assert_int_equal(tether_rref_counts(w->agents[0]).pending_children, !has_failed);
        tether_sim_run(w->sim, NULL, NULL, 500);
        tether_future_release(sent);
        cast_drop_all();
        tether_sim_run(w->sim, NULL, NULL, 500);
    }
    assert_true(n > 3);
    tether_rref_release(rref);
    cast_assert_nothing_left(w);
    tether_test_world_stop(w);
    tether_test_heap_fail_never();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_recover_when_any_allocation_fails),
        cmocka_unit_test(workers_recover_when_all_allocations_fail_for_a_while),
        cmocka_unit_test(dump_fails_as_a_whole_when_an_allocation_fails),
        cmocka_unit_test(passed_reference_is_remembered_when_allocations_fail),
    };
    return cmocka_run_group_tests_name("references without memory", tests, NULL, NULL);
}
