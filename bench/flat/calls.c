/* Calls without an answer: they end by their deadlines, or since their worker is lost. */
#include "bench/flat/calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "bench/lib/crew.h"
#include "bench/lib/measure.h"

#define TIMEOUT_MS 600000
#define MOST_HELD 200000

/* ---- The worker that does not answer ---- */

static tether_reply *held[MOST_HELD];
static _Atomic size_t n_held;

static void hold_all(void *userdata, const tether_value *arg, tether_reply *reply)
{
    (void)userdata, (void)arg;
    held[atomic_fetch_add(&n_held, 1)] = reply;
}

static void forget_held(void)
{
    size_t n = atomic_exchange(&n_held, 0);
    for (size_t i = 0; i < n; i++)
        tether_reply_ok(held[i], NULL);
}

static tether_status return_at_once(void *userdata,
                                    const tether_value *arg,
                                    tether_value **ret_value,
                                    tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    return TETHER_OK;
}

void flat_calls_register(tether_agent *agent)
{
    tether_error err = {0};
    bench_check(tether_agent_register_async(agent, "hold_all", hold_all, true, NULL, &err), &err);
    bench_check(tether_agent_register_inline(agent, "watched", return_at_once, NULL, &err), &err);
}

/* ---- Calls ---- */

tether_future **flat_calls_begin(tether_agent *client, const char *to, size_t n, int timeout_ms)
{
    tether_future **futures = calloc(n, sizeof(tether_future *));
    if (!futures)
        bench_die("beginning calls", "out of memory");
    for (size_t i = 0; i < n; i++)
        futures[i] = tether_rpc_async(client, to, "hold_all", NULL, timeout_ms);
    while (atomic_load(&n_held) < n)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return futures;
}

void flat_calls_end(tether_future **futures, size_t n)
{
    tether_error err;
    for (size_t i = 0; i < n; i++) {
        tether_future_wait(futures[i], TIMEOUT_MS, NULL, &err);
        tether_future_release(futures[i]);
    }
    free(futures);
    forget_held();
}
