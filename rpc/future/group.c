/* tether_future_all() and tether_future_any(): one future over many.
 *
 * The group retains itself once for each member; a member's callback gives that back. So the group
 * lives until the last member is done, also when its holder has released it before.
 */
#include "base/alloc.h"
#include "rpc/future/internal.h"

struct group {
    tether_future future;
    size_t n;
    _Atomic size_t left; /* number of members that are not done */
    bool any;
};

static void destroy_group(tether_future *future)
{
    tether__future_fini(future);
    tether__free(tether__container_of(future, struct group, future));
}

static void explain_wait(tether_future *future, int timeout_ms, tether_error *ret_error)
{
    struct group *group = tether__container_of(future, struct group, future);
    tether_error_set(ret_error, TETHER_ETIMEOUT,
                     "waiting for %s of %zu futures timed out after %d ms (%zu are not done): wait "
                     "again, or wait for each to see what it waits for",
                     group->any ? "any" : "all", group->n, timeout_ms, atomic_load(&group->left));
}

static const struct tether__future_ops group_ops = {
    .destroy = destroy_group,
    .explain_wait = explain_wait,
};

static void on_member(tether_future *member, void *userdata)
{
    struct group *group = userdata;
    tether_error error = {0};
    tether_status st = tether_future_status(member, &error);
    size_t left = atomic_fetch_sub(&group->left, 1) - 1;
    if (group->any || st != TETHER_OK)
        tether_future_finish(&group->future, st, &error, tether_future_value(member));
    else if (left == 0)
        tether_future_finish(&group->future, TETHER_OK, NULL, NULL);
    tether_future_release(&group->future);
}

/* Returns the poller of the first member that has one; threads that wait for the group borrow it.
 * The group keeps it alive. Replies of members of other agents are received by those agents' own
 * threads. */
static struct tether__poller *some_poller(tether_future *const *futures, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (futures[i]->poller)
            return futures[i]->poller;
    return NULL;
}

static tether_future *group_new(tether_future *const *futures, size_t n, bool any)
{
    struct group *group = tether__malloc(sizeof *group);
    if (!group)
        return tether__future_no_memory();
    tether__future_init(&group->future, &group_ops, some_poller(futures, n));
    group->n = n;
    atomic_init(&group->left, n);
    group->any = any;
    for (size_t i = 0; i < n; i++) {
        tether_future_retain(&group->future);
        if (tether_future_then(futures[i], on_member, group) != TETHER_OK) {
            tether_error error;
            tether_error_set(&error, TETHER_ENOMEM, "no memory to watch future %zu of %zu", i, n);
            tether_future_finish(&group->future, TETHER_ENOMEM, &error, NULL);
            tether_future_release(&group->future);
        }
    }
    return &group->future;
}

tether_future *tether_future_all(tether_future *const *futures, size_t n)
{
    tether_future *future = group_new(futures, n, false);
    if (n == 0)
        tether_future_finish(future, TETHER_OK, NULL, NULL);
    return future;
}

tether_future *tether_future_any(tether_future *const *futures, size_t n)
{
    tether_future *future = group_new(futures, n, true);
    if (n == 0) {
        tether_error error;
        tether_error_set(&error, TETHER_EINVAL, "any of no futures: give at least one");
        tether_future_finish(future, TETHER_EINVAL, &error, NULL);
    }
    return future;
}
