/* Names for the sockets of one host, and the process behind a connection.
 *
 * The sockets have no file: their names are the kernel's, per network namespace, and go with the
 * process, however that ends. So a name that no process listens on is proof that its process has
 * released it. Any process of the host may try to connect, or take a name that is free again: both
 * ends ask the kernel for the other's user and go on only if it is their own.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/transport/socket/socket.h"

#define SCHEME "unix-abstract:"

/* The kernel shows this uid for a user without a number in this namespace, so it may be any user.
 */
#define OVERFLOW_UID 65534

static const char *name_of(const char *address)
{
    size_t len = strlen(SCHEME);
    return strncmp(address, SCHEME, len) == 0 ? address + len : NULL;
}

bool tether__unix_is_address(const char *address)
{
    return name_of(address) != NULL;
}

bool tether__unix_sockaddr(const char *address, struct tether__unix_sockaddr *ret_at)
{
    const char *name = name_of(address);
    size_t len = name ? strlen(name) : 0;
    if (len == 0 || len >= sizeof ret_at->at.sun_path)
        return false;
    ret_at->at = (struct sockaddr_un){.sun_family = AF_UNIX};
    /* a name that begins with a zero byte is not in the file system */
    memcpy(ret_at->at.sun_path + 1, name, len);
    ret_at->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
    return true;
}

bool tether__unix_choose(const char *asked, char *ret_address, size_t size)
{
    uint64_t random[2];
    const char *name = name_of(asked);
    if (name && *name)
        return (size_t)snprintf(ret_address, size, "%s", asked) < size;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return false;
    snprintf(ret_address, size, SCHEME "tether-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return true;
}

bool tether__unix_is_our_users(int fd, pid_t *ret_pid)
{
    struct ucred who;
    socklen_t len = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0)
        return false;
    *ret_pid = who.pid;
    return who.uid == geteuid() && who.uid != OVERFLOW_UID;
}
