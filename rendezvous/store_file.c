/* The file store: the functions of a store on top of file_space.h. */
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "rendezvous/file_space.h"
#include "rendezvous/store_internal.h"

static int64_t deadline_of(int timeout_ms)
{
    return tether__deadline_in(&tether__clock_system, timeout_ms);
}

static tether_status write_one_locked(struct tether__file_space *space,
                                      enum tether__file_op op,
                                      const char *key,
                                      tether_bytes value,
                                      tether_error *reterr)
{
    struct tether__file_change change = {op, tether_bytes_str(key), value};
    return tether__file_space_write_locked(space, &change, 1, reterr);
}

/* A call that is nothing but one change. */
static tether_status write_one(struct tether__file_space *space,
                               enum tether__file_op op,
                               const char *key,
                               tether_bytes value,
                               int timeout_ms,
                               tether_error *reterr)
{
    tether_status st = tether__file_space_begin(space, true, deadline_of(timeout_ms), reterr);
    if (st != TETHER_OK)
        return st;
    st = write_one_locked(space, op, key, value, reterr);
    tether__file_space_end(space);
    return st;
}

static tether_status file_set(void *impl,
                              const char *key,
                              tether_bytes value,
                              int timeout_ms,
                              tether_error *reterr)
{
    return write_one(impl, TETHER__FILE_SET, key, value, timeout_ms, reterr);
}

static tether_status file_append(void *impl,
                                 const char *key,
                                 tether_bytes value,
                                 int timeout_ms,
                                 tether_error *reterr)
{
    return write_one(impl, TETHER__FILE_APPEND, key, value, timeout_ms, reterr);
}

static tether_status file_queue_push(void *impl,
                                     const char *key,
                                     tether_bytes value,
                                     int timeout_ms,
                                     tether_error *reterr)
{
    return write_one(impl, TETHER__FILE_PUSH, key, value, timeout_ms, reterr);
}

static tether_status file_add(void *impl,
                              const char *key,
                              int64_t delta,
                              int timeout_ms,
                              int64_t *ret_sum,
                              tether_error *reterr)
{
    struct tether__file_space *space = impl;
    tether_status st = tether__file_space_begin(space, true, deadline_of(timeout_ms), reterr);
    if (st != TETHER_OK)
        return st;
    tether_bytes old;
    int64_t sum;
    bool present = tether__kv_get(space->kv, tether_bytes_str(key), &old);
    st = tether__kv_sum(present ? &old : NULL, delta, &sum);
    if (st != TETHER_OK) {
        tether_error_set(reterr, st,
                         "the value is not a whole number, or the sum is beyond 64 bits: "
                         "count in another key");
    } else {
        char text[24];
        snprintf(text, sizeof text, "%" PRId64, sum);
        st = write_one_locked(space, TETHER__FILE_SET, key, tether_bytes_str(text), reterr);
    }
    tether__file_space_end(space);
    if (st == TETHER_OK)
        *ret_sum = sum;
    return st;
}

static tether_status file_compare_set(void *impl,
                                      const char *key,
                                      tether_bytes expected,
                                      tether_bytes desired,
                                      int timeout_ms,
                                      bool *ret_swapped,
                                      tether_buf *ret_value,
                                      tether_error *reterr)
{
    struct tether__file_space *space = impl;
    /* Room first: once it has swapped there is no way back. */
    tether_status st = tether_buf_reserve(ret_value, desired.len);
    if (st == TETHER_OK)
        st = tether__file_space_begin(space, true, deadline_of(timeout_ms), reterr);
    if (st != TETHER_OK)
        return st;
    tether_bytes present = {NULL, 0};
    bool found = tether__kv_get(space->kv, tether_bytes_str(key), &present);
    bool swap = tether_bytes_equal(present, expected);
    if (swap)
        st = write_one_locked(space, TETHER__FILE_SET, key, desired, reterr);
    if (st == TETHER_OK)
        st = tether_buf_assign(ret_value, swap ? desired : found ? present : expected);
    tether__file_space_end(space);
    if (st == TETHER_OK)
        *ret_swapped = swap;
    return st;
}

static tether_status file_del(void *impl,
                              const char *key,
                              int timeout_ms,
                              bool *ret_deleted,
                              tether_error *reterr)
{
    struct tether__file_space *space = impl;
    tether_status st = tether__file_space_begin(space, true, deadline_of(timeout_ms), reterr);
    if (st != TETHER_OK)
        return st;
    tether_bytes value;
    bool present = tether__kv_get(space->kv, tether_bytes_str(key), &value);
    if (present)
        st = write_one_locked(space, TETHER__FILE_DELETE, key, tether_bytes_of(NULL, 0), reterr);
    tether__file_space_end(space);
    if (st == TETHER_OK)
        *ret_deleted = present;
    return st;
}

static tether_status file_get(void *impl,
                              const char *key,
                              int timeout_ms,
                              tether_buf *ret_value,
                              tether_error *reterr)
{
    return tether__file_space_wait(impl, TETHER__FILE_WAIT_VALUES, &key, 1, deadline_of(timeout_ms),
                                   ret_value, reterr);
}

static tether_status file_try_get(void *impl,
                                  const char *key,
                                  int timeout_ms,
                                  tether_buf *ret_value,
                                  tether_error *reterr)
{
    struct tether__file_space *space = impl;
    tether_status st = tether__file_space_begin(space, false, deadline_of(timeout_ms), reterr);
    if (st != TETHER_OK)
        return st;
    tether_bytes value;
    st = tether__kv_get(space->kv, tether_bytes_str(key), &value)
             ? tether_buf_assign(ret_value, value)
             : TETHER_ENOTFOUND;
    tether__file_space_end(space);
    return st;
}

static tether_status file_check(void *impl,
                                const char *const *keys,
                                size_t n,
                                int timeout_ms,
                                bool *ret_ready,
                                tether_error *reterr)
{
    struct tether__file_space *space = impl;
    tether_status st = tether__file_space_begin(space, false, deadline_of(timeout_ms), reterr);
    if (st != TETHER_OK)
        return st;
    bool ready = true;
    for (size_t i = 0; ready && i < n; i++)
        ready = tether__kv_present(space->kv, tether_bytes_str(keys[i]));
    tether__file_space_end(space);
    *ret_ready = ready;
    return TETHER_OK;
}

static tether_status file_wait(void *impl,
                               const char *const *keys,
                               size_t n,
                               int timeout_ms,
                               tether_error *reterr)
{
    return tether__file_space_wait(impl, TETHER__FILE_WAIT_PRESENT, keys, n,
                                   deadline_of(timeout_ms), NULL, reterr);
}

/* Those of the users, and one for the count of processes that use the file. */
static tether_status file_num_keys(void *impl,
                                   int timeout_ms,
                                   int64_t *ret_count,
                                   tether_error *reterr)
{
    struct tether__file_space *space = impl;
    tether_status st = tether__file_space_begin(space, false, deadline_of(timeout_ms), reterr);
    if (st != TETHER_OK)
        return st;
    *ret_count = (int64_t)tether__kv_count(space->kv) + 1;
    tether__file_space_end(space);
    return TETHER_OK;
}

static tether_status file_multi_get(void *impl,
                                    const char *const *keys,
                                    size_t n,
                                    int timeout_ms,
                                    tether_buf *ret_values,
                                    tether_error *reterr)
{
    tether_buf *values = tether__calloc(n, sizeof *values);
    if (!values)
        return TETHER_ENOMEM;
    tether_status st = tether__file_space_wait(impl, TETHER__FILE_WAIT_VALUES, keys, n,
                                               deadline_of(timeout_ms), values, reterr);
    tether__store_hand_out(values, n, st, ret_values);
    return st;
}

static tether_status file_multi_set(void *impl,
                                    const char *const *keys,
                                    const tether_bytes *values,
                                    size_t n,
                                    int timeout_ms,
                                    tether_error *reterr)
{
    struct tether__file_space *space = impl;
    struct tether__file_change *changes = tether__calloc(n, sizeof *changes);
    if (!changes)
        return TETHER_ENOMEM;
    for (size_t i = 0; i < n; i++)
        changes[i] =
            (struct tether__file_change){TETHER__FILE_SET, tether_bytes_str(keys[i]), values[i]};
    tether_status st = tether__file_space_begin(space, true, deadline_of(timeout_ms), reterr);
    if (st == TETHER_OK) {
        st = tether__file_space_write_locked(space, changes, n, reterr);
        tether__file_space_end(space);
    }
    tether__free(changes);
    return st;
}

static tether_status file_list_keys(void *impl,
                                    int timeout_ms,
                                    tether_store_keys *ret_keys,
                                    tether_error *reterr)
{
    struct tether__file_space *space = impl;
    tether_status st = tether__file_space_begin(space, false, deadline_of(timeout_ms), reterr);
    if (st != TETHER_OK)
        return st;
    st = tether__kv_keys(space->kv, &ret_keys->keys, &ret_keys->count);
    tether__file_space_end(space);
    return st;
}

/* Takes the first element, if there is one: TETHER_ENOTFOUND. */
static tether_status pop(struct tether__file_space *space,
                         const char *key,
                         int64_t deadline,
                         tether_buf *ret_value,
                         tether_error *reterr)
{
    tether_status st = tether__file_space_begin(space, true, deadline, reterr);
    if (st != TETHER_OK)
        return st;
    tether_bytes first;
    tether_buf value = TETHER_BUF_INIT;
    st = tether__kv_queue_first(space->kv, tether_bytes_str(key), &first)
             ? tether_buf_assign(&value, first)
             : TETHER_ENOTFOUND;
    if (st == TETHER_OK)
        st = write_one_locked(space, TETHER__FILE_POP, key, tether_bytes_of(NULL, 0), reterr);
    tether__file_space_end(space);
    if (st == TETHER_OK) {
        tether_buf_fini(ret_value);
        *ret_value = value;
    } else {
        tether_buf_fini(&value);
    }
    return st;
}

static tether_status file_queue_pop(void *impl,
                                    const char *key,
                                    int timeout_ms,
                                    tether_buf *ret_value,
                                    tether_error *reterr)
{
    int64_t deadline = deadline_of(timeout_ms);
    for (;;) {
        tether_status st = pop(impl, key, deadline, ret_value, reterr);
        if (st != TETHER_ENOTFOUND || timeout_ms == 0)
            return st;
        /* Wakes all who wait for it; one gets it, the others wait again. */
        st =
            tether__file_space_wait(impl, TETHER__FILE_WAIT_QUEUE, &key, 1, deadline, NULL, reterr);
        if (st != TETHER_OK)
            return st;
    }
}

static tether_status file_queue_len(void *impl,
                                    const char *key,
                                    int timeout_ms,
                                    int64_t *ret_len,
                                    tether_error *reterr)
{
    struct tether__file_space *space = impl;
    tether_status st = tether__file_space_begin(space, false, deadline_of(timeout_ms), reterr);
    if (st != TETHER_OK)
        return st;
    *ret_len = (int64_t)tether__kv_queue_len(space->kv, tether_bytes_str(key));
    tether__file_space_end(space);
    return TETHER_OK;
}

static void file_destroy(void *impl)
{
    tether__file_space_close(impl);
    tether__free(impl);
}

static const struct tether_store_ops file_ops = {
    .size = sizeof(struct tether_store_ops),
    .set = file_set,
    .get = file_get,
    .add = file_add,
    .compare_set = file_compare_set,
    .check = file_check,
    .wait = file_wait,
    .del = file_del,
    .destroy = file_destroy,
    .try_get = file_try_get,
    .num_keys = file_num_keys,
    .append = file_append,
    .multi_get = file_multi_get,
    .multi_set = file_multi_set,
    .list_keys = file_list_keys,
    .queue_push = file_queue_push,
    .queue_pop = file_queue_pop,
    .queue_len = file_queue_len,
    /* barrier: as emulated, two keys and a wait */
};

tether_status tether_store_file_new(const char *path,
                                    int world_size,
                                    tether_store **ret_store,
                                    tether_error *reterr)
{
    if (!path || !*path)
        return tether_error_set(reterr, TETHER_EINVAL, "a file store needs a path");
    tether_status st = TETHER_ENOMEM;
    struct tether__file_space *space = tether__malloc(sizeof *space);
    char *description = tether__asprintf("file store %s", path);
    if (!space || !description) {
        tether_error_set(reterr, st, "no memory for a file store");
        goto undo_memory;
    }
    tether_error cause = {0};
    st = tether__file_space_open(space, path, world_size, &cause);
    if (st != TETHER_OK) {
        char short_path[121];
        tether_error_set(reterr, st, "file store %s: %s%s",
                         tether__store_shorten(path, short_path, sizeof short_path), cause.message,
                         st == TETHER_EIO ? ": give a path that all workers may write to" : "");
        goto undo_memory;
    }
    st = tether_store_new(&file_ops, space, description, ret_store, reterr);
    if (st != TETHER_OK)
        goto undo_open;
    tether__free(description);
    return TETHER_OK;

undo_open:
    tether__file_space_close(space);
undo_memory:
    tether__free(description);
    tether__free(space);
    return st;
}

const char *tether_store_file_path(const tether_store *store)
{
    const struct tether__file_space *space = tether_store_impl(store, &file_ops);
    return space ? space->log.path : NULL;
}
