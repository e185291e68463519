/* The environment of one worker: that of the launcher and the worker's own variables. */
#ifndef TETHER_TOOLS_RUN_WORKERS_ENV_H
#define TETHER_TOOLS_RUN_WORKERS_ENV_H

#include "tools/run/workers/crew.h"

struct run_env {
    char **vars; /* the environment, NULL-terminated; fini() frees the first `n_own` strings */
    size_t n_own;
};

tether_status run_env_init(struct run_env *env,
                           const struct run_options *options,
                           const struct run_round *round,
                           int local_rank,
                           tether_error *reterr);
void run_env_fini(struct run_env *env);

#endif
