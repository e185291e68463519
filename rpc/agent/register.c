/* Registers the functions, methods and types that other workers can use. Only before start(). */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/serve/registry.h"
#include "rpc/value.h"

static tether_status add_function(tether_agent *agent,
                                  const char *name,
                                  const struct tether__function *function,
                                  tether_error *reterr)
{
    if (atomic_load(&agent->state) != TETHER__AGENT_NEW)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "registering '%s' comes too late: do it before "
                                "tether_agent_start(), others may call from then on",
                                name ? name : "");
    if (name && strncmp(name, "tether.", 7) == 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "registering '%s': names that begin with 'tether.' are Tether's "
                                "own: choose another",
                                name);
    return tether__registry_add(&agent->registry, name, function, reterr);
}

tether_status tether_agent_register(tether_agent *agent,
                                    const char *name,
                                    tether_fn *fn,
                                    void *userdata,
                                    tether_error *reterr)
{
    return add_function(agent, name, &(struct tether__function){.fn = fn, .userdata = userdata},
                        reterr);
}

tether_status tether_agent_register_inline(tether_agent *agent,
                                           const char *name,
                                           tether_fn *fn,
                                           void *userdata,
                                           tether_error *reterr)
{
    return add_function(
        agent, name, &(struct tether__function){.fn = fn, .run_inline = true, .userdata = userdata},
        reterr);
}

tether_status tether_agent_register_async(tether_agent *agent,
                                          const char *name,
                                          tether_async_fn *fn,
                                          bool run_inline,
                                          void *userdata,
                                          tether_error *reterr)
{
    return add_function(
        agent, name,
        &(struct tether__function){.async_fn = fn, .run_inline = run_inline, .userdata = userdata},
        reterr);
}

tether_status tether_agent_register_type(tether_agent *agent,
                                         const tether_type *type,
                                         tether_error *reterr)
{
    if (atomic_load(&agent->state) != TETHER__AGENT_NEW)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "register types before tether_agent_start()");
    return tether__registry_add_type(&agent->registry, type, reterr);
}

tether_status tether_agent_register_method(tether_agent *agent,
                                           const tether_type *type,
                                           const char *name,
                                           tether_method *method,
                                           bool run_inline,
                                           void *userdata,
                                           tether_error *reterr)
{
    char full_name[TETHER__MAX_FUNCTION_NAME + 1];
    tether_status st = tether_agent_register_type(agent, type, reterr);
    if (st != TETHER_OK)
        return st;
    if (!name || (size_t)snprintf(full_name, sizeof full_name, "%s.%s", type->name, name) >=
                     sizeof full_name)
        return tether_error_set(reterr, TETHER_EINVAL, "the method's name is missing or too long");
    return add_function(
        agent, full_name,
        &(struct tether__function){
            .method = method, .type = type, .run_inline = run_inline, .userdata = userdata},
        reterr);
}
