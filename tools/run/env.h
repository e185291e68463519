/* The environment of one worker: the launcher's own, with the worker's variables in it. */
#ifndef TETHER_TOOLS_RUN_ENV_H
#define TETHER_TOOLS_RUN_ENV_H

#include "tools/run/crew.h"

struct run_env {
    char **vars; /* NULL-terminated; those before `n_own` are ours to free */
    size_t n_own;
};

tether_status run_env_init(struct run_env *env,
                           const struct run_options *options,
                           const struct run_round *round,
                           int local_rank,
                           tether_error *reterr);
void run_env_fini(struct run_env *env);

#endif
