/* Remote references among three workers: made, used, passed on, let go, lost. */
#include "tests/rref/rref_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/world.h"

static bool simulated;
static _Atomic int n_live; /* counters that exist, on whatever worker */

/* ---- An object with methods ---- */

struct counter {
    _Atomic int n;
};

static void counter_destroy(void *object)
{
    free(object);
    atomic_fetch_sub(&n_live, 1);
}

static tether_status counter_serialise(const void *object,
                                       tether_buf *ret_bytes,
                                       tether_error *reterr)
{
    (void)reterr;
    return tether_buf_printf(ret_bytes, "%d", ((const struct counter *)object)->n);
}

static tether_status counter_deserialise(tether_bytes bytes,
                                         void **ret_object,
                                         tether_error *reterr)
{
    (void)reterr;
    struct counter *counter = calloc(1, sizeof *counter);
    char text[16] = "";
    memcpy(text, bytes.data, bytes.len < sizeof text ? bytes.len : sizeof text - 1);
    counter->n = atoi(text);
    atomic_fetch_add(&n_live, 1);
    *ret_object = counter;
    return TETHER_OK;
}

static const tether_type counter_type = {
    "counter",
    counter_destroy,
    counter_serialise,
    counter_deserialise,
};

static void secret_destroy(void *object)
{
    counter_destroy(object);
}

static const tether_type secret_type = {.name = "secret", .destroy = secret_destroy};

static tether_status new_object(const tether_type *type,
                                int n,
                                tether_value **ret,
                                tether_error *err)
{
    struct counter *counter = calloc(1, sizeof *counter);
    counter->n = n;
    atomic_fetch_add(&n_live, 1);
    return tether_value_new_object(type, counter, ret, err);
}

static tether_status make_counter(void *userdata,
                                  const tether_value *arg,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    (void)userdata;
    return new_object(&counter_type, atoi(tether_value_str(arg)), ret_value, reterr);
}

static tether_status make_secret(void *userdata,
                                 const tether_value *arg,
                                 tether_value **ret_value,
                                 tether_error *reterr)
{
    (void)userdata, (void)arg;
    return new_object(&secret_type, 0, ret_value, reterr);
}

static tether_status counter_add(void *userdata,
                                 void *object,
                                 const tether_value *arg,
                                 tether_value **ret_value,
                                 tether_error *reterr)
{
    (void)userdata;
    struct counter *counter = object;
    int n =
        atomic_fetch_add(&counter->n, atoi(tether_value_str(arg))) + atoi(tether_value_str(arg));
    return tether_value_printf(ret_value, reterr, "%d", n);
}

/* ---- Functions that take and give references ---- */

/* Written by functions on the workers' threads, read by the tests on theirs. */
static _Atomic(tether_rref *) kept[TETHER_TEST_MAX_WORKERS];

static int index_of(tether_agent *agent)
{
    return atoi(tether_agent_name(agent) + 1);
}

/* Keeps the reference that comes along. */
static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)ret_value;
    if (tether_value_n_rrefs(arg) != 1)
        return tether_error_set(reterr, TETHER_EINVAL, "one reference, please");
    int i = index_of(userdata);
    tether_rref_release(kept[i]);
    kept[i] = tether_rref_retain(tether_value_rref(arg, 0));
    return tether_rref_confirmed_by_owner(kept[i])
               ? TETHER_OK
               : tether_error_set(reterr, TETHER_EINTERNAL, "not confirmed before it was used");
}

/* Gives the reference that it keeps. */
static tether_status give(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg;
    tether_status st = tether_value_printf(ret_value, reterr, "here");
    if (st == TETHER_OK)
        st = tether_value_attach(*ret_value, kept[index_of(userdata)], reterr);
    return st;
}

static tether_status drop(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg, (void)ret_value, (void)reterr;
    int i = index_of(userdata);
    kept[i] = tether_rref_release(kept[i]);
    return TETHER_OK;
}

static void register_all(tether_agent *agent)
{
    tether_error err = {0};
    tether_agent_register_inline(agent, "make_counter", make_counter, NULL, &err);
    tether_agent_register(agent, "make_counter_pooled", make_counter, NULL, &err);
    tether_agent_register_inline(agent, "make_secret", make_secret, NULL, &err);
    tether_agent_register_method(agent, &counter_type, "add", counter_add, true, NULL, &err);
    tether_agent_register_inline(agent, "keep", keep, agent, &err);
    tether_agent_register_inline(agent, "give", give, agent, &err);
    tether_agent_register_inline(agent, "drop", drop, agent, &err);
    assert_int_equal(err.code, TETHER_OK);
}

/* ---- Fixture ---- */

static int start_three(void **state)
{
    static struct tether_test_world world;
    tether_test_world_register = register_all;
    tether_test_world_start(&world, simulated, 3,
                            TETHER_AGENT_OPTS(.lease_ms = simulated ? 3000 : 30000));
    *state = &world;
    return 0;
}

static int stop(void **state)
{
    for (int i = 0; i < TETHER_TEST_MAX_WORKERS; i++)
        kept[i] = tether_rref_release(kept[i]);
    tether_test_world_stop(*state);
    assert_int_equal(n_live, 0); /* whatever happened, nothing is left */
    return 0;
}

static bool nothing_is_left(void *userdata)
{
    struct tether_test_world *w = userdata;
    for (int i = 0; i < w->n; i++) {
        struct tether_rref_counts counts = tether_rref_counts(w->agents[i]);
        if (counts.owners || counts.forks || counts.pending_owners || counts.pending_users ||
            counts.confirmed_users || counts.pending_children || counts.broken_users)
            return false;
    }
    return n_live == 0;
}

static void assert_nothing_left(struct tether_test_world *w)
{
    if (tether_test_world_wait(w, nothing_is_left, w))
        return;
    for (int i = 0; i < w->n; i++) {
        tether_buf text = TETHER_BUF_INIT;
        tether_rref_dump(w->agents[i], false, &text);
        print_message("%s", text.data);
        tether_buf_fini(&text);
    }
    fail_msg("%d objects are left", n_live);
}

static tether_value *text(const char *words)
{
    tether_value *value = NULL;
    assert_int_equal(tether_value_printf(&value, NULL, "%s", words), TETHER_OK);
    return value;
}

static tether_rref *remote_counter(tether_agent *agent, const char *to, const char *start)
{
    tether_value *arg = text(start);
    tether_rref *rref = tether_remote(agent, to, "make_counter", arg, 10000);
    tether_value_release(arg);
    assert_non_null(rref);
    return rref;
}

static void add_ok(tether_rref *rref, const char *n, const char *expected)
{
    tether_value *arg = text(n), *result = NULL;
    tether_error err = {0};
    if (tether_rref_sync(rref, "add", arg, 10000, &result, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    assert_string_equal(tether_value_str(result), expected);
    tether_value_release(result);
    tether_value_release(arg);
}

/* Calls `fn` on `to` with the reference attached. */
static tether_status send_ref(tether_agent *agent,
                              const char *to,
                              const char *fn,
                              tether_rref *rref,
                              tether_error *err)
{
    tether_value *arg = text("");
    assert_int_equal(tether_value_attach(arg, rref, err), TETHER_OK);
    tether_status st = tether_rpc_sync(agent, to, fn, arg, 10000, NULL, err);
    tether_value_release(arg);
    return st;
}

static void send_ok(tether_agent *agent, const char *to, const char *fn, tether_rref *rref)
{
    tether_error err = {0};
    if (send_ref(agent, to, fn, rref, &err) != TETHER_OK)
        fail_msg("%s", err.message);
}

static void call_ok(tether_agent *agent, const char *to, const char *fn)
{
    tether_error err = {0};
    if (tether_rpc_sync(agent, to, fn, NULL, 10000, NULL, &err) != TETHER_OK)
        fail_msg("%s", err.message);
}

/* ---- Tests ---- */

static void makes_uses_and_drops(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = remote_counter(w->agents[0], "w1", "5");
    assert_false(tether_rref_is_owner(rref));
    assert_string_equal(tether_rref_owner_name(rref), "w1");
    add_ok(rref, "3", "8");
    tether_value *copy = NULL;
    assert_int_equal(tether_rref_to_here(rref, 10000, &copy, &err), TETHER_OK);
    struct counter *counter = tether_value_object(copy, &counter_type);
    assert_non_null(counter);
    assert_int_equal(counter->n, 8);
    tether_value_release(copy);
    tether_future *confirmed = tether_rref_confirmed(rref);
    assert_int_equal(tether_future_wait(confirmed, 10000, NULL, &err), TETHER_OK);
    tether_future_release(confirmed);
    assert_true(tether_rref_confirmed_by_owner(rref));
    assert_int_equal(n_live, 1);
    tether_rref_release(rref);
    assert_nothing_left(w);
}

static void makes_on_itself(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_value *arg = text("1"), *value = NULL;
    tether_rref *rref = tether_remote(w->agents[0], "w0", "make_counter_pooled", arg, 10000);
    assert_true(tether_rref_is_owner(rref));
    add_ok(rref, "1", "2"); /* waits for it to be made */
    assert_int_equal(tether_rref_local_value(rref, &value, &err), TETHER_OK);
    assert_non_null(tether_value_object(value, &counter_type));
    tether_value *same = NULL;
    assert_int_equal(tether_rref_to_here(rref, 1000, &same, &err), TETHER_OK);
    assert_ptr_equal(same, value);
    tether_value_release(same);
    tether_rref_release(rref);
    tether_value_release(arg);
    assert_nothing_left(w);
}

static void owner_lends_to_user(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_value *object = NULL;
    tether_rref *mine = NULL;
    assert_int_equal(new_object(&counter_type, 7, &object, &err), TETHER_OK);
    assert_int_equal(tether_rref_new(w->agents[0], object, &mine, &err), TETHER_OK);
    tether_value_release(object);
    send_ok(w->agents[0], "w1", "keep", mine);
    assert_true(tether_rref_equal(mine, kept[1]));
    assert_false(tether_rref_is_owner(kept[1]));
    assert_string_equal(tether_rref_type(kept[1]), "counter");
    tether_rref_release(mine);
    assert_int_equal(n_live, 1); /* the user keeps it */
    add_ok(kept[1], "1", "8");
    call_ok(w->agents[0], "w1", "drop");
    assert_nothing_left(w);
}

static void user_passes_to_user(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = remote_counter(w->agents[0], "w1", "1");
    send_ok(w->agents[0], "w2", "keep", rref);
    tether_rref_release(rref);
    add_ok(kept[2], "1", "2");
    call_ok(w->agents[0], "w2", "drop");
    assert_nothing_left(w);
}

static void user_returns_it_to_its_owner(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = remote_counter(w->agents[0], "w1", "1");
    send_ok(w->agents[0], "w1", "keep", rref);
    tether_rref_release(rref);
    assert_true(tether_rref_is_owner(kept[1]));
    add_ok(kept[1], "4", "5");
    call_ok(w->agents[0], "w1", "drop");
    assert_nothing_left(w);
}

static void references_come_in_replies(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = remote_counter(w->agents[0], "w1", "1");
    send_ok(w->agents[0], "w2", "keep", rref); /* w2 holds an object of w1's */
    tether_rref_release(rref);
    tether_value *result = NULL;
    /* user to user */
    assert_int_equal(tether_rpc_sync(w->agents[0], "w2", "give", NULL, 10000, &result, &err),
                     TETHER_OK);
    assert_int_equal(tether_value_n_rrefs(result), 1);
    add_ok(tether_value_rref(result, 0), "1", "2");
    tether_value_release(result);
    /* user to owner */
    assert_int_equal(tether_rpc_sync(w->agents[1], "w2", "give", NULL, 10000, &result, &err),
                     TETHER_OK);
    assert_true(tether_rref_is_owner(tether_value_rref(result, 0)));
    call_ok(w->agents[0], "w2", "drop");
    add_ok(tether_value_rref(result, 0), "1", "3");
    tether_value_release(result);
    assert_nothing_left(w);
}

static void failures_break_the_reference(void **state)
{
    struct tether_test_world *w = *state;
    const struct {
        const char *to, *fn;
        tether_status status;
    } rows[] = {
        {"w1", "fail", TETHER_EINVAL},
        {"w1", "nothing", TETHER_ENOTFOUND},
        {"nobody", "make_counter", TETHER_ENOTFOUND},
        {"w0", "fail", TETHER_EINVAL},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        tether_error err = {0};
        tether_rref *rref = tether_remote(w->agents[0], rows[i].to, rows[i].fn, NULL, 5000);
        assert_int_equal(tether_rref_to_here(rref, 5000, NULL, &err), rows[i].status);
        tether_future *confirmed = tether_rref_confirmed(rref);
        tether_future_wait(confirmed, 5000, NULL, NULL);
        tether_future_release(confirmed);
        assert_int_equal(tether_rref_status(rref, &err), TETHER_RREF_BROKEN);
        assert_int_equal(err.code, rows[i].status);
        tether_rref_release(rref);
    }
    assert_nothing_left(w);
}

static void a_late_creation_is_still_collected(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = tether_remote(w->agents[0], "w1", "hold", NULL, 50);
    assert_int_equal(tether_rref_to_here(rref, 10000, NULL, &err), TETHER_ETIMEOUT);
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    tether_rref_release(rref); /* the delete is on its way before the object is there */
    tether_value *late = NULL;
    assert_int_equal(new_object(&counter_type, 0, &late, &err), TETHER_OK);
    tether_reply_ok(atomic_exchange(&w->held, NULL), late);
    tether_value_release(late);
    assert_nothing_left(w);
}

static void what_cannot_be_copied_says_so(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = tether_remote(w->agents[0], "w1", "make_secret", NULL, 10000);
    assert_int_equal(tether_rref_to_here(rref, 10000, NULL, &err), TETHER_ENOTSUP);
    assert_non_null(strstr(err.message, "serialise"));
    assert_int_equal(tether_rref_sync(rref, "add", NULL, 10000, NULL, &err), TETHER_ENOTFOUND);
    tether_rref_release(rref);
    assert_nothing_left(w);
}

static void count_loss(tether_rref *rref, void *userdata)
{
    assert_int_equal(tether_rref_status(rref, NULL), TETHER_RREF_BROKEN);
    atomic_fetch_add((_Atomic int *)userdata, 1);
}

static bool is_broken(void *userdata)
{
    return tether_rref_status(userdata, NULL) == TETHER_RREF_BROKEN;
}

static void the_loss_of_the_owner_is_told(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    _Atomic int n_lost = 0;
    tether_rref *rref = remote_counter(w->agents[0], "w1", "1");
    add_ok(rref, "1", "2");
    assert_int_equal(tether_rref_on_owner_lost(rref, count_loss, &n_lost, &err), TETHER_OK);
    assert_int_equal(tether_agent_shutdown(w->agents[1], false, &err), TETHER_OK);
    assert_true(tether_test_world_wait(w, is_broken, rref));
    assert_int_equal(tether_rref_to_here(rref, 5000, NULL, &err), TETHER_EOWNERDIED);
    assert_int_equal(tether_rref_sync(rref, "add", NULL, 5000, NULL, &err), TETHER_EOWNERDIED);
    assert_int_equal(send_ref(w->agents[0], "w2", "keep", rref, &err), TETHER_EOWNERDIED);
    assert_int_equal(n_lost, 1);
    assert_int_equal(tether_rref_on_owner_lost(rref, count_loss, &n_lost, &err), TETHER_OK);
    assert_int_equal(n_lost, 2); /* at once */
    tether_rref_release(rref);
}

static bool no_forks(void *userdata)
{
    return tether_rref_counts(userdata).forks == 0;
}

static void what_the_dead_held_is_released(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_value *object = NULL;
    tether_rref *mine = NULL;
    assert_int_equal(new_object(&counter_type, 7, &object, &err), TETHER_OK);
    assert_int_equal(tether_rref_new(w->agents[0], object, &mine, &err), TETHER_OK);
    tether_value_release(object);
    send_ok(w->agents[0], "w1", "keep", mine);
    assert_int_equal(tether_rref_counts(w->agents[0]).forks, 1);
    assert_int_equal(tether_agent_shutdown(w->agents[1], false, &err), TETHER_OK);
    assert_true(tether_test_world_wait(w, no_forks, w->agents[0]));
    tether_rref_release(mine);
    assert_int_equal(n_live, 0);
}

static void weak_ones_do_not_keep(void **state)
{
    struct tether_test_world *w = *state;
    tether_rref *rref = remote_counter(w->agents[0], "w1", "1");
    tether_rref_weak *weak = tether_rref_weak_new(rref);
    tether_rref *again = tether_rref_weak_lock(weak);
    assert_ptr_equal(again, rref);
    tether_rref_release(again);
    tether_rref_release(rref);
    assert_nothing_left(w);
    assert_null(tether_rref_weak_lock(weak));
    tether_rref_weak_release(weak);
}

static void shutdown_gives_back_what_is_held(void **state)
{
    struct tether_test_world *w = *state;
    tether_error err = {0};
    tether_rref *rref = remote_counter(w->agents[0], "w1", "1");
    add_ok(rref, "1", "2");
    assert_int_equal(tether_agent_shutdown(w->agents[0], true, &err), TETHER_OK);
    assert_int_equal(tether_rref_to_here(rref, 1000, NULL, &err), TETHER_ESHUTDOWN);
    assert_true(tether_test_world_wait(w, no_forks, w->agents[1]));
    assert_int_equal(n_live, 0);
    tether_rref_release(rref);
}

static void many_are_all_collected(void **state)
{
    enum { N = 300 };
    struct tether_test_world *w = *state;
    tether_rref *rrefs[N];
    for (int i = 0; i < N; i++)
        rrefs[i] = remote_counter(w->agents[i % 3],
                                  i % 3 == 0   ? "w1"
                                  : i % 3 == 1 ? "w2"
                                               : "w0",
                                  "1");
    for (int i = 0; i < N; i += 2)
        send_ok(w->agents[i % 3], i % 3 == 0 ? "w2" : i % 3 == 1 ? "w0" : "w1", "keep", rrefs[i]);
    for (int i = 0; i < N; i++)
        tether_rref_release(rrefs[i]);
    for (int i = 0; i < 3; i++)
        kept[i] = tether_rref_release(kept[i]);
    assert_nothing_left(w);
}

#define THREE(test) cmocka_unit_test_setup_teardown(test, start_three, stop)

int tether_test_rref_suite(bool over_sim)
{
    const struct CMUnitTest tests[] = {
        THREE(makes_uses_and_drops),
        THREE(makes_on_itself),
        THREE(owner_lends_to_user),
        THREE(user_passes_to_user),
        THREE(user_returns_it_to_its_owner),
        THREE(references_come_in_replies),
        THREE(failures_break_the_reference),
        THREE(a_late_creation_is_still_collected),
        THREE(what_cannot_be_copied_says_so),
        THREE(the_loss_of_the_owner_is_told),
        THREE(what_the_dead_held_is_released),
        THREE(weak_ones_do_not_keep),
        THREE(shutdown_gives_back_what_is_held),
        THREE(many_are_all_collected),
    };
    simulated = over_sim;
    return cmocka_run_group_tests_name(
        over_sim ? "references over the simulation" : "references over gRPC", tests, NULL, NULL);
}
