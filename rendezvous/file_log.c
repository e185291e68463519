/* Framing, checksums and locking of the file store's log. */
#include "rendezvous/file_log.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/map.h" /* tether__hash */

#define MAGIC "TETHERF1"
#define MAGIC_LEN 8
#define CHUNK_SIZE (64 << 10)

/* Messages don't name the file: the caller, who knows it by its path, does. */
static tether_status io_error(const char *what, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EIO, "can't %s: %s", what, strerror(errno));
}

tether_status tether__file_log_open(struct tether__file_log *log,
                                    const char *path,
                                    tether_error *reterr)
{
    *log = (struct tether__file_log){.fd = -1};
    log->path = tether__strdup(path);
    if (!log->path || tether_buf_reserve(&log->chunk, CHUNK_SIZE) != TETHER_OK) {
        tether__file_log_close(log);
        return tether_error_set(reterr, TETHER_ENOMEM, "no memory for a log");
    }
    log->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
    struct stat st;
    tether_status status = TETHER_OK;
    if (log->fd < 0 || fstat(log->fd, &st) != 0)
        status = io_error("open", reterr);
    else if (!S_ISREG(st.st_mode))
        status = tether_error_set(reterr, TETHER_EINVAL, "it is not a regular file");
    if (status != TETHER_OK)
        tether__file_log_close(log);
    return status;
}

void tether__file_log_close(struct tether__file_log *log)
{
    if (log->path && log->fd >= 0)
        close(log->fd);
    tether_buf_fini(&log->chunk);
    tether__free(log->path);
    *log = (struct tether__file_log){.fd = -1};
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

tether_status tether__file_log_check(struct tether__file_log *log, tether_error *reterr)
{
    struct stat mine, there;
    char magic[MAGIC_LEN];
    if (fstat(log->fd, &mine) != 0)
        return io_error("look at it", reterr);
    if (stat(log->path, &there) != 0 || there.st_dev != mine.st_dev || there.st_ino != mine.st_ino)
        return TETHER_EGONE;
    ssize_t n = read_at(log->fd, magic, sizeof magic, 0);
    if (n < 0)
        return io_error("read", reterr);
    if (memcmp(magic, MAGIC, (size_t)n) != 0)
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "it is not a store's file and is left as it is: give another path");
    tether_status st = TETHER_OK;
    if (n < MAGIC_LEN) /* new, or its maker died at it */
        st = write_at(log, MAGIC, MAGIC_LEN, reterr);
    if (st == TETHER_OK)
        log->offset = MAGIC_LEN;
    return st;
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

/* The checksum of a record that begins at `record` and is `len` bytes long, header included. */
static uint64_t checksum(const char *record, size_t len)
{
    return tether__hash(record + 8, len - 8, 0);
}

static tether_status damaged(const struct tether__file_log *log, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_ECORRUPT,
                            "the file is damaged at byte %lld: remove it, or use another",
                            (long long)log->offset);
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

tether_status tether__file_log_read(struct tether__file_log *log,
                                    tether__file_log_apply *apply,
                                    void *userdata,
                                    tether_error *reterr)
{
    struct stat stat_now;
    if (fstat(log->fd, &stat_now) != 0)
        return io_error("look at it", reterr);
    if (stat_now.st_nlink == 0)
        return tether_error_set(reterr, TETHER_EUNAVAILABLE,
                                "the file was removed while it was in use");
    const int64_t size = stat_now.st_size;
    if (size < log->offset)
        return damaged(log, reterr);

    size_t at = 0; /* where log->offset is in the chunk */
    log->chunk.len = 0;
    for (;;) {
        uint64_t left = (uint64_t)(size - log->offset); /* of the file */
        if (left < TETHER__FILE_LOG_HEADER)
            return TETHER_OK;
        uint64_t record_len = TETHER__FILE_LOG_HEADER; /* as far as is known */
        if (log->chunk.len - at >= TETHER__FILE_LOG_HEADER) {
            uint64_t body_len = load_u64(log->chunk.data + at + 8);
            if (body_len > left - TETHER__FILE_LOG_HEADER)
                return TETHER_OK; /* torn */
            record_len += body_len;
        }
        if (log->chunk.len - at < record_len) {
            tether_status st = fill_chunk(log, record_len, reterr);
            if (st != TETHER_OK)
                return st;
            if (log->chunk.len < record_len)
                return damaged(log, reterr);
            at = 0;
            continue;
        }
        const char *record = log->chunk.data + at;
        if (load_u64(record) != checksum(record, record_len))
            return record_len == left ? TETHER_OK /* torn */ : damaged(log, reterr);
        tether_status st = apply(
            userdata,
            tether_bytes_of(record + TETHER__FILE_LOG_HEADER, record_len - TETHER__FILE_LOG_HEADER),
            reterr);
        if (st != TETHER_OK)
            return st;
        at += record_len;
        log->offset += (int64_t)record_len;
    }
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
    store_u64(record + 8, len - TETHER__FILE_LOG_HEADER);
    store_u64(record, checksum(record, len));
    return write_at(log, record, len, reterr);
}

void tether__file_log_remove(struct tether__file_log *log)
{
    struct stat mine, there;
    if (fstat(log->fd, &mine) == 0 && stat(log->path, &there) == 0 && mine.st_dev == there.st_dev &&
        mine.st_ino == there.st_ino)
        unlink(log->path);
}
