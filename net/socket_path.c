/* Locks the path of a socket. See socket_path.h. */
#include "net/socket_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define LOCK_MS 5000 /* other processes hold it for microseconds only */

/* Opens the lock file, or makes it. Returns -1 with errno; EPERM: others can open it, too. */
static int open_lock(const char *name)
{
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    struct stat st;
    int fd = open(name, flags, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return -1;
    int error = fstat(fd, &st) != 0 ? errno : 0;
    if (!error && (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077)))
        error = EPERM;
    if (!error)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

/* Waits for the lock. Returns 0 or an error number; EWOULDBLOCK at the deadline. */
static int await_lock(int fd, int64_t deadline)
{
    const struct timespec nap = {0, 1000000};
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return errno;
        if (tether__deadline_left_ms(&tether__clock_system, deadline) == 0)
            return EWOULDBLOCK;
        nanosleep(&nap, NULL);
    }
    return 0;
}

/* Whether `name` still leads to the open file: its last holder may have removed it. */
static bool is_current(int fd, const char *name)
{
    struct stat open_file, named;
    return fstat(fd, &open_file) == 0 && lstat(name, &named) == 0 &&
           open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

static tether_status fail(const char *name, int error, tether_error *reterr)
{
    if (error == EWOULDBLOCK)
        return tether_error_set(reterr, TETHER_EADDRINUSE,
                                "another process of this user has held the lock file %s for %d ms; "
                                "end that process, or choose another path",
                                name, LOCK_MS);
    if (error == EPERM || error == EACCES || error == ELOOP || error == ENXIO || error == EISDIR)
        return tether_error_set(reterr, TETHER_EPERM,
                                "the lock file %s is not this user's alone (%s); choose a path in "
                                "a folder that only you may write to",
                                name, strerror(error));
    return tether_error_set(reterr, TETHER_EIO,
                            "opening the lock file %s: %s; choose another path, in a folder that "
                            "you may write to",
                            name, strerror(error));
}

tether_status tether__socket_path_lock(const char *path,
                                       struct tether__socket_lock *ret_lock,
                                       tether_error *reterr)
{
    int64_t deadline = tether__deadline_in(&tether__clock_system, LOCK_MS);
    char *name = ret_lock->name;
    if (snprintf(name, sizeof ret_lock->name, "%s.lock", path) >= (int)sizeof ret_lock->name)
        return tether_error_set(reterr, TETHER_EINVAL, "the path is longer than %d bytes",
                                PATH_MAX - 6);
    for (;;) {
        ret_lock->fd = open_lock(name);
        if (ret_lock->fd < 0)
            return fail(name, errno, reterr);
        int error = await_lock(ret_lock->fd, deadline);
        if (!error && is_current(ret_lock->fd, name))
            return TETHER_OK;
        close(ret_lock->fd);
        if (error)
            return fail(name, error, reterr);
    }
}

void tether__socket_path_unlock(struct tether__socket_lock *lock)
{
    unlink(lock->name); /* remove the file while it is locked, so that it is certainly this one */
    close(lock->fd);
}

struct tether__socket_id tether__socket_path_id(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return (struct tether__socket_id){0, 0};
    return (struct tether__socket_id){st.st_dev, st.st_ino};
}

void tether__socket_path_remove(const char *path, struct tether__socket_id id)
{
    struct tether__socket_lock lock = {.fd = -1};
    struct stat st;
    if (id.inode == 0 || tether__socket_path_lock(path, &lock, NULL) != TETHER_OK)
        return;
    if (lstat(path, &st) == 0 && st.st_dev == id.device && st.st_ino == id.inode)
        unlink(path);
    tether__socket_path_unlock(&lock);
}
