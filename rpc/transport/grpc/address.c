/* Addresses: "127.0.0.1:1234", "[::1]:1234", "host:1234", "unix:/path".
 *
 * Makes the form that gRPC needs in order to dial one, and finds out why one could not be listened
 * on: gRPC itself only says that it could not.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <grpc/support/alloc.h>
#include <grpc/support/string_util.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "rpc/transport/grpc/grpc.h"
#include "rpc/transport/grpc/socket_file.h"

/* Splits "host:port" and "[host]:port". False when it is neither. */
bool tether__grpc_split(const char *address, char *host, size_t host_size, const char **ret_port)
{
    const char *colon = strrchr(address, ':');
    if (!colon)
        return false;
    const char *begin = address;
    size_t len = (size_t)(colon - address);
    if (*begin == '[' && len >= 2 && begin[len - 1] == ']') {
        begin++;
        len -= 2;
    } else if (memchr(address, ':', len)) {
        return false; /* a bare IPv6 address, in which the begin of the port is ambiguous */
    }
    if (len == 0 || len >= host_size)
        return false;
    memcpy(host, begin, len);
    host[len] = '\0';
    *ret_port = colon + 1;
    return true;
}

char *tether__grpc_target(const char *address)
{
    char host[256];
    const char *port;
    unsigned char binary[sizeof(struct in6_addr)];
    if (tether__socket_path(address) || !tether__grpc_split(address, host, sizeof host, &port))
        return tether__strdup(address); /* gRPC reports a malformed address when it dials */
    /* With the schemes ipv4: and ipv6: gRPC needs no resolver and no threads for it. */
    if (inet_pton(AF_INET, host, binary) == 1)
        return tether__asprintf("ipv4:%s:%s", host, port);
    if (inet_pton(AF_INET6, host, binary) == 1)
        return tether__asprintf("ipv6:[%s]:%s", host, port);
    return tether__asprintf("dns:///%s", address);
}

void tether__grpc_set_bound(char *ret_bound, size_t size, const char *address, int port)
{
    if (tether__socket_path(address))
        snprintf(ret_bound, size, "%s", address);
    else
        snprintf(ret_bound, size, "%.*s:%d", (int)(strrchr(address, ':') - address), address, port);
}

/* ---- The other end of a connection ---- */

bool tether__grpc_address_of(int fd, char ret_address[TETHER__GRPC_ADDRESS_SIZE])
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char ip[INET6_ADDRSTRLEN];
    if (getpeername(fd, (struct sockaddr *)&at, &len) != 0)
        return false;
    bool v6 = at.ss_family == AF_INET6;
    if (at.ss_family == AF_UNIX) {
        snprintf(ret_address, TETHER__GRPC_ADDRESS_SIZE, "unix:");
        return true;
    }
    const struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&at;
    const struct sockaddr_in *in4 = (struct sockaddr_in *)&at;
    if (!inet_ntop(at.ss_family, v6 ? (const void *)&in6->sin6_addr : &in4->sin_addr, ip,
                   sizeof ip))
        return false;
    snprintf(ret_address, TETHER__GRPC_ADDRESS_SIZE, v6 ? "ipv6:[%s]:%d" : "ipv4:%s:%d", ip,
             ntohs(v6 ? in6->sin6_port : in4->sin_port));
    return true;
}

bool tether__grpc_is_unix(int fd)
{
    int domain = 0;
    socklen_t len = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_UNIX;
}

/* gRPC names a connection that it did not accept itself "fd:12", so take the address instead: it
 * is more useful to readers. */
char *tether__grpc_peer_of(grpc_call *call)
{
    char *peer = grpc_call_get_peer(call), address[TETHER__GRPC_ADDRESS_SIZE];
    if (!peer || strncmp(peer, "fd:", 3) != 0 || !tether__grpc_address_of(atoi(peer + 3), address))
        return peer;
    gpr_free(peer);
    return gpr_strdup(address);
}

/* ---- What is in the way ---- */

static tether_status tell_errno(const char *address, int error, tether_error *reterr)
{
    switch (error) {
        case EADDRINUSE:
            return tether_error_set(reterr, TETHER_EADDRINUSE,
                                    "cannot listen on %s: another process does; choose another "
                                    "port, or 0 for any",
                                    address);
        case EACCES:
        case EPERM:
            return tether_error_set(reterr, TETHER_EPERM, "cannot listen on %s: %s", address,
                                    strerror(error));
        case EADDRNOTAVAIL:
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "cannot listen on %s: this machine has no such address",
                                    address);
        default:
            return tether_error_set(reterr, TETHER_EIO, "cannot listen on %s: %s", address,
                                    strerror(error));
    }
}

/* Returns 0 if this process can listen at `at`, else an errno. */
static int try_listen(const struct addrinfo *at)
{
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol), one = 1;
    if (fd < 0)
        return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool fine = bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 1) == 0;
    int error = fine ? 0 : errno;
    close(fd);
    return error;
}

tether_status tether__grpc_bad_tls(const char *address, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EINVAL,
                            "cannot listen on %s: gRPC does not accept the TLS settings; does the "
                            "key belong to the certificate?",
                            address);
}

tether_status tether__grpc_why_not(const struct tether__grpc *transport,
                                   const char *address,
                                   tether_error *reterr)
{
    char host[256];
    const char *port;
    if (!tether__socket_path(address)) {
        if (!tether__grpc_split(address, host, sizeof host, &port))
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "cannot listen on '%s': want \"host:port\", \"[ipv6]:port\" or "
                                    "\"unix:/path\"",
                                    address);
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
        int rc = getaddrinfo(host, port, &hints, &found);
        if (rc != 0)
            return tether_error_set(reterr, TETHER_EINVAL, "cannot listen on %s: %s", address,
                                    gai_strerror(rc));
        int error = 0;
        for (const struct addrinfo *at = found; at && !error; at = at->ai_next)
            error = try_listen(at);
        freeaddrinfo(found);
        if (error)
            return tell_errno(address, error, reterr);
    }
    if (transport->has_tls)
        return tether__grpc_bad_tls(address, reterr);
    return tether_error_set(reterr, TETHER_EIO, "cannot listen on %s: gRPC does not say why",
                            address);
}
