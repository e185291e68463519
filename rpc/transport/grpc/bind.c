/* The sockets that a worker listens on: TCP, or a unix path.
 *
 * Happy path: every address that the host has gets a socket, all with the same port; a unix path
 * gets one that only its own user may open.
 *
 * Failure modes: no address can be bound: the port is 0 or less, and tether__grpc_why_not() finds
 * out why. A unix path that is in use, or is no socket: the error says so.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/net.h"
#include "rpc/transport/grpc/accept.h"

/* ---- TCP ---- */

static int listen_on(const struct addrinfo *at, int port)
{
    struct sockaddr_storage to;
    int one = 1;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    memcpy(&to, at->ai_addr, at->ai_addrlen);
    if (at->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)&to)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)&to)->sin_port = htons((uint16_t)port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&to, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    close(fd);
    return -1;
}

int tether__grpc_bind_tcp(struct tether__grpc_listeners *listeners,
                          const char *host,
                          const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    int bound = atoi(port);
    for (const struct addrinfo *at = found; at && listeners->n < TETHER__GRPC_MAX_LISTENERS;
         at = at->ai_next) {
        int fd = listen_on(at, bound);
        if (fd < 0)
            continue;
        listeners->fds[listeners->n++] = fd;
        bound = tether__net_port(fd);
    }
    freeaddrinfo(found);
    return listeners->n ? bound : -1;
}

/* ---- Unix paths ---- */

static tether_status no_socket(const char *path, int error, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EIO, "cannot listen on unix:%s: %s", path,
                            strerror(error));
}

static tether_status bind_path(struct tether__grpc_listeners *listeners,
                               const char *path,
                               tether_error *reterr)
{
    struct sockaddr_un at;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return no_socket(path, errno, reterr);
    fchmod(fd, S_IRUSR | S_IWUSR); /* before bind(), so that the file never has another mode */
    tether__socket_sockaddr(path, &at);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, SOMAXCONN) == 0 &&
        tether__socket_file_note(&listeners->file, path)) {
        listeners->fds[listeners->n++] = fd;
        return TETHER_OK;
    }
    int error = errno;
    close(fd);
    return no_socket(path, error, reterr);
}

tether_status tether__grpc_bind_path(struct tether__grpc_listeners *listeners,
                                     const char *path,
                                     tether_error *reterr)
{
    /* locked until the socket listens: see net/socket_path.h */
    struct tether__socket_lock lock = {.fd = -1};
    tether_status st = tether__socket_file_lock(path, &lock, reterr);
    if (st != TETHER_OK)
        return st;
    st = tether__socket_file_clear(path, reterr);
    if (st == TETHER_OK)
        st = bind_path(listeners, path, reterr);
    tether__socket_path_unlock(&lock);
    return st;
}

/* ---- The end ---- */

void tether__grpc_listeners_close(struct tether__grpc_listeners *listeners)
{
    while (listeners->n)
        close(listeners->fds[--listeners->n]);
    tether__socket_file_remove(&listeners->file);
}
