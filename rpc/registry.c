/* The table of registered functions. */
#include "rpc/registry.h"

#include <string.h>

#include "base/alloc.h"

tether_status tether__registry_init(struct tether__registry *registry)
{
    return tether__map_init(&registry->functions, &tether__map_bytes);
}

void tether__registry_fini(struct tether__registry *registry)
{
    if (!registry->functions.type)
        return;
    struct tether__map_iter it = TETHER__MAP_ITER;
    for (tether_bytes *name; (name = tether__map_next(&registry->functions, &it));)
        tether__free(tether__container_of(name, struct tether__function, name));
    tether__map_fini(&registry->functions);
}

tether_status tether__registry_add(struct tether__registry *registry,
                                   const char *name,
                                   const struct tether__function *function,
                                   tether_error *reterr)
{
    size_t len = name ? strlen(name) : 0;
    if (len == 0 || len > TETHER__MAX_FUNCTION_NAME)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a function needs a name of 1 to %d characters, not %zu",
                                TETHER__MAX_FUNCTION_NAME, len);
    if (!function->fn && !function->async_fn)
        return tether_error_set(reterr, TETHER_EINVAL, "function '%s' is NULL", name);
    struct tether__function *copy = tether__malloc(sizeof *copy + len);
    if (!copy)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory to register '%s'", name);
    *copy = *function;
    memcpy(copy + 1, name, len);
    copy->name = tether_bytes_of(copy + 1, len);
    tether_status st = tether__map_put(&registry->functions, &copy->name);
    if (st == TETHER_OK)
        return TETHER_OK;
    tether__free(copy);
    return st == TETHER_EEXIST
               ? tether_error_set(reterr, st, "a function named '%s' is registered already", name)
               : tether_error_set(reterr, st, "no memory to register '%s'", name);
}

const struct tether__function *tether__registry_find(const struct tether__registry *registry,
                                                     tether_bytes name)
{
    tether_bytes *found = tether__map_get(&registry->functions, &name);
    return found ? tether__container_of(found, struct tether__function, name) : NULL;
}
