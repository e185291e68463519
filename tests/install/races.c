/* For install_test.sh, built with the thread sanitizer:
 *   races pass   hands data from functions to main() by futures alone: nothing may be reported
 *   races race   a function and main() write the same variable: that must be reported */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rref/rref.h"

enum { N = 100 };

static int numbers[N], *made[N], n_called;

/* Relaxed atomics order nothing but themselves. */
static int racy, has_begun, is_over;

static tether_status fill(void *userdata,
                          const tether_value *arg,
                          tether_value **ret,
                          tether_error *err)
{
    int i = atoi(tether_value_str(arg));
    (void)userdata;
    numbers[i] = i;
    made[i] = malloc(sizeof *made[i]);
    *made[i] = i;
    return tether_value_printf(ret, err, "%d", i);
}

static tether_status race(void *userdata,
                          const tether_value *arg,
                          tether_value **ret,
                          tether_error *err)
{
    (void)userdata, (void)arg, (void)ret, (void)err;
    racy++;
    __atomic_store_n(&has_begun, 1, __ATOMIC_RELAXED);
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED))
        continue;
    return TETHER_OK;
}

static void count(tether_future *future, void *userdata)
{
    (void)future;
    ++*(int *)userdata;
}

static int pass(tether_agent *agent, tether_error *err)
{
    for (int i = 0; i < N; i++) {
        tether_value *arg = NULL, *value = NULL;
        if (tether_value_printf(&arg, err, "%d", i))
            return 1;
        tether_future *future =
            tether_rpc_async(agent, "b", i % 2 ? "pooled" : "inline", arg, TETHER_DEFAULT_MS);
        tether_value_release(arg);
        while (i % 4 < 2 && !tether_future_is_done(future)) /* another thread finishes it */
            usleep(100);
        if (tether_future_wait(future, -1, &value, err) || atoi(tether_value_str(value)) != i ||
            tether_future_then(future, count, &n_called))
            return 1;
        if (numbers[i] != i || *made[i] != i || n_called != i + 1)
            return 1;
        free(made[i]);
        tether_value_release(value);
        tether_future_release(future);
    }
    return 0;
}

static int make_race(tether_agent *agent, tether_error *err)
{
    tether_future *future = tether_rpc_async(agent, "b", "race", NULL, TETHER_DEFAULT_MS);
    while (!__atomic_load_n(&has_begun, __ATOMIC_RELAXED))
        continue;
    racy++;
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    tether_status st = tether_future_wait(future, -1, NULL, err);
    tether_future_release(future);
    return st != TETHER_OK;
}

int main(int argc, char **argv)
{
    tether_error err = {TETHER_OK, ""};
    tether_agent *a = NULL, *b = NULL;
    tether_store *store = NULL;
    int failed = tether_store_hash_new(&store, &err) ||
                 tether_agent_new(TETHER_AGENT_OPTS(.name = "a", .store = store), &a, &err) ||
                 tether_agent_new(TETHER_AGENT_OPTS(.name = "b", .store = store), &b, &err) ||
                 tether_agent_register(b, "pooled", fill, NULL, &err) ||
                 tether_agent_register_inline(b, "inline", fill, NULL, &err) ||
                 tether_agent_register(b, "race", race, NULL, &err) ||
                 tether_agent_start(a, &err) || tether_agent_start(b, &err);
    if (!failed)
        failed = argc > 1 && strcmp(argv[1], "race") == 0 ? make_race(a, &err) : pass(a, &err);
    tether_agent_release(a);
    tether_agent_release(b);
    tether_store_release(store);
    if (failed)
        fprintf(stderr, "failed: %s\n", err.message);
    return failed;
}
