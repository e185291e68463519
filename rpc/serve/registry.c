/* The table of registered functions. */
#include "rpc/serve/registry.h"

#include <string.h>

#include "base/alloc.h"

struct known_type {
    tether_bytes name; /* key in registry->types; points to type->name */
    const tether_type *type;
};

tether_status tether__registry_init(struct tether__registry *registry)
{
    tether__map_init(&registry->types, &tether__map_bytes);
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
    it = (struct tether__map_iter)TETHER__MAP_ITER;
    for (tether_bytes *name; (name = tether__map_next(&registry->types, &it));)
        tether__free(tether__container_of(name, struct known_type, name));
    tether__map_fini(&registry->types);
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
    if (!name[0]) /* plain bytes, like most values */
        return NULL;
    tether_bytes key = tether_bytes_str(name);
    tether_bytes *found = tether__map_get(&registry->types, &key);
    return found ? tether__container_of(found, struct known_type, name)->type : NULL;
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
    struct known_type *entry = tether__malloc(sizeof *entry);
    if (entry) {
        *entry = (struct known_type){tether_bytes_of(type->name, len), type};
        if (tether__map_put(&registry->types, &entry->name) == TETHER_OK)
            return TETHER_OK;
    }
    tether__free(entry);
    return tether_error_set(reterr, TETHER_ENOMEM, "no memory to register type '%s'", type->name);
}
