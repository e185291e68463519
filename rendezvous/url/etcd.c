/* etcd://host:port/prefix?rank=&world_size=: keys below prefix/ of an etcd server. The rendezvous
 * does not wait for the other workers; calls of the store do. The password comes from
 * TETHER_ETCD_PASSWORD, because URLs end up in logs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/store_etcd.h"
#include "rendezvous/url/handlers.h"

static const char *const known_params[] = {"rank", "world_size", "endpoints", "tls",      "ca",
                                           "cert", "key",        "user",      "insecure", NULL};

/* Builds the list of endpoints, "https://host:port,more", with the URL's own host first. */
static char *format_endpoints(const struct tether__url *url, bool tls)
{
    const char *more = tether__url_param(url, "endpoints");
    bool ipv6 = strchr(url->host, ':') != NULL;
    char port[16] = "";
    if (url->port != TETHER__URL_NO_PORT)
        snprintf(port, sizeof port, ":%d", url->port);
    return tether__asprintf("%s%s%s%s%s%s%s", tls ? "https://" : "", ipv6 ? "[" : "", url->host,
                            ipv6 ? "]" : "", port, more ? "," : "", more ? more : "");
}

static tether_status open_etcd(const struct tether__url *url,
                               bool tls,
                               bool insecure,
                               int timeout_ms,
                               tether_store **ret_store,
                               tether_error *reterr)
{
    const char *user = tether__url_param(url, "user");
    char *endpoints = format_endpoints(url, tls);
    char *prefix = tether__asprintf("%s/", url->path + 1);
    tether_status st;
    if (!endpoints || !prefix)
        st = tether_error_set(reterr, TETHER_ENOMEM, "out of memory for the etcd rendezvous");
    else
        st = tether_store_etcd_new(
            TETHER_STORE_ETCD_OPTS(.endpoints = endpoints, .prefix = prefix,
                                   .ca_path = tether__url_param(url, "ca"),
                                   .cert_path = tether__url_param(url, "cert"),
                                   .key_path = tether__url_param(url, "key"), .user = user,
                                   .password = user ? getenv("TETHER_ETCD_PASSWORD") : NULL,
                                   .insecure = insecure,
                                   .timeout_ms = timeout_ms == 0 ? 1 : timeout_ms),
            ret_store, reterr);
    tether__free(prefix);
    tether__free(endpoints);
    return st;
}

static tether_status meet(const struct tether__url *url,
                          bool dont_wait,
                          int timeout_ms,
                          struct tether_world *ret_world,
                          tether_error *reterr)
{
    (void)dont_wait;
    if (!url->host[0])
        return tether_error_set(reterr, TETHER_EINVAL,
                                "etcd:// rendezvous: host missing: write etcd://HOST:PORT/PREFIX");
    if (!url->path[0] || !url->path[1])
        return tether_error_set(reterr, TETHER_EINVAL,
                                "etcd:// rendezvous: prefix missing: write etcd://%.64s/PREFIX, a "
                                "new one for each run, since etcd keeps the keys of earlier runs",
                                url->host);
    struct tether_world world = {NULL, 0, 0};
    bool tls = false, insecure = false;
    tether_status st = tether__url_node(url, &world.rank, &world.size, reterr);
    if (st == TETHER_OK)
        st = tether__url_switch(url, "tls", &tls, reterr);
    if (st == TETHER_OK)
        st = tether__url_switch(url, "insecure", &insecure, reterr);
    if (st == TETHER_OK)
        st = open_etcd(url, tls, insecure, timeout_ms, &world.store, reterr);
    if (st == TETHER_OK && timeout_ms == 0)
        st = tether_store_set_timeout(world.store, 0, reterr);
    if (st != TETHER_OK) {
        tether_world_fini(&world);
        return st;
    }
    *ret_world = world;
    return TETHER_OK;
}

const struct tether__url_scheme tether__url_etcd = {"etcd", known_params, meet};
