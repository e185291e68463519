/* Counters, and functions that pass references around. See cast.h. */
#include "tests/rref/cast.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/cmocka.h"

_Atomic int cast_n_live;
_Atomic int cast_n_keeps;
_Atomic(tether_rref *) cast_held[TETHER_TEST_MAX_WORKERS];

/* ---- Objects ---- */

static void counter_destroy(void *object)
{
    free(object);
    atomic_fetch_sub(&cast_n_live, 1);
}

static tether_status counter_serialise(const void *object,
                                       tether_buf *ret_bytes,
                                       tether_error *reterr)
{
    (void)reterr;
    return tether_buf_printf(ret_bytes, "%d", ((const struct cast_counter *)object)->n);
}

static struct cast_counter *counter_new(int n)
{
    struct cast_counter *counter = calloc(1, sizeof *counter);
    if (!counter)
        abort();
    counter->n = n;
    atomic_fetch_add(&cast_n_live, 1);
    return counter;
}

static tether_status counter_deserialise(tether_bytes bytes,
                                         void **ret_object,
                                         tether_error *reterr)
{
    (void)reterr;
    char text[16] = "";
    memcpy(text, bytes.data, bytes.len < sizeof text ? bytes.len : sizeof text - 1);
    *ret_object = counter_new(atoi(text));
    return TETHER_OK;
}

const tether_type cast_counter_type = {
    "counter",
    counter_destroy,
    counter_serialise,
    counter_deserialise,
};

static const tether_type secret_type = {.name = "secret", .destroy = counter_destroy};

static tether_status new_object(const tether_type *type,
                                int n,
                                tether_value **ret_value,
                                tether_error *reterr)
{
    struct cast_counter *counter = counter_new(n);
    tether_status st = tether_value_new_object(type, counter, ret_value, reterr);
    if (st != TETHER_OK)
        counter_destroy(counter);
    return st;
}

tether_status cast_new_counter(int n, tether_value **ret_value, tether_error *reterr)
{
    return new_object(&cast_counter_type, n, ret_value, reterr);
}

static tether_status make_counter(void *userdata,
                                  const tether_value *arg,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    (void)userdata;
    return cast_new_counter(atoi(tether_value_str(arg)), ret_value, reterr);
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
    struct cast_counter *counter = object;
    int n = atoi(tether_value_str(arg));
    return tether_value_printf(ret_value, reterr, "%d", atomic_fetch_add(&counter->n, n) + n);
}

/* ---- Functions that take and give references ---- */

static int index_of(tether_agent *agent)
{
    return atoi(tether_agent_name(agent) + 1);
}

static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)ret_value;
    if (tether_value_n_rrefs(arg) != 1)
        return tether_error_set(reterr, TETHER_EINVAL, "one reference, please");
    int i = index_of(userdata);
    atomic_fetch_add(&cast_n_keeps, 1);
    tether_rref_release(cast_held[i]);
    cast_held[i] = tether_rref_retain(tether_value_rref(arg, 0));
    return tether_rref_confirmed_by_owner(cast_held[i])
               ? TETHER_OK
               : tether_error_set(reterr, TETHER_EINTERNAL, "not confirmed before it was used");
}

static tether_status give(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg;
    tether_rref *held = cast_held[index_of(userdata)];
    tether_status st = tether_value_printf(ret_value, reterr, "here");
    if (st == TETHER_OK && held)
        st = tether_value_attach(*ret_value, held, reterr);
    return st;
}

static tether_status drop(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg, (void)ret_value, (void)reterr;
    int i = index_of(userdata);
    cast_held[i] = tether_rref_release(cast_held[i]);
    return TETHER_OK;
}

void cast_register(tether_agent *agent)
{
    tether_error err = {0};
    tether_agent_register_inline(agent, "make_counter", make_counter, NULL, &err);
    tether_agent_register(agent, "make_counter_pooled", make_counter, NULL, &err);
    tether_agent_register_inline(agent, "make_secret", make_secret, NULL, &err);
    tether_agent_register_method(agent, &cast_counter_type, "add", counter_add, true, NULL, &err);
    tether_agent_register_inline(agent, "keep", keep, agent, &err);
    tether_agent_register_inline(agent, "give", give, agent, &err);
    tether_agent_register_inline(agent, "drop", drop, agent, &err);
    assert_int_equal(err.code, TETHER_OK);
}

void cast_drop_all(void)
{
    for (int i = 0; i < TETHER_TEST_MAX_WORKERS; i++)
        cast_held[i] = tether_rref_release(cast_held[i]);
}

/* ---- What tests do ---- */

tether_value *cast_text(const char *words)
{
    tether_value *value = NULL;
    assert_int_equal(tether_value_printf(&value, NULL, "%s", words), TETHER_OK);
    return value;
}

tether_rref *cast_remote_counter(tether_agent *agent, const char *to, const char *start)
{
    tether_value *arg = cast_text(start);
    tether_rref *rref = tether_remote(agent, to, "make_counter", arg, 10000);
    tether_value_release(arg);
    assert_non_null(rref);
    return rref;
}

tether_rref *cast_own_counter(tether_agent *agent, int n)
{
    tether_value *object = NULL;
    tether_rref *rref = NULL;
    assert_int_equal(cast_new_counter(n, &object, NULL), TETHER_OK);
    assert_int_equal(tether_rref_new(agent, object, &rref, NULL), TETHER_OK);
    tether_value_release(object);
    return rref;
}

tether_future *cast_send_async(tether_agent *agent,
                               const char *to,
                               const char *fn,
                               tether_rref *rref,
                               int timeout_ms)
{
    tether_value *arg = cast_text("");
    assert_int_equal(tether_value_attach(arg, rref, NULL), TETHER_OK);
    tether_future *future = tether_rpc_async(agent, to, fn, arg, timeout_ms);
    tether_value_release(arg);
    return future;
}

tether_status cast_send(tether_agent *agent,
                        const char *to,
                        const char *fn,
                        tether_rref *rref,
                        tether_error *reterr)
{
    tether_value *arg = cast_text("");
    assert_int_equal(tether_value_attach(arg, rref, NULL), TETHER_OK);
    tether_status st = tether_rpc_sync(agent, to, fn, arg, 10000, NULL, reterr);
    tether_value_release(arg);
    return st;
}

void cast_send_ok(tether_agent *agent, const char *to, const char *fn, tether_rref *rref)
{
    tether_error err = {0};
    if (cast_send(agent, to, fn, rref, &err) != TETHER_OK)
        fail_msg("%s", err.message);
}

void cast_call_ok(tether_agent *agent, const char *to, const char *fn)
{
    tether_error err = {0};
    if (tether_rpc_sync(agent, to, fn, NULL, 10000, NULL, &err) != TETHER_OK)
        fail_msg("%s", err.message);
}

void cast_add_ok(tether_rref *rref, const char *n, const char *expected)
{
    tether_value *arg = cast_text(n), *result = NULL;
    tether_error err = {0};
    if (tether_rref_sync(rref, "add", arg, 10000, &result, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    assert_string_equal(tether_value_str(result), expected);
    tether_value_release(result);
    tether_value_release(arg);
}

/* ---- Functions and objects that wait for the test ---- */

struct tether_test_event cast_entered, cast_go_on;

static tether_status stay(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    tether_test_event_signal(&cast_entered);
    assert_true(tether_test_event_wait(&cast_go_on, 1, TETHER_TEST_LIMIT_MS));
    return TETHER_OK;
}

static tether_status make_another(void *userdata,
                                  void *counter,
                                  const tether_value *arg,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    (void)userdata, (void)counter, (void)arg;
    return cast_new_counter(1, ret_value, reterr);
}

void cast_register_stay(tether_agent *agent, const char *method, bool is_inline)
{
    tether_error err = {0};
    tether_agent_register(agent, "stay", stay, NULL, &err);
    tether_agent_register_method(agent, &cast_counter_type, method, make_another, is_inline, NULL,
                                 &err);
    assert_int_equal(err.code, TETHER_OK);
}

tether_rref *cast_begin_object(struct tether_test_world *world, int timeout_ms)
{
    tether_rref *rref = tether_remote(world->agents[0], "w1", "hold", NULL, timeout_ms);
    assert_true(tether_test_world_wait(world, cast_is_held, world));
    return rref;
}

void cast_finish_object(struct tether_test_world *world)
{
    tether_value *counter = NULL;
    assert_int_equal(cast_new_counter(0, &counter, NULL), TETHER_OK);
    tether_reply_ok(atomic_exchange(&world->held, NULL), counter);
    tether_value_release(counter);
}

tether_rref *cast_confirmed(tether_rref *rref)
{
    tether_future *future = tether_rref_confirmed(rref);
    assert_int_equal(tether_future_wait(future, 20000, NULL, NULL), TETHER_OK);
    tether_future_release(future);
    return rref;
}

/* ---- What tests ask ---- */

bool cast_is_held(void *world)
{
    return atomic_load(&((struct tether_test_world *)world)->held) != NULL;
}

bool cast_is_idle(tether_agent *agent)
{
    struct tether_rref_counts n = tether_rref_counts(agent);
    return !n.owners && !n.forks && !n.pending_owners && !n.pending_users && !n.confirmed_users &&
           !n.pending_children && !n.broken_users;
}

bool cast_nothing_is_left(void *userdata)
{
    struct tether_test_world *world = userdata;
    for (int i = 0; i < world->n; i++)
        if (!cast_is_idle(world->agents[i]))
            return false;
    return cast_n_live == 0;
}

void cast_assert_nothing_left(struct tether_test_world *world)
{
    if (tether_test_world_wait(world, cast_nothing_is_left, world))
        return;
    for (int i = 0; i < world->n; i++) {
        tether_buf text = TETHER_BUF_INIT;
        tether_rref_dump(world->agents[i], false, &text);
        print_message("%s", text.data);
        tether_buf_fini(&text);
    }
    fail_msg("%d objects are left", cast_n_live);
}

bool cast_has_no_forks(void *agent)
{
    return tether_rref_counts(agent).forks == 0;
}
