/* Shares data between ranks, and makes ranks wait for each other, over a store.
 *
 * The functions use one barrier: each rank adds one to "{prefix}/num_members"; the rank that
 * completes the count sets "{prefix}/last_member", for which the others wait. This takes each rank
 * two operations, which every store has.
 */
#include "rendezvous/store_helpers.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "rendezvous/store/op.h"

#define MISSING_NAMED 16 /* most ranks that an error message names */
#define PROBE_MS 2000    /* time to find out the missing ranks, after the deadline */

/* ---- Time-outs for a while ------------------------------------------------------------------ */

tether_status tether_store_timeout_begin(tether_store *store,
                                         int timeout_ms,
                                         tether_store_timeout *ret_guard,
                                         tether_error *reterr)
{
    *ret_guard = (tether_store_timeout){NULL, tether_store_get_timeout(store)};
    tether_status st = tether_store_set_timeout(store, timeout_ms, reterr);
    if (st == TETHER_OK)
        ret_guard->store = tether_store_retain(store);
    return st;
}

void tether_store_timeout_end(tether_store_timeout *guard)
{
    if (guard->store)
        tether_store_set_timeout(guard->store, guard->old_ms, NULL);
    guard->store = tether_store_release(guard->store);
}

/* ---- The group ------------------------------------------------------------------------------ */

/* The checked arguments of a call. */
struct group {
    tether_store *store;
    int rank, world_size;
    const char *prefix;
    int64_t start, deadline;
};

static tether_status group_init(struct group *group,
                                tether_store *store,
                                int rank,
                                int world_size,
                                const char *prefix,
                                int timeout_ms,
                                tether_error *reterr)
{
    if (!store || !prefix || !*prefix)
        return tether_error_set(reterr, TETHER_EINVAL, "a group needs a store and a key prefix");
    if (world_size < 1 || rank < -1 || rank >= world_size)
        return tether_error_set(reterr, TETHER_EINVAL, "rank %d is not in a world of %d members",
                                rank, world_size);
    if (world_size > TETHER_STORE_MAX_KEYS_PER_CALL)
        return tether_error_set(reterr, TETHER_ETOOBIG, "a world of %d is larger than %d",
                                world_size, TETHER_STORE_MAX_KEYS_PER_CALL);
    if (timeout_ms < TETHER_DEFAULT_MS)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "%d ms is not a timeout; use -1 to wait for ever, 0 to poll",
                                timeout_ms);
    if (timeout_ms == TETHER_DEFAULT_MS)
        timeout_ms = tether_store_get_timeout(store);
    *group = (struct group){store,
                            rank,
                            world_size,
                            prefix,
                            tether__clock_now_ns(&tether__clock_system),
                            tether__deadline_in(&tether__clock_system, timeout_ms)};
    return TETHER_OK;
}

static int left_ms(const struct group *group)
{
    return tether__deadline_left_ms(&tether__clock_system, group->deadline);
}

static tether_status no_memory(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for the keys of a group");
}

/* Counts this member at "{prefix}{suffix}"; gives the key to wait for, which the caller frees. */
static tether_status count_in(const struct group *group,
                              const char *suffix,
                              char **ret_last_member,
                              tether_error *reterr)
{
    char *members = tether__asprintf("%s%s/num_members", group->prefix, suffix);
    char *last = tether__asprintf("%s%s/last_member", group->prefix, suffix);
    tether_status st = members && last ? TETHER_OK : no_memory(reterr);
    int64_t count = 0;
    if (st == TETHER_OK)
        st = tether_store_add(group->store, members, 1, left_ms(group), &count, reterr);
    if (st == TETHER_OK && count >= group->world_size)
        st = tether_store_set(group->store, last, tether_bytes_str("<val_ignored>"), left_ms(group),
                              reterr);
    tether__free(members);
    if (st == TETHER_OK)
        *ret_last_member = last;
    else
        tether__free(last);
    return st;
}

/* ---- Sharing data --------------------------------------------------------------------------- */

/* Makes the keys "{prefix}0" to "{prefix}{n-1}" in one block, which starts with the array. NULL:
 * no memory. */
static char **rank_keys(const char *prefix, int n)
{
    size_t each = strlen(prefix) + 12;
    char **keys = tether__calloc((size_t)n, sizeof *keys + each);
    if (!keys)
        return NULL;
    char *at = (char *)(keys + n);
    for (int i = 0; i < n; i++, at += each) {
        snprintf(at, each, "%s%d", prefix, i);
        keys[i] = at;
    }
    return keys;
}

static tether_status get_all(const struct group *group,
                             tether_buf *ret_values,
                             tether_error *reterr)
{
    char **keys = rank_keys(group->prefix, group->world_size);
    if (!keys)
        return no_memory(reterr);
    size_t n = (size_t)group->world_size;
    tether_buf *values = tether__calloc(n, sizeof *values);
    char *last_member = NULL;
    tether_status st = values ? TETHER_OK : no_memory(reterr);
    if (st == TETHER_OK)
        st = tether_store_multi_get(group->store, (const char *const *)keys, n, left_ms(group),
                                    values, reterr);
    if (st == TETHER_OK)
        st = count_in(group, "/finished", &last_member, reterr);
    if (st == TETHER_OK && group->rank == 0)
        st = tether_store_wait(group->store, (const char *const *)&last_member, 1, left_ms(group),
                               reterr);
    tether__store_hand_out(values, n, st, ret_values);
    tether__free(last_member);
    tether__free(keys);
    return st;
}

tether_status tether_store_get_all(tether_store *store,
                                   int rank,
                                   int world_size,
                                   const char *prefix,
                                   int timeout_ms,
                                   tether_buf *ret_values,
                                   tether_error *reterr)
{
    struct group group = {0};
    tether_status st = group_init(&group, store, rank, world_size, prefix, timeout_ms, reterr);
    return st == TETHER_OK ? get_all(&group, ret_values, reterr) : st;
}

tether_status tether_store_synchronize(tether_store *store,
                                       tether_bytes data,
                                       int rank,
                                       int world_size,
                                       const char *prefix,
                                       int timeout_ms,
                                       tether_buf *ret_values,
                                       tether_error *reterr)
{
    struct group group = {0};
    tether_status st = group_init(&group, store, rank, world_size, prefix, timeout_ms, reterr);
    if (st == TETHER_OK && rank < 0)
        st = tether_error_set(reterr, TETHER_EINVAL, "to share data takes a rank");
    if (st != TETHER_OK)
        return st;
    char *key = tether__asprintf("%s%d", prefix, rank);
    st = key ? tether_store_set(store, key, data, left_ms(&group), reterr) : no_memory(reterr);
    tether__free(key);
    return st == TETHER_OK ? get_all(&group, ret_values, reterr) : st;
}

/* ---- Waiting for each other ----------------------------------------------------------------- */

static char *mark_of(const struct group *group, int rank)
{
    return tether__asprintf("%s%d/TRACE", group->prefix, rank);
}

/* Writes the ranks that have not arrived, such as "[0, 3]", or "[unknown]" when the store does not
 * answer. */
static void missing_ranks(const struct group *group, char *text, size_t size)
{
    int64_t until = tether__deadline_in(&tether__clock_system, PROBE_MS);
    int missing = 0;
    size_t len = (size_t)snprintf(text, size, "[");
    for (int rank = 0; rank < group->world_size; rank++) {
        bool present = false;
        char *mark = mark_of(group, rank);
        int patience = tether__deadline_left_ms(&tether__clock_system, until);
        tether_status st = TETHER_ENOMEM;
        if (mark && patience > 0)
            st = tether_store_check(group->store, (const char *const *)&mark, 1, patience, &present,
                                    NULL);
        tether__free(mark);
        if (st != TETHER_OK) {
            snprintf(text, size, "[unknown]");
            return;
        }
        if (present)
            continue;
        if (missing++ == MISSING_NAMED) {
            len += (size_t)snprintf(text + len, size - len, ", ...");
            break;
        }
        len += (size_t)snprintf(text + len, size - len, "%s%d", missing > 1 ? ", " : "", rank);
    }
    snprintf(text + len, size - len, "]");
}

tether_status tether_store_rank_barrier(tether_store *store,
                                        int rank,
                                        int world_size,
                                        const char *prefix,
                                        int timeout_ms,
                                        tether_error *reterr)
{
    struct group group = {0};
    tether_status st = group_init(&group, store, rank, world_size, prefix, timeout_ms, reterr);
    if (st != TETHER_OK)
        return st;
    if (rank >= 0) {
        char *mark = mark_of(&group, rank);
        st = mark ? tether_store_set(store, mark, tether_bytes_str("<val_ignored>"),
                                     left_ms(&group), reterr)
                  : no_memory(reterr);
        tether__free(mark);
        if (st != TETHER_OK)
            return st;
    }
    char *last_member;
    st = count_in(&group, "", &last_member, reterr);
    if (st != TETHER_OK)
        return st;
    st = tether_store_wait(store, (const char *const *)&last_member, 1, left_ms(&group), reterr);
    tether__free(last_member);
    if (st != TETHER_ETIMEOUT || rank < 0 || !reterr)
        return st;
    char missing[MISSING_NAMED * 12 + 16], shown[61];
    int64_t waited_ms =
        (tether__clock_now_ns(&tether__clock_system) - group.start) / TETHER__NS_PER_MS;
    missing_ranks(&group, missing, sizeof missing);
    return tether_error_set(reterr, st,
                            "Timed out waiting on barrier on rank %d, for key prefix: %s "
                            "(world_size=%d, missing_ranks=%s, timeout=%" PRId64 " ms)",
                            rank, tether__store_shorten(prefix, shown, sizeof shown), world_size,
                            missing, waited_ms);
}
