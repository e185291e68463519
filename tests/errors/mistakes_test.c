/* Common mistakes, as a table: each gives the right code and one sentence that names what is wrong,
 * where, and what to do about it; none hangs.
 *
 * A mistake is made by a function that returns the status and fills the error. What it needs beside
 * that is a pair of workers, `a` and `b`, that share a store in this process; pair_start() makes
 * them with the options of each, pair_stop() ends them.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rendezvous/rendezvous.h"
#include "rendezvous/store_tcp.h"
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/port.h"
#include "tests/rpc/certs.h"

#define PATIENCE_MS 1500 /* for what can only end by its time-out */

/* ---- Workers ---- */

static const tether_type locked_type = {.name = "locked"}; /* without serialise */

static tether_status echo(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud;
    return tether_value_new(tether_value_bytes(arg), ret, err);
}

static tether_status lock(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)arg;
    static int object;
    return tether_value_new_object(&locked_type, &object, ret, err);
}

static tether_status oops(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)arg, (void)ret;
    return tether_error_set(err, TETHER_EREMOTE, "the disk is full");
}

static tether_status nap(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)arg, (void)ret, (void)err;
    while (!tether_caller_has_cancelled())
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    return TETHER_OK;
}

/* Makes the mistake that is its argument, inside of a function. */
static tether_status misbehave(void *ud,
                               const tether_value *arg,
                               tether_value **ret,
                               tether_error *err)
{
    tether_agent *agent = ud;
    (void)ret;
    if (strcmp(tether_value_str(arg), "shutdown") == 0)
        return tether_agent_shutdown(agent, true, err);
    return tether_rpc_sync(agent, "a", "echo", NULL, TETHER_DEFAULT_MS, NULL, err);
}

struct pair {
    tether_store *store;
    tether_agent *a, *b;
};

static tether_agent *worker(const char *name, tether_store *store, struct tether_agent_opts opts)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    opts.size = sizeof opts;
    opts.name = name;
    opts.store = store;
    if (tether_agent_new(&opts, &agent, &err) ||
        tether_agent_register(agent, "echo", echo, NULL, &err) ||
        tether_agent_register(agent, "lock", lock, NULL, &err) ||
        tether_agent_register(agent, "oops", oops, NULL, &err) ||
        tether_agent_register(agent, "nap", nap, NULL, &err) ||
        tether_agent_register(agent, "misbehave", misbehave, agent, &err) ||
        tether_agent_register_inline(agent, "misbehave_inline", misbehave, agent, &err) ||
        tether_agent_register_type(agent, &locked_type, &err) || tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    return agent;
}

static struct pair pair_start(struct tether_agent_opts a, struct tether_agent_opts b)
{
    struct pair pair = {NULL, NULL, NULL};
    assert_int_equal(tether_store_hash_new(&pair.store, NULL), TETHER_OK);
    pair.a = worker("a", pair.store, a);
    pair.b = worker("b", pair.store, b);
    return pair;
}

static void pair_stop(struct pair *pair)
{
    tether_agent_release(pair->a);
    tether_agent_release(pair->b);
    tether_store_release(pair->store);
}

#define OPTS(...) ((struct tether_agent_opts){__VA_ARGS__})

/* a calls a function of b, with workers made by these options. */
static tether_status call(struct tether_agent_opts a,
                          struct tether_agent_opts b,
                          const char *to,
                          const char *fn,
                          const char *arg,
                          int timeout_ms,
                          tether_error *err)
{
    struct pair pair = pair_start(a, b);
    tether_value *value = NULL;
    assert_int_equal(tether_value_printf(&value, NULL, "%s", arg), TETHER_OK);
    tether_status st = tether_rpc_sync(pair.a, to, fn, value, timeout_ms, NULL, err);
    tether_value_release(value);
    pair_stop(&pair);
    return st;
}

/* An agent that is not even made, or does not start. */
static tether_status make(struct tether_agent_opts opts, tether_error *err)
{
    tether_agent *agent = NULL;
    opts.size = sizeof opts;
    tether_status st = tether_agent_new(&opts, &agent, err);
    if (st == TETHER_OK)
        st = tether_agent_start(agent, err);
    tether_agent_release(agent);
    return st;
}

static tether_status make_at_hash(struct tether_agent_opts opts, tether_error *err)
{
    assert_int_equal(tether_store_hash_new(&opts.store, NULL), TETHER_OK);
    if (!opts.name && !opts.world_size)
        opts.name = "a";
    tether_status st = make(opts, err);
    tether_store_release(opts.store);
    return st;
}

static tether_status meet(const char *url, tether_error *err)
{
    struct tether_world world = {NULL, 0, 0};
    tether_status st = tether_rendezvous(url, -1, -1, PATIENCE_MS, &world, err);
    if (st == TETHER_OK)
        tether_world_fini(&world);
    return st;
}

/* ---- The mistakes ---- */

#define MISTAKE(name) static tether_status name(tether_error *err)

MISTAKE(no_store_listens)
{
    tether_store *store = NULL;
    return tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.port = tether_test_quiet_port(), .timeout_ms = PATIENCE_MS), &store,
        err);
}

MISTAKE(port_that_is_none)
{
    return meet("tcp://127.0.0.1:99999?rank=0&world_size=1", err);
}
MISTAKE(scheme_nobody_knows)
{
    return meet("tpc://127.0.0.1:29500", err);
}
MISTAKE(rank_beyond_the_world)
{
    return meet("tcp://127.0.0.1:29500?rank=4&world_size=4", err);
}
MISTAKE(parameter_misspelt)
{
    return meet("tcp://127.0.0.1:29500?rnak=0&world_size=1", err);
}

MISTAKE(environment_not_set)
{
    unsetenv("RANK");
    return meet("env://", err);
}

MISTAKE(world_never_complete)
{
    return make_at_hash(OPTS(.rank = 0, .world_size = 3, .start_timeout_ms = 300), err);
}

MISTAKE(two_of_one_name)
{
    tether_store *store = NULL;
    tether_agent *first = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    /* Rank 0 is called twin; it can't start before rank 1 is there, so only its record is. */
    tether_status st = tether_agent_new(TETHER_AGENT_OPTS(.name = "twin", .store = store, .rank = 0,
                                                          .world_size = 2, .start_timeout_ms = 1),
                                        &first, err);
    if (st == TETHER_OK)
        tether_agent_start(first, NULL);
    st = make(OPTS(.name = "twin", .store = store, .rank = 1, .world_size = 2,
                   .start_timeout_ms = PATIENCE_MS),
              err);
    tether_agent_release(first);
    tether_store_release(store);
    return st;
}

MISTAKE(name_with_a_space)
{
    return make_at_hash(OPTS(.name = "my worker"), err);
}

MISTAKE(options_without_size)
{
    tether_agent *agent = NULL;
    return tether_agent_new(&(struct tether_agent_opts){.name = "x"}, &agent, err);
}

MISTAKE(function_not_registered)
{
    return call(OPTS(0), OPTS(0), "b", "ehco", "", TETHER_DEFAULT_MS, err);
}

MISTAKE(worker_not_there)
{
    return call(OPTS(0), OPTS(0), "c", "echo", "", TETHER_DEFAULT_MS, err);
}

MISTAKE(other_group)
{
    /* cppcheck-suppress unknownEvaluationOrder -- they are two structs */
    return call(OPTS(.group = "g"), OPTS(.group = "h"), "b", "echo", "", TETHER_DEFAULT_MS, err);
}

/* Registers `name` for an agent that has "echo", before or after its start. */
static tether_status register_as(const char *name, bool started, tether_error *err)
{
    struct pair pair = {NULL, NULL, NULL};
    assert_int_equal(tether_store_hash_new(&pair.store, NULL), TETHER_OK);
    assert_int_equal(
        tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .store = pair.store), &pair.a, NULL),
        TETHER_OK);
    assert_int_equal(tether_agent_register(pair.a, "echo", echo, NULL, NULL), TETHER_OK);
    if (started)
        assert_int_equal(tether_agent_start(pair.a, NULL), TETHER_OK);
    tether_status st = tether_agent_register(pair.a, name, echo, NULL, err);
    pair_stop(&pair);
    return st;
}

MISTAKE(function_registered_twice)
{
    return register_as("echo", false, err);
}
MISTAKE(function_without_a_name)
{
    return register_as("", false, err);
}
MISTAKE(function_named_like_ours)
{
    return register_as("tether.echo", false, err);
}
MISTAKE(function_registered_too_late)
{
    return register_as("late", true, err);
}

MISTAKE(payload_too_big)
{
    struct tether_agent_opts small = OPTS(.max_message_bytes = 1 << 20);
    struct pair pair = pair_start(small, small);
    tether_value *value = NULL;
    char *bytes = calloc(1, 2 << 20);
    assert_int_equal(tether_value_new(tether_bytes_of(bytes, 2 << 20), &value, NULL), TETHER_OK);
    tether_status st = tether_rpc_sync(pair.a, "b", "echo", value, TETHER_DEFAULT_MS, NULL, err);
    tether_value_release(value);
    free(bytes);
    pair_stop(&pair);
    return st;
}

MISTAKE(limits_that_differ)
{
    /* cppcheck-suppress unknownEvaluationOrder */
    return call(OPTS(.max_message_bytes = 1 << 20), OPTS(.max_message_bytes = 2 << 20), "b", "echo",
                "", PATIENCE_MS, err);
}

MISTAKE(use_after_shutdown)
{
    struct pair pair = pair_start(OPTS(0), OPTS(0));
    tether_agent_shutdown(pair.a, true, NULL);
    tether_status st = tether_rpc_sync(pair.a, "b", "echo", NULL, TETHER_DEFAULT_MS, NULL, err);
    pair_stop(&pair);
    return st;
}

MISTAKE(started_twice)
{
    struct pair pair = pair_start(OPTS(0), OPTS(0));
    tether_status st = tether_agent_start(pair.a, err);
    pair_stop(&pair);
    return st;
}

MISTAKE(blocking_call_in_an_inline_function)
{
    return call(OPTS(0), OPTS(0), "b", "misbehave_inline", "call", TETHER_DEFAULT_MS, err);
}

MISTAKE(shutdown_in_a_function)
{
    return call(OPTS(0), OPTS(0), "b", "misbehave", "shutdown", TETHER_DEFAULT_MS, err);
}

MISTAKE(function_that_fails)
{
    return call(OPTS(0), OPTS(0), "b", "oops", "", TETHER_DEFAULT_MS, err);
}

MISTAKE(function_that_takes_too_long)
{
    return call(OPTS(0), OPTS(0), "b", "nap", "", 300, err);
}

/* ---- Security ---- */

#define TLS(ca, name) \
    .tls_ca_pem = cert_##ca, .tls_cert_pem = cert_##name, .tls_key_pem = key_##name

MISTAKE(plain_text_beyond_this_host)
{
    return make_at_hash(OPTS(.listen = "0.0.0.0:0"), err);
}

MISTAKE(certificate_without_key)
{
    return make_at_hash(OPTS(.tls_cert_pem = cert_alpha), err);
}

MISTAKE(certificate_that_is_not_there)
{
    return make_at_hash(
        OPTS(.tls_cert_file = "/nowhere/alpha.pem", .tls_key_file = "/nowhere/alpha.key"), err);
}

MISTAKE(certificate_that_is_none)
{
    return make_at_hash(OPTS(.tls_cert_pem = "hello", .tls_key_pem = key_alpha), err);
}

MISTAKE(token_missing)
{
    return call(OPTS(0), OPTS(.token = "sesame"), "b", "echo", "", PATIENCE_MS, err);
}

MISTAKE(name_not_allowed)
{
    static const char *const only[] = {"c"};
    return call(OPTS(0), OPTS(.allowed_peers = only, .n_allowed_peers = 1), "b", "echo", "",
                PATIENCE_MS, err);
}

MISTAKE(certificate_of_another_ca)
{
    return call(OPTS(TLS(wrong_ca, gamma)), OPTS(TLS(right_ca, alpha)), "b", "echo", "",
                PATIENCE_MS, err);
}

MISTAKE(certificate_of_another_worker)
{
    return call(OPTS(TLS(right_ca, alpha)), OPTS(TLS(right_ca, alpha)), "b", "echo", "",
                PATIENCE_MS, err);
}

MISTAKE(tls_at_one_end_only)
{
    return call(OPTS(0), OPTS(TLS(right_ca, alpha)), "b", "echo", "", PATIENCE_MS, err);
}

/* ---- References ---- */

/* a has b make an object with `fn`; then `use` does the wrong thing with it. */
static tether_status refer(const char *fn,
                           tether_status (*use)(tether_rref *rref, tether_error *err),
                           tether_error *err)
{
    struct pair pair = pair_start(OPTS(0), OPTS(0));
    tether_rref *rref = tether_remote(pair.a, "b", fn, NULL, TETHER_DEFAULT_MS);
    tether_status st = use(rref, err);
    tether_rref_release(rref);
    pair_stop(&pair);
    return st;
}

static tether_status fetch(tether_rref *rref, tether_error *err)
{
    return tether_rref_to_here(rref, TETHER_DEFAULT_MS, NULL, err);
}

static tether_status look_at(tether_rref *rref, tether_error *err)
{
    tether_value *value;
    return tether_rref_local_value(rref, &value, err);
}

static tether_status call_method(tether_rref *rref, tether_error *err)
{
    return tether_rref_sync(rref, "open", NULL, TETHER_DEFAULT_MS, NULL, err);
}

MISTAKE(reference_to_what_could_not_be_made)
{
    return refer("oops", fetch, err);
}
MISTAKE(reference_made_by_no_function)
{
    return refer("ehco", fetch, err);
}
MISTAKE(fetch_of_what_cannot_be_copied)
{
    return refer("lock", fetch, err);
}
MISTAKE(local_value_of_what_is_not_local)
{
    return refer("lock", look_at, err);
}
MISTAKE(method_that_the_type_has_not)
{
    return refer("lock", call_method, err);
}

MISTAKE(reference_never_released)
{
    struct pair pair = pair_start(OPTS(.fail_on_leaks = true), OPTS(0));
    tether_rref *rref = tether_remote(pair.a, "b", "echo", NULL, TETHER_DEFAULT_MS);
    tether_future *confirmed = tether_rref_confirmed(rref);
    assert_int_equal(tether_future_wait(confirmed, TETHER_DEFAULT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(confirmed);
    tether_status st = tether_agent_shutdown(pair.a, true, err);
    tether_rref_release(rref);
    pair_stop(&pair);
    return st;
}

/* ---- Stores ---- */

MISTAKE(port_in_use)
{
    tether_store_server *server = NULL, *second = NULL;
    assert_int_equal(tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &server, NULL),
                     TETHER_OK);
    tether_status st = tether_store_server_new(
        TETHER_STORE_SERVER_OPTS(.port = tether_store_server_port(server)), &second, err);
    tether_store_server_release(server);
    return st;
}

/* On a store that has one key, `text`. */
static tether_store *store_with_text(void)
{
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    assert_int_equal(tether_store_set(store, "text", tether_bytes_str("abc"), 0, NULL), TETHER_OK);
    return store;
}

MISTAKE(key_that_never_comes)
{
    tether_store *store = store_with_text();
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_get(store, "txet", 100, &value, err);
    tether_store_release(store);
    return st;
}

MISTAKE(adding_to_a_text)
{
    tether_store *store = store_with_text();
    int64_t sum;
    tether_status st = tether_store_add(store, "text", 1, 0, &sum, err);
    tether_store_release(store);
    return st;
}

/* ---- The table ---- */

static const struct mistake {
    const char *name;
    tether_status (*make)(tether_error *err);
    tether_status code;
    const char *says[3]; /* all of these */
} mistakes[] = {
#define ROW(name, code, ...)        \
    {                               \
#name, name, TETHER_##code, \
        {                           \
            __VA_ARGS__             \
        }                           \
    }
    ROW(no_store_listens, ETIMEOUT, "127.0.0.1", "refused"),
    ROW(port_that_is_none, EINVAL, "99999"),
    ROW(scheme_nobody_knows, ENOTFOUND, "tpc"),
    ROW(rank_beyond_the_world, EINVAL, "rank", "4"),
    ROW(parameter_misspelt, EINVAL, "rnak"),
    ROW(environment_not_set, EINVAL, "RANK", "tether-run"),
    ROW(world_never_complete, ETIMEOUT, "rank 1, 2 of 3", "same meeting point"),
    ROW(two_of_one_name, EEXIST, "'twin'", "name of its own"),
    ROW(name_with_a_space, EINVAL, "my worker"),
    ROW(options_without_size, EINVAL, "TETHER_AGENT_OPTS"),
    ROW(function_not_registered, ENOTFOUND, "'b'", "ehco"),
    ROW(worker_not_there, ENOTFOUND, "'c'"),
    ROW(other_group, ENOTFOUND, "'b'"),
    ROW(function_registered_twice, EEXIST, "'echo'"),
    ROW(function_without_a_name, EINVAL, "name"),
    ROW(function_named_like_ours, EINVAL, "'tether.echo'"),
    ROW(function_registered_too_late, EINVAL, "'late'", "before tether_agent_start()"),
    ROW(payload_too_big, ETOOBIG, "'b'", "max_message_bytes"),
    ROW(limits_that_differ, EPERM, "max_message_bytes", "the same"),
    ROW(use_after_shutdown, ESHUTDOWN, "shut"),
    ROW(started_twice, EINVAL, "once"),
    ROW(blocking_call_in_an_inline_function, EDEADLK, "inline"),
    ROW(shutdown_in_a_function, EDEADLK, "another thread"),
    ROW(function_that_fails, EREMOTE, "'b'", "the disk is full"),
    ROW(function_that_takes_too_long, ETIMEOUT, "'b'", "in time"),
    ROW(plain_text_beyond_this_host, EPERM, "0.0.0.0:0", "TLS", "insecure"),
    ROW(certificate_without_key, EINVAL, "key"),
    ROW(certificate_that_is_not_there, EIO, "/nowhere/alpha.pem"),
    ROW(certificate_that_is_none, EINVAL, "certificate"),
    ROW(token_missing, EAUTH, "'b'", "token", "the same"),
    ROW(name_not_allowed, EPERM, "'a'", "allowed_peers"),
    ROW(certificate_of_another_ca, ETIMEOUT, "'b'", "CA"),
    ROW(certificate_of_another_worker, EPERM, "'a'", "certificate", "subjectAltName"),
    ROW(tls_at_one_end_only, ETIMEOUT, "'b'", "TLS"),
    ROW(reference_to_what_could_not_be_made, EREMOTE, "the disk is full"),
    ROW(reference_made_by_no_function, ENOTFOUND, "ehco"),
    ROW(fetch_of_what_cannot_be_copied, ENOTSUP, "locked"),
    ROW(local_value_of_what_is_not_local, EINVAL, "'b'"),
    ROW(method_that_the_type_has_not, ENOTFOUND, "open"),
    ROW(reference_never_released, ELEAK, "mistakes_test.c:"),
    ROW(port_in_use, EADDRINUSE, "127.0.0.1"),
    ROW(key_that_never_comes, ETIMEOUT, "txet"),
    ROW(adding_to_a_text, EINVAL, "text", "number"),
};

static void is_told(void **state)
{
    const struct mistake *mistake = *state;
    tether_error err = {0};
    tether_status st = mistake->make(&err);
    print_message("%s: %s\n", tether_status_name(st), err.message);
    if (st != mistake->code)
        fail_msg("%s, not %s", tether_status_name(st), tether_status_name(mistake->code));
    assert_int_equal(err.code, st);
    for (size_t i = 0; i < 3 && mistake->says[i]; i++)
        if (!strstr(err.message, mistake->says[i]))
            fail_msg("it does not say '%s'", mistake->says[i]);
    assert_null(strchr(err.message, '\n'));
}

int main(void)
{
    enum { N = sizeof mistakes / sizeof *mistakes };
    struct CMUnitTest tests[N];
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){
            .name = mistakes[i].name, .test_func = is_told, .initial_state = (void *)&mistakes[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
