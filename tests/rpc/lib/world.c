/* The agents that the tests use. See world.h. */
#include "tests/rpc/lib/world.h"

#include <stdio.h>
#include <string.h>

#include "rpc/agent/internal.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/lib/echo.h"

void (*tether_test_world_register)(tether_agent *agent);
tether_status (*tether_test_world_before_send)(void *userdata, const char *peer, uint32_t kind);

static tether_status note(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg, (void)ret_value, (void)reterr;
    atomic_fetch_add(&((struct tether_test_world *)userdata)->n_noted, 1);
    return TETHER_OK;
}

static tether_status fail_always(void *userdata,
                                 const tether_value *arg,
                                 tether_value **ret_value,
                                 tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value;
    return tether_error_set(reterr, TETHER_EINVAL, "no good");
}

static void hold(void *userdata, const tether_value *arg, tether_reply *reply)
{
    struct tether_test_world *world = userdata;
    (void)arg;
    tether_reply *before = atomic_exchange(&world->held, reply);
    if (before)
        tether_reply_ok(before, NULL);
    atomic_fetch_add(&world->n_held, 1);
}

static tether_status caller(void *userdata,
                            const tether_value *arg,
                            tether_value **ret_value,
                            tether_error *reterr)
{
    (void)userdata, (void)arg;
    return tether_value_printf(ret_value, reterr, "%s", tether_caller_name());
}

static tether_status left(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)arg;
    return tether_value_printf(ret_value, reterr, "%d", tether_caller_time_left_ms());
}

static tether_status relay(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    return tether_rpc_sync(userdata, tether_value_str(arg), "left", arg, TETHER_DEFAULT_MS,
                           ret_value, reterr);
}

static tether_status block_inline(void *userdata,
                                  const tether_value *arg,
                                  tether_value **ret_value,
                                  tether_error *reterr)
{
    return tether_rpc_sync(userdata, tether_value_str(arg), "echo", arg, TETHER_DEFAULT_MS,
                           ret_value, reterr);
}

static void ok(tether_status st, const tether_error *err)
{
    if (st != TETHER_OK)
        fail_msg("%s: %s", tether_status_name(st), err->message);
}

void tether_test_world_start_one(struct tether_test_world *world,
                                 int i,
                                 const struct tether_agent_opts *given)
{
    struct tether_agent_opts opts = given ? *given : *TETHER_AGENT_OPTS();
    tether_error err = {0};
    tether_agent *a = NULL;
    char name[16];
    snprintf(name, sizeof name, "w%d", i);
    opts.name = name;
    opts.store = world->store;
    if (!opts.threads)
        opts.threads = 4;
    opts.no_unix_socket |=
        world->net == TETHER_TEST_GRPC || (world->net == TETHER_TEST_MIXED && i % 2 == 1);
    if (world->sim) {
        opts.hooks = tether_sim_hooks(world->sim);
        tether_sim_hooks(world->sim)->before_send = tether_test_world_before_send;
    }
    ok(tether_agent_new(&opts, &a, &err), &err);
    ok(tether_agent_register_inline(a, "echo", tether_test_echo, NULL, &err), &err);
    ok(tether_agent_register(a, "echo_pooled", tether_test_echo, NULL, &err), &err);
    ok(tether_agent_register_inline(a, "note", note, world, &err), &err);
    ok(tether_agent_register(a, "fail", fail_always, NULL, &err), &err);
    ok(tether_agent_register_async(a, "hold", hold, true, world, &err), &err);
    ok(tether_agent_register_inline(a, "caller", caller, NULL, &err), &err);
    ok(tether_agent_register_inline(a, "left", left, NULL, &err), &err);
    ok(tether_agent_register(a, "relay", relay, a, &err), &err);
    ok(tether_agent_register_inline(a, "block_inline", block_inline, a, &err), &err);
    if (tether_test_world_register)
        tether_test_world_register(a);
    ok(tether_agent_start(a, &err), &err);
    world->agents[i] = a;
}

const char *const tether_test_net_names[] = {
    [TETHER_TEST_GRPC] = "gRPC",
    [TETHER_TEST_UNIX] = "unix sockets",
    [TETHER_TEST_MIXED] = "gRPC and unix sockets",
    [TETHER_TEST_SIM] = "the simulation",
};

void tether_test_world_start(struct tether_test_world *world,
                             enum tether_test_net net,
                             int n,
                             const struct tether_agent_opts *opts)
{
    tether_error err = {0};
    memset(world, 0, sizeof *world);
    world->net = net;
    world->sim = net == TETHER_TEST_SIM ? tether_sim_new(7) : NULL;
    world->n = n;
    ok(tether_store_hash_new(&world->store, &err), &err);
    for (int i = 0; i < n; i++)
        tether_test_world_start_one(world, i, opts);
}

static void answer_held(struct tether_test_world *world)
{
    tether_reply *held = atomic_exchange(&world->held, NULL);
    if (held)
        tether_reply_ok(held, NULL);
}

void tether_test_world_stop(struct tether_test_world *world)
{
    answer_held(world);
    for (int i = 0; i < world->n; i++)
        tether_agent_release(world->agents[i]);
    answer_held(world); /* a call of "hold" may have come while they stopped */
    tether_store_release(world->store);
    if (world->sim)
        tether_sim_free(world->sim);
}

bool tether_test_world_wait(struct tether_test_world *world,
                            bool (*done)(void *userdata),
                            void *userdata)
{
    if (world->sim)
        return tether_sim_run(world->sim, done, userdata, 10000);
    for (int tries = 0; !done(userdata); tries++)
        if (!tether_test_nap(tries))
            return false;
    return true;
}
