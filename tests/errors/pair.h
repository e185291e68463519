/* Two workers, `a` and `b`, that share a store in this process. Most mistakes need them. */
#ifndef TETHER_TESTS_ERRORS_PAIR_H
#define TETHER_TESTS_ERRORS_PAIR_H

#include "rpc/agent.h"

struct pair {
    tether_store *store;
    tether_agent *a, *b;
};

#define OPTS(...) ((struct tether_agent_opts){__VA_ARGS__})

/* Starts both, with the options of each. They have the functions "echo", "oops" (fails), "nap"
 * (until the caller gives up), "lock" (makes an object that can't be copied), "misbehave" and
 * "misbehave_inline" (do what is their argument: "shutdown", or a call). */
struct pair pair_start(struct tether_agent_opts a, struct tether_agent_opts b);
void pair_stop(struct pair *pair);

/* `a` calls function `fn` of `to`, between workers made by these options. */
tether_status pair_call(struct tether_agent_opts a,
                        struct tether_agent_opts b,
                        const char *to,
                        const char *fn,
                        const char *arg,
                        int timeout_ms,
                        tether_error *err);

/* An agent that is not even made, or does not start. */
tether_status make_agent(struct tether_agent_opts opts, tether_error *err);

/* The same at a store of its own; as "a", unless it has a name or a rank. */
tether_status make_agent_alone(struct tether_agent_opts opts, tether_error *err);

#endif
