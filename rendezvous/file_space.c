/* Records, locks and waits of the file store. See file_space.h. */
#include "rendezvous/file_space.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cond.h"

#define LOCK_PATIENCE_MS 1000 /* even a call that only polls waits so long for the file's lock */
#define OPEN_PATIENCE_MS 30000
#define CLOSE_PATIENCE_MS 5000
#define LOOK_EVERY_MS 10 /* where nothing tells us of changes */

/* A log is compacted when it is longer than this and than so many times what it keeps: then each
 * byte that is appended costs less than one that is copied. */
#define COMPACT_BYTES (1 << 20)
#define COMPACT_FACTOR 4
#define SNAPSHOT_RECORD (64 << 10) /* a record of a snapshot ends when it is so long */

/* A call that waits. Under mu. */
struct waiting {
    struct tether__list node;          /* in space->waiting */
    struct tether__list complete_node; /* in space->complete */
    struct tether__kv_waiter waiter;
    struct tether__file_space *space;
    pthread_cond_t wake;
    enum tether__file_wait kind;
    const char *const *keys;
    size_t n;
    tether_buf *values; /* TETHER__FILE_WAIT_VALUES: to be filled in */
    bool done;
    tether_status status; /* once done */
};

/* ---- Being told of changes ------------------------------------------------------------------- */

/* Whether other machines may write to the file without inotify telling us. */
static bool on_network(int fd)
{
    static const uint32_t network[] = {
        0x6969 /* nfs */,      0x517b /* smb */,        0xfe534d42 /* smb2 */,
        0xff534d42 /* cifs */, 0x00c36400 /* ceph */,   0x01021997 /* 9p */,
        0x65735546 /* fuse */, 0x0bd00bd0 /* lustre */, 0x47504653 /* gpfs */,
        0x73757245 /* coda */, 0x6b414653 /* afs */,
    };
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return true;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(network); i++)
        if ((uint32_t)fs.f_type == network[i])
            return true;
    return false;
}

/* Has inotify tell of changes to the file that is open. */
static void watch_file_locked(struct tether__file_space *space)
{
    if (space->inotify_fd < 0)
        return;
    char path[48]; /* of the very file that is open */
    snprintf(path, sizeof path, "/proc/self/fd/%d", space->log.fd);
    if (inotify_add_watch(space->inotify_fd, path, IN_MODIFY | IN_ATTRIB) < 0)
        space->look_every_ms = LOOK_EVERY_MS;
    else
        space->look_every_ms = on_network(space->log.fd) ? LOOK_EVERY_MS : -1;
}

/* Before the first wait. Without inotify (they are few per user) there is the slow way. */
static void start_watch_locked(struct tether__file_space *space)
{
    space->watch_tried = true;
    space->look_every_ms = LOOK_EVERY_MS;
    space->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    watch_file_locked(space);
}

/* ---- Records -------------------------------------------------------------------------------- */

/* A record is a list of changes, applied together: op, u32 length of the key, u64 length of the
 * value, key, value. */
#define CHANGE_HEADER (1 + 4 + 8)

static void encode(char *to, const struct tether__file_change *change)
{
    uint32_t key_len = htole32((uint32_t)change->key.len);
    uint64_t value_len = htole64(change->value.len);
    to[0] = (char)change->op;
    memcpy(to + 1, &key_len, sizeof key_len);
    memcpy(to + 5, &value_len, sizeof value_len);
    to += CHANGE_HEADER;
    if (change->key.len)
        memcpy(to, change->key.data, change->key.len);
    if (change->value.len)
        memcpy(to + change->key.len, change->value.data, change->value.len);
}

/* Takes the first change off `rest`; false when it is malformed. */
static bool decode(tether_bytes *rest, struct tether__file_change *change)
{
    uint32_t key_len;
    uint64_t value_len;
    if (rest->len < CHANGE_HEADER)
        return false;
    const char *from = rest->data;
    memcpy(&key_len, from + 1, sizeof key_len);
    memcpy(&value_len, from + 5, sizeof value_len);
    key_len = le32toh(key_len);
    value_len = le64toh(value_len);
    size_t left = rest->len - CHANGE_HEADER;
    if (key_len > left || value_len > left - key_len)
        return false;
    change->op = (enum tether__file_op)(unsigned char)from[0];
    change->key = tether_bytes_of(from + CHANGE_HEADER, key_len);
    change->value = tether_bytes_of(from + CHANGE_HEADER + key_len, value_len);
    size_t len = CHANGE_HEADER + key_len + (size_t)value_len;
    *rest = tether_bytes_of(from + len, rest->len - len);
    return true;
}

static void encode_counts(const struct tether__file_space *space, char to[16])
{
    uint64_t users = htole64((uint64_t)space->users), closed = htole64((uint64_t)space->closed);
    memcpy(to, &users, sizeof users);
    memcpy(to + 8, &closed, sizeof closed);
}

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

/* All keys are there. The values are taken when the whole record has been applied. */
static void on_ready(struct tether__kv_waiter *waiter, tether_buf *popped)
{
    (void)popped;
    struct waiting *waiting = tether__container_of(waiter, struct waiting, waiter);
    tether__list_push_back(&waiting->space->complete, &waiting->complete_node);
}

/* Tells the calls that have what they wait for, with their values filled in. */
static void tell_complete_locked(struct tether__file_space *space)
{
    for (struct tether__list *node; (node = tether__list_pop_front(&space->complete));) {
        struct waiting *waiting = tether__list_entry(node, struct waiting, complete_node);
        tether__list_init(&waiting->complete_node);
        for (size_t i = 0; waiting->values && i < waiting->n && waiting->status == TETHER_OK; i++) {
            tether_bytes value;
            if (tether__kv_get(space->kv, tether_bytes_str(waiting->keys[i]), &value))
                waiting->status = tether_buf_assign(&waiting->values[i], value);
        }
        waiting->done = true;
        pthread_cond_signal(&waiting->wake);
    }
}

/* Has `waiting` told when its keys are there, perhaps at once; an error ends its wait, too. */
static void register_locked(struct tether__file_space *space, struct waiting *waiting)
{
    static tether_status (*const wait[])(struct tether__kv *, struct tether__kv_waiter *,
                                         const tether_bytes *, size_t, tether__kv_ready_fn *) = {
        [TETHER__FILE_WAIT_PRESENT] = tether__kv_wait,
        [TETHER__FILE_WAIT_VALUES] = tether__kv_wait_values,
        [TETHER__FILE_WAIT_QUEUE] = tether__kv_wait_queues,
    };
    tether_bytes one;
    tether_bytes *keys = waiting->n <= 1 ? &one : tether__calloc(waiting->n, sizeof *keys);
    for (size_t i = 0; keys && i < waiting->n; i++)
        keys[i] = tether_bytes_str(waiting->keys[i]);
    tether_status st = TETHER_ENOMEM;
    if (keys)
        st = wait[waiting->kind](space->kv, &waiting->waiter, keys, waiting->n, on_ready);
    if (keys != &one)
        tether__free(keys);
    if (st == TETHER_OK) {
        tell_complete_locked(space);
    } else {
        waiting->status = st;
        waiting->done = true;
        pthread_cond_signal(&waiting->wake);
    }
}

static tether_status apply_record_locked(void *userdata, tether_bytes body, tether_error *reterr)
{
    struct tether__file_space *space = userdata;
    while (body.len > 0) {
        struct tether__file_change change;
        tether_status st =
            decode(&body, &change) ? apply_change_locked(space, &change) : TETHER_ECORRUPT;
        if (st == TETHER_ECORRUPT)
            tether_error_set(reterr, st, "the file has a record that this version can't read");
        if (st != TETHER_OK) {
            tell_complete_locked(space);
            return st;
        }
    }
    tell_complete_locked(space);
    return TETHER_OK;
}

/* Loads a log that begins with a snapshot into new keys, and moves the calls that wait to those. */
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
    TETHER__LIST_FOR_EACH(node, &space->waiting)
        tether__kv_cancel(old, &tether__list_entry(node, struct waiting, node)->waiter);
    tether__kv_fini(old);
    TETHER__LIST_FOR_EACH(node, &space->waiting) {
        struct waiting *waiting = tether__list_entry(node, struct waiting, node);
        if (!waiting->done)
            register_locked(space, waiting);
    }
    return TETHER_OK;
}

static tether_status catch_up_locked(struct tether__file_space *space, tether_error *reterr)
{
    return space->reload ? reload_locked(space, reterr)
                         : tether__file_log_read(&space->log, apply_record_locked, space, reterr);
}

/* ---- Compaction ----------------------------------------------------------------------------- */

struct snapshot {
    struct tether__file_log *log;
    tether_buf record; /* what is not written yet, behind room for its header */
};

static tether_status snapshot_flush(struct snapshot *snapshot)
{
    tether_buf *record = &snapshot->record;
    tether_status st = TETHER_OK;
    if (record->len > TETHER__FILE_LOG_HEADER)
        st = tether__file_log_write(snapshot->log, record->data, record->len, NULL);
    if (st == TETHER_OK && record->len > TETHER__FILE_LOG_HEADER)
        snapshot->log->offset += (int64_t)record->len;
    static const char room[TETHER__FILE_LOG_HEADER];
    return st == TETHER_OK ? tether_buf_assign(record, tether_bytes_of(room, sizeof room)) : st;
}

static tether_status snapshot_change(struct snapshot *snapshot,
                                     const struct tether__file_change *change)
{
    size_t len = CHANGE_HEADER + change->key.len + change->value.len;
    tether_status st = tether_buf_reserve(&snapshot->record, len);
    if (st != TETHER_OK)
        return st;
    encode(snapshot->record.data + snapshot->record.len, change);
    snapshot->record.len += len;
    return snapshot->record.len >= SNAPSHOT_RECORD ? snapshot_flush(snapshot) : TETHER_OK;
}

static tether_status snapshot_visit(void *userdata,
                                    tether_bytes key,
                                    tether_bytes value,
                                    bool queued)
{
    enum tether__file_op op = queued ? TETHER__FILE_PUSH : TETHER__FILE_SET;
    return snapshot_change(userdata, &(struct tether__file_change){op, key, value});
}

/* Writes all keys, queues and counts to `log`. */
static tether_status write_snapshot_locked(struct tether__file_space *space,
                                           struct tether__file_log *log)
{
    struct snapshot snapshot = {.log = log};
    char counts[16];
    encode_counts(space, counts);
    const struct tether__file_change change = {.op = TETHER__FILE_COUNTS,
                                               .value = tether_bytes_of(counts, sizeof counts)};
    tether_status st = snapshot_flush(&snapshot); /* nothing yet: makes room for the header */
    if (st == TETHER_OK)
        st = snapshot_change(&snapshot, &change);
    if (st == TETHER_OK)
        st = tether__kv_visit(space->kv, snapshot_visit, &snapshot);
    if (st == TETHER_OK)
        st = snapshot_flush(&snapshot);
    tether_buf_fini(&snapshot.record);
    return st;
}

/* With the exclusive lock, when all has been read: replaces the log by a snapshot if it is worth
 * it. A failure (a directory that one may not write to, say) only leaves the log longer. */
static void compact_locked(struct tether__file_space *space)
{
    const int64_t size = space->log.offset;
    if (size <= COMPACT_BYTES || size <= space->compact_after ||
        (uint64_t)size / COMPACT_FACTOR <= space->kv->bytes || on_network(space->log.fd))
        return;
    struct tether__file_log next;
    tether_status st = tether__file_log_replace_begin(&space->log, &next, NULL);
    if (st == TETHER_OK) {
        st = write_snapshot_locked(space, &next);
        if (st == TETHER_OK)
            st = tether__file_log_replace_commit(&space->log, &next, NULL);
        else
            tether__file_log_replace_abandon(&space->log, &next);
    }
    space->compact_after = st == TETHER_OK ? 0 : 2 * size;
    if (st == TETHER_OK)
        watch_file_locked(space);
}

tether_status tether__file_space_write_locked(struct tether__file_space *space,
                                              const struct tether__file_change *changes,
                                              size_t n,
                                              tether_error *reterr)
{
    size_t len = TETHER__FILE_LOG_HEADER;
    for (size_t i = 0; i < n; i++)
        len += CHANGE_HEADER + changes[i].key.len + changes[i].value.len;
    char small[512];
    char *record = len <= sizeof small ? small : tether__malloc(len);
    if (!record)
        return TETHER_ENOMEM;
    char *at = record + TETHER__FILE_LOG_HEADER;
    for (size_t i = 0; i < n; i++) {
        encode(at, &changes[i]);
        at += CHANGE_HEADER + changes[i].key.len + changes[i].value.len;
    }
    tether_status st = tether__file_log_write(&space->log, record, len, reterr);
    if (record != small)
        tether__free(record);
    if (st == TETHER_OK && catch_up_locked(space, NULL) == TETHER_OK)
        compact_locked(space);
    return st;
}

/* ---- Locking -------------------------------------------------------------------------------- */

/* Takes `mu` and the file's lock, trying until `deadline`, but LOCK_PATIENCE_MS at least. */
static tether_status lock_both(struct tether__file_space *space,
                               bool exclusive,
                               int64_t deadline,
                               tether_error *reterr)
{
    int64_t patience = tether__deadline_in(&tether__clock_system, LOCK_PATIENCE_MS);
    if (deadline < patience)
        deadline = patience;
    struct timespec nap = {0, 50000};
    for (;;) {
        pthread_mutex_lock(&space->mu);
        tether_status st = tether__file_log_try_lock(&space->log, exclusive, reterr);
        if (st == TETHER_OK)
            return TETHER_OK;
        pthread_mutex_unlock(&space->mu);
        if (st != TETHER_EBUSY)
            return st;
        if (tether__deadline_left_ms(&tether__clock_system, deadline) == 0)
            return tether_error_set(reterr, TETHER_ETIMEOUT,
                                    "another process keeps the file locked");
        nanosleep(&nap, NULL);
        if (nap.tv_nsec < 2000000)
            nap.tv_nsec *= 2;
    }
}

void tether__file_space_end(struct tether__file_space *space)
{
    tether__file_log_unlock(&space->log);
    pthread_mutex_unlock(&space->mu);
}

/* Changes over to the file that a compaction of another process put in the place of ours. */
static tether_status follow_locked(struct tether__file_space *space, tether_error *reterr)
{
    tether_status st = tether__file_log_follow(&space->log, reterr);
    if (st == TETHER_OK) {
        space->reload = true;
        watch_file_locked(space); /* before it is read, so that no change is missed */
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

/* ---- Waiting -------------------------------------------------------------------------------- */

/* The watcher's sleep: until the file changes, or it is time to look anyway, or the deadline. */
static void watch(int inotify_fd, int look_every_ms, int64_t deadline)
{
    int sleep_ms = tether__deadline_left_ms(&tether__clock_system, deadline);
    if (look_every_ms >= 0 && (sleep_ms < 0 || sleep_ms > look_every_ms))
        sleep_ms = look_every_ms;
    struct pollfd pollfd = {.fd = inotify_fd, .events = POLLIN};
    if (poll(&pollfd, 1, sleep_ms) > 0) {
        char events[4096] __attribute__((aligned(8)));
        while (read(inotify_fd, events, sizeof events) > 0) {
        }
    }
}

/* Sleeps, `mu` held, until `waiting` is done or the deadline has passed. */
static tether_status sleep_locked(struct tether__file_space *space,
                                  struct waiting *waiting,
                                  int64_t deadline,
                                  tether_error *reterr)
{
    while (!waiting->done) {
        if (space->watched) {
            if (!tether__cond_wait(&waiting->wake, &space->mu, deadline) && !waiting->done)
                return TETHER_ETIMEOUT;
            continue;
        }
        space->watched = true;
        bool watching = space->watch_tried; /* else: look at what came before it was watched */
        if (!watching)
            start_watch_locked(space);
        const int inotify_fd = space->inotify_fd, look_every_ms = space->look_every_ms;
        pthread_mutex_unlock(&space->mu);
        if (watching)
            watch(inotify_fd, look_every_ms, deadline);
        tether_status st = tether__file_space_begin(space, false, deadline, reterr);
        if (st == TETHER_OK)
            tether__file_log_unlock(&space->log);
        else
            pthread_mutex_lock(&space->mu);
        space->watched = false;
        if (st != TETHER_OK && !waiting->done)
            return st;
        if (!waiting->done && tether__deadline_left_ms(&tether__clock_system, deadline) == 0)
            return TETHER_ETIMEOUT;
    }
    return waiting->status;
}

tether_status tether__file_space_wait(struct tether__file_space *space,
                                      enum tether__file_wait kind,
                                      const char *const *keys,
                                      size_t n,
                                      int64_t deadline,
                                      tether_buf *values,
                                      tether_error *reterr)
{
    struct waiting waiting = {.space = space, .kind = kind, .keys = keys, .n = n, .values = values};
    tether_status st = tether__file_space_begin(space, false, deadline, reterr);
    if (st != TETHER_OK)
        return st;
    tether__file_log_unlock(&space->log);
    tether__cond_init(&waiting.wake);
    tether__list_init(&waiting.complete_node);
    tether__list_push_back(&space->waiting, &waiting.node);
    register_locked(space, &waiting);
    if (!waiting.done && tether__deadline_left_ms(&tether__clock_system, deadline) == 0)
        st = TETHER_ETIMEOUT;
    else
        st = sleep_locked(space, &waiting, deadline, reterr);
    tether__kv_cancel(space->kv, &waiting.waiter);
    tether__list_remove(&waiting.node);
    pthread_cond_destroy(&waiting.wake);
    if (!space->watched && !tether__list_empty(&space->waiting)) /* somebody must watch */
        pthread_cond_signal(&tether__list_entry(space->waiting.next, struct waiting, node)->wake);
    pthread_mutex_unlock(&space->mu);
    return st;
}

/* ---- Opening and closing -------------------------------------------------------------------- */

/* Opens the log and locks it; again when the last user has removed it in between. */
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
        return tether_error_set(reterr, st, "no memory for its keys");
    pthread_mutex_init(&space->mu, NULL);

    int64_t deadline = tether__deadline_in(&tether__clock_system, OPEN_PATIENCE_MS);
    st = open_log(space, path, deadline, reterr);
    if (st != TETHER_OK)
        goto undo_mu;
    st = catch_up_locked(space, reterr);
    if (st == TETHER_EGONE)
        st = tether_error_set(reterr, TETHER_EUNAVAILABLE, "it was removed while it was opened");
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
