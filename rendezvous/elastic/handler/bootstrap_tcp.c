/* The network operations of bootstrap.h: a TCP store on a port of this host. */
#include <string.h>
#include <unistd.h>

#include "net/net.h"
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

static tether_status free_port(const char *addr, uint16_t *ret_port, tether_error *reterr)
{
    int fds[TETHER__NET_MAX_LISTENERS], n = 0;
    tether_status st = tether__net_bind(addr, 0, true, fds, &n, reterr);
    if (st == TETHER_OK)
        *ret_port = (uint16_t)tether__net_port(fds[0]);
    while (n > 0)
        close(fds[--n]);
    return st;
}

const struct tether__rdzv_bootstrap_ops tether__rdzv_bootstrap_tcp = {
    .locate = locate,
    .host = host,
    .free_port = free_port,
};
