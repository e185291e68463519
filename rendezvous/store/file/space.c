/* Records, locks and compaction of the file store. See space.h. */
#include "rendezvous/store/file/space.h"

#include <endian.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/backoff.h"
#include "base/clock.h"
#include "rendezvous/store/file/space_internal.h"

#define FIRST_LOCK_RETRY_NS INT64_C(100000)
#define LONGEST_LOCK_RETRY_NS (2 * TETHER__NS_PER_MS)
#define LOCK_PATIENCE_MS \
    1000 /* time for which even a call that only polls waits for the lock of the file */
#define OPEN_PATIENCE_MS 30000
#define CLOSE_PATIENCE_MS 5000

/* A log is compacted when it is longer than COMPACT_BYTES and longer than COMPACT_FACTOR times its
 * keys and values. So each appended byte causes less than one copied byte. */
#define COMPACT_BYTES (1 << 20)
#define COMPACT_FACTOR 4

/* ---- Records -------------------------------------------------------------------------------- */

static bool decode_counts_locked(struct tether__file_space *space, tether_bytes from)
{
    uint64_t users, closed;
    if (from.len != sizeof users + sizeof closed)
        return false;
    memcpy(&users, from.data, sizeof users);
    memcpy(&closed, (const char *)from.data + 8, sizeof closed);
    space->users = (int64_t)le64toh(users);
    space->closed = (int64_t)le64toh(closed);
    return true;
}

static tether_status apply_change_locked(struct tether__file_space *space,
                                         const struct tether__file_change *change)
{
    tether_buf popped = TETHER_BUF_INIT;
    switch (change->op) {
        case TETHER__FILE_SET:
            return tether__kv_set(space->kv, change->key, change->value);
        case TETHER__FILE_DELETE:
            tether__kv_delete(space->kv, change->key);
            return TETHER_OK;
        case TETHER__FILE_APPEND:
            return tether__kv_append(space->kv, change->key, change->value);
        case TETHER__FILE_PUSH:
            return tether__kv_queue_push(space->kv, change->key, change->value);
        case TETHER__FILE_POP:
            tether__kv_queue_pop(space->kv, change->key, &popped);
            tether_buf_fini(&popped);
            return TETHER_OK;
        case TETHER__FILE_OPEN:
            space->users++;
            return TETHER_OK;
        case TETHER__FILE_CLOSE:
            space->users--;
            space->closed++;
            return TETHER_OK;
        case TETHER__FILE_COUNTS:
            return decode_counts_locked(space, change->value) ? TETHER_OK : TETHER_ECORRUPT;
    }
    return TETHER_ECORRUPT;
}

static tether_status apply_record_locked(void *userdata, tether_bytes body, tether_error *reterr)
{
    struct tether__file_space *space = userdata;
    while (body.len > 0) {
        struct tether__file_change change;
        tether_status st = tether__file_change_decode(&body, &change)
                               ? apply_change_locked(space, &change)
                               : TETHER_ECORRUPT;
        if (st == TETHER_ECORRUPT)
            tether_error_set(reterr, st, "the file has a record that this version can't read");
        if (st != TETHER_OK) {
            tether__file_wake_complete_locked(space);
            return st;
        }
    }
    tether__file_wake_complete_locked(space);
    return TETHER_OK;
}

/* Loads a log that begins with a snapshot into new keys, and moves waiting calls to these. */
static tether_status reload_locked(struct tether__file_space *space, tether_error *reterr)
{
    struct tether__kv *old = space->kv;
    const int64_t users = space->users, closed = space->closed;
    space->kv = old == &space->kvs[0] ? &space->kvs[1] : &space->kvs[0];
    tether__file_log_rewind(&space->log);
    space->users = space->closed = 0;
    tether_status st = tether__kv_init(space->kv, SIZE_MAX / 2);
    if (st == TETHER_OK)
        st = tether__file_log_read(&space->log, apply_record_locked, space, reterr);
    if (st != TETHER_OK) {
        tether__kv_fini(space->kv);
        space->kv = old;
        space->users = users;
        space->closed = closed;
        return st;
    }
    space->reload = false;
    space->compact_after = 0;
    tether__file_move_waits_locked(space, old);
    tether__kv_fini(old);
    return TETHER_OK;
}

static tether_status catch_up_locked(struct tether__file_space *space, tether_error *reterr)
{
    return space->reload ? reload_locked(space, reterr)
                         : tether__file_log_read(&space->log, apply_record_locked, space, reterr);
}

/* ---- Compaction ----------------------------------------------------------------------------- */

/* With the exclusive lock and all records read: replaces a long log by a snapshot. After a failure
 * (for instance in a read-only directory) the log only stays longer. */
static void compact_locked(struct tether__file_space *space)
{
    const int64_t size = space->log.offset;
    if (size <= COMPACT_BYTES || size <= space->compact_after ||
        (uint64_t)size / COMPACT_FACTOR <= space->kv->bytes ||
        tether__file_on_network(space->log.fd))
        return;
    struct tether__file_log next;
    tether_status st = tether__file_log_replace_begin(&space->log, &next, NULL);
    if (st == TETHER_OK) {
        st = tether__file_write_snapshot_locked(space, &next);
        if (st == TETHER_OK)
            st = tether__file_log_replace_commit(&space->log, &next, NULL);
        else
            tether__file_log_replace_abandon(&space->log, &next);
    }
    space->compact_after = st == TETHER_OK ? 0 : 2 * size;
    if (st == TETHER_OK)
        tether__file_watch_locked(space);
}

tether_status tether__file_space_write_locked(struct tether__file_space *space,
                                              const struct tether__file_change *changes,
                                              size_t n,
                                              tether_error *reterr)
{
    size_t len = TETHER__FILE_LOG_HEADER;
    for (size_t i = 0; i < n; i++)
        len += tether__file_change_size(&changes[i]);
    char small[512];
    char *record = len <= sizeof small ? small : tether__malloc(len);
    if (!record)
        return TETHER_ENOMEM;
    char *at = record + TETHER__FILE_LOG_HEADER;
    for (size_t i = 0; i < n; i++) {
        tether__file_change_encode(at, &changes[i]);
        at += tether__file_change_size(&changes[i]);
    }
    tether_status st = tether__file_log_write(&space->log, record, len, reterr);
    if (record != small)
        tether__free(record);
    if (st == TETHER_OK && catch_up_locked(space, NULL) == TETHER_OK)
        compact_locked(space);
    return st;
}

/* ---- Locking -------------------------------------------------------------------------------- */

/* Takes `mu` and the lock of the file. Tries until `deadline`, and for LOCK_PATIENCE_MS in any
 * case.
 */
static tether_status lock_both(struct tether__file_space *space,
                               bool exclusive,
                               int64_t deadline,
                               tether_error *reterr)
{
    int64_t patience = tether__deadline_in(&tether__clock_system, LOCK_PATIENCE_MS);
    if (deadline < patience)
        deadline = patience;
    for (unsigned round = 0;; round++) {
        pthread_mutex_lock(&space->mu);
        tether_status st = tether__file_log_try_lock(&space->log, exclusive, reterr);
        if (st == TETHER_OK)
            return TETHER_OK;
        pthread_mutex_unlock(&space->mu);
        if (st != TETHER_EBUSY)
            return st;
        if (!tether__backoff_sleep(round, FIRST_LOCK_RETRY_NS, LONGEST_LOCK_RETRY_NS, deadline))
            return tether_error_set(reterr, TETHER_ETIMEOUT,
                                    "another process keeps the file locked");
    }
}

void tether__file_space_end(struct tether__file_space *space)
{
    tether__file_log_unlock(&space->log);
    pthread_mutex_unlock(&space->mu);
}

/* Opens the new file if another process has replaced this one by a compaction. */
static tether_status follow_locked(struct tether__file_space *space, tether_error *reterr)
{
    tether_status st = tether__file_log_follow(&space->log, reterr);
    if (st == TETHER_OK) {
        space->reload = true;
        /* before the first read of the new file, so that no change is missed */
        tether__file_watch_locked(space);
    }
    return st;
}

tether_status tether__file_space_begin(struct tether__file_space *space,
                                       bool exclusive,
                                       int64_t deadline,
                                       tether_error *reterr)
{
    for (;;) {
        tether_status st = lock_both(space, exclusive, deadline, reterr);
        if (st != TETHER_OK)
            return st;
        st = catch_up_locked(space, reterr);
        if (st == TETHER_OK)
            return TETHER_OK;
        bool again = st == TETHER_EGONE;
        if (again)
            st = follow_locked(space, reterr);
        tether__file_space_end(space);
        if (!again || st != TETHER_OK)
            return st;
    }
}

/* ---- Opening and closing -------------------------------------------------------------------- */

/* Opens and locks the log; repeats that when the last user has removed it in between. */
static tether_status open_log(struct tether__file_space *space,
                              const char *path,
                              int64_t deadline,
                              tether_error *reterr)
{
    for (;;) {
        tether_status st = tether__file_log_open(&space->log, path, reterr);
        if (st != TETHER_OK)
            return st;
        st = lock_both(space, true, deadline, reterr);
        if (st == TETHER_OK) {
            st = tether__file_log_check(&space->log, reterr);
            if (st == TETHER_OK)
                return TETHER_OK;
            tether__file_space_end(space);
        }
        tether__file_log_close(&space->log);
        if (st != TETHER_EGONE)
            return st;
    }
}

tether_status tether__file_space_open(struct tether__file_space *space,
                                      const char *path,
                                      int world_size,
                                      tether_error *reterr)
{
    *space = (struct tether__file_space){.world_size = world_size, .inotify_fd = -1};
    tether__list_init(&space->waiting);
    tether__list_init(&space->complete);
    space->kv = &space->kvs[0];
    tether_status st = tether__kv_init(space->kv, SIZE_MAX / 2);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "out of memory for its keys");
    pthread_mutex_init(&space->mu, NULL);

    int64_t deadline = tether__deadline_in(&tether__clock_system, OPEN_PATIENCE_MS);
    st = open_log(space, path, deadline, reterr);
    if (st != TETHER_OK)
        goto undo_mu;
    st = catch_up_locked(space, reterr);
    if (st == TETHER_EGONE)
        st = tether_error_set(reterr, TETHER_EUNAVAILABLE,
                              "another process removed it while it was being opened");
    if (st == TETHER_OK) {
        const struct tether__file_change open = {.op = TETHER__FILE_OPEN};
        st = tether__file_space_write_locked(space, &open, 1, reterr);
    }
    tether__file_space_end(space);
    if (st != TETHER_OK)
        goto undo_log;
    return TETHER_OK;

undo_log:
    tether__file_log_close(&space->log);
undo_mu:
    pthread_mutex_destroy(&space->mu);
    tether__kv_fini(space->kv);
    return st;
}

void tether__file_space_close(struct tether__file_space *space)
{
    int64_t deadline = tether__deadline_in(&tether__clock_system, CLOSE_PATIENCE_MS);
    if (tether__file_space_begin(space, true, deadline, NULL) == TETHER_OK) {
        const struct tether__file_change close = {.op = TETHER__FILE_CLOSE};
        tether_status st = tether__file_space_write_locked(space, &close, 1, NULL);
        if (st == TETHER_OK && space->users == 0 && space->world_size >= 0 &&
            space->closed >= space->world_size)
            tether__file_log_remove(&space->log);
        tether__file_space_end(space);
    }
    if (space->inotify_fd >= 0)
        close(space->inotify_fd);
    tether__file_log_close(&space->log);
    tether__kv_fini(space->kv);
    pthread_mutex_destroy(&space->mu);
}
