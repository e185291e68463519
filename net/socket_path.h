/* The path of a unix socket that several processes use one after another.
 *
 * A socket file stays when its process is killed. The next process has to find out that no process
 * listens, remove the file, and bind. Two processes that do so at once would remove each other's
 * sockets. So each holds a lock from its check of the file until it listens, and again to remove
 * its own file.
 *
 * The lock is a flock() of the file PATH.lock, which only its own user can open: mode 0600, so no
 * other user can hold it. A lock on the folder would be open to every user who may read the folder.
 * The kernel releases the lock of a process that dies, and the next process goes on with its file.
 * The holder removes the file while it holds the lock. A process that waited for the removed file
 * notices that the path leads elsewhere, and opens the file anew.
 *
 * Failure: another user has made PATH.lock, or a process of this user has held it for 5 s. Then
 * there is no lock and the operation fails, since a start without the lock could remove the socket
 * of a live process.
 *
 * Any thread; a lock is between open files, so threads of one process exclude each other, too.
 */
#ifndef TETHER_NET_SOCKET_PATH_H
#define TETHER_NET_SOCKET_PATH_H

#include <limits.h>
#include <sys/types.h>

#include "base/status.h"

/* Identifies the file that bind() has made. */
struct tether__socket_id {
    dev_t device;
    ino_t inode; /* 0: there is no such file */
};

struct tether__socket_lock {
    int fd;
    char name[PATH_MAX];
};

/* Locks `path`; waits for a few seconds at most. TETHER_EPERM: another user can open the lock file,
 * or has made it; TETHER_EADDRINUSE: another process keeps the lock; TETHER_EIO. */
tether_status tether__socket_path_lock(const char *path,
                                       struct tether__socket_lock *ret_lock,
                                       tether_error *reterr);
void tether__socket_path_unlock(struct tether__socket_lock *lock);

/* Identifies the socket at `path`, while it is locked. On error `inode` is 0 and errno says why. */
struct tether__socket_id tether__socket_path_id(const char *path);

/* Removes `path` if it is still the socket with this id. Takes the lock itself; without the lock
 * the file stays, and the next process at this path removes it. */
void tether__socket_path_remove(const char *path, struct tether__socket_id id);

#endif
