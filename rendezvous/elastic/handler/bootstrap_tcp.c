/* The network operations of bootstrap.h: a TCP store on a port of this host. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/elastic/handler/bootstrap.h"
#include "rendezvous/store_tcp.h"

static bool locate(tether_store *store, char ret_addr[TETHER_RDZV_ADDR_MAX], uint16_t *ret_port)
{
    const char *host = tether_store_tcp_host(store);
    int port = tether_store_tcp_port(store);
    /* On a unix socket there is no port: workers on other hosts could not use it. */
    if (!host || port <= 0 || strlen(host) >= TETHER_RDZV_ADDR_MAX)
        return false;
    strcpy(ret_addr, host);
    *ret_port = (uint16_t)port;
    return true;
}

static tether_status host(const char *addr,
                          bool insecure,
                          int timeout_ms,
                          tether_store **ret_server,
                          uint16_t *ret_port,
                          tether_error *reterr)
{
    tether_store *server = NULL;
    tether_status st =
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.host = addr, .is_host = true,
                                                   .insecure = insecure, .timeout_ms = timeout_ms),
                             &server, reterr);
    if (st != TETHER_OK)
        return st;
    *ret_server = server;
    *ret_port = (uint16_t)tether_store_tcp_port(server);
    return TETHER_OK;
}

static tether_status free_port_of(const struct addrinfo *at, uint16_t *ret_port)
{
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return TETHER_EIO;
    tether_status st = TETHER_EIO;
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&bound, &len) == 0) {
        *ret_port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                      : ((struct sockaddr_in *)&bound)->sin_port);
        st = TETHER_OK;
    }
    int cause = errno;
    close(fd);
    errno = cause;
    return st;
}

static tether_status free_port(const char *addr, uint16_t *ret_port, tether_error *reterr)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(addr, "0", &hints, &found);
    if (failed)
        return tether_error_set(reterr, TETHER_EIO, "looking up '%s' failed: %s", addr,
                                gai_strerror(failed));
    tether_status st = TETHER_EIO;
    for (const struct addrinfo *at = found; at && st != TETHER_OK; at = at->ai_next)
        st = free_port_of(at, ret_port);
    freeaddrinfo(found);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "no free port on '%s': %s", addr, strerror(errno));
    return TETHER_OK;
}

const struct tether__rdzv_bootstrap_ops tether__rdzv_bootstrap_tcp = {
    .locate = locate,
    .host = host,
    .free_port = free_port,
};
