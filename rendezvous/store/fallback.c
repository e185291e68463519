/* Emulates operations that a store lacks by those that every store has.
 *
 * Each emulation is a short sequence of steps under the deadline of the operation. A step that is
 * left with 0 ms still answers from the present state, so an operation that only polls works too.
 *
 * Limits: an emulated multi_set is not atomic (others may see the first keys before the last), and
 * a caller that gives up on a barrier stays counted.
 */
#include <stdio.h>
#include <string.h>

#include "rendezvous/store/op.h"

/* Runs `step` in the time that is left to `op`; a failure becomes the failure of `op`. */
static tether_status run_step(const tether_store *store,
                              struct tether__store_op *op,
                              struct tether__store_op *step)
{
    step->deadline = op->deadline;
    step->timeout_ms = tether__deadline_left_ms(&tether__clock_system, op->deadline);
    tether_status st = store->kind->run(store->impl, step);
    if (st != TETHER_OK)
        op->cause = step->cause;
    return st;
}

static tether_status try_get(const tether_store *store, struct tether__store_op *op)
{
    struct tether__store_op check = {.kind = TETHER__STORE_CHECK, .keys = op->keys, .n = 1};
    tether_status st = run_step(store, op, &check);
    if (st != TETHER_OK || !check.yes)
        return st == TETHER_OK ? TETHER_ENOTFOUND : st;
    /* Reads each value without waiting, because the key may have been deleted since the wait and
     * may never come back. */
    struct tether__store_op get = {
        .kind = TETHER__STORE_GET, .keys = op->keys, .n = 1, .results = op->results};
    st = store->kind->run(store->impl, &get);
    if (st == TETHER_ETIMEOUT)
        return TETHER_ENOTFOUND;
    op->cause = get.cause;
    return st;
}

/* Repeats compare_set until no other caller has changed the value in between. Only `swapped` tells
 * whether the value was written: another caller may have written the same value. */
static tether_status append(const tether_store *store, struct tether__store_op *op)
{
    tether_buf expected = TETHER_BUF_INIT, desired = TETHER_BUF_INIT, present = TETHER_BUF_INIT;
    tether_status st;
    for (int attempt = 0;; attempt++) {
        st = tether_buf_assign(&desired, tether_buf_bytes(&expected));
        if (st == TETHER_OK)
            st = tether_buf_append(&desired, op->values[0]);
        if (st != TETHER_OK)
            break;

        tether_bytes value = tether_buf_bytes(&desired);
        struct tether__store_op swap = {.kind = TETHER__STORE_COMPARE_SET,
                                        .keys = op->keys,
                                        .n = 1,
                                        .values = &value,
                                        .expected = tether_buf_bytes(&expected),
                                        .results = &present};
        st = run_step(store, op, &swap);
        if (st != TETHER_OK || swap.yes)
            break;
        /* The first attempt assumes that the key is absent. Later attempts fail only when another
         * caller has changed the value, and then the deadline counts. */
        if (attempt > 0 && tether__deadline_left_ms(&tether__clock_system, op->deadline) == 0) {
            st = tether_error_set(&op->cause, TETHER_ETIMEOUT,
                                  "others changed the value in between, %d times", attempt);
            break;
        }
        /* compare_set() of an absent key returns `expected`, so the key has been deleted. */
        if (tether_bytes_equal(tether_buf_bytes(&present), tether_buf_bytes(&expected)))
            present.len = 0;
        tether_buf old = expected;
        expected = present;
        present = old;
    }
    tether_buf_fini(&present);
    tether_buf_fini(&desired);
    tether_buf_fini(&expected);
    return st;
}

static tether_status multi_get(const tether_store *store, struct tether__store_op *op)
{
    tether_buf *values = tether__calloc(op->n, sizeof *values);
    if (!values)
        return TETHER_ENOMEM;
    struct tether__store_op wait = {.kind = TETHER__STORE_WAIT, .keys = op->keys, .n = op->n};
    tether_status st = run_step(store, op, &wait);
    for (size_t i = 0; st == TETHER_OK && i < op->n; i++) {
        struct tether__store_op get = {
            .kind = TETHER__STORE_GET, .keys = &op->keys[i], .n = 1, .results = &values[i]};
        st = run_step(store, op, &get);
    }
    tether__store_hand_out(values, op->n, st, op->results);
    return st;
}

static tether_status multi_set(const tether_store *store, struct tether__store_op *op)
{
    tether_status st = TETHER_OK;
    for (size_t i = 0; st == TETHER_OK && i < op->n; i++) {
        struct tether__store_op set = {
            .kind = TETHER__STORE_SET, .keys = &op->keys[i], .n = 1, .values = &op->values[i]};
        st = run_step(store, op, &set);
    }
    return st;
}

/* Each caller adds one to a count. The caller that completes the count sets a key that all wait
 * for. A higher count sets the key too, in case that caller died in between. */
static tether_status barrier(const tether_store *store, struct tether__store_op *op)
{
    char *members = tether__asprintf("%s/num_members", op->keys[0]);
    char *last = tether__asprintf("%s/last_member", op->keys[0]);
    const tether_bytes one = tether_bytes_str("1");
    const char *const *members_key = (const char *const *)&members;
    const char *const *last_key = (const char *const *)&last;
    struct tether__store_op
        add = {.kind = TETHER__STORE_ADD, .keys = members_key, .n = 1, .number = 1},
        set = {.kind = TETHER__STORE_SET, .keys = last_key, .n = 1, .values = &one},
        wait = {.kind = TETHER__STORE_WAIT, .keys = last_key, .n = 1};
    tether_status st = members && last ? TETHER_OK : TETHER_ENOMEM;
    if (st == TETHER_OK && strlen(members) > TETHER_STORE_MAX_KEY)
        st = tether_error_set(&op->cause, TETHER_ETOOBIG, "the key is too long for a barrier");
    if (st == TETHER_OK)
        st = run_step(store, op, &add);
    if (st == TETHER_OK && add.count >= op->number)
        st = run_step(store, op, &set);
    if (st == TETHER_OK)
        st = run_step(store, op, &wait);
    tether__free(last);
    tether__free(members);
    return st;
}

tether_status tether__store_run_fallback(const tether_store *store, struct tether__store_op *op)
{
    op->cause.message[0] = '\0';
    switch (op->kind) {
        case TETHER__STORE_TRY_GET:
            return try_get(store, op);
        case TETHER__STORE_APPEND:
            return append(store, op);
        case TETHER__STORE_MULTI_GET:
            return multi_get(store, op);
        case TETHER__STORE_MULTI_SET:
            return multi_set(store, op);
        case TETHER__STORE_BARRIER:
            return barrier(store, op);
        default:
            return TETHER_ENOTSUP;
    }
}
