/* Framing, checksums and locking of the file store's log. */
#include "rendezvous/file_log.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/map.h" /* tether__hash */

#define MAGIC "TETHERF2"
#define MAGIC_LEN 8
#define CHUNK_SIZE (64 << 10)
#define COMPACT_SUFFIX ".compact"

/* Messages don't name the file: the caller, who knows it by its path, does. */
static tether_status io_error(const char *what, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EIO, "can't %s: %s", what, strerror(errno));
}

static tether_status removed(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EUNAVAILABLE,
                            "the file was removed while it was in use");
}

/* ---- Opening -------------------------------------------------------------------------------- */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether the path leads to the file that is open and that `mine` describes. */
static bool has_name(const struct tether__file_log *log, const struct stat *mine)
{
    struct stat there;
    return fstatat(log->dir_fd, log->name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           same_file(mine, &there);
}

/* Whether a file may be used: see Security in the header. No name (the last user has removed it
 * just now) is for check() to find. */
static tether_status may_use(const struct stat *st, tether_error *reterr)
{
    if (!S_ISREG(st->st_mode))
        return tether_error_set(reterr, TETHER_EINVAL, "it is not a regular file");
    if (st->st_uid != geteuid())
        return tether_error_set(reterr, TETHER_EPERM,
                                "it belongs to user %lu, and this process runs as user %lu: give "
                                "the path of a file of one's own",
                                (unsigned long)st->st_uid, (unsigned long)geteuid());
    if (st->st_mode & (S_IWGRP | S_IWOTH))
        return tether_error_set(reterr, TETHER_EPERM,
                                "other users may write to it (mode %04o): chmod 600",
                                (unsigned)st->st_mode & 07777);
    if (st->st_nlink > 1)
        return tether_error_set(reterr, TETHER_EPERM,
                                "it has %lu hard links: give a file that has one name",
                                (unsigned long)st->st_nlink);
    return TETHER_OK;
}

/* Opens the file that the path leads to now. */
static tether_status open_file(const struct tether__file_log *log,
                               int flags,
                               int *ret_fd,
                               tether_error *reterr)
{
    int fd =
        openat(log->dir_fd, log->name, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | flags, 0600);
    if (fd < 0 && errno == ELOOP)
        return tether_error_set(reterr, TETHER_EPERM,
                                "it is a symbolic link: give the path of the file itself");
    if (fd < 0)
        return io_error("open", reterr);
    struct stat st;
    tether_status status = fstat(fd, &st) == 0 ? may_use(&st, reterr) : io_error("open", reterr);
    if (status == TETHER_OK)
        *ret_fd = fd;
    else
        close(fd);
    return status;
}

/* Opens the directory that the file is in, so that the file stays within reach when the process
 * changes its working directory. */
static tether_status open_directory(struct tether__file_log *log, tether_error *reterr)
{
    char *slash = strrchr(log->path, '/');
    log->name = slash ? slash + 1 : log->path;
    char first = *log->name;
    if (slash)
        log->path[log->name - log->path] = '\0'; /* the directory, with its slash */
    log->dir_fd = open(slash ? log->path : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (slash)
        log->path[log->name - log->path] = first;
    return log->dir_fd < 0 ? io_error("open its directory", reterr) : TETHER_OK;
}

tether_status tether__file_log_open(struct tether__file_log *log,
                                    const char *path,
                                    tether_error *reterr)
{
    *log = (struct tether__file_log){.fd = -1, .dir_fd = -1};
    log->path = tether__strdup(path);
    if (!log->path || tether_buf_reserve(&log->chunk, CHUNK_SIZE) != TETHER_OK) {
        tether__file_log_close(log);
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a log");
    }
    tether_status st = open_directory(log, reterr);
    if (st == TETHER_OK)
        st = open_file(log, O_CREAT, &log->fd, reterr);
    if (st != TETHER_OK)
        tether__file_log_close(log);
    return st;
}

void tether__file_log_close(struct tether__file_log *log)
{
    if (log->path && log->fd >= 0)
        close(log->fd);
    if (log->path && log->dir_fd >= 0)
        close(log->dir_fd);
    tether_buf_fini(&log->chunk);
    tether__free(log->path);
    *log = (struct tether__file_log){.fd = -1, .dir_fd = -1};
}

tether_status tether__file_log_try_lock(struct tether__file_log *log,
                                        bool exclusive,
                                        tether_error *reterr)
{
    if (flock(log->fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0)
        return TETHER_OK;
    return errno == EWOULDBLOCK || errno == EINTR ? TETHER_EBUSY : io_error("lock it", reterr);
}

void tether__file_log_unlock(struct tether__file_log *log)
{
    flock(log->fd, LOCK_UN);
}

/* Reads all of `len` bytes at `offset`, or fewer at the end of the file. -1: error. */
static ssize_t read_at(int fd, char *data, size_t len, int64_t offset)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pread(fd, data + done, len - done, offset + (int64_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* Writes all, or else cuts the file off at `offset` again. */
static tether_status write_at(struct tether__file_log *log,
                              const char *data,
                              size_t len,
                              tether_error *reterr)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pwrite(log->fd, data + done, len - done, log->offset + (int64_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            tether_status st = io_error("write", reterr);
            if (ftruncate(log->fd, log->offset) != 0) {
                /* a torn tail stays: the next writer tries again */
            }
            return st;
        }
        done += (size_t)n;
    }
    return TETHER_OK;
}

static uint64_t load_u64(const char *from)
{
    uint64_t number;
    memcpy(&number, from, sizeof number);
    return le64toh(number);
}

static void store_u64(char *to, uint64_t number)
{
    number = htole64(number);
    memcpy(to, &number, sizeof number);
}

static tether_status damaged(const struct tether__file_log *log, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ECORRUPT,
                            "the file is damaged at byte %lld: remove it, or use another",
                            (long long)log->offset);
}

/* ---- The beginning of the file -------------------------------------------------------------- */

static tether_status write_start(struct tether__file_log *log, tether_error *reterr)
{
    char start[TETHER__FILE_LOG_START];
    memcpy(start, MAGIC, MAGIC_LEN);
    memcpy(start + 8, log->id, sizeof log->id);
    store_u64(start + 24, log->generation);
    store_u64(start + 32, tether__hash(start, 32, 0));
    log->offset = 0;
    tether_status st = write_at(log, start, sizeof start, reterr);
    if (st == TETHER_OK)
        log->offset = sizeof start;
    return st;
}

/* Whether `start` is whole and right; then `*ret_id` (16 bytes, LENT) and `*ret_generation`. */
static bool read_start(const char start[TETHER__FILE_LOG_START],
                       const char **ret_id,
                       uint64_t *ret_generation)
{
    if (memcmp(start, MAGIC, MAGIC_LEN) != 0 || load_u64(start + 32) != tether__hash(start, 32, 0))
        return false;
    *ret_id = start + 8;
    *ret_generation = load_u64(start + 24);
    return true;
}

tether_status tether__file_log_check(struct tether__file_log *log, tether_error *reterr)
{
    struct stat mine;
    char start[TETHER__FILE_LOG_START];
    if (fstat(log->fd, &mine) != 0)
        return io_error("look at it", reterr);
    if (!has_name(log, &mine))
        return TETHER_EGONE;
    ssize_t n = read_at(log->fd, start, sizeof start, 0);
    if (n < 0)
        return io_error("read", reterr);
    if (memcmp(start, MAGIC, n < MAGIC_LEN ? (size_t)n : MAGIC_LEN) != 0)
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "it is not a store's file (of this version) and is left as it is: "
                                "give another path");
    if ((size_t)n < sizeof start) { /* new, or the process that made it died at it */
        if (getrandom(log->id, sizeof log->id, 0) != (ssize_t)sizeof log->id)
            return io_error("draw a random number", reterr);
        log->generation = 0;
        return write_start(log, reterr);
    }
    const char *id;
    log->offset = 0;
    if (!read_start(start, &id, &log->generation))
        return damaged(log, reterr);
    memcpy(log->id, id, sizeof log->id);
    log->offset = sizeof start;
    return TETHER_OK;
}

tether_status tether__file_log_follow(struct tether__file_log *log, tether_error *reterr)
{
    struct stat mine;
    if (fstat(log->fd, &mine) != 0)
        return io_error("look at it", reterr);
    int fd;
    errno = 0;
    tether_status st = open_file(log, 0, &fd, reterr);
    if (st != TETHER_OK)
        return st == TETHER_EIO && errno != ENOENT ? st : removed(reterr);
    char start[TETHER__FILE_LOG_START];
    const char *id;
    uint64_t generation;
    if (read_at(fd, start, sizeof start, 0) != (ssize_t)sizeof start ||
        !read_start(start, &id, &generation) || memcmp(id, log->id, sizeof log->id) != 0 ||
        generation <= log->generation) {
        close(fd);
        return removed(reterr); /* what has the name now is another store, or no store */
    }
    close(log->fd); /* gives the lock back */
    log->fd = fd;
    log->generation = generation;
    tether__file_log_rewind(log);
    return TETHER_OK;
}

void tether__file_log_rewind(struct tether__file_log *log)
{
    log->offset = TETHER__FILE_LOG_START;
}

/* ---- Records -------------------------------------------------------------------------------- */

/* The checksum of a record's length and body checksum, at its place in the file. */
static uint64_t header_checksum(const char *record, int64_t offset)
{
    return tether__hash(record, 16, (unsigned long)offset);
}

/* Reads into the chunk what comes next, at least `need` bytes (which the file has). */
static tether_status fill_chunk(struct tether__file_log *log, size_t need, tether_error *reterr)
{
    log->chunk.len = 0;
    if (need < CHUNK_SIZE) {
        need = CHUNK_SIZE;
        if (log->chunk.cap > 16 * CHUNK_SIZE)
            tether_buf_fini(&log->chunk); /* held something large once */
    }
    if (tether_buf_reserve(&log->chunk, need) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory to read %zu bytes", need);
    ssize_t n = read_at(log->fd, log->chunk.data, need, log->offset);
    if (n < 0)
        return io_error("read", reterr);
    log->chunk.len = (size_t)n;
    return TETHER_OK;
}

/* What comes next in the file, as far as it has been read. */
enum next { NEXT_UNKNOWN, NEXT_TORN, NEXT_DAMAGED, NEXT_RECORD };

/* Looks at the `have` bytes at `record`, which stands at `offset` with `left` bytes of the file
 * from there on. A torn record is a prefix of a right one: a header that is whole is right, or
 * damaged. */
static enum next look(const char *record,
                      size_t have,
                      uint64_t left,
                      int64_t offset,
                      uint64_t *ret_len)
{
    *ret_len = TETHER__FILE_LOG_HEADER;
    if (left < TETHER__FILE_LOG_HEADER)
        return NEXT_TORN;
    if (have < TETHER__FILE_LOG_HEADER)
        return NEXT_UNKNOWN;
    if (load_u64(record + 16) != header_checksum(record, offset))
        return NEXT_DAMAGED;
    uint64_t body_len = load_u64(record);
    if (body_len > left - TETHER__FILE_LOG_HEADER)
        return NEXT_TORN;
    *ret_len += body_len;
    if (have < *ret_len)
        return NEXT_UNKNOWN;
    return load_u64(record + 8) == tether__hash(record + TETHER__FILE_LOG_HEADER, body_len, 0)
               ? NEXT_RECORD
               : NEXT_DAMAGED;
}

tether_status tether__file_log_read(struct tether__file_log *log,
                                    tether__file_log_apply *apply,
                                    void *userdata,
                                    tether_error *reterr)
{
    struct stat stat_now;
    if (fstat(log->fd, &stat_now) != 0)
        return io_error("look at it", reterr);
    const int64_t size = stat_now.st_size;
    if (size < log->offset)
        return damaged(log, reterr);

    size_t at = 0; /* where log->offset is in the chunk */
    log->chunk.len = 0;
    for (;;) {
        const char *record = log->chunk.data + at;
        size_t have = log->chunk.len - at;
        uint64_t record_len;
        enum next next =
            look(record, have, (uint64_t)(size - log->offset), log->offset, &record_len);
        if (next == NEXT_TORN)
            break;
        if (next == NEXT_DAMAGED)
            return damaged(log, reterr);
        if (next == NEXT_UNKNOWN) {
            tether_status st = fill_chunk(log, record_len, reterr);
            if (st != TETHER_OK)
                return st;
            if (log->chunk.len < record_len)
                return damaged(log, reterr);
            at = 0;
            continue;
        }
        tether_status st = apply(
            userdata,
            tether_bytes_of(record + TETHER__FILE_LOG_HEADER, record_len - TETHER__FILE_LOG_HEADER),
            reterr);
        if (st != TETHER_OK)
            return st;
        at += record_len;
        log->offset += (int64_t)record_len;
    }
    return stat_now.st_nlink == 0 ? TETHER_EGONE : TETHER_OK;
}

/* Fills in the header of a record that is to stand at `offset`. */
static void seal(char *record, size_t len, int64_t offset)
{
    size_t body_len = len - TETHER__FILE_LOG_HEADER;
    store_u64(record, body_len);
    store_u64(record + 8, tether__hash(record + TETHER__FILE_LOG_HEADER, body_len, 0));
    store_u64(record + 16, header_checksum(record, offset));
}

tether_status tether__file_log_write(struct tether__file_log *log,
                                     char *record,
                                     size_t len,
                                     tether_error *reterr)
{
    struct stat stat_now;
    if (fstat(log->fd, &stat_now) != 0 ||
        (stat_now.st_size > log->offset && ftruncate(log->fd, log->offset) != 0))
        return io_error("cut off a torn record", reterr);
    seal(record, len, log->offset);
    return write_at(log, record, len, reterr);
}

/* ---- Compaction ----------------------------------------------------------------------------- */

/* The name of the file that a compaction writes. False: too long for a name. */
static bool compact_name(const struct tether__file_log *log, char name[NAME_MAX + 1])
{
    int n = snprintf(name, NAME_MAX + 1, "%s" COMPACT_SUFFIX, log->name);
    return n > 0 && n <= NAME_MAX;
}

/* Whether `name` was left by a process that died while it compacted this log. */
static bool is_leftover(const struct tether__file_log *log, const char *name)
{
    int fd = openat(log->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return false;
    struct stat st;
    char start[TETHER__FILE_LOG_START];
    const char *id;
    uint64_t generation;
    ssize_t n = fstat(fd, &st) == 0 && may_use(&st, NULL) == TETHER_OK
                    ? read_at(fd, start, sizeof start, 0)
                    : -1;
    close(fd);
    if (n == (ssize_t)sizeof start)
        return read_start(start, &id, &generation) && memcmp(id, log->id, sizeof log->id) == 0;
    return n >= 0 && memcmp(start, MAGIC, n < MAGIC_LEN ? (size_t)n : MAGIC_LEN) == 0;
}

static int make_compact_file(const struct tether__file_log *log, const char *name)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW;
    int fd = openat(log->dir_fd, name, flags, 0600);
    if (fd < 0 && errno == EEXIST && is_leftover(log, name) && unlinkat(log->dir_fd, name, 0) == 0)
        fd = openat(log->dir_fd, name, flags, 0600);
    return fd;
}

tether_status tether__file_log_replace_begin(struct tether__file_log *log,
                                             struct tether__file_log *next,
                                             tether_error *reterr)
{
    struct stat mine;
    char name[NAME_MAX + 1];
    if (fstat(log->fd, &mine) != 0)
        return io_error("look at it", reterr);
    if (mine.st_nlink != 1 || !has_name(log, &mine))
        return removed(reterr);
    if (!compact_name(log, name))
        return tether_error_set(reterr, TETHER_ETOOBIG, "its name is too long to compact it");
    *next = (struct tether__file_log){
        .fd = make_compact_file(log, name), .dir_fd = -1, .generation = log->generation + 1};
    memcpy(next->id, log->id, sizeof next->id);
    if (next->fd < 0)
        return io_error("make a file to compact it", reterr);
    tether_status st = TETHER_OK;
    if (fchmod(next->fd, mine.st_mode & 0777) != 0 || flock(next->fd, LOCK_EX | LOCK_NB) != 0)
        st = io_error("lock the file that compacts it", reterr);
    if (st == TETHER_OK)
        st = write_start(next, reterr);
    if (st != TETHER_OK)
        tether__file_log_replace_abandon(log, next);
    return st;
}

tether_status tether__file_log_replace_commit(struct tether__file_log *log,
                                              struct tether__file_log *next,
                                              tether_error *reterr)
{
    struct stat mine;
    char name[NAME_MAX + 1];
    if (fstat(log->fd, &mine) != 0 || !has_name(log, &mine) || !compact_name(log, name)) {
        tether__file_log_replace_abandon(log, next);
        return removed(reterr);
    }
    if (renameat(log->dir_fd, name, log->dir_fd, log->name) != 0) {
        tether_status st = io_error("put the compacted file in its place", reterr);
        tether__file_log_replace_abandon(log, next);
        return st;
    }
    close(log->fd); /* only now: those who wait for its lock see that it has no name */
    log->fd = next->fd;
    log->generation = next->generation;
    log->offset = next->offset;
    next->fd = -1;
    return TETHER_OK;
}

void tether__file_log_replace_abandon(struct tether__file_log *log, struct tether__file_log *next)
{
    char name[NAME_MAX + 1];
    if (compact_name(log, name))
        unlinkat(log->dir_fd, name, 0);
    close(next->fd);
    next->fd = -1;
}

void tether__file_log_remove(struct tether__file_log *log)
{
    struct stat mine;
    char name[NAME_MAX + 1];
    if (fstat(log->fd, &mine) != 0 || !has_name(log, &mine))
        return;
    if (compact_name(log, name) && is_leftover(log, name))
        unlinkat(log->dir_fd, name, 0);
    unlinkat(log->dir_fd, log->name, 0);
}
