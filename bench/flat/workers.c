/* The workers of flat_bench, which all live in one process, and what they do for a measurement. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench/flat/calls.h"
#include "bench/flat/shared.h"
#include "bench/lib/crew.h"
#include "rendezvous/store.h"

tether_store *flat_store;
tether_agent *flat_client, *flat_owner;
struct flat_keeper flat_keepers[2 + FLAT_MAX_HOLDERS];

static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    struct flat_keeper *keeper = userdata;
    (void)ret_value, (void)reterr;
    keeper->values[keeper->n++] = tether_value_retain((tether_value *)arg);
    return TETHER_OK;
}

void flat_release_values(struct flat_keeper *keeper)
{
    while (keeper->n > 0)
        tether_value_release(keeper->values[--keeper->n]);
}

static tether_status drop(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg, (void)ret_value, (void)reterr;
    flat_release_values(userdata);
    return TETHER_OK;
}

static void hold(void *userdata, const tether_value *arg, tether_reply *reply)
{
    struct flat_keeper *keeper = userdata;
    (void)arg;
    keeper->held = reply;
}

tether_agent *flat_join(const char *name,
                        struct flat_keeper *keeper,
                        const tether_type *types,
                        size_t n_types)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    keeper->values = calloc(FLAT_MAX_KEPT / FLAT_PER_MESSAGE + 1000, sizeof(tether_value *));
    bench_check(tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = flat_store, .threads = 2,
                                                   .spin_us = -1, .lease_ms = 20000,
                                                   .max_calls_per_peer = 100000,
                                                   .max_bytes_per_peer = (size_t)1 << 30),
                                 &agent, &err),
                &err);
    bench_crew_serve_calls(agent);
    flat_calls_register(agent);
    bench_check(tether_agent_register_inline(agent, "keep", keep, keeper, &err), &err);
    bench_check(tether_agent_register_inline(agent, "drop", drop, keeper, &err), &err);
    bench_check(tether_agent_register_async(agent, "hold", hold, true, keeper, &err), &err);
    for (size_t i = 0; i < n_types; i++)
        bench_check(tether_agent_register_type(agent, &types[i], &err), &err);
    bench_check(tether_agent_start(agent, &err), &err);
    return agent;
}

void flat_call(tether_agent *from, const char *to, const char *fn, const tether_value *arg)
{
    tether_error err = {0};
    tether_value *result = NULL;
    bench_check(tether_rpc_sync(from, to, fn, arg, FLAT_TIMEOUT_MS, &result, &err), &err);
    tether_value_release(result);
}

void flat_next_name(char ret_name[16])
{
    static unsigned n;
    snprintf(ret_name, 16, "w%u", n++);
}

tether_rref *flat_own_object(tether_agent *agent)
{
    tether_value *value = NULL;
    tether_rref *rref = NULL;
    tether_error err = {0};
    bench_check(tether_value_new(tether_bytes_str("x"), &value, &err), &err);
    bench_check(tether_rref_new(agent, value, &rref, &err), &err);
    tether_value_release(value);
    return rref;
}

void flat_lend(tether_agent *from, const char *to, tether_rref *rref, size_t n)
{
    tether_error err = {0};
    for (size_t sent = 0; sent < n; sent += FLAT_PER_MESSAGE) {
        tether_value *value = NULL;
        bench_check(tether_value_new(tether_bytes_str(""), &value, &err), &err);
        for (size_t i = 0; i < FLAT_PER_MESSAGE && sent + i < n; i++) {
            tether_rref *one = rref ? tether_rref_retain(rref) : flat_own_object(from);
            bench_check(tether_value_attach(value, one, &err), &err);
            tether_rref_release(one);
        }
        flat_call(from, to, "keep", value);
        tether_value_release(value);
    }
}

void flat_wait_1_ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

void flat_wait_until_empty(tether_agent *agent)
{
    while (tether_rref_counts(agent).forks > 0)
        flat_wait_1_ms();
}

void flat_wait_until_lost(void)
{
    while (tether_rref_counts(flat_client).confirmed_users > 0)
        flat_wait_1_ms();
}
