/* Locks the directory of a socket. See socket_path.h. */
#include "net/socket_path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define LOCK_MS 5000 /* other processes hold it for microseconds only */

static int open_directory(const char *path)
{
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) + 1 : 0;
    if (len >= sizeof directory)
        return -1;
    memcpy(directory, path, len);
    directory[len] = '\0';
    return open(len ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int tether__socket_path_lock(const char *path)
{
    int fd = open_directory(path);
    if (fd < 0)
        return -1;
    int64_t deadline = tether__deadline_in(&tether__clock_system, LOCK_MS);
    const struct timespec nap = {0, 1000000};
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) ||
            tether__deadline_left_ms(&tether__clock_system, deadline) == 0) {
            close(fd);
            return -1;
        }
        nanosleep(&nap, NULL);
    }
    return fd;
}

void tether__socket_path_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
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
    int lock = tether__socket_path_lock(path);
    struct stat st;
    if (id.inode != 0 && lstat(path, &st) == 0 && st.st_dev == id.device && st.st_ino == id.inode)
        unlink(path);
    tether__socket_path_unlock(lock);
}
