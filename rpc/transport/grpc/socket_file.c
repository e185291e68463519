/* See socket_file.h. */
#include "rpc/transport/grpc/socket_file.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/socket_path.h"

#define UNIX_SCHEME "unix:"

const char *tether__socket_path(const char *address)
{
    bool is_unix = strncmp(address, UNIX_SCHEME, strlen(UNIX_SCHEME)) == 0;
    return is_unix ? address + strlen(UNIX_SCHEME) : NULL;
}

bool tether__socket_sockaddr(const char *path, struct sockaddr_un *ret_at)
{
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof ret_at->sun_path)
        return false;
    *ret_at = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret_at->sun_path, path, len);
    return true;
}

/* Tries to connect. Returns 0 if a process listens there, else an errno. */
static int try_connect(const struct sockaddr_un *at)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int error = connect(fd, (const struct sockaddr *)at, sizeof *at) == 0 ? 0 : errno;
    close(fd);
    return error;
}

tether_status tether__socket_file_lock(const char *path,
                                       struct tether__socket_lock *ret_lock,
                                       tether_error *reterr)
{
    struct sockaddr_un at;
    if (!*path)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "cannot listen on unix: without a path; want \"unix:/path\"");
    if (!tether__socket_sockaddr(path, &at))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "cannot listen on unix:%s: the path is longer than the %zu bytes "
                                "that a unix socket can have",
                                path, sizeof at.sun_path - 1);
    tether_status st = tether__socket_path_lock(path, ret_lock, reterr);
    return st == TETHER_OK ? st : tether_error_wrap(reterr, st, "cannot listen on unix:%s", path);
}

tether_status tether__socket_file_clear(const char *path, tether_error *reterr)
{
    struct stat st;
    struct sockaddr_un at;
    tether__socket_sockaddr(path, &at);
    if (lstat(path, &st) != 0)
        return errno == ENOENT
                   ? TETHER_OK
                   : tether_error_set(reterr, TETHER_EIO, "cannot listen on unix:%s: %s", path,
                                      strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return tether_error_set(reterr, TETHER_EEXIST,
                                "cannot listen on unix:%s: there is a file that is not a socket",
                                path);
    int error = try_connect(&at);
    if (error == 0 || error == EAGAIN)
        return tether_error_set(reterr, TETHER_EADDRINUSE,
                                "cannot listen on unix:%s: another process does", path);
    if (error != ECONNREFUSED || unlink(path) != 0)
        return tether_error_set(reterr, TETHER_EPERM,
                                "cannot listen on unix:%s: an old socket is in the way: %s", path,
                                strerror(error != ECONNREFUSED ? error : errno));
    return TETHER_OK;
}

bool tether__socket_file_note(struct tether__socket_file *ret_file, const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return false;
    *ret_file = (struct tether__socket_file){path, st.st_dev, st.st_ino};
    return true;
}

void tether__socket_file_remove(struct tether__socket_file *file)
{
    if (file->path)
        tether__socket_path_remove(file->path,
                                   (struct tether__socket_id){file->device, file->inode});
    file->path = NULL;
}
