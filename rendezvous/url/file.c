/* file:///path?rank=&world_size=: a file store. The rendezvous does not wait for the other workers;
 * calls of the store do. */
#include <strings.h>

#include "rendezvous/url/handlers.h"

static const char *const known_params[] = {"rank", "world_size", NULL};

static tether_status open_file(const struct tether__url *url,
                               bool dont_wait,
                               int timeout_ms,
                               struct tether_world *ret_world,
                               tether_error *reterr)
{
    (void)dont_wait;
    if (url->host[0] && strcasecmp(url->host, "localhost") != 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "file:// rendezvous: '%.64s' is read as a host: write three "
                                "slashes before an absolute path, file:///%.64s%.64s",
                                url->host, url->host, url->path);
    if (!url->path[0] || !url->path[1])
        return tether_error_set(reterr, TETHER_EINVAL,
                                "file:// rendezvous: path missing: write file:///path/to/file");
    struct tether_world world = {NULL, 0, 0};
    tether_status st = tether__url_node(url, &world.rank, &world.size, reterr);
    if (st == TETHER_OK)
        st = tether_store_file_new(url->path, world.size, &world.store, reterr);
    if (st == TETHER_OK)
        st = tether_store_set_timeout(world.store, timeout_ms, reterr);
    if (st != TETHER_OK) {
        tether_world_fini(&world);
        return st;
    }
    *ret_world = world;
    return TETHER_OK;
}

const struct tether__url_scheme tether__url_file = {"file", known_params, open_file};
