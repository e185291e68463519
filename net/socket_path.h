/* The path of a unix socket that several processes use one after another.
 *
 * A socket file stays when its process is killed. The next process has to find out that no process
 * listens, remove the file, and bind. Two processes that do so at once would remove each other's
 * sockets. So each locks the directory (flock) from its check of the file until it listens, and
 * again to remove its own file. The kernel releases the lock of a process that dies.
 *
 * Any thread; a lock is between open files, so threads of one process exclude each other, too.
 */
#ifndef TETHER_NET_SOCKET_PATH_H
#define TETHER_NET_SOCKET_PATH_H

#include <sys/types.h>

/* Identifies the file that bind() has made. */
struct tether__socket_id {
    dev_t device;
    ino_t inode; /* 0: none */
};

/* Locks the directory of `path`; waits for a few seconds at most. Returns a descriptor for
 * unlock(), or -1 when it can't be locked. Continue without the lock then: either no other user can
 * bind in this directory, or a process holds the lock for good. */
int tether__socket_path_lock(const char *path);
void tether__socket_path_unlock(int lock); /* -1 is fine */

/* Identifies the socket at `path`, while it is locked. On error `inode` is 0 and errno says why. */
struct tether__socket_id tether__socket_path_id(const char *path);

/* Removes `path` if it is still that socket. Takes the lock itself. */
void tether__socket_path_remove(const char *path, struct tether__socket_id id);

#endif
