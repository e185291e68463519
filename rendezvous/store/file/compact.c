/* Replaces the file of a log by a compacted one, and removes the file. See Compaction in log.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/store/file/log_internal.h"

#define COMPACT_SUFFIX ".compact"

/* Writes the name of the file that a compaction makes. False: the name would be too long. */
static bool compact_name(const struct tether__file_log *log, char name[NAME_MAX + 1])
{
    int n = snprintf(name, NAME_MAX + 1, "%s" COMPACT_SUFFIX, log->name);
    return n > 0 && n <= NAME_MAX;
}

/* Whether a process that died while it compacted this log has left the file `name`. */
static bool is_leftover(const struct tether__file_log *log, const char *name)
{
    int fd = openat(log->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return false;
    struct stat st;
    char start[TETHER__FILE_LOG_START];
    const char *id;
    uint64_t generation;
    ssize_t n = fstat(fd, &st) == 0 && tether__file_may_use(&st, NULL) == TETHER_OK
                    ? tether__file_read_at(fd, start, sizeof start, 0)
                    : -1;
    close(fd);
    if (n == (ssize_t)sizeof start)
        return tether__file_read_start(start, &id, &generation) &&
               memcmp(id, log->id, sizeof log->id) == 0;
    return n >= 0 && tether__file_starts_like_log(start, (size_t)n);
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
        return tether__file_io_error("stat it", reterr);
    if (mine.st_nlink != 1 || !tether__file_log_has_name(log, &mine))
        return tether__file_removed(reterr);
    if (!compact_name(log, name))
        return tether_error_set(reterr, TETHER_ETOOBIG, "its name is too long to compact it");
    *next = (struct tether__file_log){
        .fd = make_compact_file(log, name), .dir_fd = -1, .generation = log->generation + 1};
    memcpy(next->id, log->id, sizeof next->id);
    if (next->fd < 0)
        return tether__file_io_error("create the compacted file", reterr);
    tether_status st = TETHER_OK;
    if (fchmod(next->fd, mine.st_mode & 0777) != 0 || flock(next->fd, LOCK_EX | LOCK_NB) != 0)
        st = tether__file_io_error("lock the compacted file", reterr);
    if (st == TETHER_OK)
        st = tether__file_log_write_start(next, reterr);
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
    if (fstat(log->fd, &mine) != 0 || !tether__file_log_has_name(log, &mine) ||
        !compact_name(log, name)) {
        tether__file_log_replace_abandon(log, next);
        return tether__file_removed(reterr);
    }
    if (renameat(log->dir_fd, name, log->dir_fd, log->name) != 0) {
        tether_status st = tether__file_io_error("rename the compacted file", reterr);
        tether__file_log_replace_abandon(log, next);
        return st;
    }
    /* close it last: a process that gets its lock now sees that the file has no name */
    close(log->fd);
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
    if (fstat(log->fd, &mine) != 0 || !tether__file_log_has_name(log, &mine))
        return;
    if (compact_name(log, name) && is_leftover(log, name))
        unlinkat(log->dir_fd, name, 0);
    unlinkat(log->dir_fd, log->name, 0);
}
