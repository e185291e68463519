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
    tether__free(registry->types);
}

tether_status tether__registry_add(struct tether__registry *registry,
                                   const char *name,
                                   const struct tether__function *function,
                                   tether_error *reterr)
{
    size_t len = name ? strlen(name) : 0;
    if (len == 0 || len > TETHER__MAX_FUNCTION_NAME)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "registering a function: its name has %zu characters: give it 1 to "
                                "%d",
                                len, TETHER__MAX_FUNCTION_NAME);
    if (!function->fn && !function->async_fn && !function->method)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "registering '%s': the function is NULL: give its address", name);
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
               ? tether_error_set(
                     reterr, st,
                     "a function named '%s' is registered already: give each a name of its own",
                     name)
               : tether_error_set(reterr, st, "no memory to register '%s'", name);
}

const struct tether__function *tether__registry_find(const struct tether__registry *registry,
                                                     tether_bytes name)
{
    tether_bytes *found = tether__map_get(&registry->functions, &name);
    return found ? tether__container_of(found, struct tether__function, name) : NULL;
}

const tether_type *tether__registry_find_type(const struct tether__registry *registry,
                                              const char *name)
{
    for (size_t i = 0; i < registry->n_types; i++)
        if (strcmp(registry->types[i]->name, name) == 0)
            return registry->types[i];
    return NULL;
}

tether_status tether__registry_add_type(struct tether__registry *registry,
                                        const tether_type *type,
                                        tether_error *reterr)
{
    size_t len = type && type->name ? strlen(type->name) : 0;
    if (len == 0 || len > TETHER_MAX_TYPE_NAME)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "registering a type: its name has %zu characters: give it 1 to %d",
                                len, TETHER_MAX_TYPE_NAME);
    const tether_type *known = tether__registry_find_type(registry, type->name);
    if (known)
        return known == type
                   ? TETHER_OK
                   : tether_error_set(
                         reterr, TETHER_EEXIST,
                         "another type named '%s' is registered: give each a name of its own",
                         type->name);
    const tether_type **types =
        tether__realloc(registry->types, (registry->n_types + 1) * sizeof *types);
    if (!types)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory to register type '%s'",
                                type->name);
    registry->types = types;
    registry->types[registry->n_types++] = type;
    return TETHER_OK;
}
