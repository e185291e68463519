/* The extended calls on top of the needed ones.
 *
 * Each is a short program of the store's own functions under one deadline: every step gets what is
 * left of it, so none can outlast the call. A step that is given 0 ms still answers from what is
 * there, so a call that only polls works too.
 *
 * What they can't give: multi_set is not atomic here (others may see the first keys before the
 * last), and a caller that gives up on a barrier stays counted.
 */
#include "base/alloc.h"
#include "rendezvous/store_internal.h"

static int left_ms(int64_t deadline)
{
    return tether__deadline_left_ms(&tether__clock_system, deadline);
}

tether_status tether__store_try_get_fallback(const tether_store *store,
                                             const char *key,
                                             int64_t deadline,
                                             tether_buf *ret_value,
                                             tether_error *reterr)
{
    bool present;
    tether_status st = store->ops.check(store->impl, &key, 1, left_ms(deadline), &present, reterr);
    if (st != TETHER_OK)
        return st;
    if (!present)
        return TETHER_ENOTFOUND;
    /* Polls: the key may be gone again, and then nobody promised that it comes back. */
    tether_error gone = {0};
    st = store->ops.get(store->impl, key, 0, ret_value, &gone);
    if (st == TETHER_ETIMEOUT)
        return TETHER_ENOTFOUND;
    if (st != TETHER_OK && reterr)
        *reterr = gone;
    return st;
}

/* Compare-and-set until nobody came in between. `swapped` alone says that ours was written: the
 * value that comes back can't, for it equals what we wanted whenever somebody else wrote that. */
tether_status tether__store_append_fallback(const tether_store *store,
                                            const char *key,
                                            tether_bytes value,
                                            int64_t deadline,
                                            tether_error *reterr)
{
    tether_buf expected = TETHER_BUF_INIT, desired = TETHER_BUF_INIT, present = TETHER_BUF_INIT;
    tether_status st;
    for (int attempt = 0;; attempt++) {
        st = tether_buf_assign(&desired, tether_buf_bytes(&expected));
        if (st == TETHER_OK)
            st = tether_buf_append(&desired, value);
        if (st != TETHER_OK)
            break;

        bool swapped = false;
        st = store->ops.compare_set(store->impl, key, tether_buf_bytes(&expected),
                                    tether_buf_bytes(&desired), left_ms(deadline), &swapped,
                                    &present, reterr);
        if (st != TETHER_OK || swapped)
            break;
        /* The first attempt guessed that the key is absent; from the second on, losing means that
         * somebody else won, and only then does the deadline end it. */
        if (attempt > 0 && left_ms(deadline) == 0) {
            st = tether_error_set(reterr, TETHER_ETIMEOUT,
                                  "others changed the value in between, %d times", attempt);
            break;
        }
        /* What was expected came back although nothing was written: the key has been deleted. */
        if (tether_bytes_equal(tether_buf_bytes(&present), tether_buf_bytes(&expected)))
            present.len = 0;
        tether_buf swap = expected;
        expected = present;
        present = swap;
    }
    tether_buf_fini(&present);
    tether_buf_fini(&desired);
    tether_buf_fini(&expected);
    return st;
}

tether_status tether__store_multi_get_fallback(const tether_store *store,
                                               const char *const *keys,
                                               size_t n,
                                               int64_t deadline,
                                               tether_buf *ret_values,
                                               tether_error *reterr)
{
    tether_buf *values = tether__calloc(n, sizeof *values);
    if (!values)
        return TETHER_ENOMEM;
    tether_status st = store->ops.wait(store->impl, keys, n, left_ms(deadline), reterr);
    for (size_t i = 0; st == TETHER_OK && i < n; i++)
        st = store->ops.get(store->impl, keys[i], left_ms(deadline), &values[i], reterr);
    tether__store_hand_out(values, n, st, ret_values);
    return st;
}

tether_status tether__store_multi_set_fallback(const tether_store *store,
                                               const char *const *keys,
                                               const tether_bytes *values,
                                               size_t n,
                                               int64_t deadline,
                                               tether_error *reterr)
{
    tether_status st = TETHER_OK;
    for (size_t i = 0; st == TETHER_OK && i < n; i++)
        st = store->ops.set(store->impl, keys[i], values[i], left_ms(deadline), reterr);
    return st;
}

/* Count yourself in; whoever completes the count sets a key that all wait for. A count beyond
 * `world_size` sets it too, in case the one that should have died in between. */
tether_status tether__store_barrier_fallback(const tether_store *store,
                                             const char *key,
                                             int64_t world_size,
                                             int64_t deadline,
                                             tether_error *reterr)
{
    char *members = tether__asprintf("%s/num_members", key);
    char *last = tether__asprintf("%s/last_member", key);
    tether_status st = members && last ? TETHER_OK : TETHER_ENOMEM;
    if (st == TETHER_OK && strlen(members) > TETHER_STORE_MAX_KEY)
        st = tether_error_set(reterr, TETHER_ETOOBIG, "the key is too long for a barrier");
    int64_t count = 0;
    if (st == TETHER_OK)
        st = store->ops.add(store->impl, members, 1, left_ms(deadline), &count, reterr);
    if (st == TETHER_OK && count >= world_size)
        st = store->ops.set(store->impl, last, tether_bytes_str("1"), left_ms(deadline), reterr);
    if (st == TETHER_OK)
        st = store->ops.wait(store->impl, (const char *const *)&last, 1, left_ms(deadline), reterr);
    tether__free(last);
    tether__free(members);
    return st;
}
