/* The functions that this worker serves, by name. Filled before start(), read-only after: no lock.
 */
#ifndef TETHER_RPC_REGISTRY_H
#define TETHER_RPC_REGISTRY_H

#include <stdbool.h>

#include "base/map.h"
#include "rpc/agent.h"

#define TETHER__MAX_FUNCTION_NAME 255

struct tether__function {
    tether_bytes name; /* the key; points behind the struct */
    tether_fn *fn;     /* one of the two */
    tether_async_fn *async_fn;
    bool run_inline;
    void *userdata;
};

struct tether__registry {
    struct tether__map functions;
};

tether_status tether__registry_init(struct tether__registry *registry);
void tether__registry_fini(struct tether__registry *registry);

/* Adds a copy of `function` under `name`. TETHER_EEXIST, TETHER_EINVAL, TETHER_ENOMEM. */
tether_status tether__registry_add(struct tether__registry *registry,
                                   const char *name,
                                   const struct tether__function *function,
                                   tether_error *reterr);

/* NULL: nobody registered it. */
const struct tether__function *tether__registry_find(const struct tether__registry *registry,
                                                     tether_bytes name);

#endif
