/* The file store: store operations on top of store/file/space.h. */
#include "base/alloc.h"
#include "rendezvous/store/file/space.h"
#include "rendezvous/store/op.h"

static tether_status write_one_locked(struct tether__file_space *space,
                                      enum tether__file_op kind,
                                      struct tether__store_op *op,
                                      tether_bytes value)
{
    struct tether__file_change change = {kind, tether_bytes_str(op->keys[0]), value};
    return tether__file_space_write_locked(space, &change, 1, &op->cause);
}

/* Runs ADD and COMPARE_SET: computes the new value and writes it. */
static tether_status edit_locked(struct tether__file_space *space, struct tether__store_op *op)
{
    tether_bytes old;
    tether_buf next = TETHER_BUF_INIT;
    bool write, found = tether__kv_get(space->kv, tether_bytes_str(op->keys[0]), &old);
    tether_status st = tether__store_op_edit(op, found ? &old : NULL, &next, &write);
    if (st == TETHER_OK && write)
        st = write_one_locked(space, TETHER__FILE_SET, op, tether_buf_bytes(&next));
    if (st == TETHER_OK && op->kind == TETHER__STORE_COMPARE_SET)
        tether__store_op_take_result(op, &next);
    tether_buf_fini(&next);
    return st;
}

static tether_status multi_set_locked(struct tether__file_space *space, struct tether__store_op *op)
{
    struct tether__file_change *changes = tether__calloc(op->n, sizeof *changes);
    if (!changes)
        return TETHER_ENOMEM;
    for (size_t i = 0; i < op->n; i++)
        changes[i] = (struct tether__file_change){TETHER__FILE_SET, tether_bytes_str(op->keys[i]),
                                                  op->values[i]};
    tether_status st = tether__file_space_write_locked(space, changes, op->n, &op->cause);
    tether__free(changes);
    return st;
}

/* Takes the first element. TETHER_ENOTFOUND: the queue is empty. */
static tether_status pop_locked(struct tether__file_space *space, struct tether__store_op *op)
{
    tether_bytes first;
    tether_buf value = TETHER_BUF_INIT;
    if (!tether__kv_queue_first(space->kv, tether_bytes_str(op->keys[0]), &first))
        return TETHER_ENOTFOUND;
    tether_status st = tether_buf_assign(&value, first);
    if (st == TETHER_OK)
        st = write_one_locked(space, TETHER__FILE_POP, op, (tether_bytes){NULL, 0});
    if (st == TETHER_OK)
        tether__store_op_take_result(op, &value);
    tether_buf_fini(&value);
    return st;
}

/* Carries out an operation that does not wait, with both locks held. */
static tether_status run_locked(struct tether__file_space *space, struct tether__store_op *op)
{
    tether_bytes value;
    tether_status st;
    switch (op->kind) {
        case TETHER__STORE_SET:
            return write_one_locked(space, TETHER__FILE_SET, op, op->values[0]);
        case TETHER__STORE_APPEND:
            return write_one_locked(space, TETHER__FILE_APPEND, op, op->values[0]);
        case TETHER__STORE_QUEUE_PUSH:
            return write_one_locked(space, TETHER__FILE_PUSH, op, op->values[0]);
        case TETHER__STORE_ADD:
        case TETHER__STORE_COMPARE_SET:
            return edit_locked(space, op);
        case TETHER__STORE_DELETE:
            op->yes = tether__kv_get(space->kv, tether_bytes_str(op->keys[0]), &value);
            return op->yes
                       ? write_one_locked(space, TETHER__FILE_DELETE, op, (tether_bytes){NULL, 0})
                       : TETHER_OK;
        case TETHER__STORE_MULTI_SET:
            return multi_set_locked(space, op);
        case TETHER__STORE_QUEUE_POP:
            return pop_locked(space, op);
        default:
            st = tether__store_op_look(op, space->kv);
            /* the file's count of users is one more key */
            op->count += op->kind == TETHER__STORE_NUM_KEYS;
            return st;
    }
}

static tether_status lock_and_run(struct tether__file_space *space, struct tether__store_op *op)
{
    tether_status st = tether__file_space_begin(space, !tether__store_op_looks(op->kind),
                                                op->deadline, &op->cause);
    if (st != TETHER_OK)
        return st;
    st = run_locked(space, op);
    tether__file_space_end(space);
    return st;
}

static tether_status wait_for(struct tether__file_space *space,
                              enum tether__kv_want want,
                              struct tether__store_op *op,
                              tether_buf *values)
{
    return tether__file_space_wait(space, want, op->keys, op->n, op->deadline, values, &op->cause);
}

static tether_status multi_get(struct tether__file_space *space, struct tether__store_op *op)
{
    tether_buf *values = tether__calloc(op->n, sizeof *values);
    if (!values)
        return TETHER_ENOMEM;
    tether_status st = wait_for(space, TETHER__KV_WANT_VALUE, op, values);
    tether__store_hand_out(values, op->n, st, op->results);
    return st;
}

/* An element wakes all callers that wait for one; one of them gets it, the others wait again. */
static tether_status queue_pop(struct tether__file_space *space, struct tether__store_op *op)
{
    for (;;) {
        tether_status st = lock_and_run(space, op);
        if (st != TETHER_ENOTFOUND || op->timeout_ms == 0)
            return st;
        st = wait_for(space, TETHER__KV_WANT_QUEUE, op, NULL);
        if (st != TETHER_OK)
            return st;
    }
}

static tether_status file_run(void *impl, struct tether__store_op *op)
{
    switch (op->kind) {
        case TETHER__STORE_GET:
            return wait_for(impl, TETHER__KV_WANT_VALUE, op, op->results);
        case TETHER__STORE_WAIT:
            return wait_for(impl, TETHER__KV_WANT_ANY, op, NULL);
        case TETHER__STORE_MULTI_GET:
            return multi_get(impl, op);
        case TETHER__STORE_QUEUE_POP:
            return queue_pop(impl, op);
        default:
            return lock_and_run(impl, op);
    }
}

/* Says that the kind lacks barriers, so that the emulation is used. One of our own would need the
 * same steps: two keys and a wait. */
static uint32_t file_lacks(const void *impl)
{
    (void)impl;
    return TETHER__STORE_BIT(TETHER__STORE_BARRIER);
}

static void file_destroy(void *impl)
{
    tether__file_space_close(impl);
    tether__free(impl);
}

static const struct tether__store_kind file_kind = {file_run, file_destroy, file_lacks};

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
        tether_error_set(reterr, st, "out of memory for a file store");
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
    st = tether__store_new(&file_kind, space, description, ret_store, reterr);
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
    const struct tether__file_space *space = tether__store_impl(store, &file_kind);
    return space ? space->log.path : NULL;
}
