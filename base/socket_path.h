/* The path of a unix socket, when several processes start and end at it.
 *
 * A socket file stays when its process is killed, so the next one has to find out that nobody
 * listens, remove the file, and bind. Two that do so at once would remove each other's sockets; so
 * each locks the directory (flock) from the look at the file until it listens, and again to remove
 * its own. A process that dies gives the lock back.
 *
 * Any thread; a lock is between open files, so threads of one process exclude each other, too.
 */
#ifndef TETHER_BASE_SOCKET_PATH_H
#define TETHER_BASE_SOCKET_PATH_H

#include <sys/types.h>

/* Which file bind() has made. */
struct tether__socket_id {
    dev_t device;
    ino_t inode; /* 0: none */
};

/* Locks the directory of `path`, waiting for a few seconds at the most. Gives a descriptor for
 * unlock(), or -1 when it can't be locked: then one goes on without, as the directory is not one
 * that this user shares with anybody who could bind there, or something holds the lock for good. */
int tether__socket_path_lock(const char *path);
void tether__socket_path_unlock(int lock); /* -1 is fine */

/* Remembers the socket at `path`, while it is locked. On error `inode` is 0 and errno says why. */
struct tether__socket_id tether__socket_path_id(const char *path);

/* Removes `path` if it is still that socket. Locks. */
void tether__socket_path_remove(const char *path, struct tether__socket_id id);

#endif
