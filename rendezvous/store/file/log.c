/* Opening, locking and records of the file store's log. compact.c replaces and removes it. */
#include "rendezvous/store/file/log.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/map.h" /* tether__hash */
#include "base/threads/loop.h"
#include "rendezvous/store/file/log_internal.h"

#define MAGIC "TETHERF2"
#define MAGIC_LEN 8
#define CHUNK_SIZE (64 << 10)

tether_status tether__file_io_error(const char *what, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EIO, "can't %s: %s", what, strerror(errno));
}

tether_status tether__file_removed(tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EUNAVAILABLE,
                            "the file was removed while it was in use");
}

/* ---- Opening -------------------------------------------------------------------------------- */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool tether__file_log_has_name(const struct tether__file_log *log, const struct stat *mine)
{
    struct stat there;
    return fstatat(log->dir_fd, log->name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           same_file(mine, &there);
}

tether_status tether__file_may_use(const struct stat *st, tether_error *reterr)
{
    if (!S_ISREG(st->st_mode))
        return tether_error_set(reterr, TETHER_EINVAL, "it is not a regular file");
    if (st->st_uid != geteuid())
        return tether_error_set(reterr, TETHER_EPERM,
                                "it belongs to user %lu, and this process runs as user %lu: give "
                                "the path of a file of your own",
                                (unsigned long)st->st_uid, (unsigned long)geteuid());
    if (st->st_mode & (S_IWGRP | S_IWOTH))
        return tether_error_set(reterr, TETHER_EPERM,
                                "other users may write to it (mode %04o): chmod 600",
                                (unsigned)st->st_mode & 07777);
    if (st->st_nlink > 1)
        return tether_error_set(reterr, TETHER_EPERM,
                                "it has %lu hard links: give a file with one name",
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
        return tether__file_io_error("open", reterr);
    struct stat st;
    tether_status status = fstat(fd, &st) == 0 ? tether__file_may_use(&st, reterr)
                                               : tether__file_io_error("open", reterr);
    if (status == TETHER_OK)
        *ret_fd = fd;
    else
        close(fd);
    return status;
}

/* Opens the directory of the file, so that the process can find the file after it has changed its
 * working directory. */
static tether_status open_directory(struct tether__file_log *log, tether_error *reterr)
{
    char *slash = strrchr(log->path, '/');
    log->name = slash ? slash + 1 : log->path;
    char first = *log->name;
    if (slash)
        log->path[log->name - log->path] = '\0'; /* only the directory and its slash */
    log->dir_fd = open(slash ? log->path : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (slash)
        log->path[log->name - log->path] = first;
    return log->dir_fd < 0 ? tether__file_io_error("open its directory", reterr) : TETHER_OK;
}

tether_status tether__file_log_open(struct tether__file_log *log,
                                    const char *path,
                                    tether_error *reterr)
{
    *log = (struct tether__file_log){.fd = -1, .dir_fd = -1};
    /* If a standard stream is closed, the file would get its number, and output of the program
     * would be written into it. */
    tether__occupy_standard_streams();
    log->path = tether__strdup(path);
    if (!log->path || tether_buf_reserve(&log->chunk, CHUNK_SIZE) != TETHER_OK) {
        tether__file_log_close(log);
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a log");
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
    return errno == EWOULDBLOCK || errno == EINTR ? TETHER_EBUSY
                                                  : tether__file_io_error("lock it", reterr);
}

void tether__file_log_unlock(struct tether__file_log *log)
{
    flock(log->fd, LOCK_UN);
}

ssize_t tether__file_read_at(int fd, char *data, size_t len, int64_t offset)
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

/* Writes `len` bytes at the offset of the log; on failure truncates the file to that offset. */
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
            tether_status st = tether__file_io_error("write", reterr);
            if (ftruncate(log->fd, log->offset) != 0) {
                /* the incomplete record stays: the next writer truncates it */
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

tether_status tether__file_log_write_start(struct tether__file_log *log, tether_error *reterr)
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

bool tether__file_starts_like_log(const char *start, size_t len)
{
    return memcmp(start, MAGIC, len < MAGIC_LEN ? len : MAGIC_LEN) == 0;
}

bool tether__file_read_start(const char start[TETHER__FILE_LOG_START],
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
        return tether__file_io_error("stat it", reterr);
    if (!tether__file_log_has_name(log, &mine))
        return TETHER_EGONE;
    ssize_t n = tether__file_read_at(log->fd, start, sizeof start, 0);
    if (n < 0)
        return tether__file_io_error("read", reterr);
    if (!tether__file_starts_like_log(start, (size_t)n))
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "it is not the file of a store of this version, and is left "
                                "unchanged: give another path");
    /* the file is new, or its creator died before it wrote the header */
    if ((size_t)n < sizeof start) {
        if (getrandom(log->id, sizeof log->id, 0) != (ssize_t)sizeof log->id)
            return tether__file_io_error("draw a random number", reterr);
        log->generation = 0;
        return tether__file_log_write_start(log, reterr);
    }
    const char *id;
    log->offset = 0;
    if (!tether__file_read_start(start, &id, &log->generation))
        return damaged(log, reterr);
    memcpy(log->id, id, sizeof log->id);
    log->offset = sizeof start;
    return TETHER_OK;
}

tether_status tether__file_log_follow(struct tether__file_log *log, tether_error *reterr)
{
    struct stat mine;
    if (fstat(log->fd, &mine) != 0)
        return tether__file_io_error("stat it", reterr);
    int fd;
    errno = 0;
    tether_status st = open_file(log, 0, &fd, reterr);
    if (st != TETHER_OK)
        return st == TETHER_EIO && errno != ENOENT ? st : tether__file_removed(reterr);
    char start[TETHER__FILE_LOG_START];
    const char *id;
    uint64_t generation;
    if (tether__file_read_at(fd, start, sizeof start, 0) != (ssize_t)sizeof start ||
        !tether__file_read_start(start, &id, &generation) ||
        memcmp(id, log->id, sizeof log->id) != 0 || generation <= log->generation) {
        close(fd);
        /* the path leads to another store or to none: this one was removed */
        return tether__file_removed(reterr);
    }
    close(log->fd); /* closing also releases the lock */
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

/* The checksum of a record's length, body checksum and offset in the file. */
static uint64_t header_checksum(const char *record, int64_t offset)
{
    return tether__hash(record, 16, (unsigned long)offset);
}

/* Fills the chunk from the current offset with at least `need` bytes, which the file has. */
static tether_status fill_chunk(struct tether__file_log *log, size_t need, tether_error *reterr)
{
    log->chunk.len = 0;
    if (need < CHUNK_SIZE) {
        need = CHUNK_SIZE;
        if (log->chunk.cap > 16 * CHUNK_SIZE)
            tether_buf_fini(&log->chunk); /* free the buffer: it has become large for one record */
    }
    if (tether_buf_reserve(&log->chunk, need) != TETHER_OK)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory to read %zu bytes", need);
    ssize_t n = tether__file_read_at(log->fd, log->chunk.data, need, log->offset);
    if (n < 0)
        return tether__file_io_error("read", reterr);
    log->chunk.len = (size_t)n;
    return TETHER_OK;
}

/* The kind of the next record, judged by the bytes that have been read. */
enum next { NEXT_UNKNOWN, NEXT_TORN, NEXT_DAMAGED, NEXT_RECORD };

/* Examines the first `have` bytes of the record at `offset`, from where the file has `left` bytes.
 * A torn record is a prefix of a valid one, so a complete header is either valid or damaged. */
static enum next examine_record(const char *record,
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
        return tether__file_io_error("stat it", reterr);
    const int64_t size = stat_now.st_size;
    if (size < log->offset)
        return damaged(log, reterr);

    size_t at = 0; /* position of log->offset in the chunk */
    log->chunk.len = 0;
    for (;;) {
        const char *record = log->chunk.data + at;
        size_t have = log->chunk.len - at;
        uint64_t record_len;
        enum next next =
            examine_record(record, have, (uint64_t)(size - log->offset), log->offset, &record_len);
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

/* Fills in the header of a record that will be written at `offset`. */
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
        return tether__file_io_error("cut off a torn record", reterr);
    seal(record, len, log->offset);
    return write_at(log, record, len, reterr);
}
