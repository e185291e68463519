/* Binds sockets to addresses, and checks that they are allowed. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads/loop.h"
#include "net/net.h"

#define RESOLVE_MS 30000
#define PORT_DRAWS 16 /* attempts to find a port that is free on all addresses */

bool tether__net_is_loopback(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
        return ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    if (addr->sa_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(in6) ||
               (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == IN_LOOPBACKNET);
    }
    return addr->sa_family == AF_UNIX;
}

int tether__net_port(int fd)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof addr;
    if (getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        return -1;
    if (addr.ss_family == AF_INET)
        return ntohs(((struct sockaddr_in *)&addr)->sin_port);
    if (addr.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&addr)->sin6_port);
    return 0;
}

static void set_port(struct sockaddr *addr, int port)
{
    if (addr->sa_family == AF_INET)
        ((struct sockaddr_in *)addr)->sin_port = htons((uint16_t)port);
    else if (addr->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)addr)->sin6_port = htons((uint16_t)port);
}

/* Returns a bound socket, or -1 with errno. */
static int bind_one(const struct sockaddr *addr, socklen_t len)
{
    tether__occupy_standard_streams();
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (addr->sa_family == AF_INET6) /* IPV6_V6ONLY: IPv4 addresses get sockets of their own */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    /* Also calls listen(): with SO_REUSEADDR only that detects a port in use. */
    if (bind(fd, addr, len) == 0 && listen(fd, 0) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void close_all(int *fds, int *n)
{
    while (*n > 0)
        close(fds[--*n]);
}

/* Binds to every local address of the list. Returns 0 if there is none, or one is in use; errno
 * says why. */
static int bind_all(const struct addrinfo *list, int port, int *fds)
{
    int n = 0, error = EADDRNOTAVAIL;
    for (; list && n < TETHER__NET_MAX_LISTENERS; list = list->ai_next) {
        set_port(list->ai_addr, port);
        int fd = bind_one(list->ai_addr, list->ai_addrlen);
        if (fd >= 0) {
            fds[n++] = fd;
            port = tether__net_port(fd);
            continue;
        }
        error = errno;
        if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) {
            close_all(fds, &n);
            break;
        }
    }
    errno = error;
    return n;
}

tether_status tether__net_bind(const char *host,
                               int port,
                               bool insecure,
                               int ret_fds[TETHER__NET_MAX_LISTENERS],
                               int *ret_n,
                               tether_error *reterr)
{
    struct addrinfo *list;
    int64_t deadline = tether__deadline_in(&tether__clock_system, RESOLVE_MS);
    tether_status st = tether__net_resolve(host, port, deadline, &list, reterr);
    if (st != TETHER_OK)
        return st;
    for (const struct addrinfo *ai = list; ai && !insecure; ai = ai->ai_next) {
        if (tether__net_is_loopback(ai->ai_addr))
            continue;
        char text[TETHER__NET_TEXT_SIZE];
        tether__net_text(ai->ai_addr, ai->ai_addrlen, text);
        freeaddrinfo(list);
        return tether_error_set(reterr, TETHER_EPERM,
                                "%s is beyond loopback, where every host that can connect could "
                                "read and write the store: set 'insecure' if that is intended",
                                text);
    }
    int n = 0;
    for (int draw = 0; n == 0 && draw < PORT_DRAWS; draw++) {
        n = bind_all(list, port, ret_fds);
        if (n == 0 && (port != 0 || errno != EADDRINUSE))
            break; /* stop unless another port may be free */
    }
    int error = errno;
    freeaddrinfo(list);
    if (n == 0)
        return tether_error_set(reterr, error == EADDRINUSE ? TETHER_EADDRINUSE : TETHER_EIO,
                                "The server socket has failed to listen on any local network "
                                "address: binding to %s:%d: %s: %s",
                                host, port, strerror(error),
                                error == EADDRINUSE ? "choose another port (0: a free one), or end "
                                                      "the process that uses it"
                                                    : "give an address and a port of this machine");
    *ret_n = n;
    return TETHER_OK;
}

/* Whether no process listens on a socket file any more. */
static bool is_abandoned(const struct sockaddr_un *addr)
{
    struct stat info;
    if (lstat(addr->sun_path, &info) != 0 || !S_ISSOCK(info.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool refused =
        connect(fd, (const struct sockaddr *)addr, sizeof *addr) != 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

tether_status tether__net_bind_unix(const char *path,
                                    int *ret_fd,
                                    struct tether__socket_id *ret_id,
                                    tether_error *reterr)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof addr.sun_path)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the path of a unix socket is 1 to %zu bytes long, not %zu",
                                sizeof addr.sun_path - 1, strlen(path));
    strcpy(addr.sun_path, path);
    /* locked until the socket listens: see net/socket_path.h */
    struct tether__socket_lock lock = {.fd = -1};
    tether_status st = tether__socket_path_lock(path, &lock, reterr);
    if (st != TETHER_OK)
        return tether_error_wrap(reterr, st, "The server socket has failed to listen on unix:%s",
                                 path);
    tether__occupy_standard_streams();
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        int why = errno;
        tether__socket_path_unlock(&lock);
        return tether_error_set(reterr, TETHER_EIO, "making a unix socket: %s", strerror(why));
    }
    if (is_abandoned(&addr))
        unlink(path);
    fchmod(fd, S_IRUSR | S_IWUSR); /* before bind(), so that the file never has another mode */
    int error = 0;
    if (bind(fd, (struct sockaddr *)&addr, sizeof addr) != 0 || listen(fd, SOMAXCONN) != 0)
        error = errno;
    struct tether__socket_id id = {0, 0};
    if (!error)
        id = tether__socket_path_id(path);
    tether__socket_path_unlock(&lock);
    if (error) {
        close(fd);
        return tether_error_set(reterr, error == EADDRINUSE ? TETHER_EADDRINUSE : TETHER_EIO,
                                "The server socket has failed to listen on unix:%s: %s: choose "
                                "another path, in a folder that you may write to",
                                path, strerror(error));
    }
    *ret_fd = fd;
    *ret_id = id;
    return TETHER_OK;
}
