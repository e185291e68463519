/* References on values so large that they go in pieces, which small messages overtake: a delete of
 * the same reference above all. Every way that a reference can go, with a small and a large value,
 * over a network that is up, and over one that has just broken, so that everything queues up and
 * leaves in the order of the lane.
 *
 * w1 owns, w0 creates; a sender of a reference releases it at once.
 */
#include <stdlib.h>
#include <string.h>

#include "rref/context.h"
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/cast.h"

#define LARGE 2000 /* seven pieces */

static size_t length; /* of every value that is sent */
static bool cut;      /* whether connections break before anything is sent */

static tether_value *value_with(tether_rref *rref)
{
    char bytes[LARGE];
    tether_value *value = NULL;
    memset(bytes, '1', sizeof bytes);
    assert_int_equal(tether_value_new(tether_bytes_of(bytes, length), &value, NULL), TETHER_OK);
    if (rref)
        assert_int_equal(tether_value_attach(value, rref, NULL), TETHER_OK);
    return value;
}

/* Returns the reference that "keep" holds, and releases it. */
static tether_status give_away(void *userdata,
                               const tether_value *arg,
                               tether_value **ret_value,
                               tether_error *reterr)
{
    (void)arg, (void)reterr;
    int i = atoi(tether_agent_name(userdata) + 1);
    *ret_value = value_with(cast_held[i]);
    cast_held[i] = tether_rref_release(cast_held[i]);
    return TETHER_OK;
}

static void register_all(tether_agent *agent)
{
    cast_register(agent);
    assert_int_equal(tether_agent_register_inline(agent, "give_away", give_away, agent, NULL),
                     TETHER_OK);
    agent->lane_limits.inline_bytes = 100;
    agent->lane_limits.fragment_bytes = 300;
}

static void cut_all(struct tether_test_world *w)
{
    for (int i = 0; cut && i < w->n; i++)
        for (int j = i + 1; j < w->n; j++)
            tether_sim_cut(w->sim, w->agents[i], w->agents[j], true);
}

static tether_rref *confirmed_counter(struct tether_test_world *w)
{
    tether_rref *rref = cast_remote_counter(w->agents[0], "w1", "1");
    tether_future *future = tether_rref_confirmed(rref);
    assert_int_equal(tether_future_wait(future, 10000, NULL, NULL), TETHER_OK);
    tether_future_release(future);
    return rref;
}

static void await_ok(tether_future *future, tether_value **ret_value)
{
    tether_error err = {0};
    if (tether_future_wait(future, 10000, ret_value, &err) != TETHER_OK)
        fail_msg("%zu bytes%s: %s", length, cut ? ", after a cut" : "", err.message);
    tether_future_release(future);
}

/* Sends `rref` (TAKES) to a function that keeps it. */
static void send_and_let_go(struct tether_test_world *w,
                            int from,
                            const char *to,
                            tether_rref *rref)
{
    tether_value *arg = value_with(rref);
    cut_all(w);
    tether_future *future = tether_rpc_async(w->agents[from], to, "keep", arg, 10000);
    tether_value_release(arg);
    tether_rref_release(rref);
    await_ok(future, NULL);
}

/* ---- The ways ---- */

static void user_to_owner(struct tether_test_world *w)
{
    send_and_let_go(w, 0, "w1", confirmed_counter(w));
    assert_true(tether_rref_is_owner(cast_held[1]));
    cast_add_ok(cast_held[1], "1", "2");
}

static void user_to_user(struct tether_test_world *w)
{
    send_and_let_go(w, 0, "w2", confirmed_counter(w));
    cast_add_ok(cast_held[2], "1", "2");
}

static void user_to_user_before_it_is_made(struct tether_test_world *w)
{
    send_and_let_go(w, 0, "w2", cast_remote_counter(w->agents[0], "w1", "1"));
    cast_add_ok(cast_held[2], "1", "2");
}

static void owner_to_user(struct tether_test_world *w)
{
    send_and_let_go(w, 1, "w0", cast_own_counter(w->agents[1], 1));
    cast_add_ok(cast_held[0], "1", "2");
}

/* `to` asks w2, who has it from w0, and gets it in a reply. */
static void give_in_reply(struct tether_test_world *w, int to)
{
    tether_value *result = NULL;
    tether_rref *rref = confirmed_counter(w);
    cast_send_ok(w->agents[0], "w2", "keep", rref);
    tether_rref_release(rref);
    cut_all(w);
    await_ok(tether_rpc_async(w->agents[to], "w2", "give_away", NULL, 10000), &result);
    assert_int_equal(tether_value_n_rrefs(result), 1);
    cast_add_ok(tether_value_rref(result, 0), "1", "2");
    tether_value_release(result);
}

static void reply_to_user(struct tether_test_world *w)
{
    give_in_reply(w, 0);
}

static void reply_to_owner(struct tether_test_world *w)
{
    give_in_reply(w, 1);
}

static void reply_from_owner(struct tether_test_world *w)
{
    tether_value *result = NULL;
    cast_held[1] = cast_own_counter(w->agents[1], 1);
    cut_all(w);
    await_ok(tether_rpc_async(w->agents[0], "w1", "give_away", NULL, 10000), &result);
    cast_add_ok(tether_value_rref(result, 0), "1", "2");
    tether_value_release(result);
}

/* The call is about the object; its argument is large. */
static void method_call(struct tether_test_world *w)
{
    tether_rref *rref = confirmed_counter(w);
    tether_value *arg = value_with(NULL);
    cut_all(w);
    tether_future *future = tether_rref_async(rref, "add", arg, 10000);
    tether_value_release(arg);
    tether_rref_release(rref);
    await_ok(future, NULL);
}

/* Another reference is attached to the argument of a creation; all are released at once. */
static void creation_with_a_reference(struct tether_test_world *w)
{
    tether_rref *attached = confirmed_counter(w);
    tether_value *arg = value_with(attached), *copy = NULL;
    cut_all(w);
    tether_rref *rref = tether_remote(w->agents[0], "w2", "make_counter", arg, 10000);
    tether_future *fetch = tether_rref_to_here_async(rref, 10000);
    tether_value_release(arg);
    tether_rref_release(attached);
    tether_rref_release(rref);
    await_ok(fetch, &copy);
    assert_non_null(tether_value_object(copy, &cast_counter_type));
    tether_value_release(copy);
}

/* ---- All of them ---- */

static void run_each(void (*way)(struct tether_test_world *w))
{
    for (int i = 0; i < 4; i++) {
        struct tether_test_world w;
        length = i & 1 ? LARGE : 1;
        cut = i & 2;
        tether_test_world_register = register_all;
        tether_test_world_start(&w, TETHER_TEST_SIM, 3, TETHER_AGENT_OPTS(.lease_ms = 3000));
        way(&w);
        cast_drop_all();
        cast_assert_nothing_left(&w);
        tether_test_world_stop(&w);
    }
}

#define WAYS(X)                       \
    X(user_to_owner)                  \
    X(user_to_user)                   \
    X(user_to_user_before_it_is_made) \
    X(owner_to_user)                  \
    X(reply_to_user)                  \
    X(reply_to_owner)                 \
    X(reply_from_owner)               \
    X(method_call)                    \
    X(creation_with_a_reference)

#define TEST(way)                        \
    static void test_##way(void **state) \
    {                                    \
        (void)state;                     \
        run_each(way);                   \
    }
WAYS(TEST)

int main(void)
{
#define ROW(way) cmocka_unit_test(test_##way),
    const struct CMUnitTest tests[] = {WAYS(ROW)};
    return cmocka_run_group_tests_name("references on large values", tests, NULL, NULL);
}
