/* The two workers, and what they can be asked. */
#include "tests/errors/pair.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/lib/cmocka.h"

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

/* Starts a second worker in here. */
static tether_status start_another(tether_agent *agent, tether_error *err)
{
    tether_agent *another = NULL;
    tether_store *store = tether_agent_store(agent);
    tether_status st =
        tether_agent_new(TETHER_AGENT_OPTS(.name = "c", .store = store), &another, err);
    if (st == TETHER_OK)
        st = tether_agent_start(another, err);
    tether_agent_release(another);
    return st;
}

static tether_status misbehave(void *ud,
                               const tether_value *arg,
                               tether_value **ret,
                               tether_error *err)
{
    tether_agent *agent = ud;
    (void)ret;
    if (strcmp(tether_value_str(arg), "shutdown") == 0)
        return tether_agent_shutdown(agent, true, err);
    if (strcmp(tether_value_str(arg), "start") == 0)
        return start_another(agent, err);
    return tether_rpc_sync(agent, "a", "echo", NULL, TETHER_DEFAULT_MS, NULL, err);
}

/* As many bytes as the argument says. */
static tether_status fill(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud;
    size_t len = strtoul(tether_value_str(arg), NULL, 10);
    char *bytes = calloc(1, len);
    assert_non_null(bytes);
    tether_status st = tether_value_new(tether_bytes_of(bytes, len), ret, err);
    free(bytes);
    return st;
}

static tether_status close_lock(void *ud,
                                void *object,
                                const tether_value *arg,
                                tether_value **ret,
                                tether_error *err)
{
    (void)ud, (void)object, (void)arg, (void)ret, (void)err;
    return TETHER_OK;
}

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
        tether_agent_register(agent, "fill", fill, NULL, &err) ||
        tether_agent_register(agent, "nap", nap, NULL, &err) ||
        tether_agent_register(agent, "misbehave", misbehave, agent, &err) ||
        tether_agent_register_inline(agent, "misbehave_inline", misbehave, agent, &err) ||
        tether_agent_register_method(agent, &locked_type, "close", close_lock, true, NULL, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    return agent;
}

struct pair pair_start(struct tether_agent_opts a, struct tether_agent_opts b)
{
    struct pair pair = {NULL, NULL, NULL};
    assert_int_equal(tether_store_hash_new(&pair.store, NULL), TETHER_OK);
    pair.a = worker("a", pair.store, a);
    pair.b = worker("b", pair.store, b);
    return pair;
}

void pair_stop(struct pair *pair)
{
    tether_agent_release(pair->a);
    tether_agent_release(pair->b);
    tether_store_release(pair->store);
}

tether_status pair_call(struct tether_agent_opts a,
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

tether_status make_agent(struct tether_agent_opts opts, tether_error *err)
{
    tether_agent *agent = NULL;
    opts.size = sizeof opts;
    tether_status st = tether_agent_new(&opts, &agent, err);
    if (st == TETHER_OK)
        st = tether_agent_start(agent, err);
    tether_agent_release(agent);
    return st;
}

tether_status make_agent_alone(struct tether_agent_opts opts, tether_error *err)
{
    assert_int_equal(tether_store_hash_new(&opts.store, NULL), TETHER_OK);
    if (!opts.name && !opts.world_size)
        opts.name = "a";
    tether_status st = make_agent(opts, err);
    tether_store_release(opts.store);
    return st;
}
