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

/* A call that waits. Under mu. */
struct waiting {
    struct tether__list node;
    pthread_cond_t wake;
    enum tether__file_wait kind;
    const char *const *keys;
    size_t n;
    tether_buf *values; /* TETHER__FILE_WAIT_VALUES: to be filled in */
    bool done;
    tether_status status; /* once done */
};

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

static tether_status apply_change_locked(struct tether__file_space *space,
                                         const struct tether__file_change *change)
{
    tether_buf popped = TETHER_BUF_INIT;
    switch (change->op) {
        case TETHER__FILE_SET:
            return tether__kv_set(&space->kv, change->key, change->value);
        case TETHER__FILE_DELETE:
            tether__kv_delete(&space->kv, change->key);
            return TETHER_OK;
        case TETHER__FILE_APPEND:
            return tether__kv_append(&space->kv, change->key, change->value);
        case TETHER__FILE_PUSH:
            return tether__kv_queue_push(&space->kv, change->key, change->value);
        case TETHER__FILE_POP:
            tether__kv_queue_pop(&space->kv, change->key, &popped);
            tether_buf_fini(&popped);
            return TETHER_OK;
        case TETHER__FILE_OPEN:
            space->users++;
            return TETHER_OK;
        case TETHER__FILE_CLOSE:
            space->users--;
            space->closed++;
            return TETHER_OK;
    }
    return TETHER_ECORRUPT;
}

/* Whether `waiting` has what it waits for; then it is done, with its values filled in. */
static bool offer_locked(struct tether__file_space *space, struct waiting *waiting)
{
    for (size_t i = 0; i < waiting->n; i++) {
        tether_bytes key = tether_bytes_str(waiting->keys[i]), value;
        if (waiting->kind == TETHER__FILE_WAIT_PRESENT ? !tether__kv_present(&space->kv, key)
            : waiting->kind == TETHER__FILE_WAIT_VALUES
                ? !tether__kv_get(&space->kv, key, &value)
                : tether__kv_queue_len(&space->kv, key) == 0)
            return false;
    }
    for (size_t i = 0; waiting->values && i < waiting->n && waiting->status == TETHER_OK; i++) {
        tether_bytes value;
        if (tether__kv_get(&space->kv, tether_bytes_str(waiting->keys[i]), &value))
            waiting->status = tether_buf_assign(&waiting->values[i], value);
    }
    waiting->done = true;
    return true;
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
        if (st != TETHER_OK)
            return st;
    }
    TETHER__LIST_FOR_EACH(node, &space->waiting) {
        struct waiting *waiting = tether__list_entry(node, struct waiting, node);
        if (!waiting->done && offer_locked(space, waiting))
            pthread_cond_signal(&waiting->wake);
    }
    return TETHER_OK;
}

static tether_status catch_up_locked(struct tether__file_space *space, tether_error *reterr)
{
    return tether__file_log_read(&space->log, apply_record_locked, space, reterr);
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
    if (st == TETHER_OK)
        catch_up_locked(space, NULL);
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

tether_status tether__file_space_begin(struct tether__file_space *space,
                                       bool exclusive,
                                       int64_t deadline,
                                       tether_error *reterr)
{
    tether_status st = lock_both(space, exclusive, deadline, reterr);
    if (st != TETHER_OK)
        return st;
    st = catch_up_locked(space, reterr);
    if (st != TETHER_OK)
        tether__file_space_end(space);
    return st;
}

/* ---- Waiting -------------------------------------------------------------------------------- */

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

/* Before the first wait. Without inotify (they are few per user) there is the slow way. */
static void start_watch_locked(struct tether__file_space *space)
{
    if (space->watch_tried)
        return;
    space->watch_tried = true;
    space->look_every_ms = LOOK_EVERY_MS;
    char path[48]; /* of the very file that is open */
    snprintf(path, sizeof path, "/proc/self/fd/%d", space->log.fd);
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (fd < 0)
        return;
    if (inotify_add_watch(fd, path, IN_MODIFY | IN_ATTRIB) < 0) {
        close(fd);
        return;
    }
    space->inotify_fd = fd;
    if (!on_network(space->log.fd))
        space->look_every_ms = -1;
}

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
        pthread_mutex_unlock(&space->mu);
        watch(space->inotify_fd, space->look_every_ms, deadline);
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

/* Whether the wait is over before it begins, with `*ret_status`. If not, `mu` is held. */
static bool look(struct tether__file_space *space,
                 struct waiting *waiting,
                 int64_t deadline,
                 tether_status *ret_status,
                 tether_error *reterr)
{
    *ret_status = tether__file_space_begin(space, false, deadline, reterr);
    if (*ret_status != TETHER_OK)
        return true;
    tether__file_log_unlock(&space->log);
    if (offer_locked(space, waiting))
        *ret_status = waiting->status;
    else if (tether__deadline_left_ms(&tether__clock_system, deadline) == 0)
        *ret_status = TETHER_ETIMEOUT;
    else
        return false;
    pthread_mutex_unlock(&space->mu);
    return true;
}

tether_status tether__file_space_wait(struct tether__file_space *space,
                                      enum tether__file_wait kind,
                                      const char *const *keys,
                                      size_t n,
                                      int64_t deadline,
                                      tether_buf *values,
                                      tether_error *reterr)
{
    struct waiting waiting = {.kind = kind, .keys = keys, .n = n, .values = values};
    tether_status st;
    if (look(space, &waiting, deadline, &st, reterr))
        return st;
    if (!space->watch_tried) {
        start_watch_locked(space);
        pthread_mutex_unlock(&space->mu);
        if (look(space, &waiting, deadline, &st, reterr)) /* at what came before it was watched */
            return st;
    }
    tether__cond_init(&waiting.wake);
    tether__list_push_back(&space->waiting, &waiting.node);
    st = sleep_locked(space, &waiting, deadline, reterr);
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
    tether_status st = tether__kv_init(&space->kv, SIZE_MAX / 2);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "no memory for its keys");
    pthread_mutex_init(&space->mu, NULL);

    int64_t deadline = tether__deadline_in(&tether__clock_system, OPEN_PATIENCE_MS);
    st = open_log(space, path, deadline, reterr);
    if (st != TETHER_OK)
        goto undo_mu;
    st = catch_up_locked(space, reterr);
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
    tether__kv_fini(&space->kv);
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
    tether__kv_fini(&space->kv);
    pthread_mutex_destroy(&space->mu);
}
