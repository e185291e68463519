/* The functions that this worker serves, by name. The table is filled before start() and only read
 * afterwards, so it needs no lock. */
#ifndef TETHER_RPC_SERVE_REGISTRY_H
#define TETHER_RPC_SERVE_REGISTRY_H

#include <stdbool.h>

#include "base/map.h"
#include "rpc/agent.h"

#define TETHER__MAX_FUNCTION_NAME 255

struct tether__function {
    tether_bytes name; /* key in registry->functions; points to the bytes after the struct */
    tether_fn *fn;     /* one of `fn`, `async_fn` and `method` is set */
    tether_async_fn *async_fn;
    tether_method *method; /* a method of objects of `type`, registered as "type.method" */
    const tether_type *type;
    bool run_inline;
    void *userdata;
};

struct tether__registry {
    struct tether__map functions, types;
};

tether_status tether__registry_init(struct tether__registry *registry);
void tether__registry_fini(struct tether__registry *registry);

/* Adds a copy of `function` under `name`. TETHER_EEXIST, TETHER_EINVAL, TETHER_ENOMEM. */
tether_status tether__registry_add(struct tether__registry *registry,
                                   const char *name,
                                   const struct tether__function *function,
                                   tether_error *reterr);

/* Adds a type, so that objects of it can be received. TETHER_EEXIST: another type has the same
 * name. Adding one type twice is fine. */
tether_status tether__registry_add_type(struct tether__registry *registry,
                                        const tether_type *type,
                                        tether_error *reterr);
const tether_type *tether__registry_find_type(const struct tether__registry *registry,
                                              const char *name);

/* Returns the function with this name; NULL: none is registered. */
const struct tether__function *tether__registry_find(const struct tether__registry *registry,
                                                     tether_bytes name);

#endif
