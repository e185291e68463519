/* Mistakes with an agent: its options, its name, its functions, its calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/agent.h"
#include "tests/errors/mistakes.h"
#include "tests/errors/pair.h"
#include "tests/lib/cmocka.h"

/* ---- Options and names ---- */

MISTAKE(options_without_size)
{
    tether_agent *agent = NULL;
    return tether_agent_new(&(struct tether_agent_opts){.name = "x"}, &agent, err);
}

MISTAKE(name_with_a_space)
{
    return make_agent_alone(OPTS(.name = "my worker"), err);
}

MISTAKE(no_name_in_a_dynamic_group)
{
    struct tether_agent_opts opts = {0};
    assert_int_equal(tether_store_hash_new(&opts.store, NULL), TETHER_OK);
    tether_status st = make_agent(opts, err);
    tether_store_release(opts.store);
    return st;
}

MISTAKE(rank_outside_of_the_world)
{
    return make_agent_alone(OPTS(.rank = 2, .world_size = 2), err);
}

MISTAKE(store_and_rendezvous)
{
    return make_agent_alone(OPTS(.rendezvous = "env://"), err);
}

MISTAKE(no_threads)
{
    return make_agent_alone(OPTS(.threads = -1), err);
}

MISTAKE(listen_without_a_port)
{
    return make_agent_alone(OPTS(.listen = "127.0.0.1"), err);
}

MISTAKE(listen_where_somebody_does)
{
    struct pair pair = pair_start(OPTS(.no_unix_socket = true), OPTS(0));
    tether_status st = make_agent_alone(OPTS(.listen = tether_agent_address(pair.a)), err);
    pair_stop(&pair);
    return st;
}

MISTAKE(listen_everywhere)
{
    return make_agent_alone(OPTS(.listen = "0.0.0.0:0", .insecure = true), err);
}

/* ---- Functions ---- */

static tether_status nothing(void *ud,
                             const tether_value *arg,
                             tether_value **ret,
                             tether_error *err)
{
    (void)ud, (void)arg, (void)ret, (void)err;
    return TETHER_OK;
}

/* Registers `fn` as `name` for an agent that has "echo", before or after its start. */
static tether_status register_as(const char *name, tether_fn *fn, bool started, tether_error *err)
{
    struct pair pair = {NULL, NULL, NULL};
    assert_int_equal(tether_store_hash_new(&pair.store, NULL), TETHER_OK);
    assert_int_equal(
        tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .store = pair.store), &pair.a, NULL),
        TETHER_OK);
    assert_int_equal(tether_agent_register(pair.a, "echo", nothing, NULL, NULL), TETHER_OK);
    if (started)
        assert_int_equal(tether_agent_start(pair.a, NULL), TETHER_OK);
    tether_status st = tether_agent_register(pair.a, name, fn, NULL, err);
    pair_stop(&pair);
    return st;
}

MISTAKE(function_registered_twice)
{
    return register_as("echo", nothing, false, err);
}
MISTAKE(function_without_a_name)
{
    return register_as("", nothing, false, err);
}
MISTAKE(function_that_is_null)
{
    return register_as("nothing", NULL, false, err);
}
MISTAKE(function_named_like_ours)
{
    return register_as("tether.echo", nothing, false, err);
}
MISTAKE(function_registered_too_late)
{
    return register_as("late", nothing, true, err);
}

/* ---- Life ---- */

MISTAKE(started_twice)
{
    struct pair pair = pair_start(OPTS(0), OPTS(0));
    tether_status st = tether_agent_start(pair.a, err);
    pair_stop(&pair);
    return st;
}

/* Uses an agent that has not started. */
static tether_status too_early(bool call, tether_error *err)
{
    tether_agent *agent = NULL;
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    assert_int_equal(tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .store = store), &agent, NULL),
                     TETHER_OK);
    tether_status st = call
                           ? tether_rpc_sync(agent, "b", "echo", NULL, TETHER_DEFAULT_MS, NULL, err)
                           : tether_agent_shutdown(agent, true, err);
    tether_agent_release(agent);
    tether_store_release(store);
    return st;
}

MISTAKE(call_before_start)
{
    return too_early(true, err);
}
MISTAKE(shutdown_before_start)
{
    return too_early(false, err);
}

MISTAKE(use_after_shutdown)
{
    struct pair pair = pair_start(OPTS(0), OPTS(0));
    tether_agent_shutdown(pair.a, true, NULL);
    tether_status st = tether_rpc_sync(pair.a, "b", "echo", NULL, TETHER_DEFAULT_MS, NULL, err);
    pair_stop(&pair);
    return st;
}

MISTAKE(lookup_after_shutdown)
{
    struct pair pair = pair_start(OPTS(0), OPTS(0));
    tether_worker found;
    tether_agent_shutdown(pair.a, true, NULL);
    tether_status st = tether_agent_worker(pair.a, "b", &found, err);
    pair_stop(&pair);
    return st;
}

/* ---- Calls ---- */

MISTAKE(function_not_registered)
{
    return pair_call(OPTS(0), OPTS(0), "b", "ehco", "", TETHER_DEFAULT_MS, err);
}

MISTAKE(method_called_like_a_function)
{
    return pair_call(OPTS(0), OPTS(0), "b", "locked.close", "", TETHER_DEFAULT_MS, err);
}

MISTAKE(worker_not_there)
{
    return pair_call(OPTS(0), OPTS(0), "c", "echo", "", TETHER_DEFAULT_MS, err);
}

MISTAKE(id_that_nobody_has)
{
    return pair_call(OPTS(0), OPTS(0), "#77", "echo", "", TETHER_DEFAULT_MS, err);
}

MISTAKE(other_group)
{
    /* cppcheck-suppress unknownEvaluationOrder -- they are two structs */
    return pair_call(OPTS(.group = "g"), OPTS(.group = "h"), "b", "echo", "", TETHER_DEFAULT_MS,
                     err);
}

MISTAKE(worker_that_has_left)
{
    struct pair pair = pair_start(OPTS(0), OPTS(0));
    assert_int_equal(tether_rpc_sync(pair.a, "b", "echo", NULL, TETHER_DEFAULT_MS, NULL, NULL),
                     TETHER_OK);
    tether_agent_shutdown(pair.b, true, NULL);
    tether_status st = tether_rpc_sync(pair.a, "b", "echo", NULL, PATIENCE_MS, NULL, err);
    pair_stop(&pair);
    return st;
}

static tether_status send_bytes(size_t len, tether_error *err)
{
    struct tether_agent_opts small = OPTS(.max_message_bytes = 1 << 20);
    struct pair pair = pair_start(small, small);
    tether_value *value = NULL;
    char *bytes = calloc(1, len);
    assert_int_equal(tether_value_new(tether_bytes_of(bytes, len), &value, NULL), TETHER_OK);
    tether_status st = tether_rpc_sync(pair.a, "b", "echo", value, TETHER_DEFAULT_MS, NULL, err);
    tether_value_release(value);
    free(bytes);
    pair_stop(&pair);
    return st;
}

MISTAKE(payload_too_big)
{
    return send_bytes(2 << 20, err);
}

/* The limit includes the header. */
MISTAKE(payload_of_the_whole_limit)
{
    return send_bytes(1 << 20, err);
}

MISTAKE(result_of_the_whole_limit)
{
    struct tether_agent_opts small = OPTS(.max_message_bytes = 1 << 20);
    /* cppcheck-suppress unknownEvaluationOrder */
    return pair_call(small, small, "b", "fill", "1048576", TETHER_DEFAULT_MS, err);
}

MISTAKE(function_name_of_300_characters)
{
    char name[301];
    memset(name, 'f', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    return pair_call(OPTS(0), OPTS(0), "b", name, "", TETHER_DEFAULT_MS, err);
}

MISTAKE(limits_that_differ)
{
    /* cppcheck-suppress unknownEvaluationOrder */
    return pair_call(OPTS(.max_message_bytes = 1 << 20), OPTS(.max_message_bytes = 2 << 20), "b",
                     "echo", "", PATIENCE_MS, err);
}

MISTAKE(too_many_calls_at_once)
{
    struct pair pair = pair_start(OPTS(.max_calls_per_peer = 1), OPTS(0));
    tether_future *first = tether_rpc_async(pair.a, "b", "nap", NULL, TETHER_DEFAULT_MS);
    tether_future *second = tether_rpc_async(pair.a, "b", "nap", NULL, TETHER_DEFAULT_MS);
    tether_status st = tether_future_wait(second, PATIENCE_MS, NULL, err);
    tether_future_cancel(first);
    tether_future_release(first);
    tether_future_release(second);
    pair_stop(&pair);
    return st;
}

MISTAKE(blocking_call_in_an_inline_function)
{
    return pair_call(OPTS(0), OPTS(0), "b", "misbehave_inline", "call", TETHER_DEFAULT_MS, err);
}

MISTAKE(start_in_an_inline_function)
{
    return pair_call(OPTS(0), OPTS(0), "b", "misbehave_inline", "start", TETHER_DEFAULT_MS, err);
}

MISTAKE(shutdown_in_a_function)
{
    return pair_call(OPTS(0), OPTS(0), "b", "misbehave", "shutdown", TETHER_DEFAULT_MS, err);
}

/* The result of a wait inside of a callback. */
struct waited {
    tether_future *other;
    tether_error err;
};

static void wait_in_callback(tether_future *future, void *userdata)
{
    struct waited *waited = userdata;
    (void)future;
    tether_future_wait(waited->other, -1, NULL, &waited->err);
}

MISTAKE(waiting_in_a_callback)
{
    struct waited waited = {tether_future_new(), {0}};
    tether_future *future = tether_future_new();
    assert_int_equal(tether_future_then(future, wait_in_callback, &waited), TETHER_OK);
    tether_future_finish(future, TETHER_OK, NULL, NULL);
    tether_future_release(future);
    tether_future_release(waited.other);
    *err = waited.err;
    return err->code;
}

MISTAKE(function_that_fails)
{
    return pair_call(OPTS(0), OPTS(0), "b", "oops", "", TETHER_DEFAULT_MS, err);
}

MISTAKE(function_that_takes_too_long)
{
    return pair_call(OPTS(0), OPTS(0), "b", "nap", "", 300, err);
}

MISTAKE(call_with_timeout_of_minus_7)
{
    return pair_call(OPTS(0), OPTS(0), "b", "nap", "", -7, err);
}

const struct mistake agent_mistakes[] = {
    ROW(options_without_size,
        EINVAL,
        "without their size",
        "tether_agent_new()",
        "TETHER_AGENT_OPTS"),
    ROW(name_with_a_space, EINVAL, "is no name", "'my worker'", "use 1 to 127 of"),
    ROW(no_name_in_a_dynamic_group, EINVAL, "dynamic group", "worker", "needs a `name`"),
    ROW(rank_outside_of_the_world, EINVAL, "rank 2", "world_size 2", "from 0 to 1"),
    ROW(store_and_rendezvous, EINVAL, "not both", "`store`", "give either"),
    ROW(no_threads, EINVAL, "not -1", "threads", "at least 1"),
    ROW(listen_without_a_port, EINVAL, "no address", "'127.0.0.1'", "HOST:PORT"),
    ROW(listen_where_somebody_does,
        EADDRINUSE,
        "another process does",
        "127.0.0.1:",
        "choose another port"),
    ROW(listen_everywhere, EINVAL, "what to dial", "'0.0.0.0:0'", "`advertise`"),
    ROW(function_registered_twice, EEXIST, "registered already", "'echo'", "name of its own"),
    ROW(function_without_a_name, EINVAL, "0 characters", "registering a function", "1 to 255"),
    ROW(function_that_is_null, EINVAL, "is NULL", "'nothing'", "give its address"),
    ROW(function_named_like_ours, EINVAL, "Tether's own", "'tether.echo'", "choose another"),
    ROW(function_registered_too_late, EINVAL, "too late", "'late'", "before tether_agent_start()"),
    ROW(started_twice, EINVAL, "started before", "'a'", "tether_agent_new()"),
    ROW(call_before_start, EINVAL, "has not started", "agent", "tether_agent_start() first"),
    ROW(shutdown_before_start, EINVAL, "never started", "shutting down", "tether_agent_start()"),
    ROW(use_after_shutdown, ESHUTDOWN, "has shut down", "'echo'", "before tether_agent_shutdown()"),
    ROW(lookup_after_shutdown, ESHUTDOWN, "not running", "looking up", "between"),
    ROW(function_not_registered, ENOTFOUND, "no function named 'ehco'", "'b'", "register it there"),
    ROW(method_called_like_a_function, EINVAL, "it is a method", "'b'", "tether_rref_sync()"),
    ROW(worker_not_there, ENOTFOUND, "no worker named 'c'", "hash store", "check the name"),
    ROW(id_that_nobody_has, ENOTFOUND, "no worker with id '77'", "here", "tether_agent_worker_by"),
    ROW(other_group, ENOTFOUND, "no worker named 'b'", "group at", "the same group"),
    ROW(worker_that_has_left, ENOTFOUND, "no worker named 'b'", "hash store", "that it runs"),
    ROW(payload_too_big, ETOOBIG, "2097152 bytes", "'b'", "raise it on all workers"),
    ROW(payload_of_the_whole_limit, ETOOBIG, "what goes with them", "'b'", "send less at once"),
    ROW(result_of_the_whole_limit, ETOOBIG, "what goes with them", "'fill'", "return less at once"),
    ROW(function_name_of_300_characters, EINVAL, "too long", "function", "1 to 255 characters"),
    ROW(limits_that_differ, EPERM, "max_message_bytes", "'b'", "give all workers the same"),
    ROW(too_many_calls_at_once, EBUSY, "too much in flight", "'b'", "max_calls_per_peer"),
    ROW(blocking_call_in_an_inline_function,
        EDEADLK,
        "would block",
        "'misbehave_inline'",
        "tether_rpc_async()"),
    ROW(start_in_an_inline_function,
        EDEADLK,
        "would block",
        "'misbehave_inline'",
        "another thread"),
    ROW(shutdown_in_a_function, EDEADLK, "would wait for itself", "'misbehave'", "another thread"),
    ROW(waiting_in_a_callback, EDEADLK, "stop the thread", "waiting here", "tether_future_then()"),
    ROW(function_that_fails, EREMOTE, "the disk is full", "'b'", NULL),
    ROW(call_with_timeout_of_minus_7, EINVAL, "timeout_ms is -7", "timeout_ms", "-1 for no limit"),
    ROW(function_that_takes_too_long, ETIMEOUT, "timed out", "'b'", "timeout_ms"),
    {0},
};
