/* The file of a unix socket: its address, an old file in its way, and its removal.
 *
 * Happy path: path() of "unix:/path", lock() it, clear() what a worker that was killed has left
 * there, bind, note() which file that made, unlock, remove() it at the end.
 *
 * Failure modes: a path that is too long, or that cannot be locked: lock() says which. A file that
 * is no socket, a socket that a process listens on: clear() says which. remove() leaves a file
 * alone that another process has put in the place of ours.
 *
 * No locks: any thread may use a file, one at a time.
 */
#ifndef TETHER_RPC_TRANSPORT_GRPC_SOCKET_FILE_H
#define TETHER_RPC_TRANSPORT_GRPC_SOCKET_FILE_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>

#include "base/status.h"
#include "net/socket_path.h"

/* A socket file that this process has bound. */
struct tether__socket_file {
    const char *path; /* LENT; NULL: there is no file */
    dev_t device;
    ino_t inode;
};

/* The part behind "unix:"; NULL for any other address. */
const char *tether__socket_path(const char *address);

/* False: the path is empty or longer than a unix socket can have. */
bool tether__socket_sockaddr(const char *path, struct sockaddr_un *ret_at);

/* Checks the path, and locks it: see net/socket_path.h. */
tether_status tether__socket_file_lock(const char *path,
                                       struct tether__socket_lock *ret_lock,
                                       tether_error *reterr);

/* Removes a socket file at the locked `path` on which no process listens, so that bind() can
 * succeed. */
tether_status tether__socket_file_clear(const char *path, tether_error *reterr);

/* Remembers the file that bind() has made. False: errno says why not. */
bool tether__socket_file_note(struct tether__socket_file *ret_file, const char *path);

/* Removes the file, unless another process has put another one in its place. A second call does
 * nothing. */
void tether__socket_file_remove(struct tether__socket_file *file);

#endif
