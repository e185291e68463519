/* tcp://host:port?rank=&world_size=: rank 0 hosts a TCP store there and waits for the others. */
#include <string.h>

#include "rendezvous/store_tcp.h"

#include "rendezvous/url/handlers.h"

/* use_libuv is an option of PyTorch, which has two servers. We have one that serves the clients of
 * both, so both values are accepted. */
static const char *const known_params[] = {"rank", "world_size", "insecure", "use_libuv", NULL};

tether_status tether__tcp_meet(const struct tether__tcp_meeting *m,
                               int timeout_ms,
                               struct tether_world *ret_world,
                               tether_error *reterr)
{
    tether_store *store = NULL;
    bool hosts = m->rank == 0 && !m->hosted_elsewhere;
    tether_status st = tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.host = m->host, .port = m->port, .is_host = hosts,
                              .multi_tenant = true, .insecure = m->insecure,
                              .world_size = m->world_size,
                              .wait_for_workers = !m->hosted_elsewhere && !m->dont_wait,
                              .timeout_ms = timeout_ms == 0 ? 1 : timeout_ms),
        &store, reterr);
    if (st == TETHER_OK && timeout_ms == 0)
        st = tether_store_set_timeout(store, 0, reterr);
    if (st == TETHER_OK && m->prefix && m->prefix[0]) {
        tether_store *below = store;
        st = tether_store_prefix_new(m->prefix, below, &store, reterr);
        tether_store_release(below);
        if (st != TETHER_OK)
            store = NULL;
    }
    /* replace the message, which names an option of the store, by one about the URL */
    if (st == TETHER_EPERM && !m->insecure)
        tether_error_set(reterr, st,
                         "a store at %.80s is beyond loopback, where every host that can connect "
                         "could read and write it: %s if that is intended",
                         m->host, m->set_insecure);
    if (st != TETHER_OK) {
        tether_store_release(store);
        return tether_error_wrap(reterr, st, "%s:// rendezvous as rank %d of %d", m->scheme,
                                 m->rank, m->world_size);
    }
    *ret_world = (struct tether_world){store, m->rank, m->world_size};
    return TETHER_OK;
}

static tether_status meet(const struct tether__url *url,
                          bool dont_wait,
                          int timeout_ms,
                          struct tether_world *ret_world,
                          tether_error *reterr)
{
    if (!url->host[0])
        return tether_error_set(reterr, TETHER_EINVAL,
                                "tcp:// rendezvous: host missing: write tcp://HOST:PORT");
    if (url->port == TETHER__URL_NO_PORT || url->port == 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                strchr(url->host, ':')
                                    ? "tcp:// rendezvous: port number missing: write "
                                      "tcp://[%.64s]:PORT, the same for every rank"
                                    : "tcp:// rendezvous: port number missing: write "
                                      "tcp://%.64s:PORT, the same for every rank",
                                url->host);
    if (url->path[0] && url->path[1])
        return tether_error_set(reterr, TETHER_EINVAL,
                                "tcp:// rendezvous: a path ('%.64s') means nothing here: remove it",
                                url->path);
    struct tether__tcp_meeting m = {.scheme = "tcp",
                                    .host = url->host,
                                    .port = url->port,
                                    .set_insecure = "add insecure=1 to the URL",
                                    .dont_wait = dont_wait};
    bool use_libuv = true;
    tether_status st = tether__url_node(url, &m.rank, &m.world_size, reterr);
    if (st == TETHER_OK)
        st = tether__url_switch(url, "insecure", &m.insecure, reterr);
    if (st == TETHER_OK)
        st = tether__url_switch(url, "use_libuv", &use_libuv, reterr);
    if (st == TETHER_OK)
        st = tether__tcp_meet(&m, timeout_ms, ret_world, reterr);
    return st;
}

const struct tether__url_scheme tether__url_tcp = {"tcp", known_params, meet};
