/* Adapter: runs store operations on the functions that a user's store provides. */
#include <stddef.h>
#include <string.h>

#include "rendezvous/store/op.h"

struct user {
    /* immutable */
    /* a copy with all fields of this version; functions that the user lacks are NULL */
    struct tether_store_ops ops;
    void *impl;
};

static tether_status run(void *impl, struct tether__store_op *op)
{
    const struct user *user = impl;
    const struct tether_store_ops *ops = &user->ops;
    const char *key = op->n ? op->keys[0] : NULL;
    const int ms = op->timeout_ms;
    tether_error *cause = &op->cause;
    void *it = user->impl;
    switch (op->kind) {
        case TETHER__STORE_SET:
            return ops->set(it, key, op->values[0], ms, cause);
        case TETHER__STORE_GET:
            return ops->get(it, key, ms, op->results, cause);
        case TETHER__STORE_TRY_GET:
            return ops->try_get(it, key, ms, op->results, cause);
        case TETHER__STORE_ADD:
            return ops->add(it, key, op->number, ms, &op->count, cause);
        case TETHER__STORE_COMPARE_SET:
            return ops->compare_set(it, key, op->expected, op->values[0], ms, &op->yes, op->results,
                                    cause);
        case TETHER__STORE_CHECK:
            return ops->check(it, op->keys, op->n, ms, &op->yes, cause);
        case TETHER__STORE_WAIT:
            return ops->wait(it, op->keys, op->n, ms, cause);
        case TETHER__STORE_DELETE:
            return ops->del(it, key, ms, &op->yes, cause);
        case TETHER__STORE_NUM_KEYS:
            return ops->num_keys(it, ms, &op->count, cause);
        case TETHER__STORE_APPEND:
            return ops->append(it, key, op->values[0], ms, cause);
        case TETHER__STORE_MULTI_GET:
            return ops->multi_get(it, op->keys, op->n, ms, op->results, cause);
        case TETHER__STORE_MULTI_SET:
            return ops->multi_set(it, op->keys, op->values, op->n, ms, cause);
        case TETHER__STORE_LIST_KEYS:
            return ops->list_keys(it, ms, op->list, cause);
        case TETHER__STORE_QUEUE_PUSH:
            return ops->queue_push(it, key, op->values[0], ms, cause);
        case TETHER__STORE_QUEUE_POP:
            return ops->queue_pop(it, key, ms, op->results, cause);
        case TETHER__STORE_QUEUE_LEN:
            return ops->queue_len(it, key, ms, &op->count, cause);
        case TETHER__STORE_BARRIER:
            return ops->barrier(it, key, op->number, ms, cause);
    }
    return TETHER_ENOTSUP;
}

static uint32_t lacks(const void *impl)
{
    const struct tether_store_ops *ops = &((const struct user *)impl)->ops;
    uint32_t set = 0;
    set |= ops->try_get ? 0 : TETHER__STORE_BIT(TETHER__STORE_TRY_GET);
    set |= ops->num_keys ? 0 : TETHER__STORE_BIT(TETHER__STORE_NUM_KEYS);
    set |= ops->append ? 0 : TETHER__STORE_BIT(TETHER__STORE_APPEND);
    set |= ops->multi_get ? 0 : TETHER__STORE_BIT(TETHER__STORE_MULTI_GET);
    set |= ops->multi_set ? 0 : TETHER__STORE_BIT(TETHER__STORE_MULTI_SET);
    set |= ops->list_keys ? 0 : TETHER__STORE_BIT(TETHER__STORE_LIST_KEYS);
    set |= ops->queue_push ? 0 : TETHER__STORE_BIT(TETHER__STORE_QUEUE_PUSH);
    set |= ops->queue_pop ? 0 : TETHER__STORE_BIT(TETHER__STORE_QUEUE_POP);
    set |= ops->queue_len ? 0 : TETHER__STORE_BIT(TETHER__STORE_QUEUE_LEN);
    set |= ops->barrier ? 0 : TETHER__STORE_BIT(TETHER__STORE_BARRIER);
    return set;
}

static void destroy(void *impl)
{
    struct user *user = impl;
    user->ops.destroy(user->impl);
    tether__free(user);
}

static const struct tether__store_kind user_kind = {run, destroy, lacks};

tether_status tether_store_new(const struct tether_store_ops *ops,
                               void *impl,
                               const char *description,
                               tether_store **ret_store,
                               tether_error *reterr)
{
    struct tether_store_ops all = {0};
    if (!ops || ops->size < offsetof(struct tether_store_ops, try_get))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "store functions missing: set ops->size to sizeof *ops");
    memcpy(&all, ops, ops->size < sizeof all ? ops->size : sizeof all);
    all.size = sizeof all;
    if (!all.set || !all.get || !all.add || !all.compare_set || !all.check || !all.wait ||
        !all.del || !all.destroy)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a store needs set, get, add, compare_set, check, wait, del and "
                                "destroy: one of them is NULL");
    if (!description)
        return tether_error_set(reterr, TETHER_EINVAL, "a store needs a description");
    struct user *user = tether__malloc(sizeof *user);
    if (!user)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a %s", description);
    *user = (struct user){all, impl};
    tether_status st = tether__store_new(&user_kind, user, description, ret_store, reterr);
    if (st != TETHER_OK)
        tether__free(user);
    return st;
}

void *tether_store_impl(const tether_store *store, const struct tether_store_ops *ops)
{
    const struct user *user = tether__store_impl(store, &user_kind);
    return user && user->ops.destroy == ops->destroy ? user->impl : NULL;
}
