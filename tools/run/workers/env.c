/* Builds the environment of a worker. */
#include "tools/run/workers/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_OWN 16

static bool add(struct run_env *env, const char *format, ...) TETHER_PRINTF(2, 3);

static bool add(struct run_env *env, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vasprintf(&env->vars[env->n_own], format, args);
    va_end(args);
    if (n < 0)
        env->vars[env->n_own] = NULL;
    else
        env->n_own++;
    return n >= 0;
}

static bool is_own(const struct run_env *env, const char *var)
{
    size_t len = strcspn(var, "=") + 1;
    for (size_t i = 0; i < env->n_own; i++)
        if (strncmp(env->vars[i], var, len) == 0)
            return true;
    return false;
}

tether_status run_env_init(struct run_env *env,
                           const struct run_options *options,
                           const struct run_round *round,
                           int local_rank,
                           tether_error *reterr)
{
    size_t n_inherited = 0;
    while (environ[n_inherited])
        n_inherited++;
    env->n_own = 0;
    env->vars = calloc(MAX_OWN + n_inherited + 1, sizeof *env->vars);
    bool ok = env->vars && add(env, "RANK=%d", round->first_rank + local_rank) &&
              add(env, "WORLD_SIZE=%d", round->world_size) &&
              add(env, "LOCAL_RANK=%d", local_rank) &&
              add(env, "LOCAL_WORLD_SIZE=%d", options->nproc) &&
              add(env, "NODE_RANK=%d", round->node_rank) &&
              add(env, "NODE_COUNT=%d", round->node_count) &&
              add(env, "MASTER_ADDR=%s", round->master_addr) &&
              add(env, "MASTER_PORT=%d", round->master_port) &&
              add(env, "TETHER_USE_AGENT_STORE=%d", round->use_agent_store) &&
              add(env, "TETHER_STORE_PREFIX=%s", round->store_prefix) &&
              add(env, "TETHER_RUN_ID=%s", options->run_id) &&
              add(env, "TETHER_RESTART_COUNT=%d", round->restarts) &&
              add(env, "TETHER_ROUND=%llu", (unsigned long long)round->number) &&
              (!options->insecure || add(env, "TETHER_INSECURE=1"));
    if (!ok) {
        run_env_fini(env);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a worker's environment");
    }
    size_t n = env->n_own;
    for (size_t i = 0; i < n_inherited; i++)
        if (!is_own(env, environ[i]))
            env->vars[n++] = environ[i];
    return TETHER_OK;
}

void run_env_fini(struct run_env *env)
{
    for (size_t i = 0; i < env->n_own; i++)
        free(env->vars[i]);
    free(env->vars);
    *env = (struct run_env){NULL, 0};
}
