/* See the header. */
#include "tests/lib/own_store.h"

#define BIT(kind) TETHER__STORE_BIT(TETHER__STORE_##kind)

struct own_store {
    tether_test_store_fn *fn;
    void *userdata;
    uint32_t has;
};

static tether_status run(void *impl, struct tether__store_op *op)
{
    const struct own_store *own = impl;
    return own->fn(own->userdata, op);
}

static uint32_t lacks(const void *impl)
{
    return ~((const struct own_store *)impl)->has;
}

static void destroy(void *impl)
{
    tether__free(impl);
}

tether_status tether_test_store_new(tether_test_store_fn *fn,
                                    void *userdata,
                                    uint32_t extra,
                                    tether_store **ret_store)
{
    static const struct tether__store_kind kind = {run, destroy, lacks};
    struct own_store *own = tether__malloc(sizeof *own);
    if (!own)
        return TETHER_ENOMEM;
    *own = (struct own_store){fn, userdata,
                              extra | BIT(SET) | BIT(GET) | BIT(ADD) | BIT(COMPARE_SET) |
                                  BIT(CHECK) | BIT(WAIT) | BIT(DELETE)};
    tether_status st = tether__store_new(&kind, own, "store of the test", ret_store, NULL);
    if (st != TETHER_OK)
        tether__free(own);
    return st;
}
